"""Finds what other tools wrote under a path, and which of it belongs to one run.

- A directory with a ``trainer_state.json`` (its own, or in checkpoints), with Lightning's ``metrics.csv``, with one
  file of verl's metrics or with TRL's ``completions/`` is a run; event files, completions and rollouts anywhere
  below it belong to it. Rollouts alone and the only event files beside their directory belong together.
- Other event files make a run of each directory; directories below one that has some itself, and
  those called ``train``, ``validation`` or the like, belong to their parent.
- Each CSV file with a column of steps is a run, unless it lies in one of those above.
- Tables that ``hookline runs export`` wrote are a run for each name in their column ``run``; several tables of one run
  belong together.

Hidden directories and runs of hookline's own are not looked into.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hookline._engine.errors import ConfigError, MissingExtraError, UnknownNameError, closest
from hookline._record.reader import JOURNAL
from hookline._record.run_directory import FACTS
from hookline.importers.csv import HPARAMS, METRICS, STEP_COLUMNS, CsvFile, LightningMetrics, has_steps, read_header
from hookline.importers.export import SUFFIXES, Contents, Export, Part, columns_of, refusal, runs_in, table_of
from hookline.importers.source import EVAL_WORDS, Left, Source
from hookline.importers.tensorboard import EventFiles
from hookline.importers.transformers import COMPLETIONS, STATE, Completions, TrainerState
from hookline.importers.verl import MetricLines, Rollouts, is_evaluation, is_metrics, is_rollout

FORMATS = {
    "tensorboard": "event files (events.out.tfevents.*)",
    "transformers": "Hugging Face's trainer_state.json",
    "lightning": "Lightning's metrics.csv beside a hparams.yaml",
    "trl": "TRL's completions_*.parquet",
    "verl": "verl's rollouts (<step>.jsonl) and metrics ({'step': ..., 'data': {...}} lines)",
    "hookline": "tables of metrics, samples or events that `hookline runs export` wrote (csv, jsonl, parquet)",
    "csv": f"a CSV file with a column of steps ({', '.join(STEP_COLUMNS)})",
}
"""The formats that are read, by name."""

_PARTS = frozenset({*EVAL_WORDS, "train", "training", "rollout"})
_OWNERS = ("state", "lightning", "metrics")
_FORMAT_OF = {
    "events": "tensorboard",
    "state": "transformers",
    "lightning": "lightning",
    "completions": "trl",
    "rollouts": "verl",
    "metrics": "verl",
    "export": "hookline",
    "csv": "csv",
}
_SEEN_NAMED = 8
_LINE_BYTES = 64 << 20


@dataclass
class Candidate:
    """What is one run: the directory or file that makes it, what it is called, and what it is read from."""

    path: Path
    name: str
    sources: list[Source]
    left: list[Left] = field(default_factory=list)
    part: str = ""
    """Which of several runs in the files it is, where there can be several."""

    @property
    def format(self) -> str:
        """The formats of the sources, e.g. ``transformers+tensorboard``."""
        return "+".join(dict.fromkeys(source.format for source in self.sources))

    @property
    def home(self) -> Path:
        """The directory in which it lies."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def files(self) -> list[Path]:
        """All files that are read."""
        settings = self.home / HPARAMS
        own = [file for source in self.sources for file in source.files]
        return [*own, settings] if settings.is_file() and self.has_settings else own

    @property
    def has_settings(self) -> bool:
        """Whether a ``hparams.yaml`` beside the sources is theirs."""
        return any(isinstance(source, EventFiles | LightningMetrics) for source in self.sources)


class _Piece(NamedTuple):
    kind: str
    file: Path
    home: Path
    base: Path
    """The directory that sub-directories of event files count from."""


def detect(path: str | Path, *, format: str | None = None, step_column: str | None = None) -> list[Candidate]:  # noqa: A002
    """The runs that can be made of what lies under a path.

    Args:
        format: Take only this one, see `FORMATS`.
        step_column: The column of steps of CSV files.

    Raises:
        ConfigError: There is no such path, or nothing there that can be read.
        UnknownNameError: There is no such format.
    """
    place = Path(path).expanduser()
    if format is not None and format not in FORMATS:
        raise UnknownNameError(f"format={format!r}: there is none of this name. {closest(format, FORMATS)}")
    if not place.exists():
        raise ConfigError(f"{path}: there is no such file or directory.")
    if _is_run(place):
        raise ConfigError(f"{path} is a run of hookline already: read it with hl.read.")
    seen: list[Path] = []
    refused: list[Left] = []
    found = [
        (kind, file)
        for file in _files(place)
        if (kind := _kind_or_refused(file, seen, refused, format, step_column, alone=file == place))
        and format in (None, _FORMAT_OF[kind])
    ]
    if not found:
        raise ConfigError(" ".join([_nothing(place, format, seen), *(f"{what}: {why}" for what, why in refused)]))
    exported = [file for kind, file in found if kind == "export"]
    others = [(kind, file) for kind, file in found if kind != "export"]
    made = [*_candidates(place, others, step_column), *_exports(exported)]
    if not made:
        raise ConfigError(f"{place}: the tables in it have no rows. Export a run that has recorded something.")
    made[0].left += refused
    return made


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for folder, folders, names in os.walk(place):
        directory = Path(folder)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not _is_run(directory / name))
        yield from (directory / name for name in sorted(names) if (directory / name).is_file())


