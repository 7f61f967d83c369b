"""``hookline runs export`` and ``runs import``: exchange records with other tools.

An exported file is written beside its target and renamed when it is complete.
"""

import csv
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from hookline._engine.defaults import ROOT_VARIABLE
from hookline._engine.errors import ConfigError, HooklineError, MissingExtraError, OptionError, UnknownNameError
from hookline._record.artifact_saving import ARTIFACT_SAVED
from hookline._record.artifact_versions import LATEST, ArtifactFolder, parse_reference
from hookline._record.artifacts import Artifact
from hookline._record.blobs import blob_problem, open_blob, references_in
from hookline._record.console_reader import STREAMS, read_console
from hookline._record.environment import read_environments
from hookline._record.reader import JOURNAL, read
from hookline._record.recorder import cleaned
from hookline._record.records import LogLine, Media, Rewards, SampleUse, TableRows, clean
from hookline._record.redaction import Redactor
from hookline._record.segment import journal_files
from hookline._record.terminal import one_line
from hookline.cli.output import AsJson, console, foreign_code, indented, print_json, table, wrong_input
from hookline.cli.runs.reference import Root, RunArgument, locate, opened
from hookline.cli.runs.text import bytes_text
from hookline.store.index import DamagedIndexError
from hookline.store.query import Result
from hookline.store.run_info import RunInfo
from hookline.store.runs import Runs

if TYPE_CHECKING:
    from hookline.importers import ImportedRun


FORMATS = ("parquet", "csv", "jsonl")
STDOUT = Path("-")

Format = Annotated[
    Literal["parquet", "csv", "jsonl"] | None,
    typer.Option("--format", help="The file format; by default from the file's extension.", show_default=False),
]
What = Annotated[
    Literal[
        "metrics",
        "metric_names",
        "samples",
        "sample_uses",
        "rewards",
        "events",
        "hooks",
        "logs",
        "console",
        "media",
        "table_rows",
        "blobs",
        "runs",
        "all",
    ],
    typer.Option(
        help="The table; with all, a directory with the facts, records, files, console and environment of the run, "
        "from which `runs import` restores it."
    ),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="The file; - is standard output.", show_default=False)]


