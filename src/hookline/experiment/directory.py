"""`ExperimentStore`: the directory of an experiment: whose it is, what is planned, what is complete.

``experiment.json`` says what was planned, ``ids.jsonl`` which ids the experiment and its groups have, a line each, and
``result.json`` in a run's directory how that run ended, once everybody has heard of it. Files are written aside and
renamed, and a torn line is no line, so a process that dies leaves either nothing or all of something. A store can be
read while the experiment runs, by any process.

Where two descriptions of an experiment differ: that of an earlier run of it and the present one.

The ids that loggers gave a run, in ``ids.json`` in its directory: an experiment that is started again has them.

A file that cannot be written or read costs the ids, never the run.

`RecordedResult`: what a run of an experiment came to, as its journal says it.

It is the last thing that a run records before it says how it ended. So it is known wherever the journal is: on a server
that received it, and where the process that wrote results down was killed. ``result.json`` beside the journal says the
same, and also what became of the run afterwards.
"""

import contextlib
import json
import logging
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hookline._engine.errors import ConfigError
from hookline._engine.state import EvalResult, LoopArtifacts, ManifestRow, RunResult
from hookline._record import files, run_directory
from hookline._record.files import write_atomically
from hookline._record.records import clean, parse_nonfinite


def differences(then: Any, now: Any, path: str = "") -> list[str]:
    """Where two descriptions differ, with both values.

    >>> differences({"lr": 0.1, "n": 1}, {"lr": 0.2, "n": 1})
    ['lr was 0.1, now it is 0.2']
    """
    if isinstance(then, dict) and isinstance(now, dict):
        inner = (
            (then.get(key), now.get(key), f"{path}.{key}" if path else key) for key in dict.fromkeys([*then, *now])
        )
        return [difference for old, new, where in inner for difference in differences(old, new, where)]
    return [] if then == now else [f"{path or 'it'} was {then!r:.80}, now it is {now!r:.80}"]


PLAN = "experiment.json"
RESULT = "result.json"
LOCK = "experiment.lock"
IDS = "ids.jsonl"
COMPARED = ("arms", "stages", "benchmarks")
"""What has to stay as it is for runs that are complete to belong to the experiment still."""


