"""`logged` and `wrap`: reward functions that record their values.

A wrapped function returns what the function returns, and has its name and signature; an ``async`` function stays
``async``. The rewards of one completion from several functions are recorded in one row, with the prompt, the
completion, the right answer, the extracted reasoning and answer, the question's id (as ``group``) and the weighted
total. `hookline.rl.rewards.batch` determines the step, `hookline.rl.rewards.recording` when and where rows are
written.

Recording never raises. Mistakes of a function (an exception, a wrong number of values, a value that is not a number,
NaN, infinity) are counted, logged with the function's name, and recorded in the row. The exception or the values are
then passed on to the caller unchanged, or replaced by None with ``on_error="skip"``.
"""

import functools
import inspect
import logging
import math
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, overload

from hookline._engine.binding import is_async
from hookline._engine.errors import DuplicateError, OptionError
from hookline.rl.rewards.batch import RewardBatch, RewardCall, Values, function_name, read_values
from hookline.rl.rewards.recording import BatchCollector, checked_destination, shared_collector, should_log
from hookline.rl.rewards.statistics import statistics_of

logger = logging.getLogger("hookline")

RewardFunction = Callable[..., Any]
OnError = Literal["raise", "skip"]
MAX_ERROR_LENGTH = 1000


class LoggedReward:
    """A reward function that records its values; made by `logged` and `wrap`.

    Attributes:
        name: The name that its rewards are recorded under; ``__name__`` is the function's own.
        on_error: What happens to invalid results.
    """

    def __init__(
        self,
        function: RewardFunction,
        name: str,
        collector: BatchCollector,
        on_error: OnError,
        expected: str | None = None,
    ) -> None:
        self._source = function
        self._function: RewardFunction = function._function if isinstance(function, LoggedReward) else function
        function = self._function
        functools.update_wrapper(self, function, updated=())
        self.__name__ = function_name(function)
        self.name = name
        self.on_error = on_error
        self._collector, self._expected = collector, expected
        self._positional = _positional_names(function)
        self._is_async = is_async(function)
        if self._is_async:  # makes inspect.iscoroutinefunction() true for this object
            self.__code__, self.__defaults__, self.__kwdefaults__ = _async_signature.__code__, None, None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_async:
            return self._call_async(args, kwargs)
        call = _RecordedCall(self, args, kwargs)
        try:
            result = self._function(*args, **kwargs)
        except BaseException as error:
            return call.fail(error)
        return call.finish(result)

    async def _call_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = _RecordedCall(self, args, kwargs)
        try:
            result = await self._function(*args, **kwargs)
        except BaseException as error:
            return call.fail(error)
        return call.finish(result)

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
        return self  # like a function

    def __reduce__(self) -> Any:
        """Pickle by name if the module has this object under its name, else with the function; without a recorder."""
        found: Any = sys.modules.get(self.__module__) if "__qualname__" in self.__dict__ else None
        for part in self.__qualname__.split(".") if found is not None else ():
            found = getattr(found, part, None)
        if found is self:
            return self.__qualname__
        return LoggedReward, (self._source, self.name, self._collector, self.on_error, self._expected)


