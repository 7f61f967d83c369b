"""`logged` and `wrap`: reward functions that record what they give.

A wrapped function returns what the function returns, goes by its name and has its signature; one that is ``async``
is so when wrapped. Every reward is joined to its sample: the rewards of one completion from several functions stand
in one row, with prompt, completion, right answer, the reasoning and the answer found in it, the question's id (as the
row's ``group``) and the weighted total. See `hookline.rl.rewards.batch` for where the step comes from,
`hookline.rl.rewards.recording` for when a row is written and `hookline.rl.rewards.recording` for where to.

Recording never raises. What a function does wrong (an exception, a wrong number of values, something that is no
number, NaN, infinity) is counted, said with the function's name, and recorded in the row; then the exception or the
values go on to the caller unchanged, or, with ``on_error="skip"``, None takes their place and training goes on.
"""

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args, overload

from hookline._engine.errors import DuplicateError, OptionError
from hookline.rl.rewards.recording import Join, checked, shared
from hookline.rl.rewards.scoring import OnError, Scoring

RewardFunction = Callable[..., Any]


class LoggedReward:
    """A reward function that records what it gives; made by `logged` and `wrap`.

    Attributes:
        name: What its rewards are recorded under; ``__name__`` is the function's own.
        on_error: What happens to results that cannot be used.
    """

    def __init__(
        self, function: RewardFunction, name: str, join: Join, on_error: OnError, expected: str | None = None
    ) -> None:
        self._source = function
        self._function: RewardFunction = function._function if isinstance(function, LoggedReward) else function
        function = self._function
        functools.update_wrapper(self, function, updated=())
        self.__name__ = plain_name(function)
        self.name = name
        self.on_error = on_error
        self._join, self._expected = join, expected
        self._positions = _positions(function)
        self._is_async = is_async(function)
        if self._is_async:  # what `inspect.iscoroutinefunction` looks at in an object that is like a function
            self.__code__, self.__defaults__, self.__kwdefaults__ = _asynchronous.__code__, None, None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_async:
            return self._call_async(args, kwargs)
        scoring = self._scoring(args, kwargs)
        try:
            result = self._function(*args, **kwargs)
        except BaseException as error:
            return scoring.give_up(error)
        return scoring.finish(result)

    async def _call_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scoring = self._scoring(args, kwargs)
        try:
            result = await self._function(*args, **kwargs)
        except BaseException as error:
            return scoring.give_up(error)
        return scoring.finish(result)

    def _scoring(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scoring:
        return Scoring(
            self.name,
            self.on_error,
            self._join,
            dict(zip(self._positions, args, strict=False)) | kwargs,
            self._expected,
        )

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_function" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._function, name)

    def __repr__(self) -> str:
        return f"<logged reward function {self.name!r}: {self._function!r}>"

    def __copy__(self) -> "LoggedReward":
        return self

    def __deepcopy__(self, memo: Any) -> "LoggedReward":
        return self  # as functions do

    def __reduce__(self) -> Any:
        """By name where it stands in its module, otherwise with the function; without its recorder."""
        if _found(self) is self:
            return self.__qualname__
        return LoggedReward, (self._source, self.name, self._join, self.on_error, self._expected)

    def again(self, join: Join, *, name: str | None, on_error: OnError | None, expected: str | None) -> "LoggedReward":
        """The same function in another join."""
        return LoggedReward(self, name or self.name, join, on_error or self.on_error, expected or self._expected)


@overload
def logged(name: RewardFunction) -> LoggedReward: ...
@overload
def logged(
    name: str | None = None, *, recorder: Any = None, on_error: OnError = "raise", expected: str | None = None
) -> Callable[[RewardFunction], LoggedReward]: ...
def logged(
    name: RewardFunction | str | None = None,
    *,
    recorder: Any = None,
    on_error: OnError = "raise",
    expected: str | None = None,
) -> LoggedReward | Callable[[RewardFunction], LoggedReward]:
    """Make a reward function record what it gives: ``@rewards.logged("correctness")``, or ``@rewards.logged``.

    Args:
        name: What its rewards are recorded under; the function's own name where none is given.
        recorder: A run, a `Recorder`, or anything with ``log_samples(rows)``; see `record_to` for where rewards go
            otherwise.
        on_error: "raise" hands on what the function raises and returns; "skip" gives None instead of what cannot be
            used, so that training goes on.
        expected: The column that holds the right answers; found by its usual names where none is given.
    """
    require_on_error(on_error)
    join, own = shared(checked(recorder)), None if callable(name) else name
    if callable(name):
        return _logged(name, own, join, on_error, expected)
    if not (name is None or (isinstance(name, str) and name)):
        raise OptionError(f"logged({name!r}): give a name for its rewards, or nothing.")

    def decorate(function: RewardFunction) -> LoggedReward:
        return _logged(function, own, join, on_error, expected)

    return decorate


def wrap(
    functions: Iterable[Any] | Mapping[str, Any],
    *,
    recorder: Any = None,
    weights: Sequence[float] | None = None,
    on_error: OnError | None = None,
    expected: str | None = None,
) -> list[Any]:
    """Reward functions that record what they give, in one row for each completion; for ``reward_funcs=`` of TRL.

    Reward models and names of models, which TRL calls in its own way, are handed on as they are.

    Args:
        functions: Functions, or functions by the names that their rewards are recorded under.
        recorder: As for `logged`.
        weights: What each function counts for in a sample's total: TRL's ``reward_weights``; 1 where none are given.
        on_error: As for `logged`; functions that are logged already keep their own where none is given.
        expected: As for `logged`.

    Raises:
        DuplicateError: Two functions have the same name.
    """
    named = _named(functions)
    if on_error is not None:
        require_on_error(on_error)
    if weights is not None and len(weights) != len(named):
        raise OptionError(f"weights={list(weights)!r:.200}: give one for each of the {len(named)} functions.")
    by_name = {name: float(weight) for (name, _), weight in zip(named, weights or (), strict=False) if name is not None}
    join = Join(checked(recorder), [name for name, _ in named if name is not None], by_name)
    return [each if name is None else _logged(each, name, join, on_error, expected) for name, each in named]


def require_on_error(on_error: Any) -> None:
    """Refuse what is no way to treat errors."""
    if on_error not in get_args(OnError):
        raise OptionError(f"on_error={on_error!r}: give 'raise' or 'skip'.")


def plain_name(function: Any) -> str:
    """What a function is called; of an object that is called like one, its class's name."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def is_async(function: Any) -> bool:
    """Whether calling it gives something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _logged(
    function: Any, name: str | None, join: Join, on_error: OnError | None, expected: str | None
) -> LoggedReward:
    if isinstance(function, LoggedReward):
        return function.again(join, name=name, on_error=on_error, expected=expected)
    if not callable(function):
        raise OptionError(f"{function!r:.200} is no reward function: give something that can be called.")
    return LoggedReward(function, name or own_name(function), join, on_error or "raise", expected)


def own_name(function: Any) -> str:
    """The name that a function's rewards are recorded under where nobody says another."""
    if isinstance(function, LoggedReward):
        return function.name
    given = getattr(function, "reward_name", None)
    return given if isinstance(given, str) else plain_name(function)


def _named(functions: Any) -> list[tuple[str | None, Any]]:
    """The functions with their names; models have none."""
    if isinstance(functions, str) or callable(functions) or not isinstance(functions, Iterable):
        raise OptionError(f"wrap({functions!r:.200}): give a list of reward functions, or a dict of them by name.")
    pairs = functions.items() if isinstance(functions, Mapping) else [(None, each) for each in functions]
    named = [(None if _is_model(each) else name or own_name(each), each) for name, each in pairs]
    names = [name for name, _ in named if name is not None]
    for name in names:
        if names.count(name) > 1:
            raise DuplicateError(
                f"Two reward functions are called {name!r}: give a dict of functions by name to wrap()."
            )
    return named


def _is_model(function: Any) -> bool:
    return isinstance(function, str) or (hasattr(function, "forward") and hasattr(function, "named_parameters"))


def _positions(function: Any) -> list[str]:
    """The names of the arguments that can be given by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ["prompts", "completions"]
    return [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def _found(reward: LoggedReward) -> Any:
    """What stands in a wrapped function's module under its name."""
    found: Any = sys.modules.get(reward.__module__) if "__qualname__" in reward.__dict__ else None
    for part in reward.__qualname__.split(".") if found is not None else ():
        found = getattr(found, part, None)
    return found


async def _asynchronous(prompts: Any, completions: Any, **columns: Any) -> None:
    """Like every asynchronous function in what `inspect` can see of it."""
