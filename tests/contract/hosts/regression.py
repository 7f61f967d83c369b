"""The model and the data of all hosts that train on anything: a linear regression, and its numbers."""

from collections.abc import Iterable
from typing import Any

import torch

LEARNING_RATE = 0.05
START = [[0.5, -0.5]]
"""The weights that every training begins with; the bias is nothing."""


def numbers(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and the targets that they have."""
    inputs = torch.randn(rows, 2, generator=torch.Generator().manual_seed(seed))
    return inputs, inputs @ torch.tensor([[2.0], [-1.0]]) + 0.5


TRAIN = numbers(8, seed=0)
"""Four batches of two."""
HELD_OUT = numbers(4, seed=1)
"""Two batches of two."""


def loader(data: tuple[torch.Tensor, torch.Tensor], batch_size: int = 2) -> Any:
    """The batches, always in the same order."""
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=batch_size)


def line() -> torch.nn.Linear:
    """The model as it is before a training."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(START))
        model.bias.zero_()
    return model


def optimizer_of(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """What trains them."""
    return torch.optim.SGD(parameters, lr=LEARNING_RATE)


def loss_of(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean square error."""
    loss: torch.Tensor = torch.nn.functional.mse_loss(model(inputs), targets)
    return loss
