"""Backends of the drop-in's runs: a run of hookline, or the files of one that another process owns.

`RecordedRun` is a `PassiveRun`: directory, journal, console, artifacts, sinks and control are those of every run. It
takes no signals, because a script that logs to wandb expects Ctrl-C to interrupt it. A stop from the page or the
command line interrupts the main thread at the next complete row, as W&B's own stop button does.

wandb's id of a run is the name of its directory. Where a run with this id exists and is not resumed, the new one's
directory gets a number; the earlier run is unchanged.
"""

import _thread
import contextlib
import glob
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from hookline._record import run_directory
from hookline._record.files import write_atomically
from hookline._record.recorder import Recorder
from hookline._record.records import HYPERPARAMETERS, SUMMARY, clean
from hookline._record.run_directory import METADATA, read_metadata
from hookline._record.settings import plain_settings
from hookline.compat.wandb.errors import UsageError
from hookline.integrations.passive_run import PassiveRun

RESUME_FILE = ".wandb-resume.json"
"""The file below the root that ``resume="auto"`` reads: the last run that did not finish."""
MEMBERSHIP = "wandb"
"""The part of ``run.json`` that only wandb's API reads: the id, the entity, the sweep."""
_MOST_NUMBERS = 100_000


class RecordedRun(PassiveRun):
    """A run of hookline that a run of the drop-in writes.

    Args:
        name, options: As for every session.
        at_exit: Called when the program ends and the run has not been finished.
        stop: Called when a person stops the run; interrupts the main thread by default.
    """

    control_refusal: ClassVar[str | None] = None

    def __init__(
        self, name: str, *, at_exit: Callable[[], None], stop: Callable[[], None] | None = None, **options: Any
    ) -> None:
        super().__init__(name, summary=False, **options)
        self._at_exit, self._stop = at_exit, stop or _thread.interrupt_main
        self._has_callbacks = False

    def command_refusal(self, name: str) -> str | None:
        """Return why a command is refused: the script saves its own checkpoints and validates by itself."""
        return "A script that logs to wandb does that by itself." if name in ("checkpoint", "validate") else None

    def row_completed(self, step: int, row: Mapping[str, Any]) -> None:
        """Count a complete row, let callbacks know, and apply commands from outside."""
        self.step = step + 1
        if self._has_callbacks:
            self._notify_log(step, dict(row))
            self.commit_held_back()
        if self.command_flag[0]:
            self.control.receive()
            if self.stop_requested:
                self._stop()

    def begin(self, **options: Any) -> None:
        """Begin to record."""
        super().begin(**options)
        self._has_callbacks = bool(len(self.callbacks))

    def set_fact(self, name: str, value: Any) -> None:
        """Change a fact in ``run.json``: its name, its tags, ..."""
        if self.output_dir is not None:
            redacted = self.recording.redactor.settings({name: value})[name]
            run_directory.update(self.output_dir, name, redacted)

    def _end_with_the_program(self) -> None:
        self._at_exit()


class Backend:
    """The record of one run.

    Attributes:
        directory: The run's directory.
        recorder: Writes to its journal.
    """

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        self.directory, self.recorder = directory, recorder

    @property
    def row_completed(self) -> Callable[[int, Mapping[str, Any]], None]:
        """Called after each complete row, with its step."""
        return lambda step, row: None

    def update_config(self, changed: Mapping[str, Any]) -> None:
        """Record settings that changed."""
        self.recorder.event(HYPERPARAMETERS, values={key: plain_settings(value) for key, value in changed.items()})

    def update_summary(self, changed: Mapping[str, Any], removed: Iterable[str]) -> None:
        """Record results that the program set."""
        self.recorder.event(SUMMARY, values=clean(dict(changed)), removed=list(removed))

    def set_fact(self, name: str, value: Any) -> None:
        """Change a fact of the run; does nothing in other processes."""

    def request_stop(self, reason: str) -> None:
        """Record that the run is stopped, when it ends; only its own process does."""

    def close(self, error: BaseException | None, statistics: Mapping[str, Any]) -> None:
        """End the record.

        Args:
            error: Why the run failed, if it did.
            statistics: The values requested by `define_metric`, for the run's results.
        """
        self.recorder.close()


