"""The loss of a batch that is a part: of a step, or of what several processes have."""

import pytest
import torch
from torch import Tensor, nn

from attnscale.data.gaussian import SequenceBatch
from attnscale.task.reconstruction import Reconstruction
from tests.task.toy import settings


class Twice(nn.Module):
    """Doubles its input, so that the error is the input."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


@pytest.mark.parametrize("weight", [0.25, 1.0, 1.5])
def test_a_loss_of_half_precision_stays_in_its_range(weight: float) -> None:
    """70,000 squares of 2 add up to more than 65,504, the largest number of fp16."""
    task = Reconstruction(
        model=Twice(),
        make_optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
        settings=settings(),
        checkpoint_values={},
    )
    x = torch.full((70, 10, 100), 2.0, dtype=torch.float16)
    assert float(task.loss(SequenceBatch(x, weight))) == 4.0 * weight
    assert float(task.loss(SequenceBatch(x[:0], 0.0))) == 0.0
