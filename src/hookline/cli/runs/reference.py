"""Finds the run that a command is about: by id, name, part of an id, directory, or ``latest``.

A name or part that matches several runs is an error that lists them. Only names and ``run.json`` are read, so this is
fast enough for shell completion.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hookline._engine.defaults import ROOT_VARIABLE
from hookline._engine.errors import UnknownNameError, closest
from hookline._record.run_directory import METADATA
from hookline.store.run_info import RunLocation, find_runs, read_facts
from hookline.store.runs import Runs, runs
from hookline.store.store import missing_root_error

LATEST = "latest"
_SHOWN = 8
"""How many runs an ambiguous reference lists."""


def complete(ctx: typer.Context, incomplete: str) -> list[str]:
    """The ids, or else the directory names, that begin with a prefix."""
    known = list(find_runs(Path(ctx.params.get("root") or "runs").resolve()))
    ids = [name for name in (LATEST, *(place.id for place in known)) if name.startswith(incomplete)]
    return ids or [place.directory.name for place in known if place.directory.name.startswith(incomplete)]


_HELP = "An id, a unique name or part of an id, a directory, or 'latest'."
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help=_HELP, show_default=False, autocompletion=complete)]
OptionalRuns = Annotated[
    list[str] | None, typer.Argument(metavar="[RUN]...", help=_HELP, show_default=False, autocompletion=complete)
]
OptionalRun = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help=_HELP, show_default=False, autocompletion=complete)
]
Root = Annotated[Path, typer.Option(envvar=ROOT_VARIABLE, help="The directory of the runs.")]


def locate(root: Path, reference: str) -> RunLocation:
    """Find a run.

    Raises:
        ConfigError: There is no such root.
        UnknownNameError: There is no such run, or several match.
    """
    directory = Path(reference)
    if (directory / METADATA).is_file():
        directory = directory.resolve()
        return RunLocation(directory.parent.name, directory)
    return among(all_places(root), reference, root)


def all_places(root: Path) -> list[RunLocation]:
    """All runs below a root.

    Raises:
        ConfigError: There is no such root.
    """
    if not root.is_dir():
        raise missing_root_error(root.resolve())
    return list(find_runs(root.resolve()))


def among(known: Sequence[RunLocation], reference: str, root: Path) -> RunLocation:
    """Find a run among some.

    Raises:
        UnknownNameError: None matches, or several do.
    """
    if reference == LATEST:
        return latest(known, root)
    exact = [place for place in known if reference in (place.id, place.directory.name)]
    if len(exact) == 1:
        return exact[0]
    names = [] if exact else [_name(place) for place in known]
    found = exact or [place for place, name in zip(known, names, strict=True) if name == reference]
    found = found or [place for place in known if reference and reference in place.id]
    if len(found) == 1:
        return found[0]
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        ids = ", ".join(place.id for place in found[:_SHOWN])
        raise UnknownNameError(f"{reference!r} matches several runs: {ids}{more}. Give more of the id.")
    raise UnknownNameError(f"There is no run {reference!r} in {root.resolve()}. {_hint(reference, known, names)}")


def latest(known: Iterable[RunLocation], root: Path) -> RunLocation:
    """The run that was started last.

    Raises:
        UnknownNameError: There are none.
    """
    started = [(_started(place), place.id, place) for place in known]
    if not started:
        raise UnknownNameError(f"There are no runs in {root.resolve()}.")
    return max(started, key=lambda entry: entry[:2])[2]


def root_of(place: RunLocation) -> Path:
    """The root of a run."""
    return place.directory.parent.parent


def opened(chosen: Sequence[RunLocation]) -> Runs:
    """Open some runs of one root in the store."""
    wanted = {place.id for place in chosen}
    return runs(root_of(chosen[0])).filter(lambda info: info.id in wanted)


def _started(place: RunLocation) -> float:
    started: Any = read_facts(place.facts)[0].get("started")
    return float(started) if isinstance(started, int | float) else 0.0


def _name(place: RunLocation) -> str:
    name: Any = read_facts(place.facts)[0].get("name")
    return name if isinstance(name, str) else ""


def _hint(reference: str, known: Sequence[RunLocation], names: Iterable[str]) -> str:
    """The closest name, but never a list of all."""
    if not known:
        return "There are none."
    ids = [name for place in known for name in (place.id, place.directory.name)]
    hint = closest(reference, {LATEST, *ids, *filter(None, names)})
    return hint if hint.startswith("Did") else "See them with: hookline runs list"
