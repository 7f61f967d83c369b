"""Options of subscribers: sources, precedence, and refusals."""

import copy
from types import SimpleNamespace

import pytest

import hookline as hl
from hookline._engine.subscriber import OPTION_NAMES, Options, configured, snake_case


class Plain(hl.Callback):
    pass


class Seeing(hl.Callback):
    def __init__(self):
        self.seen = []

    def on_step_end(self, loop, step_idx):
        self.seen.append(step_idx + 1)


def settled(subscriber, **given):
    return Options.settle(subscriber, given)


def steps_seen(subscriber, steps=12, **options):
    callbacks = hl.CallbackCollection(strict=True)
    callbacks.add(subscriber, **options)
    for step_idx in range(steps):
        callbacks.on_step_end(SimpleNamespace(step=step_idx + 1), step_idx, None, {})
    return subscriber.seen


def test_options_defaults_are_those_of_the_class():
    assert settled(Plain()) == Options(
        name="plain",
        named=False,
        priority=0,
        critical=False,
        background=False,
        ranks="all",
        schedule=None,
        before=(),
        after=(),
        budget=None,
    )


def test_options_given_to_add_win_over_configure_over_the_attribute():
    class Attributed(hl.Callback):
        priority = 1
        name = "attributed"
        ranks = "zero"

    configured_only = settled(Attributed().configure(priority=2, name="configured"))
    given = settled(Attributed().configure(priority=2, name="configured"), priority=3)
    assert [settled(Attributed()).priority, configured_only.priority, given.priority] == [1, 2, 3]
    assert [settled(Attributed()).name, given.name, given.ranks] == ["attributed", "configured", "zero"]


def test_options_name_priority_critical_background_ranks_are_read_off_the_instance():
    subscriber = Plain()
    subscriber.name, subscriber.priority, subscriber.ranks = "mine", 7, "zero"
    subscriber.critical = subscriber.background = True
    options = settled(subscriber)
    assert (options.name, options.named, options.priority, options.ranks) == ("mine", True, 7, "zero")
    assert (options.critical, options.background) == (True, True)


def test_options_every_start_when_before_after_budget_of_the_instance_are_its_own_business():
    subscriber = Plain()
    subscriber.every, subscriber.start, subscriber.when = "epoch", 1731000000.5, "always"  # type: ignore[assignment]
    subscriber.before, subscriber.after, subscriber.budget = 1, 2, 1000
    assert settled(subscriber) == settled(Plain())


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"every": 10}, r"^Plain: self\.every = 10 is set on the instance.*self\.configure\(every=\.\.\.\)"),
        ({"when": print}, r"^Plain: self\.when = <built-in function print> is set on the instance"),
    ],
    ids=["every", "when"],
)
def test_options_cadence_set_on_the_instance_is_refused_unless_it_is_given(attributes, said):
    subscriber = Plain()
    vars(subscriber).update(attributes)
    with pytest.raises(hl.OptionError, match=said):
        hl.CallbackCollection([subscriber])
    assert settled(subscriber, every=None, when=None) == settled(Plain())


def test_options_cadence_set_on_the_instance_replaces_that_of_the_class():
    class Sparse(Seeing):
        every = 4
        when = lambda loop: loop.step != 6  # noqa: E731

    sparse = Sparse()
    sparse.every = 3
    assert steps_seen(sparse) == [3, 9, 12]
    scheduled = Seeing()
    scheduled.every = hl.At(2, 5)
    assert steps_seen(scheduled) == [2, 5]


def test_options_cadence_of_the_class_is_used():
    class Sparse(Seeing):
        every = 4
        start = 4
        when = lambda loop: loop.step != 12  # noqa: E731

    assert steps_seen(Sparse(), 16) == [8, 16]


def test_options_when_as_a_method_is_asked_with_the_loop():
    class Deciding(Seeing):
        def when(self, loop):
            return loop.step == 3

    assert steps_seen(Deciding()) == [3]


def test_options_cadence_given_to_add_governs_the_subscriber():
    assert steps_seen(Seeing(), every=5, start=5) == [10]
    assert steps_seen(Seeing(), when=lambda loop: loop.step in (2, 3)) == [2, 3]
    assert steps_seen(Seeing(), every=hl.At(1, 7)) == [1, 7]


def test_options_every_of_add_replaces_that_of_configure_and_the_rest_stays():
    assert steps_seen(Seeing().configure(every=2, start=6), every=4) == [8, 12]


def test_options_every_none_given_to_add_lifts_the_cadence_of_the_class():
    class Sparse(Seeing):
        every = 4

    assert steps_seen(Sparse(), 3, every=None) == [1, 2, 3]


def test_configure_merges_with_what_was_configured_and_returns_the_instance():
    subscriber = Plain()
    assert subscriber.configure(name="a", priority=1) is subscriber
    subscriber.configure(priority=2, after=["b"])
    assert configured(subscriber) == {"name": "a", "priority": 2, "after": ("b",)}


def test_configure_that_is_refused_changes_nothing():
    subscriber = Plain().configure(priority=1)
    with pytest.raises(hl.OptionError):
        subscriber.configure(name="other", every=0)
    assert configured(subscriber) == {"priority": 1}


def test_configure_is_kept_by_copies_and_not_shared_with_them():
    original = Plain().configure(priority=1)
    copied = copy.deepcopy(original).configure(priority=2)
    assert [settled(original).priority, settled(copied).priority] == [1, 2]


