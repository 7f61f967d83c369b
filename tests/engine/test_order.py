"""The order of subscribers, and who is in: priorities, constraints, moves, and changes that are refused."""

import copy

import pytest

import hookline as hl


class Listener(hl.Callback):
    def on_train_start(self, loop):
        pass


class Logger(Listener):
    pass


class Csv(Logger):
    pass


class Sampler(hl.Hook):
    def should_run(self, context):
        return True

    def run(self, context):
        pass


def collection(**members):
    """A collection of listeners, each with a name and its options, added one by one."""
    callbacks = hl.CallbackCollection(strict=True)
    for name, options in members.items():
        callbacks.add(Listener(), name=name, **options)
    return callbacks


def refused(callbacks, error, change):
    """The message of an error after which nothing has changed."""
    before = callbacks.names(), callbacks.plan(), list(callbacks)
    with pytest.raises(error) as caught:
        change()
    assert (callbacks.names(), callbacks.plan(), list(callbacks)) == before
    return str(caught.value)


def test_order_without_options_is_order_of_adding():
    assert collection(b={}, a={}, c={}).names() == ["b", "a", "c"]


def test_order_higher_priority_runs_first_and_ties_keep_order_of_adding():
    callbacks = collection(low={"priority": -1}, a={}, high={"priority": 2.5}, b={}, also_high={"priority": 2.5})
    assert callbacks.names() == ["high", "also_high", "a", "b", "low"]


def test_order_infinite_priorities_stand_at_the_ends():
    callbacks = collection(last={"priority": float("-inf")}, a={"priority": 1e9}, first={"priority": float("inf")})
    assert callbacks.names() == ["first", "a", "last"]


def test_order_class_attribute_priority_is_used_and_add_wins_over_it():
    class Early(Listener):
        priority = 10

    callbacks = hl.CallbackCollection([Listener(), Early()], strict=True)
    callbacks.add(Early(), name="demoted", priority=-10)
    assert callbacks.names() == ["early", "listener", "demoted"]


def test_order_after_by_name_moves_down_just_after_the_other():
    callbacks = collection(a={}, b={}, c={}, urgent={"priority": 10, "after": "b"})
    assert callbacks.names() == ["a", "b", "urgent", "c"]


def test_order_before_by_name_moves_up_just_ahead_of_the_other():
    callbacks = collection(a={}, b={}, c={}, late={"priority": -10, "before": "b"})
    assert callbacks.names() == ["a", "late", "b", "c"]


def test_order_after_by_class_waits_for_all_of_it_and_its_subclasses():
    callbacks = hl.CallbackCollection([Logger(), Listener(), Csv()], strict=True)
    callbacks.add(Listener(), name="summary", priority=5, after=Logger)
    assert callbacks.names() == ["logger", "listener", "csv", "summary"]


def test_order_before_by_class_precedes_all_of_it():
    callbacks = hl.CallbackCollection([Listener(), Logger(), Csv()], strict=True)
    callbacks.add(Listener(), name="derived", before=Logger)
    assert callbacks.names() == ["listener", "derived", "logger", "csv"]


def test_order_several_references_all_hold():
    callbacks = collection(a={}, b={}, c={}, d={})
    callbacks.add(Listener(), name="between", after=["a", "b"], before=("d", "c"))
    assert callbacks.names() == ["a", "b", "between", "c", "d"]


def test_order_class_that_names_itself_does_not_wait_for_itself():
    callbacks = hl.CallbackCollection([Listener()], strict=True)
    callbacks.add(Logger(), priority=5, after=Listener)
    assert callbacks.names() == ["listener", "logger"]


def test_order_hooks_and_callbacks_name_one_another():
    callbacks = hl.CallbackCollection([Listener()], strict=True)
    callbacks.add(Sampler(), before=Listener)
    callbacks.add(Logger(), priority=5, after=Sampler)
    assert callbacks.names() == ["sampler", "logger", "listener"]


def test_order_group_is_placed_as_one():
    group = hl.CallbackCollection([Logger(), Csv()], name="writers")
    callbacks = hl.CallbackCollection([Listener()], strict=True)
    callbacks.add(group, before="listener")
    assert callbacks.plan() == {"on_train_start": ["writers/logger", "writers/csv", "listener"]}


