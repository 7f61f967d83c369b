"""The record of a failure: the whole traceback, and the report of a crash in C code.

`failure_document` turns an exception into plain data: the text that Python prints (chained causes and contexts,
exception groups, notes), the type and message, and the innermost place in the user's own code with a few lines of its
source. It never raises: an exception whose ``__str__`` fails is a failure like any other.

`FaultFile` lets `faulthandler` write to a file of the run. If `faulthandler` was enabled before, it is left alone: it
writes to standard error, which is recorded as console output.
"""

import contextlib
import faulthandler
import fcntl
import linecache
import os
import site
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from hookline._record.console import FAULTS
from hookline._record.records import valid_text
from hookline._record.segment import install_handler

MAX_TRACEBACK = 128 << 10
"""How many characters of a traceback are kept: its beginning and its end."""
MAX_CONSOLE = 64 << 10
"""How many characters the last console lines have in all."""
_MAX_MESSAGE = 4 << 10
_AROUND = 3
"""How many lines of source are kept before and after the line."""
_MAX_SOURCE_LINE = 500


def failure_document(error: BaseException, console: list[str]) -> dict[str, Any]:
    """Return the record of a failure, as plain data.

    Args:
        console: The last console lines.
    """
    return {
        "type": _type_name(error),
        "message": message_of(error)[:_MAX_MESSAGE],
        "traceback": _shortened(_format(error)),
        "place": place_of(error),
        "console": _last_lines(console),
    }


def interrupt_document(error: BaseException) -> dict[str, Any]:
    """Return the record of a run that was interrupted or left by ``sys.exit``: its position, without a traceback."""
    return {"type": _type_name(error), "message": message_of(error)[:_MAX_MESSAGE], "place": place_of(error)}


def place_of(error: BaseException) -> dict[str, Any] | None:
    """Return the innermost place of an exception in the user's own code; the innermost of all where there is none."""
    frames = list(traceback.walk_tb(_innermost_traceback(error)))
    if not frames:
        return None
    own = [each for each in frames if not _is_library(each[0].f_code.co_filename)]
    frame, line = (own or frames)[-1]
    code = frame.f_code
    place: dict[str, Any] = {"file": code.co_filename, "line": line, "function": code.co_qualname}
    first = max(1, line - _AROUND)
    source = [linecache.getline(code.co_filename, number) for number in range(first, line + _AROUND + 1)]
    if any(source):
        place |= {"first": first, "source": [text.rstrip("\n")[:_MAX_SOURCE_LINE] for text in source]}
    return place


def _innermost_traceback(error: BaseException) -> TracebackType | None:
    # Of a group, the first exception in it says more than the place that raised the group.
    while isinstance(error, BaseExceptionGroup) and error.exceptions and error.exceptions[0].__traceback__ is not None:
        error = error.exceptions[0]
    return error.__traceback__


def _format(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception as problem:  # a __str__ or __repr__ that fails in an unusual way, or a recursion
        return f"{_type_name(error)} (its traceback cannot be formatted: {type(problem).__name__})"


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def message_of(error: BaseException) -> str:
    """Return the text of an error; an error whose text cannot be made has one as well."""
    try:
        return valid_text(str(error))
    except Exception:
        return "(its message cannot be shown)"


def _shortened(text: str) -> str:
    text = valid_text(text)
    if len(text) <= MAX_TRACEBACK:
        return text
    half, cut = MAX_TRACEBACK // 2, len(text) - MAX_TRACEBACK
    return f"{text[:half]}\n... ({cut:,} characters left out) ...\n{text[-half:]}"


def _last_lines(lines: list[str]) -> list[str]:
    kept: list[str] = []
    room = MAX_CONSOLE
    for line in reversed(lines):
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept[::-1]


def _is_library(file: str) -> bool:
    paths = sysconfig.get_paths()
    roots = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    roots += [*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parents[1])]
    return file.startswith("<frozen ") or any(file.startswith(root.rstrip(os.sep) + os.sep) for root in roots)


class FaultFile:
    """The file for the report of a crash in C code (a segmentation fault, an abort) while a run is open.

    Args:
        directory: The folder for the file.
        name: The writer's name.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._path = directory / f"{name}-{os.getpid()}{FAULTS}"
        self._process = os.getpid()
        self._file: TextIO | None = None

    def open(self) -> None:
        """Enable `faulthandler` for this file, unless it is enabled already."""
        if faulthandler.is_enabled():
            return
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            self._path.parent.mkdir(exist_ok=True)
            # Kept open: there is no way to open a file in the middle of a crash.
            self._file = self._path.open("w", encoding="utf-8")
            with contextlib.suppress(OSError):  # marks it as in use, where files can be locked
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            faulthandler.enable(self._file)
            # On top of it: journals survive the truncation of their files by a SIGBUS handler.
            install_handler()

    def close(self) -> None:
        """Disable it again, and remove the file if nothing happened."""
        if self._file is None or os.getpid() != self._process:
            return
        faulthandler.disable()
        install_handler()
        self._file.close()
        self._file = None
        with contextlib.suppress(OSError):
            if self._path.stat().st_size == 0:
                self._path.unlink()
                self._path.parent.rmdir()  # if it holds nothing else
