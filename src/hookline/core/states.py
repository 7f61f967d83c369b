"""The states of subscribers as a checkpoint holds them: by name, those of a group in a dict under the group's name.

Each subscriber is asked under the policy of the outermost roster, so one in a group is treated as one
beside it. A group of a class with a state of its own is asked as one.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from hookline.core.entry import Entry, Leaf
from hookline.core.group import Group
from hookline.core.health import Health

logger = logging.getLogger("hookline")


class States:
    """Saves and restores the states of a roster's subscribers.

    Args:
        health: Of the outermost roster.
        kind: The class whose methods of state this works for; a group that overrides one is asked itself.
    """

    def __init__(self, health: Health, kind: type[Group]) -> None:
        self._health, self._kind = health, kind

    def save(self, group: Group, groups: tuple[Entry, ...] = ()) -> dict[str, Any]:
        """The state of every subscriber; one that fails has an empty one."""
        states = {entry.name: self._state(entry, groups) for entry in group.entries}
        return {name: {} if state is None else state for name, state in states.items()}

    def load(self, group: Group, state: Mapping[str, Any], groups: tuple[Entry, ...] = ()) -> None:
        """Restore every subscriber by name; warn about names that are on one side only."""
        for name in state.keys() - {entry.name for entry in group.entries}:
            if state[name]:
                logger.warning("The checkpoint has state for %r, which is not here: ignored.", name)
        for entry in group.entries:
            if entry.name in state:
                self._load(entry, state[entry.name], groups)
            elif self._state(entry, groups):
                logger.warning("The checkpoint has no state for %r: it starts anew.", entry.name)

    def _state(self, entry: Entry, groups: tuple[Entry, ...]) -> Any:
        if self._goes_through(entry, "state_dict"):
            return self.save(entry.target, (*groups, entry))
        return self._health.guarded(Leaf(entry, groups), "state_dict", entry.target.state_dict)

    def _load(self, entry: Entry, state: Any, groups: tuple[Entry, ...]) -> None:
        if self._goes_through(entry, "load_state_dict") and isinstance(state, Mapping):
            self.load(entry.target, state, (*groups, entry))
        else:
            load = partial(entry.target.load_state_dict, state)
            self._health.guarded(Leaf(entry, groups), "load_state_dict", load)

    def _goes_through(self, entry: Entry, method: str) -> bool:
        """Whether the members are asked, one by one, rather than the group."""
        return isinstance(entry.target, Group) and getattr(type(entry.target), method) is getattr(self._kind, method)
