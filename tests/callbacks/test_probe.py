import time, traceback
from typing import Any
from tests.callbacks.conftest import AUTOENCODER, TRANSFORMER, Fit
import pytest
def test_x(fit: Fit) -> None:
    for base in (AUTOENCODER, TRANSFORMER):
        for o in ((), ("callbacks.pictures=null",), ("callbacks.pictures=null","callbacks.attention_stats=null")):
            for _ in range(2):
                t = time.perf_counter(); r = fit(*base, *o); print(base[0], o, time.perf_counter() - t, r.trainer.global_step)
@pytest.mark.parametrize("o", [
    "callbacks.attention_stats.statistics=[spectral_qk]", "attention.scale=nap callbacks.attention_stats.statistics=[entropy_norm]",
    "callbacks.attention_stats.statistics=[]",
    "data.length=1", "data.n_train=33", "model.d_k=1", "model.n_heads=1 model.d_k=1 data.length=2", "trainer.precision=bf16-true", "trainer.precision=64-true", "trainer.precision=bf16-mixed",
    *[f"optimizer.lr=1e{k} attention.scale={s} optimizer={o} {w}" for k in (1,2,4,6,8,9,10,12,16,18,19,20,25,30) for s in ("sqrt","none") for o in ("sgd","adam") for w in ("","callbacks.watchdog.stop=false")],
])
def test_y(fit: Fit, o: str) -> None:
    r = fit(*AUTOENCODER, *o.split())
    print(r.module.diverged, (r.folder/"pictures").exists() and sorted(p.name for p in (r.folder/"pictures").iterdir()))