def export_command(
    run: RunArgument,
    *,
    output: Output,
    format: Format = None,  # noqa: A002 - what the option is called
    what: What = "metrics",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    root: Root = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Export a run's records to a file: one row per value, sample or event, with the columns of `hookline sql`."""
    with wrong_input(as_json=as_json):
        if what == "all":
            _export_all(opened([locate(root, run)]), output, format or "jsonl", force=force, as_json=as_json)
            return
        kind = format or _kind_of(output)
        _check_place(output, kind, force=force)
        found = opened([locate(root, run)])
        result = _result(found, what)
        with replaced(output) as aside:
            rows = _WRITERS[kind](result, aside)
    if output == STDOUT:
        return
    facts = {"run": found[0].id, "what": what, "format": kind, "file": str(output), "rows": rows}
    if as_json:
        print_json(facts | {"bytes": output.stat().st_size})
    else:
        message = f"{rows:,} rows of {what} of {found[0].id} in {output} ({bytes_text(output.stat().st_size)})"
        console().print(one_line(message), soft_wrap=True)


def _export_all(found: Runs, output: Path, kind: str, *, force: bool, as_json: bool) -> None:
    """Write a run's facts, metrics, samples, events, media, console and environment, with blobs, to a directory."""
    from hookline.importers.export import (  # here: it loads all formats
        ARTIFACT_FILE,
        CONSOLE_FILE,
        ENTRY,
        ENTRY_FILE,
        ENVIRONMENT_FILE,
        IMPORTED,
        MEDIA_BLOBS,
        MEDIA_FILE,
    )
    from hookline.importers.facts import FACTS, FACTS_FILE, exported_facts

    if output.exists() and (output.is_file() or any(output.iterdir())):
        if not force or output.is_file() or output.is_symlink():
            raise ConfigError(f"{output} exists already. Give another directory, or --force to replace one.")
        if not (output / MEDIA_FILE).is_file():
            raise ConfigError(f"{output} is not an export: it is not replaced. Give another directory.")
    aside = output.with_name(f".{output.name}.{os.getpid()}.partial")
    run = found[0]
    try:
        (aside / MEDIA_BLOBS).mkdir(parents=True)
        facts = exported_facts(run.facts, run.project)
        _write_lines([{"run": run.id, FACTS: facts}], aside / FACTS_FILE, None)
        rows: dict[str, int] = {}
        for what in IMPORTED:
            path = aside / f"{what}.{kind}"
            rows[what] = _WRITERS[kind](_result(found, what), path)
            if not rows[what]:
                path.unlink()
        blobs = _ExportedBlobs(run.directory, aside / MEDIA_BLOBS)
        rows["media"] = _write_lines(_records(run, Media | TableRows, "record"), aside / MEDIA_FILE, blobs)
        others = _records(run, LogLine | Rewards | SampleUse, ENTRY)
        rows["log lines, rewards and uses of samples"] = _write_lines(others, aside / ENTRY_FILE, None)
        rows["console lines"] = _write_lines(_console_lines(run.id, run.directory), aside / CONSOLE_FILE, None)
        rows["environments"] = _write_lines(_environment_lines(run.id, run.directory), aside / ENVIRONMENT_FILE, blobs)
        artifacts = _saved_artifacts(found)
        lines = ({"run": run.id, "artifact": _artifact_document(each)} for each in artifacts if each is not None)
        rows["artifacts"] = _write_lines(lines, aside / ARTIFACT_FILE, blobs)
        missing, missing_artifacts = blobs.missing, artifacts.count(None)
        if output.exists():
            shutil.rmtree(output)
        aside.rename(output)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    document: dict[str, Any] = {"run": run.id, "what": "all", "format": kind, "directory": str(output), "rows": rows}
    document |= {"missing": missing, "missing_artifacts": missing_artifacts}
    if as_json:
        print_json(document)
        return
    counts = ", ".join(f"{count:,} {what}" for what, count in rows.items())
    lost = f"; {missing:,} blobs are missing or damaged" if missing else ""
    lost += f"; {missing_artifacts:,} artifacts were deleted or are damaged" if missing_artifacts else ""
    console().print(one_line(f"{counts} of {run.id} in {output}{lost}"), soft_wrap=True)


class _ExportedBlobs:
    """Copies the blobs that exported lines refer to, each once; counts those that are missing or damaged."""

    def __init__(self, run_dir: Path, folder: Path) -> None:
        self._run_dir, self._folder = run_dir, folder
        self._known: set[str] = set()
        self.missing = 0

    def copy(self, line: bytes) -> None:
        for digest in [each for each in references_in(line) if each not in self._known]:
            self._known.add(digest)
            if blob_problem(self._run_dir, digest):
                self.missing += 1
                continue
            with open_blob(self._run_dir, digest) as blob, (self._folder / digest).open("wb") as copy:
                shutil.copyfileobj(blob, copy, 1 << 20)


def _write_lines(lines: Iterable[dict[str, Any]], path: Path, blobs: _ExportedBlobs | None) -> int:
    """Write lines of JSON, and the blobs that they refer to; returns their number."""
    count = 0
    with path.open("wb") as file:
        for each in lines:
            line = msgspec.json.encode(each)
            file.write(line + b"\n")
            if blobs is not None:
                blobs.copy(line)
            count += 1
    return count


def _records(run: RunInfo, kinds: Any, column: str) -> Iterator[dict[str, Any]]:
    for writer in sorted({each.name for each in journal_files(run.directory / JOURNAL)}):
        for record in read(run.directory, writer=writer):
            if isinstance(record, kinds):
                yield {"run": run.id, "writer": writer, column: cleaned(record)}


def _console_lines(name: str, run_dir: Path) -> Iterator[dict[str, Any]]:
    for row in read_console(run_dir, streams=STREAMS):
        yield {"run": name, "console": row}


def _environment_lines(name: str, run_dir: Path) -> Iterator[dict[str, Any]]:
    for environment in read_environments(run_dir):
        yield {"run": name, "environment": environment}


def _saved_artifacts(found: Runs) -> list[Artifact | None]:
    """The versions of artifacts that the run saved, each once; None for one that was deleted or is damaged."""
    root = found[0].directory.parent.parent
    versions: dict[tuple[str, str], Artifact | None] = {}
    for event in found.events(ARTIFACT_SAVED, kind="event").rows():
        data = json.loads(event["data"])
        name, digest = str(data.get("artifact", "")), str(data.get("digest", ""))
        versions[name, digest] = None
        with suppress(HooklineError):  # a received journal may have anything here
            reference = parse_reference(name)
            folder = ArtifactFolder(root, reference.project, reference.name)
            if (number := folder.same(digest)) is not None:
                versions[name, digest] = Artifact(folder, number)
    return list(versions.values())


def _artifact_document(version: Artifact) -> dict[str, Any]:
    return {
        "artifact": version.folder.id,
        "digest": version.digest,
        "kind": version.kind,
        "metadata": Redactor().settings(version.metadata),
        "files": version.files,
        "aliases": [alias for alias in version.aliases if alias != LATEST],
    }


def _kind_of(output: Path) -> str:
    kind = {".ndjson": "jsonl"}.get(output.suffix, output.suffix.removeprefix("."))
    if kind not in FORMATS:
        raise OptionError(f"{output}: the format is not clear from the name. Give --format: {', '.join(FORMATS)}.")
    return kind


def _check_place(output: Path, kind: str, *, force: bool) -> None:
    if output == STDOUT:
        if kind == "parquet":
            raise OptionError("-o -: Parquet cannot be written to standard output. Give a file, or csv or jsonl.")
        return
    if output.is_dir():
        raise ConfigError(f"{output} is a directory. Give a file.")
    if output.exists() and not force:
        raise ConfigError(f"{output} exists already. Give another file, or --force to replace it.")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"{output.absolute().parent}: there is no such directory. Create it first.")


