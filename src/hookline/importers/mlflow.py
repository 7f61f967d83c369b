"""Reads MLflow's stores: a directory ``mlruns`` (``<experiment>/<run>/meta.yaml``) and a database of SQLite.

Metrics keep their history, steps and times. Params become the configuration, tags facts of the run. Artifacts become
media: images, sounds, videos, HTML and Markdown by their suffix, ``log_table``'s JSON as tables, figures of Plotly,
and other files as they are.

MLflow itself is not needed, and does not get to see the store: its client would upgrade the database. A database is
opened read-only. The place of a run's artifacts comes from the store, which is not trusted: only a directory inside the
source's is read.
"""

import contextlib
import hashlib
import math
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import yaml

from hookline._engine.metrics import axis_of
from hookline._record.media import Figure, Media
from hookline._record.media_table import Table
from hookline.importers.media import MAX_PARSED_BYTES, SourceFile, files_inside, open_inside, parse_json
from hookline.importers.sources import Item, MediaRow, ReadReport, Row, Source, StatusRow

META = "meta.yaml"
DATABASE_SUFFIXES = frozenset({".db", ".sqlite", ".sqlite3"})
_MAX_META_BYTES = 1 << 20
_MAX_VALUE_BYTES = 1 << 20
RUN_ID = re.compile(r"[0-9a-f]{32}")
_STATUSES = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "stopped", "RUNNING": "failed"}
"""A run without an end counts as killed: nothing more comes here."""
_STATUS_NUMBERS = ("", "RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")
_QUERY = "SELECT run_uuid, name, status, start_time, end_time, artifact_uri, lifecycle_stage FROM runs ORDER BY rowid"


class RunFacts(NamedTuple):
    """A run as its store describes it; times are in milliseconds."""

    id: str
    name: str
    status: str
    start: int
    end: int
    artifacts: Path | None


class _MlflowRun(Source):
    """The common base for both stores."""

    format = "mlflow"
    has_times = True
    has_statuses = True
    facts: RunFacts

    def items(self, report: ReadReport) -> Iterator[Item]:
        report.facts["run_id"] = self.facts.id
        start, end = self.facts.start / 1000, self.facts.end / 1000
        last = step = 0
        yield StatusRow(0, start, "running", "", {})
        for row in self._rows(report):
            step, last = max(step, row.step), max(last, round(row.time * 1000))
            yield row
        ended = end or last / 1000 or start
        yield from self._media(step, ended, report)
        status = _STATUSES.get(self.facts.status, "finished")
        yield StatusRow(step, ended, status, "imported", {"mlflow_status": self.facts.status})

    def _rows(self, report: ReadReport) -> Iterator[Row]:
        raise NotImplementedError

    def _media(self, step: int, time: float, report: ReadReport) -> Iterator[MediaRow]:
        home = self.facts.artifacts
        if home is None:
            return
        for path in files_inside(home):
            name = path.relative_to(home).as_posix()
            with contextlib.suppress(OSError):
                report.advance(path.stat().st_size)
            # log_image(image, key=, step=) writes images/<key>%step%<step>%timestamp%<time>%<id>.png
            parts = re.split("[%+]", name)
            at, key = step, name
            if len(parts) > 3 and parts[1] == "step" and parts[2].isdigit():
                if path.stem.endswith("compressed"):  # the same image, smaller, for lists
                    continue
                at, key = int(parts[2]), parts[0].removeprefix("images/").replace("#", "/")
            yield MediaRow(at, time, key, _media_of(home, name), axis_of(key))