def test_order_extend_members_may_name_later_ones():
    first = Listener().configure(name="first", after="second")
    second = Listener().configure(name="second", after="third")
    third = Listener().configure(name="third")
    assert hl.CallbackCollection([first, second, third], strict=True).names() == ["third", "second", "first"]


def test_order_constraint_on_later_member_of_known_class_holds_for_it_too():
    callbacks = hl.CallbackCollection([Logger()], strict=True)
    callbacks.add(Listener(), name="summary", after=Logger)
    callbacks.add(Csv())
    assert callbacks.names() == ["logger", "csv", "summary"]


def test_order_unknown_dependency_is_refused_with_a_suggestion():
    callbacks = collection(sampler={}, logger={})
    message = refused(callbacks, hl.OrderError, lambda: callbacks.add(Listener(), name="x", after="loger"))
    assert message == (
        "'x' is to run after 'loger', but there is no such subscriber here. "
        "Did you mean 'logger'? Add it first, or in the same call."
    )


def test_order_unknown_dependency_class_is_refused_by_its_name():
    callbacks = collection(a={})
    message = refused(callbacks, hl.OrderError, lambda: callbacks.add(Listener(), name="x", before=Csv))
    assert "'x' is to run before 'Csv', but there is no such subscriber here." in message


def test_order_unknown_dependency_in_extend_adds_none_of_them():
    callbacks = collection(a={})
    newcomers = [Listener().configure(name="b"), Listener().configure(name="c", before="z")]
    message = refused(callbacks, hl.OrderError, lambda: callbacks.extend(newcomers))
    assert "Known: a, b." in message


def test_order_cycle_of_two_is_refused_and_named():
    callbacks = collection(a={})
    callbacks.add(Listener(), name="b", after="a")
    message = refused(callbacks, hl.OrderError, lambda: callbacks.add(Listener(), name="c", after="b", before="a"))
    assert message == "These subscribers depend on one another: 'a' after 'c' after 'b' after 'a'."


def test_order_cycle_in_extend_is_refused_and_leaves_out_bystanders():
    ring = [Listener().configure(name=name, after=other) for name, other in [("x", "y"), ("y", "z"), ("z", "x")]]
    callbacks = collection(bystander={})
    message = refused(callbacks, hl.OrderError, lambda: callbacks.extend(ring))
    assert message == "These subscribers depend on one another: 'x' after 'y' after 'z' after 'x'."


def test_order_member_after_its_own_name_is_a_cycle():
    callbacks = collection(a={})
    message = refused(callbacks, hl.OrderError, lambda: callbacks.add(Listener(), name="x", after="x"))
    assert message == "These subscribers depend on one another: 'x' after 'x'."


def test_order_two_of_a_class_that_wait_for_their_class_are_a_cycle():
    class Last(Listener):
        after = Listener

    callbacks = hl.CallbackCollection([Last()], strict=True)
    message = refused(callbacks, hl.OrderError, lambda: callbacks.add(Last()))
    assert message == "These subscribers depend on one another: 'last' after 'last_2' after 'last'."


def test_order_long_chain_of_constraints_holds():
    chain = [Listener().configure(name=f"m{i}", after=f"m{i + 1}") for i in range(60)]
    callbacks = hl.CallbackCollection([*chain, Listener().configure(name="m60")], strict=True)
    assert callbacks.names() == [f"m{i}" for i in range(60, -1, -1)]


def test_move_to_front_back_and_position_place_the_member():
    callbacks = collection(a={}, b={}, c={}, d={})
    callbacks.move_to_front("c")
    callbacks.move_to_back("a")
    callbacks.move_to_position("d", 1)
    callbacks.move_to_position("b", -2)
    assert callbacks.names() == ["c", "d", "b", "a"]


def test_move_wins_over_priority_and_is_seen_by_the_next_firing():
    seen = []
    callbacks = hl.CallbackCollection(strict=True)
    callbacks.add(hl.on("train_start", lambda loop: seen.append("a")), name="a", priority=5)
    callbacks.add(hl.on("train_start", lambda loop: seen.append("b")), name="b")
    callbacks.on_train_start(None)
    callbacks.move_to_front("b")
    callbacks.on_train_start(None)
    assert seen == ["a", "b", "b", "a"]