_ORDERS = {
    "runs": "id",
    "metric_names": "name, axis",
    "table_rows": "name, time, table_id, position",
    "blobs": "name, step, blob",
}
"""The tables that are exported with a query, and their orders."""


def _result(found: Runs, what: str) -> Result:
    if what == "hooks":
        return found.hooks(history=True)
    if what in _ORDERS:
        return found.sql(f"SELECT * FROM {what} ORDER BY {_ORDERS[what]}", timeout_seconds=None)  # noqa: S608
    made: Result = getattr(found, what)()
    return made


@contextmanager
def replaced(output: Path) -> Iterator[Path]:
    """The temporary file to write, which replaces the target on success."""
    if output == STDOUT:
        yield output
        return
    aside = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        yield aside
        aside.replace(output)
    except DamagedIndexError:
        raise
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error}") from error
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def _text_file(path: Path) -> Iterator[IO[str]]:
    if path == STDOUT:
        yield sys.stdout
        sys.stdout.flush()
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        yield file


def _write_csv(result: Result, path: Path) -> int:
    columns = result.columns()
    with _text_file(path) as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
    return _length(columns)


def _write_jsonl(result: Result, path: Path) -> int:
    columns = result.columns()
    nested = {"data", "extra", "truncated", "cells", "config", "summary"}
    with _text_file(path) as file:
        for row in zip(*columns.values(), strict=True):
            values = {
                name: json.loads(value) if name in nested and value is not None else clean(value)
                for name, value in zip(columns, row, strict=True)
            }
            file.write(json.dumps(values, ensure_ascii=False) + "\n")
    return _length(columns)


def _write_parquet(result: Result, path: Path) -> int:
    table = result.arrow()
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError("Writing Parquet needs pyarrow. Install it with: pip install pyarrow") from None
    parquet.write_table(table, path)
    return int(table.num_rows)


def _cell(value: Any) -> Any:
    return json.dumps(clean(value), ensure_ascii=False) if isinstance(value, dict | list) else value


def _length(columns: dict[str, list[Any]]) -> int:
    return len(next(iter(columns.values()), []))


_WRITERS: dict[str, Callable[[Result, Path], int]] = {
    "csv": _write_csv,
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
}


_SHOWN = 10
"""How many skipped places of a run are printed."""

