"""Hooks in a manager and in a collection: one engine."""

import logging
import threading

import pytest

import hookline as hl
from hookline.hooks import (
    CheckpointHook,
    CompositeHook,
    Hook,
    HookContext,
    HookManager,
    LoggingHook,
    MetricsHook,
    PeriodicHook,
)
from hookline.testing import FakeLoop


class Reporting(PeriodicHook):
    """Returns given results and remembers when."""

    def __init__(self, frequency=1, result=None, **options):
        super().__init__(frequency)
        self.result, self.steps = result, []
        self.configure(**options)

    def run(self, context):
        self.steps.append(context.step)
        return self.result


def run_manager(manager, steps):
    return [manager.run_hooks(HookContext(worker=None, step=step, rng=None)) for step in range(1, steps + 1)]


def test_manager_merges_results_and_keeps_both_of_a_key():
    manager = HookManager([Reporting(result={"a": 1}), Reporting(result={"a": 2, "b": 3})], strict=True)
    assert run_manager(manager, 1) == [{"a": 1, "reporting_2/a": 2, "b": 3}]


def test_manager_asks_each_hook_right_before_it_would_run():
    class First(Hook):
        def should_run(self, context):
            return True

        def run(self, context):
            context.metadata["found"] = True

    class Second(First):
        def should_run(self, context):
            return context.metadata.get("found", False)

        def run(self, context):
            return {"second": 1}

    assert run_manager(HookManager([First(), Second()], strict=True), 1) == [{"second": 1}]


def test_manager_priority_and_dependencies_order_hooks():
    manager = HookManager(strict=True)
    manager.register_hook(Reporting(name="late"))
    manager.register_hook(Reporting(name="early", priority=10))
    manager.register_hook(Reporting(name="first"), before="early")
    assert repr(manager) == "HookManager([first, early, late])"
    assert len(manager) == 3


def test_manager_isolates_a_failing_hook_and_disables_it():
    class Failing(Reporting):
        def run(self, context):
            raise ValueError("bad")

    manager = HookManager([Failing(), Reporting(result={"ok": 1})])
    assert run_manager(manager, 5) == [{"ok": 1}] * 5
    assert (manager.costs().by_name()["failing"].errors, manager.costs().by_name()["failing"].disabled) == (3, True)


def test_manager_async_and_background_results_come_with_the_next_call_or_at_close():
    class Async(Reporting):
        async def run(self, context):
            return {"async": context.step}

    manager = HookManager(
        [Async(frequency=2), Reporting(frequency=2, result={"thread": 1}, background=True)], strict=True
    )
    results = run_manager(manager, 2)
    gathered = {**results[0], **results[1], **manager.close()}
    assert gathered == {"async": 2, "thread": 1}


def test_manager_late_results_of_several_steps_are_all_there():
    class Waits(Reporting):
        def run(self, context):
            assert gate.wait(60)
            return {"a": context.step}

    gate = threading.Event()
    manager = HookManager([Waits(background=True), Reporting(3, {"a": 0.5}, name="own")], strict=True)
    assert run_manager(manager, 3) == [{}, {}, {"a": 0.5}]
    gate.set()
    assert manager.close() == {"waits/a": 3, "waits/a@2": 2, "waits/a@1": 1}


def test_manager_late_results_of_one_step_asked_for_twice_are_all_there():
    class Waits(Reporting):
        def run(self, context):
            assert gate.wait(60)
            return {"a": next(numbers)}

    gate, numbers = threading.Event(), iter(range(3))
    manager = HookManager([Waits(background=True)], strict=True)
    assert [manager.run_hooks(HookContext(None, 1)) for _ in range(3)] == [{}, {}, {}]
    gate.set()
    assert sorted(manager.close().values()) == [0, 1, 2]


def test_hook_in_a_collection_that_returns_what_cannot_be_recorded_is_disabled_after_three_calls():
    loop = FakeLoop(callbacks=[Reporting(result={"x": [1, 2]})], strict=False)
    loop.run_steps(5)
    cost = loop.callbacks.costs().by_name()["reporting"]
    assert (cost.calls, cost.errors, cost.disabled) == (3, 3, True)


def test_manager_counts_runs_not_questions():
    class Picky(Hook):
        def should_run(self, context):
            return context.step == 7

        def run(self, context):
            return None

    manager = HookManager([Picky()], strict=True)
    run_manager(manager, 100)
    assert manager.costs()[0].calls == 1