class MlflowDirectory(_MlflowRun):
    """A run in a directory of MLflow's file store.

    Args:
        meta: Its ``meta.yaml``.
    """

    def __init__(self, meta: Path) -> None:
        self.home = meta.parent
        super().__init__(list(files_inside(self.home)))
        self.facts = _read_meta(meta)

    def _rows(self, report: ReadReport) -> Iterator[Row]:
        for folder, target in (("params", report.config), ("tags", report.facts.setdefault("tags", {}))):
            for path in files_inside(self.home / folder):
                name = path.relative_to(self.home / folder).as_posix()
                with open_inside(self.home, f"{folder}/{name}", _MAX_VALUE_BYTES) as file:
                    target[name] = file.read().decode(errors="replace")
        rows: dict[tuple[int, int], dict[str, float]] = {}
        for path in files_inside(self.home / "metrics"):
            name = path.relative_to(self.home / "metrics").as_posix()
            with open_inside(self.home, f"metrics/{name}") as file:
                for number, line in enumerate(file, 1):
                    try:
                        time, value, step = _metric_line(line)
                    except ValueError as error:
                        report.skip(f"{path}, line {number}", error)
                        continue
                    rows.setdefault((time, step), {})[name] = value
        yield from _split_rows(rows)


class MlflowDatabase(_MlflowRun):
    """A run in a database of SQLite.

    Args:
        file: The database.
        facts: The run.
    """

    def __init__(self, file: Path, facts: RunFacts) -> None:
        artifacts = [] if facts.artifacts is None else list(files_inside(facts.artifacts))
        super().__init__([file, *artifacts], shared=[file])
        self.facts = facts

    @property
    def digest(self) -> str:
        """Identifies what the database has of this run: other runs in it may come and change."""
        whole = hashlib.blake2b(repr(self.facts[:5]).encode(), digest_size=16)
        with _opened(self.files[0]) as database:
            for table in ("metrics", "params", "tags"):
                columns = "key, value" + (", timestamp, step, is_nan" if table == "metrics" else "")
                query = f"SELECT {columns} FROM {table} WHERE run_uuid = ? ORDER BY {columns}"  # noqa: S608
                for row in database.execute(query, [self.facts.id]):
                    whole.update(repr(row).encode("utf-8", "replace"))
        return whole.hexdigest()

    def _rows(self, report: ReadReport) -> Iterator[Row]:
        rows: dict[tuple[int, int], dict[str, float]] = {}
        with _opened(self.files[0]) as database:
            for table, target in (("params", report.config), ("tags", report.facts.setdefault("tags", {}))):
                query = f"SELECT key, value FROM {table} WHERE run_uuid = ?"  # noqa: S608
                target.update({str(key): value for key, value in database.execute(query, [self.facts.id])})
            query = "SELECT key, value, timestamp, step, is_nan FROM metrics WHERE run_uuid = ?"
            for key, value, time, step, is_nan in database.execute(query, [self.facts.id]):
                try:
                    number = math.nan if is_nan else _infinite(float(value))
                    rows.setdefault((int(time), int(step)), {})[str(key)] = number
                except (TypeError, ValueError) as error:
                    report.skip(f"{self.files[0]}, metric {key!r:.80}", error)
        yield from _split_rows(rows)


def is_run_directory(directory: Path) -> bool:
    """Check whether a directory is a run of MLflow's file store."""
    meta = directory / META
    if not meta.is_file() or meta.is_symlink() or not RUN_ID.fullmatch(directory.name):
        return False
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
        return bool(_read_meta(meta).id)
    return False


def is_database(file: Path) -> bool:
    """Check whether a file is a database of MLflow."""
    if file.suffix not in DATABASE_SUFFIXES:
        return False
    with contextlib.suppress(sqlite3.Error, OSError), _opened(file) as database:
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return {"runs", "metrics", "params", "tags", "experiments", "alembic_version"} <= names
    return False