class ExperimentStore:
    """What lies in an experiment's directory.

    Args:
        directory: The experiment's own directory.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).resolve()
        self.facts: dict[str, Any] = {}
        self.ids: dict[str, Any] = {}
        """The ids of the experiment and of its groups, as far as they were kept."""
        self._holds = False

    def __getstate__(self) -> dict[str, Any]:
        """Other processes get all but the descriptions of all arms, of which there may be many."""
        own = {name: value for name, value in self.facts.items() if name not in COMPARED}
        return {**vars(self), "facts": own, "_holds": False}

    def __repr__(self) -> str:
        return f"ExperimentStore({str(self.directory)!r})"

    def check(self, name: str, plan: Mapping[str, Any]) -> None:
        """Find out whether the directory can be this experiment's.

        Args:
            plan: The descriptions of its arms, stages and benchmarks.

        Raises:
            ConfigError: It is another one's, or that of the same one with other settings; or it is no directory.
        """
        if self.directory.exists() and not self.directory.is_dir():
            raise ConfigError(f"output_dir={str(self.directory)!r} is a file: give a directory.")
        there = self._read(self.directory / PLAN)
        if there is None:
            return
        if there.get("name") != name:
            raise ConfigError(
                f"output_dir={str(self.directory)!r} belongs to the experiment {there.get('name')!r}, not to {name!r}: "
                "give a directory of its own."
            )
        now = json.loads(json.dumps(clean(dict(plan))))
        changes = [change for part in COMPARED for change in _changes(there.get(part), now[part], part)]
        if changes:
            shown = "; ".join(changes[:3]) + (f"; and {len(changes) - 3} more" if len(changes) > 3 else "")
            raise ConfigError(
                f"output_dir={str(self.directory)!r} has runs of {name!r} with other settings: {shown}. "
                "Give another output_dir, or arms with new settings other names; stages and benchmarks cannot be added "
                "to what is there."
            )

    def open(self, name: str, plan: Mapping[str, Any]) -> None:
        """Make the directory, or take up the one that is there.

        Raises:
            ConfigError: It cannot be written, or another process is at work in it.
        """
        self.check(name, plan)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            held = files.acquire_lock(self.directory / LOCK)
        except OSError as error:
            raise ConfigError(
                f"{self.directory} cannot be written: {error.strerror}. Give another output_dir."
            ) from error
        if not held:
            raise ConfigError(f"{self.directory}: this experiment is running already.")
        self._holds = True
        try:
            self._take_up(name, plan)
        except BaseException:
            self.close()
            raise

    def _take_up(self, name: str, plan: Mapping[str, Any]) -> None:
        there = self._read(self.directory / PLAN) or {
            "id": f"{time.strftime('%Y-%m-%d')}-{secrets.token_hex(4)}",
            "name": name,
            "started": time.time(),
            "git": run_directory.git_metadata(self.directory),
        }
        arms = {**there.get("arms", {}), **plan["arms"]}
        self.facts = {**there, **plan, "arms": arms}
        self._write(self.directory / PLAN, self.facts)
        self.ids = self._read_ids()

    def close(self) -> None:
        """Let others have it; what another store has open is left alone."""
        if self._holds:
            self._holds = False
            files.release_lock(self.directory / LOCK)

    @property
    def id(self) -> str:
        """What tells this experiment from all others."""
        own: str = self.facts["id"]
        return own

    def keep_ids(self, ids: Mapping[str, Any]) -> None:
        """Keep ids that are new, for when the experiment is taken up; those that could not be written are new still."""
        new = {name: value for name, value in clean(dict(ids)).items() if self.ids.get(name) != value}
        if new:
            with (self.directory / IDS).open("a", encoding="utf-8") as file:
                file.write(f"\n{json.dumps(new)}")  # first the end of a line that a dying process left open
            self.ids |= new

    def _read_ids(self) -> dict[str, Any]:
        ids: dict[str, Any] = {}
        path = self.directory / IDS
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):
                ids |= json.loads(line or "{}")
        return ids

    def run_directory(self, key: str) -> Path:
        """Where a run lies."""
        return self.directory / key

    def result(self, key: str) -> RunResult | None:
        """How a run ended; None where it did not end yet."""
        found = self._read(self.run_directory(key) / RESULT)
        if found is None:
            return None
        try:
            return _run_result(found, self.run_directory(key))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            path = self.run_directory(key) / RESULT
            raise ConfigError(
                f"{path} is not the result of a run ({error!r}). Remove it to make the run again."
            ) from error

    def keep_result(self, result: RunResult) -> None:
        """Write down how a run ended."""
        directory = self.run_directory(result.run_key)
        directory.mkdir(exist_ok=True)
        self._write(directory / RESULT, {**_fields(result), "output_dir": None})

    @staticmethod
    def _read(path: Path) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {error}. Remove it to begin again.") from error
        return found

    @staticmethod
    def _write(path: Path, values: Mapping[str, Any]) -> None:
        write_atomically(path, f"{json.dumps(clean(dict(values)), indent=1)}\n".encode(), parents=True)


def _changes(then: Any, now: Any, part: str) -> list[str]:
    """What is not as it was; arms that are new or left out are no change."""
    if then is None:
        return []
    if part == "arms":
        both = {name: (old, now[name]) for name, old in then.items() if name in now}
        return [f"arm {name!r}: {change}" for name, pair in both.items() for change in differences(*pair)]
    return differences(then, now, part)


def _fields(value: Any) -> Any:
    """Data classes as mappings, all the way down."""
    return msgspec.to_builtins(value, enc_hook=lambda other: str(other) if isinstance(other, Path) else clean(other))


def _run_result(found: Mapping[str, Any], directory: Path) -> RunResult:
    values = dict(found)
    values["metrics"] = _numbers(values["metrics"])
    values["returned"] = tuple(values.get("returned", ()))
    values["evals"] = tuple(_eval_result(each) for each in values["evals"])
    artifacts = values["artifacts"]
    values["artifacts"] = None if artifacts is None else _artifacts(artifacts)
    return RunResult(**{**values, "output_dir": directory})


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: parse_nonfinite(value) for name, value in metrics.items()}


def _eval_result(found: Mapping[str, Any]) -> EvalResult:
    intervals = {name: (low, high) for name, (low, high) in found["intervals"].items()}
    return EvalResult(**{**found, "intervals": intervals, "tags": tuple(found["tags"])})


def _artifacts(found: Mapping[str, Any]) -> LoopArtifacts:
    rows = tuple(
        ManifestRow(**{**row, "path": Path(row["path"]), "metrics": _numbers(row["metrics"])})
        for row in found["checkpoints"]
    )
    metrics = _numbers(found["metrics"])
    place = None if found["output_dir"] is None else Path(found["output_dir"])
    return LoopArtifacts(**{**found, "metrics": metrics, "checkpoints": rows, "output_dir": place})


logger = logging.getLogger("hookline")

FILE = "ids.json"


def keep_run_ids(directory: Path, ids: Mapping[str, Any]) -> None:
    """Write down a run's ids, without those of the experiment and of its groups, which are kept with the plan."""
    own = {name: id_ for name, id_ in ids.items() if name != "experiment_id" and not name.startswith("group:")}
    if own == (run_ids(directory) or {"run_id": directory.name}):  # every run is called so without a logger
        return
    try:
        directory.mkdir(exist_ok=True)
        write_atomically(directory / FILE, f"{json.dumps(clean(own))}\n".encode(), parents=True)
    except OSError as error:
        logger.error("The ids of %s cannot be written: %s. The experiment continues.", directory.name, error)  # noqa: TRY400


