"""hookline's own `Trainer`, the reference of each kind of training."""

from pathlib import Path
from typing import Any, ClassVar

import torch

import hookline as hl
from hosts.base import EPOCHS, STEPS, Host
from hosts.regression import HELD_OUT, TRAIN, line, loader, optimizer_of


class OwnTrainer(Host):
    """`hl.Trainer`."""

    name = "trainer"
    batch_size = 2
    plan: ClassVar[dict[str, Any]] = {"epochs": EPOCHS}

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        self.loop = hl.Trainer(
            line(),
            loader(TRAIN, self.batch_size),
            loader(HELD_OUT, self.batch_size),
            config=hl.TrainerConfig(
                **self.plan, output_dir=str(self.directory / "runs"), save_at_end=False, summary=False
            ),
            loss=torch.nn.functional.mse_loss,
            optimizer=optimizer_of,
            callbacks=callbacks,
        )
        self.loop.fit() if resume is None else self.loop.resume(resume)


class Rounds(OwnTrainer):
    """`hl.Trainer` with one epoch, and a validation after each step."""

    batch_size = 1
    plan: ClassVar[dict[str, Any]] = {"max_steps": STEPS, "validate_every_steps": 1}


class RoundsAfterOne(Rounds):
    """The same, with a validation before the first step."""

    plan: ClassVar[dict[str, Any]] = {**Rounds.plan, "validate_at_start": True}
