"""How far a destination that cannot be cut back has been served: a terminal, a function."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hookline.core.errors import RefusedError
from hookline.record.delivery import SINKS_FOLDER
from hookline.record.reader import Cursor, Parcel
from hookline.sinks.appended_file import AppendedFile

_TOKEN = re.compile(r"[0-9a-f]{1,64}")
PASSED_BYTES = 1 << 20
"""How large a file of places gets before it is written anew."""


class Passed:
    """The places up to which parcels were served, written down after each.

    A line is appended for each place, and the file is written anew now and then. Where it cannot be
    written, what was served is known to this process only, until `settle` was possible: something may
    be served again after a crash.

    Args:
        run_dir: The run's directory.
        token: Part of the file's name, which the sink keeps in its state.
        before: What the same sink had before it was opened again: it may know more than the file.
    """

    def __init__(self, run_dir: Path, token: str, before: "Passed | None" = None) -> None:
        if not _TOKEN.fullmatch(token):  # a state from elsewhere must not choose which file is written
            raise RefusedError(f"token={token!r} in the sink's state names no file: it is made of hexadecimal digits.")
        self.token = token
        self._path = run_dir / SINKS_FOLDER / f"{token}.passed"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._cursor = Cursor(dict(self._lines()))
        if before is not None and before._path == self._path:
            self._add(before._cursor.places)
        self._file: AppendedFile | None = None
        self._begin()

    def has(self, parcel: Parcel) -> bool:
        """Whether a parcel was served."""
        offset = self._cursor.offset(parcel.file)
        return offset is None or parcel.end <= offset

    def note(self, *parcels: Parcel) -> None:
        """Write down that parcels were served."""
        for parcel in parcels:
            self._cursor.pass_by(parcel.file, parcel.end)
        last = {parcel.file.writer: self._cursor.places[parcel.file.writer] for parcel in parcels}
        try:
            if self._file is None or self._file.size > PASSED_BYTES:
                self._write_anew()
            else:
                self._file.append(_encoded(last))
        except OSError:
            self.close()  # so that all of it is written anew when that is possible

    def settle(self) -> None:
        """Have everything that was served written down.

        Raises:
            OSError: It cannot be, for now.
        """
        if self._file is None:
            self._write_anew()

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> None:
        with contextlib.suppress(OSError):
            self._write_anew()

    def _write_anew(self) -> None:
        self.close()
        aside = self._path.with_suffix(".partial")
        aside.unlink(missing_ok=True)
        with aside.open("xb") as file:  # never through a link that somebody put there
            file.write(_encoded(self._cursor.places))
        aside.replace(self._path)
        self._file = AppendedFile(self._path)

    def _add(self, places: Mapping[str, tuple[int, int]]) -> None:
        for writer, place in places.items():
            self._cursor.places[writer] = max(place, self._cursor.places.get(writer, place))

    def _lines(self) -> Iterator[tuple[str, tuple[int, int]]]:
        with contextlib.suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                with contextlib.suppress(ValueError):  # a line that a full disk cut off
                    writer, number, end = json.loads(line)
                    yield writer, (number, end)


def _encoded(places: Mapping[str, tuple[int, int]]) -> bytes:
    return "".join(f"{json.dumps([writer, *place])}\n" for writer, place in places.items()).encode()
