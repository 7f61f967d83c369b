"""A stand-in for Composer 0.32 (mosaicml): the loop of its `Trainer`, with its events, its state and its evaluators.

Composer itself imports torchvision, and requires an older torch.
"""

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import torch

from hosts.regression import HELD_OUT, TRAIN, line, loader, optimizer_of
from hosts.stand_ins import importable


class Event(Enum):
    """Composer's events, as far as the loop fires them."""

    INIT = "init"
    FIT_START = "fit_start"
    EPOCH_START = "epoch_start"
    BEFORE_DATALOADER = "before_dataloader"
    AFTER_DATALOADER = "after_dataloader"
    BATCH_START = "batch_start"
    BEFORE_TRAIN_BATCH = "before_train_batch"
    BEFORE_FORWARD = "before_forward"
    AFTER_FORWARD = "after_forward"
    BEFORE_BACKWARD = "before_backward"
    AFTER_BACKWARD = "after_backward"
    AFTER_TRAIN_BATCH = "after_train_batch"
    BATCH_END = "batch_end"
    BATCH_CHECKPOINT = "batch_checkpoint"
    EPOCH_END = "epoch_end"
    EPOCH_CHECKPOINT = "epoch_checkpoint"
    FIT_END = "fit_end"
    EVAL_BEFORE_ALL = "eval_before_all"
    EVAL_START = "eval_start"
    EVAL_BATCH_START = "eval_batch_start"
    EVAL_BATCH_END = "eval_batch_end"
    EVAL_END = "eval_end"
    EVAL_AFTER_ALL = "eval_after_all"
    EVAL_STANDALONE_START = "eval_standalone_start"
    EVAL_STANDALONE_END = "eval_standalone_end"


class Time(int):
    """A number of epochs (``ep``) or batches (``ba``)."""

    unit: Any

    def __new__(cls, value: int, unit: str) -> Self:
        made = super().__new__(cls, value)
        made.unit = SimpleNamespace(value=unit)
        return made


