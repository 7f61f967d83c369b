"""``hookline runs``: what can be done with recorded runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from hookline._engine.errors import HooklineError
from hookline._record import run_directory
from hookline._record.delivery import SinkState, sink_states
from hookline._record.delivery_manager import find_lost_outputs
from hookline._record.delivery_manager import sync as deliver
from hookline._record.terminal import one_line
from hookline.cli.output import AsJson, CommandGroup, console, print_json, table, wrong_input
from hookline.cli.runs.compare import compare_command
from hookline.cli.runs.delete import delete_command
from hookline.cli.runs.listing import list_command
from hookline.cli.runs.reference import OptionalRun, Root, all_places, locate
from hookline.cli.runs.show import show_command
from hookline.cli.runs.tail import tail_command
from hookline.cli.runs.text import bytes_text
from hookline.cli.runs.transfer import export_command, import_command
from hookline.cli.runs.verify import verify_command
from hookline.logging import setup
from hookline.store.run_info import RunLocation

app = CommandGroup(help="Look at recorded runs, and look after them.")
app.command("list")(list_command)
app.command("show")(show_command)
app.command("compare")(compare_command)
app.command("tail")(tail_command)
app.command("export")(export_command)
app.command("delete")(delete_command)
app.command("verify")(verify_command)
app.command("import")(import_command)

Seconds = Annotated[float, typer.Option(min=0.0, help="How long to try at most, for each run.")]

Trust = Annotated[bool, typer.Option("--trust", help="Obey the settings of sinks whoever wrote them down.")]


@app.command()
def sync(
    run: OptionalRun = None,
    *,
    root: Root = Path("runs"),
    seconds: Seconds = 300.0,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Deliver to its sinks what a run that is over left behind, or without one what any run left behind.

    This includes what the handlers of `hookline.logging` had not written when their process died: without a run, in
    the directory that the root lies in and two levels below it; or give the file or directory instead of a run.
    Files of sinks that are gone, cut or replaced are written again. Where a run is given, `hookline serve` is also sent
    again what it had of it and lost. The exit status is 1 if something still waits.

    A sink whose settings were not written down by one of your own processes is refused where they ask for variables of
    the environment, imports, addresses or paths outside of the run's directory, unless --trust is given.
    """
    with wrong_input(as_json=as_json):
        chosen, logged = _chosen(root, run)
    delivered = []
    for place in chosen:
        with _bar(sink_states(place.directory)) as show:
            delivered.append(
                deliver(place.directory, seconds=seconds, repair=run is not None, trusted=trust, progress=show)
            )
        if not as_json:
            _print(place.id, delivered[-1])
    documents = [{"run": place.id, "sinks": states} for place, states in zip(chosen, delivered, strict=True)]
    from_logging = []
    for left in logged:
        with _bar(sink_states(left.directory)) as show:
            delivered.append(left.deliver(seconds, show, trusted=trust))
        from_logging.append({"path": str(left.path), "sinks": delivered[-1]})
        if not as_json:
            _print(str(left.path), delivered[-1])
    if as_json and run is not None:
        print_json(documents[0] if documents else {"logging": from_logging})
    elif as_json:
        print_json({"root": str(root.resolve()), "runs": documents, "logging": from_logging})
    elif not delivered:
        console().print(f"Nothing waits to be delivered in {Path(run or root).resolve()}.", soft_wrap=True)
    if any(state.behind_bytes or state.status != "ok" for states in delivered for state in states):
        raise typer.Exit(1)


def _chosen(root: Path, run: str | None) -> tuple[list[RunLocation], list[setup.UndeliveredJournal]]:
    """The runs and the journals of logging to deliver from.

    Raises:
        HooklineError: There is no such run, and nothing else that is called so; or there is no such root.
    """
    if run is None:
        logged = setup.find_undelivered(root.resolve().parent)
        return [place for place in all_places(root) if _waits(place)] if root.is_dir() or not logged else [], logged
    logged = setup.find_undelivered(Path(run)) if not (Path(run) / run_directory.METADATA).is_file() else []
    if logged:
        return [], logged
    try:
        return [locate(root, run)], []
    except HooklineError:
        if Path(run).exists():  # a place of logging where nothing is left
            return [], []
        raise


def _waits(place: RunLocation) -> bool:
    """Whether a run that is over left something behind, or lost an output; a live one delivers itself."""
    is_behind = any(state.behind_bytes for state in sink_states(place.directory))
    return (is_behind or bool(find_lost_outputs(place.directory))) and not run_directory.is_alive(place.directory)


@contextmanager
def _bar(states: list[SinkState]) -> Iterator[Callable[[list[SinkState]], None]]:
    """A progress bar on standard error over the bytes that wait, and what moves it."""
    from hookline.callbacks.progress_display import transient_bar  # here, to keep other commands fast

    total = sum(state.behind_bytes for state in states)
    with transient_bar("delivering", total=total, in_bytes=True) as update:
        yield lambda states: update(max(0, total - sum(state.behind_bytes for state in states)), None)


def _print(name: str, states: list[SinkState]) -> None:
    if not states:
        console().print(f"{one_line(name)} has no sinks: there is nothing to deliver.", soft_wrap=True)
        return
    console().print(one_line(name), style="bold", soft_wrap=True)
    listing = table("sink", "state", "records", "bytes waiting", "what is wrong", numbers=("records", "bytes waiting"))
    for state in states:
        style = {"ok": "", "lagging": "yellow"}.get(state.status, "red")
        numbers = f"{state.delivered:,}", f"{state.behind_bytes:,}"
        listing.add_row(state.name, state.status, *numbers, state.error, style=style)
    console().print(listing)
    for state in states:
        if state.sent_again_bytes:
            said = f"{one_line(state.name)} had lost {bytes_text(state.sent_again_bytes)}: they were sent again."
            console().print(said, soft_wrap=True)
        if state.left_out:
            said = (
                f"{one_line(state.name)} did not take {state.left_out:,} values of metrics: they are in the run only."
            )
            console().print(said, soft_wrap=True)