def test_configure_works_on_hooks_and_collections():
    group = hl.CallbackCollection([Plain()]).configure(name="group", priority=-5)
    callbacks = hl.CallbackCollection([group, Plain()], strict=True)
    assert callbacks.names() == ["plain", "group"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "Plain: name=''; give a non-empty string without '/' or surrounding spaces."),
        ({"name": "a/b"}, "Plain: name='a/b'; give a non-empty string without '/' or surrounding spaces."),
        ({"name": " a"}, "Plain: name=' a'; give a non-empty string without '/' or surrounding spaces."),
        ({"name": 3}, "Plain: name=3; give a non-empty string without '/' or surrounding spaces."),
        ({"priority": "high"}, "Plain: priority='high'; give a number, higher runs earlier."),
        ({"priority": True}, "Plain: priority=True; give a number, higher runs earlier."),
        ({"priority": float("nan")}, "Plain: priority=nan; give a number, higher runs earlier."),
        ({"priority": None}, "Plain: priority=None; give a number, higher runs earlier."),
        ({"critical": 1}, "Plain: critical=1; give True or False."),
        ({"background": "yes"}, "Plain: background='yes'; give True or False."),
        ({"ranks": 0}, "Plain: ranks=0; give 'all' or 'zero'."),
        ({"ranks": ["all"]}, "Plain: ranks=['all']; give 'all' or 'zero'."),
        ({"every": -3}, "Plain: every=-3: give a whole number of at least 1."),
        ({"every": 0}, "Plain: every=0: give a whole number of at least 1."),
        ({"every": 2.0}, "Plain: every=2.0: give a whole number of at least 1."),
        ({"every": True}, "Plain: every=True: give a whole number of at least 1."),
        ({"start": -1}, "Plain: start=-1: give a whole number of at least 0."),
        ({"when": 5}, "Plain: when=5: give a function that takes the loop and returns a bool."),
        ({"before": 5}, "Plain: before=5; give names or classes of subscribers, one or several."),
        ({"after": ["a", 5]}, "Plain: after=['a', 5]; give names or classes of subscribers, one or several."),
        ({"after": None}, "Plain: after=None; give names or classes of subscribers, one or several."),
        ({"budget": 0}, "Plain: budget=0; give a share of the step time, above 0 and at most 1."),
        ({"budget": 5}, "Plain: budget=5; give a share of the step time, above 0 and at most 1."),
        ({"budget": True}, "Plain: budget=True; give a share of the step time, above 0 and at most 1."),
        ({"evry": 5}, "Plain: unknown option evry=5. Did you mean 'every'?"),
        ({"named": True}, "Plain: unknown option named=True. Did you mean 'name'?"),
    ],
)
def test_options_bad_value_is_refused_by_configure_and_add_with_what_is_accepted(options, message):
    callbacks = hl.CallbackCollection(strict=True)
    for take in (Plain().configure, lambda **given: callbacks.add(Plain(), **given)):
        with pytest.raises(hl.OptionError) as caught:
            take(**options)
        assert str(caught.value) == message
    assert callbacks.names() == []


def test_options_bad_attribute_of_a_class_is_refused_when_added():
    class Wrong(hl.Callback):
        every = 0

    with pytest.raises(hl.OptionError, match=r"^Wrong: every=0: give a whole number of at least 1\.$"):
        hl.CallbackCollection([Wrong()])


def test_options_unknown_with_nothing_close_lists_all():
    with pytest.raises(hl.OptionError) as caught:
        Plain().configure(zzz=1)
    assert str(caught.value) == f"Plain: unknown option zzz=1. Known: {', '.join(sorted(OPTION_NAMES))}."


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a", ("a",)),
        (Plain, (Plain,)),
        (["a", Plain], ("a", Plain)),
        ({"a"}, ("a",)),
        ((), ()),
    ],
)
def test_options_references_are_one_or_several(given, expected):
    assert settled(Plain(), after=given).after == expected


def test_options_references_from_an_iterator_are_not_used_up_by_configure():
    subscriber = Plain().configure(after=(name for name in ["a"]))
    assert settled(subscriber).after == ("a",)


@pytest.mark.parametrize("budget", [1, 0.05])
def test_options_budget_is_a_share(budget):
    assert settled(Plain(), budget=budget).budget == budget


@pytest.mark.parametrize(
    ("class_name", "name"),
    [
        ("ProgressBar", "progress_bar"),
        ("NaNGuard", "nan_guard"),
        ("HTTPStatusHook", "http_status_hook"),
        ("GPUMonitor2", "gpu_monitor2"),
        ("Top1Accuracy", "top1_accuracy"),
        ("_Private", "private"),
        ("lower", "lower"),
    ],
)
def test_name_defaults_to_the_class_in_snake_case(class_name, name):
    assert snake_case(class_name) == name
    assert type(class_name, (hl.Callback,), {})().name == name


def test_name_of_the_class_can_be_read_without_an_instance():
    assert [Plain.name, hl.CallbackCollection.name] == ["plain", "callback_collection"]


def test_name_assigned_to_the_class_is_numbered_rather_than_refused():
    class Named(hl.Callback):
        name = "monitor"

    assert hl.CallbackCollection([Named(), Named()]).names() == ["monitor", "monitor_2"]


def test_subscriber_defaults_hold_no_state():
    subscriber = Plain()
    subscriber.load_state_dict({"anything": 1})
    assert (subscriber.state_dict(), subscriber.close()) == ({}, None)  # type: ignore[func-returns-value]


def test_options_when_of_the_class_with_a_default_is_a_function():
    class Choosy(hl.Callback):
        when = lambda loop, k=3: loop.step == k  # noqa: E731

    class Method(hl.Callback):
        least = 3

        def when(self, loop, k=0):
            return loop.step == self.least + k

    for subscriber in (Choosy(), Method()):
        schedule = settled(subscriber).schedule
        assert [schedule.due(step, SimpleNamespace(step=step)) for step in (2, 3)] == [False, True]
