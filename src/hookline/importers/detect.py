"""Finds importable files under a path and groups them into runs.

- A directory with a ``trainer_state.json`` (its own, or in checkpoints), Lightning's ``metrics.csv``, one file of
  verl's metrics, or TRL's ``completions/`` is a run. Event files, completions and rollouts below it belong to it.
  Rollouts without metrics and the only event files beside their directory belong together.
- Other event files form one run for each directory. Directories below one that has event files, and those named
  ``train``, ``validation`` or similar, belong to their parent.
- Each CSV file with a step column is a run, unless it lies in one of the directories above.
- Tables written by ``hookline runs export`` form one run for each value of their column ``run``.

Hidden directories and hookline's own runs are not searched.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hookline._engine.errors import ConfigError, MissingExtraError, UnknownNameError, closest
from hookline._engine.metrics import SPLIT_WORDS
from hookline._record.reader import JOURNAL
from hookline._record.run_directory import METADATA
from hookline.importers.csv import HPARAMS, METRICS, STEP_COLUMNS, CsvFile, LightningMetrics, has_steps, read_header
from hookline.importers.export import SUFFIXES, Export, TableFile, columns_of, refusal, runs_in, table_of
from hookline.importers.mlflow import (
    META,
    RUN_ID,
    MlflowDatabase,
    MlflowDirectory,
    is_database,
    is_run_directory,
    runs_of_database,
)
from hookline.importers.sources import Left, Source
from hookline.importers.tensorboard import EventFiles
from hookline.importers.transformers import COMPLETIONS, STATE, Completions, TrainerState
from hookline.importers.verl import MetricLines, Rollouts, is_evaluation, is_metrics, is_rollout
from hookline.importers.wandb import SUFFIX, WandbRun, is_wandb_file

FORMATS = {
    "tensorboard": "event files (events.out.tfevents.*)",
    "transformers": "Hugging Face's trainer_state.json",
    "lightning": "Lightning's metrics.csv beside a hparams.yaml",
    "trl": "TRL's completions_*.parquet",
    "verl": "verl's rollouts (<step>.jsonl) and metrics ({'step': ..., 'data': {...}} lines)",
    "wandb": "W&B's run directories (run-<id>.wandb and its files)",
    "mlflow": "MLflow's stores (mlruns/<experiment>/<run>/meta.yaml, or a database of SQLite)",
    "hookline": "tables of metrics, samples, events or media that `hookline runs export` wrote (csv, jsonl, parquet)",
    "csv": f"a CSV file with a step column ({', '.join(STEP_COLUMNS)})",
}
"""The importable formats and their files."""

_RUN_KINDS = ("state", "lightning", "metrics")
"""Kinds of files that make their directory a run."""
_FORMAT_OF = {
    "events": "tensorboard",
    "state": "transformers",
    "lightning": "lightning",
    "completions": "trl",
    "rollouts": "verl",
    "metrics": "verl",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "mlflow_database": "mlflow",
    "export": "hookline",
    "csv": "csv",
}
_OWN_RUNS = ("wandb", "mlflow", "mlflow_database", "export")
"""Kinds of files that are runs by themselves, whatever is beside them."""
_LISTED_FILES = 8
_LINE_BYTES = 64 << 20


@dataclass
class DetectedRun:
    """A run that can be imported: its directory or file, its name, and its sources."""

    path: Path
    name: str
    sources: list[Source]
    left: list[Left] = field(default_factory=list)
    is_named: bool = False
    """Whether the user gave the name; otherwise one in the source counts."""
    part: str = ""
    """Which run of the files this is, if they can hold several."""

    @property
    def format(self) -> str:
        """The formats of the sources, e.g. ``transformers+tensorboard``."""
        return "+".join(dict.fromkeys(source.format for source in self.sources))

    @property
    def home(self) -> Path:
        """The directory of the run."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def files(self) -> list[Path]:
        """All files that are read."""
        hparams = self.home / HPARAMS
        own = [file for source in self.sources for file in source.files]
        has_hparams = any(isinstance(source, EventFiles | LightningMetrics) for source in self.sources)
        return [*own, hparams] if has_hparams and hparams.is_file() else own