PathArgument = Annotated[Path, typer.Argument(metavar="PATH", help="A file or a directory.", show_default=False)]
ImportRoot = Annotated[Path, typer.Option(envvar=ROOT_VARIABLE, help="The directory of the runs.")]
Project = Annotated[
    str | None, typer.Option(help="The project of the new runs; by default that of an export, or 'imported'.")
]
Name = Annotated[str | None, typer.Option(help="The run's name; several runs are numbered.")]
ImportFormat = Annotated[
    str | None, typer.Option("--format", help="Only this format, e.g. tensorboard; an unknown name lists all.")
]
StepColumn = Annotated[str | None, typer.Option(help="The column of a CSV file with the steps.")]
Again = Annotated[bool, typer.Option("--again", help="Import runs again that were already imported.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be imported without importing it.")]


def import_command(
    path: PathArgument,
    *,
    root: ImportRoot = Path("runs"),
    project: Project = None,
    name: Name = None,
    only: ImportFormat = None,
    step_column: StepColumn = None,
    again: Again = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Import files of other tools or of `runs export` as runs: event files, states, tables, completions, rollouts.

    The exit status is 1 if one of them has nothing that can be read.
    """
    from hookline.callbacks.progress_display import transient_bar
    from hookline.importers import import_runs  # here: it loads all formats

    with _wrong_arguments(path, as_json=as_json), transient_bar("reading", in_bytes=True) as show, foreign_code():
        made = import_runs(
            path,
            root=root,
            project=project,
            name=name,
            format=only,
            step_column=step_column,
            again=again,
            dry_run=dry_run,
            progress=show,
        )
    if as_json:
        print_json([_document(run) for run in made])
    else:
        _print(made, dry_run=dry_run)
    if any(run.is_empty for run in made):
        raise typer.Exit(1)


@contextmanager
def _wrong_arguments(path: Path, *, as_json: bool) -> Iterator[None]:
    """Report a missing path, format or column as wrong input; other errors name the file."""
    try:
        if not path.expanduser().exists():
            raise OptionError(f"{path}: there is no such file or directory.")  # noqa: TRY301
        yield
    except (OptionError, UnknownNameError):
        with wrong_input(as_json=as_json):
            raise


def _document(run: "ImportedRun") -> dict[str, Any]:
    return {
        "directory": None if run.directory is None else str(run.directory),
        "name": run.name,
        "format": run.format,
        "source": str(run.source),
        "rows": run.rows,
        "samples": run.samples,
        "events": run.events,
        "media": run.media,
        "already": run.already,
        "taken": [str(file) for file in run.taken],
        "left": [left._asdict() for left in run.left],
        "skipped_count": run.skipped_count,
        "skipped": [skip._asdict() for skip in run.skipped],
    }


def _print(made: list["ImportedRun"], *, dry_run: bool) -> None:
    new = [run for run in made if not run.already]
    counted = ("rows", "samples", *(name for name in ("media", "events") if any(getattr(run, name) for run in new)))
    listing = table("run", "name", "format", *counted, "skipped", whole=("run",), numbers=counted)
    for run in new:
        numbers = [f"{getattr(run, name):,}" for name in counted]
        numbers.append(f"{run.skipped_count:,}" if run.skipped_count else "")
        row = (_outcome(run, dry_run=dry_run), one_line(run.name), run.format, *numbers)
        listing.add_row(*row, style="yellow" if run.skipped_count else "red" if run.is_empty else "")
    if new:
        console().print(listing)
    for run in made:
        if run.already:
            text = f"{run.source}: already imported as {run.directory}; --again imports it once more."
            console().print(one_line(text), soft_wrap=True)
        _print_notes(run)


def _outcome(run: "ImportedRun", *, dry_run: bool) -> str:
    if run.directory is not None:
        return run.directory.name
    return "(would be new)" if dry_run and not run.is_empty else "(nothing in it)"


def _print_notes(run: "ImportedRun") -> None:
    if not run.left and not run.skipped:
        return
    out = console()
    out.print(f"{one_line(run.name)}:")
    for left in run.left:
        out.print(indented(f"left {left.what}: {left.reason}"))
    for skip in run.skipped[:_SHOWN]:
        out.print(indented(f"skipped {skip.place}: {skip.reason}"))
    if run.skipped_count > _SHOWN:
        out.print(indented(f"skipped {run.skipped_count - _SHOWN:,} more places"))
