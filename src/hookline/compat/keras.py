"""Runs Keras callbacks, which use ``params``, ``model`` and ``logs``, in hookline's loops.

- The logs are Python floats. Those of a batch and of an epoch are means over the epoch so far, as in Keras; an epoch's
  logs also have its latest validation as ``val_loss`` and so on. Reading them waits for the device.
- The end of a batch that completes a step is reported after the step, when the weights have changed.
- ``model.stop_training`` requests a stop. ``model.optimizer.learning_rate`` is that of the torch optimizer.
  ``get_weights`` and ``set_weights`` use the torch model, which is ``model.torch_module``.
- Keras callbacks save no state and reset themselves in `on_train_begin`. Here a checkpoint holds the attributes that
  changed since then, if they are numbers, strings, arrays, or lists and dicts of these, and are not arguments of the
  constructor. They are restored on resume.
"""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from hookline._engine.errors import CheckpointError, OptionError
from hookline._engine.metrics import collect, copied, plain
from hookline._engine.state import LoopArtifacts, ManifestRow
from hookline._engine.state_encoding import decode, encode
from hookline._record.device import defer
from hookline.callbacks.throughput_monitor import samples_of
from hookline.compat.base import CallbackAdapter, LoopFacade, LoopInfo
from hookline.loops.training_step import COUNTS, scalars

_SAVING = "hl.callbacks.CheckpointCallback saves the model with everything needed to resume."
_UNKNOWN = "this loop does not know it"
_BATCH_ENDS = ("on_train_batch_end", "on_batch_end")
_MAX_PENDING = 64