class Mean:
    """A metric with the interface of torchmetrics."""

    higher_is_better = False

    def reset(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.total += float((outputs - targets).square().sum())
        self.count += targets.numel()

    def compute(self) -> torch.Tensor:
        return torch.tensor(self.total / self.count)


class ComposerModel(torch.nn.Module):
    """A model with its loss and its metrics, for subclasses."""

    def loss(self, outputs: Any, batch: Any) -> Any:
        raise NotImplementedError

    def eval_forward(self, batch: Any, outputs: Any = None) -> Any:
        return self(batch) if outputs is None else outputs

    def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
        return {}

    def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
        metric.update(outputs, batch[1])


class Regression(ComposerModel):
    """The linear regression."""

    def __init__(self) -> None:
        super().__init__()
        self.line = line()

    def forward(self, batch: Any) -> Any:
        return self.line(batch[0])

    def loss(self, outputs: Any, batch: Any) -> Any:
        return torch.nn.functional.mse_loss(outputs, batch[1])

    def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
        return {} if is_train else {"MeanSquaredError": Mean()}


class Evaluator:
    """A data set that is evaluated every epoch, and at the end unless it just was."""

    def __init__(self, *, label: str, dataloader: Any, metric_names: list[str] | None = None) -> None:
        self.label, self.dataloader, self.metric_names = label, dataloader, metric_names
        self._last_batch_seen = -1
        self.eval_interval: Callable[[Any, Event], bool] = self._every_epoch

    def _every_epoch(self, state: Any, event: Event) -> bool:
        over = state.is_over
        if event is Event.FIT_END and over and state.timestamp.batch != self._last_batch_seen:
            return True
        if event is Event.EPOCH_END:
            self._last_batch_seen = state.timestamp.batch
            return True
        return False


class State:
    """The state of a trainer."""

    def __init__(self, model: Any, optimizer: Any, callbacks: list[Any], evaluators: list[Evaluator]) -> None:
        self.model, self.callbacks, self.evaluators = model, callbacks, evaluators
        self.optimizers, self.schedulers = [optimizer], []
        self.timestamp = SimpleNamespace(epoch=0, batch=0, batch_in_epoch=0)
        self.max_duration: Any = None
        self.dataloader: Any = None
        self.dataloader_label, self.dataloader_len = "train", Time(0, "ba")
        self.batch: Any = None
        self.outputs: Any = None
        self.loss: Any = None
        self.total_loss_dict: dict[str, float] = {}
        self.train_metric_values: dict[str, Any] = {}
        self.eval_metrics = {each.label: model.get_metrics() for each in evaluators}
        self.eval_metric_values: dict[str, Any] = {}

    @property
    def is_over(self) -> bool:
        return bool(
            self.timestamp.epoch >= self.max_duration
            if self.max_duration.unit.value == "ep"
            else self.timestamp.batch >= self.max_duration
        )

    def stop_training(self) -> None:
        self.max_duration = Time(self.timestamp.batch, "ba")

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizers[0].state_dict(),
            "timestamp": vars(self.timestamp),
            "callbacks": {type(each).__qualname__: each.state_dict() for each in self.callbacks},
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizers[0].load_state_dict(saved["optimizer"])
        self.timestamp = SimpleNamespace(**saved["timestamp"])
        for each in self.callbacks:
            if type(each).__qualname__ in saved["callbacks"]:
                each.load_state_dict(saved["callbacks"][type(each).__qualname__])


class Trainer:
    """Trains a model, by default the linear regression."""

    def __init__(
        self,
        *,
        model: Any = None,
        train_dataloader: Any = None,
        eval_dataloader: Any = None,
        optimizers: Any = None,
        max_duration: str = "1ep",
        callbacks: list[Any] | None = None,
        device_train_microbatch_size: int | None = None,
        load_path: str | None = None,
        progress_bar: bool = True,
        breaks_at: int | None = None,
    ) -> None:
        model = Regression() if model is None else model
        given = loader(HELD_OUT) if eval_dataloader is None else eval_dataloader
        evaluators = given if isinstance(given, list) else [Evaluator(label="eval", dataloader=given)]
        optimizer = optimizer_of(model.parameters()) if optimizers is None else optimizers
        self.state = State(model, optimizer, callbacks or [], evaluators)
        self.state.max_duration = Time(int(max_duration[:-2]), max_duration[-2:])
        self.data = loader(TRAIN) if train_dataloader is None else train_dataloader
        self.microbatch, self.breaks_at = device_train_microbatch_size, breaks_at
        self.run_event(Event.INIT)
        if load_path is not None:
            self.state.load_state_dict(torch.load(load_path, weights_only=True))

    def run_event(self, event: Event) -> None:
        for each in self.state.callbacks:
            each.run_event(event, self.state, None)

    def fit(self, duration: str | None = None) -> None:
        if duration is not None:
            more = Time(int(duration[:-2]), duration[-2:])
            self.state.max_duration = Time(self.state.max_duration + more, more.unit.value)
        self._train_loop()

    def eval(self) -> None:
        self.run_event(Event.EVAL_STANDALONE_START)
        self._evaluate(self.state.evaluators)
        self.run_event(Event.EVAL_STANDALONE_END)

    def close(self) -> None:
        for each in self.state.callbacks:
            each.close(self.state, None)
        for each in self.state.callbacks:
            each.post_close()

    def _train_loop(self) -> None:
        state = self.state
        data = state.dataloader = self.data
        state.dataloader_len = Time(len(data), "ba")
        self.run_event(Event.FIT_START)
        while not state.is_over:
            if state.timestamp.batch_in_epoch == 0:
                self.run_event(Event.EPOCH_START)
            for index, batch in enumerate(data):
                if index < state.timestamp.batch_in_epoch:
                    continue
                self.run_event(Event.BEFORE_DATALOADER)
                state.batch = batch
                self.run_event(Event.AFTER_DATALOADER)
                self.run_event(Event.BATCH_START)
                self._train_batch()
                state.timestamp.batch += 1
                state.timestamp.batch_in_epoch += 1
                self.run_event(Event.BATCH_END)
                self._run_evaluators(Event.BATCH_END)
                self.run_event(Event.BATCH_CHECKPOINT)
                if state.is_over:
                    break
            if state.timestamp.batch_in_epoch == len(data):
                state.timestamp.epoch, state.timestamp.batch_in_epoch = state.timestamp.epoch + 1, 0
                self.run_event(Event.EPOCH_END)
                self._run_evaluators(Event.EPOCH_END)
                self.run_event(Event.EPOCH_CHECKPOINT)
        self.run_event(Event.FIT_END)
        self._run_evaluators(Event.FIT_END)

    def _train_batch(self) -> None:
        state = self.state
        if state.timestamp.batch == self.breaks_at:
            raise RuntimeError("the batch is broken")
        whole: Any = state.batch
        total = 0.0
        self.run_event(Event.BEFORE_TRAIN_BATCH)
        state.optimizers[0].zero_grad()
        size = self.microbatch or len(whole[0])
        parts = list(zip(*(each.split(size) for each in whole), strict=True))
        for state.batch in parts:
            self.run_event(Event.BEFORE_FORWARD)
            state.outputs = state.model(state.batch)
            self.run_event(Event.AFTER_FORWARD)
            state.loss = state.model.loss(state.outputs, state.batch)
            self.run_event(Event.BEFORE_BACKWARD)
            (state.loss / len(parts)).backward()
            total += float(state.loss.detach()) / len(parts)
            self.run_event(Event.AFTER_BACKWARD)
        state.batch = whole
        self.run_event(Event.AFTER_TRAIN_BATCH)
        state.optimizers[0].step()
        state.total_loss_dict = {"loss/train/total": total}

    def _run_evaluators(self, event: Event) -> None:
        executing = [each.eval_interval(self.state, event) for each in self.state.evaluators]
        if any(executing):
            pairs = zip(executing, self.state.evaluators, strict=True)
            self._evaluate([evaluator for is_due, evaluator in pairs if is_due])

    def _evaluate(self, evaluators: list[Evaluator]) -> None:
        state = self.state
        self.run_event(Event.EVAL_BEFORE_ALL)
        for evaluator in evaluators:
            before = state.dataloader, state.dataloader_label
            state.dataloader, state.dataloader_label = evaluator.dataloader, evaluator.label
            self.run_event(Event.EVAL_START)
            metrics = state.eval_metrics[evaluator.label]
            for metric in metrics.values():
                metric.reset()
            for state.batch in evaluator.dataloader:
                self.run_event(Event.EVAL_BATCH_START)
                with torch.no_grad():
                    state.outputs = state.model.eval_forward(state.batch)
                for metric in metrics.values():
                    state.model.update_metric(state.batch, state.outputs, metric)
                self.run_event(Event.EVAL_BATCH_END)
            state.eval_metric_values |= {name: metric.compute() for name, metric in metrics.items()}
            self.run_event(Event.EVAL_END)
            state.dataloader, state.dataloader_label = before
        self.run_event(Event.EVAL_AFTER_ALL)


def save_checkpoint(state: State, filename: str) -> str:
    """Save a checkpoint, as ``composer.utils.checkpoint`` does."""
    Path(filename).parent.mkdir(parents=True, exist_ok=True)
    torch.save(state.state_dict(), filename)
    return filename


def installed() -> Any:
    """Let hookline import the one function of Composer that it calls."""
    return importable({"composer.utils.checkpoint": {"save_checkpoint": save_checkpoint}})
