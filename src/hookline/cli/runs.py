"""``hookline runs``: what can be done with recorded runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from hookline.cli.import_runs import import_command
from hookline.cli.output import AsJson, console, print_json, table
from hookline.cli.run_reference import Root
from hookline.cli.runs_compare import compare_command
from hookline.cli.runs_delete import delete_command
from hookline.cli.runs_export import export_command
from hookline.cli.runs_list import list_command
from hookline.cli.runs_show import show_command
from hookline.cli.runs_tail import tail_command
from hookline.cli.runs_verify import verify_command
from hookline.record import run_directory
from hookline.record.courier import sync as deliver
from hookline.record.delivery import SinkState, sink_states

app = typer.Typer(no_args_is_help=True, help="Look at recorded runs, and look after them.")
app.command("list")(list_command)
app.command("show")(show_command)
app.command("compare")(compare_command)
app.command("tail")(tail_command)
app.command("export")(export_command)
app.command("delete")(delete_command)
app.command("verify")(verify_command)
app.command("import")(import_command)

Reference = Annotated[str, typer.Argument(help="A run's directory, or its id.", show_default=False)]
Seconds = Annotated[float, typer.Option(min=0.0, help="How long to try at most.")]


@app.command()
def sync(run: Reference, *, root: Root = Path("runs"), seconds: Seconds = 300.0, as_json: AsJson = False) -> None:
    """Deliver to its sinks what a run that is over left behind; the exit status is 1 if something still waits."""
    directory = run_directory.locate(root, run)
    before = sink_states(directory)
    with _bar(before) as show:
        states = deliver(directory, seconds=seconds, progress=show)
    if as_json:
        print_json({"run": directory.name, "sinks": states})
    else:
        _print(directory, states)
    if any(state.behind_bytes or state.status != "ok" for state in states):
        raise typer.Exit(1)


@contextmanager
def _bar(states: list[SinkState]) -> Iterator[Callable[[list[SinkState]], None]]:
    """A progress bar on standard error over the bytes that wait, and what moves it."""
    total = sum(state.behind_bytes for state in states)
    columns = (TextColumn("delivering"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)

        def show(states: list[SinkState]) -> None:
            waiting = sum(state.behind_bytes for state in states)
            progress.update(task, completed=max(0, total - waiting))

        yield show


def _print(directory: Path, states: list[SinkState]) -> None:
    if not states:
        console().print(f"{directory.name} has no sinks: there is nothing to deliver.")
        return
    listing = table("sink", "state", "records", "bytes waiting", "what is wrong", numbers=("records", "bytes waiting"))
    for state in states:
        style = {"ok": "", "lagging": "yellow"}.get(state.status, "red")
        numbers = f"{state.delivered:,}", f"{state.behind_bytes:,}"
        listing.add_row(state.name, state.status, *numbers, state.error, style=style)
    console().print(listing)
