"""Writes an imported run aside, and puts it among the others when it is complete.

Until then it lies in a hidden directory below the root, which is locked; what a killed import left there is
taken away by the next one. Times are those of the source.
"""

import contextlib
import json
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hookline._engine.errors import ConfigError
from hookline._record import run_directory
from hookline._record.reader import MAIN
from hookline._record.recorder import Recorder, cleaned
from hookline._record.records import Sample, clean, encode
from hookline.importers.source import Item, Occurrence, Restart, Row, SampleRow, StatusRow

_ASIDE = ".import-"
_TEXT_BYTES = 64 << 20
"""Texts are kept as they are, unless something is badly wrong with them."""


class RunWriter:
    """A run in the making.

    Args:
        root: Where runs are recorded.
        project: The project.
        facts: What is known about the run beforehand.
        says_finished: Whether to say that the run began and finished; otherwise its source says how it went.
    """

    def __init__(self, root: Path, project: str, facts: Mapping[str, Any], *, says_finished: bool = True) -> None:
        self._root = root.resolve()
        self._home = self._root / project
        self._aside = self._root / f"{_ASIDE}{secrets.token_hex(4)}"
        self._made_root = not self._root.exists()
        self._time = 0.0
        self._first: float | None = None
        self._step = 0
        self._says_finished = says_finished
        self._others: dict[str, Recorder] = {}
        self.rows = self.samples = self.events = 0
        unknown = {"git": {"commit": None, "changed": False}, "packages": {}}  # those of here are not those of then
        try:
            _tidy(self._root)
            self._aside.mkdir(parents=True)
            run_directory.hold(self._aside)
            self._directory = run_directory.create(self._aside, project, unknown | dict(facts))
            self._recorder = self._record(MAIN)
        except BaseException:
            self._discard()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self._discard()

    def write(self, item: Item) -> None:
        """Record one thing.

        Raises:
            ConfigError: There is no room for it.
        """
        self._time = item.time
        if self._first is None:
            self._first = item.time
            if self._says_finished:
                self._recorder.status("running", step=0)
        self._first = min(self._first, item.time)
        match item:
            case Row():
                self._recorder_of(item.writer).metrics(item.values, item.step, item.axis)
                self.rows += 1
                self._step = max(self._step, item.step)
            case SampleRow():
                self._write_sample(item)
                self.samples += 1
                self._step = max(self._step, item.step)
            case Occurrence():
                self._recorder_of(item.writer).event(item.name, step=item.step, **item.data)
                self.events += 1
            case StatusRow():
                self._recorder_of(item.writer).status(item.status, item.message, step=item.step, **item.data)
                self.events += 1
            case Restart():
                self._begin_again(item)
        self._check_room()

    def finish(self, facts: Mapping[str, Any]) -> Path:
        """Say that the run is over, and put it in its place."""
        if self._says_finished:
            self._recorder.status("finished", "imported", step=self._step)
        self._close()
        self._check_room()
        known = json.loads((self._directory / run_directory.FACTS).read_text(encoding="utf-8"))
        place = self._reserve(known["id"])
        told = known | {"id": place.name, "started": self._first} | dict(facts)
        try:
            content = json.dumps(clean(told), indent=2) + "\n"
            (self._directory / run_directory.FACTS).write_text(content, encoding="utf-8")
            self._directory.rename(place)
        except BaseException:
            place.rmdir()
            raise
        return place

    def _reserve(self, made: str) -> Path:
        """An empty directory with an id that nobody has; the number counts the runs of the day."""
        self._home.mkdir(parents=True, exist_ok=True)
        words, _, _ = made.rpartition("-")
        day = made[: len("2026-11-15")]
        number = 1 + sum(1 for _ in self._home.glob(f"{day}-*"))
        while True:
            place = self._home / f"{words}-{number}"
            try:
                place.mkdir()
            except FileExistsError:
                number += 1
            else:
                return place

    def _record(self, name: str) -> Recorder:
        return Recorder(self._directory, name=name, text_bytes=_TEXT_BYTES, clock=lambda: self._time)

    def _recorder_of(self, writer: str) -> Recorder:
        if writer == MAIN:
            return self._recorder
        if writer not in self._others:
            self._others[writer] = self._record(writer)
        return self._others[writer]

    def _write_sample(self, item: SampleRow) -> None:
        recorder = self._recorder_of(item.writer)
        if item.truncated is None:
            recorder.samples([item.fields], item.step, item.axis)
            return
        # what was cut before is told with its length then, which a recorder finds out for itself
        sample = Sample(time=item.time, step=item.step, axis=item.axis, truncated=item.truncated, **item.fields)
        recorder.journal.append(encode(cleaned(sample)))

    def _close(self) -> None:
        for recorder in (self._recorder, *self._others.values()):
            recorder.close()

    def _check_room(self) -> None:
        others = self._others.values()
        if self._recorder.journal.lost or (others and any(other.journal.lost for other in others)):
            raise ConfigError(f"{self._home} has no room for the run: make some, or give another root.")

    def _begin_again(self, restart: Restart) -> None:
        """Begin a new session, which makes what earlier ones recorded past a step obsolete."""
        self._recorder.close()
        self._recorder = self._record(MAIN)
        self._recorder.resume(**{restart.axis: restart.step - 1})

    def _discard(self) -> None:
        run_directory.let_go(self._aside)
        shutil.rmtree(self._aside, ignore_errors=True)
        if self._made_root:
            with contextlib.suppress(OSError):  # there is something in it
                self._root.rmdir()


def _tidy(root: Path) -> None:
    """Take away what imports left that were killed."""
    for aside in root.glob(f"{_ASIDE}*"):
        if (aside / run_directory.LOCK).exists() and not run_directory.is_alive(aside):
            shutil.rmtree(aside, ignore_errors=True)