class KerasAdapter(CallbackAdapter):
    """Runs a Keras callback."""

    framework = "Keras"
    methods_by_moment: ClassVar[Mapping[str, tuple[str, ...]]] = {
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
    required_moments = frozenset({"on_train_start", "on_checkpoint_load", "on_train_epoch_start"})
    setup_methods = frozenset({"on_train_begin"})

    def __init__(self, foreign: Any, base: type) -> None:
        super().__init__(foreign, base)
        owners = (owner for owner in type(foreign).__mro__ if "__init__" in vars(owner) and owner is not object)
        parameters = (name for owner in owners for name in inspect.signature(vars(owner)["__init__"]).parameters)
        self._not_state = {*parameters, "params", "_model", "model"}
        self._initial_state: dict[str, Any] = {}
        self._epoch, self._validation = RunningMeans(), RunningMeans()
        self._validated: dict[str, float] = {}
        self._epoch_logs: dict[str, float] = {}
        self._batch: tuple[Any, int] | None = None
        self._to_restore: Mapping[str, Any] | None = None
        self._epoch_to_restore: Mapping[str, Any] = {}

    def _attach(self, loop: Any) -> None:
        self._batch = None
        self.foreign.set_params({"verbose": 1, "epochs": loop.num_epochs, "steps": LoopInfo(loop).batches_per_epoch})
        self.foreign.set_model(KerasModel(self, loop))

    def _call(self, loop: Any, event: str, *args: Any) -> None:
        self._ensure_attached(loop)
        self._invoke(event, *args)

    def _on_train_start(self, loop: Any) -> None:
        self._loop = None  # attach again: a resumed training has another plan
        self._call(loop, "on_train_begin", {})
        self._initial_state = self._attributes()
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
        self._end_batch(loop)  # the previous batch did not complete the step
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
        self._validated |= {name.replace("/", "_", 1): value for name, value in _numbers(metrics).items()}

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
        initial, means = self._initial_state, self._epoch.state()
        changed = {
            name: value
            for name, value in self._attributes().items()
            if name not in initial or encode(value) != encode(initial[name])
        }
        epoch = {"epoch": self._loop.epoch, "means": means, "validated": self._validated}
        return {"attributes": changed, "epoch": epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._to_restore = state

    def _restore(self) -> None:
        if self._to_restore is not None:
            state, self._to_restore = self._to_restore, None
            vars(self.foreign).update(state.get("attributes", {}))
            self._epoch_to_restore = state.get("epoch", {})

    def _attributes(self) -> dict[str, Any]:
        """Copy the callback's attributes that a checkpoint can hold and that are not its settings."""
        copies = {}
        for name, value in vars(self.foreign).items():
            if name not in self._not_state:
                with suppress(CheckpointError):
                    copies[name] = decode(encode(_plain_arrays(value)))
        return copies


class KerasModel(LoopFacade):
    """The model as a Keras `Model`: ``stop_training``, ``optimizer``, weights. The torch model is ``torch_module``."""

    hints: ClassVar[Mapping[str, str]] = {
        "torch_module": "Set run.model before the first step.",
        "save": _SAVING,
        "save_weights": _SAVING,
        "summary": "The model itself is model.torch_module.",
        "layers": "The model itself is model.torch_module.",
    }

    def __init__(self, adapter: CallbackAdapter, loop: Any) -> None:
        super().__init__(adapter, loop, "model")
        vars(self).update(_history=None, optimizer=KerasOptimizer(adapter, loop, "model.optimizer"))

    @property
    def name(self) -> str:
        return type(self.torch_module).__name__

    @property
    def torch_module(self) -> Any:
        if self._loop.model is None:
            raise self._not_offered("for the model", "torch_module", why=_UNKNOWN)
        return self._loop.model

    @property
    def stop_training(self) -> bool:
        return bool(self._loop.stop_requested)

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        if value and not self._loop.stop_requested:
            self._loop.request_stop(f"{self._adapter.name} set model.stop_training")
        elif not value and self._loop.stop_requested:
            self._loop.should_stop = False

    @property
    def history(self) -> Any:
        """The object that Keras's `History` stores here."""
        return self._history

    @history.setter
    def history(self, value: Any) -> None:
        vars(self)["_history"] = value

    def get_weights(self) -> list[Any]:
        """Copy all tensors of the model's state, in its order, to NumPy arrays."""
        import torch

        return [  # NumPy has no bfloat16
            tensor.detach().to("cpu", torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype).numpy().copy()
            for tensor in self._tensors()
        ]

    def set_weights(self, weights: list[Any]) -> None:
        """Load arrays that `get_weights` returned."""
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
        """Count the model's parameters, trainable or not."""
        return sum(parameter.numel() for parameter in self.torch_module.parameters())

    def _tensors(self) -> list[Any]:
        return [value for value in self.torch_module.state_dict().values() if hasattr(value, "copy_")]


class KerasOptimizer(LoopFacade):
    """The torch optimizer as a Keras optimizer with a learning rate that can be read and set."""

    hints: ClassVar[Mapping[str, str]] = {
        "learning_rate": "Set run.optimizer before the first step.",
        "schedule": "Without a schedule the learning rate can be set.",
    }

    @property
    def name(self) -> str:
        return type(self._loop.optimizer).__name__

    @property
    def iterations(self) -> int:
        return int(self._loop.step)

    @property
    def learning_rate(self) -> float:
        """The rate of the first parameter group; setting it scales the other groups by the same factor."""
        return float(self._groups()[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        groups, new = self._groups(), float(value)
        if self._loop.scheduler is not None and hasattr(self._loop.scheduler, "get_lr"):
            why = f"the schedule, a {type(self._loop.scheduler).__name__}, sets it"
            raise self._not_offered("to set model.optimizer.learning_rate", "schedule", why=why)
        old = groups[0]["lr"]
        for group in groups:
            group["lr"] = new if not old else group["lr"] * (new / old)
        groups[0]["lr"] = new

    def _groups(self) -> list[dict[str, Any]]:
        if self._loop.optimizer is None:
            raise self._not_offered("for the optimizer", "learning_rate", why=_UNKNOWN)
        groups: list[dict[str, Any]] = self._loop.optimizer.param_groups
        return groups


class RunningMeans:
    """Weighted means of batch outputs by name; counts are summed.

    Values still on a device are read when the result is needed, or when so many are pending that the oldest have
    arrived long ago.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._pending: list[tuple[dict[str, Any], float]] = []

    def add(self, outputs: Any, weight: float) -> None:
        """Add the numbers among a batch's outputs."""
        if isinstance(outputs, Mapping):
            numbers = copied(scalars(outputs) if type(outputs) is dict else collect((outputs,), {}, defer))
            self._pending.append((numbers, weight))
        if len(self._pending) >= _MAX_PENDING:
            self._sum_pending()

    def result(self) -> dict[str, float]:
        """Return the means so far."""
        self._sum_pending()
        return {name: total / (self._weights[name] or 1.0) for name, total in self._sums.items()}

    def state(self) -> dict[str, Any]:
        """Return the state for `load`."""
        self._sum_pending()
        return {"sums": dict(self._sums), "weights": dict(self._weights)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self._sums, self._weights, self._pending = dict(state["sums"]), dict(state["weights"]), []

    def _sum_pending(self) -> None:
        pending, self._pending = self._pending, []
        for numbers, weight in pending:
            for name, value in numbers.items():
                number = plain(value)
                if isinstance(number, int | float) and not isinstance(number, bool):
                    is_count = name in COUNTS
                    self._sums[name] = self._sums.get(name, 0.0) + number * (1.0 if is_count else weight)
                    self._weights[name] = 1.0 if is_count else self._weights.get(name, 0.0) + weight


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    values = {name: plain(metrics[name]) for name in metrics}
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def _plain_arrays(value: Any) -> Any:
    """Convert arrays of any framework to NumPy arrays or numbers."""
    if type(value) in (list, tuple):
        return type(value)(map(_plain_arrays, value))
    if type(value) is dict:
        return {name: _plain_arrays(item) for name, item in value.items()}
    if not hasattr(value, "shape") or not hasattr(value, "__array__"):
        return value
    import numpy

    if isinstance(value, numpy.ndarray | numpy.generic):
        return value
    return numpy.asarray(value) if value.shape else value.item()
