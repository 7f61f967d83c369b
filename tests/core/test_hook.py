"""Hooks in a manager and in a collection: one engine."""

import logging

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
    """Returns what it is told to and remembers when."""

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
    assert other.get_hooks()[0].steps == [5, 10]


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
