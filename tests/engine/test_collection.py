"""CallbackCollection: firing, mutation while firing, naming, nesting, copying."""

import copy
import pickle

import pytest

import hookline as hl
from hookline.testing import FakeLoop, RecordingCallback


class Named(hl.Callback):
    """Appends its name to a list at each step."""

    def __init__(self, label, seen):
        self.label, self.seen = label, seen

    def on_step_end(self, loop, step_idx):
        self.seen.append(self.label)


def fire_step(callbacks, step_idx=0, loop=None):
    callbacks.on_step_end(loop or FakeLoop(), step_idx, None, {})


def test_collection_moment_reaches_every_subscriber_in_order():
    seen = []
    callbacks = hl.CallbackCollection([Named("a", seen), Named("b", seen), Named("c", seen)], strict=True)
    fire_step(callbacks)
    fire_step(callbacks)
    assert seen == ["a", "b", "c", "a", "b", "c"]


def test_collection_moment_without_subscribers_does_nothing():
    callbacks = hl.CallbackCollection([Named("a", [])])
    assert callbacks.on_train_start(FakeLoop()) is None  # type: ignore[func-returns-value]
    assert callbacks.plan() == {"on_step_end": ["named"]}


def test_collection_trailing_arguments_left_off_are_not_passed():
    seen = []

    class Short(hl.Callback):
        def on_train_end(self, trainer):
            seen.append("end")

        def on_step_end(self, trainer, step_idx, batch):
            seen.append((step_idx, batch))

    callbacks = hl.CallbackCollection([Short()], strict=True)
    callbacks.on_step_end(FakeLoop(), 3, "batch", {})
    callbacks.on_train_end(FakeLoop(), None)
    assert seen == [(3, "batch"), "end"]


def test_collection_moment_called_with_keywords_works():
    recording = RecordingCallback()
    callbacks = hl.CallbackCollection([recording], strict=True)
    callbacks.on_train_batch_end(FakeLoop(), outputs={"loss": 1.0}, batch="b", batch_idx=4)  # type: ignore[call-arg]
    callbacks.on_benchmark_eval(hl.LogContext(), "result", [], step=7)
    assert [tuple(event) for event in recording.events] == [
        ("on_train_batch_end", ({"loss": 1.0}, "b", 4)),
        ("on_benchmark_eval", ("result", [], 7)),
    ]


def test_collection_two_of_a_class_get_unique_names():
    callbacks = hl.CallbackCollection(["early_stopping", "early_stopping", "early_stopping"])
    assert callbacks.names() == ["early_stopping", "early_stopping_2", "early_stopping_3"]
    assert callbacks["early_stopping_2"] is callbacks[1]


def test_collection_add_while_firing_takes_effect_at_the_next_firing():
    seen = []

    class Adder(hl.Callback):
        def on_step_end(self, loop, step_idx):
            seen.append("adder")
            if step_idx == 0:
                callbacks.add(Named("new", seen), priority=10)

    callbacks = hl.CallbackCollection([Adder(), Named("last", seen)], strict=True)
    fire_step(callbacks, 0)
    fire_step(callbacks, 1)
    assert seen == ["adder", "last", "new", "adder", "last"]


def test_collection_subscriber_removing_itself_skips_no_other():
    seen = []

    class Leaver(hl.Callback):
        def on_step_end(self, loop):
            seen.append("leaver")
            callbacks.remove(self)

    callbacks = hl.CallbackCollection([Leaver(), Leaver(), Named("last", seen)], strict=True)
    fire_step(callbacks)
    fire_step(callbacks)
    assert seen == ["leaver", "leaver", "last", "last"]


def test_collection_remove_by_instance_keeps_an_equal_one():
    class Equal(hl.Callback):
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

    first, second = Equal(), Equal()
    callbacks = hl.CallbackCollection([first, second])
    callbacks.remove(second)
    assert [callback is first for callback in callbacks] == [True]


def test_collection_remove_by_class_and_name():
    seen = []
    callbacks = hl.CallbackCollection([Named("a", seen), RecordingCallback(), Named("b", seen)])
    callbacks.remove(Named)
    assert callbacks.names() == ["recording_callback"]
    callbacks.remove("recording_callback")
    assert len(callbacks) == 0


def test_collection_remove_unknown_is_an_error_with_the_closest_name():
    callbacks = hl.CallbackCollection([RecordingCallback()])
    with pytest.raises(hl.UnknownNameError, match="Did you mean 'recording_callback'"):
        callbacks.remove("recording_calback")
    assert callbacks.names() == ["recording_callback"]


def test_collection_contains_and_indexing():
    first = RecordingCallback()
    callbacks = hl.CallbackCollection([first, Named("x", [])])
    found = (first in callbacks, RecordingCallback in callbacks, "named" in callbacks, "nobody" in callbacks)
    assert found == (True, True, True, False)
    assert callbacks[0] is first
    assert callbacks[-1].label == "x"
    assert [type(callback).__name__ for callback in callbacks[0:2]] == ["RecordingCallback", "Named"]


