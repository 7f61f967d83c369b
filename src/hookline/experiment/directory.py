"""`ExperimentStore`: the files in an experiment's directory.

- ``experiment.json``: the plan, which must not change for the runs that exist.
- ``search.jsonl``: the trials of a search, in Optuna's format.
- ``ids.jsonl``: the ids of the experiment and its groups, appended a line at a time.
- ``ids.json`` in a run's directory: the ids that loggers gave the run, reused when the experiment restarts.
- ``result.json`` in a run's directory: the run's result, written after all subscribers were notified of its end.

Files are written atomically and a torn line is ignored, so a process that dies leaves each of them whole or absent.
Any process can read a store while the experiment runs. An id file that cannot be read or written costs the ids, never
the run.

`RecordedResult` is the same result as an event in the run's journal: it is known wherever the journal is copied, and
where the process that writes ``result.json`` was killed.
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
from hookline._record import files
from hookline._record.files import write_atomically
from hookline._record.records import clean, parse_nonfinite
from hookline._record.redaction import Redactor
from hookline._record.run_directory import EXPERIMENT_LOCK
from hookline._record.source_code import head_commit

logger = logging.getLogger("hookline")

PLAN = "experiment.json"
RESULT = "result.json"
IDS = "ids.jsonl"
RUN_IDS = "ids.json"
COMPARED = ("arms", "stages", "benchmarks", "search")
"""The parts of the plan that must stay the same for completed runs to still belong to the experiment."""
_redactor = Redactor()
"""Well-known secrets; each run's own ``redact=`` concerns its record."""


class ExperimentStore:
    """Reads and writes the files of an experiment.

    Args:
        directory: The experiment's own directory.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).resolve()
        self.facts: dict[str, Any] = {}
        self.ids: dict[str, Any] = {}
        """The ids of the experiment and its groups that were written."""
        self._is_open = False

    def __getstate__(self) -> dict[str, Any]:
        # Every run gets a pickled store: leave out the descriptions of all arms, which may be many.
        own = {name: value for name, value in self.facts.items() if name not in COMPARED}
        return {**vars(self), "facts": own, "_is_open": False}

    def __repr__(self) -> str:
        return f"ExperimentStore({str(self.directory)!r})"

    def check(self, name: str, plan: Mapping[str, Any]) -> None:
        """Check that the directory is new or belongs to this experiment.

        Args:
            plan: The descriptions of its arms, stages and benchmarks.

        Raises:
            ConfigError: It belongs to another experiment, or to this one with other settings, or is no directory.
        """
        if self.directory.exists() and not self.directory.is_dir():
            raise ConfigError(f"output_dir={str(self.directory)!r} is a file: give a directory.")
        there = self._read(self.directory / PLAN)
        if there is None:
            return
        if there.get("name") != name:
            raise ConfigError(
                f"output_dir={str(self.directory)!r} belongs to the experiment {there.get('name')!r}, not to {name!r}: "
                "give a separate directory."
            )
        now = json.loads(json.dumps(_redactor.settings(clean(dict(plan)))))
        changes = [change for part in COMPARED for change in _changes(there.get(part), now[part], part)]
        if changes:
            shown = "; ".join(changes[:3]) + (f"; and {len(changes) - 3} more" if len(changes) > 3 else "")
            raise ConfigError(
                f"output_dir={str(self.directory)!r} has runs of {name!r} with other settings: {shown}. "
                "Give another output_dir, or give arms with new settings other names; stages and benchmarks cannot be "
                "added to existing runs."
            )

    def open(self, name: str, plan: Mapping[str, Any]) -> None:
        """Lock the directory, creating it if necessary, and write the plan.

        Raises:
            ConfigError: It cannot be written, or another process has it open.
        """
        self.check(name, plan)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            is_held = files.acquire_lock(self.directory / EXPERIMENT_LOCK)
        except OSError as error:
            raise ConfigError(
                f"{self.directory} cannot be written: {error.strerror}. Give another output_dir."
            ) from error
        if not is_held:
            raise ConfigError(f"{self.directory}: this experiment is running already.")
        self._is_open = True
        try:
            there = self._read(self.directory / PLAN) or {
                "id": f"{time.strftime('%Y-%m-%d')}-{secrets.token_hex(4)}",
                "name": name,
                "started": time.time(),
                "git": {"commit": head_commit(Path.cwd())},
            }
            # Arms that were left out this time keep their runs, so the plan keeps their descriptions.
            self.facts = {**there, **plan, "arms": {**there.get("arms", {}), **plan["arms"]}}
            self._write(self.directory / PLAN, _redactor.settings(clean(self.facts)))
            self.ids = self._read_ids()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the directory, if this store locked it."""
        if self._is_open:
            self._is_open = False
            files.release_lock(self.directory / EXPERIMENT_LOCK)

    @property
    def id(self) -> str:
        """The experiment's unique id."""
        own: str = self.facts["id"]
        return own

    def write_ids(self, ids: Mapping[str, Any]) -> None:
        """Append the ids that are new or changed; after an error they still count as new."""
        new = {name: value for name, value in clean(dict(ids)).items() if self.ids.get(name) != value}
        if new:
            with (self.directory / IDS).open("a", encoding="utf-8") as file:
                file.write(f"\n{json.dumps(new)}")  # newline first: a killed process may have left a partial line
            self.ids |= new

    def _read_ids(self) -> dict[str, Any]:
        ids: dict[str, Any] = {}
        path = self.directory / IDS
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):
                ids |= json.loads(line or "{}")
        return ids

    def run_directory(self, key: str) -> Path:
        """The directory of a run."""
        return self.directory / key

    def result(self, key: str) -> RunResult | None:
        """The result of a run; None if it has not ended."""
        path = self.run_directory(key) / RESULT
        found = self._read(path)
        if found is None:
            return None
        try:
            return _run_result(found, self.run_directory(key))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{path} is not the result of a run ({error!r}). Remove it to execute the run again."
            ) from error

    def write_result(self, result: RunResult) -> None:
        """Write the result of a run."""
        directory = self.run_directory(result.run_key)
        directory.mkdir(exist_ok=True)
        fields = msgspec.to_builtins(
            result, enc_hook=lambda value: str(value) if isinstance(value, Path) else clean(value)
        )
        self._write(directory / RESULT, _redactor.values({**fields, "output_dir": None}))

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


