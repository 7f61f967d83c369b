"""The order of subscribers: preferences first, constraints always.

`arrange` takes entries in the order they would like (by priority, by adding, as moved) and gives
the nearest order in which every ``before`` and ``after`` holds. The one that states a constraint is
the one that gives way: ``after`` moves it down to just behind the other, ``before`` moves it up to
just ahead. A cycle is an error that names it.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from hookline._engine.errors import OrderError, closest
from hookline._engine.subscriber import Options, Reference


class Placed(Protocol):
    """What can be arranged: something with a unique name, the object behind it, and its options."""

    @property
    def name(self) -> str:
        """The name that no other one has."""
        ...

    @property
    def subscriber(self) -> Any:
        """The object behind it."""
        ...

    @property
    def options(self) -> Options:
        """What it was added with."""
        ...


def matches(entry: Placed, reference: Reference) -> bool:
    """Whether ``reference`` (a name or a class) means this entry."""
    return entry.name == reference if isinstance(reference, str) else isinstance(entry.subscriber, reference)


def require_known(new: Iterable[Placed], entries: Sequence[Placed]) -> None:
    """Refuse a ``before`` or ``after`` of ``new`` that nothing in ``entries`` answers to."""
    for problem in unresolved(new, entries):
        raise OrderError(f"{problem} Add it first, or in the same call.")


def unresolved(new: Iterable[Placed], entries: Sequence[Placed]) -> Iterator[str]:
    """A sentence for each ``before`` or ``after`` of ``new`` that nothing in ``entries`` answers to."""
    for entry in new:
        for key in ("before", "after"):
            for reference in getattr(entry.options, key):
                if not any(matches(other, reference) for other in entries):
                    given = reference if isinstance(reference, str) else reference.__name__
                    names = [other.name for other in entries if other is not entry]
                    yield (
                        f"{entry.name!r} is to run {key} {given!r}, but there is no such subscriber here. "
                        f"{closest(given, names)}"
                    )


E = TypeVar("E", bound="Placed")


def arrange(preferred: Sequence[E]) -> list[E]:
    """The order nearest to ``preferred`` in which all constraints hold."""
    after = _predecessors(preferred)
    keys = _keys(preferred, after)
    waiting = {name: set(names) for name, names in after.items()}
    ready = [(keys[entry.name], index) for index, entry in enumerate(preferred) if not waiting[entry.name]]
    heapq.heapify(ready)
    arranged: list[E] = []
    while ready:
        entry = preferred[heapq.heappop(ready)[1]]
        arranged.append(entry)
        for index, other in enumerate(preferred):
            if entry.name in waiting[other.name]:
                waiting[other.name].discard(entry.name)
                if not waiting[other.name]:
                    heapq.heappush(ready, (keys[other.name], index))
    return arranged


def require_order(entries: Sequence[Placed]) -> None:
    """Refuse an explicit order that breaks a constraint."""
    after = _predecessors(entries)
    seen: set[str] = set()
    for entry in entries:
        late = after[entry.name] - seen
        if late:
            raise OrderError(
                f"{entry.name!r} cannot stand there: it must run after {', '.join(map(repr, sorted(late)))} "
                "(a before= or after= says so). Remove the constraint, or move the other one too."
            )
        seen.add(entry.name)


def _predecessors(entries: Sequence[Placed]) -> dict[str, set[str]]:
    after: dict[str, set[str]] = {entry.name: set() for entry in entries}
    for entry in entries:
        for other in entries:
            if any(_means(entry, other, reference) for reference in entry.options.after):
                after[entry.name].add(other.name)
            if any(_means(entry, other, reference) for reference in entry.options.before):
                after[other.name].add(entry.name)
    return after


def _means(entry: Placed, other: Placed, reference: Reference) -> bool:
    """A class also matches the entry that names it; only its own name makes that a cycle."""
    return matches(other, reference) and (entry is not other or isinstance(reference, str))


def _keys(preferred: Sequence[Placed], after: Mapping[str, set[str]]) -> dict[str, int]:
    """Each entry's place in line; one that must run before another moves up to that one's place."""
    _refuse_cycles(after)
    place = {entry.name: index for index, entry in enumerate(preferred)}
    targets = {
        entry.name: [o.name for o in preferred if any(_means(entry, o, r) for r in entry.options.before)]
        for entry in preferred
    }
    keys: dict[str, int] = {}

    def key(name: str) -> int:
        if name not in keys:
            keys[name] = min([place[name], *(key(target) for target in targets[name])])
        return keys[name]

    for entry in preferred:
        key(entry.name)
    return keys


def _refuse_cycles(after: Mapping[str, set[str]]) -> None:
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            cycle = [*path[path.index(name) :], name]
            raise OrderError(f"These subscribers wait for one another: {' after '.join(map(repr, cycle))}.")
        if name not in done:
            for other in sorted(after[name]):
                visit(other, [*path, name])
            done.add(name)

    for name in after:
        visit(name, [])
