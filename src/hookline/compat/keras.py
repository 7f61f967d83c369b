"""Keras's callbacks: `Callback` with ``params``, ``model`` and ``logs``.

- The logs are Python floats. Those of a batch and of an epoch are means over the epoch so far, as in Keras; those of
  an epoch have the latest validation in it as ``val_loss`` and so on. Reading them waits for the device.
- The end of a batch that completes a step comes after the step, when the weights have moved.
- ``model.stop_training`` asks the loop for a stop. ``model.optimizer.learning_rate`` is that of the torch optimizer.
  ``get_weights`` and ``set_weights`` are those of the torch model, which is ``model.torch_module``.
- Keras's callbacks have no state of their own to save, and start anew in `on_train_begin`. Here a checkpoint holds the
  attributes that changed since then, if they are numbers, texts, arrays, or lists and dicts of these, and are not
  arguments of the constructor; after a resume they are put back.

What a Keras callback finds as ``self.model``, and the optimizer in it.

`RunningMeans`: the means of what batches gave, over an epoch or a validation.

Numbers that are still on their way from a device are not waited for before somebody reads the means, or so many wait
that the first have long arrived.
"""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from hookline._engine.encoding import decode, encode
from hookline._engine.errors import CheckpointError, OptionError
from hookline._engine.metrics import collect, copied, plain
from hookline._engine.state import LoopArtifacts, ManifestRow
from hookline._record.device import defer
from hookline.callbacks.throughput_monitor import samples_of
from hookline.compat.base import ForeignCallback, LoopFacts, StandIn
from hookline.loops.training_step import COUNTS, scalars

if TYPE_CHECKING:
    from hookline.compat.base import ForeignCallback


_SAVING = "hl.callbacks.CheckpointCallback saves the model with everything that training goes on from."


class KerasModel(StandIn):
    """The model in training, as Keras's `Model`: ``stop_training``, ``optimizer``, weights.

    ``torch_module`` is the model as it is.
    """

    hints: ClassVar[Mapping[str, str]] = {
        "torch_module": "Set run.model before the first step.",
        "save": _SAVING,
        "save_weights": _SAVING,
        "summary": "The model itself is model.torch_module.",
        "layers": "The model itself is model.torch_module.",
    }

    def __init__(self, bridge: "ForeignCallback", loop: Any) -> None:
        super().__init__(bridge, loop, "model")
        vars(self).update(_history=None, optimizer=KerasOptimizer(bridge, loop, "model.optimizer"))

    @property
    def name(self) -> str:
        """The class of the model."""
        return type(self.torch_module).__name__

    @property
    def torch_module(self) -> Any:
        """The model as it is."""
        if self._loop.model is None:
            raise self._not_offered("for the model", "torch_module", why="this loop was not told of it")
        return self._loop.model

    @property
    def stop_training(self) -> bool:
        """Whether somebody asked for a stop; setting it asks the loop for one."""
        return bool(self._loop.stop_requested)

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        if value and not self._loop.stop_requested:
            self._loop.request_stop(f"{self._bridge.name} set model.stop_training")
        elif not value and self._loop.stop_requested:
            self._loop.should_stop = False

    @property
    def history(self) -> Any:
        """What Keras's `History` puts here."""
        return self._history

    @history.setter
    def history(self, value: Any) -> None:
        vars(self)["_history"] = value

    def get_weights(self) -> list[Any]:
        """All tensors of the model's state, in its order, as arrays of their own."""
        return [_array(tensor) for tensor in self._tensors()]

    def set_weights(self, weights: list[Any]) -> None:
        """Put back what `get_weights` gave."""
        import torch

        tensors = self._tensors()
        shapes = [tuple(tensor.shape) for tensor in tensors]
        given = [tuple(array.shape) for array in weights]
        if shapes != given:
            raise OptionError(f"set_weights(): the shapes are {given}; the model has {shapes}.")
        with torch.no_grad():
            for tensor, array in zip(tensors, weights, strict=True):
                tensor.copy_(torch.as_tensor(array))

    def count_params(self) -> int:
        """How many numbers can be trained or are fixed."""
        return sum(parameter.numel() for parameter in self.torch_module.parameters())

    def _tensors(self) -> list[Any]:
        state = self.torch_module.state_dict()
        return [value for value in state.values() if hasattr(value, "copy_")]


def _array(tensor: Any) -> Any:
    """A copy as NumPy has it; it has no type for what takes two bytes, except one."""
    import torch

    return tensor.detach().to("cpu", torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype).numpy().copy()


