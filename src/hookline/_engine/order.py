"""Orders subscribers by preference, subject to constraints.

`arrange` takes subscribers in their preferred order (by priority, by adding, as moved) and returns the nearest order in
which every ``before`` and ``after`` holds. The subscriber that states a constraint is the one that moves: ``after``
moves it to just after the other, ``before`` to just ahead of it. A cycle is an error that names it.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from hookline._engine.errors import OrderError, closest
from hookline._engine.subscriber import Options, Reference


class Ordered(Protocol):
    """What this module orders, in practice a `Registration`; names are unique."""

    @property
    def name(self) -> str: ...
    @property
    def subscriber(self) -> Any: ...
    @property
    def options(self) -> Options: ...


def matches(registration: Ordered, reference: Reference) -> bool:
    """Return whether ``reference`` (a name or a class) refers to this subscriber."""
    if isinstance(reference, str):
        return registration.name == reference
    return isinstance(registration.subscriber, reference)


def require_known(new: Iterable[Ordered], registrations: Sequence[Ordered]) -> None:
    """Refuse a ``before`` or ``after`` of ``new`` that refers to nothing in ``registrations``."""
    for problem in unresolved(new, registrations):
        raise OrderError(f"{problem} Add it first, or in the same call.")


def unresolved(new: Iterable[Ordered], registrations: Sequence[Ordered]) -> Iterator[str]:
    """Yield a sentence for each ``before`` or ``after`` of ``new`` that refers to nothing in ``registrations``."""
    for registration in new:
        for key in ("before", "after"):
            for reference in getattr(registration.options, key):
                if not any(matches(other, reference) for other in registrations):
                    given = reference if isinstance(reference, str) else reference.__name__
                    names = [other.name for other in registrations if other is not registration]
                    yield (
                        f"{registration.name!r} is to run {key} {given!r}, but there is no such subscriber here. "
                        f"{closest(given, names)}"
                    )


E = TypeVar("E", bound="Ordered")


def arrange(preferred: Sequence[E]) -> list[E]:
    """Return the order nearest to ``preferred`` in which all constraints hold.

    Raises:
        OrderError: The constraints contain a cycle.
    """
    after = _predecessors(preferred)
    keys = _keys(preferred, after)
    waiting = {name: set(names) for name, names in after.items()}
    # The index breaks ties, so equals keep their order. The loop below is quadratic, which is cheap for the dozens of
    # subscribers there are, and runs at a change only.
    ready = [(keys[each.name], index) for index, each in enumerate(preferred) if not waiting[each.name]]
    heapq.heapify(ready)
    arranged: list[E] = []
    # One that waits for another keeps its own, smaller key. It becomes ready when the other is placed and is the next
    # to be taken: `after` moves it to just after.
    while ready:
        registration = preferred[heapq.heappop(ready)[1]]
        arranged.append(registration)
        for index, other in enumerate(preferred):
            if registration.name in waiting[other.name]:
                waiting[other.name].discard(registration.name)
                if not waiting[other.name]:
                    heapq.heappush(ready, (keys[other.name], index))
    return arranged


def require_order(registrations: Sequence[Ordered]) -> None:
    """Refuse an explicit order that violates a constraint."""
    after = _predecessors(registrations)
    seen: set[str] = set()
    for registration in registrations:
        late = after[registration.name] - seen
        if late:
            raise OrderError(
                f"{registration.name!r} cannot be moved there: it must run after {', '.join(map(repr, sorted(late)))} "
                "(because of a before= or after=). Remove the constraint, or move the other one too."
            )
        seen.add(registration.name)


def _predecessors(registrations: Sequence[Ordered]) -> dict[str, set[str]]:
    after: dict[str, set[str]] = {registration.name: set() for registration in registrations}
    for registration in registrations:
        for other in registrations:
            if any(_constrains(registration, other, reference) for reference in registration.options.after):
                after[registration.name].add(other.name)
            if any(_constrains(registration, other, reference) for reference in registration.options.before):
                after[other.name].add(registration.name)
    return after


def _constrains(registration: Ordered, other: Ordered, reference: Reference) -> bool:
    # A class also matches the subscriber that names it; only its own name is a cycle.
    return matches(other, reference) and (registration is not other or isinstance(reference, str))


def _keys(preferred: Sequence[Ordered], after: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the sort key of each; one that must run before another gets that one's key if it is smaller."""
    # First: `key` below would recurse without end on a cycle.
    _refuse_cycles(after)
    place = {registration.name: index for index, registration in enumerate(preferred)}
    targets = {
        each.name: [o.name for o in preferred if any(_constrains(each, o, r) for r in each.options.before)]
        for each in preferred
    }
    keys: dict[str, int] = {}

    def key(name: str) -> int:
        if name not in keys:
            # The smallest key along the chain: what must run before something that moved up moves up with it.
            keys[name] = min([place[name], *(key(target) for target in targets[name])])
        return keys[name]

    for registration in preferred:
        key(registration.name)
    return keys


def _refuse_cycles(after: Mapping[str, set[str]]) -> None:
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            cycle = [*path[path.index(name) :], name]
            raise OrderError(f"These subscribers depend on one another: {' after '.join(map(repr, cycle))}.")
        if name not in done:
            # Sorted, because the order of a set of strings differs between processes and the message should not.
            for other in sorted(after[name]):
                visit(other, [*path, name])
            done.add(name)

    for name in after:
        visit(name, [])
