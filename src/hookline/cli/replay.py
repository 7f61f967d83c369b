"""``hookline replay``: what callbacks of a file would have done in a recorded run, beside what happened."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hookline._engine.costs import duration
from hookline._engine.errors import ConfigError
from hookline._record.terminal import one_line, plural
from hookline.cli.hooks import make_current_directory_importable
from hookline.cli.output import AsJson, console, foreign_code, print_json, table, wrong_input
from hookline.cli.runs.reference import Root, RunArgument, locate
from hookline.cli.runs.text import number
from hookline.config.loading import load_callbacks
from hookline.loops.replay import replay
from hookline.loops.replay_result import Replay

_SHOWN = 12
"""How many alerts, errors and values of a subscriber are printed."""

Callbacks = Annotated[
    Path,
    typer.Option(
        "--callbacks", metavar="FILE", help="A YAML, TOML or JSON file with a list of callbacks.", show_default=False
    ),
]


def replay_command(
    run: RunArgument, callbacks: Callbacks, *, root: Root = Path("runs"), as_json: AsJson = False
) -> None:
    """Replay a recorded run to callbacks: what would this early stopping, alert or checkpoint rule have done?

    Nothing is written into the run, and nothing is sent. The code of the callbacks really runs, including what it does
    outside of hookline.
    """
    with wrong_input(as_json=as_json):
        place = locate(root, run)
        if callbacks.suffix == ".py":
            raise ConfigError(f"{callbacks}: this is Python; give a YAML, TOML or JSON file with a list of callbacks.")
        make_current_directory_importable()
        with foreign_code(), _quiet_logging():
            result = replay(place.directory, load_callbacks(callbacks))
    if as_json:
        print_json(result.document())
    else:
        _print(console(), result)


@contextmanager
def _quiet_logging() -> Iterator[None]:
    """Leave out log lines below errors: the result lists alerts, and they would be printed twice."""
    logger = logging.getLogger("hookline")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _print(out: Console, result: Replay) -> None:
    recording = result.recording
    speed = recording.step / result.seconds if result.seconds > 0 else 0.0
    out.print(
        f"{one_line(recording.name)}  {recording.step:,} steps, {plural(recording.rows, 'row')}, "
        f"replayed in {duration(result.seconds)} ({speed:,.0f} steps/s)",
        style="bold",
        soft_wrap=True,
        markup=False,
    )
    numbers = ("stops at", "alerts", "errors", "cost")
    listing = table("", "stops at", "alerts", "saves at", "keeps", "errors", "cost", whole=("",), numbers=numbers)
    saves = _steps(recording.checkpoints)
    listing.add_row("recorded", f"{recording.step:,}", f"{len(recording.alerts):,}", saves, "", "", "")
    costs = {cost.name: duration(cost.total_seconds) for cost in result.costs}
    for name in result.subscribers:
        own = result.of(name)
        stop = f"{own.stops[0].step:,}" if own.stops else "-"
        saved, kept = _steps([each.step for each in own.checkpoints]), _steps(own.kept)
        alerts, errors = f"{len(own.alerts):,}", f"{len(own.errors):,}"
        listing.add_row(one_line(name), stop, alerts, saved, kept, errors, costs.get(name, ""))
    out.print(listing)
    out.print(f"The recording {_recorded_end(result)}.", markup=False, highlight=False, soft_wrap=True)
    _print_list(out, "Stops", [f"step {each.step}  {each.subscriber}: {each.reason}" for each in result.stops])
    _print_list(out, "Alerts", [f"step {each.step}  {each.subscriber}: {each.message}" for each in result.alerts])
    failed = [f"step {each.step}  {each.subscriber} at {each.moment}: {each.error!r}" for each in result.errors]
    _print_list(out, "Errors", failed)
    values = [f"step {each.step}  {each.name} = {_value(each.value)}" for each in result.values]
    _print_list(out, "Values", values)
    needs = [f"{name}: {', '.join(missing)}" for name, missing in result.unavailable.items()]
    _print_list(out, "Not in a recording", needs)
    if result.ended_by is not None:
        out.print(f"A critical callback ended the replay: {result.ended_by!r}", style="red", markup=False)


def _print_list(out: Console, title: str, lines: Sequence[str]) -> None:
    if not lines:
        return
    out.print(title, style="bold")
    for line in lines[:_SHOWN]:
        out.print(f"  {one_line(line)}", markup=False, highlight=False, soft_wrap=True)
    if len(lines) > _SHOWN:
        out.print(f"  and {len(lines) - _SHOWN:,} more; --json lists them", style="dim")


def _recorded_end(result: Replay) -> str:
    recording = result.recording
    reason = recording.stop_reason or recording.error
    ending = "has no end" if recording.status == "running" else recording.status
    return f"{ending} at step {recording.step:,}" + (f": {one_line(reason)}" if reason else "")


def _steps(steps: Sequence[int]) -> str:
    if not steps:
        return "-"
    shown = ", ".join(str(step) for step in steps[-4:])
    return shown if len(steps) <= 4 else f"{len(steps):,} times, last {shown}"


def _value(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)