def test_manager_refuses_what_is_no_hook():
    with pytest.raises(hl.MomentError, match="is not a hook"):
        HookManager().register_hook(print)
    assert HookManager().unregister_hook(Reporting()) is False


def test_manager_state_round_trips_by_name():
    class Stateful(Reporting):
        def state_dict(self):
            return {"steps": self.steps}

        def load_state_dict(self, state):
            self.steps = state["steps"]

    manager, other = HookManager([Stateful(5)]), HookManager([Stateful(5)])
    run_manager(manager, 10)
    other.load_state_dict(manager.state_dict())
    assert other.get_hooks()[0].steps == [5, 10]  # type: ignore[attr-defined]


def test_composite_children_keep_their_own_cadence_in_a_manager():
    children = [Reporting(2), Reporting(3), Reporting(100)]
    run_manager(HookManager([CompositeHook(children)], strict=True), 6)
    assert [child.steps for child in children] == [[2, 4, 6], [3, 6], []]


def test_composite_children_keep_their_own_cadence_in_a_collection():
    children = [Reporting(2, {"x": 1}), Reporting(3)]
    loop = FakeLoop(callbacks=[CompositeHook(children)])
    loop.run_steps(6)
    assert [child.steps for child in children] == [[2, 4, 6], [3, 6]]
    assert list(loop.metrics) == ["composite_hook/reporting/x"]


def test_composite_called_directly_runs_what_is_due():
    composite = CompositeHook([Reporting(2, {"two": 2}), Reporting(5, {"five": 5})])
    context = HookContext(worker=None, step=4)
    assert (composite.should_run(context), composite.run(context)) == (True, {"two": 2})
    assert composite.should_run(HookContext(worker=None, step=7)) is False


def test_hook_in_a_collection_is_asked_after_each_step_with_the_metrics():
    seen = []

    class Looking(Hook):
        def should_run(self, context):
            return context.metadata["loss"] > 0

        def run(self, context):
            seen.append((context.worker is loop, context.step, context.lesson_id, context.metadata))

    loop = FakeLoop(callbacks=[Looking()], lesson_id="easy")
    loop.run_steps(3, lambda step_idx: {"loss": step_idx})
    assert seen == [(True, 2, "easy", {"loss": 1}), (True, 3, "easy", {"loss": 2})]


def test_hooks_in_a_collection_split_different_generators_that_do_not_depend_on_the_process():
    drawn = []

    class Drawing(Reporting):
        def run(self, context):
            drawn.append([rng.random() for rng in context.split_rng()])

    FakeLoop(callbacks=[Drawing(), Drawing()]).run_steps(3)
    assert len({value for pair in drawn for value in pair}) == 12


def test_logging_hook_logs_where_the_worker_is(caplog):
    caplog.set_level(logging.INFO, "hookline.hooks")
    manager = HookManager([LoggingHook(frequency=10)], strict=True)
    manager.run_hooks(HookContext(None, 10, lesson_id="sums", metadata={"reward": 0.25, "n": 3}))
    assert [record.getMessage() for record in caplog.records] == ["step 10, lesson sums, reward=0.25, n=3"]


def test_metrics_hook_returns_what_its_function_gives():
    hook = MetricsHook(5, lambda context: {"twice": context.step * 2})
    assert hook.run(HookContext(None, 5)) == {"twice": 10}
    with pytest.raises(hl.OptionError, match="metrics_fn=3"):
        MetricsHook(5, 3)


def test_checkpoint_hook_asks_the_loop_for_a_checkpoint():
    loop = FakeLoop(callbacks=[CheckpointHook(frequency=4)])
    loop.run_steps(3)
    before = loop.checkpoint_requested
    loop.run_steps(1)
    assert (before, loop.checkpoint_requested) == (False, True)


def test_debug_logging_shows_name_step_time_and_result(caplog):
    caplog.set_level(logging.DEBUG, "hookline.hooks")
    HookManager([Reporting(result={"a": 1})], strict=True).run_hooks(HookContext(None, 3))
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("reporting ran at step 3 in ")
    assert message.endswith("-> {'a': 1}")


