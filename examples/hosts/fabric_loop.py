"""A loop with Lightning Fabric; the lines for hookline are marked with "hookline".

Without it, the two lines before the body are ``for epoch in range(10):`` and ``for inputs, targets in data:``.
"""

import torch
from lightning.fabric import Fabric
from one_callback import GoodEnough  # hookline
from torch.utils.data import DataLoader, TensorDataset

from hookline.integrations.fabric import run  # hookline


def main() -> None:
    """Fit a line until it is good enough."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    fabric = Fabric(accelerator="cpu", devices=1)
    inputs = torch.randn(64, 2)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=8)
    line = torch.nn.Linear(2, 1)
    model, optimizer = fabric.setup(line, torch.optim.SGD(line.parameters(), lr=0.1))
    data = fabric.setup_dataloaders(loader)
    with run(fabric, model, optimizer, name="line", callbacks=[GoodEnough(loss=0.01)]) as loop:  # hookline
        for inputs, targets in loop.steps(data, epochs=10):  # hookline
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            loop.log(loss=loss)  # hookline


if __name__ == "__main__":
    main()
