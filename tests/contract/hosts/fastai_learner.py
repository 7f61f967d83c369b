"""``Learner.fit`` of fastai."""

import warnings
from pathlib import Path
from typing import Any

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what others deprecate
    from fastai.callback.progress import ProgressCallback
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    from fastai.optimizer import SGD

from hookline.integrations.fastai import HooklineCallback
from hosts.base import EPOCHS, Host
from hosts.regression import HELD_OUT, LEARNING_RATE, TRAIN, line, loader


class Fastai(Host):
    """`fastai.learner.Learner`."""

    name = "fastai"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        with HooklineCallback(callbacks, resume=resume, name=self.name, **self.options) as hooks:
            self.loop = hooks.loop
            learn = learner(hooks)
            if resume is not None:
                load(learn, resume / "model")
            learn.fit(EPOCHS, LEARNING_RATE, wd=0, start_epoch=0 if resume is None else 1)


def load(learn: Any, file: Path) -> None:
    """Load a model and its optimizer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses what NumPy deprecates
        learn.load(file)


def learner(*callbacks: Any, **options: Any) -> Any:
    """A learner of the regression that prints nothing."""
    data = DataLoaders(loader(TRAIN), loader(HELD_OUT), device=torch.device("cpu"))
    options = {"loss_func": torch.nn.MSELoss(), "opt_func": SGD, "cbs": list(callbacks), **options}
    learn = Learner(data, line(), **options)
    learn.remove_cb(ProgressCallback)
    learn.logger = lambda values: None
    return learn
