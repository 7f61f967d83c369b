"""`ForeignCallback`: the hookline callback around one of another framework.

It listens to those moments only that the foreign callback has a method for, and to those that keep up what it may look
at. A method for an event that hookline never fires is named once, when it is wrapped. A callback that cannot work in a
hookline loop is refused then. One that fails in an event that prepares it gets no later event of that training.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from hookline.core.callback import Callback
from hookline.core.errors import NotOfferedError
from hookline.core.subscriber import snake_case

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
