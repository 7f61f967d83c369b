"""Maps TensorBoard's directories to runs, and records their values.

TensorBoard shows each directory as a run, but programs use several for one training: ``exp/train`` and ``exp/val``, or
those that ``add_scalars`` makes. Here they become one run with one configuration and one console, as when the files are
imported: a directory called ``train``, ``val`` or similar belongs to its parent, and one below a known directory to
that. The names of its values begin with its own: ``val/loss``. A run is named after its directory, relative to the
root.
"""

import os
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Unpack

from hookline._engine.defaults import ROOT, resolved
from hookline._engine.metrics import SPLIT_WORDS, MetricsRow
from hookline._record import run_directory
from hookline._record.media import Media
from hookline.integrations.passive_run import PassiveRun
from hookline.loops.checkpointing import Checkpointing
from hookline.loops.options import RunOptions
from hookline.loops.session import Session

_MOST_ENDED = 100
"""How many ended runs are remembered, so that a writer of the same directory can continue one."""


class Homes:
    """The directories of runs, each with all directories that belong to it."""

    def __init__(self) -> None:
        self._known: list[Path] = []

    def place(self, directory: str | Path, root: str | Path | None) -> tuple[Path, str]:
        """Return the directory of the run that a directory belongs to, and its own path below that.

        Args:
            root: The root of hookline's runs, which is not a run itself.
        """
        path, above = _absolute(directory), _above(root)
        home = min((each for each in self._known if path.is_relative_to(each)), key=_depth, default=None)
        if home is None:
            home = path
            while home.name.lower() in SPLIT_WORDS and home.parent not in above:
                home = home.parent
            self._known.append(home)
        # add_hparams() names directories after the time, which is left out of the name.
        return home, "/".join(part for part in path.relative_to(home).parts if not part.replace(".", "", 1).isdigit())

    def folder_in_one_run(self, directory: str | Path, root: str | Path | None) -> str:
        """Return a directory's path where one run records all: below the first run's, or with the run's name."""
        home, folder = self.place(directory, root)
        return folder if home == self._known[0] else "/".join(filter(None, (home.name, folder)))


