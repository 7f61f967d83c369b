"""A loop written by hand in torch, which knows its model and its optimizer."""

from pathlib import Path
from typing import Any

import torch

from hookline.integrations.torch import run
from hosts.bare_loop import train_by_hand
from hosts.base import Host
from hosts.regression import TRAIN, line, loader, optimizer_of


class TorchLoop(Host):
    """`hookline.integrations.torch.run`."""

    name = "torch"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        model = line()
        optimizer = optimizer_of(model.parameters())
        self.loop = run(model, optimizer, name=self.name, callbacks=callbacks, resume=resume, **self.options)
        train_by_hand(self.loop, model, optimizer, loader(TRAIN), torch.Tensor.backward)