def _is_run(directory: Path) -> bool:
    return (directory / FACTS).is_file() and (directory / JOURNAL).is_dir()


def _kind_or_refused(
    file: Path,
    seen: list[Path],
    refused: list[Left],
    format: str | None,  # noqa: A002
    step_column: str | None,
    *,
    alone: bool,
) -> str | None:
    """What a file is; what cannot be taken is an error where it was given alone, and is noted among others."""
    try:
        return _kind(file, seen, format, step_column, alone=alone)
    except _RefusedError as error:
        if alone:
            raise ConfigError(f"{file} {error}") from None
        refused.append(Left(str(file), f"it {error}"))
    except MissingExtraError as error:
        if alone:
            raise
        refused.append(Left(str(file), str(error)))
    return None


class _RefusedError(Exception):
    """Something of hookline's own that cannot be imported."""


def _kind(file: Path, seen: list[Path], format: str | None, step_column: str | None, *, alone: bool) -> str | None:  # noqa: A002
    """What a file is, by its name and, where that says too little, by its first line."""
    seen.append(file)
    if "tfevents" in file.name and not file.name.endswith(".profile-empty"):
        return "events"
    if file.name == STATE:
        return "state"
    if COMPLETIONS.fullmatch(file.name):
        return "completions"
    try:
        if _is_export(file, format, alone=alone):
            return "export"
        if file.suffix == ".jsonl":
            return _kind_of_lines(file)
        if file.suffix in (".csv", ".tsv") or (alone and format in ("csv", "lightning")):
            return _kind_of_table(file, format, step_column, alone=alone)
    except OSError:  # nobody may read it: it is among those that were found and not taken
        return None
    return None


def _is_export(file: Path, format: str | None, *, alone: bool) -> bool:  # noqa: A002
    """Whether a file is a table that was exported; what was asked for as another format is that."""
    if format not in (None, "hookline") or not (file.suffix in SUFFIXES or (alone and format)):
        return False
    columns = columns_of(file)
    if (reason := refusal(columns)) is not None:
        is_text = file.suffix in (".csv", ".tsv")
        raise _RefusedError(f"{reason} --format csv reads it like any other CSV file." if is_text else reason)
    return table_of(columns) is not None


def _kind_of_lines(file: Path) -> str | None:
    with file.open("rb") as opened:
        for _ in range(2):  # a first line that is broken is named later
            try:
                line = json.loads(opened.readline(_LINE_BYTES))
            except ValueError:
                continue
            return "rollouts" if is_rollout(line) else "metrics" if is_metrics(line) else None
    return None


def _kind_of_table(file: Path, format: str | None, step_column: str | None, *, alone: bool) -> str | None:  # noqa: A002
    if not alone and not has_steps(read_header(file), step_column):
        return None
    is_lightnings = file.name == METRICS and (file.parent / HPARAMS).is_file()
    return "lightning" if format == "lightning" or (is_lightnings and format != "csv") else "csv"


def _nothing(place: Path, format: str | None, seen: list[Path]) -> str:  # noqa: A002
    accepted = "; ".join(f"{name}: {what}" for name, what in FORMATS.items() if format in (None, name))
    if place.is_file():
        return f"{place} is none of the formats that can be imported. Accepted are {accepted}."
    names = ", ".join(str(file.relative_to(place)) for file in seen[:_SEEN_NAMED])
    more = f" and {len(seen) - _SEEN_NAMED} more files" if len(seen) > _SEEN_NAMED else ""
    found = f"There are {names}{more}" if seen else "It has no files"
    return f"{place} holds nothing that can be imported. {found}. Accepted are {accepted}."


def _candidates(place: Path, found: list[tuple[str, Path]], step_column: str | None) -> list[Candidate]:
    pieces = _joined(place, list(_placed(place, found)))
    homes = dict.fromkeys(piece.home for piece in pieces)
    groups = {home: [piece for piece in pieces if piece.home == home] for home in homes}
    beside = {home: [piece for piece in group if piece.kind == "csv"] for home, group in groups.items()}
    made = []
    for home, group in sorted(groups.items()):
        others = [piece for piece in group if piece.kind != "csv"]
        sources = list(_sources(others or group, step_column))
        left = [Left(str(piece.file), "a table of its own: give it alone") for piece in beside[home] if others]
        made.append(Candidate(home, _name(home), sources, left))
    return made


