"""A logger function, called off the training thread with the rows of the record.

The function is called ``function(report_data, step)`` once for each row of training and of evaluation
of the run's main writer, in order, with plain Python numbers. After each call the place is written
down beside the cursor, so that a process that is killed repeats one row at most. While that cannot be
written down, because the disk is full, no further row is given: it lags like any other sink.

A row at which the function raises is tried three times. If the rows behind it then go well, it is
given up: logged and counted. If three rows in a row fail, the function itself is taken to be broken:
the sink refuses, the rows stay where they are, and are tried again now and then. Where no row comes
behind one that fails, it is given up after ten attempts.
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
"""How often a row is tried before those behind it are."""
LAST_ATTEMPTS = 10
"""How often a row is tried that has none behind it."""
ROWS_IN_A_ROW = 3
"""How many rows in a row make a function broken."""

LoggerFunction = Callable[[dict[str, Any], int], object]


@register_sink("function")
@dataclass(eq=False)
class FunctionSink(Sink):
    """Calls a function with each row of metrics.

    Args:
        function: Takes ``(report_data, step)``; or where it lies, as ``"package.module:name"``. Only one that
            can be imported from there can be delivered to later, by ``hookline runs sync``.
        name: What the sink is called in its run.
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
        self._called: LoggerFunction | None = None
        self._first: tuple[str, int] = ("", 0)
        self._given_up_in_a_row = 0

    def check(self) -> None:
        self._found()

    def spec(self) -> dict[str, Any]:
        place = self.function if self.function is None or isinstance(self.function, str) else import_path(self.function)
        settings = {"function": place} | ({"name": self.name} if self.name else {})
        return {"use": "function", "with": settings}

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return [f"import {settings.get('function')}"]

    def open(self, run_dir: Path, state: Any) -> Any:
        self._called = self._found()
        state = state or {"token": secrets.token_hex(4)}
        self._delivered = DeliveredPositions(run_dir, state["token"], self._delivered)
        return state

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._delivered is not None
        failing: list[tuple[JournalEntry, BaseException]] = []
        for entry in entries:
            if not _is_row(entry) or self._delivered.has(entry):
                continue
            self._delivered.settle()
            error = self._call(entry.record)
            if error is None:
                self._give_up(failing)
                self._given_up_in_a_row = 0
                self._delivered.add(entry)
            else:
                failing.append((entry, error))
                self._judge(failing)
        self._judge_last(failing)
        return {"token": self._delivered.token}

    def close(self) -> None:
        SLOW_CALLS.close()
        if self._delivered is not None:
            self._delivered.close()

    def _found(self) -> LoggerFunction:
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
        assert self._called is not None
        name = self.name or getattr(self._called, "__name__", "function")
        SLOW_CALLS.begin(self, f"The logger function {name}", row.step, "Its later rows wait; training does not.")
        try:
            self._called(dict(row.values), row.step)
        except (Exception, SystemExit) as error:
            return error
        finally:
            SLOW_CALLS.end(self)
        return None

    def _judge(self, failing: list[tuple[JournalEntry, BaseException]]) -> None:
        """Raise unless the rows behind those that fail are to be tried."""
        entry, error = failing[0]
        if len(failing) == 1:
            self._first = (entry.id, self._first[1] + 1 if self._first[0] == entry.id else 1)
        if len(failing) + self._given_up_in_a_row >= ROWS_IN_A_ROW and self._first[1] >= ATTEMPTS:
            raise RefusedError(f"The function raises for every row: {_last_line(error)}. Mend it.") from error
        if self._first[1] < ATTEMPTS:
            raise RowError(entry, error) from error

    def _judge_last(self, failing: list[tuple[JournalEntry, BaseException]]) -> None:
        """Decide on rows that fail and have none behind them."""
        if not failing:
            return
        if self._first[1] < LAST_ATTEMPTS:
            raise RowError(*failing[0]) from failing[0][1]
        self._given_up_in_a_row += len(failing)
        self._give_up(failing)

    def _give_up(self, failing: list[tuple[JournalEntry, BaseException]]) -> None:
        assert self._delivered is not None
        for entry, error in failing:
            self.failed += 1
            logger.error("%s The row is given up.", RowError(entry, error), exc_info=error)
            self._delivered.add(entry)
        failing.clear()


class RowError(HooklineError, RuntimeError):
    """A logger function raised."""

    def __init__(self, entry: JournalEntry, error: BaseException) -> None:
        step = getattr(entry.record, "step", None)
        super().__init__(f"The logger function failed at step {step}: {_last_line(error)}.")


def _is_row(entry: JournalEntry) -> bool:
    record = entry.record
    return isinstance(record, Metrics) and record.axis in AXES and entry.file.name == MAIN


def _require_logger(function: Any) -> Any:
    require_two_arguments(function, "a logger function", "(report_data, step)")
    if is_async(function):
        raise OptionError(
            f"function={function!r} is async, and nobody would await it: give a plain function to sinks=, or this one "
            "to callbacks=."
        )
    return function


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()
