"""A trainer of MosaicML Composer; the lines for hookline are marked with "hookline"."""

from typing import Any

import torch
from composer import Trainer
from composer.models import ComposerModel
from one_callback import GoodEnough  # hookline
from torch.utils.data import DataLoader, TensorDataset

from hookline.integrations.composer import HooklineCallback  # hookline


class Line(ComposerModel):  # type: ignore[misc]
    """A linear regression."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(2, 1)

    def forward(self, batch: Any) -> torch.Tensor:
        """Return the predictions."""
        return self.line(batch[0])

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        """Return the mean square error."""
        return torch.nn.functional.mse_loss(outputs, batch[1])


def main() -> None:
    """Fit a line until it is good enough."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(64, 2)
    model = Line()
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=8),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration="10ep",
        progress_bar=False,
        callbacks=[HooklineCallback([GoodEnough(loss=0.01)], name="line")],  # hookline
    )
    trainer.fit()
    trainer.close()


if __name__ == "__main__":
    main()
