"""``hookline runs delete``: deletes runs, after showing them and their sizes.

Only directories directly below a project of the root that have a ``run.json`` are ever removed. Links are not
followed, neither to runs nor out of them; running ones stay. A run is renamed before it is removed, so no listing ever
shows half of one.
"""

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hookline._engine.errors import ConfigError, OptionError, UnknownNameError, closest
from hookline._record import run_directory
from hookline._record.run_directory import METADATA
from hookline._record.terminal import one_line, printable
from hookline.callbacks.monitoring import direction
from hookline.cli.output import AsJson, console, print_json, table, wrong_input
from hookline.cli.runs.reference import OptionalRuns, Root, all_places, among
from hookline.cli.runs.text import best_by, bytes_text, how_long, number, status_text
from hookline.store.run_info import RunInfo, RunLocation
from hookline.store.runs import Runs, runs

_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")

OlderThan = Annotated[
    str | None, typer.Option(help="Only runs that ended before this: 30d, 12h, 2w ago.", metavar="AGE")
]
Statuses = Annotated[list[str] | None, typer.Option(help="Only these statuses, e.g. failed.", show_default=False)]
KeepBest = Annotated[int | None, typer.Option(min=1, metavar="N", help="Keep the N best, by --by.")]
By = Annotated[str | None, typer.Option(metavar="METRIC", help="The metric of --keep-best: the best value of a run.")]
Mode = Annotated[Literal["min", "max"] | None, typer.Option(help="Whether smaller or larger values are better.")]


@dataclass(frozen=True, slots=True)
class _Rule:
    """Which of the ended runs to delete."""

    older_than: str | None
    status: list[str] | None
    keep_best: int | None
    by: str | None
    mode: Literal["min", "max"] | None

    @property
    def is_empty(self) -> bool:
        """Whether it would delete all runs."""
        return not (self.older_than or self.status or self.keep_best)


@dataclass(frozen=True, slots=True)
class _Deletion:
    """A run to delete, its size on disk, and its value of the metric."""

    info: RunInfo
    bytes: int
    value: float | None

    @property
    def document(self) -> dict[str, Any]:
        """Its entry in the JSON document."""
        return {"id": self.info.id, "directory": str(self.info.directory), "bytes": self.bytes}


