"""`ExperimentStore`: the directory of an experiment: whose it is, what is planned, what is complete.

``experiment.json`` says what was planned, ``ids.jsonl`` which ids the experiment and its groups have, a line each, and
``result.json`` in a run's directory how that run ended, once everybody has heard of it. Files are written aside and
renamed, and a torn line is no line, so a process that dies leaves either nothing or all of something. A store can be
read while the experiment runs, by any process.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hookline.core.errors import ConfigError
from hookline.core.state import EvalResult, LoopArtifacts, ManifestRow, RunResult
from hookline.experiment.description import differences
from hookline.experiment.results.atomic_file import write_atomically
from hookline.record import lock, run_directory
from hookline.record.records import clean, finite_back

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
            held = lock.hold(self.directory / LOCK)
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
            "git": run_directory.git_facts(self.directory),
        }
        arms = {**there.get("arms", {}), **plan["arms"]}
        self.facts = {**there, **plan, "arms": arms}
        self._write(self.directory / PLAN, self.facts)
        self.ids = self._read_ids()

    def close(self) -> None:
        """Let others have it; what another store has open is left alone."""
        if self._holds:
            self._holds = False
            lock.let_go(self.directory / LOCK)

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
        write_atomically(path, f"{json.dumps(clean(dict(values)), indent=1)}\n".encode())


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
    return {name: finite_back(value) for name, value in metrics.items()}


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
