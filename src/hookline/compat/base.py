"""Callbacks of Hugging Face, Lightning and Keras in hookline's loops: `wrap` and the parts its adapters share.

    trainer = hl.Trainer(model, data, val_data, callbacks=[hl.wrap(keras.callbacks.EarlyStopping(patience=2))])

- A `CallbackAdapter` subscribes only to the moments that the foreign callback has methods for, and to those that keep
  the objects it sees up to date. It warns once about methods for events that hookline never fires.
- A `LoopFacade` replaces an object of the framework, such as Lightning's ``trainer``. It offers what a hookline loop
  knows; reading, setting or copying anything else raises `NotOfferedError`.
- `LoopInfo` answers questions about the plan and data of any loop.

A framework is only used if the program has imported it.
"""

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, NoReturn

from hookline._engine.errors import MomentError, NotOfferedError, OptionError, closest
from hookline._engine.moments import Callback
from hookline._engine.subscriber import snake_case

logger = logging.getLogger("hookline")

_NOT_OFFERED = "a hookline loop does not have that"
_ACCEPTED = "give a transformers.TrainerCallback, a lightning.pytorch.Callback or a keras.callbacks.Callback."
_FRAMEWORKS = [
    ("transformers.trainer_callback", "TrainerCallback", "transformers:TransformersAdapter"),
    ("lightning.pytorch.callbacks.callback", "Callback", "lightning:LightningAdapter"),
    ("pytorch_lightning.callbacks.callback", "Callback", "lightning:LightningAdapter"),
    ("keras.src.callbacks.callback", "Callback", "keras:KerasAdapter"),
]
"""Each framework's module and class of callbacks, and the adapter for it."""


def wrap(foreign: Any, *, args: Mapping[str, Any] | None = None, **options: Any) -> "CallbackAdapter":
    """Turn a callback of another framework into one that any hookline loop accepts.

    Args:
        foreign: A Hugging Face `TrainerCallback`, a Lightning `Callback` or a Keras `Callback`.
        args: For Hugging Face: settings of `TrainingArguments` that the loop does not know, e.g.
            ``{"metric_for_best_model": "accuracy"}``.
        options: The options of any subscriber: ``name``, ``priority``, ``every``, ...

    Raises:
        MomentError: The object is not a callback of these frameworks.
        NotOfferedError: The callback cannot work in a hookline loop.
    """
    base, adapter = _base_and_adapter(foreign)
    if args is None:
        wrapped: CallbackAdapter = adapter(foreign, base)
    elif adapter.framework == "Hugging Face":
        wrapped = adapter(foreign, base, args)
    else:
        raise OptionError(f"wrap(args={args!r}): {adapter.framework}'s callbacks do not use TrainingArguments.")
    return wrapped.configure(**options)


def _base_and_adapter(foreign: Any) -> tuple[type, Any]:
    if isinstance(foreign, Callback) or type(foreign).__module__.partition(".")[0] == "hookline":
        raise MomentError(f"wrap({foreign!r}): hookline's callbacks need no wrapping; {_ACCEPTED}")
    for module, name, location in _FRAMEWORKS:
        base = getattr(sys.modules.get(module), name, None)
        if base is not None and isinstance(foreign, base):
            file, _, adapter = location.partition(":")
            return base, getattr(import_module(f"hookline.compat.{file}"), adapter)
        if base is not None and isinstance(foreign, type) and issubclass(foreign, base):
            raise MomentError(f"{foreign.__name__} is a class: give an instance, wrap({foreign.__name__}(...)).")
    raise MomentError(f"wrap({foreign!r}): {_ACCEPTED}")