def _absolute(path: str | Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - without following links, as in what the program prints


def _above(root: str | Path | None) -> list[Path]:
    """The directories that contain runs and are not runs themselves."""
    return [*([] if root is None else [_absolute(root)]), Path.cwd()]


def _depth(path: Path) -> int:
    return len(path.parts)


def _name_of(home: Path, root: str | Path | None) -> str:
    """The name of the run of a directory."""
    for above in _above(root):
        if home != above and home.is_relative_to(above):
            return home.relative_to(above).as_posix()
    return home.name or "run"


class WriterRun(PassiveRun):
    """A run that several writers record into: it starts with the first one opened and ends with the last one closed.

    A program that ends without closing its writers has finished the run, since TensorBoard does not ask for it; one
    that ends with an error has failed it.
    """

    def __init__(self, name: str, *, callbacks: Iterable[Any] = (), **options: Unpack[RunOptions]) -> None:
        super().__init__(name, callbacks=callbacks, **options)
        self.writers = 0
        self._continued = self.checkpointing = Continued(self)

    def open(self, purge_step: int | None = None) -> None:
        """Begin the run, or continue it after it has ended.

        Args:
            purge_step: Drop what was recorded from this step on, in the latest run of this name.
        """
        if not self.is_running:
            step, metrics, self._continued.purge_step = self.step, self.metrics, purge_step
            self.resume_from = self.output_dir or (None if purge_step is None else self._latest())
            try:
                self.begin()
            finally:
                self.resume_from = None
            self.metrics = metrics
            self.train_start(step=step)
        elif purge_step is not None and self.recorder is not None:
            self.recorder.resume(purge_step - 1)

    def release(self, error: BaseException | None = None) -> None:
        """Leave the run, which ends with its last writer, or with an error."""
        self.writers -= 1
        if not self.is_running or (self.writers > 0 and error is None):
            return
        if error is None:
            self.train_end()
        else:
            self.failed(error)

    def add(self, values: dict[str, Any], step: int, axis: str = "train", time: float | None = None) -> None:
        """Record values at a step, now or as of a time in seconds since 1970."""
        if self._closed:  # another writer of the run has failed
            self.open()
        recorder = self.recorder
        if recorder is None:
            self.write_row(step, MetricsRow(values))
        elif time is None:
            recorder.metrics(values, step, axis, has_texts=False)
            dict.update(self.metrics, values)
        else:
            recorder.metrics_at(time, values, step, axis)
            dict.update(self.metrics, values)
        if step > self.step:
            self.step = step
        # Moments fire on the run's thread; a writer may be used on any.
        if threading.get_ident() == self._thread and not self._committing:
            self._notify_log(step, values)

    def _latest(self) -> Path | None:
        if self.root is None:
            return None
        named = run_directory.runs_named(self.root, self.project, self.name)
        return next((each for each in named if not run_directory.is_alive(each)), None)

    def _end_with_the_program(self) -> None:
        error = getattr(sys, "last_value", None)  # the uncaught exception, if there was one
        self.finish(error if isinstance(error, BaseException) else None)


class Continued(Checkpointing):
    """Continues runs without checkpoints: only rows that are purged explicitly are dropped."""

    purge_step: int | None = None

    def resume(self, saved: Path | None) -> None:
        recorder = self._session.recorder
        if recorder is not None and self.purge_step is not None:
            recorder.resume(self.purge_step - 1)


def record_row(run: Session, values: dict[str, Any], step: int, axis: str = "train", time: float | None = None) -> None:
    """Record values in any run, beside its own rows. Callbacks get `on_log` only from runs of writers.

    Args:
        time: Seconds since 1970; now by default.
    """
    if isinstance(run, WriterRun):
        run.add(values, step, axis, time)
    elif run.recorder is None:
        run.write_row(step, MetricsRow(values))
    elif run.has_ended:
        return
    elif time is None:
        run.recorder.metrics(values, step, axis, has_texts=False)
    else:
        run.recorder.metrics_at(time, values, step, axis)


def record_media(
    run: Session, name: str, media: Sequence[Media], step: int, axis: str = "train", time: float | None = None
) -> None:
    """Record media in any run; they are encoded and written off this thread."""
    if run.recorder is not None and not run.has_ended:
        run.recorder.media({name: [each.capture(name) for each in media]}, step, axis, time=time)


class OpenRuns:
    """The runs that this process's writers record into.

    Attributes:
        synced: Runs that record all events, the latest last; see `hookline.compat.tensorboard.sync`.
    """

    def __init__(self) -> None:
        self.synced: list[tuple[Session, Homes]] = []
        self._runs: dict[Path, WriterRun] = {}
        self._homes = Homes()
        self._lock = threading.RLock()

    def open(self, directory: str | Path, purge_step: int | None, options: dict[str, Any]) -> tuple[Session, str, bool]:
        """Open the run of a directory.

        Returns:
            The run, the directory's path below that of its run, and whether the run is a new one.
        """
        root = resolved(options.get("root", ROOT))
        with self._lock:
            if self.synced:
                run, homes = self.synced[-1]
                return run, homes.folder_in_one_run(directory, run.root), False
            home, folder = self._homes.place(directory, root)
            own = self._runs.get(home)
            is_new = own is None
            if own is None:
                own = WriterRun(options.pop("name", None) or _name_of(home, root), **options)
            own.open(purge_step)
            own.writers += 1
            self._runs[home] = own  # only now, because the options may have been refused
            self._forget_ended()
            return own, folder, is_new

    def _forget_ended(self) -> None:
        ended = [home for home, run in self._runs.items() if not run.is_running]
        for home in ended[: len(ended) - _MOST_ENDED]:
            del self._runs[home]


OPEN_RUNS = OpenRuns()
"""Shared by all writers of the process: those of one training have to find the same run."""
