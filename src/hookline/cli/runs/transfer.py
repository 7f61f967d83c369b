"""``hookline runs export`` and ``runs import``: exchange records with other tools.

An exported file is written beside its target and renamed when it is complete.
"""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from hookline._engine.errors import ConfigError, MissingExtraError, OptionError, UnknownNameError
from hookline._record.records import clean
from hookline._record.terminal import one_line
from hookline.cli.output import AsJson, console, foreign_code, indented, print_json, table, wrong_input
from hookline.cli.runs.reference import Root, RunArgument, locate, opened
from hookline.cli.runs.text import bytes_text
from hookline.store.index import DamagedIndexError
from hookline.store.query import Result
from hookline.store.runs import Runs

if TYPE_CHECKING:
    from hookline.importers import ImportedRun


FORMATS = ("parquet", "csv", "jsonl")
STDOUT = Path("-")

Format = Annotated[
    Literal["parquet", "csv", "jsonl"] | None,
    typer.Option("--format", help="The file format; by default from the file's extension.", show_default=False),
]
What = Annotated[Literal["metrics", "samples", "events", "rewards", "hooks", "logs"], typer.Option(help="The table.")]
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
        kind = format or _kind_of(output)
        _check_place(output, kind, force=force)
        found = opened([locate(root, run)])
        result = _result(found, what)
        with _replaced(output) as aside:
            rows = _WRITERS[kind](result, aside)
    if output == STDOUT:
        return
    facts = {"run": found[0].id, "what": what, "format": kind, "file": str(output), "rows": rows}
    if as_json:
        print_json(facts | {"bytes": output.stat().st_size})
    else:
        message = f"{rows:,} rows of {what} of {found[0].id} in {output} ({bytes_text(output.stat().st_size)})"
        console().print(one_line(message), soft_wrap=True)


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


def _result(found: Runs, what: str) -> Result:
    if what == "hooks":
        return found.hooks(history=True)
    made: Result = getattr(found, what)()
    return made


@contextmanager
def _replaced(output: Path) -> Iterator[Path]:
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
    nested = {"data", "extra", "truncated"}
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
ImportRoot = Annotated[Path, typer.Option(help="The directory of the runs.")]
Project = Annotated[str | None, typer.Option(help="The project of the new runs; 'imported' by default.")]
Name = Annotated[str | None, typer.Option(help="The run's name; several runs are numbered.")]
ImportFormat = Annotated[
    str | None, typer.Option("--format", help="Only this format, e.g. tensorboard; an unknown name lists all.")
]
StepColumn = Annotated[str | None, typer.Option(help="The column of a CSV file with the steps.")]
Again = Annotated[bool, typer.Option("--again", help="Import again what was imported before.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read everything, show what would be imported, write nothing.")]


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
        "already": run.already,
        "taken": [str(file) for file in run.taken],
        "left": [left._asdict() for left in run.left],
        "skipped_count": run.skipped_count,
        "skipped": [skip._asdict() for skip in run.skipped],
    }


def _print(made: list["ImportedRun"], *, dry_run: bool) -> None:
    counted = ("rows", "samples", *(["events"] if any(run.events for run in made) else []))
    listing = table("run", "name", "format", *counted, "skipped", whole=("run",), numbers=counted)
    for run in made:
        counts = [None if run.already else getattr(run, name) for name in counted]
        numbers = ["" if count is None else f"{count:,}" for count in (*counts, run.skipped_count or None)]
        listing.add_row(_outcome(run, dry_run=dry_run), run.name, run.format, *numbers, style=_style(run))
    console().print(listing)
    for run in made:
        if run.already:
            console().print(f"{run.source}: already imported as {run.directory}; --again imports it once more.")
        _print_notes(run)


def _outcome(run: "ImportedRun", *, dry_run: bool) -> str:
    if run.directory is not None:
        return run.directory.name
    return "(would be new)" if dry_run and not run.is_empty else "(nothing in it)"


def _style(run: "ImportedRun") -> str:
    return "dim" if run.already else "yellow" if run.skipped_count else "red" if run.is_empty else ""


def _print_notes(run: "ImportedRun") -> None:
    if not run.left and not run.skipped:
        return
    out = console()
    out.print(f"{run.name}:")
    for left in run.left:
        out.print(indented(f"left {left.what}: {left.reason}"))
    for skip in run.skipped[:_SHOWN]:
        out.print(indented(f"skipped {skip.place}: {skip.reason}"))
    if run.skipped_count > _SHOWN:
        out.print(indented(f"skipped {run.skipped_count - _SHOWN:,} more places"))
