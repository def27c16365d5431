"""Evidence made up by hand, which no claim's test has to simulate."""

from attnscale.analysis.estimate import Estimate, Interval
from attnscale.claims.evidence import Evidence


def near(value: float, error: float = 0.01) -> Estimate:
    """Return an estimate with an interval of two errors to either side."""
    return Estimate(value, 4 * error, 16, Interval(value - 2 * error, value + 2 * error))


EVIDENCE = Evidence(
    largest_of_shifted=(0.5, 0.5, 0.99),
    gradient_ratios=[(16, near(4.0), near(0.9)), (64, near(6.0), near(0.6))],
    row_gradients=[(16, near(1.6), near(0.4)), (512, near(0.02), near(0.7))],
    initial_stds=[("torch", near(0.33)), ("unit", near(1.0))],
    reformer=[(16, near(0.8)), (256, near(0.8))],
    reparametrised=1e-15,
    folding=[("Adam", 0.2), ("Adafactor", 1e-9)],
    adam_difference=0.4,
    cosine_stds=[(64, near(1.25)), (512, near(0.44))],
    row_spread=(near(1e-7, 1e-9), near(0.2), near(0.3)),
    subtracting=1e-16,
    overflow=[("plain", 0.1), ("attend", 1.0)],
    inverse_entropy=(near(0.997, 1e-4), near(0.846, 1e-4)),
)
"""Much as it really is."""