def test_move_takes_an_instance_or_a_class_of_one():
    csv, logger = Csv(), Logger()
    callbacks = hl.CallbackCollection([Listener(), logger, csv], strict=True)
    callbacks.move_to_front(logger)
    callbacks.move_to_front(Csv)
    assert callbacks.names() == ["csv", "logger", "listener"]


def test_move_that_breaks_a_constraint_is_refused():
    callbacks = collection(a={}, b={"after": "a"}, c={})
    message = refused(callbacks, hl.OrderError, lambda: callbacks.move_to_front("b"))
    assert message.startswith("'b' cannot be moved there: it must run after 'a' (because of a before= or after=).")
    message = refused(callbacks, hl.OrderError, lambda: callbacks.move_to_back("a"))
    assert message.startswith("'b' cannot be moved there: it must run after 'a'")


def test_move_of_several_at_once_is_refused_with_their_names():
    callbacks = hl.CallbackCollection([Logger(), Csv(), Listener()], strict=True)
    message = refused(callbacks, hl.OptionError, lambda: callbacks.move_to_front(Logger))
    assert "refers to several subscribers (logger, csv); give one of these names." in message


@pytest.mark.parametrize("position", [3, -4, 1.0, True, "1", None])
def test_move_to_bad_position_is_refused(position):
    callbacks = collection(a={}, b={}, c={})
    message = refused(callbacks, hl.OptionError, lambda: callbacks.move_to_position("a", position))
    assert message == f"position={position!r}: give a whole number from -3 to 2."


def test_move_of_unknown_name_is_refused_with_a_suggestion():
    callbacks = collection(early_stopping={})
    message = refused(callbacks, hl.UnknownNameError, lambda: callbacks.move_to_back("early_stoping"))
    assert message == "early_stoping is not here. Did you mean 'early_stopping'?"


def test_moved_to_front_stays_there_when_a_higher_priority_is_added():
    callbacks = collection(a={}, b={})
    callbacks.move_to_front("b")
    callbacks.add(Listener(), name="urgent", priority=100)
    assert callbacks.names() == ["b", "urgent", "a"]


def test_insert_puts_the_member_at_a_place_whatever_its_priority():
    callbacks = collection(a={}, b={})
    callbacks.insert(1, Listener(), name="middle", priority=100)
    callbacks.insert(0, Listener(), name="first", priority=-100)
    callbacks.insert(-1, Listener(), name="last_but_one")
    callbacks.insert(99, Listener(), name="last", priority=100)
    assert callbacks.names() == ["first", "a", "middle", "last_but_one", "b", "last"]


def test_inserted_stays_there_when_a_higher_priority_is_added():
    callbacks = collection(a={})
    callbacks.insert(0, Listener(), name="first", priority=-100)
    callbacks.add(Listener(), name="urgent", priority=100)
    assert callbacks.names() == ["first", "urgent", "a"]


def test_insert_where_a_constraint_breaks_is_refused():
    callbacks = collection(a={}, b={})
    message = refused(callbacks, hl.OrderError, lambda: callbacks.insert(0, Listener(), name="x", after="a"))
    assert message.startswith("'x' cannot be moved there: it must run after 'a'")


def test_insert_that_closes_a_cycle_is_refused_and_named():
    callbacks = collection(a={}, b={"after": "a"})
    change = lambda: callbacks.insert(0, Listener(), name="x", before="a", after="b")  # noqa: E731
    assert "depend on one another" in refused(callbacks, hl.OrderError, change)


@pytest.mark.parametrize("index", [1.5, True, "1", None])
def test_insert_at_bad_index_is_refused(index):
    callbacks = collection(a={}, b={})
    assert repr(index) in refused(callbacks, hl.OptionError, lambda: callbacks.insert(index, Listener()))


def test_insert_dict_of_several_hook_functions_is_refused():
    callbacks = collection(a={})
    functions = {"pre_training_hook": lambda w, r: None, "post_training_hook": lambda w, r: None}
    message = refused(callbacks, hl.MomentError, lambda: callbacks.insert(0, functions))
    assert message == "A dict of several hook functions has no single position: add it instead."