class KerasOptimizer(StandIn):
    """The torch optimizer, as Keras's: its learning rate can be read and set."""

    hints: ClassVar[Mapping[str, str]] = {
        "learning_rate": "Set run.optimizer before the first step.",
        "schedule": "Leave the schedule out, and the learning rate can be set.",
    }

    @property
    def name(self) -> str:
        """The class of the optimizer."""
        return type(self._loop.optimizer).__name__

    @property
    def iterations(self) -> int:
        """The number of completed steps."""
        return int(self._loop.step)

    @property
    def learning_rate(self) -> float:
        """That of the first group of parameters; setting it changes the others by the same factor."""
        return float(self._groups()[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        groups, new = self._groups(), float(value)
        if self._loop.scheduler is not None and hasattr(self._loop.scheduler, "get_lr"):
            kind = type(self._loop.scheduler).__name__
            why = f"that is what the schedule, a {kind}, does"
            raise self._not_offered("to set model.optimizer.learning_rate", "schedule", why=why)
        old = groups[0]["lr"]
        for group in groups:
            group["lr"] = new if not old else group["lr"] * (new / old)
        groups[0]["lr"] = new

    def _groups(self) -> list[dict[str, Any]]:
        if self._loop.optimizer is None:
            raise self._not_offered("for the optimizer", "learning_rate", why="this loop was not told of it")
        groups: list[dict[str, Any]] = self._loop.optimizer.param_groups
        return groups


WAITING = 64


class RunningMeans:
    """Weighted means by name; counts are added up."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._waiting: list[tuple[dict[str, Any], float]] = []

    def add(self, outputs: Any, weight: float) -> None:
        """Take over the numbers among what a batch gave."""
        if isinstance(outputs, Mapping):
            numbers = copied(scalars(outputs) if type(outputs) is dict else collect((outputs,), {}, defer))
            self._waiting.append((numbers, weight))
        if len(self._waiting) >= WAITING:
            self._add_up()

    def result(self) -> dict[str, float]:
        """The means so far."""
        self._add_up()
        return {name: total / (self._weights[name] or 1.0) for name, total in self._sums.items()}

    def state(self) -> dict[str, Any]:
        """What `load` goes on from."""
        self._add_up()
        return {"sums": dict(self._sums), "weights": dict(self._weights)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._sums, self._weights, self._waiting = dict(state["sums"]), dict(state["weights"]), []

    def _add_up(self) -> None:
        waiting, self._waiting = self._waiting, []
        for numbers, weight in waiting:
            for name, value in numbers.items():
                number = plain(value)
                if isinstance(number, int | float) and not isinstance(number, bool):
                    is_count = name in COUNTS
                    self._sums[name] = self._sums.get(name, 0.0) + number * (1.0 if is_count else weight)
                    self._weights[name] = 1.0 if is_count else self._weights.get(name, 0.0) + weight


_BATCH_ENDS = ("on_train_batch_end", "on_batch_end")
_ARRAY = "$array"
_NOTHING = object()


class KerasBridge(ForeignCallback):
    """Runs a Keras callback; see the module."""

    framework = "Keras"
    told: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "on_train_start": ("on_train_begin",),
        "on_checkpoint_load": (),
        "on_train_epoch_start": ("on_epoch_begin",),
        "on_train_batch_start": ("on_train_batch_begin", "on_batch_begin", *_BATCH_ENDS),
        "on_train_batch_end": (*_BATCH_ENDS, "on_epoch_end", "on_train_end"),
        "on_step_end": _BATCH_ENDS,
        "on_validation_start": ("on_test_begin", "on_test_batch_end", "on_test_end"),
        "on_validation_batch_start": ("on_test_batch_begin",),
        "on_validation_batch_end": ("on_test_batch_end",),
        "on_validation_end": ("on_test_end",),
        "on_eval": ("on_epoch_end", "on_train_end"),
        "on_train_epoch_end": ("on_epoch_end", "on_train_end"),
        "on_train_end": ("on_train_end",),
    }
    always = frozenset({"on_train_start", "on_checkpoint_load", "on_train_epoch_start"})
    prepares = frozenset({"on_train_begin"})

    def __init__(self, foreign: Any, base: type) -> None:
        super().__init__(foreign, base)
        self._settings = _constructor_arguments(type(foreign)) | {"params", "_model", "model"}
        self._at_begin: dict[str, Any] = {}
        self._epoch, self._validation = RunningMeans(), RunningMeans()
        self._validated: dict[str, float] = {}
        self._epoch_logs: dict[str, float] = {}
        self._batch: tuple[Any, int] | None = None
        self._to_restore: Mapping[str, Any] | None = None
        self._epoch_to_restore: Mapping[str, Any] = {}

    def _attach(self, loop: Any) -> None:
        self._batch = None
        self.foreign.set_params({"verbose": 1, "epochs": loop.num_epochs, "steps": LoopFacts(loop).batches_per_epoch})
        self.foreign.set_model(KerasModel(self, loop))

    def _call(self, loop: Any, event: str, *args: Any) -> None:
        self._attached(loop)
        self._tell(event, *args)

    def _on_train_start(self, loop: Any) -> None:
        self._loop = None  # a training that is taken up has another plan
        self._call(loop, "on_train_begin", {})
        self._at_begin = self._attributes()
        self._restore()

    def _on_checkpoint_load(self, loop: Any, row: ManifestRow) -> None:
        self._restore()

    def _on_train_epoch_start(self, loop: Any) -> None:
        self._epoch, self._validated = RunningMeans(), {}
        kept, self._epoch_to_restore = self._epoch_to_restore, {}
        if kept.get("epoch") == loop.epoch:
            self._epoch.load(kept["means"])
            self._validated = dict(kept["validated"])
        self._call(loop, "on_epoch_begin", loop.epoch, {})

    def _on_train_batch_start(self, loop: Any, batch: Any, batch_idx: int) -> None:
        self._end_batch(loop)  # one that did not complete the step
        begin = "on_train_batch_begin" if "on_train_batch_begin" in self._methods else "on_batch_begin"
        self._call(loop, begin, batch_idx, {})

    def _on_train_batch_end(self, loop: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._epoch.add(outputs, float(samples_of(batch) or 1))
        self._batch = (batch, batch_idx)

    def _on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: dict[str, Any]) -> None:
        self._end_batch(loop)

    def _on_validation_start(self, loop: Any) -> None:
        self._validation = RunningMeans()
        self._call(loop, "on_test_begin", {})

    def _on_validation_batch_start(self, loop: Any, batch: Any, batch_idx: int) -> None:
        self._call(loop, "on_test_batch_begin", batch_idx, {})

    def _on_validation_batch_end(self, loop: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._validation.add(outputs, float(samples_of(batch) or 1))
        self._call(loop, "on_test_batch_end", batch_idx, self._validation.result())

    def _on_validation_end(self, loop: Any) -> None:
        metrics = _numbers(loop.validation_metrics)
        self._call(loop, "on_test_end", {name.partition("/")[2] or name: value for name, value in metrics.items()})

    def _on_eval(self, loop: Any, step_idx: int, eval_name: str, metrics: dict[str, Any]) -> None:
        named = {name.replace("/", "_", 1): value for name, value in _numbers(metrics).items()}
        self._validated.update(named)

    def _on_train_epoch_end(self, loop: Any) -> None:
        self._epoch_logs = {**self._epoch.result(), **self._validated}
        self._call(loop, "on_epoch_end", loop.epoch, dict(self._epoch_logs))

    def _on_train_end(self, loop: Any, artifacts: LoopArtifacts) -> None:
        self._call(loop, "on_train_end", dict(self._epoch_logs))

    def _end_batch(self, loop: Any) -> None:
        ended, self._batch = self._batch, None
        if ended is not None and self._methods.intersection(_BATCH_ENDS):
            end = _BATCH_ENDS[0] if _BATCH_ENDS[0] in self._methods else _BATCH_ENDS[1]
            self._call(loop, end, ended[1], self._epoch.result())

    def state_dict(self) -> dict[str, Any]:
        if self._to_restore is not None or self._loop is None:
            return dict(self._to_restore or {})
        now, then = self._attributes(), self._at_begin
        means = self._epoch.state()
        return {
            "attributes": {name: value for name, value in now.items() if not _same(value, then.get(name, _NOTHING))},
            "epoch": {"epoch": self._loop.epoch, "means": means, "validated": self._validated},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._to_restore = state

    def _restore(self) -> None:
        if self._to_restore is not None:
            state, self._to_restore = self._to_restore, None
            vars(self.foreign).update({name: _loaded(value) for name, value in state.get("attributes", {}).items()})
            self._epoch_to_restore = state.get("epoch", {})

    def _attributes(self) -> dict[str, Any]:
        """Copies of the callback's attributes that can be saved and are not its settings."""
        own = {name: value for name, value in vars(self.foreign).items() if name not in self._settings}
        return _copied(own)


def _constructor_arguments(kind: type) -> frozenset[str]:
    owners = (owner for owner in kind.__mro__ if "__init__" in vars(owner) and owner is not object)
    return frozenset(name for owner in owners for name in inspect.signature(vars(owner)["__init__"]).parameters)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    values = {name: plain(metrics[name]) for name in metrics}
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "__array__")


def _plain(value: Any) -> Any:
    """The value with arrays of any framework as NumPy's, or as a number."""
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {name: _plain(item) for name, item in value.items()}
    if not _is_array(value):
        return value
    import numpy

    if isinstance(value, numpy.ndarray | numpy.generic):
        return value
    return numpy.asarray(value) if value.shape else value.item()


def _copied(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of those that a checkpoint can hold."""
    copies = {}
    for name, value in attributes.items():
        with suppress(CheckpointError):
            copies[name] = decode(encode(_plain(value)))
    return copies


def _loaded(value: Any) -> Any:
    """An attribute as it was; earlier versions saved an array as a tensor."""
    if isinstance(value, list):
        return [_loaded(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return value[_ARRAY].numpy()
        return {name: _loaded(item) for name, item in value.items()}
    return value


def _same(one: Any, other: Any) -> bool:
    return other is not _NOTHING and bool(encode(one) == encode(other))
