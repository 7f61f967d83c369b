"""The `Trainer` of Lightning."""

import warnings
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what others deprecate
    from lightning.pytorch import LightningModule, Trainer

from hookline.integrations.lightning import HooklineCallback
from hosts.base import EPOCHS, Host
from hosts.regression import HELD_OUT, TRAIN, line, loader, loss_of, optimizer_of


class Regression(LightningModule):
    """The regression as a module of Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.line = line()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return loss_of(self.line, *batch)

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.log("val_loss", loss_of(self.line, *batch))
        return {"predictions": self.line(batch[0])}

    def configure_optimizers(self) -> Any:
        return optimizer_of(self.parameters())


class Lightning(Host):
    """`lightning.pytorch.Trainer`."""

    name = "lightning"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        hooks = HooklineCallback(callbacks, name=self.name, **self.options)
        self.loop = hooks.loop
        quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of workers for the data, and of what it imports
            trainer = Trainer(
                callbacks=[hooks],
                max_epochs=EPOCHS,
                accelerator="cpu",
                default_root_dir=self.directory,
                **dict.fromkeys(quiet, False),
            )
            trainer.fit(Regression(), loader(TRAIN), loader(HELD_OUT), ckpt_path=resume)
