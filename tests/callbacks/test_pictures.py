"""Saved arrays, what is drawn from them, and that neither changes anything."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnscale.attention import attentions
from attnscale.callbacks.pictures import Pictures
from attnscale.experiment.assemble import Parts
from attnscale.figures.attention import Histogram, Map, histograms, maps
from attnscale.figures.page import to_png
from tests.callbacks.conftest import AUTOENCODER, TRANSFORMER, Fit

PNG = b"\x89PNG\r\n\x1a\n"
OTHERS = ("callbacks.watchdog=null", "callbacks.gradient_stats=null")
FEW = ("callbacks.pictures.examples=3", "callbacks.pictures.histogram_examples=8")
Arrays = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnscale.figures.page.to_png", lambda _: PNG)


def saved(folder: Path) -> dict[int, Arrays]:
    made = {}
    for path in sorted((folder / "pictures").glob("step_*.npz")):
        with np.load(path) as arrays:
            made[int(path.stem.removeprefix("step_"))] = dict(arrays)
    return made


def tokens(arrays: Arrays, key: str) -> list[list[str]]:
    made: list[list[str]] = json.loads(str(arrays[key]))
    return made


@pytest.mark.usefixtures("_undrawn")
def test_arrays_are_saved_at_the_start_at_chosen_epochs_and_at_the_end(fit: Fit) -> None:
    epochs = ("trainer.max_epochs=4", "callbacks.pictures.epochs=[1,3,4]")
    found = saved(fit(*AUTOENCODER, *OTHERS, *FEW, *epochs).folder)
    assert list(found) == [0, 4, 12, 16]
    first, last = (found[step]["weights/layers.0.attention"] for step in (0, 16))
    assert not np.array_equal(first, last)
    for arrays in found.values():
        for path in ("layers.0.attention", "layers.1.attention"):
            weights = arrays[f"weights/{path}"]
            assert weights.shape == (3, 3, 7, 7)
            assert weights.dtype == np.float16
            assert weights.sum(axis=-1) == pytest.approx(1.0, abs=3e-3)
            positions = [[str(i) for i in range(1, 8)]] * 3
            assert tokens(arrays, f"queries/{path}") == tokens(arrays, f"keys/{path}") == positions
            # 8 examples, 3 heads, 7 rows of 7 logits; each row's mean is taken off.
            counts, edges = arrays[f"counts/{path}"], arrays[f"edges/{path}"]
            assert counts.sum() == 8 * 3 * 7 * 7
            assert len(edges) == len(counts) + 1
    at_start = found[0]
    middle = (
        at_start["edges/layers.0.attention"][1:] + at_start["edges/layers.0.attention"][:-1]
    ) / 2
    share = at_start["counts/layers.0.attention"] / at_start["counts/layers.0.attention"].sum()
    spread = float(np.sqrt((share * middle**2).sum() * 7 / 6))
    assert spread == pytest.approx(float(at_start["predicted/layers.0.attention"]), rel=0.2)


@pytest.mark.usefixtures("_undrawn")
def test_tokens_are_those_of_the_sentences(fit: Fit) -> None:
    kept: list[Parts] = []
    done = fit(*TRANSFORMER, *OTHERS, *FEW, "trainer.max_epochs=1", before=kept.append)
    data: Any = kept[0].data
    split = data.load("val")
    cut = {side: data.preprocessing[side].splitter() for side in ("source", "target")}
    last = list(saved(done.folder).values())[-1]
    n_rows = {"encoder.0.self": 0, "decoder.0.self": 0, "decoder.0.cross": 0}
    for path in n_rows:
        queries, keys = tokens(last, f"queries/{path}"), tokens(last, f"keys/{path}")
        weights = last[f"weights/{path}"].astype(np.float64)
        assert weights.shape[:2] == (3, 2)
        for i, (a, b) in enumerate(zip(queries, keys, strict=True)):
            source = [*cut["source"](split.source_text[i]), "<eos>"]
            target = ["<bos>", *cut["target"](split.target_text[i])]
            known = [set(data.vocabularies[side].tokens) for side in ("source", "target")]
            source = [t if t in known[0] else "<unk>" for t in source]
            target = [t if t in known[1] else "<unk>" for t in target]
            assert a == (source if path.startswith("encoder") else target)
            assert b == (target if path == "decoder.0.self" else source)
            real = weights[i][:, : len(a), : len(b)]
            assert real.sum(axis=-1) == pytest.approx(1.0, abs=3e-3), "weight on padded keys"
            if path == "decoder.0.self":
                assert np.triu(real, 1).max() == 0.0
            n_rows[path] += len(a)
    assert all(n_rows.values())


def test_pictures_are_drawn_and_recorded(lab: Any) -> None:
    result = lab.run(*AUTOENCODER, *FEW, "trainer.max_epochs=1", "trainer.limit_test_batches=0")
    found = {item.path for item in lab.client.list_artifacts(result.run_id, "attention")}
    arrays = {f"attention/step_{step:07d}.npz" for step in (0, 4)}
    drawn = {f"attention/{name}.png" for name in ("maps", "histograms", "entropy")}
    assert found == arrays | drawn
    for name in ("maps", "histograms", "entropy"):
        data = Path(result.folder, "pictures", f"{name}.png").read_bytes()
        assert data.startswith(PNG)
        assert len(data) > 3000


def test_a_mode_without_softmax(fit: Fit) -> None:
    done = fit(*AUTOENCODER, *OTHERS, *FEW, "attention.scale=nap", "trainer.max_epochs=1")
    names = {path.name for path in (done.folder / "pictures").glob("*.png")}
    assert names == {"maps.png", "histograms.png"}
    weights = saved(done.folder)[0]["weights/layers.0.attention"]
    assert weights.min() < 0


@pytest.mark.usefixtures("_undrawn")
@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_other_number_formats(fit: Fit, precision: str) -> None:
    more = (f"trainer.precision={precision}", "trainer.max_epochs=1")
    weights = saved(fit(*AUTOENCODER, *OTHERS, *FEW, *more).folder)[4]["weights/layers.0.attention"]
    assert weights.astype(np.float64).sum(axis=-1) == pytest.approx(1.0, abs=3e-3)


@pytest.mark.usefixtures("_undrawn")
def test_a_snapshot_changes_no_state(fit: Fit) -> None:
    more = ("attention.scale=score_batchnorm", "model.dropout=0.3", "trainer.max_epochs=1")
    done = fit(*AUTOENCODER, *OTHERS, *FEW, *more)
    callbacks: list[Any] = getattr(done.trainer, "callbacks")  # noqa: B009
    (pictures,) = [one for one in callbacks if isinstance(one, Pictures)]
    pictures.saved = []
    done.module.train()
    before = {name: value.clone() for name, value in done.module.state_dict().items()}
    state = torch.get_rng_state()
    pictures.save()
    assert len(pictures.saved) == 1
    assert torch.equal(torch.get_rng_state(), state)
    after = done.module.state_dict()
    assert any(name.endswith("running_variance") for name in after)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert done.module.training
    assert all(m.training for m in done.module.modules())
    assert all(one.tap is None for one in attentions(done.module.model).values())


@pytest.mark.parametrize("name", ["examples", "histogram_examples"])
def test_a_mistake_is_refused(name: str) -> None:
    options: dict[str, Any] = {"examples": 1, "histogram_examples": 1, "epochs": []}
    with pytest.raises(ValueError, match=rf"callbacks\.pictures\.{name}=0"):
        Pictures(**{**options, name: 0})


# --- drawing ---

HARD = [
    '"',
    "'",
    "\\",
    "\\\\",
    "]",
    "][0]",
    '"][0]+datum.value+["',
    "\\u0022",
    "</script>",
    "שלום",
    "مرحبا",
    "漢字かな",
    "👩‍🔬",
    "\u2028",
    "\n",
    "",
    "<b>&amp;",
    "`${1}`",
    "datum.value",
]


def hard_map(words: list[str]) -> Map:
    n = len(words)
    return Map(path="a", weights=np.eye(n)[None].astype(np.float16), queries=words, keys=words)


def test_any_text_is_only_text() -> None:
    spec = maps([hard_map(HARD)], 'title "]')
    panel = spec["vconcat"][0]["hconcat"][0]
    expression = panel["encoding"]["x"]["axis"]["labelExpr"]
    literal, _, rest = expression.rpartition("[datum.value]")
    assert rest == ""
    assert json.loads(literal) == HARD
    assert to_png(spec).startswith(PNG)


def test_labels_are_drawn_whatever_they_hold() -> None:
    """A label that broke its expression would leave the axis empty, as blanks do."""
    import vl_convert

    words = [word for word in HARD if word.strip()]
    svg = vl_convert.vegalite_to_svg(json.dumps(maps([hard_map(words)], "title")))
    shown = [word for word in ("שלום", "مرحبا", "漢字かな", "datum.value", "][0]") if word in svg]
    assert shown == ["שלום", "مرحبا", "漢字かな", "datum.value", "][0]"]
    assert "&lt;/script&gt;" in svg
    assert "</script>" not in svg


def rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_many_pictures_keep_memory_flat() -> None:
    generator = np.random.default_rng(0)

    def draw(number: int) -> None:
        edges = np.linspace(-1, 1, 12)
        counts = generator.integers(0, 9, 11)
        one = Histogram(path=f"p{number}", when="", counts=counts, edges=edges, predicted=0.3)
        assert to_png(histograms([one], f"picture {number}")).startswith(PNG)

    for number in range(20):
        draw(number)
    before = rss_mib()
    for number in range(60):
        draw(20 + number)
    grown = rss_mib() - before
    print(f"60 pictures: {grown:.1f} MiB more")  # noqa: T201 -- shown with -s
    assert grown < 60, "a megabyte a picture: they pile up"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["autoencoder", "transformer"])
def test_drawing_takes_little_of_a_job(
    fit: Fit, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    taken: list[float] = []
    draw = Pictures.draw

    def timed(self: Pictures) -> None:
        start, wall = time.process_time(), time.perf_counter()
        draw(self)
        taken.append(time.process_time() - start)
        print(f"{model}: drawn in {time.perf_counter() - wall:.2f} s")  # noqa: T201 -- with -s

    monkeypatch.setattr(Pictures, "draw", timed)
    fit(f"model={model}", *OTHERS, "data.n_train=100", "data.n_val=70", "trainer.max_epochs=1")
    print(f"{model}: {taken[0]:.2f} s of the processor")  # noqa: T201 -- shown with -s
    assert 0 < taken[0] < 6, "of the processor, whatever else runs; alone it is under 1.5 s"
