"""Changes that turn the reference list of moments into that of a host, each for one moment."""

from collections.abc import Callable

Names = list[str]
Change = Callable[[Names, str], Names]
"""Turns a list of moments into another one, for the moment that differs."""


def absent() -> Change:
    """Never fires."""
    return lambda names, moment: [name for name in names if name != moment]


def absent_after(other: str) -> Change:
    """Does not fire right after another moment."""

    def apply(names: Names, moment: str) -> Names:
        pairs = zip(["", *names], names, strict=False)
        return [name for before, name in pairs if not (name == moment and before == other)]

    return apply


def moved_after(other: str) -> Change:
    """Fires after the next of another moment."""

    def apply(names: Names, moment: str) -> Names:
        made: Names = []
        waits = False
        for name in names:
            if name == moment:
                waits = True
                continue
            made.append(name)
            if name == other and waits:
                made.append(moment)
                waits = False
        return made

    return apply


def moved_before(other: str) -> Change:
    """Fires before the last of another moment."""

    def apply(names: Names, moment: str) -> Names:
        made: Names = []
        for name in names:
            if name == moment:
                place = max(index for index, there in enumerate(made) if there == other)
                made.insert(place, name)
            else:
                made.append(name)
        return made

    return apply


def also_before(other: str) -> Change:
    """Also fires before each of another moment."""
    return lambda names, moment: [n for name in names for n in ((moment, name) if name == other else (name,))]


def also_before_last(other: str) -> Change:
    """Also fires before the last of another moment."""

    def apply(names: Names, moment: str) -> Names:
        place = max(index for index, there in enumerate(names) if there == other)
        return [*names[:place], moment, *names[place:]]

    return apply


def also_after(other: str) -> Change:
    """Also fires after each of another moment."""
    return lambda names, moment: [n for name in names for n in ((name, moment) if name == other else (name,))]


def only_first() -> Change:
    """Fires only the first time."""

    def apply(names: Names, moment: str) -> Names:
        first = names.index(moment)
        return [name for index, name in enumerate(names) if name != moment or index == first]

    return apply


def only_last() -> Change:
    """Fires only the last time."""

    def apply(names: Names, moment: str) -> Names:
        return only_first()(names[::-1], moment)[::-1]

    return apply
