"""Whatever is added, removed and moved: constraints hold, or the change is refused and changes nothing."""

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import hookline as hl

# Threads that earlier tests left behind may draw from the global generator, which strategies are warned not to do.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)


class Base(hl.Callback):
    def on_train_start(self, loop):
        pass


class Left(Base):
    pass


class Right(Base):
    pass


@dataclass(eq=False)
class Member:
    """What is added, and how."""

    name: str
    kind: type = Base
    priority: float = 0
    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()
    instance: Any = field(init=False)

    def __post_init__(self):
        self.instance = self.kind()

    @property
    def options(self):
        return {"name": self.name, "priority": self.priority, "before": self.before, "after": self.after}

    @property
    def references(self):
        return (*self.before, *self.after)

    def answers_to(self, reference):
        return self.name == reference if isinstance(reference, str) else issubclass(self.kind, reference)


NAMES = st.sampled_from("abcdefg")
KINDS = st.sampled_from([Left, Right, Base])
REFERENCES = st.lists(NAMES | KINDS, max_size=2).map(tuple)
PRIORITIES = st.sampled_from([-100, -1, 0, 0, 0.5, 3])
MEMBERS = st.builds(Member, NAMES, KINDS, PRIORITIES, before=st.just(()) | REFERENCES, after=st.just(()) | REFERENCES)
DISTINCT = st.lists(MEMBERS, max_size=7, unique_by=lambda member: member.name)


def edges(members):
    """All pairs of names (earlier, later) that the constraints ask for."""
    pairs = set()
    for member in members:
        for other in members:
            asks = [r for r in member.references if other.answers_to(r) and (other is not member or isinstance(r, str))]
            pairs |= {(other.name, member.name) for r in asks if r in member.after}
            pairs |= {(member.name, other.name) for r in asks if r in member.before}
    return pairs


def cyclic(members):
    graph = {member.name: {a for a, b in edges(members) if b == member.name} for member in members}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return True
    return False


def known(newcomers, members):
    return all(any(m.answers_to(reference) for m in members) for new in newcomers for reference in new.references)


def holds(order, members):
    return all(order.index(earlier) < order.index(later) for earlier, later in edges(members))


def filled(members):
    callbacks = hl.CallbackCollection(strict=True)
    for member in members:
        callbacks.add(member.instance, **member.options)
    return callbacks


def filled_at_once(members):
    return hl.CallbackCollection([m.instance.configure(**m.options) for m in members], strict=True)


def accepted(members):
    """Those of ``members`` that can be added one after another, without those that cannot."""
    present = []
    for member in members:
        together = [*present, member]
        if known([member], together) and not cyclic(together):
            present = together
    return present


def preferred(members):
    """The names by priority, then by the order of adding."""
    return [member.name for member in sorted(members, key=lambda member: -member.priority)]


class Changes(RuleBasedStateMachine):
    """A collection under any changes, beside a list of who must be in it."""

    outcomes: ClassVar[Counter[str]] = Counter()

    def __init__(self):
        super().__init__()
        self.callbacks = hl.CallbackCollection(strict=True)
        self.members = []

    def facts(self):
        return self.callbacks.names(), self.callbacks.plan(), [id(each) for each in self.callbacks]

    def attempt(self, change, *arguments, **options):
        """Make a change; return the error that refused it, after a look that it changed nothing."""
        before = self.facts()
        try:
            change(*arguments, **options)
        except hl.HooklineError as error:
            assert self.facts() == before
            self.outcomes["refused"] += 1
            return error
        self.outcomes["made"] += 1
        return None

    def found(self, reference):
        return [member for member in self.members if member.answers_to(reference)]

    def can_enter(self, newcomers):
        together = [*self.members, *newcomers]
        names = [member.name for member in together]
        return len(set(names)) == len(names) and known(newcomers, together) and not cyclic(together)

    @rule(member=MEMBERS)
    def add(self, member):
        error = self.attempt(self.callbacks.add, member.instance, **member.options)
        assert (error is None) == self.can_enter([member])
        if error is None:
            self.members.append(member)

    @rule(newcomers=st.lists(MEMBERS, max_size=3))
    def extend(self, newcomers):
        configured = [member.instance.configure(**member.options) for member in newcomers]
        error = self.attempt(self.callbacks.extend, configured)
        assert (error is None) == self.can_enter(newcomers)
        if error is None:
            self.members += newcomers

    @rule(member=MEMBERS, index=st.integers(-9, 9))
    def insert(self, member, index):
        wanted = self.callbacks.names()
        wanted.insert(index, member.name)
        possible = self.can_enter([member]) and holds(wanted, [*self.members, member])
        error = self.attempt(self.callbacks.insert, index, member.instance, **member.options)
        assert (error is None) == possible
        if error is None:
            assert self.callbacks.names() == wanted
            self.members.append(member)

    @rule(reference=NAMES | KINDS)
    def remove(self, reference):
        leaving = self.found(reference)
        error = self.attempt(self.callbacks.remove, reference)
        assert (error is None) == bool(leaving)
        self.members = [member for member in self.members if member not in leaving]

    @rule(reference=NAMES | KINDS)
    def move_to_front(self, reference):
        self.move(reference, 0, self.callbacks.move_to_front, reference)

    @rule(reference=NAMES | KINDS)
    def move_to_back(self, reference):
        self.move(reference, len(self.members) - 1, self.callbacks.move_to_back, reference)

    @rule(reference=NAMES | KINDS, index=st.integers(-8, 7))
    def move_to_position(self, reference, index):
        size = len(self.members)
        position = index % size if -size <= index < size else None
        self.move(reference, position, self.callbacks.move_to_position, reference, index)

    def move(self, reference, position, change, *arguments):
        moving = self.found(reference)
        wanted = None
        if len(moving) == 1 and position is not None:
            wanted = [name for name in self.callbacks.names() if name != moving[0].name]
            wanted.insert(position, moving[0].name)
        error = self.attempt(change, *arguments)
        assert (error is None) == (wanted is not None and holds(wanted, self.members))
        if error is None:
            assert self.callbacks.names() == wanted

    @invariant()
    def nobody_is_lost_or_doubled(self):
        by_name = dict(zip(self.callbacks.names(), self.callbacks, strict=True))
        assert len(by_name) == len(self.callbacks) == len(self.members)
        assert by_name == {member.name: member.instance for member in self.members}

    @invariant()
    def all_constraints_hold(self):
        assert holds(self.callbacks.names(), self.members)

    @invariant()
    def the_plan_is_the_order(self):
        assert self.callbacks.plan().get("on_train_start", []) == self.callbacks.names()


