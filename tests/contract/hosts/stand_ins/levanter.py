"""A stand-in for Levanter 0.2.227 (marin-levanter): its `Trainer`, hooks, events, trackers and checkpoints.

Levanter itself requires Python 3.12 and packages of its cluster manager.
"""

import abc
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hosts.regression import HELD_OUT, LEARNING_RATE, START, TRAIN
from hosts.stand_ins import importable


class ProgressEvent(StrEnum):
    """What hooks are notified of."""

    TRAIN_STEP_STARTED = "train_step_started"
    TRAIN_STEP_FINISHED = "train_step_finished"
    EVALUATION_STARTED = "evaluation_started"
    EVALUATION_FINISHED = "evaluation_finished"
    CHECKPOINT_STARTED = "checkpoint_started"
    CHECKPOINT_FINISHED = "checkpoint_finished"
    TRAINING_FINISHED = "training_finished"


class Callback(abc.ABC):
    """A hook with events."""

    @abc.abstractmethod
    def on_step(self, info: Any, force: bool = False) -> None: ...

    def on_event(self, event: ProgressEvent) -> None:
        del event


class LambdaCallback(Callback):
    """A function as a hook."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def on_step(self, info: Any, force: bool = False) -> None:
        self.fn(info)


@dataclass
class StepInfo:
    """A step that was completed."""

    state: Any
    loss: float
    step_duration: float
    emit_event: Callable[[ProgressEvent], None]

    model = property(lambda self: self.state.model)
    eval_model = property(lambda self: self.state.model)
    step = property(lambda self: int(self.state.step) - 1)
    next_step = property(lambda self: int(self.state.step))


@dataclass(frozen=True)
class TrainerState:
    """The state of a training."""

    step: jax.Array
    model: Any
    opt_state: Any = None

    @property
    def saveable_state(self) -> Any:
        return {"step": self.step, "model": self.model}


class CompositeTracker:
    """Several trackers."""

    def __init__(self, loggers: list[Any]) -> None:
        self.loggers = loggers

    def log(self, metrics: Mapping[str, Any], *, step: int | None, commit: bool | None = None) -> None:
        for each in self.loggers:
            each.log(metrics, step=step, commit=commit)

    def log_hyperparameters(self, hparams: dict[str, Any]) -> None:
        for each in self.loggers:
            each.log_hyperparameters(hparams)

    def log_summary(self, metrics: dict[str, Any]) -> None:
        for each in self.loggers:
            each.log_summary(metrics)

    def finish(self) -> None:
        for each in self.loggers:
            each.finish()


_current: list[Any] = []


def log(metrics: Mapping[str, Any], *, step: int | None) -> None:
    """Log with the current tracker."""
    if _current:
        _current[-1].log(metrics, step=step)


@dataclass
class TrainerConfig:
    """The settings of a trainer."""

    num_train_steps: int = 8
    steps_per_eval: int = 1


@dataclass
class _Hook:
    fn: Any
    every: int


@dataclass
class TrainerHooks:
    """The hooks of a trainer."""

    hooks: list[_Hook] = field(default_factory=list)

    def run_hooks(self, info: StepInfo, force: bool = False) -> None:
        for hook in self.hooks:
            if force or (info.next_step > 0 and info.next_step % hook.every == 0):
                hook.fn.on_step(info, force=force)

    def emit_event(self, event: ProgressEvent) -> None:
        for hook in self.hooks:
            hook.fn.on_event(event)


class Trainer:
    """Trains a model, by default the linear regression."""

    def __init__(
        self,
        config: TrainerConfig,
        optimizer: Any = None,
        loss_fn: Any = None,
        *,
        breaks_at: int | None = None,
        tracker: Any = None,
    ) -> None:
        self.config, self.breaks_at = config, breaks_at
        self.optimizer = optax.sgd(LEARNING_RATE) if optimizer is None else optimizer
        self.loss_fn = loss_of if loss_fn is None else loss_fn
        self._step = jax.jit(self._train_step)
        self.hooks = TrainerHooks()
        self.tracker = CompositeTracker([]) if tracker is None else tracker
        self.add_hook(self._log_step_info)

    @property
    def num_train_steps(self) -> int:
        return self.config.num_train_steps

    def add_hook(self, fn: Any, *, every: int = 1) -> None:
        self.hooks.hooks.append(_Hook(fn if isinstance(fn, Callback) else LambdaCallback(fn), every))

    def add_eval_hook(self, dataset: Any, name: str | None = None) -> None:
        self.add_hook(compute_validation_loss(self.loss_fn, dataset, name), every=self.config.steps_per_eval)

    def _log_step_info(self, info: StepInfo) -> None:
        progress = info.step / self.num_train_steps
        log({"train/loss": info.loss, "global_step": info.step, "run_progress": progress}, step=info.step)

    def __enter__(self) -> Self:
        _current.append(self.tracker)
        return self

    def __exit__(self, *args: object) -> None:
        _current.pop()
        self.hooks.emit_event(ProgressEvent.TRAINING_FINISHED)

    def initial_state(
        self, training_key: Any = None, model: Any = None, *, initialize_from: str | None = None
    ) -> TrainerState:
        model = {"weight": jnp.array(START).T, "bias": jnp.zeros(1)} if model is None else model
        step = jnp.zeros((), jnp.int32)
        if initialize_from is not None:
            with np.load(Path(initialize_from) / "arrays.npz") as saved:
                step, model = jnp.array(saved["step"]), {name: jnp.array(saved[name]) for name in model}
        return TrainerState(step, model, self.optimizer.init(model))

    def _train_step(self, state_model: Any, opt_state: Any, batch: Any) -> Any:
        loss, slope = jax.value_and_grad(self.loss_fn)(state_model, batch)
        updates, opt_state = self.optimizer.update(slope, opt_state, state_model)
        return loss, optax.apply_updates(state_model, updates), opt_state

    def train_step(self, state: TrainerState, *batch: Any) -> StepInfo:
        self.hooks.emit_event(ProgressEvent.TRAIN_STEP_STARTED)
        if int(state.step) == self.breaks_at:
            raise RuntimeError("Loss is NaN")
        loss, model, opt_state = self._step(state.model, state.opt_state, *batch)
        self.hooks.emit_event(ProgressEvent.TRAIN_STEP_FINISHED)
        new = replace(state, step=state.step + 1, model=model, opt_state=opt_state)
        info = StepInfo(new, loss.item(), 0.0, self.hooks.emit_event)
        self.hooks.run_hooks(info)
        log({"throughput/hook_time": 0.0}, step=info.step)
        return info

    def training_steps(self, state: TrainerState, train_loader: Iterable[Any]) -> Iterator[StepInfo]:
        data = iter(train_loader)
        while int(state.step) < self.num_train_steps:
            try:
                example = next(data)
            except StopIteration:
                break
            info = self.train_step(state, example)
            state = info.state
            log({"throughput/loading_time": 0.0}, step=info.step)
            yield info

    def train(self, state: TrainerState, train_loader: Iterable[Any]) -> StepInfo | None:
        steps = list(self.training_steps(state, train_loader))
        if not steps:
            return None
        self.hooks.run_hooks(steps[-1], force=True)
        return steps[-1]


def loss_of(model: Any, batch: Any) -> Any:
    """The mean square error."""
    return jnp.mean((batch[0] @ model["weight"] + model["bias"] - batch[1]) ** 2)


def compute_validation_loss(loss_fn: Any, dataset: Any, name: str | None) -> Callable[[StepInfo], None]:
    """A hook that evaluates."""

    def compute(info: StepInfo) -> None:
        info.emit_event(ProgressEvent.EVALUATION_STARTED)
        losses = [loss_fn(info.eval_model, batch).item() for batch in dataset]
        prefix = f"eval/{name}" if name else "eval"
        log({f"{prefix}/loss": sum(losses) / len(losses), f"{prefix}/timing/load_time": 0.0}, step=info.step)
        info.emit_event(ProgressEvent.EVALUATION_FINISHED)

    return compute


def save_checkpoint(tree: Any, step: int, checkpoint_path: str, *, is_temporary: bool = True) -> str:
    """Save a tree."""
    path = Path(checkpoint_path)
    path.mkdir(parents=True, exist_ok=True)
    np.savez(path / "arrays.npz", step=tree["step"], **tree["model"])
    (path / "metadata.json").write_text(json.dumps({"step": step, "is_temporary": is_temporary}))
    return checkpoint_path


def batches(data: Any, size: int = 1) -> list[Any]:
    """The rows as arrays, in batches."""
    inputs, targets = (numbers.numpy() for numbers in data)
    return [(inputs[i : i + size], targets[i : i + size]) for i in range(0, len(inputs), size)]


def training_data() -> list[Any]:
    """The eight rows."""
    return batches(TRAIN)


def held_out() -> list[Any]:
    """The held-out rows."""
    return batches(HELD_OUT)


def installed() -> contextlib.AbstractContextManager[None]:
    """Let hookline import what it uses of Levanter."""
    return importable(
        {
            "levanter.callbacks": {"Callback": Callback},
            "levanter.tracker": {"CompositeTracker": CompositeTracker},
            "levanter.checkpoint": {"save_checkpoint": save_checkpoint},
        }
    )
