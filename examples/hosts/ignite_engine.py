"""An engine of Ignite; the lines for hookline are marked with "hookline"."""

import torch
from ignite.engine import create_supervised_trainer
from one_callback import GoodEnough  # hookline
from torch.utils.data import DataLoader, TensorDataset

from hookline.integrations.ignite import attach  # hookline


def main() -> None:
    """Fit a line until it is good enough."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(64, 2)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=8)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss)
    attach(trainer, [GoodEnough(loss=0.01)], model=model, optimizer=optimizer, name="line")  # hookline
    trainer.run(loader, max_epochs=10)


if __name__ == "__main__":
    main()
