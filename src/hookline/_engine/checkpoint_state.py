"""The states of subscribers as a checkpoint holds them: by name, those of a group in a dict under the group's name.

Each subscriber is asked under the policy of the outermost roster, so one in a group is treated as one
beside it. A group of a class with a state of its own is asked as one.

A saved state goes to the subscriber with the same given name or ``state_key``; else to that of the same class with the
same identifying arguments; else to the only one of its class (see `Identity`). Where that leaves a choice, loading is
refused before anything is changed.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hookline._engine.errors import CheckpointError
from hookline._engine.health import Health
from hookline._engine.registration import FlatRegistration, Group, Identity, Registration

logger = logging.getLogger("hookline")

IDENTITIES = "/identities"
"""The key beside the states that holds what they are matched by; no name has a slash."""


@dataclass(frozen=True, slots=True)
class _Saved:
    """A state that is not empty."""

    name: str
    state: Any
    identity: Identity
    by_name: bool  # one of several of its class, saved before identities were


class CheckpointState:
    """Saves and restores the states of a roster's subscribers.

    Args:
        health: Of the outermost roster.
        kind: The class whose methods of state this works for; a group that overrides one is asked itself.
    """

    def __init__(self, health: Health, kind: type[Group]) -> None:
        self._health, self._kind = health, kind

    def save(self, group: Group, groups: tuple[Registration, ...] = ()) -> dict[str, Any]:
        """The state of every subscriber; one that fails, or cannot be held by a checkpoint, has none."""
        states = {entry.name: self._state(entry, groups) for entry in group.entries}
        saved = {name: state for name, state in states.items() if state is not None}
        records = {entry.name: entry.identity.record(entry.name) for entry in group.entries if saved.get(entry.name)}
        identities = {name: record for name, record in records.items() if record is not None}
        return {**saved, IDENTITIES: identities} if identities else saved

    def check(self, group: Group, state: Mapping[str, Any]) -> None:
        """Raise if the states cannot be told apart; nothing is changed."""
        list(self._matched(group, state, ()))

    def load(self, group: Group, state: Mapping[str, Any], groups: tuple[Registration, ...] = ()) -> None:
        """Restore every subscriber; warn about those that are on one side only."""
        for load in list(self._matched(group, state, groups)):  # all are matched before the first is changed
            load()

    def _matched(
        self, group: Group, state: Mapping[str, Any], groups: tuple[Registration, ...]
    ) -> Iterable[Callable[[], object]]:
        """What loading consists of, in order."""
        saved = _read(state)
        pairs = _Matching(group.entries, saved).pairs()
        loaded = {each.name for each in pairs.values()}
        for each in saved:
            if each.name not in loaded:
                yield partial(_warn_not_here, each)
        for entry in group.entries:
            found = pairs.get(entry)
            # An empty state is given back as well: a subscriber may act on being loaded.
            empty = entry.name in state and not _holds_something(state[entry.name])
            own = found.state if found is not None else state[entry.name] if empty else None
            if own is None:
                yield partial(self._warn_without_state, entry, groups)
            elif self._goes_through(entry, "load_state_dict") and isinstance(own, Mapping):
                yield from self._matched(entry.target, own, (*groups, entry))
            else:
                load = partial(entry.target.load_state_dict, own)
                yield partial(self._health.guarded, FlatRegistration(entry, groups), "load_state_dict", load)

    def _warn_without_state(self, entry: Registration, groups: tuple[Registration, ...]) -> None:
        if self._state(entry, groups):
            logger.warning("The checkpoint has no state for %r: it starts anew.", entry.name)

    def _state(self, entry: Registration, groups: tuple[Registration, ...]) -> Any:
        if self._goes_through(entry, "state_dict"):
            return self.save(entry.target, (*groups, entry))
        leaf = FlatRegistration(entry, groups)
        return self._health.guarded(leaf, "state_dict", partial(_checked_state, leaf.path, entry.target))

    def _goes_through(self, entry: Registration, method: str) -> bool:
        """Whether the members are asked, one by one, rather than the group."""
        return isinstance(entry.target, Group) and getattr(type(entry.target), method) is getattr(self._kind, method)


def _checked_state(path: str, subscriber: Any) -> Any:
    """A subscriber's state, once it is known that a checkpoint can hold it."""
    from hookline._engine.encoding import encode  # only who saves pays for it

    state = subscriber.state_dict()
    try:
        encode(state)
    except CheckpointError as error:
        raise CheckpointError(f"The state of {path!r} cannot be saved: {error}") from None
    return {} if state is None else state