def run_ids(directory: Path) -> dict[str, Any]:
    """The ids of a run, as far as any were kept."""
    try:
        found: dict[str, Any] = json.loads((directory / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.error("%s cannot be read, and the run gets new ids: %s", directory / FILE, error)  # noqa: TRY400
        return {}
    return found


class RecordedResult(msgspec.Struct):
    """The fields of a `RunResult` that nothing else in the journal says."""

    metrics: dict[str, Any] = {}
    evals: list[EvalResult] = []
    failed_evals: dict[str, str] = {}
    returned: list[str] = []
    seconds: float = 0.0
    attempts: int = 1

    @classmethod
    def data_of(cls, result: RunResult) -> dict[str, Any]:
        """A result as the data of an event."""
        data: dict[str, Any] = {name: getattr(result, name) for name in cls.__struct_fields__}
        return data | {"evals": [msgspec.to_builtins(each) for each in result.evals]}

    @classmethod
    def read(cls, data: Any) -> "RecordedResult":
        """What the data of an event says.

        Raises:
            msgspec.ValidationError: It is not what a run records.
        """
        return msgspec.convert(_finite_back(data), cls)

    @property
    def status(self) -> str:
        """The status of a run that was trained and recorded this."""
        return "incomplete" if self.failed_evals else "completed"

    def result(self, key: str, status: str, directory: Path, **about: Any) -> RunResult:
        """The result of the run that lies in a directory."""
        evals = tuple(EvalResult(e.name, e.metrics, e.breakdowns, tuple(e.tags), e.intervals) for e in self.evals)
        return RunResult(
            run_key=key,
            status=status,
            metrics=self.metrics,
            evals=evals,
            seconds=self.seconds,
            failed_evals=self.failed_evals,
            attempts=self.attempts,
            returned=tuple(self.returned),
            output_dir=directory,
            **about,
        )


def _finite_back(value: Any) -> Any:
    """A value with the floats that JSON has no number for, wherever they stand."""
    if isinstance(value, dict):
        return {name: _finite_back(item) for name, item in value.items()}
    return [_finite_back(item) for item in value] if isinstance(value, list) else parse_nonfinite(value)