def test_collection_nested_group_runs_in_its_place_and_follows_changes():
    seen = []
    group = hl.CallbackCollection([Named("inner", seen)], name="group")
    callbacks = hl.CallbackCollection([Named("first", seen), group, Named("last", seen)], strict=True)
    fire_step(callbacks)
    group.add(Named("added", seen))
    fire_step(callbacks)
    assert seen == ["first", "inner", "last", "first", "inner", "added", "last"]
    assert callbacks.plan() == {"on_step_end": ["named", "group/named", "group/named_2", "named_2"]}


def test_collection_group_hands_its_options_down():
    seen = []
    group = hl.CallbackCollection([Named("inner", seen)])
    callbacks = hl.CallbackCollection(strict=True)
    callbacks.add(group, every=2, ranks="zero")
    for step_idx in range(4):
        fire_step(callbacks, step_idx, FakeLoop(rank=0))
        fire_step(callbacks, step_idx, FakeLoop(rank=1))
    assert seen == ["inner", "inner"]


def test_collection_group_left_is_no_longer_called():
    seen = []
    group = hl.CallbackCollection([Named("inner", seen)])
    callbacks = hl.CallbackCollection([group], strict=True)
    callbacks.remove(group)
    fire_step(callbacks)
    fire_step(group)
    assert seen == ["inner"]


def test_collection_cannot_contain_itself():
    inner = hl.CallbackCollection()
    outer = hl.CallbackCollection([inner])
    with pytest.raises(hl.DuplicateError, match="cannot contain itself"):
        inner.add(outer)


def test_collection_returned_dict_is_logged_under_the_name():
    class Derived(hl.Callback):
        def on_step_end(self, loop, step_idx, batch, metrics):
            return {"double": metrics["loss"] * 2}

    loop = FakeLoop(callbacks=[Derived(), hl.on("step_end", lambda loop: {"seen": 1}, name="counter")])
    loop.run_steps(1, lambda step_idx: {"loss": 0.5})
    assert loop.history[0].metrics == {"loss": 0.5, "derived/double": 1.0, "counter/seen": 1}


def test_collection_other_returned_values_are_warned_about_once(caplog):
    callbacks = hl.CallbackCollection([hl.on("step_end", lambda loop: 42, name="odd")])
    fire_step(callbacks)
    fire_step(callbacks)
    assert [record.getMessage().split(",")[0] for record in caplog.records] == ["odd returned 42 from on_step_end"]


def test_collection_state_is_saved_and_restored_by_name(caplog):
    class Counter(hl.Callback):
        def __init__(self):
            self.count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    saved = {"counter": {"count": 3}, "group": {"counter": {"count": 5}}, "gone": {"x": 1}}
    group = hl.CallbackCollection([Counter()], name="group")
    callbacks = hl.CallbackCollection([Counter(), Counter().configure(name="new"), group], strict=True)
    callbacks.load_state_dict(saved)
    assert {name: state for name, state in callbacks.state_dict().items() if name in callbacks.names()} == {
        "counter": {"count": 3},
        "group": {"counter": {"count": 5}},
        "new": {"count": 0},
    }
    assert sorted(record.getMessage() for record in caplog.records) == [
        "The checkpoint has no state for 'new': it starts from scratch.",
        "The checkpoint has state for 'gone', which is not registered: ignored.",
    ]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_collection_copies_share_nothing_and_keep_options(duplicate):
    callbacks = hl.CallbackCollection([RecordingCallback()], strict=True)
    callbacks.add("early_stopping", every=5, name="stopper")
    fire_step(callbacks)
    twin = duplicate(callbacks)
    fire_step(twin)
    assert twin.names() == callbacks.names()
    assert (len(callbacks[0].events), len(twin[0].events)) == (1, 2)


def test_collection_close_closes_every_subscriber_and_may_be_repeated():
    closed = []

    class Closing(hl.Callback):
        def close(self):
            closed.append("closed")

    callbacks = hl.CallbackCollection([Closing(), Closing()])
    callbacks.close()
    assert closed == ["closed", "closed"]
    callbacks.close()


def test_collection_of_what_is_no_list_or_subscriber_is_an_error():
    for wrong in ("early_stopping", 3, {"pre_training_hook": print}):
        with pytest.raises(hl.MomentError, match="give a list"):
            hl.CallbackCollection(wrong)
    with pytest.raises(hl.MomentError, match="is a class: give an instance"):
        hl.CallbackCollection([RecordingCallback])
    with pytest.raises(hl.MomentError, match="is not a subscriber"):
        hl.CallbackCollection([None])


def test_collection_budget_for_a_group_is_refused():
    callbacks = hl.CallbackCollection()
    with pytest.raises(hl.OptionError, match="not a group"):
        callbacks.add(hl.CallbackCollection(name="group"), budget=0.1)


def test_collection_misspelt_hook_function_in_a_list_is_named():
    with pytest.raises(hl.UnknownNameError, match="Did you mean 'pre_training_hook'"):
        hl.CallbackCollection([{"pre_trainin_hook": [lambda worker, report_data: None]}])
