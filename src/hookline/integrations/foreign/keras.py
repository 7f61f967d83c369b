"""Keras's callbacks: `Callback` with ``params``, ``model`` and ``logs``.

- The logs are Python floats. Those of a batch and of an epoch are means over the epoch so far, as in Keras; those of
  an epoch have the latest validation in it as ``val_loss`` and so on. Reading them waits for the device.
- The end of a batch that completes a step comes after the step, when the weights have moved.
- ``model.stop_training`` asks the loop for a stop. ``model.optimizer.learning_rate`` is that of the torch optimizer.
  ``get_weights`` and ``set_weights`` are those of the torch model, which is ``model.torch_module``.
- Keras's callbacks have no state of their own to save, and start anew in `on_train_begin`. Here a checkpoint holds the
  attributes that changed since then, if they are numbers, texts, arrays, or lists and dicts of these, and are not
  arguments of the constructor; after a resume they are put back.
"""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from hookline.callbacks.batch_counts import samples_of
from hookline.core.encoding import decode, encode
from hookline.core.errors import CheckpointError
from hookline.core.state import LoopArtifacts, ManifestRow
from hookline.core.values import plain
from hookline.integrations.foreign.bridge import ForeignCallback
from hookline.integrations.foreign.facts import LoopFacts
from hookline.integrations.foreign.keras_model import KerasModel
from hookline.integrations.foreign.running_means import RunningMeans

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
