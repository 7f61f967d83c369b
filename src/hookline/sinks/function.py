"""`FunctionSink`: calls a logger function with the recorded rows, off the training thread.

``function(report_data, step)`` is called in order, once for each row of training and evaluation of the run's main
writer, with plain Python numbers. The position is saved after each call, so a killed process repeats at most one row.
While it cannot be saved, because the disk is full, no further row is delivered.

A row for which the function raises is tried three times. If later rows then succeed, the row is dropped with an error.
If three rows in succession fail, the function is considered broken: the sink refuses, keeps the rows and retries now
and then. A failing row without later rows is dropped after ten attempts.
"""

import logging
import secrets
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline._engine.background import SLOW_CALLS
from hookline._engine.binding import is_async
from hookline._engine.errors import ConfigError, HooklineError, OptionError, RefusedError, UnknownNameError
from hookline._engine.factories import import_object
from hookline._engine.functions import require_two_arguments
from hookline._record.reader import MAIN, JournalEntry
from hookline._record.records import Metrics
from hookline._record.sink import Sink, import_path, register_sink
from hookline.sinks.output_files import DeliveredPositions

logger = logging.getLogger("hookline")

AXES = ("train", "eval")
ATTEMPTS = 3
"""How often a row is tried before later ones are."""
LAST_ATTEMPTS = 10
"""How often a row without later ones is tried."""
MOST_FAILED_ROWS = 3
"""How many failed rows in succession mean that the function is broken."""

LoggerFunction = Callable[[dict[str, Any], int], object]


@register_sink("function")
@dataclass(eq=False)
class FunctionSink(Sink):
    """Calls a function with each row of metrics.

    Args:
        function: Takes ``(report_data, step)``; or its import path, ``"package.module:name"``. ``hookline runs sync``
            can deliver only to a function that can be imported.
        name: The sink's name in its run.
    """

    function: LoggerFunction | str | None
    name: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.function, str):
            if ":" not in self.function:
                raise OptionError(f"function={self.function!r}: give a function, or 'package.module:name'.")
        elif self.function is not None:
            _require_logger(self.function)
        self.failed = 0
        self._delivered: DeliveredPositions | None = None
        self._resolved: LoggerFunction | None = None
        self._first_failure: tuple[str, int] = ("", 0)  # the entry's id, and how often it failed
        self._dropped_in_a_row = 0

    def check(self) -> None:
        self._resolve()

    def spec(self) -> dict[str, Any]:
        place = self.function if self.function is None or isinstance(self.function, str) else import_path(self.function)
        settings = {"function": place} | ({"name": self.name} if self.name else {})
        return {"use": "function", "with": settings}

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return [f"import {settings.get('function')}"]

    def open(self, run_dir: Path, state: Any) -> Any:
        self._resolved = self._resolve()
        state = state or {"token": secrets.token_hex(4)}
        self._delivered = DeliveredPositions(run_dir, state["token"], self._delivered)
        return state

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._delivered is not None
        failing: list[tuple[JournalEntry, BaseException]] = []
        for entry in entries:
            record = entry.record
            is_row = isinstance(record, Metrics) and record.axis in AXES and entry.file.name == MAIN
            if not is_row or self._delivered.has(entry):
                continue
            # Before the call: a row whose position cannot be saved would be delivered again after a crash.
            self._delivered.settle()
            error = self._call(record)
            if error is None:
                self._drop(failing)
                self._dropped_in_a_row = 0
                self._delivered.add(entry)
            else:
                failing.append((entry, error))
                self._raise_unless_skippable(failing)
        if failing:  # no later row succeeded
            if self._first_failure[1] < LAST_ATTEMPTS:
                raise RowError(*failing[0]) from failing[0][1]
            self._dropped_in_a_row += len(failing)
            self._drop(failing)
        return {"token": self._delivered.token}

    def close(self) -> None:
        SLOW_CALLS.close()
        if self._delivered is not None:
            self._delivered.close()

    def _resolve(self) -> LoggerFunction:
        if self.function is None:
            raise ConfigError(
                "The logger function cannot be rebuilt: it is a lambda, a local function or an object. Define it at "
                "the top of a module, or deliver its rows from the program that has it, by resuming the run."
            )
        if not isinstance(self.function, str):
            return self.function
        try:
            found: LoggerFunction = _require_logger(import_object(self.function))
        except UnknownNameError as error:
            raise ConfigError(
                f"function={self.function!r}: {error} Give a function at the top of a module that can be imported."
            ) from error
        return found

    def _call(self, row: Any) -> BaseException | None:
        assert self._resolved is not None
        name = self.name or getattr(self._resolved, "__name__", "function")
        SLOW_CALLS.begin(self, f"The logger function {name}", row.step, "Its later rows wait; training does not.")
        try:
            self._resolved(dict(row.values), row.step)
        except (Exception, SystemExit) as error:
            return error
        finally:
            SLOW_CALLS.end(self)
        return None

    def _raise_unless_skippable(self, failing: list[tuple[JournalEntry, BaseException]]) -> None:
        """Raise unless the rows after the failing ones are to be tried."""
        entry, error = failing[0]
        if len(failing) == 1:
            attempts = self._first_failure[1] + 1 if self._first_failure[0] == entry.id else 1
            self._first_failure = (entry.id, attempts)
        if self._first_failure[1] < ATTEMPTS:
            raise RowError(entry, error) from error
        if len(failing) + self._dropped_in_a_row >= MOST_FAILED_ROWS:
            raise RefusedError(f"The function raises for every row: {_last_line(error)}. Fix it.") from error

    def _drop(self, failing: list[tuple[JournalEntry, BaseException]]) -> None:
        assert self._delivered is not None
        for entry, error in failing:
            self.failed += 1
            logger.error("%s The row is dropped.", RowError(entry, error), exc_info=error)
            self._delivered.add(entry)
        failing.clear()


class RowError(HooklineError, RuntimeError):
    """A logger function raised."""

    def __init__(self, entry: JournalEntry, error: BaseException) -> None:
        step = getattr(entry.record, "step", None)
        super().__init__(f"The logger function failed at step {step}: {_last_line(error)}.")


def _require_logger(function: Any) -> Any:
    require_two_arguments(function, "a logger function", "(report_data, step)")
    if is_async(function):
        raise OptionError(
            f"function={function!r} is async, which sinks do not await: give a plain function to sinks=, or this one "
            "to callbacks=."
        )
    return function


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()
