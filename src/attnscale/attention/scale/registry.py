"""The registry of scale modes: a literal dict. Nothing outside knows a mode by name."""

import difflib
import math
import sys
from collections.abc import Mapping

from attnscale.attention.scale import fixed, learnable, length, normalised, scores
from attnscale.attention.scale.record import ScaleMode

SCALE_MODES: dict[str, ScaleMode] = {
    "sqrt": fixed.SQRT,
    "none": fixed.NONE,
    "folded": fixed.FOLDED,
    "none_equiv": fixed.NONE_EQUIV,
    "inverse": fixed.INVERSE,
    "mup": fixed.MUP,
    "sqrt_d_model": fixed.SQRT_D_MODEL,
    "learned": learnable.LEARNED,
    "learned_shared": learnable.LEARNED_SHARED,
    "cosine": normalised.COSINE,
    "qknorm": normalised.QKNORM,
    "cosine_fixed": normalised.COSINE_FIXED,
    "qk_layernorm": normalised.QK_LAYERNORM,
    "qk_rmsnorm": normalised.QK_RMSNORM,
    "ngpt": normalised.NGPT,
    "softcap": scores.SOFTCAP,
    "score_layernorm": scores.SCORE_LAYERNORM,
    "score_batchnorm": scores.SCORE_BATCHNORM,
    "nap": scores.NAP,
    "log_n": length.LOG_N,
    "log_n_base": length.LOG_N_BASE,
    "ssmax": length.SSMAX,
}


def resolve_scale(scale: str | float) -> ScaleMode:
    """Return the record that ``attention.scale`` names.

    Args:
        scale: A name in :data:`SCALE_MODES`, or a positive, finite number that multiplies the
            scores.

    Raises:
        ValueError: For an unknown name (with the nearest known one) or a number that is not
            positive and finite.
    """
    if isinstance(scale, str):
        if scale in SCALE_MODES:
            return SCALE_MODES[scale]
        near = difflib.get_close_matches(scale, SCALE_MODES, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"attention.scale={scale}: no such scale mode. Did you mean {near!r}? "
            f"Allowed: {', '.join(SCALE_MODES)}, or a positive number"
        )
    if isinstance(scale, bool) or not 0 < scale < math.inf or scale > sys.float_info.max:
        raise ValueError(
            f"attention.scale={scale}: a number must be positive and finite; "
            f"names are {', '.join(SCALE_MODES)}"
        )
    return fixed.constant(scale)


def check_options(mode: ScaleMode, options: Mapping[str, float]) -> dict[str, float]:
    """Return a mode's options after checking that they are complete, known and allowed.

    Raises:
        ValueError: Naming the config key, the value and what is allowed.
    """
    key = f"attention.options.{mode.name}"
    for name in options:
        if name not in mode.options:
            known = ", ".join(mode.options) or "none"
            raise ValueError(f"{key}.{name}: unknown option; {mode.name!r} has: {known}")
    for name, option in mode.options.items():
        if name not in options:
            raise ValueError(f"{key}.{name} is missing: {option.allowed}")
        value = options[name]
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or not option.test(value)
        ):
            raise ValueError(f"{key}.{name}={value}: allowed is {option.allowed}")
    return dict(options)