def differences(then: Any, now: Any, path: str = "") -> list[str]:
    """List where two descriptions differ, with both values.

    >>> differences({"lr": 0.1, "n": 1}, {"lr": 0.2, "n": 1})
    ['lr was 0.1, now it is 0.2']
    """
    if isinstance(then, dict) and isinstance(now, dict):
        inner = (
            (then.get(key), now.get(key), f"{path}.{key}" if path else key) for key in dict.fromkeys([*then, *now])
        )
        return [difference for old, new, where in inner for difference in differences(old, new, where)]
    return [] if then == now else [f"{path or 'it'} was {then!r:.80}, now it is {now!r:.80}"]


def _changes(then: Any, now: Any, part: str) -> list[str]:
    """The changes of a part of the plan; added and removed arms do not count."""
    if then is None:
        return []
    if part == "arms":
        both = {name: (old, now[name]) for name, old in then.items() if name in now}
        return [f"arm {name!r}: {change}" for name, pair in both.items() for change in differences(*pair)]
    return differences(then, now, part)


def _run_result(found: Mapping[str, Any], directory: Path) -> RunResult:
    artifacts = found["artifacts"]
    if artifacts is not None:
        rows = tuple(
            ManifestRow(**{**row, "path": Path(row["path"]), "metrics": _finite(row["metrics"])})
            for row in artifacts["checkpoints"]
        )
        output_dir = None if artifacts["output_dir"] is None else Path(artifacts["output_dir"])
        metrics = _finite(artifacts["metrics"])
        artifacts = LoopArtifacts(**{**artifacts, "metrics": metrics, "checkpoints": rows, "output_dir": output_dir})
    evals = []
    for each in found["evals"]:
        intervals = {name: (low, high) for name, (low, high) in each["intervals"].items()}
        evals.append(EvalResult(**{**each, "intervals": intervals, "tags": tuple(each["tags"])}))
    values = {**found, "metrics": _finite(found["metrics"]), "returned": tuple(found.get("returned", ()))}
    return RunResult(**{**values, "evals": tuple(evals), "artifacts": artifacts, "output_dir": directory})


def _finite(value: Any) -> Any:
    """A value with NaN and infinities restored, which JSON holds as their names."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else parse_nonfinite(value)


def write_run_ids(directory: Path, ids: Mapping[str, Any]) -> None:
    """Write a run's own ids; those of the experiment and its groups are in `IDS`."""
    own = {name: id_ for name, id_ in ids.items() if name != "experiment_id" and not name.startswith("group:")}
    if own == (read_run_ids(directory) or {"run_id": directory.name}):  # the default id needs no file
        return
    try:
        directory.mkdir(exist_ok=True)
        write_atomically(directory / RUN_IDS, f"{json.dumps(clean(own))}\n".encode(), parents=True)
    except OSError as error:
        logger.error("The ids of %s cannot be written: %s. The experiment continues.", directory.name, error)  # noqa: TRY400


def read_run_ids(directory: Path) -> dict[str, Any]:
    """Read a run's own ids; empty if none were written."""
    try:
        found: dict[str, Any] = json.loads((directory / RUN_IDS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.error("%s cannot be read, and the run gets new ids: %s", directory / RUN_IDS, error)  # noqa: TRY400
        return {}
    return found


class RecordedResult(msgspec.Struct):
    """The fields of a `RunResult` that no other record of the journal holds."""

    metrics: dict[str, Any] = {}
    evals: list[EvalResult] = []
    failed_evals: dict[str, str] = {}
    returned: list[str] = []
    seconds: float = 0.0
    attempts: int = 1

    @classmethod
    def data_of(cls, result: RunResult) -> dict[str, Any]:
        """The data of the event that records a result."""
        data: dict[str, Any] = {name: getattr(result, name) for name in cls.__struct_fields__}
        return data | {"evals": [msgspec.to_builtins(each) for each in result.evals]}

    @classmethod
    def read(cls, data: Any) -> "RecordedResult":
        """Read the data of an event.

        Raises:
            msgspec.ValidationError: It is not the result of a run.
        """
        return msgspec.convert(_finite(data), cls)

    @property
    def status(self) -> str:
        """The status of a run that recorded this: its training had completed."""
        return "incomplete" if self.failed_evals else "completed"

    def result(self, key: str, status: str, directory: Path, **about: Any) -> RunResult:
        """The result of the run in a directory."""
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