def _exports(files: list[Path]) -> list[Candidate]:
    """A candidate for each run in tables; of two that hold the same of a run the first is taken."""
    parts: dict[str, list[Part]] = {}
    left: dict[str, list[Left]] = {}
    told: set[str] = set()
    for file in files:
        for number, (run, held) in enumerate(_contents(file).items()):
            own = parts.setdefault(run, [])
            first = next((part.file for part in own if part.table == held.table), None)
            if first is None:
                own.append(Part(file, held.table, tells_broken=number == 0))
            else:
                left.setdefault(run, []).append(Left(str(file), f"{first} has {held.table} of the run, too"))
            told |= {run} if held.has_statuses else set()
    return [
        Candidate(own[0].file, run, [Export(run, own, has_statuses=run in told)], left.get(run, []), part=run)
        for run, own in parts.items()
    ]


def _contents(file: Path) -> dict[str, Contents]:
    table = table_of(columns_of(file))
    return {} if table is None else runs_in(file, table)


def _placed(place: Path, found: list[tuple[str, Path]]) -> Iterator[_Piece]:
    """Each file with the directory of its run, as far as the file alone says it."""
    with_events = {file.parent for kind, file in found if kind == "events"}
    lines = [file for kind, file in found if kind == "metrics"]
    rollouts = {file.parent for kind, file in found if kind == "rollouts"}
    for kind, file in found:
        base = file.parent
        if place.is_file():
            home = file
        elif kind == "state":
            home = _up(place, file.parent, re.fullmatch(r"checkpoint-\d+", file.parent.name) is not None)
        elif kind == "events":
            home = base = _event_home(place, file.parent, with_events)
        elif kind == "completions":
            home = _up(place, file.parent, file.parent.name == "completions")
        elif kind == "rollouts":
            home = _up(place, file.parent, _has_only(rollouts, file.parent))
        elif kind == "metrics" and sum(other.parent == file.parent for other in lines) > 1:
            home = file
        else:
            home = file if kind == "csv" else file.parent
        yield _Piece(kind, file, home, base)


def _up(place: Path, directory: Path, wanted: bool) -> Path:
    return directory.parent if wanted and directory != place else directory


def _event_home(place: Path, directory: Path, with_events: set[Path]) -> Path:
    home = directory
    while home != place and (home.name.lower() in _PARTS or home.parent in with_events):
        home = home.parent
    above = [parent for parent in home.parents if parent in with_events and parent.is_relative_to(place)]
    return min(above, key=lambda parent: len(parent.parts), default=home)


def _has_only(rollouts: set[Path], directory: Path) -> bool:
    """Whether a directory is its parent's only one with rollouts of the same purpose."""
    purpose = is_evaluation(directory)
    others = (each for each in rollouts if each.parent == directory.parent and is_evaluation(each) == purpose)
    return sum(1 for _ in others) == 1


def _joined(place: Path, pieces: list[_Piece]) -> list[_Piece]:
    """The pieces with those below a run's directory given to that run."""
    owners = {piece.home for piece in pieces if piece.kind in _OWNERS} | _homes_of_samples(pieces)
    tables_join = owners | {piece.home for piece in pieces if piece.kind != "csv"}

    def home(piece: _Piece) -> Path:
        homes = tables_join if piece.kind == "csv" else owners
        if piece.kind in _OWNERS:
            return piece.home
        above = [each for each in (piece.home, *piece.home.parents) if each in homes and each.is_relative_to(place)]
        return above[0] if above else piece.home

    return [piece._replace(home=home(piece)) for piece in pieces]


def _homes_of_samples(pieces: list[_Piece]) -> set[Path]:
    """Where samples lie in a directory of their own, and no more than one set of event files beside it."""
    kinds = ("completions", "rollouts")
    homes = {piece.home for piece in pieces if piece.kind in kinds and piece.home == piece.file.parent.parent}
    events = {piece.home for piece in pieces if piece.kind == "events"}
    of_trl = {piece.home for piece in pieces if piece.kind == "completions"}
    return {home for home in homes if home in of_trl or sum(each.is_relative_to(home) for each in events) == 1}


def _sources(pieces: list[_Piece], step_column: str | None) -> Iterator[Source]:
    files: dict[str, list[Path]] = {}
    for piece in pieces:
        files.setdefault(piece.kind, []).append(piece.file)
    if "state" in files:
        yield TrainerState(files["state"])
    yield from (LightningMetrics(file, step_column=step_column) for file in files.get("lightning", ()))
    yield from (MetricLines(file) for file in files.get("metrics", ()))
    yield from (CsvFile(file, step_column=step_column) for file in files.get("csv", ()))
    if "events" in files:
        yield EventFiles(files["events"], list({piece.base for piece in pieces if piece.kind == "events"}))
    if "completions" in files:
        yield Completions(files["completions"])
    if "rollouts" in files:
        yield Rollouts(files["rollouts"])


def _name(home: Path) -> str:
    """What a run is called after: its directory, or the file where a file alone makes it."""
    resolved = home.resolve()
    if home.is_file() and resolved.stem not in ("metrics", "trainer_state") and "tfevents" not in home.name:
        return resolved.stem
    return resolved.parent.name if home.is_file() else resolved.name or "imported"
