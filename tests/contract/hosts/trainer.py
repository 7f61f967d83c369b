"""hookline's own `Trainer`, the reference."""

from pathlib import Path
from typing import Any

import torch

import hookline as hl
from hosts.base import EPOCHS, Host
from hosts.regression import HELD_OUT, TRAIN, line, loader, optimizer_of


class OwnTrainer(Host):
    """`hl.Trainer`."""

    name = "trainer"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        self.loop = hl.Trainer(
            line(),
            loader(TRAIN),
            loader(HELD_OUT),
            config=hl.TrainerConfig(
                epochs=EPOCHS, output_dir=str(self.directory / "runs"), save_at_end=False, summary=False
            ),
            loss=torch.nn.functional.mse_loss,
            optimizer=optimizer_of,
            callbacks=callbacks,
        )
        self.loop.fit() if resume is None else self.loop.resume(resume)
