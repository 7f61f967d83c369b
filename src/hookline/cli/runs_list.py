"""``hookline runs list``: which runs there are, the latest first, and how each is."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hookline.cli.output import AsJson, console, cut_front, print_json, table, width_of
from hookline.cli.run_reference import Root
from hookline.cli.run_words import (
    belongs_to,
    how_long,
    metrics_text,
    one_line,
    run_document,
    status_text,
    steps_text,
)
from hookline.cli.wrong_input import wrong_input
from hookline.store.run_info import RunInfo
from hookline.store.runs import Runs, runs

_METRICS = 3
"""How many metrics are shown of a run."""
_WIDE = 120
"""Below so many columns a run is shown in fewer words."""
_LEAST = 12
"""So many columns an id and a metric need to say something."""
_GAP = 3
"""How many columns lie between two of a table."""

Status = Annotated[
    list[str] | None,
    typer.Option(help="Only these: running, stalled, finished, stopped, failed, killed.", show_default=False),
]
Tags = Annotated[
    list[str] | None,
    typer.Option(help="Only runs with one of these tags; * stands for anything.", show_default=False),
]
Latest = Annotated[int, typer.Option(min=1, metavar="N", help="Show so many.")]


def list_command(
    *,
    root: Root = Path("runs"),
    status: Status = None,
    experiment: Annotated[str | None, typer.Option(help="Only runs of this experiment; * stands for anything.")] = None,
    project: Annotated[str | None, typer.Option(help="Only runs of this project.")] = None,
    name: Annotated[str | None, typer.Option(help="Only runs of this name.")] = None,
    tag: Tags = None,
    latest: Latest = 50,
    as_json: AsJson = False,
) -> None:
    """List runs, the latest first: status, steps, last metrics, and how long ago something was heard of them."""
    with wrong_input(as_json=as_json):
        found = runs(root).filter(status=status, experiment=experiment, project=project, name=name, tag=tag)
    shown = found[:latest]
    more = len(found) - len(shown)
    if as_json:
        print_json({"root": str(found.root), "runs": [run_document(info) for info in shown], "more": more})
    elif shown:
        _print(shown, more)
    else:
        _print_none(found, is_filtered=any((status, experiment, project, name, tag)))


def _print(shown: list[RunInfo], more: int) -> None:
    out = console()
    out.print(_wide(shown) if out.width >= _WIDE else _narrow(out, shown))
    if more:
        out.print(f"{more:,} more; --latest {len(shown) + more} shows all.", style="dim")
    if any(info.problems for info in shown):
        out.print("! something is missing or damaged: hookline runs verify RUN", style="dim")


def _wide(shown: list[RunInfo]) -> Table:
    belonging = any(info.experiment is not None for info in shown)  # its directory is called like it
    tagged = any(info.tags for info in shown)
    optional = {
        **({"experiment": [belongs_to(info) for info in shown]} if belonging else {}),
        **({"tags": [one_line(", ".join(info.tags)) for info in shown]} if tagged else {}),
    }
    metrics = [metrics_text(info.metrics, _METRICS) for info in shown]
    return _listing(shown, [one_line(info.id) for info in shown], optional, metrics)


def _narrow(out: Console, shown: list[RunInfo]) -> Table:
    """Fewer words: ids without the project where all have the same, or cut; one metric, or none if there is no room."""
    ids = [one_line(info.id) for info in shown]
    room = out.width - width_of(out, _listing(shown, ids, {}, None))
    if room < _GAP + _LEAST and len({info.project for info in shown}) == 1:
        ids = [one_line(info.directory.name) for info in shown]
        room = out.width - width_of(out, _listing(shown, ids, {}, None))
    if room >= _GAP + _LEAST:
        return _listing(shown, ids, {}, [_metric(out, info, room - _GAP) for info in shown])
    longest = max(_LEAST, max(map(cell_len, ids)) + min(room, 0))
    short = [cut_front(out, text, longest) for text in ids]
    listing = _listing(shown, short, {}, None)
    return listing if width_of(out, listing) <= out.width else _listing(shown, short, {}, None, aged=False)


def _listing(
    shown: list[RunInfo],
    ids: list[str],
    optional: dict[str, list[str]],
    metrics: list[str] | None,
    *,
    aged: bool = True,
) -> Table:
    now = time.time()
    named = any(info.name != info.id.rpartition("/")[2] for info in shown)
    columns = {
        "run": ids,
        **({"name": [one_line(info.name) for info in shown]} if named else {}),
        **optional,
        "status": [_status(info) for info in shown],
        "step": [steps_text(info) for info in shown],
        **({"age": [_age(info, now) for info in shown]} if aged else {}),
        **({} if metrics is None else {"last metrics": metrics}),
    }
    listing = table(*columns, whole=("run", "name", "status", "step", "age"), numbers=("step",))
    for row in zip(*columns.values(), strict=True):
        listing.add_row(*row)
    return listing


def _status(info: RunInfo) -> Text:
    status = status_text(info.status)
    return status.append(" !", style="yellow") if info.problems else status


def _age(info: RunInfo, now: float) -> str:
    seen = info.last_seen or info.started
    return how_long(None if seen is None else now - seen)


def _metric(out: Console, info: RunInfo, room: int) -> str:
    """The first metric; of a long name only the end, so that the value is whole."""
    name, _, value = metrics_text(info.metrics, 1).rpartition(" ")
    return f"{cut_front(out, name, room - cell_len(value) - 1)} {value}".strip()


def _print_none(found: Runs, *, is_filtered: bool) -> None:
    which = "no such runs" if is_filtered else "no runs"
    console().print(f"There are {which} in {found.root}.", soft_wrap=True)