class _RecordedCall:
    """One call of a reward function, from its arguments to the result that the caller gets."""

    def __init__(self, reward: LoggedReward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._name, self._on_error, self._collector = reward.name, reward.on_error, reward._collector
        self._batch: RewardBatch | None = None
        arguments = dict(zip(reward._positional, args, strict=False)) | kwargs
        try:
            call = RewardCall.from_arguments(arguments, reward._expected)
            self._batch = None if call is None else self._collector.begin(self._name, call)
        except Exception as error:  # unusual arguments, which the function itself may accept
            if should_log(statistics_of(self._name).add_unrecorded()):
                logger.warning("%s: the samples of this reward function cannot be recorded: %r", self._name, error)

    @property
    def _count(self) -> int | None:
        return None if self._batch is None else len(self._batch.call.completions)

    def finish(self, result: Any) -> Any:
        """Record the result of the function, and return it."""
        try:
            returned, values = read_values(result, self._name, self._count)
        except Exception as error:
            return self.fail(error)
        self._end(values)
        statistics = statistics_of(self._name)
        nonfinite = statistics.add(values)
        if not nonfinite:
            return returned
        is_skipped = self._on_error == "skip"
        if should_log(statistics.nonfinite_calls):
            outcome = "None is returned instead" if is_skipped else "they are returned unchanged"
            logger.warning("%s: %d of %d rewards are NaN or infinite; %s.", self._name, nonfinite, len(values), outcome)
        if is_skipped:
            return [value if value is not None and math.isfinite(value) else None for value in values]
        return returned

    def fail(self, error: BaseException) -> Values:
        """Record that the function failed; raise the error again, or return None for each completion."""
        if not isinstance(error, Exception):  # e.g. KeyboardInterrupt, which is not the function's failure
            self._end(None, failed=True)
            raise error
        is_skipped = self._on_error == "skip" and self._count is not None
        failures = statistics_of(self._name).add_error()
        try:
            text = f"{type(error).__name__}: {error}"[:MAX_ERROR_LENGTH]
        except Exception:  # str() of a user's exception may fail itself
            text = type(error).__name__
        self._end(None, error=text, failed=not is_skipped)
        if should_log(failures):
            logger.warning(
                "%s: this reward function failed at step %s (%d failures so far)%s: %s",
                self._name,
                "?" if self._batch is None else self._batch.step,
                failures,
                " and returns None for the whole batch" if is_skipped else "",
                text,
            )
        if not is_skipped:
            raise error
        return [None] * (self._count or 0)

    def _end(self, values: Values | None, *, error: str | None = None, failed: bool = False) -> None:
        if self._batch is not None:
            self._collector.end(self._batch, self._name, values, error=error, failed=failed)


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
    """Make a reward function record its values: ``@rewards.logged("correctness")``, or ``@rewards.logged``.

    Args:
        name: The name that its rewards are recorded under; the function's own name by default.
        recorder: A run, a `Recorder`, or an object with ``log_samples(rows)``; by default the destination of
            `record_to`.
        on_error: "raise" passes on what the function raises and returns; "skip" replaces invalid results by None, so
            that training continues.
        expected: The column of right answers; found by its usual names by default.
    """
    _require_on_error(on_error)
    collector = shared_collector(checked_destination(recorder))
    if callable(name):
        return _make_logged(name, None, collector, on_error, expected)
    if not (name is None or (isinstance(name, str) and name)):
        raise OptionError(f"logged({name!r}): give a name for its rewards, or nothing.")
    return lambda function: _make_logged(function, name, collector, on_error, expected)


def wrap(
    functions: Iterable[Any] | Mapping[str, Any],
    *,
    recorder: Any = None,
    weights: Sequence[float] | None = None,
    on_error: OnError | None = None,
    expected: str | None = None,
) -> list[Any]:
    """Make reward functions record their values, in one row per completion; for ``reward_funcs=`` of TRL.

    Reward models and names of models, which TRL calls itself, are returned unchanged.

    Args:
        functions: Functions, or functions by the names that their rewards are recorded under.
        recorder: As for `logged`.
        weights: The weight of each function in a sample's total, TRL's ``reward_weights``; 1 by default.
        on_error: As for `logged`; by default, functions that are logged already keep theirs.
        expected: As for `logged`.

    Raises:
        DuplicateError: Two functions have the same name.
    """
    if isinstance(functions, str) or callable(functions) or not isinstance(functions, Iterable):
        raise OptionError(f"wrap({functions!r:.200}): give a list of reward functions, or a dict of them by name.")
    pairs = functions.items() if isinstance(functions, Mapping) else [(None, each) for each in functions]
    named = [(None if _is_model(each) else name or _reward_name(each), each) for name, each in pairs]
    names = [name for name, _ in named if name is not None]
    for name in names:
        if names.count(name) > 1:
            raise DuplicateError(
                f"Two reward functions are called {name!r}: give a dict of functions by name to wrap()."
            )
    if on_error is not None:
        _require_on_error(on_error)
    if weights is not None and len(weights) != len(named):
        raise OptionError(f"weights={list(weights)!r:.200}: give one for each of the {len(named)} functions.")
    by_name = {name: float(weight) for (name, _), weight in zip(named, weights or (), strict=False) if name is not None}
    collector = BatchCollector(checked_destination(recorder), names, by_name)
    return [each if name is None else _make_logged(each, name, collector, on_error, expected) for name, each in named]


def _make_logged(
    function: Any, name: str | None, collector: BatchCollector, on_error: OnError | None, expected: str | None
) -> LoggedReward:
    if isinstance(function, LoggedReward):
        on_error, expected = on_error or function.on_error, expected or function._expected
    elif not callable(function):
        raise OptionError(f"{function!r:.200} is not a reward function: give a callable.")
    return LoggedReward(function, name or _reward_name(function), collector, on_error or "raise", expected)


def _require_on_error(on_error: Any) -> None:
    if on_error not in get_args(OnError):
        raise OptionError(f"on_error={on_error!r}: give 'raise' or 'skip'.")


def _reward_name(function: Any) -> str:
    """Return the default name of a function's rewards."""
    if isinstance(function, LoggedReward):
        return function.name
    own = getattr(function, "reward_name", None)
    return own if isinstance(own, str) else function_name(function)


def _is_model(function: Any) -> bool:
    return isinstance(function, str) or (hasattr(function, "forward") and hasattr(function, "named_parameters"))


def _positional_names(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ["prompts", "completions"]
    return [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


async def _async_signature(prompts: Any, completions: Any, **columns: Any) -> None:
    """Provides the code flags of an async function."""
