"""``hookline runs list``: which runs there are, the latest first, and how each is."""

import time
from pathlib import Path
from typing import Annotated

import typer

from hookline.cli.output import AsJson, console, print_json, table
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
    now = time.time()
    named = any(info.name != info.id.rpartition("/")[2] for info in shown)
    width = console().width
    belonging = width >= _WIDE and any(info.experiment is not None for info in shown)  # its directory is called like it
    tagged = width >= _WIDE and any(info.tags for info in shown)
    optional = [name for name, is_there in (("name", named), ("experiment", belonging), ("tags", tagged)) if is_there]
    columns = ("run", *optional, "status", "step", "age", "last metrics")
    listing = table(*columns, whole=("run", "status", "step", "age"), numbers=("step",))
    for info in shown:
        status = status_text(info.status)
        if info.problems:
            status.append(" !", style="yellow")
        seen = info.last_seen or info.started
        age = how_long(None if seen is None else now - seen)
        metrics = metrics_text(info.metrics, _METRICS if width >= _WIDE else 1)
        texts = {"name": one_line(info.name), "experiment": belongs_to(info), "tags": one_line(", ".join(info.tags))}
        extras = [texts[name] for name in optional]
        listing.add_row(one_line(info.id), *extras, status, steps_text(info), age, metrics)
    console().print(listing)
    if more:
        console().print(f"{more:,} more; --latest {len(shown) + more} shows all.", style="dim")
    if any(info.problems for info in shown):
        console().print("! something is missing or damaged: hookline runs verify RUN", style="dim")


def _print_none(found: Runs, *, is_filtered: bool) -> None:
    which = "no such runs" if is_filtered else "no runs"
    console().print(f"There are {which} in {found.root}.", soft_wrap=True)
