"""``hookline runs import``: what other tools wrote, as runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from hookline.cli.output import AsJson, console, foreign_code, indented, print_json, table
from hookline.cli.wrong_input import wrong_input
from hookline.core.errors import OptionError, UnknownNameError
from hookline.record.terminal import terminal_console

if TYPE_CHECKING:
    from hookline.integrations.ingest import ImportedRun

_SHOWN = 10
"""How many of the skipped places are printed for a run."""

PathArgument = Annotated[Path, typer.Argument(metavar="PATH", help="A file or a directory.", show_default=False)]
Root = Annotated[Path, typer.Option(help="Where runs are recorded.")]
Project = Annotated[str | None, typer.Option(help="The project of the new runs; 'imported' where none is given.")]
Name = Annotated[str | None, typer.Option(help="What the run is called; several are numbered.")]
Format = Annotated[
    str | None, typer.Option("--format", help="Take only this one, e.g. tensorboard; a name that is none lists them.")
]
StepColumn = Annotated[str | None, typer.Option(help="The column of steps of a CSV file.")]
Again = Annotated[bool, typer.Option("--again", help="Import also what was imported before.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read everything, say what would be imported, write nothing.")]


def import_command(
    path: PathArgument,
    *,
    root: Root = Path("runs"),
    project: Project = None,
    name: Name = None,
    only: Format = None,
    step_column: StepColumn = None,
    again: Again = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make runs of what other tools or `runs export` wrote: event files, states, tables, completions, rollouts.

    The exit status is 1 if nothing could be read of one of them.
    """
    from hookline.integrations.ingest import import_runs  # not for every command: it loads all formats

    with _wrong_words(path, as_json=as_json), _bar() as show, foreign_code():
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
def _wrong_words(path: Path, *, as_json: bool) -> Iterator[None]:
    """A path, format or column that is not there was given wrongly; of what is there a file tells what is wrong."""
    try:
        _check_there(path)
        yield
    except (OptionError, UnknownNameError):
        with wrong_input(as_json=as_json):
            raise


def _check_there(path: Path) -> None:
    if not path.expanduser().exists():
        raise OptionError(f"{path}: there is no such file or directory.")


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error over the bytes that are read, and what moves it."""
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn())
    terminal = terminal_console(stderr=True)
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        task = progress.add_task("", total=None)
        yield lambda read, total: progress.update(task, completed=read, total=total)


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
