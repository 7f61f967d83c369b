"""Saves and restores the states of subscribers: by name, those of a group in a dict under the group's name.

Errors are handled by the policy of the outermost list, so a subscriber in a group is treated as one beside it. A group
whose class has a state of its own is saved and restored as one subscriber.

A saved state goes to the subscriber with the same given name or ``state_key``; else to that of the same class with the
same identifying arguments; else to the only one of its class (see `Identity`). If that is ambiguous, loading is refused
before anything is changed.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hookline._engine.errors import CheckpointError
from hookline._engine.failures import Health
from hookline._engine.registration import FlatRegistration, Identity, Registration, RegistrationTree

logger = logging.getLogger("hookline")

IDENTITIES = "/identities"
"""The key of the identities beside the states; no name contains a slash."""


@dataclass(frozen=True, slots=True)
class _Saved:
    """A saved state that is not empty."""

    name: str
    state: Any
    identity: Identity
    by_name: bool  # one of several of its class, saved before there were identities


class CheckpointState:
    """Saves and restores the states of a list's subscribers.

    Args:
        health: That of the outermost list.
        kind: The class of lists; a group of a subclass that overrides its ``state_dict`` is saved by that method.
    """

    def __init__(self, health: Health, kind: type[RegistrationTree]) -> None:
        self._health, self._kind = health, kind

    def save(self, group: RegistrationTree, groups: tuple[Registration, ...] = ()) -> dict[str, Any]:
        """Return the state of every subscriber, without those that fail or that a checkpoint cannot hold."""
        states = {each.name: self._state(each, groups) for each in group.registrations}
        saved = {name: state for name, state in states.items() if state is not None}
        # Only beside a state that holds something: an empty one matches nothing on loading.
        records = {each.name: each.identity.record(each.name) for each in group.registrations if saved.get(each.name)}
        identities = {name: record for name, record in records.items() if record is not None}
        return {**saved, IDENTITIES: identities} if identities else saved

    def check(self, group: RegistrationTree, state: Mapping[str, Any]) -> None:
        """Raise if the states cannot be matched; nothing is changed."""
        # Matching happens while the generator runs; the steps it yields, warnings included, are not called.
        list(self._matched(group, state, ()))

    def load(self, group: RegistrationTree, state: Mapping[str, Any], groups: tuple[Registration, ...] = ()) -> None:
        """Restore every subscriber; warn about those that are on one side only."""
        for load in list(self._matched(group, state, groups)):  # all are matched before the first is changed
            load()

    def _matched(
        self, group: RegistrationTree, state: Mapping[str, Any], groups: tuple[Registration, ...]
    ) -> Iterable[Callable[[], object]]:
        """Yield the steps of loading."""
        saved = _read(state)
        pairs = _Matching(group.registrations, saved).pairs()
        loaded = {each.name for each in pairs.values()}
        for each in saved:
            if each.name not in loaded:
                yield partial(
                    logger.warning, "The checkpoint has state for %r, which is not registered: ignored.", each.name
                )
        for registration in group.registrations:
            found = pairs.get(registration)
            # An empty state is restored as well: a subscriber may act on being loaded.
            empty = registration.name in state and not _is_nonempty(state[registration.name])
            own = found.state if found is not None else state[registration.name] if empty else None
            if own is None:
                yield partial(self._warn_without_state, registration, groups)
            elif self._is_transparent(registration, "load_state_dict") and isinstance(own, Mapping):
                yield from self._matched(registration.target, own, (*groups, registration))
            else:
                load = partial(registration.target.load_state_dict, own)
                yield partial(self._health.guarded, FlatRegistration(registration, groups), "load_state_dict", load)

    def _warn_without_state(self, registration: Registration, groups: tuple[Registration, ...]) -> None:
        # Only if it has something to lose: most subscribers have no state, and a warning for each would be noise.
        if self._state(registration, groups):
            logger.warning("The checkpoint has no state for %r: it starts from scratch.", registration.name)

    def _state(self, registration: Registration, groups: tuple[Registration, ...]) -> Any:
        if self._is_transparent(registration, "state_dict"):
            return self.save(registration.target, (*groups, registration))
        flat = FlatRegistration(registration, groups)
        return self._health.guarded(flat, "state_dict", partial(_encodable_state, flat.path, registration.target))

    def _is_transparent(self, registration: Registration, method: str) -> bool:
        """Whether the states are those of the members rather than one of the group's class."""
        target = registration.target
        return isinstance(target, RegistrationTree) and getattr(type(target), method) is getattr(self._kind, method)


def _encodable_state(path: str, subscriber: Any) -> Any:
    from hookline._engine.state_encoding import encode  # only loops that save pay for the import

    state = subscriber.state_dict()
    # The result is thrown away: a state that cannot be encoded must be noticed here, where one subscriber can be left
    # out, and not in the middle of writing the checkpoint. It costs a second encoding; tensors are not copied.
    try:
        encode(state)
    except CheckpointError as error:
        raise CheckpointError(f"The state of {path!r} cannot be saved: {error}") from None
    return {} if state is None else state


