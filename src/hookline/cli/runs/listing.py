"""``hookline runs list``: lists runs with their status, the latest first."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hookline._record.terminal import one_line
from hookline.cli.output import (
    AsJson,
    console,
    cut_end,
    cut_front,
    print_footer,
    print_json,
    table,
    width_of,
    wrong_input,
)
from hookline.cli.runs.reference import Root
from hookline.cli.runs.text import belongs_to, how_long, metrics_text, run_document, status_text, steps_text
from hookline.store.filters import parse_filter
from hookline.store.run_info import RunInfo
from hookline.store.runs import Runs, runs

_METRICS = 3
"""How many metrics of a run are shown."""
_WIDE = 120
"""On narrower terminals, optional columns are left out."""
_LEAST = 12
"""The smallest useful width of an id or a metric."""
_LONGEST = 40
"""The largest width of an experiment or of tags."""
_GAP = 3
"""The width between two columns of a table."""

Status = Annotated[
    list[str] | None,
    typer.Option(help="Only these: running, stalled, finished, stopped, failed, killed.", show_default=False),
]
Tags = Annotated[
    list[str] | None,
    typer.Option(help="Only runs with one of these tags; * stands for anything.", show_default=False),
]
Latest = Annotated[int, typer.Option(min=1, metavar="N", help="How many to show.")]


def list_command(
    *,
    root: Root = Path("runs"),
    status: Status = None,
    experiment: Annotated[str | None, typer.Option(help="Only runs of this experiment; * stands for anything.")] = None,
    project: Annotated[str | None, typer.Option(help="Only runs of this project.")] = None,
    name: Annotated[str | None, typer.Option(help="Only runs of this name.")] = None,
    tag: Tags = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="FILTER",
            help="Only runs that match, e.g. 'lr > 1e-4 and min(val/loss) < 1.5'.",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Sort by a field, e.g. 'min(val/loss)'; -FIELD sorts descending."),
    ] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Also list archived runs.")] = False,
    latest: Latest = 50,
    as_json: AsJson = False,
) -> None:
    """List runs, the latest first: status, step, age and last metrics."""
    with wrong_input(as_json=as_json):
        options = {"status": status, "experiment": experiment, "project": project, "name": name, "tag": tag}
        found = matching_runs(root, where=where, sort=sort, archived=archived, **options)
    shown = found[:latest]
    more = len(found) - len(shown)
    if as_json:
        print_json({"root": str(found.root), "runs": [run_document(info) for info in shown], "more": more})
    elif shown:
        _print(shown, more)
    else:
        which = "no such runs" if any((status, experiment, project, name, tag, where)) else "no runs"
        print_footer(f"There are {which} in {found.root}.")


def matching_runs(root: Path, *, where: str | None, sort: str | None, archived: bool, **attributes: Any) -> Runs:
    """The runs that match a filter and attributes, sorted; archived ones only if they are wanted."""
    found = runs(root).filter(where, **attributes)
    # A filter may name archived runs itself: --where 'archived = true'.
    if not archived and (where is None or all(each.name != "archived" for each in parse_filter(where).fields)):
        found = found.filter(lambda info: not info.archived)
    return found if sort is None else found.sort(sort)


def _print(shown: list[RunInfo], more: int) -> None:
    out = console()
    listing = _fitting(out, shown)
    if not sys.stdout.isatty():
        out = console(width=max(out.width, width_of(out, listing)))
    out.print(listing)
    if more:
        print_footer(f"{more:,} more; --latest {len(shown) + more} shows all.")
    if any(info.problems for info in shown):
        print_footer("! some records are missing or damaged: hookline runs verify RUN")


def _fitting(out: Console, shown: list[RunInfo]) -> Table:
    """One line per run, with as many columns and metrics as fit; in a pipe, ids are never shortened."""
    ids = [one_line(info.id) for info in shown]
    for optional in _optional(out, shown):
        room = out.width - width_of(out, _listing(shown, ids, optional, None))
        if room >= _GAP + _LEAST:
            return _listing(shown, ids, optional, [_metrics(out, info, room - _GAP) for info in shown])
    return _narrow(out, shown, ids) if sys.stdout.isatty() else _listing(shown, ids, {}, None)


def _optional(out: Console, shown: list[RunInfo]) -> Iterator[dict[str, list[str]]]:
    """The optional columns: all of them, then fewer, then none."""
    columns = {}
    if out.width >= _WIDE:
        if any(info.experiment is not None for info in shown):  # the directory is named after it
            columns["experiment"] = [cut_front(out, belongs_to(info), _LONGEST) for info in shown]
        if any(info.tags for info in shown):
            columns["tags"] = [cut_end(out, one_line(", ".join(info.tags)), _LONGEST) for info in shown]
    while columns:
        yield dict(columns)
        columns.popitem()
    yield {}


def _narrow(out: Console, shown: list[RunInfo], ids: list[str]) -> Table:
    """A narrow listing: ids without a common project, or shortened; one metric or none."""
    room = out.width - width_of(out, _listing(shown, ids, {}, None))
    if len({info.project for info in shown}) == 1:
        ids = [one_line(info.directory.name) for info in shown]
        room = out.width - width_of(out, _listing(shown, ids, {}, None))
    if room >= _GAP + _LEAST:
        return _listing(shown, ids, {}, [_metrics(out, info, room - _GAP) for info in shown])
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
    listing = table(*columns, whole=columns, numbers=("step",))
    for row in zip(*columns.values(), strict=True):
        listing.add_row(*row)
    return listing


def _status(info: RunInfo) -> Text:
    status = status_text(info.status)
    return status.append(" !", style="yellow") if info.problems else status


def _age(info: RunInfo, now: float) -> str:
    seen = info.last_seen or info.started
    return how_long(None if seen is None else now - seen)


def _metrics(out: Console, info: RunInfo, room: int) -> str:
    """As many metrics as fit; a long name is shortened from the front, never the value."""
    for count in range(_METRICS, 0, -1):
        if cell_len(shown := metrics_text(info.metrics, count)) <= room:
            return shown
    name, _, value = metrics_text(info.metrics, 1).rpartition(" ")
    return f"{cut_front(out, name, room - cell_len(value) - 1)} {value}".strip()