class CallbackAdapter(Callback, ABC):
    """Calls the methods of another framework's callback at the moments of a hookline loop.

    A subclass has a method ``_on_...`` for each moment in `methods_by_moment`. If the foreign callback fails in one of
    its `setup_methods`, it gets no later event of that training.

    Args:
        foreign: The callback.
        base: The framework's class of callbacks.

    Raises:
        NotOfferedError: The callback cannot work in a hookline loop.
    """

    framework: ClassVar[str]
    refused: ClassVar[Mapping[str, str]] = {}
    """Classes of the framework that cannot work in a hookline loop, with the reason and the alternative."""
    setup_methods: ClassVar[frozenset[str]] = frozenset()
    """Foreign methods that must succeed before the others are called."""
    methods_by_moment: ClassVar[Mapping[str, tuple[str, ...]]]
    """The foreign methods that each moment is needed for."""
    required_moments: ClassVar[frozenset[str]] = frozenset()
    """Moments that are needed for every callback."""
    checkpoint_methods: ClassVar[frozenset[str]] = frozenset()
    """Foreign methods that are called for checkpoints rather than at a moment."""
    hints: ClassVar[Mapping[str, str]] = {}
    """Alternatives to foreign methods that are never called."""

    def __init__(self, foreign: Any, base: type) -> None:
        package = base.__module__.partition(".")[0]
        kinds = [kind.__name__ for kind in type(foreign).__mro__ if kind.__module__.startswith(package)]
        if reason := next((self.refused[kind] for kind in kinds if kind in self.refused), None):
            raise NotOfferedError(f"{self.framework}'s {type(foreign).__name__} cannot be wrapped: {reason}")
        self.foreign = foreign
        self.event = ""
        self._is_set_up = True
        self._default_name = snake_case(type(foreign).__name__)
        self._methods = frozenset(name for name in self._events(base) if self._overrides(base, name))
        self._loop: Any = None
        for moment, methods in self.methods_by_moment.items():
            if moment in self.required_moments or self._methods.intersection(methods):
                setattr(self, moment, getattr(self, f"_{moment}"))
        called = {name for methods in self.methods_by_moment.values() for name in methods}
        if missing := sorted(self._methods - called - self.checkpoint_methods):
            hints = " ".join(dict.fromkeys(self.hints[name] for name in missing if name in self.hints))
            names = ", ".join(missing)
            logger.warning("%s: hookline's loops never call its %s.%s", self.label, names, f" {hints}" if hints else "")

    @property
    def label(self) -> str:
        """The framework and the class of the callback, for messages."""
        return f"{self.framework}'s {type(self.foreign).__name__}"

    def __repr__(self) -> str:
        return f"wrap({type(self.foreign).__name__})"

    def _events(self, base: type) -> list[str]:
        """Return the methods of callbacks that the framework's trainer calls."""
        return [name for name in vars(base) if name.startswith("on_")]

    def _overrides(self, base: type, name: str) -> bool:
        own = getattr(type(self.foreign), name, None)
        return name in vars(self.foreign) or own is not getattr(base, name)

    def _ensure_attached(self, loop: Any) -> None:
        if self._loop is not loop:
            self._loop, self._is_set_up = loop, False
            self._attach(loop)
            self._is_set_up = True

    @abstractmethod
    def _attach(self, loop: Any) -> None:
        """Create the facades for a loop that fires its first moment."""

    def _invoke(self, event: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the foreign callback, if it overrides it and no setup method failed."""
        if event not in self._methods or not self._is_set_up:
            return None
        self.event = event
        try:
            return getattr(self.foreign, event)(*args, **kwargs)
        except BaseException as error:
            self._is_set_up = event not in self.setup_methods
            if type(error) in (AssertionError, ValueError):  # frameworks raise these with little or no text
                reason = ": ".join(map(str, error.args)) or "no message"
                error.args = (f"{self.label} failed in its {event}(): {reason}",)
            raise
        finally:
            self.event = ""


class LoopFacade:
    """Replaces an object of another framework, as far as a hookline loop knows its attributes.

    Other attributes raise `NotOfferedError`, which names the framework, the callback, the event, the attribute and the
    alternative. It is an `AttributeError`, so ``hasattr`` returns False.

    Args:
        adapter: The adapter of the callback that receives the object.
        path: How the callback refers to it, e.g. ``trainer.strategy``.
    """

    hints: ClassVar[Mapping[str, str]] = {}
    """Alternatives to attributes that are not offered."""

    def __init__(self, adapter: CallbackAdapter, loop: Any, path: str) -> None:
        vars(self).update(_adapter=adapter, _loop=loop, _path=path)

    def __getattr__(self, name: str) -> Any:
        if name in ("_adapter", "_loop", "_path"):  # __init__ has not run, e.g. while unpickling
            raise AttributeError(name)
        existing = getattr(type(self), name, None)
        if isinstance(existing, property) and existing.fget is not None:
            return existing.fget(self)  # it raised an AttributeError, which led here: raise that one again
        raise self._not_offered(f"for {self._path}.{name}", name)

    def __setattr__(self, name: str, value: Any) -> None:
        existing = getattr(type(self), name, None)
        if not isinstance(existing, property) or existing.fset is None:
            raise self._not_offered(f"to set {self._path}.{name}", name)
        existing.fset(self, value)

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise self._not_offered(f"for a copy of {self._path}", "copy")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise self._not_offered(f"for a copy of {self._path}", "copy")

    def __repr__(self) -> str:
        return f"<hookline's {self._path} for {self._adapter.label}>"

    def _not_offered(self, request: str, name: str, *, why: str = _NOT_OFFERED) -> NotOfferedError:
        instead = self.hints.get(name) or f"{self._path}: {closest(name, self._offered())}"
        return not_offered(self._adapter, request, instead, why=why)

    def _offered(self) -> list[str]:
        names = {name for owner in type(self).__mro__[:-1] for name in vars(owner)} | vars(self).keys()
        return [name for name in names - {"hints"} if not name.startswith("_")]


def not_offered(adapter: CallbackAdapter, request: str, instead: str, *, why: str = _NOT_OFFERED) -> NotOfferedError:
    """Return the error for a callback that asks ``for`` something, or ``to`` do something."""
    where = f" in {adapter.event}()" if adapter.event else ""
    return NotOfferedError(f"{adapter.label}{where} asks {request}: {why}. {instead}")


@dataclass(frozen=True, slots=True)
class LoopInfo:
    """A loop's plan and data; None is unknown.

    A `Trainer` knows its data and settings; other loops know at most the number of steps and epochs.
    """

    loop: Any

    @property
    def settings(self) -> Any:
        """The `TrainerConfig` of a `Trainer`."""
        return self.loop.config if hasattr(self.loop, "train_batches") else None

    @property
    def accumulation(self) -> int:
        """The number of batches in a step."""
        return 1 if self.settings is None else int(self.settings.accumulation)

    @property
    def batches_per_epoch(self) -> int | None:
        """The number of training batches in an epoch."""
        if self.settings is not None:
            length: int | None = self.loop.train_batches.length
            return length
        steps, epochs = self.loop.num_steps, self.loop.num_epochs
        return steps // epochs if steps and epochs and steps % epochs == 0 else None

    @property
    def steps_per_epoch(self) -> int | None:
        """The number of steps in an epoch."""
        batches = self.batches_per_epoch
        return None if batches is None else -(-batches // self.accumulation)

    @property
    def epochs_done(self) -> float:
        """The number of completed epochs, with a fraction for the current one if its length is known."""
        steps = self.steps_per_epoch
        return float(self.loop.epoch) if steps is None else self.loop.step / steps

    @property
    def train_data(self) -> Any:
        """The source of the training batches."""
        return getattr(getattr(self.loop, "train_batches", None), "data", None)

    @property
    def val_data(self) -> Any:
        """The source of the validation batches."""
        return getattr(getattr(self.loop, "val_batches", None), "data", None)

    @property
    def val_sets(self) -> list[str]:
        """The names of the validation sets, if a `Trainer` has several."""
        return [name for name in getattr(self.loop, "val_sets", ()) if name]

    @property
    def val_batches(self) -> int | None:
        """The number of batches in a validation; 0 for a `Trainer` without validation data."""
        if self.settings is None:
            return None
        if self.val_data is None:
            return 0
        limit: int | None = self.settings.validation_batches
        counts = (limit, self.loop.val_batches.length)
        return min((count for count in counts if count is not None), default=None)

    @property
    def train_batch_size(self) -> int | None:
        """The number of samples in a training batch, if a loader makes the batches."""
        return getattr(self.train_data, "batch_size", None)

    @property
    def val_batch_size(self) -> int | None:
        """The number of samples in a validation batch, if a loader makes the batches."""
        return getattr(self.val_data, "batch_size", None)

    def optimizer_default(self, name: str) -> Any:
        """Return a setting that the optimizer was created with, e.g. ``lr``."""
        return getattr(self.loop.optimizer, "defaults", {}).get(name)