def test_remove_by_instance_takes_out_this_very_one():
    class Equal(Listener):
        def __eq__(self, other):
            return isinstance(other, Equal)

        def __hash__(self):
            return 1

    first, second = Equal(), Equal()
    callbacks = hl.CallbackCollection([first, second], strict=True)
    callbacks.remove(second)
    assert callbacks[0] is first
    assert callbacks.names() == ["equal"]


def test_remove_by_class_takes_out_all_of_it():
    callbacks = hl.CallbackCollection([Logger(), Listener(), Csv()], strict=True)
    callbacks.remove(Logger)
    assert callbacks.names() == ["listener"]


@pytest.mark.parametrize("reference", ["loger", Csv, Listener(), 3, None])
def test_remove_of_what_is_not_there_is_refused(reference):
    callbacks = hl.CallbackCollection([Logger()], strict=True)
    assert "is not here." in refused(callbacks, hl.UnknownNameError, lambda: callbacks.remove(reference))


def test_remove_function_by_the_function_that_was_added():
    def report(report_data, step):
        pass

    callbacks = hl.CallbackCollection([report, Listener()], strict=True)
    callbacks.remove(report)
    assert callbacks.names() == ["listener"]


def test_remove_of_a_dependency_lets_the_others_fall_back_to_their_priority():
    callbacks = collection(a={}, middle={"priority": 5}, urgent={"priority": 10, "after": "a"})
    assert callbacks.names() == ["middle", "a", "urgent"]
    callbacks.remove("a")
    assert callbacks.names() == ["urgent", "middle"]


def test_remove_then_unrelated_add_does_not_reorder_the_others():
    callbacks = collection(a={}, middle={"priority": 5}, urgent={"priority": 10, "after": "a"})
    callbacks.remove("a")
    names = callbacks.names()
    callbacks.add(Listener(), name="unrelated", priority=-1)
    assert callbacks.names() == [*names, "unrelated"]


def test_remove_and_add_again_revives_the_constraint():
    callbacks = collection(a={}, b={"priority": 10, "after": "a"})
    callbacks.remove("a")
    callbacks.add(Listener(), name="a", priority=-5)
    assert callbacks.names() == ["a", "b"]


def test_add_back_that_closes_a_cycle_is_refused():
    callbacks = collection(a={}, b={"after": "a"})
    callbacks.remove("a")
    message = refused(callbacks, hl.OrderError, lambda: callbacks.add(Listener(), name="a", after="b"))
    assert message == "These subscribers depend on one another: 'b' after 'a' after 'b'."


def test_add_same_instance_twice_is_refused():
    listener = Listener()
    callbacks = hl.CallbackCollection([listener], strict=True)
    message = refused(callbacks, hl.DuplicateError, lambda: callbacks.add(listener, name="other"))
    assert message == "'listener' is this instance; it was added before and cannot be added twice."


def test_add_same_instance_twice_in_one_call_adds_none():
    listener = Listener()
    callbacks = collection(a={})
    message = refused(callbacks, hl.DuplicateError, lambda: callbacks.extend([Logger(), listener, listener]))
    assert message == "'listener' is this instance; it was added before and cannot be added twice."


def test_add_collection_to_itself_or_into_its_own_group_is_refused():
    outer = hl.CallbackCollection([Listener()], name="outer")
    inner = hl.CallbackCollection(name="inner")
    outer.add(inner)
    assert "cannot contain itself" in refused(inner, hl.DuplicateError, lambda: inner.add(outer))
    assert "cannot contain itself" in refused(outer, hl.DuplicateError, lambda: outer.add(outer))


def test_add_second_of_a_class_gets_a_number():
    callbacks = hl.CallbackCollection([Listener(), Listener(), Listener()], strict=True)
    assert callbacks.names() == ["listener", "listener_2", "listener_3"]


def test_add_number_that_is_taken_is_skipped():
    callbacks = hl.CallbackCollection([Listener()], strict=True)
    callbacks.add(Logger(), name="listener_2")
    callbacks.add(Listener())
    assert callbacks.names() == ["listener", "listener_2", "listener_3"]