class _File(NamedTuple):
    kind: str
    path: Path
    home: Path
    """The directory of its run, or the file itself if it forms a run alone."""
    base: Path
    """The directory to which subdirectories of event files are relative."""


def detect(path: str | Path, *, format: str | None = None, step_column: str | None = None) -> list[DetectedRun]:  # noqa: A002
    """Find the runs that can be imported from a path.

    Args:
        format: Consider only this format, see `FORMATS`.
        step_column: The step column of CSV files.

    Raises:
        ConfigError: The path does not exist, or holds nothing that can be imported.
        UnknownNameError: The format is unknown.
    """
    place = Path(path).expanduser()
    if format is not None and format not in FORMATS:
        raise UnknownNameError(f"format={format!r} is unknown. {closest(format, FORMATS)}")
    if not place.exists():
        raise ConfigError(f"{path}: no such file or directory.")
    if _is_run(place):
        raise ConfigError(f"{path} is already a hookline run: read it with hl.read.")
    files = list(_files(place, format))
    refused: list[Left] = []
    found = list(_recognised(files, place, format, step_column, refused))
    if not found:
        raise ConfigError(" ".join([_nothing(place, format, files), *(f"{what}: {why}" for what, why in refused)]))
    exported = [file for kind, file in found if kind == "export"]
    others = [(kind, file) for kind, file in found if kind not in _OWN_RUNS]
    made = [*_group(place, others, step_column), *_group_exports(exported), *_trackers(place, found)]
    if not made:
        raise ConfigError(f"{place}: the tables have no rows. Export a run that has recorded something.")
    made[0].left += refused
    return made


def _recognised(
    files: list[Path],
    place: Path,
    format: str | None,  # noqa: A002
    step_column: str | None,
    refused: list[Left],
) -> Iterator[tuple[str, Path]]:
    """Yield the importable files with their kinds; a file that was given by itself must be importable."""
    for file in files:
        alone = file == place
        try:
            kind = _kind(file, format, step_column, alone=alone)
        except _RefusedError as error:
            if alone:
                raise ConfigError(f"{file} {error}") from None
            refused.append(Left(str(file), f"it {error}"))
        except MissingExtraError as error:
            if alone:
                raise
            refused.append(Left(str(file), str(error)))
        else:
            if kind is not None and format in (None, _FORMAT_OF[kind]):
                yield kind, file


def _files(place: Path, format: str | None) -> Iterator[Path]:  # noqa: A002
    """Yield the files to look at; what a tracker keeps in the directory of a run belongs to that run."""
    if place.is_file():
        yield place
        return
    for folder, folders, names in os.walk(place):
        directory = Path(folder)
        own = [name for name in names if name.endswith(SUFFIX)] if format in (None, "wandb") else []
        if not own and format in (None, "mlflow") and META in names and is_run_directory(directory):
            own = [META]
        if own:
            folders.clear()
            yield from (directory / name for name in sorted(own))
            continue
        if format in (None, "mlflow") and directory.name == "artifacts" and RUN_ID.fullmatch(directory.parent.name):
            folders.clear()  # of a run in a database
            continue
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not _is_run(directory / name))
        yield from (directory / name for name in sorted(names) if (directory / name).is_file())


def _is_run(directory: Path) -> bool:
    return (directory / METADATA).is_file() and (directory / JOURNAL).is_dir()


class _RefusedError(Exception):
    """A file of hookline that cannot be imported."""


def _kind(file: Path, format: str | None, step_column: str | None, *, alone: bool) -> str | None:  # noqa: A002
    """Determine the kind of a file by its name or, if necessary, by its first line."""
    kinds = {
        "events": "tfevents" in file.name and not file.name.endswith(".profile-empty"),
        "state": file.name == STATE,
        "completions": COMPLETIONS.fullmatch(file.name),
        "mlflow": file.name == META and is_run_directory(file.parent),
        "wandb": is_wandb_file(file),
        "mlflow_database": is_database(file),
    }
    if kind := next((kind for kind, is_this in kinds.items() if is_this), None):
        return kind
    try:
        if format in (None, "hookline") and (file.suffix in SUFFIXES or (alone and format)):
            columns = columns_of(file)
            if (reason := refusal(columns)) is not None:
                is_csv = file.suffix in (".csv", ".tsv")
                raise _RefusedError(f"{reason} --format csv reads it like any other CSV file." if is_csv else reason)
            if table_of(columns) is not None:
                return "export"
        if file.suffix == ".jsonl":
            return _kind_of_json_lines(file)
        if file.suffix in (".csv", ".tsv") or (alone and format in ("csv", "lightning")):
            return _kind_of_csv(file, format, step_column, alone=alone)
    except OSError:  # not readable
        return None
    return None


