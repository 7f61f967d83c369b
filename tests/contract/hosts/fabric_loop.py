"""A loop over what Lightning Fabric has set up."""

import warnings
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what others deprecate
    from lightning.fabric import Fabric

from hookline.integrations.fabric import run
from hosts.bare_loop import train_by_hand
from hosts.base import Host
from hosts.regression import TRAIN, line, loader, optimizer_of


class FabricLoop(Host):
    """`lightning.fabric.Fabric`."""

    name = "fabric"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        fabric = Fabric(accelerator="cpu", devices=1)
        model = line()
        model, optimizer = fabric.setup(model, optimizer_of(model.parameters()))
        data = fabric.setup_dataloaders(loader(TRAIN))
        self.loop = run(fabric, model, optimizer, name=self.name, callbacks=callbacks, resume=resume, **self.options)
        train_by_hand(self.loop, model, optimizer, data, fabric.backward)
