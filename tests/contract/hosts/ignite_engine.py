"""An `Engine` of Ignite, with an evaluator."""

import warnings
from pathlib import Path
from typing import Any

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what others deprecate
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Loss

from hookline.integrations.ignite import attach
from hosts.base import EPOCHS, Host
from hosts.regression import HELD_OUT, TRAIN, line, loader, optimizer_of


class Ignite(Host):
    """`ignite.engine.Engine`."""

    name = "ignite"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        model = line()
        optimizer, criterion = optimizer_of(model.parameters()), torch.nn.functional.mse_loss
        trainer = create_supervised_trainer(model, optimizer, criterion)
        evaluator = create_supervised_evaluator(model, {"loss": Loss(criterion)})

        def validate() -> None:
            evaluator.run(loader(HELD_OUT))

        parts = {"model": model, "optimizer": optimizer, "evaluators": evaluator, "validate": validate}
        with attach(trainer, callbacks, name=self.name, resume=resume, **parts, **self.options) as attached:
            trainer.add_event_handler(Events.EPOCH_COMPLETED, validate)
            self.loop = attached.loop
            trainer.run(loader(TRAIN), max_epochs=EPOCHS)
