"""``hookline runs compress``: compresses the journals of ended runs with zstd, or unpacks them."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hookline._engine.errors import ConfigError, OptionError
from hookline._record.run_directory import METADATA
from hookline._record.terminal import one_line, plural
from hookline.cli.output import AsJson, console, print_json, table, wrong_input
from hookline.cli.runs.delete import is_active, is_older
from hookline.cli.runs.reference import OptionalRuns, Root, all_places, among
from hookline.cli.runs.text import bytes_text
from hookline.store import CompressedRun, Runs, runs
from hookline.store.run_info import RunLocation

All = Annotated[bool, typer.Option("--all", help="All ended runs.")]
OlderThan = Annotated[
    str | None, typer.Option(metavar="DAYS", help="Only runs that ended at least this long ago: days, or 12h, 2w.")
]
Undo = Annotated[bool, typer.Option("--undo", help="Unpack compressed journals, byte for byte.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done without changing anything.")]


def compress_command(
    given: OptionalRuns = None,
    *,
    every: All = False,
    older_than: OlderThan = None,
    root: Root = Path("runs"),
    undo: Undo = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Compress the journals of ended runs with zstd, to about a quarter of their size. They stay readable everywhere.

    Give runs, --all or --older-than. Live runs are skipped; nothing is lost if the command is interrupted. The
    exit status is 1 if a file was skipped, e.g. because it is damaged.
    """
    from hookline.callbacks.progress_display import transient_bar  # here, to keep other commands fast

    with wrong_input(as_json=as_json):
        if not (given or every or older_than):
            raise OptionError("Name runs, or pass --all or --older-than.")
        if given and every:
            raise OptionError("Give runs or --all, not both.")
        is_number = older_than is not None and older_than.replace(".", "", 1).isdigit()
        age = f"{older_than}d" if is_number else older_than
        chosen = _chosen(root, given or [], undo=undo).filter(is_older(age))
        with transient_bar("unpacking" if undo else "compressing", total=len(chosen)) as show:
            done = chosen.compress(undo=undo, dry_run=dry_run, progress=show)
    if as_json:
        print_json({"undo": undo, "dry_run": dry_run, "runs": [asdict(one) for one in done]})
    else:
        _print(done, undo=undo, dry_run=dry_run)
    if any(one.skipped for one in done):
        raise typer.Exit(1)


def _chosen(root: Path, given: list[str], *, undo: bool) -> Runs:
    """The given runs, or all.

    Raises:
        ConfigError: A given one is running, or outside of the root.
    """
    known, found = all_places(root), runs(root)
    if not given:
        return found
    wanted = {_inside(known, reference, root).id for reference in given}
    for info in found:
        if info.id in wanted and is_active(info) and not undo:
            raise ConfigError(f"{info.id} is still running. Compress it when it has ended. Nothing was compressed.")
    return found.filter(lambda info: info.id in wanted)


def _inside(known: list[RunLocation], reference: str, root: Path) -> RunLocation:
    path = Path(reference)
    if not (path / METADATA).is_file():
        return among(known, reference, root)
    found = next((place for place in known if place.directory == path.resolve()), None)
    if found is None:
        raise ConfigError(f"{reference} is outside of {root.resolve()}. Give its root with --root.")
    return found


def _print(done: list[CompressedRun], *, undo: bool, dry_run: bool) -> None:
    out, changed = console(), [one for one in done if one.files]
    if changed:
        columns = ("files", "before") if dry_run else ("files", "before", "after")
        listing = table("run", *columns, whole=("run",), numbers=columns)
        for one in changed:
            sizes = [bytes_text(size) for size in (one.before, one.after) if size is not None]
            listing.add_row(one_line(one.run), f"{one.files:,}", *sizes)
        out.print(listing)
    for one in done:
        for name, reason in one.skipped.items():
            out.print(f"{one_line(one.run)}: skipped {one_line(name)}: {one_line(reason)}", soft_wrap=True)
    verb = "unpack" if undo else "compress"
    if not changed:
        out.print(f"There is nothing to {verb}.")
    elif dry_run:
        out.print(f"Would {verb} {plural(len(changed), 'run')}, {bytes_text(sum(one.before for one in changed))}.")
    else:
        before, after = sum(one.before for one in changed), sum(one.after or 0 for one in changed)
        past = "Unpacked" if undo else "Compressed"
        out.print(f"{past} {plural(len(changed), 'run')}: {bytes_text(before)} before, {bytes_text(after)} now.")
    for one in done:
        if one.refused:
            out.print(f"{one_line(one.run)}: skipped, because {one.refused}.", soft_wrap=True)
