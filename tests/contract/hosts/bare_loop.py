"""A loop written by hand, with `hl.run` around it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import hookline as hl
from hosts.base import EPOCHS, Host
from hosts.regression import HELD_OUT, TRAIN, line, loader, loss_of, optimizer_of


class BareLoop(Host):
    """`hl.run`."""

    name = "bare_loop"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        model = line()
        optimizer = optimizer_of(model.parameters())
        files = {
            "save": lambda directory: torch.save(model.state_dict(), directory / "model.pt"),
            "load": lambda directory: model.load_state_dict(torch.load(directory / "model.pt")),
        }
        self.loop = hl.run(self.name, callbacks=callbacks, resume=resume, **files, **self.options)
        self.loop.model, self.loop.optimizer = model, optimizer
        train_by_hand(self.loop, model, optimizer, loader(TRAIN), torch.Tensor.backward)


def train_by_hand(run: Any, model: Any, optimizer: Any, data: Any, backward: Callable[[torch.Tensor], object]) -> None:
    """What somebody wrote who writes loops by hand, with a run around it."""
    with run:
        for _ in run.epochs(EPOCHS):
            for inputs, targets in run.steps(data):
                loss = loss_of(model, inputs, targets)
                backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                run.log(loss=loss)
            if not run.stop_requested:
                validate(run, model)


def validate(run: Any, model: Any) -> None:
    """A validation by hand."""
    with run.validate() as validation, torch.no_grad():
        for inputs, targets in validation.batches(loader(HELD_OUT)):
            validation.log(loss=loss_of(model, inputs, targets))
            validation.outputs(predictions=model(inputs))
