"""What a moment is: a name, its arguments, and how its repetitions are counted.

The catalogue is the class `Callback` itself; `catalogue()` reads it off the class, so that no
list of moments is kept twice. A moment that repeats is marked with `@repeats`, whose argument is
the expression that gives the completed count at that moment. It is source text because the
dispatcher pastes it into the code it generates: a call would cost more than the rest of a
cadence check.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar, overload

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in a loop's life: its name and arguments, and on which axis it repeats, if it does.

    One ``of_row`` may be about another count than the one under way. After one that ``restarts``, counts come again.
    """

    name: str
    arguments: tuple[str, ...]
    keywords: tuple[str, ...] = ()
    axis: str | None = None
    count: str = ""
    doc: str = ""
    of_row: bool = False
    restarts: bool = False

    @property
    def subject(self) -> str:
        """The first argument: the loop, or the context in experiment scope."""
        return self.arguments[0]

    @property
    def repeating(self) -> bool:
        """Whether a cadence governs this moment."""
        return self.axis is not None

    @property
    def everything(self) -> tuple[str, ...]:
        """All arguments, as source text for a call that passes them on."""
        return (*self.arguments, *(f"{name}={name}" for name in self.keywords))

    def signature(self) -> str:
        """The moment as a user writes it, e.g. ``on_step_start(loop, step_idx)``."""
        keywords = ["*", *(f"{name}=None" for name in self.keywords)] if self.keywords else []
        return f"{self.name}({', '.join([*self.arguments, *keywords])})"


def repeats(count: str, *, axis: str = "train", of_row: bool = False) -> Callable[[F], F]:
    """Mark a moment as one that repeats, counted by the expression ``count`` on ``axis``."""

    def mark(function: F) -> F:
        function.__dict__.update(_count=count, _axis=axis, _of_row=of_row)
        return function

    return mark


def restarts(function: F) -> F:
    """Mark a moment after which counts come again: cadences are asked anew."""
    function.__dict__.update(_restarts=True)
    return function


S = TypeVar("S")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
R = TypeVar("R")


@overload
def lenient(
    function: Callable[[S, A, B, C, D], R],
) -> (
    Callable[[Any, A, B, C, D], R]
    | Callable[[Any, A, B, C], R]
    | Callable[[Any, A, B], R]
    | Callable[[Any, A], R]
    | Callable[[Any], R]
): ...
@overload
def lenient(
    function: Callable[[S, A, B, C], R],
) -> Callable[[Any, A, B, C], R] | Callable[[Any, A, B], R] | Callable[[Any, A], R] | Callable[[Any], R]: ...
@overload
def lenient(
    function: Callable[[S, A, B], R],
) -> Callable[[Any, A, B], R] | Callable[[Any, A], R] | Callable[[Any], R]: ...
@overload
def lenient(function: Callable[[S, A], R]) -> Callable[[Any, A], R] | Callable[[Any], R]: ...
def lenient(function: Any) -> Any:
    """Tell type checkers that who overrides a moment may leave off trailing arguments; otherwise nothing changes.

    A union is what they need for that: a method is compatible with it if it is so with one of its parts.
    """
    return function


def catalogue(owner: type) -> Mapping[str, Moment]:
    """All moments that a class declares, in the order of their definition."""
    moments = {
        name: _moment(name, function)
        for name, function in vars(owner).items()
        if name.startswith("on_") and callable(function)
    }
    return MappingProxyType(moments)


def _moment(name: str, function: Any) -> Moment:
    code = function.__code__
    positional, keyword = code.co_argcount, code.co_kwonlyargcount
    return Moment(
        name=name,
        arguments=code.co_varnames[1:positional],
        keywords=code.co_varnames[positional : positional + keyword],
        axis=getattr(function, "_axis", None),
        count=getattr(function, "_count", ""),
        doc=function.__doc__ or "",
        of_row=getattr(function, "_of_row", False),
        restarts=getattr(function, "_restarts", False),
    )