def _kind_of_json_lines(file: Path) -> str | None:
    with file.open("rb") as opened:
        for _ in range(2):  # a broken first line is reported later
            try:
                line = json.loads(opened.readline(_LINE_BYTES))
            except ValueError:
                continue
            return "rollouts" if is_rollout(line) else "metrics" if is_metrics(line) else None
    return None


def _kind_of_csv(file: Path, format: str | None, step_column: str | None, *, alone: bool) -> str | None:  # noqa: A002
    if not alone and not has_steps(read_header(file), step_column):
        return None
    is_lightning = file.name == METRICS and (file.parent / HPARAMS).is_file()
    return "lightning" if format == "lightning" or (is_lightning and format != "csv") else "csv"


def _nothing(place: Path, format: str | None, files: list[Path]) -> str:  # noqa: A002
    accepted = "; ".join(f"{name}: {what}" for name, what in FORMATS.items() if format in (None, name))
    if place.is_file():
        return f"{place} is not in a format that can be imported. Accepted are {accepted}."
    names = ", ".join(str(file.relative_to(place)) for file in files[:_LISTED_FILES])
    more = f" and {len(files) - _LISTED_FILES} more files" if len(files) > _LISTED_FILES else ""
    found = f"It has {names}{more}" if files else "It has no files"
    return f"{place} holds nothing that can be imported. {found}. Accepted are {accepted}."


def _group(place: Path, found: list[tuple[str, Path]], step_column: str | None) -> list[DetectedRun]:
    """Group files into runs, except for exported tables."""
    groups: dict[Path, list[_File]] = {}
    for file in _assign_to_runs(place, list(_with_homes(place, found))):
        groups.setdefault(file.home, []).append(file)
    runs = []
    for home, group in sorted(groups.items()):
        others = [file for file in group if file.kind != "csv"]
        tables = [file for file in group if file.kind == "csv"]
        left = [Left(str(file.path), "a separate table: import it by itself") for file in tables if others]
        runs.append(DetectedRun(home, _name(home), list(_sources(others or group, step_column)), left))
    return runs


def _group_exports(files: list[Path]) -> list[DetectedRun]:
    """Group exported tables into runs; if two files hold the same table of a run, the first one counts."""
    tables: dict[str, list[TableFile]] = {}
    left: dict[str, list[Left]] = {}
    with_statuses: set[str] = set()
    for file in files:
        table = table_of(columns_of(file))
        runs = {} if table is None else runs_in(file, table)
        for number, (run, held) in enumerate(runs.items()):
            own = tables.setdefault(run, [])
            first = next((each.file for each in own if each.table == held.table), None)
            if first is None:
                own.append(TableFile(file, held.table, reports_broken=number == 0))
            else:
                left.setdefault(run, []).append(Left(str(file), f"{first} also has {held.table} of the run"))
            if held.has_statuses:
                with_statuses.add(run)
    return [
        DetectedRun(
            _export_path([table.file for table in own]),
            run,
            [Export(run, own, has_statuses=run in with_statuses)],
            left.get(run, []),
            part=run,
        )
        for run, own in tables.items()
    ]


def _export_path(files: list[Path]) -> Path:
    """Return the path that an exported run is known by: its file, or the directory of several files."""
    is_directory = len(files) > 1 and len({file.parent for file in files}) == 1
    return files[0].parent if is_directory else files[0]


