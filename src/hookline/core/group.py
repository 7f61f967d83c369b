"""`Group`: entries in the order in which they run, and those that left; an entry may hold a group itself.

Walking it gives single subscribers, each with the groups around it.
"""

from collections.abc import Iterator, Sequence

from hookline.core.entry import Entry, Leaf


class Group:
    """What a roster is made of, as far as walking through it goes."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._left: list[Entry] = []

    @property
    def entries(self) -> Sequence[Entry]:
        """The subscribers in the order in which they run."""
        return self._entries

    def leaves(self, groups: tuple[Entry, ...] = ()) -> Iterator[Leaf]:
        """Every subscriber in the order of running, those of groups in their group's place."""
        for entry in self._entries:
            if isinstance(entry.target, Group):
                yield from entry.target.leaves((*groups, entry))
            else:
                yield Leaf(entry, groups)

    def everyone(self, groups: tuple[Entry, ...] = ()) -> Iterator[Leaf]:
        """The leaves, and those that left, here or in a group: all that is to be drained and closed at the end."""
        for entry in [*self._entries, *self._left]:
            if not isinstance(entry.target, Group):
                yield Leaf(entry, groups)
            elif all(entry.target is not around.target for around in groups):  # what left may now hold this one
                yield from entry.target.everyone((*groups, entry))

    def forget_left(self) -> None:
        """Let go of those that left, here and in the groups that are not borrowed."""
        left, self._left = self._left, []
        for entry in [*self._entries, *left]:
            if isinstance(entry.target, Group) and not entry.borrowed:
                entry.target.forget_left()