def test_collection_any_sequence_of_changes_keeps_members_and_constraints():
    run_state_machine_as_test(Changes, settings=settings(SETTINGS, max_examples=100, stateful_step_count=25))
    assert min(Changes.outcomes["made"], Changes.outcomes["refused"]) > 100


@SETTINGS
@given(DISTINCT)
def test_order_of_unconstrained_members_is_by_priority_then_adding(members):
    members = accepted(members)
    bound = {name for pair in edges(members) for name in pair}
    expected = [name for name in preferred(members) if name not in bound]
    assert [name for name in filled(members).names() if name not in bound] == expected


@SETTINGS
@given(DISTINCT)
def test_order_one_by_one_is_the_order_of_all_at_once(members):
    members = accepted(members)
    assert filled(members).names() == filled_at_once(members).names()


@SETTINGS
@given(DISTINCT, st.sets(NAMES))
def test_order_after_removals_is_that_of_the_remaining(members, leaving):
    members = accepted(members)
    callbacks = filled(members)
    for name in leaving & {member.name for member in members}:
        callbacks.remove(name)
    stayed = [member for member in members if member.name not in leaving]

    def living(references):
        return tuple(r for r in references if any(m.answers_to(r) for m in stayed))

    alone = [replace(m, before=living(m.before), after=living(m.after)) for m in stayed]
    assert callbacks.names() == filled_at_once(alone).names()


@SETTINGS
@given(st.permutations("abcdef"), st.lists(PRIORITIES, min_size=6, max_size=6), st.booleans())
def test_order_one_constraint_moves_only_the_one_that_states_it(names, priorities, upwards):
    members = [Member(name, priority=priority) for name, priority in zip(names, priorities, strict=True)]
    free, key = preferred(members), "before" if upwards else "after"
    stating, other = names[0], names[1]
    members[0] = replace(members[0], **{key: (other,)})
    expected = [name for name in free if name != stating]
    expected.insert(expected.index(other) + (not upwards), stating)
    obeyed = (free.index(stating) < free.index(other)) == upwards
    assert filled_at_once(members).names() == (free if obeyed else expected)


@SETTINGS
@given(st.permutations("abcdef"), st.integers(2, 6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_order_cycle_error_names_exactly_the_cycle(names, size, forwards):
    ring, bystanders = names[:size], names[size:]
    members = {name: Member(name) for name in names}
    for (earlier, later), forward in zip(pairwise([*ring, ring[0]]), forwards, strict=False):
        stating, key, other = (later, "after", earlier) if forward else (earlier, "before", later)
        members[stating] = replace(members[stating], **{key: (*getattr(members[stating], key), other)})
    callbacks = filled([members[name] for name in bystanders])
    with pytest.raises(hl.OrderError) as caught:
        callbacks.extend([members[name].instance.configure(**members[name].options) for name in ring])
    named = re.findall(r"'(\w)'", str(caught.value))
    assert named[0] == named[-1]
    assert {(earlier, later) for later, earlier in pairwise(named)} == set(pairwise([*ring, ring[0]]))
    assert callbacks.names() == list(bystanders)
