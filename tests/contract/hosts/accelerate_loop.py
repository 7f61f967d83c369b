"""A loop over what Accelerate has prepared."""

from pathlib import Path
from typing import Any

from accelerate import Accelerator

from hookline.integrations.accelerate import run
from hosts.accelerate_state import fresh_state
from hosts.bare_loop import train_by_hand
from hosts.base import Host
from hosts.regression import TRAIN, line, loader, optimizer_of


class Accelerate(Host):
    """`accelerate.Accelerator`."""

    name = "accelerate"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        fresh_state()
        accelerator = Accelerator(cpu=True)
        model = line()
        model, optimizer, data = accelerator.prepare(model, optimizer_of(model.parameters()), loader(TRAIN))
        self.loop = run(accelerator, self.name, callbacks=callbacks, resume=resume, **self.options)
        train_by_hand(self.loop, model, optimizer, data, accelerator.backward)