class OwnBackend(Backend):
    """The record of a run that this process began."""

    def __init__(self, run: RecordedRun) -> None:
        assert run.output_dir is not None
        assert run.recorder is not None
        super().__init__(run.output_dir, run.recorder)
        self.run = run

    @property
    def row_completed(self) -> Callable[[int, Mapping[str, Any]], None]:
        return self.run.row_completed

    def update_config(self, changed: Mapping[str, Any]) -> None:
        self.run.update_config(dict(changed))

    def update_summary(self, changed: Mapping[str, Any], removed: Iterable[str]) -> None:
        self.run.summary.update(dict(changed))
        for name in removed:
            if name in self.run.summary:
                del self.run.summary[name]
            else:
                super().update_summary({}, [name])

    def set_fact(self, name: str, value: Any) -> None:
        if name == "name":
            self.run.name = str(value)
        self.run.set_fact(name, value)

    def request_stop(self, reason: str) -> None:
        self.run.request_stop(reason)

    def close(self, error: BaseException | None, statistics: Mapping[str, Any]) -> None:
        if isinstance(error, KeyboardInterrupt) and self.run.stop_requested:
            error = None  # by a person, whose reason is recorded
        if statistics:
            dict.update(self.run.summary, statistics)
            self.run.set_fact("summary", dict(self.run.summary))
        self.run.finish(error)


def run_directories(home: Path, run_id: str) -> list[Path]:
    """Return the directories of the runs with an id in a project, the latest first."""
    found = []
    for path in home.glob(f"{glob.escape(run_id)}*/{METADATA}"):
        facts = read_metadata(path.parent)
        if facts and id_of(facts, path.parent) == run_id:
            found.append((float(facts.get("started") or 0.0), path.parent))
    return [directory for _, directory in sorted(found, reverse=True)]


def id_of(facts: Mapping[str, Any], directory: Path) -> str:
    """Return wandb's id of a run."""
    own = facts.get(MEMBERSHIP)
    return str(own["id"]) if isinstance(own, dict) and own.get("id") else directory.name


def claim_directory(home: Path, run_id: str) -> Path:
    """Create a directory for a new run with an id; appends a number if the id is in use.

    Raises:
        UsageError: It cannot be created.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        for number in range(1, _MOST_NUMBERS):
            directory = home / (run_id if number == 1 else f"{run_id}-{number}")
            with contextlib.suppress(FileExistsError):
                directory.mkdir()
                return directory
    except OSError as error:
        raise UsageError(f"{home} cannot be written: {error.strerror}. Give another dir= or WANDB_DIR.") from error
    raise UsageError(f"{home} has {_MOST_NUMBERS:,} runs with the id {run_id!r}. Give another id.")


class LastRun(NamedTuple):
    """The run that ``resume="auto"`` continues."""

    project: str
    run_id: str


def read_last_run(root: Path) -> LastRun | None:
    """Return the last run below a root that began with ``resume="auto"`` and did not finish."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads((root / RESUME_FILE).read_text(encoding="utf-8"))
        return LastRun(str(known["project"]), str(known["run_id"]))
    return None


def write_last_run(root: Path, last: LastRun | None) -> None:
    """Note, or forget, the run that ``resume="auto"`` continues."""
    path = root / RESUME_FILE
    if last is None:
        path.unlink(missing_ok=True)
    else:
        root.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(last._asdict()).encode())


@contextlib.contextmanager
def errors_as_usage() -> Iterator[None]:
    """Raise hookline's errors about runs and options as wandb's `UsageError`."""
    from hookline._engine.errors import ConfigError, OptionError, UnknownNameError

    try:
        yield
    except (ConfigError, OptionError, UnknownNameError) as error:
        raise UsageError(str(error)) from error
