"""Every precision of Lightning's Trainer trains both models on a CPU, or is refused by name."""

import pytest

from attnscale.experiment.assemble import Parts
from attnscale.experiment.trainer import warn_of_slow_bf16
from tests.callbacks.conftest import AUTOENCODER, TRANSFORMER, Fit

QUIET = (
    "callbacks=[curves,gradient_stats,checkpoint]",
    "trainer.max_epochs=1",
    "trainer.limit_val_batches=2",
)
SHORT = (*QUIET, "trainer.limit_train_batches=2", "callbacks.gradient_stats.every=1")
PRECISIONS = ("64-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed", "64", "32", "16", "bf16")


@pytest.mark.parametrize(
    ("precision", "model"),
    [
        ("64-true", TRANSFORMER),
        *(pytest.param(p, TRANSFORMER, marks=pytest.mark.slow) for p in PRECISIONS[1:]),
        *(pytest.param(p, AUTOENCODER, marks=pytest.mark.slow) for p in PRECISIONS),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value[:1]),
)
@pytest.mark.filterwarnings("ignore:.*precision:UserWarning")
def test_losses_and_gradient_norms_are_those_of_fp32(
    fit: Fit, precision: str, model: tuple[str, ...]
) -> None:
    full, other = (fit(*model, *SHORT, f"trainer.precision={p}") for p in ("32-true", precision))
    rounding = 1e-5 if precision in ("64-true", "64", "32") else 0.05
    for name in ("train/loss", "grad_norm/total", "grad_norm/q"):
        # The first step: with Adam in 16-true the second one may be anywhere.
        assert other.points[name][0] == pytest.approx(full.points[name][0], rel=rounding), name


def test_norms_are_as_wide_as_the_weights_whatever_the_loss(fit: Fit) -> None:
    def narrow(parts: Parts) -> None:
        loss = parts.module.loss
        setattr(parts.module, "loss", lambda batch: loss(batch).float())  # noqa: B010

    double = (*AUTOENCODER, *SHORT, "trainer.precision=64-true")
    wide, other = fit(*double), fit(*double, before=narrow)
    assert other.points["grad_norm/total"] == pytest.approx(wide.points["grad_norm/total"])


@pytest.mark.parametrize("precision", ["transformer-engine", "transformer-engine-float16"])
def test_a_precision_that_is_not_installed_is_refused_by_name(fit: Fit, precision: str) -> None:
    with pytest.raises(ValueError, match=rf"^trainer\.precision={precision}: .*not met") as caught:
        fit(*AUTOENCODER, f"trainer.precision={precision}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("units", "lines"), [(True, 0), (False, 1)])
def test_a_cpu_without_bf16_units_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, units: bool, lines: int
) -> None:
    monkeypatch.setattr("attnscale.experiment.trainer.bf16_units", lambda: units)
    warn_of_slow_bf16.cache_clear()
    for _ in range(2):
        warn_of_slow_bf16("bf16-mixed")
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == lines
    assert all(text.startswith("trainer.precision=bf16-mixed: ") for text in texts)
