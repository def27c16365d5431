"""What a record means, in words that a person can act on: the number first.

A wrong factor is not ill health by itself, and ill health has other causes than the factor. What
fails: a scale that is not the expected one, more than half of the rows saturated, a kernel whose
output is not that of its arguments. The rest is a warning.
"""

import fnmatch
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from attnscale.doctor.record import Attention

FAIL, WARN, NOTE = "FAIL", "WARN", "NOTE"

CLOSE = 0.01
"""A scale this near to one that has a name, relatively, is called so."""
EXPECTED = 0.02
"""A scale further from the expected one, relatively, fails."""
NOT_LINEAR = 0.02
"""A misfit above this is told."""
WRONG_OUTPUT = 1e-2
"""A kernel's output further from that of its arguments, relatively, fails."""
SATURATED = 0.5
"""Share of rows with a weight above 0.9 that fails."""
FIRST_KEY = 0.3
"""Mean weight of the first key of a sink head (Gu et al. 2025)."""
COLLAPSED = 0.1
"""entropy_norm of a head that sees one key."""
UNIFORM = 0.2
"""Spread of a head's logits, ÷ that of unrelated q and k, below which it sees all keys alike."""
GROWN = 3.0
"""Spread of the logits, ÷ that of unrelated q and k, that is told."""
SMALL_SPREAD = 2.0
"""Spread in logits under which a missing factor does no harm, as in T5: its weights are small."""

SCALES: tuple[tuple[str, Callable[[int, int], float]], ...] = (
    ("1/√d_k", lambda d, m: d**-0.5),
    ("none (1): not scaled", lambda d, m: 1.0),
    ("1/d_k: scaled twice, or muP", lambda d, m: 1 / d),
    ("1/√d_model: by model width", lambda d, m: m**-0.5),
    ("√d_k: on the wrong side", lambda d, m: d**0.5),
    ("d_k^-¼: on one side only", lambda d, m: d**-0.25),
    ("1/√(3 d_k)", lambda d, m: (3 * d) ** -0.5),
)
"""Names of scales, by d_k and d_model."""

NO_FACTOR = ("T5", "MT5", "UMT5", "LongT5", "Switch", "GPTNeo", "Pix2Struct", "Pop2Piano")
"""Starts of class names of models without a factor by design: their weights are small instead."""

Expected = str | float | Mapping[str, str | float] | None


@dataclass(frozen=True)
class Finding:
    """Something to be told of an attention.

    Attributes:
        level: FAIL, WARN or NOTE.
        name: Of the attention.
        words: What it is.
    """

    level: str
    name: str
    words: str

    def __str__(self) -> str:
        return f"{self.level} {self.name}: {self.words}"


def _normalised(attention: Attention) -> bool:
    return "normalised" in (attention.origin_q, attention.origin_k)


def named(attention: Attention) -> list[str]:
    """Return the names of an attention's scale; several where sizes coincide, but for 1/√d_k."""
    d, width = attention.d_k, attention.d_model
    names = [
        name
        for name, of in SCALES
        if (width or "d_model" not in name)
        and math.isclose(attention.scale, of(d, width or 1), rel_tol=CLOSE)
    ]
    return names[:1] if names[:1] == ["1/√d_k"] else names


def scale_in_words(attention: Attention) -> str:
    """Return a scale with what it is called."""
    names = named(attention)
    times = f"{attention.times_sqrt:.4g}/√d_k"
    if _normalised(attention):
        words = f"normalised q, k × {attention.scale:.4g}"
    elif attention.d_product > attention.d_k and math.isclose(
        attention.scale, attention.d_product**-0.5, rel_tol=CLOSE
    ):
        words = f"{times}: 1/√{attention.d_product}, of padded heads"
    else:
        words = " = ".join(names) or times
    spread = max(attention.scales) - min(attention.scales)
    if spread > CLOSE * abs(attention.scale):
        words += f", heads {min(attention.scales):.4g} to {max(attention.scales):.4g}"
    if attention.softcap is not None:
        words += f", softcap {attention.softcap:.4g}"
    return words


def checked_expectation(text: str | None) -> str | float | None:
    """Return what a person expects: "sqrt", "none", a number, or None.

    Raises:
        ValueError: If it is none of these.
    """
    if text is None or text in ("sqrt", "none"):
        return text
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expect={text}: must be sqrt, none or a number") from None


