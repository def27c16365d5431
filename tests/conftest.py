from jaxtyping import install_import_hook

# Before anything imports attnscale: only what is imported later has its annotations checked. The
# numeric tower lets an int stand for a float, as it does for mypy.
install_import_hook(
    ["attnscale.attention", "attnscale.model", "attnscale.metric"],
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
)

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
