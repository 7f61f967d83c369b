"""`ForeignCallback`: the hookline callback around one of another framework.

It listens to those moments only that the foreign callback has a method for, and to those that keep up what it may look
at. A method for an event that hookline never fires is named once, when it is wrapped. A callback that cannot work in a
hookline loop is refused then. One that fails in an event that prepares it gets no later event of that training.

`StandIn`: what a foreign callback is given in the place of an object of its framework.

It has what a hookline loop can truly answer. Everything else that is read, set or copied is a `NotOfferedError`, which
names the framework, the callback, the event and the attribute, and says what there is instead. It is an
`AttributeError`: a callback that asks ``hasattr`` first is answered False.

`LoopFacts`: what is known of a loop's plan and data, whichever loop it is; None is what is not known.

`wrap()`: a callback of Hugging Face, Lightning or Keras as a callback of hookline.

    trainer = hl.Trainer(model, data, val_data, callbacks=[hl.wrap(keras.callbacks.EarlyStopping(patience=2))])

Which framework it is of shows in its class. No framework is imported that the program has not imported itself.
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


class ForeignCallback(Callback, ABC):
    """Tells a callback of another framework what happens in a hookline loop.

    A subclass has a method ``_on_...`` for each moment that it can be told at.

    Args:
        foreign: The callback.
        base: The framework's class of callbacks.

    Raises:
        NotOfferedError: The callback cannot work in a hookline loop.
    """

    framework: ClassVar[str]
    refused: ClassVar[Mapping[str, str]] = {}
    """Classes of the framework that cannot work in a hookline loop, with what they would need and what there is."""
    prepares: ClassVar[frozenset[str]] = frozenset()
    """Foreign methods without which the later ones make no sense."""
    told: ClassVar[Mapping[str, tuple[str, ...]]]
    """The foreign methods that each moment is needed for."""
    always: ClassVar[frozenset[str]] = frozenset()
    """Moments that are needed for any callback."""
    elsewhere: ClassVar[frozenset[str]] = frozenset()
    """Foreign methods that are called at no moment, but for a checkpoint."""
    hints: ClassVar[Mapping[str, str]] = {}
    """What to do instead of methods that are never called."""

    def __init__(self, foreign: Any, base: type) -> None:
        kinds = [kind.__name__ for kind in type(foreign).__mro__ if kind.__module__.startswith(_package(base))]
        if reason := next((self.refused[kind] for kind in kinds if kind in self.refused), None):
            raise NotOfferedError(f"{self.framework}'s {type(foreign).__name__} cannot be wrapped: {reason}")
        self.foreign = foreign
        self.event = ""
        self._is_prepared = True
        self._default_name = snake_case(type(foreign).__name__)
        self._methods = frozenset(name for name in self._events(base) if self._has(base, name))
        self._loop: Any = None
        for moment, methods in self.told.items():
            if moment in self.always or self._methods.intersection(methods):
                setattr(self, moment, getattr(self, f"_{moment}"))
        self._say_what_is_never_called()

    @property
    def who(self) -> str:
        """The framework and the class of the callback, for messages."""
        return f"{self.framework}'s {type(self.foreign).__name__}"

    def __repr__(self) -> str:
        return f"wrap({type(self.foreign).__name__})"

    def _events(self, base: type) -> list[str]:
        """The methods of the framework's callbacks that its trainer calls."""
        return [name for name in vars(base) if name.startswith("on_")]

    def _has(self, base: type, name: str) -> bool:
        """Whether the foreign callback has a method of its own for an event."""
        own = getattr(type(self.foreign), name, None)
        return name in vars(self.foreign) or own is not getattr(base, name)

    def _say_what_is_never_called(self) -> None:
        called = {name for methods in self.told.values() for name in methods}
        if missing := sorted(self._methods - called - self.elsewhere):
            hints = " ".join(dict.fromkeys(self.hints[name] for name in missing if name in self.hints))
            names = ", ".join(missing)
            logger.warning("%s: hookline's loops never call its %s.%s", self.who, names, f" {hints}" if hints else "")

    def _attached(self, loop: Any) -> None:
        """Make what stands in for the framework's objects, when a loop tells something for the first time."""
        if self._loop is not loop:
            self._loop, self._is_prepared = loop, False
            self._attach(loop)
            self._is_prepared = True

    @abstractmethod
    def _attach(self, loop: Any) -> None:
        """Make them."""

    def _tell(self, event: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the foreign callback, if it has one of its own and nothing failed that prepares it."""
        if event not in self._methods or not self._is_prepared:
            return None
        self.event = event
        try:
            return getattr(self.foreign, event)(*args, **kwargs)
        except BaseException as error:
            self._is_prepared = event not in self.prepares
            if type(error) in (AssertionError, ValueError):  # those of the framework may say nothing, or only a name
                told = ": ".join(map(str, error.args)) or "it does not say why"
                error.args = (f"{self.who} failed in its {event}(): {told}",)
            raise
        finally:
            self.event = ""


def _package(base: type) -> str:
    """The package of a framework, by the class of its callbacks."""
    return base.__module__.partition(".")[0]


_NOT_THERE = "a hookline loop does not have that"


class StandIn:
    """Answers for an object of another framework as far as a hookline loop knows; see the module.

    Args:
        bridge: The wrapper of the callback that asks.
        path: What the callback calls this object, e.g. ``trainer.strategy``.
    """

    hints: ClassVar[Mapping[str, str]] = {}
    """What to do instead, by the name of what is not there."""

    def __init__(self, bridge: "ForeignCallback", loop: Any, path: str) -> None:
        vars(self).update(_bridge=bridge, _loop=loop, _path=path)

    def __getattr__(self, name: str) -> Any:
        if name in ("_bridge", "_loop", "_path"):  # one that was never built, as while it is unpickled
            raise AttributeError(name)
        there = getattr(type(self), name, None)
        if isinstance(there, property) and there.fget is not None:
            return there.fget(self)  # it raised an AttributeError, which brought us here: that one says more
        raise self._not_offered(f"for {self._path}.{name}", name)

    def __setattr__(self, name: str, value: Any) -> None:
        there = getattr(type(self), name, None)
        if not isinstance(there, property) or there.fset is None:
            raise self._not_offered(f"to set {self._path}.{name}", name)
        there.fset(self, value)

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise self._not_offered(f"for a copy of {self._path}", "copy")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise self._not_offered(f"for a copy of {self._path}", "copy")

    def __repr__(self) -> str:
        return f"<hookline's {self._path} for {self._bridge.who}>"

    def _not_offered(self, asked: str, name: str, *, why: str = _NOT_THERE) -> NotOfferedError:
        instead = self.hints.get(name) or f"{self._path}: {closest(name, self._offered())}"
        return not_offered(self._bridge, asked, instead, why=why)

    def _offered(self) -> list[str]:
        """What callbacks may ask it for."""
        names = {name for owner in type(self).__mro__[:-1] for name in vars(owner)} | vars(self).keys()
        return [name for name in names - {"hints"} if not name.startswith("_")]


def not_offered(bridge: "ForeignCallback", asked: str, instead: str, *, why: str = _NOT_THERE) -> NotOfferedError:
    """The error of a callback that asks ``for`` something, or ``to`` do it."""
    where = f" in {bridge.event}()" if bridge.event else ""
    return NotOfferedError(f"{bridge.who}{where} asks {asked}: {why}. {instead}")


@dataclass(frozen=True, slots=True)
class LoopFacts:
    """A `Trainer` knows its data and its settings; other loops at most how many steps and epochs they have."""

    loop: Any

    @property
    def settings(self) -> Any:
        """The `TrainerConfig`, where a `Trainer` runs."""
        return self.loop.config if hasattr(self.loop, "train_batches") else None

    @property
    def accumulation(self) -> int:
        """Batches that make up a step."""
        return 1 if self.settings is None else int(self.settings.accumulation)

    @property
    def batches_per_epoch(self) -> int | None:
        """Training batches in an epoch."""
        if self.settings is not None:
            length: int | None = self.loop.train_batches.length
            return length
        steps, epochs = self.loop.num_steps, self.loop.num_epochs
        return steps // epochs if steps and epochs and steps % epochs == 0 else None

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps in an epoch."""
        batches = self.batches_per_epoch
        return None if batches is None else -(-batches // self.accumulation)

    @property
    def epochs_done(self) -> float:
        """How many epochs are done, with a fraction for the one under way where its length is known."""
        steps = self.steps_per_epoch
        return float(self.loop.epoch) if steps is None else self.loop.step / steps

    @property
    def train_data(self) -> Any:
        """The loader, or what else gives the training batches."""
        return getattr(getattr(self.loop, "train_batches", None), "data", None)

    @property
    def val_data(self) -> Any:
        """The same for validations."""
        return getattr(getattr(self.loop, "val_batches", None), "data", None)

    @property
    def val_sets(self) -> list[str]:
        """The names of the validation sets, where a `Trainer` has several."""
        return [name for name in getattr(self.loop, "val_sets", ()) if name]

    @property
    def val_batches(self) -> int | None:
        """Batches in a validation; 0 where a `Trainer` has no data for one."""
        if self.settings is None:
            return None
        if self.val_data is None:
            return 0
        limit: int | None = self.settings.validation_batches
        counts = (limit, self.loop.val_batches.length)
        return min((count for count in counts if count is not None), default=None)

    @property
    def train_batch_size(self) -> int | None:
        """Samples in a training batch, where a loader puts them together."""
        return getattr(self.train_data, "batch_size", None)

    @property
    def val_batch_size(self) -> int | None:
        """The same for validations."""
        return getattr(self.val_data, "batch_size", None)

    def of_optimizer(self, name: str) -> Any:
        """A setting that the optimizer was made with, e.g. ``lr``."""
        return getattr(self.loop.optimizer, "defaults", {}).get(name)


_FOREIGN = [
    ("transformers.trainer_callback", "TrainerCallback", "transformers:TransformersBridge"),
    ("lightning.pytorch.callbacks.callback", "Callback", "lightning:LightningBridge"),
    ("pytorch_lightning.callbacks.callback", "Callback", "lightning:LightningBridge"),
    ("keras.src.callbacks.callback", "Callback", "keras:KerasBridge"),
]
"""Where each framework has its class of callbacks, and what bridges it."""
_ACCEPTED = "give a transformers.TrainerCallback, a lightning.pytorch.Callback or a keras.callbacks.Callback."


def wrap(foreign: Any, *, args: Mapping[str, Any] | None = None, **options: Any) -> ForeignCallback:
    """The callback of another framework as one of hookline's, to be given to any of its loops.

    Args:
        foreign: A Hugging Face `TrainerCallback`, a Lightning `Callback` or a Keras `Callback`.
        args: For Hugging Face's: settings of its `TrainingArguments` that the loop does not know, e.g.
            ``{"metric_for_best_model": "accuracy"}``.
        options: Options as for any subscriber: ``name``, ``priority``, ``every``, ...

    Raises:
        MomentError: It is none of these.
    """
    base, bridge = _found(foreign)
    if args is None:
        wrapped: ForeignCallback = bridge(foreign, base)
    elif bridge.framework == "Hugging Face":
        wrapped = bridge(foreign, base, args)
    else:
        raise OptionError(f"wrap(args={args!r}): {bridge.framework}'s callbacks are given no TrainingArguments.")
    return wrapped.configure(**options)


def _found(foreign: Any) -> tuple[type, Any]:
    """The framework's class of callbacks, and the class that bridges it."""
    if isinstance(foreign, Callback) or type(foreign).__module__.partition(".")[0] == "hookline":
        raise MomentError(f"wrap({foreign!r}): it is hookline's own; {_ACCEPTED}")
    for module, name, place in _FOREIGN:
        base = getattr(sys.modules.get(module), name, None)
        if base is not None and isinstance(foreign, base):
            file, _, bridge = place.partition(":")
            return base, getattr(import_module(f"hookline.compat.{file}"), bridge)
        if base is not None and isinstance(foreign, type) and issubclass(foreign, base):
            raise MomentError(f"{foreign.__name__} is a class: give an instance, wrap({foreign.__name__}(...)).")
    raise MomentError(f"wrap({foreign!r}): {_ACCEPTED}")
