"""The registry of scale modes, a literal dict, and how a name becomes a scale.

Nothing outside knows a mode by its name. ``attention.scale`` is resolved once, by
:func:`choose_scale`; what that returns makes the scale of each attention.
"""

import difflib
import inspect
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from attnscale.attention.scale import factor, length, normalisation, scores
from attnscale.attention.scale.base import ArgumentError, Scale

SCALES: dict[str, type[Scale]] = {
    "sqrt": factor.Sqrt,
    "none": factor.Unscaled,
    "folded": factor.Folded,
    "none_equiv": factor.NoneEquivalent,
    "inverse": factor.Inverse,
    "mup": factor.MuP,
    "sqrt_d_model": factor.SqrtDModel,
    "learned": factor.Learned,
    "learned_shared": factor.LearnedShared,
    "cosine": normalisation.Cosine,
    "qknorm": normalisation.QKNorm,
    "cosine_fixed": normalisation.CosineFixed,
    "qk_layernorm": normalisation.QKLayerNorm,
    "qk_rmsnorm": normalisation.QKRMSNorm,
    "ngpt": normalisation.NGPT,
    "softcap": scores.SoftCap,
    "score_layernorm": scores.ScoreLayerNorm,
    "score_batchnorm": scores.ScoreBatchNorm,
    "nap": scores.NAP,
    "log_n": length.LogN,
    "log_n_base": length.LogNBase,
    "ssmax": length.SSMax,
}


def _arguments(kind: type[Scale]) -> tuple[frozenset[str], Mapping[str, float]]:
    """Return the facts that a mode's constructor needs, and its options with their defaults."""
    parameters = [
        parameter
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    facts = frozenset(p.name for p in parameters if p.default is inspect.Parameter.empty)
    return facts, {p.name: p.default for p in parameters if p.name not in facts}


def options_of(kind: type[Scale]) -> dict[str, float]:
    """Return a mode's options with their defaults."""
    return dict(_arguments(kind)[1])


def all_options() -> dict[str, dict[str, float]]:
    """Return the options of every mode that has any, with their defaults."""
    return {name: options for name, kind in SCALES.items() if (options := options_of(kind))}


def name_of(scale: Scale) -> str:
    """Return what ``attention.scale`` is set to for this scale; a class's name for one's own."""
    if isinstance(scale, factor.Constant):
        return f"{scale.constant:g}"
    names = [name for name, kind in SCALES.items() if kind is type(scale)]
    return names[0] if names else type(scale).__name__


@dataclass(frozen=True, kw_only=True)
class ScaleFactory:
    """A chosen mode with its options: makes the scale of each attention.

    Attributes:
        name: What ``attention.scale`` is set to.
        kind: The mode.
        options: The options that differ from the mode's defaults, or all of them.
        statistics: Name to value of what the data supplied.
    """

    name: str
    kind: type[Scale]
    options: Mapping[str, float] = field(default_factory=dict)
    statistics: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, *, n_heads: int, d_k: int, d_model: int | None = None) -> Scale:
        """Make a scale for one attention.

        Args:
            n_heads: Number of heads.
            d_k: Size of a query or key, per head.
            d_model: Size of the attention's input; None if it is not known.

        Raises:
            ValueError: If an option is not allowed, or something that the mode needs is missing.
        """
        sizes = {"n_heads": n_heads, "d_k": d_k, "d_model": d_model}
        facts: dict[str, float] = {}
        for argument in sorted(_arguments(self.kind)[0] - set(self.options)):
            statistic = self.kind.statistics.get(argument)
            fact = sizes.get(argument) if statistic is None else self.statistics.get(statistic)
            if fact is None:
                needed = argument if statistic is None else f"the statistic {statistic} of the data"
                raise ValueError(f"attention.scale={self.name}: needs {needed}")
            facts[argument] = fact
        try:
            return self.kind(**facts, **self.options)
        except ArgumentError as error:
            statistic = self.kind.statistics.get(error.argument)
            if statistic is None:
                raise ValueError(f"attention.options.{self.name}.{error}") from error
            raise ValueError(
                f"attention.scale={self.name}: the statistic {statistic} of the data is no good: "
                f"{error}"
            ) from error


def scale_name(scale: str | float | None) -> str:
    """Return the name of what ``attention.scale`` is set to, if there is such a mode.

    Args:
        scale: A name in :data:`SCALES`, or a positive, finite number that multiplies the scores.

    Raises:
        ValueError: For an unknown name (with the nearest known one), or a number that is not
            positive and finite.
    """
    if scale is None or isinstance(scale, str):
        if scale in SCALES:
            return scale
        near = difflib.get_close_matches(str(scale).lower(), SCALES, n=1, cutoff=0.0)[0]
        shown = "null" if scale is None else scale
        raise ValueError(
            f"attention.scale={shown}: no such scale mode. Did you mean {near!r}? "
            f"Allowed: {', '.join(SCALES)}, or a positive number"
        )
    huge = isinstance(scale, int) and scale > sys.float_info.max
    if isinstance(scale, bool) or huge or not 0 < float(scale) < math.inf:
        raise ValueError(
            f"attention.scale={scale}: a number must be positive and finite; "
            f"names are {', '.join(SCALES)}"
        )
    return f"{scale:g}"


def choose_scale(
    scale: str | float | None,
    options: Mapping[str, float] | None = None,
    statistics: Mapping[str, float] | None = None,
) -> ScaleFactory:
    """Return what makes the scales that ``attention.scale`` names.

    Args:
        scale: As in :func:`scale_name`.
        options: Options of the mode; those left out have their defaults.
        statistics: What the data supplied, by name; may be more than the mode needs.

    Raises:
        ValueError: As :func:`scale_name`, and for an option that the mode does not have.
    """
    name, options = scale_name(scale), dict(options or {})
    if isinstance(scale, int | float):
        if options:
            raise ValueError(f"attention.scale={scale}: a number has no options")
        return ScaleFactory(name=name, kind=factor.Constant, options={"factor": float(scale)})
    kind = SCALES[name]
    known = options_of(kind)
    for option in options:
        if option not in known:
            raise ValueError(
                f"attention.options.{name}.{option}: unknown option; {name!r} has: "
                f"{', '.join(known) or 'none'}"
            )
    return ScaleFactory(name=name, kind=kind, options=options, statistics=dict(statistics or {}))
