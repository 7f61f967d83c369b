"""A loop with Accelerate; the lines for hookline are marked with "hookline".

Without it, the two lines before the body are ``for epoch in range(10):`` and ``for inputs, targets in data:``.
"""

import torch
from accelerate import Accelerator
from one_callback import GoodEnough  # hookline
from torch.utils.data import DataLoader, TensorDataset

from hookline.integrations.accelerate import run  # hookline


def main() -> None:
    """Fit a line until it is good enough."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    inputs = torch.randn(64, 2)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=8)
    line = torch.nn.Linear(2, 1)
    model, optimizer, data = accelerator.prepare(line, torch.optim.SGD(line.parameters(), lr=0.1), loader)
    with run(accelerator, "line", callbacks=[GoodEnough(loss=0.01)]) as loop:  # hookline
        for inputs, targets in loop.steps(data, epochs=10):  # hookline
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            loop.log(loss=loss)  # hookline


if __name__ == "__main__":
    main()
