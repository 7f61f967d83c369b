"""Which run a command is about: its id, a part of it that no other has, its directory, or ``latest``.

Only names and ``run.json`` are looked at, so this is cheap enough to complete ids in a shell.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hookline.core.errors import ConfigError, UnknownNameError, closest
from hookline.record.run_directory import FACTS
from hookline.store.catalogue import Place, places, read_facts
from hookline.store.runs import Runs, runs

LATEST = "latest"
_SHOWN = 8
"""How many runs are named where several are meant."""


def complete(ctx: typer.Context, incomplete: str) -> list[str]:
    """The ids that begin as given, or the names of the runs' directories that do."""
    known = list(places(Path(ctx.params.get("root") or "runs").resolve()))
    ids = [name for name in (LATEST, *(place.id for place in known)) if name.startswith(incomplete)]
    return ids or [place.directory.name for place in known if place.directory.name.startswith(incomplete)]


_HELP = "An id, a part of it that no other run has, a directory, or 'latest'."
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help=_HELP, show_default=False, autocompletion=complete)]
OptionalRuns = Annotated[
    list[str] | None, typer.Argument(metavar="[RUN]...", help=_HELP, show_default=False, autocompletion=complete)
]
Root = Annotated[Path, typer.Option(help="Where runs are recorded.")]


def locate(root: Path, reference: str) -> Place:
    """The run that is meant.

    Raises:
        ConfigError: There is no such root.
        UnknownNameError: There is no such run, or several are meant.
    """
    directory = Path(reference)
    if (directory / FACTS).is_file():
        directory = directory.resolve()
        return Place(directory.parent.name, directory)
    return among(all_places(root), reference, root)


def all_places(root: Path) -> list[Place]:
    """All runs below a root.

    Raises:
        ConfigError: There is no such root.
    """
    if not root.is_dir():
        raise ConfigError(f"{root}: there is no such directory. Give the one that runs are recorded in with --root.")
    return list(places(root.resolve()))


def among(known: Sequence[Place], reference: str, root: Path) -> Place:
    """The one of some runs that is meant.

    Raises:
        UnknownNameError: There is none, or there are several.
    """
    if reference == LATEST:
        return latest(known, root)
    exact = [place for place in known if reference in (place.id, place.directory.name)]
    found = exact or [place for place in known if reference and reference in place.id]
    if len(found) == 1:
        return found[0]
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        names = ", ".join(place.id for place in found[:_SHOWN])
        raise UnknownNameError(f"{reference!r} may be several runs: {names}{more}. Give more of the id.")
    names_known = [place.id for place in known] + [place.directory.name for place in known]
    raise UnknownNameError(f"There is no run {reference!r} in {root.resolve()}. {_hint(reference, names_known)}")


def latest(known: Iterable[Place], root: Path) -> Place:
    """The run that was started last.

    Raises:
        UnknownNameError: There are none.
    """
    started = [(_started(place), place.id, place) for place in known]
    if not started:
        raise UnknownNameError(f"There are no runs in {root.resolve()}.")
    return max(started, key=lambda entry: entry[:2])[2]


def root_of(place: Place) -> Path:
    """The root that a run lies below."""
    return place.directory.parent.parent


def opened(chosen: Sequence[Place]) -> Runs:
    """Some runs of one root in the store."""
    wanted = {place.id for place in chosen}
    return runs(root_of(chosen[0])).filter(lambda info: info.id in wanted)


def _started(place: Place) -> float:
    started: Any = read_facts(place.facts)[0].get("started")
    return float(started) if isinstance(started, int | float) else 0.0


def _hint(reference: str, names: list[str]) -> str:
    """The closest name; not all of a thousand."""
    said = closest(reference, names)
    return said if said.startswith(("Did", "There")) else "See them with: hookline runs list"