def delete_command(
    given: OptionalRuns = None,
    *,
    root: Root = Path("runs"),
    older_than: OlderThan = None,
    status: Statuses = None,
    keep_best: KeepBest = None,
    by: By = None,
    mode: Mode = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the given runs, or all that match the options. Shows them and asks first; running ones stay."""
    with wrong_input(as_json=as_json):
        rule = _Rule(older_than, status, keep_best, by, mode)
        _check(rule, given, needs_answer=as_json and not (yes or dry_run))
        found = _candidates(root, given or [])
        running = [info for info in found if _is_active(info)]
        selected = _select(found.filter(lambda info: not _is_active(info)), rule)
    if not as_json:
        _print(selected, running, by)
    if selected and not (dry_run or yes) and not typer.confirm(f"Delete {_count(selected)} for good?"):
        raise typer.Exit(1)
    gone = selected if dry_run else _delete(selected, found.root)
    if not dry_run:
        found.refresh()  # also removes them from the index
    if as_json:
        left = [info.id for info in running]
        print_json({"deleted": not dry_run, "runs": [one.document for one in gone], "running": left})
    elif gone and not dry_run:
        console().print(f"Deleted {_count(gone)}: {bytes_text(sum(one.bytes for one in gone))} freed.")
    if len(gone) < len(selected):
        raise typer.Exit(1)


def _check(rule: _Rule, given: Sequence[str] | None, *, needs_answer: bool) -> None:
    if not given and rule.is_empty:
        raise OptionError("Give runs, --older-than, --status or --keep-best: this command never deletes all runs.")
    if (rule.keep_best is None) != (rule.by is None):
        raise OptionError("--keep-best and --by go together, e.g. --keep-best 3 --by val/loss.")
    if rule.mode is not None and rule.by is None:
        raise OptionError(f"--mode {rule.mode} needs a metric: give --keep-best and --by with it.")
    if needs_answer:
        raise OptionError("--json cannot ask: give --yes or --dry-run with it.")


def _select(found: Runs, rule: _Rule) -> list[_Deletion]:
    chosen = found.filter(_is_older(rule.older_than), status=rule.status)
    values: Mapping[str, float] = {}
    kept: set[str] = set()
    if rule.by is not None and len(chosen):
        way = direction(rule.by, rule.mode)
        values = best_by(chosen, rule.by, way)
        if not values:
            known = {row["name"] for row in chosen.metric_names()}
            raise UnknownNameError(f"--by {rule.by}: none of these runs recorded it. {closest(rule.by, known)}")
        ranked = sorted(values, key=lambda run: values[run], reverse=way == "max")
        kept = set(ranked[: rule.keep_best])
    return [_Deletion(info, disk_bytes(info.directory), values.get(info.id)) for info in chosen if info.id not in kept]


def _candidates(root: Path, given: Sequence[str]) -> Runs:
    """The given runs, or all.

    Raises:
        ConfigError: A given one is running, is a link, or is outside of the root.
    """
    known = all_places(root)
    found = runs(root)
    if not given:
        return found
    wanted = {_inside(known, reference, root).id for reference in given}
    for info in found:
        if info.id in wanted and _is_active(info):
            raise ConfigError(f"{info.id} is still running. Stop it first. Nothing was deleted.")
    return found.filter(lambda info: info.id in wanted)


def _is_active(info: RunInfo) -> bool:
    """Whether a process still uses it, even if only to deliver the last rows."""
    return not info.is_over or bool(run_directory.is_alive(info.directory))


def _inside(known: Sequence[RunLocation], reference: str, root: Path) -> RunLocation:
    path = Path(reference)
    if not (path / METADATA).is_file():
        return among(known, reference, root)
    if path.is_symlink():
        raise ConfigError(f"{reference} is a link, which is not followed. Delete the link, or give the run itself.")
    found = next((place for place in known if place.directory == path.resolve()), None)
    if found is None:
        raise ConfigError(f"{reference} is outside of {root.resolve()}: it is not deleted. Give its root with --root.")
    return found


def _is_older(age: str | None) -> Callable[[RunInfo], bool] | None:
    if age is None:
        return None
    match = _AGE.fullmatch(age)
    if match is None:
        raise OptionError(f"--older-than {age}: give a number and s, m, h, d or w, e.g. 30d.")
    before = time.time() - float(match[1]) * _AGES[match[2]]
    return lambda info: (when := info.ended or info.last_seen or info.started) is not None and when < before


def disk_bytes(directory: Path) -> int:
    """The disk usage of a directory, without following links."""
    total = 0
    for folder, _, names in os.walk(directory, followlinks=False):
        for path in (folder, *(os.path.join(folder, name) for name in names)):  # noqa: PTH118 - of many files
            with suppress(OSError):
                total += os.lstat(path).st_blocks * 512  # allocated blocks, not the size
    return total


def _print(gone: list[_Deletion], left: list[RunInfo], by: str | None) -> None:
    now = time.time()
    if gone:
        extra = (one_line(by),) if by else ()
        listing = table("run", "status", "ended", *extra, "size", whole=("run",), numbers=(*extra, "size"))
        for one in gone:
            info = one.info
            ended = how_long(None if info.ended is None else now - info.ended)
            value = ["-" if one.value is None else number(one.value)] if by else []
            ago = "-" if info.ended is None else f"{ended} ago"
            listing.add_row(one_line(info.id), status_text(info.status), ago, *value, bytes_text(one.bytes))
        console().print(listing)
    total = sum(one.bytes for one in gone)
    console().print(f"{_count(gone)}, {bytes_text(total)} on disk." if gone else "There is nothing to delete.")
    if left:
        console().print(f"Kept, because they are running: {', '.join(info.id for info in left)}", soft_wrap=True)


def _count(gone: Sequence[_Deletion]) -> str:
    return "1 run" if len(gone) == 1 else f"{len(gone):,} runs"


def _delete(selected: list[_Deletion], root: Path) -> list[_Deletion]:
    """Delete runs; return those that were deleted, and report the others."""
    gone = []
    for one in selected:
        try:
            _remove(one.info.directory, root)
        except OSError as error:
            typer.echo(printable(f"{one.info.id} is not deleted: {error}"), err=True)
        else:
            gone.append(one)
    return gone


def _remove(directory: Path, root: Path) -> None:
    project = directory.parent
    if directory.is_symlink() or project.is_symlink() or project.parent != root:
        raise OSError(f"{directory} is a link, or outside of {root}")
    if run_directory.is_alive(directory):
        raise OSError("it is running")
    aside = directory.with_name(f".deleted-{secrets.token_hex(4)}")
    directory.rename(aside)
    shutil.rmtree(aside)
    with suppress(OSError):  # it has other runs
        project.rmdir()