def test_add_duplicate_explicit_name_is_refused():
    callbacks = collection(monitor={})
    message = refused(callbacks, hl.DuplicateError, lambda: callbacks.add(Logger(), name="monitor"))
    assert message == "The name 'monitor' is taken. Give another name, or omit it to get a unique one."


def test_add_name_set_on_the_instance_counts_as_explicit():
    named = Listener()
    named.name = "monitor"
    callbacks = collection(monitor={})
    assert "'monitor'" in refused(callbacks, hl.DuplicateError, lambda: callbacks.add(named))


def test_add_class_instead_of_instance_is_refused():
    callbacks = collection(a={})
    message = refused(callbacks, hl.MomentError, lambda: callbacks.add(Logger))
    assert message == "Logger is a class: give an instance, Logger(...)."


@pytest.mark.parametrize("thing", [None, 3, 2.5, b"bytes", object(), ["early_stopping"]])
def test_add_something_else_is_refused_with_what_is_accepted(thing):
    callbacks = collection(a={})
    message = refused(callbacks, hl.MomentError, lambda: callbacks.add(thing))
    assert message.startswith(f"{thing!r} is not a subscriber: give a Callback, a Hook, a registered name,")


@pytest.mark.parametrize("thing", ["early_stopping", {"pre_training_hook": print}, Listener(), print, None, 3])
def test_extend_with_one_subscriber_instead_of_a_list_is_refused(thing):
    callbacks = collection(a={})
    message = refused(callbacks, hl.MomentError, lambda: callbacks.extend(thing))
    assert message == f"{thing!r} is one subscriber: give a list of them."


@pytest.mark.parametrize("every", [0, -1, 2.0, True, False, "10", [10]])
def test_add_bad_every_is_refused(every):
    callbacks = collection(a={})
    message = refused(callbacks, hl.OptionError, lambda: callbacks.add(Logger(), every=every))
    assert message == f"Logger: every={every!r}: give a whole number of at least 1."


def test_add_unknown_option_is_refused_with_a_suggestion():
    callbacks = collection(a={})
    message = refused(callbacks, hl.OptionError, lambda: callbacks.add(Logger(), evry=10))
    assert message == "Logger: unknown option evry=10. Did you mean 'every'?"


def test_add_misspelt_moment_is_refused_with_the_closest():
    class Misspelt(hl.Callback):
        def on_step_ends(self, loop):
            pass

    callbacks = collection(a={})
    message = refused(callbacks, hl.MomentError, lambda: callbacks.add(Misspelt()))
    assert message.startswith("Misspelt.on_step_ends is not a moment. Did you mean 'on_step_end'?")


def test_extend_with_one_bad_member_adds_none():
    class Backwards(hl.Callback):
        def on_step_end(self, loop, metrics):
            pass

    callbacks = collection(a={})
    message = refused(callbacks, hl.MomentError, lambda: callbacks.extend([Logger(), Backwards(), Csv()]))
    assert "it is defined as    on_step_end(loop, metrics)" in message


def test_copy_keeps_an_order_that_was_moved():
    callbacks = collection(a={}, b={}, urgent={"priority": 5})
    callbacks.move_to_front("b")
    callbacks.insert(1, Listener(), name="late", priority=-5)
    assert copy.deepcopy(callbacks).names() == ["b", "late", "urgent", "a"]


def test_copy_after_a_dependency_was_removed_works():
    callbacks = collection(a={}, b={"after": "a"})
    callbacks.remove("a")
    assert copy.deepcopy(callbacks).names() == ["b"]


def test_copy_keeps_numbered_names_after_a_removal():
    callbacks = hl.CallbackCollection([Listener(), Listener()], strict=True)
    callbacks.remove("listener")
    assert copy.deepcopy(callbacks).names() == ["listener_2"]


def test_collection_of_a_collection_copies_order_and_options():
    callbacks = collection(a={"priority": 1}, b={"priority": 2})
    callbacks.add(Logger(), every=10)
    callbacks.move_to_front("a")
    taken_over = hl.CallbackCollection(callbacks, strict=True)
    assert taken_over.names() == ["a", "b", "logger"]
