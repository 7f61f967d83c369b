"""``hookline runs delete``: deletes runs, after showing them and their sizes.

Only directories directly below a project of the root that have a ``run.json`` are ever removed. Links are not
followed, neither to runs nor out of them; running ones stay. A run is renamed before it is removed, so no listing ever
shows half of one. Stored files (images, artifacts) that only the deleted runs referred to are removed with them; those
that another run or an artifact refers to stay.

With ``--storage`` the runs are deleted in an object store, for all of its servers; the root is the local copy of one.
"""

import os
import re
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
from hookline._record.terminal import one_line, plural, printable
from hookline.callbacks.monitoring import direction
from hookline.cli.output import AsJson, console, print_json, table, wrong_input
from hookline.cli.runs.reference import OptionalRuns, Root, all_places, among
from hookline.cli.runs.text import best_by, bytes_text, how_long, number, status_text
from hookline.server.audit import AuditLog, local_user
from hookline.server.storage.mirror import copied_store, read_store_id
from hookline.server.storage.objects import ObstoreObjects, StorageError, open_objects, without_secrets
from hookline.server.storage.protocol import Deletion, RunObjects, delete_run
from hookline.store.edits import blobs_of, remove_blobs, remove_run
from hookline.store.run_info import RunInfo, RunLocation
from hookline.store.runs import Runs, runs

_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")

OlderThan = Annotated[
    str | None, typer.Option(help="Only runs that ended at least this long ago: 30d, 12h, 2w.", metavar="AGE")
]
Statuses = Annotated[list[str] | None, typer.Option(help="Only these statuses, e.g. failed.", show_default=False)]
KeepBest = Annotated[int | None, typer.Option(min=1, metavar="N", help="Keep the N best, by --by.")]
StorageUrl = Annotated[
    str | None,
    typer.Option(
        "--storage",
        help="Delete them in this object store; --root is then the local copy of a server (--cache).",
        metavar="URL",
    ),
]
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
    storage: StorageUrl = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted without deleting it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the given runs, or all that match the options. Shows them and asks first; running ones stay."""
    with wrong_input(as_json=as_json):
        rule = _Rule(older_than, status, keep_best, by, mode)
        _check(rule, given, needs_answer=as_json and not (yes or dry_run))
        objects = _opened(root, storage)
        found = _candidates(root, given or [])
        running = [info for info in found if is_active(info)]
        selected = _select(found.filter(lambda info: not is_active(info)), rule)
    if not as_json:
        _print(selected, running, by)
    if selected and not (dry_run or yes) and not typer.confirm(f"Delete {plural(len(selected), 'run')} permanently?"):
        raise typer.Exit(1)
    # Before they are deleted: afterwards nothing says which files they referred to.
    used = set() if dry_run else blobs_of(one.info.directory for one in selected)
    gone = selected if dry_run else _delete(selected, found.root, objects)
    freed = 0
    if not dry_run:
        found.refresh()  # also removes them from the index
        freed = remove_blobs(found.root, used)
    if as_json:
        left = [info.id for info in running]
        print_json({"deleted": not dry_run, "runs": [one.document for one in gone], "running": left})
    elif gone and not dry_run:
        console().print(
            f"Deleted {plural(len(gone), 'run')}: {bytes_text(freed + sum(one.bytes for one in gone))} freed."
        )
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
    chosen = found.filter(is_older(rule.older_than), status=rule.status)
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
        if info.id in wanted and is_active(info):
            raise ConfigError(f"{info.id} is still running. Stop it first. Nothing was deleted.")
    return found.filter(lambda info: info.id in wanted)


def is_active(info: RunInfo) -> bool:
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


def is_older(age: str | None) -> Callable[[RunInfo], bool] | None:
    """A test for runs that ended before an age such as ``30d``; None without an age.

    Raises:
        OptionError: It is not an age.
    """
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
    console().print(
        f"{plural(len(gone), 'run')}, {bytes_text(total)} on disk." if gone else "There is nothing to delete."
    )
    if left:
        console().print(f"Kept, because they are running: {', '.join(info.id for info in left)}", soft_wrap=True)


def _opened(root: Path, url: str | None) -> ObstoreObjects | None:
    """The object store of a root; None if it is a directory of its own.

    Raises:
        ConfigError: The root is a copy, and the store is not given, or another one.
    """
    copied = copied_store(root)
    if url is None and copied is not None:
        raise ConfigError(
            f"--root {root} is a server's local copy of an object store. To delete runs there, give --storage, too."
        )
    if url is None:
        return None
    objects = open_objects(url)
    if copied is None or copied != read_store_id(objects):
        raise ConfigError(
            f"--root {root} is not a local copy of {without_secrets(url)}: give the --cache directory of one of its "
            "servers."
        )
    return objects


def _remove(info: RunInfo, root: Path, objects: ObstoreObjects | None) -> None:
    if objects is not None:
        project, run = info.project, info.directory.name
        delete_run(objects, RunObjects.of(project, run), Deletion(project, run))
    # The copies of other servers go when they notice.
    remove_run(root, info.directory)


def _delete(selected: list[_Deletion], root: Path, objects: ObstoreObjects | None) -> list[_Deletion]:
    """Delete runs; return those that were deleted, and report the others."""
    gone = []
    audit = AuditLog(root)
    for one in selected:
        try:
            _remove(one.info, root, objects)
        except (OSError, StorageError) as error:
            typer.echo(printable(f"{one.info.id} is not deleted: {error}"), err=True)
        else:
            gone.append(one)
            if audit.path.exists():  # a server's root: others want to know who deleted their run
                audit.record("run.deleted", local_user(), project=one.info.project, target=one.info.directory.name)
    audit.close()
    return gone