def _read(state: Mapping[str, Any]) -> list[_Saved]:
    records = state.get(IDENTITIES)
    states = {name: each for name, each in state.items() if name != IDENTITIES and _holds_something(each)}
    # Before there were identities, the second of a class was saved as <name>_2, by the order of adding.
    numbered = set() if records is not None else {name for name in states if f"{name}_2" in states}
    return [
        _Saved(
            name,
            each,
            Identity.read(name, (records or {}).get(name)),
            by_name=any(name == base or name.startswith(f"{base}_") for base in numbered),
        )
        for name, each in states.items()
    ]


def _holds_something(state: Any) -> bool:
    """Whether a state, or one in it if it is that of a group, is not empty."""
    if isinstance(state, Mapping) and state and all(isinstance(each, Mapping) for each in state.values()):
        return any(map(_holds_something, state.values()))
    return bool(state) if isinstance(state, Mapping) else state is not None


class _Matching:
    """Pairs subscribers with saved states."""

    def __init__(self, entries: Iterable[Registration], saved: Iterable[_Saved]) -> None:
        self._entries, self._saved = list(entries), list(saved)
        self._pairs: dict[Registration, _Saved] = {}

    def pairs(self) -> dict[Registration, _Saved]:
        """The states that go to somebody.

        Raises:
            CheckpointError: A state fits several subscribers, or several states fit one.
        """
        self._by_key()
        # Those that nobody gave a name come first: a name that was given is a reason to be another one.
        self._by_arguments(lambda entry, saved: not entry.identity.is_given and not saved.identity.is_given)
        self._by_arguments(lambda entry, saved: not (entry.identity.is_given and saved.identity.is_given))
        self._by_class()
        return self._pairs

    def _left(self) -> tuple[list[Registration], list[_Saved]]:
        taken = {saved.name for saved in self._pairs.values()}
        entries = [entry for entry in self._entries if entry not in self._pairs]
        return entries, [saved for saved in self._saved if saved.name not in taken]

    def _by_key(self) -> None:
        by_state_key = {saved.identity.state_key: saved for saved in self._saved if saved.identity.state_key}
        by_name = {saved.name: saved for saved in self._saved}
        for entry in self._entries:
            key = entry.identity.state_key
            saved = None if key is None else by_state_key.get(key)
            if saved is None and entry.name in by_name:
                same = by_name[entry.name]
                saved = same if entry.identity.is_given or same.by_name else None
            if saved is not None:
                self._pairs[entry] = saved

    def _by_arguments(self, fits: Callable[[Registration, _Saved], bool]) -> None:
        entries, saved = self._left()
        for entry in entries:
            if entry in self._pairs:
                continue
            like = (entry.identity.kind, entry.identity.arguments)
            fitting = [s for s in saved if (s.identity.kind, s.identity.arguments) == like and fits(entry, s)]
            others = [
                e
                for e in entries
                if (e.identity.kind, e.identity.arguments) == like and any(fits(e, s) for s in fitting)
            ]
            if fitting and (len(fitting) < len(others) or not _all_equal(fitting)):
                raise _ambiguous(others, fitting)
            self._pairs |= dict(zip(others, fitting, strict=False))

    def _by_class(self) -> None:
        entries, saved = self._left()
        for each in saved:
            here = [entry for entry in self._entries if entry.identity.kind == each.identity.kind]
            there = [other for other in self._saved if other.identity.kind == each.identity.kind]
            left = [entry for entry in entries if entry in here]
            if len(here) == len(there) == 1 and left:
                if not each.identity.measures_another(left[0].identity):
                    self._pairs[left[0]] = each
            elif left and not each.identity.arguments and left[0].identity.arguments:
                raise _ambiguous(left, [each])  # saved before the arguments were: any of them may be meant


def _all_equal(saved: list[_Saved]) -> bool:
    """Whether it makes no difference which of these states is taken."""
    from hookline._engine.encoding import encode

    first, *others = (encode(each.state, tensor=id) for each in saved)
    return all(other == first for other in others)


def _ambiguous(entries: list[Registration], saved: list[_Saved]) -> CheckpointError:
    states = ", ".join(repr(each.name) for each in saved)
    here = ", ".join(f"{entry.name!r}" for entry in entries)
    return CheckpointError(
        f"The checkpoint's state of {states} cannot be matched: {here} of class {entries[0].identity} fits as well as "
        "another. Give each a name, add(callback, name=...) or callback.state_key, that differs; a name that the "
        "checkpoint has gets the state saved under it."
    )


def _warn_not_here(saved: _Saved) -> None:
    logger.warning("The checkpoint has state for %r, which is not here: ignored.", saved.name)
