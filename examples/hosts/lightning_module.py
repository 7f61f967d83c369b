"""A Lightning module; the lines for hookline are marked with "hookline"."""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from one_callback import GoodEnough  # hookline
from torch.utils.data import DataLoader, TensorDataset

from hookline.integrations.lightning import HooklineCallback  # hookline


class Regression(LightningModule):  # type: ignore[misc]
    """Fits a line."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss of a batch."""
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.line(inputs), targets)

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    """Train until it is good enough."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(64, 2)
    data = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=8)
    trainer = Trainer(
        max_epochs=10,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[HooklineCallback([GoodEnough(loss=0.01)], name="line")],  # hookline
    )
    trainer.fit(Regression(), data)


if __name__ == "__main__":
    main()