def test_periodic_hook_with_a_changed_frequency_follows_it():
    hook = Reporting(2)
    manager = HookManager([hook], strict=True)
    run_manager(manager, 4)
    hook.frequency = 3
    run_manager(manager, 9)
    assert hook.steps == [2, 4, 3, 6, 9]


def test_composite_subclass_that_decides_itself_is_asked():
    class Late(CompositeHook):
        def should_run(self, context):
            return context.step >= 3

    child = Reporting(1)
    run_manager(HookManager([Late([child])], strict=True), 4)
    assert child.steps == [3, 4]


def test_hook_for_rank_zero_follows_its_workers_rank():
    class Worker:
        def __init__(self, rank):
            self.rank = rank

    manager = HookManager([Reporting(1, {"x": 1}, ranks="zero")], strict=True)
    assert [manager.run_hooks(HookContext(Worker(rank), 1)) for rank in (0, 1)] == [{"x": 1}, {}]


def hook_with(**members):
    """A hook of a class with these members."""
    usual = {"should_run": lambda self, context: True, "run": lambda self, context: None}
    return type("Made", (Hook,), usual | members)()


async def never(self, context):
    return False


@pytest.mark.parametrize(
    "add", [HookManager().register_hook, hl.CallbackCollection().add, CompositeHook([]).manager.register_hook]
)
@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"run": lambda self: None}, r"Made.run cannot be called with a context.\n.*Made.run\(\)"),
        ({"run": lambda self, context, loop: None}, r"Made.run\(context, loop\)"),
        ({"run": lambda self, *, context: None}, r"Made.run\(\*, context\)"),
        ({"run": 3}, "Made.run is 3; give a function"),
        ({"should_run": lambda self: True}, r"Made.should_run\(\)"),
        ({"should_run": never}, "Made.should_run is async, so it would always hold: write def should_run"),
    ],
)
def test_hook_that_cannot_be_called_is_refused_when_added(add, members, message):
    with pytest.raises(hl.MomentError, match=message):
        add(hook_with(**members))


@pytest.mark.parametrize(
    "members", [{}, {"run": lambda self, *args: None}, {"run": lambda self, context, extra=1: None}]
)
def test_hook_with_other_arguments_that_have_defaults_is_accepted(members):
    assert run_manager(HookManager([hook_with(**members)], strict=True), 2) == [{}, {}]


@pytest.mark.parametrize(("base", "missing"), [(PeriodicHook, "frequency"), (CompositeHook, "manager")])
def test_hook_that_does_not_set_up_its_base_is_refused_and_nothing_changes(base, missing):
    class Hasty(base):  # type: ignore[valid-type]
        def __init__(self):
            self.own = 1

        def run(self, context):
            return None

        state_dict = Hook.state_dict

    manager = HookManager([Reporting()], strict=True)
    with pytest.raises(hl.MomentError, match=f"Hasty has no {missing}: its __init__ must call that of {base.__name__}"):
        manager.register_hook(Hasty())
    assert len(manager) == 1


def test_periodic_hook_that_decides_itself_needs_no_frequency():
    class Own(PeriodicHook):
        def __init__(self):
            self.steps = []

        def should_run(self, context):
            return context.step == 2

        def run(self, context):
            self.steps.append(context.step)

    hook = Own()
    run_manager(HookManager([hook], strict=True), 3)
    assert hook.steps == [2]


def test_metrics_hook_with_a_function_that_takes_no_context_is_refused():
    with pytest.raises(hl.MomentError, match=r"metrics_fn cannot be called with a context"):
        MetricsHook(5, lambda: {"a": 1})


@pytest.mark.parametrize("make", [HookManager, CompositeHook])
@pytest.mark.parametrize("given", [Reporting(), "logging_hook", 3, LoggingHook, {"logging_hook": {}}])
def test_manager_and_composite_given_something_else_than_a_list_say_so(make, given):
    with pytest.raises(hl.MomentError, match="give a list of hooks"):
        make(given)


def test_hook_in_a_run_that_returns_one_unrecordable_value_keeps_the_others():
    with hl.run(callbacks=[MetricsHook(1, lambda context: {"good": 1.0, "bad": [1, 2]})], summary=False) as run:
        for _ in run.steps(4):
            pass
    assert [row.metrics["metrics_hook/good"] for row in run.history] == [1.0] * 4
    assert run.callbacks.costs().by_name()["metrics_hook"].errors == 0