def runs_of_database(file: Path, home: Path) -> Iterator[RunFacts]:
    """Yield the runs in a database that were not deleted.

    Args:
        file: The database.
        home: The directory in which artifacts may be.
    """
    with _opened(file) as database:
        for run_id, name, status, start, end, uri, stage in database.execute(_QUERY):
            if stage == "active":
                place = _artifact_directory(str(uri or ""), file.parent, home)
                begun, ended = (each if isinstance(each, int) else 0 for each in (start, end))
                yield RunFacts(str(run_id), str(name or run_id), str(status), begun, ended, place)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)
    connection.text_factory = lambda content: content.decode(errors="replace")
    try:
        yield connection
    finally:
        connection.close()


def _read_meta(meta: Path) -> RunFacts:
    with open_inside(meta.parent, META, _MAX_META_BYTES) as file:
        found = yaml.safe_load(file.read())
    if not isinstance(found, dict) or not isinstance(found.get("run_id") or found.get("run_uuid"), str):
        raise ValueError(f"{meta} describes no run")  # noqa: TRY004
    status = found.get("status")
    if isinstance(status, int) and 0 <= status < len(_STATUS_NUMBERS):
        status = _STATUS_NUMBERS[status]
    start, end = (int(value) if isinstance(value := found.get(key), int) else 0 for key in ("start_time", "end_time"))
    artifacts = meta.parent / "artifacts"  # not what artifact_uri says: the store may have been moved
    run_id = str(found.get("run_id") or found.get("run_uuid"))
    is_there = artifacts.is_dir() and not artifacts.is_symlink()
    name = str(found.get("run_name") or run_id)
    return RunFacts(run_id, name, str(status), start, end, artifacts if is_there else None)


def _artifact_directory(uri: str, base: Path, home: Path) -> Path | None:
    """Return the directory of a run's artifacts, if it is inside the source's."""
    parts = urlsplit(uri)
    path = unquote(parts.path).lstrip("/") if parts.scheme == "mlflow-artifacts" else unquote(parts.path)
    if parts.scheme not in ("", "file", "mlflow-artifacts"):
        return None
    tail = Path(*Path(path).parts[-3:])  # <experiment>/<run>/artifacts, wherever the store was when it was written
    candidates = [base / path, *(base / folder / tail for folder in ("mlruns", "mlartifacts"))]
    for candidate in candidates:
        with contextlib.suppress(OSError, ValueError):
            resolved = candidate.resolve(strict=True)
            if resolved.is_dir() and resolved.is_relative_to(home.resolve()):
                return resolved
    return None


def _metric_line(line: bytes) -> tuple[int, float, int]:
    """Parse ``<time> <value> <step>``; newer versions may add fields."""
    fields = line.split()
    if len(fields) < 2:
        raise ValueError(f"{line[:80]!r} is not a metric")
    return int(fields[0]), float(fields[1]), int(fields[2]) if len(fields) > 2 else 0


def _infinite(value: float) -> float:
    """MLflow's databases hold the largest float in place of infinity."""
    return math.copysign(math.inf, value) if abs(value) >= 1.7976931348623157e308 else value


def _split_rows(rows: dict[tuple[int, int], dict[str, float]]) -> Iterator[Row]:
    """Yield rows in the order of steps and times; values of one step and time were logged together."""
    for (time, step), values in sorted(rows.items(), key=lambda item: (item[0][1], item[0][0])):
        axes: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            axes.setdefault(axis_of(name), {})[name] = value
        yield from (Row(step, time / 1000, own, axis) for axis, own in axes.items())


def _media_of(home: Path, name: str) -> Media | Table:
    """Return an artifact as a table or a figure if it is one, otherwise as a file."""
    if name.endswith(".json"):
        with contextlib.suppress(ValueError, OSError):
            with open_inside(home, name, MAX_PARSED_BYTES):
                content = parse_json(home, name)
            if isinstance(content, dict) and content.keys() == {"columns", "data"}:  # pandas' orient="split"
                return Table([str(column) for column in content["columns"]], content["data"])
            if isinstance(content, dict) and content.keys() >= {"data", "layout"} and isinstance(content["data"], list):
                return Figure(content)
    return SourceFile(home, name)
