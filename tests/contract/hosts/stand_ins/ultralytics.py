"""A stand-in for ultralytics 8.4: the loop of its `BaseTrainer`, its `BaseValidator`, and `YOLO` with callbacks.

ultralytics itself imports torchvision, which does not import beside torch for the CPU.
"""

import copy
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from hosts.regression import HELD_OUT, TRAIN, line, loader, optimizer_of

Callbacks = dict[str, list[Callable[[Any], None]]]


class YOLO:
    """A model, given as a file to resume from or not at all."""

    def __init__(self, model: str | Path = "") -> None:
        self.file = str(model)
        self.callbacks: Callbacks = defaultdict(list)
        self.trainer: Any = None

    def add_callback(self, event: str, func: Callable[[Any], None]) -> None:
        self.callbacks[event].append(func)

    def train(self, *, resume: bool = False, **settings: Any) -> Any:
        self.trainer = BaseTrainer({**settings, "resume": self.file if resume else False}, _callbacks=self.callbacks)
        self.trainer.train()
        return self.trainer.metrics

    def val(self) -> Any:
        return BaseValidator(self.callbacks)(model=line())


class BaseTrainer:
    """Trains the linear regression."""

    def __init__(self, overrides: dict[str, Any], _callbacks: Callbacks) -> None:
        settings = {
            "save_dir": "runs/detect/train",
            "epochs": 100,
            "save": True,
            "val": True,
            "accumulate": 1,
            "breaks_at": None,
            "resume": False,
            **overrides,
        }
        self.args = SimpleNamespace(**settings)
        self.resume = bool(self.args.resume)
        if self.resume:  # with the settings of the training that is resumed
            saved = torch.load(self.args.resume, weights_only=True)
            self.args = SimpleNamespace(**{**saved["train_args"], "resume": self.args.resume})
        self.callbacks = {event: list(functions) for event, functions in _callbacks.items()}
        self.wdir = Path(self.args.save_dir) / "weights"
        self.wdir.mkdir(parents=True, exist_ok=True)
        self.last, self.best = self.wdir / "last.pt", self.wdir / "best.pt"
        self.epochs, self.start_epoch, self.epoch = self.args.epochs, 0, 0
        self.best_fitness: Any = None
        self.fitness: Any = None
        self.loss: Any = None
        self.loss_items: Any = None
        self.loss_names: tuple[str, ...] = ()
        self.metrics: Any = None
        self.stop = False
        self.run_callbacks("on_pretrain_routine_start")

    def add_callback(self, event: str, callback: Callable[[Any], None]) -> None:
        self.callbacks[event].append(callback)

    def run_callbacks(self, event: str) -> None:
        for callback in self.callbacks.get(event, []):
            callback(self)

    def train(self) -> None:
        try:
            self._do_train()
        finally:
            self.run_callbacks("teardown")

    def _setup_train(self) -> None:
        self.model = line()
        self.train_loader, self.accumulate = loader(TRAIN), self.args.accumulate
        self.optimizer = optimizer_of(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda epoch: 1.0)
        self.ema = SimpleNamespace(ema=copy.deepcopy(self.model))
        self.validator = BaseValidator(self.callbacks)
        if self.resume:
            saved = torch.load(self.args.resume, weights_only=True)
            self.model.load_state_dict(saved["ema"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.start_epoch, self.best_fitness = saved["epoch"] + 1, saved["best_fitness"]
        self.run_callbacks("on_pretrain_routine_end")

    def _do_train(self) -> None:
        self._setup_train()
        last_opt_step = -1
        self.run_callbacks("on_train_start")
        epoch = self.start_epoch
        self.optimizer.zero_grad()
        while True:
            self.epoch = epoch
            self.run_callbacks("on_train_epoch_start")
            self.model.train()
            for i, (inputs, targets) in enumerate(self.train_loader):
                self.run_callbacks("on_train_batch_start")
                ni = i + len(self.train_loader) * epoch
                if ni == self.args.breaks_at:
                    raise RuntimeError("the images are missing")
                mse = torch.nn.functional.mse_loss(self.model(inputs), targets)
                loss, self.loss_items = torch.stack([mse]), {"mse_loss": mse.detach()}
                self.loss = loss.sum()
                self.loss_names = tuple(self.loss_items)
                (self.loss / self.accumulate).backward()
                if ni - last_opt_step >= self.accumulate:
                    self.optimizer_step()
                    last_opt_step = ni
                self.run_callbacks("on_train_batch_end")
                if self.stop:
                    break
            self.run_callbacks("on_train_epoch_end")
            final_epoch = epoch + 1 >= self.epochs
            if self.args.val or final_epoch or self.stop:
                self.metrics, self.fitness = self.validate()
            self.stop |= final_epoch
            if (self.args.save or final_epoch) and self.save_model():
                self.run_callbacks("on_model_save")
            self.scheduler.step()
            self.run_callbacks("on_fit_epoch_end")
            if self.stop:
                break
            epoch += 1
        self.final_eval()
        self.run_callbacks("on_train_end")

    def optimizer_step(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=10.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ema.ema.load_state_dict(self.model.state_dict())

    def validate(self) -> Any:
        metrics = self.validator(self)
        fitness = metrics.pop("fitness")
        if self.best_fitness is None or self.best_fitness < fitness:
            self.best_fitness = fitness
        return metrics, fitness

    def save_model(self) -> bool:
        saved = {
            "epoch": self.epoch,
            "best_fitness": self.best_fitness,
            "ema": self.ema.ema.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "train_args": vars(self.args),
        }
        torch.save(saved, self.last)
        if self.best_fitness == self.fitness:
            torch.save(saved, self.best)
        return True

    def label_loss_items(self, loss_items: Any = None, prefix: str = "train") -> Any:
        return {f"{prefix}/{name}": round(float(value), 5) for name, value in loss_items.items()}

    def final_eval(self) -> None:
        if self.best.exists():
            self.metrics = self.validator(model=self.best)
            self.metrics.pop("fitness")
            self.epoch += 1
            self.run_callbacks("on_fit_epoch_end")
            self.epoch -= 1


class BaseValidator:
    """Validates on the held-out data."""

    def __init__(self, _callbacks: Callbacks) -> None:
        self.callbacks = _callbacks
        self.metrics = SimpleNamespace(results_dict={})

    def run_callbacks(self, event: str) -> None:
        for callback in self.callbacks.get(event, []):
            callback(self)

    def __call__(self, trainer: Any = None, model: Any = None) -> dict[str, float]:
        self.training = trainer is not None
        model = trainer.ema.ema if self.training else line() if isinstance(model, Path) else model
        self.run_callbacks("on_val_start")
        losses = []
        for self.batch_i, (inputs, targets) in enumerate(loader(HELD_OUT)):
            self.run_callbacks("on_val_batch_start")
            with torch.no_grad():
                losses.append(torch.nn.functional.mse_loss(model(inputs), targets))
            self.run_callbacks("on_val_batch_end")
        loss = round(float(sum(losses)) / len(losses), 5)
        stats = self.metrics.results_dict = {"metrics/fit(B)": -loss, "fitness": -loss}
        self.run_callbacks("on_val_end")
        return {**stats, "val/mse_loss": loss} if self.training else dict(stats)