def expected_scale(attention: Attention, expect: Expected) -> float | None:
    """Return the scale that is right for an attention, or None if nobody says.

    Raises:
        ValueError: If it is neither "sqrt", "none" nor a number.
    """
    if isinstance(expect, Mapping):
        fits = (
            value for pattern, value in expect.items() if fnmatch.fnmatch(attention.path, pattern)
        )
        expect = next(fits, None)
    if expect is None:
        return None
    if expect == "sqrt":
        return float(attention.d_k**-0.5)
    if expect == "none":
        return 1.0
    scale = checked_expectation(str(expect))
    assert isinstance(scale, float)
    return scale


def _heads(heads: list[int]) -> str:
    more = " …" if len(heads) > 6 else ""
    return f"head{'s' * (len(heads) > 1)} {', '.join(map(str, heads[:6]))}{more}"


def _of_scale(attention: Attention, expect: Expected, model: str) -> list[tuple[str, str]]:
    wanted, words = expected_scale(attention, expect), scale_in_words(attention)
    if wanted is not None:
        far = max(abs(scale / wanted - 1) for scale in attention.scales)
        if far > EXPECTED:
            return [(FAIL, f"scale {attention.scale:.4g}, {words}; expected {wanted:.4g}")]
        return []
    if _normalised(attention) or abs(attention.times_sqrt - 1) <= EXPECTED:
        return []
    if abs(attention.scale - 1) <= EXPECTED and max(attention.spread) < SMALL_SPREAD:
        known = ", as this model's design is" if model.startswith(NO_FACTOR) else ""
        return [
            (
                NOTE,
                "no factor, and weights so small that logits spread by "
                f"{max(attention.spread):.2g}{known}",
            )
        ]
    return [
        (WARN, f"scale {attention.scale:.4g}, {attention.times_sqrt:.4g} times 1/√d_k: {words}")
    ]


def _of_health(attention: Attention) -> list[tuple[str, str]]:
    told = []
    saturated = attention.figure("saturated_90")
    if saturated > SATURATED:
        told.append((FAIL, f"saturated: {saturated:.0%} of the rows give one key more than 0.9"))
    entropy = attention.figures["entropy_norm"]
    one_key = [h for h, value in enumerate(entropy) if value < COLLAPSED]
    if one_key:
        told.append((WARN, f"collapsed to one key: {_heads(one_key)}"))
    ratios = (
        [
            s / p if p else math.nan
            for s, p in zip(attention.spread, attention.predicted, strict=True)
        ]
        if len(attention.spread) == len(attention.predicted)
        else []
    )
    flat = [h for h, ratio in enumerate(ratios) if ratio < UNIFORM and entropy[h] > 0.99]
    if flat:
        told.append(
            (WARN, f"collapsed to uniform, below what untrained weights show: {_heads(flat)}")
        )
    grown = [
        h for h, ratio in enumerate(ratios) if ratio > GROWN and attention.spread[h] > SMALL_SPREAD
    ]
    if grown:
        times = max(ratios[h] for h in grown)
        told.append(
            (
                WARN,
                f"logits spread up to {times:.1f} times as unrelated q and k would: "
                f"{_heads(grown)}",
            )
        )
    sinks = [h for h, value in enumerate(attention.first_key) if value > FIRST_KEY]
    if sinks:
        told.append((WARN, f"sink on the first key: {_heads(sinks)}"))
    return told


def findings(attention: Attention, expect: Expected = None, model: str = "") -> list[Finding]:
    """Return what is to be told of an attention, the gravest first.

    Args:
        attention: The record.
        expect: The scale that is right: "sqrt", "none", a number, or by patterns of paths.
        model: Class name of the model; a known design changes the wording only.

    Raises:
        ValueError: If ``expect`` is none of these.
    """
    told = _of_scale(attention, expect, model)
    if attention.output_error is not None and attention.output_error > WRONG_OUTPUT:
        told.append((FAIL, "the kernel's output is not that of its arguments"))
    told += _of_health(attention)
    if attention.misfit > NOT_LINEAR:
        told.append((WARN, f"logits are not linear in q · k (misfit {attention.misfit:.2g})"))
    if "unknown" in (attention.origin_q, attention.origin_k):
        told.append(
            (NOTE, "where q or k come from was not seen: the scale is that on what is multiplied")
        )
    order = (FAIL, WARN, NOTE)
    told.sort(key=lambda one: order.index(one[0]))
    return [Finding(level, attention.name, words) for level, words in told]
