"""`Scoring`: one call of a reward function, and what becomes of its result."""

import logging
import math
from collections.abc import Mapping
from typing import Any, Literal, NoReturn

from hookline.rl.rewards.batch import Batch
from hookline.rl.rewards.call import Call
from hookline.rl.rewards.join import Join
from hookline.rl.rewards.occasion import is_occasion
from hookline.rl.rewards.tally import tally
from hookline.rl.rewards.values import Values, read

logger = logging.getLogger("hookline")

OnError = Literal["raise", "skip"]
ERROR_LENGTH = 1000
"""How much of an exception's text is recorded."""


class Scoring:
    """A call from its beginning to what is given back.

    Args:
        arguments: What the function is called with, by name.
        expected: The column that holds the right answers.
    """

    def __init__(
        self, name: str, on_error: OnError, join: Join, arguments: Mapping[str, Any], expected: str | None
    ) -> None:
        self._name, self._on_error, self._join = name, on_error, join
        self._batch: Batch | None = None
        try:
            call = Call.of(arguments, expected)
            self._batch = None if call is None else join.begin(name, call)
        except Exception as error:  # arguments that nobody foresaw: the function may know what to do with them
            if is_occasion(tally(name).miss()):
                logger.warning("%s: what this reward function scores cannot be recorded: %r", name, error)

    @property
    def _count(self) -> int | None:
        return None if self._batch is None else len(self._batch.call.completions)

    def finish(self, result: Any) -> Any:
        """Record what the function returned, and give it back."""
        try:
            handed_on, values = read(result, self._name, self._count)
        except Exception as error:
            return self.give_up(error)
        self._end(values)
        odd = tally(self._name).add(values)
        if not odd:
            return handed_on
        self._warn_of_values(odd, len(values))
        return _without_nonfinite(values) if self._on_error == "skip" else handed_on

    def give_up(self, error: BaseException) -> Values:
        """Record that the function failed; the error goes on, or None takes the place of each value."""
        if not isinstance(error, Exception):
            self._end(None, failed=True)
            raise error
        goes_on = self._on_error == "skip" and self._count is not None
        errors = tally(self._name).fail()
        self._end(None, error=_told(error), failed=not goes_on)
        if is_occasion(errors):
            self._warn_of(error, goes_on, errors)
        return [None] * (self._count or 0) if goes_on else _raise(error)

    def _end(self, values: Values | None, *, error: str | None = None, failed: bool = False) -> None:
        if self._batch is not None:
            self._join.end(self._batch, self._name, values, error=error, failed=failed)

    def _warn_of(self, error: Exception, goes_on: bool, errors: int) -> None:
        text = "%s: this reward function failed at step %s (%d failures so far)%s: %s"
        step = "?" if self._batch is None else self._batch.step
        what = " and gives None for the whole batch" if goes_on else ""
        logger.warning(text, self._name, step, errors, what, _told(error))

    def _warn_of_values(self, odd: int, count: int) -> None:
        if is_occasion(tally(self._name).odd_calls):
            what = "None is given instead" if self._on_error == "skip" else "they are handed on as they are"
            logger.warning("%s: %d of %d rewards are NaN or infinite; %s.", self._name, odd, count, what)


def _without_nonfinite(values: Values) -> Values:
    return [value if value is not None and math.isfinite(value) else None for value in values]


def _told(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:ERROR_LENGTH]
    except Exception:  # an exception that cannot be told must not take the place of itself
        return type(error).__name__


def _raise(error: Exception) -> NoReturn:
    raise error