def _read(state: Mapping[str, Any]) -> list[_Saved]:
    records = state.get(IDENTITIES)
    states = {name: each for name, each in state.items() if name != IDENTITIES and _is_nonempty(each)}
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


def _is_nonempty(state: Any) -> bool:
    """Whether a state, or any state inside that of a group, is not empty."""
    if isinstance(state, Mapping) and state and all(isinstance(each, Mapping) for each in state.values()):
        return any(map(_is_nonempty, state.values()))
    return bool(state) if isinstance(state, Mapping) else state is not None


class _Matching:
    """Pairs subscribers with saved states."""

    def __init__(self, registrations: Iterable[Registration], saved: Iterable[_Saved]) -> None:
        self._registrations, self._saved = list(registrations), list(saved)
        self._pairs: dict[Registration, _Saved] = {}

    def pairs(self) -> dict[Registration, _Saved]:
        """Return the saved state of each subscriber that has one.

        Raises:
            CheckpointError: A state fits several subscribers, or several states fit one.
        """
        # From the most explicit to the least: a later rule sees only what the earlier ones left over.
        self._by_key()
        # Unnamed ones come first: a different given name suggests a different subscriber.
        self._by_arguments(lambda here, saved: not here.identity.is_given and not saved.identity.is_given)
        self._by_arguments(lambda here, saved: not (here.identity.is_given and saved.identity.is_given))
        self._by_class()
        return self._pairs

    def _unpaired(self) -> tuple[list[Registration], list[_Saved]]:
        taken = {saved.name for saved in self._pairs.values()}
        registrations = [each for each in self._registrations if each not in self._pairs]
        return registrations, [saved for saved in self._saved if saved.name not in taken]

    def _by_key(self) -> None:
        by_state_key = {saved.identity.state_key: saved for saved in self._saved if saved.identity.state_key}
        by_name = {saved.name: saved for saved in self._saved}
        for registration in self._registrations:
            key = registration.identity.state_key
            saved = None if key is None else by_state_key.get(key)
            if saved is None and registration.name in by_name:
                # A generated name, such as <name>_2, depends on the order of adding and identifies nothing.
                same = by_name[registration.name]
                saved = same if registration.identity.is_given or same.by_name else None
            if saved is not None:
                self._pairs[registration] = saved

    def _by_arguments(self, fits: Callable[[Registration, _Saved], bool]) -> None:
        unpaired, saved = self._unpaired()
        for registration in unpaired:
            if registration in self._pairs:
                continue
            like = (registration.identity.kind, registration.identity.arguments)
            fitting = [s for s in saved if (s.identity.kind, s.identity.arguments) == like and fits(registration, s)]
            twins = [
                r
                for r in unpaired
                if (r.identity.kind, r.identity.arguments) == like and any(fits(r, s) for s in fitting)
            ]
            # Among equal states any pairing is right. Otherwise a guess could give one subscriber the best value of
            # another.
            if fitting and (len(fitting) < len(twins) or not _all_equal(fitting)):
                raise _ambiguous(twins, fitting)
            self._pairs |= dict(zip(twins, fitting, strict=False))

    def _by_class(self) -> None:
        unpaired, saved = self._unpaired()
        for each in saved:
            # All subscribers of the class count, including those already paired: a leftover state of another
            # subscriber must not go to the one that remains.
            here = [r for r in self._registrations if r.identity.kind == each.identity.kind]
            there = [other for other in self._saved if other.identity.kind == each.identity.kind]
            candidates = [r for r in unpaired if r in here]
            if len(here) == len(there) == 1 and candidates:
                # The values of another metric are worse than none: they could stop a training without a word.
                if not each.identity.measures_another(candidates[0].identity):
                    self._pairs[candidates[0]] = each
            elif candidates and not each.identity.arguments and candidates[0].identity.arguments:
                raise _ambiguous(candidates, [each])  # saved before arguments were: it may belong to any of them


def _all_equal(saved: list[_Saved]) -> bool:
    """Whether it makes no difference which subscriber gets which of these states."""
    from hookline._engine.state_encoding import encode

    # Tensors are compared by identity: by value they may have to be fetched from a device. Different ones are an error,
    # which is the safe side.
    first, *others = (encode(each.state, tensor=id) for each in saved)
    return all(other == first for other in others)


def _ambiguous(registrations: list[Registration], saved: list[_Saved]) -> CheckpointError:
    states = ", ".join(repr(each.name) for each in saved)
    here = ", ".join(repr(each.name) for each in registrations)
    return CheckpointError(
        f"The checkpoint's state of {states} cannot be matched: {here} of class {registrations[0].identity} "
        "fits as well as another. Give each a different name, with add(callback, name=...) or callback.state_key; "
        "a name in the checkpoint gets the state saved under it."
    )