def _trackers(place: Path, found: list[tuple[str, Path]]) -> Iterator[DetectedRun]:
    """Yield the runs of other trackers, which have a directory or a place in a database of their own."""
    for kind, file in found:
        if kind == "wandb":
            name = re.sub(r"^(offline-)?run-", "", file.parent.name)
            yield DetectedRun(file.parent, name, [WandbRun(file)])
        elif kind == "mlflow":
            run = MlflowDirectory(file)
            yield DetectedRun(file.parent, run.facts.name, [run])
        elif kind == "mlflow_database":
            home = place if place.is_dir() else place.parent
            for facts in runs_of_database(file, home):
                stored = MlflowDatabase(file, facts)
                yield DetectedRun(file, facts.name, [stored], part=f"{facts.id} {stored.digest}")


def _with_homes(place: Path, found: list[tuple[str, Path]]) -> Iterator[_File]:
    """Yield each file with the directory of its run, as far as the file alone determines it."""
    with_events = {file.parent for kind, file in found if kind == "events"}
    metrics = [file.parent for kind, file in found if kind == "metrics"]
    rollouts = {file.parent for kind, file in found if kind == "rollouts"}

    def parent_if(condition: bool, directory: Path) -> Path:
        return directory.parent if condition and directory != place else directory

    for kind, file in found:
        base = home = file.parent
        if place.is_file() or kind == "csv" or (kind == "metrics" and metrics.count(file.parent) > 1):
            home = file
        elif kind == "state":
            home = parent_if(re.fullmatch(r"checkpoint-\d+", home.name) is not None, home)
        elif kind == "events":
            home = base = _event_home(place, home, with_events)
        elif kind == "completions":
            home = parent_if(home.name == "completions", home)
        elif kind == "rollouts":
            # The parent is the run if it has only one directory of rollouts for training, or for validation.
            same = [
                each
                for each in rollouts
                if each.parent == home.parent and is_evaluation(each) == is_evaluation(file.parent)
            ]
            home = parent_if(len(same) == 1, home)
        yield _File(kind, file, home, base)


def _event_home(place: Path, directory: Path, with_events: set[Path]) -> Path:
    home = directory
    while home != place and (home.name.lower() in SPLIT_WORDS or home.parent in with_events):
        home = home.parent
    above = [parent for parent in home.parents if parent in with_events and parent.is_relative_to(place)]
    return min(above, key=lambda parent: len(parent.parts), default=home)


def _assign_to_runs(place: Path, files: list[_File]) -> list[_File]:
    """Assign the files below a run's directory to that run."""
    # Samples in a directory of their own make its parent a run if it has no more than one set of event files.
    samples = [file for file in files if file.kind in ("completions", "rollouts")]
    of_trl = {file.home for file in samples if file.kind == "completions"}
    events = {file.home for file in files if file.kind == "events"}
    owners = {
        file.home
        for file in samples
        if file.home == file.path.parent.parent
        and (file.home in of_trl or sum(each.is_relative_to(file.home) for each in events) == 1)
    }
    owners |= {file.home for file in files if file.kind in _RUN_KINDS}
    csv_owners = owners | {file.home for file in files if file.kind != "csv"}
    assigned = []
    for file in files:
        homes = csv_owners if file.kind == "csv" else owners
        above = (each for each in (file.home, *file.home.parents) if each in homes and each.is_relative_to(place))
        home = file.home if file.kind in _RUN_KINDS else next(above, file.home)
        assigned.append(file._replace(home=home))
    return assigned


def _sources(found: list[_File], step_column: str | None) -> Iterator[Source]:
    files: dict[str, list[Path]] = {}
    for file in found:
        files.setdefault(file.kind, []).append(file.path)
    if "state" in files:
        yield TrainerState(files["state"])
    yield from (LightningMetrics(file, step_column=step_column) for file in files.get("lightning", ()))
    yield from (MetricLines(file) for file in files.get("metrics", ()))
    yield from (CsvFile(file, step_column=step_column) for file in files.get("csv", ()))
    if "events" in files:
        yield EventFiles(files["events"], list({file.base for file in found if file.kind == "events"}))
    if "completions" in files:
        yield Completions(files["completions"])
    if "rollouts" in files:
        yield Rollouts(files["rollouts"])


def _name(home: Path) -> str:
    """Name a run after its directory, or after its file if the file alone forms it."""
    resolved = home.resolve()
    if home.is_file() and resolved.stem not in ("metrics", "trainer_state") and "tfevents" not in home.name:
        return resolved.stem
    return resolved.parent.name if home.is_file() else resolved.name or "imported"
