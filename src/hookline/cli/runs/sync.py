"""``hookline runs sync``: delivers what ended runs have not delivered to their sinks."""

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
from hookline._record.terminal import one_line, plural
from hookline.cli.output import AsJson, console, print_json, table, wrong_input
from hookline.cli.runs.reference import OptionalRun, Root, all_places, locate
from hookline.cli.runs.text import bytes_text
from hookline.logging import setup
from hookline.store.run_info import RunLocation

Seconds = Annotated[float, typer.Option(min=0.0, help="The longest time to try, for each run.")]

Trust = Annotated[bool, typer.Option("--trust", help="Trust the sink settings of the run, also if others wrote them.")]


def sync_command(
    run: OptionalRun = None,
    *,
    root: Root = Path("runs"),
    seconds: Seconds = 300.0,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Deliver undelivered records of an ended run, or of all ended runs, to their sinks.

    This includes records that handlers of `hookline.logging` had not written when their process died: without a run,
    in the root's parent directory and two levels below it; or give the file or directory instead of a run. Output
    files of sinks that were removed, truncated or replaced are written again. If a run is given, `hookline serve` also
    receives again what it had of it and lost. The exit status is 1 if records are still undelivered.

    Sink settings that were not written by one of your own processes are refused if they use environment variables,
    imports, addresses, or paths outside of the run's directory, unless --trust is given.
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
        console().print(f"Nothing is undelivered in {Path(run or root).resolve()}.", soft_wrap=True)
    if any(state.behind_bytes or state.status != "ok" for states in delivered for state in states):
        raise typer.Exit(1)


def _chosen(root: Path, run: str | None) -> tuple[list[RunLocation], list[setup.UndeliveredJournal]]:
    """The runs and the logging journals to deliver from.

    Raises:
        HooklineError: There is no such run, file or root.
    """
    if run is None:
        logged = setup.find_undelivered(root.resolve().parent)
        return [
            place for place in all_places(root) if _has_undelivered(place)
        ] if root.is_dir() or not logged else [], logged
    logged = setup.find_undelivered(Path(run)) if not (Path(run) / run_directory.METADATA).is_file() else []
    if logged:
        return [], logged
    try:
        return [locate(root, run)], []
    except HooklineError:
        if Path(run).exists():  # a logging directory with nothing left
            return [], []
        raise


def _has_undelivered(place: RunLocation) -> bool:
    """Whether an ended run has undelivered records or lost an output; a live one delivers itself."""
    is_behind = any(state.behind_bytes for state in sink_states(place.directory))
    return (is_behind or bool(find_lost_outputs(place.directory))) and not run_directory.is_alive(place.directory)


@contextmanager
def _bar(states: list[SinkState]) -> Iterator[Callable[[list[SinkState]], None]]:
    """Show a progress bar for the undelivered bytes; yields the function that updates it."""
    from hookline.callbacks.progress_display import transient_bar  # here, to keep other commands fast

    total = sum(state.behind_bytes for state in states)
    with transient_bar("delivering", total=total, in_bytes=True) as update:
        yield lambda states: update(max(0, total - sum(state.behind_bytes for state in states)), None)


def _print(name: str, states: list[SinkState]) -> None:
    if not states:
        console().print(f"{one_line(name)} has no sinks.", soft_wrap=True)
        return
    console().print(one_line(name), style="bold", soft_wrap=True)
    listing = table("sink", "state", "records", "bytes waiting", "problem", numbers=("records", "bytes waiting"))
    for state in states:
        style = {"ok": "", "lagging": "yellow"}.get(state.status, "red")
        numbers = f"{state.delivered:,}", f"{state.behind_bytes:,}"
        listing.add_row(state.name, state.status, *numbers, state.error, style=style)
    console().print(listing)
    for state in states:
        if state.sent_again_bytes:
            message = f"{one_line(state.name)} had lost {bytes_text(state.sent_again_bytes)}: they were sent again."
            console().print(message, soft_wrap=True)
        if state.left_out:
            were, them = ("was", "it") if state.left_out == 1 else ("were", "them")
            left = f"{plural(state.left_out, 'value')} {were} left out"
            message = f"{left} of {one_line(state.name)}; the run has {them}."
            console().print(message, soft_wrap=True)
        if state.blobs_left_out:
            what = "image, file or artifact" if state.blobs_left_out == 1 else "images, files or artifacts"
            message = f"{one_line(state.name)} lacks {state.blobs_left_out:,} {what}; the log says why."
            console().print(message, soft_wrap=True)
