"""Subscribers off the training thread: order, snapshots, bounds, errors, draining. No test waits for time."""

import asyncio
import threading

import pytest

import hookline as hl
from hookline.testing import FakeLoop


class ManualThreads:
    """Starts nothing: a test runs what was started when it wants to."""

    def __init__(self):
        self.targets = []

    def start(self, target, name):
        self.targets.append(target)
        return self

    def join(self, timeout=None):
        while self.targets:
            self.targets.pop()()

    def is_alive(self):
        return bool(self.targets)


class NeverEnding(ManualThreads):
    """A thread that does not get anything done in time."""

    def join(self, timeout=None):
        pass

    def is_alive(self):
        return True


def collection(*members, threads=None, **policy):
    start = {"start_thread": threads.start} if threads else {}
    return hl.CallbackCollection(members, policy=hl.Policy(**start, **policy))


def test_background_subscriber_runs_in_order_on_another_thread():
    seen = []
    work = hl.on(
        "step_end", lambda loop, i: seen.append((i, threading.current_thread().name)), name="work", background=True
    )
    callbacks = collection(work)
    FakeLoop(callbacks=callbacks).run_steps(5)
    callbacks.close()
    assert seen == [(i, "hookline-work") for i in range(5)]


def test_background_arguments_are_snapshots():
    seen = []

    def look(loop, step_idx, batch, metrics):
        seen.append((loop.step, dict(loop.metrics), metrics))

    threads = ManualThreads()
    callbacks = collection(hl.on("step_end", look, background=True), threads=threads)
    loop = FakeLoop(callbacks=callbacks)
    loop.run_steps(2, lambda step_idx: {"loss": step_idx})
    callbacks.close()
    assert seen == [(1, {"loss": 0}, {"loss": 0}), (2, {"loss": 1}, {"loss": 1})]


def test_background_subscriber_can_steer_and_log_at_its_own_step():
    threads = ManualThreads()

    def steer(loop):
        loop.request_stop("seen enough")
        return {"late": loop.step}

    callbacks = collection(hl.on("step_end", steer, name="steer", every=3, background=True), threads=threads)
    loop = FakeLoop(callbacks=callbacks)
    loop.run_steps(5)
    callbacks.close()
    assert loop.stop_reason == "seen enough"
    assert [(row.step, row.metrics) for row in loop.history if row.metrics] == [(3, {"steer/late": 3})]


def test_background_queue_full_drops_repeating_moments_only_and_says_so(caplog):
    recorded, threads = [], ManualThreads()

    class Slow(hl.Callback):
        background = True

        def on_step_end(self, loop, step_idx):
            recorded.append(step_idx)

        def on_train_end(self, loop):
            recorded.append("end")

    callbacks = collection(Slow(), threads=threads, queue_size=3)
    loop = FakeLoop(callbacks=callbacks)
    loop.run_steps(10)
    callbacks.on_train_end(loop, None)
    callbacks.close()
    assert recorded == [0, 1, 2, "end"]
    assert callbacks.costs()[0].dropped == 7
    assert [r.getMessage().split(":")[0] for r in caplog.records] == ["slow is slower than the loop"]


def test_background_errors_follow_the_same_policy():
    def fail(loop):
        raise ValueError("bad")

    callbacks = collection(hl.on("step_end", fail, background=True), threads=ManualThreads())
    loop = FakeLoop(callbacks=callbacks)
    loop.run_steps(5)
    callbacks.close()
    cost = callbacks.costs()[0]
    assert (cost.errors, cost.disabled, cost.background) == (3, True, True)
    assert [f.step for f in callbacks.failures] == [1, 2, 3]


def test_background_critical_error_is_raised_by_the_next_call_or_at_the_end():
    def fail(loop, step_idx):
        if step_idx == 0:
            raise ValueError("critical")

    threads = ManualThreads()
    callbacks = collection(hl.on("step_end", fail, critical=True, background=True), threads=threads)
    loop = FakeLoop(callbacks=callbacks)
    loop.run_steps(1)
    with pytest.raises(ValueError, match="critical"):
        callbacks.close()
    loop.run_steps(1)
    callbacks.close()
    assert len(callbacks.failures) == 1


def test_background_work_not_finished_in_time_is_counted_and_left(caplog):
    callbacks = collection(
        hl.on("step_end", print, name="stuck", background=True), threads=NeverEnding(), drain_seconds=0
    )
    FakeLoop(callbacks=callbacks).run_steps(3)
    callbacks.close()
    assert caplog.records[-1].getMessage() == "stuck did not finish within 0 s; unfinished calls: 3."


def test_background_calls_after_a_drain_that_ran_out_of_time_are_made():
    seen, begins, may_continue = [], threading.Event(), threading.Event()

    def look(loop, step_idx):
        begins.set()
        assert may_continue.wait(30)
        seen.append(step_idx)

    callbacks = collection(hl.on("step_end", look, name="slow", background=True), drain_seconds=30)
    loop = FakeLoop(callbacks=callbacks)
    loop.run_steps(1)
    assert begins.wait(30)
    callbacks.policy = hl.Policy(drain_seconds=0)
    callbacks.drain()
    loop.run_steps(2)
    may_continue.set()
    callbacks.policy = hl.Policy(drain_seconds=30)
    callbacks.close()
    assert seen == [0, 1, 2]


def test_background_collection_can_be_used_again_after_close():
    seen = []
    callbacks = collection(hl.on("step_end", lambda loop, i: seen.append(i), background=True))
    for _ in range(2):
        FakeLoop(callbacks=callbacks).run_steps(2)
        callbacks.close()
    assert seen == [0, 1, 0, 1]


def test_async_moments_run_in_order_on_one_event_loop():
    seen = []

    class Async(hl.Callback):
        def __init__(self, label):
            self.label = label

        async def on_step_end(self, loop, step_idx):
            await asyncio.sleep(0)
            seen.append((self.label, step_idx, threading.current_thread().name))

    callbacks = collection(Async("a"), Async("b"))
    FakeLoop(callbacks=callbacks).run_steps(3)
    callbacks.close()
    assert [entry[1] for entry in seen if entry[0] == "a"] == [0, 1, 2]
    assert [entry[1] for entry in seen if entry[0] == "b"] == [0, 1, 2]
    assert {entry[2] for entry in seen} == {"hookline-async"}


def test_async_subscribers_wait_beside_one_another():
    gate = asyncio.Event()
    seen = []

    async def waits(loop):
        await gate.wait()
        seen.append("waited")

    async def opens(loop):
        seen.append("opened")
        gate.set()

    callbacks = collection(hl.on("step_end", waits), hl.on("step_end", opens))
    FakeLoop(callbacks=callbacks).run_steps(1)
    callbacks.close()
    assert seen == ["opened", "waited"]


def test_async_returned_dict_is_logged_and_errors_are_isolated():
    async def derive(loop):
        return {"value": 7}

    async def fail(loop):
        raise ValueError("bad")

    callbacks = collection(hl.on("step_end", derive, name="derive"), hl.on("step_end", fail, name="fail"))
    loop = FakeLoop(callbacks=callbacks)
    loop.run_steps(1)
    callbacks.close()
    loop.commit_held_back()
    assert loop.metrics == {"derive/value": 7}
    assert callbacks.costs().by_name()["fail"].errors == 1


def test_async_work_that_never_ends_is_cancelled_at_the_limit(caplog):
    begins, cancelled = threading.Event(), []

    async def forever(loop):
        begins.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    callbacks = collection(hl.on("step_end", forever, name="forever"), drain_seconds=0.01)
    FakeLoop(callbacks=callbacks).run_steps(1)
    assert begins.wait(30)
    callbacks.close()
    assert cancelled == [True]
    assert "forever did not finish within 0.01 s" in caplog.text


def test_async_context_ids_set_by_a_background_logger_reach_the_context():
    class Tracker(hl.Callback):
        background = True

        def on_experiment_start(self, ctx):
            ctx.ids["experiment_id"] = "e1"

    callbacks = collection(Tracker(), threads=ManualThreads())
    ctx = hl.LogContext()
    callbacks.on_experiment_start(ctx)
    callbacks.close()
    assert ctx.ids == {"experiment_id": "e1"}


def test_background_critical_subscriber_in_a_group_still_ends_the_run():
    closed = []

    class Critical(hl.Callback):
        background = critical = True

        def on_train_end(self, loop):
            raise OSError("disk full")

        def close(self):
            closed.append(True)

    group = hl.CallbackCollection([Critical()], name="group")
    with pytest.raises(OSError, match="disk full"), hl.run(callbacks=[group], summary=False) as run:
        list(run.steps(1))
    assert (run.state, closed) == ("failed", [True])


def test_background_subscriber_in_a_group_works_in_a_second_run():
    seen = []
    group = hl.CallbackCollection([hl.on("train_start", lambda loop: seen.append("start"), background=True)])
    for _ in range(2):
        with hl.run(callbacks=hl.CallbackCollection([group]), summary=False) as run:
            list(run.steps(1))
    assert seen == ["start", "start"]


def test_background_snapshot_holds_for_get_metric_and_validation_metrics_too():
    seen, threads = [], ManualThreads()
    look = hl.on(
        "step_end", lambda loop: seen.append((loop.get_metric("loss"), loop.validation_metrics)), background=True
    )
    callbacks = collection(look, threads=threads)
    loop = FakeLoop(callbacks=callbacks)
    for value in range(3):
        loop.validation_metrics = {"val/loss": value}
        loop.run_steps(1, lambda step_idx: {"loss": step_idx})
    callbacks.close()
    assert seen == [(value, {"val/loss": value}) for value in range(3)]


def test_background_batches_and_outputs_of_other_types_are_passed_by_reference():
    class Output(dict):
        loss = 3.0

    seen, output, batch = [], Output(a=1), (1, 2)
    look = hl.on("train_batch_end", lambda loop, out, batch: seen.append((out is output, batch)), background=True)
    callbacks = collection(look, threads=ManualThreads())
    callbacks.on_train_batch_end(FakeLoop(), output, batch, 0)
    callbacks.close()
    assert seen == [(True, (1, 2))]


def test_background_subscriber_that_was_removed_is_still_drained_and_closed():
    done = []

    class Slow(hl.Callback):
        background = True

        def on_step_end(self, loop, step_idx):
            done.append(step_idx)

        def close(self):
            done.append("closed")

    slow, threads = Slow(), ManualThreads()
    callbacks = collection(slow, threads=threads)
    FakeLoop(callbacks=callbacks).run_steps(3)
    callbacks.remove(slow)
    callbacks.close()
    assert done == [0, 1, 2, "closed"]


def test_background_exit_reaches_the_training_thread():
    def leave(loop):
        raise SystemExit(3)

    callbacks = collection(hl.on("step_end", leave, background=True), threads=ManualThreads())
    FakeLoop(callbacks=callbacks).run_steps(2)
    with pytest.raises(SystemExit):
        callbacks.close()


def test_async_cancelled_task_is_a_failure_and_the_others_continue():
    seen = []

    async def fragile(loop, step_idx):
        if step_idx == 1:
            raise asyncio.CancelledError
        seen.append(step_idx)

    callbacks = collection(hl.on("step_end", fragile))
    FakeLoop(callbacks=callbacks).run_steps(4)
    callbacks.close()
    assert (seen, callbacks.costs()[0].errors) == ([0, 2, 3], 1)


def test_background_subscriber_added_again_runs_its_earlier_calls_first():
    seen, begins, may_continue = [], threading.Event(), threading.Event()

    def slow(loop, step_idx):
        begins.set()
        assert may_continue.wait(30)
        seen.append((step_idx, threading.current_thread()))

    subscriber = hl.on("step_end", slow, name="slow", background=True)
    callbacks = collection(subscriber, drain_seconds=30)
    loop = FakeLoop(callbacks=callbacks)
    loop.run_steps(4)
    assert begins.wait(30)
    callbacks.remove(subscriber)
    callbacks.add(subscriber)
    loop.run_steps(1)
    may_continue.set()
    callbacks.close()
    assert [step_idx for step_idx, _ in seen] == [0, 1, 2, 3, 4]
    assert len({thread for _, thread in seen}) == 1


def test_background_subscriber_added_again_without_a_thread_is_still_drained():
    seen, threads = [], ManualThreads()
    subscriber = hl.on("step_end", lambda loop, step_idx: seen.append(step_idx))
    callbacks = collection(threads=threads)
    callbacks.add(subscriber, background=True)
    loop = FakeLoop(callbacks=callbacks)
    loop.run_steps(2)
    callbacks.remove(subscriber)
    callbacks.add(subscriber, background=False)
    loop.run_steps(1)
    callbacks.close()
    assert seen == [2, 0, 1]
    assert not callbacks.costs()[0].background


def test_background_members_of_a_group_that_left_are_drained():
    seen, threads = [], ManualThreads()
    group = hl.CallbackCollection([hl.on("step_end", lambda loop, i: seen.append(i), background=True)])
    callbacks = collection(group, threads=threads)
    FakeLoop(callbacks=callbacks).run_steps(2)
    callbacks.remove(group)
    callbacks.close()
    assert seen == [0, 1]


class KeptThreads:
    """Starts threads and keeps them, so that a test can see which of them run on."""

    def __init__(self):
        self.all = []

    def start(self, target, name):
        self.all.append(threading.Thread(target=target, name=name, daemon=True))
        self.all[-1].start()
        return self.all[-1]


@pytest.mark.parametrize("in_turn", [True, False])
def test_async_member_of_a_group_in_two_parents_leaves_no_event_loop_running(in_turn):
    seen, threads = [], KeptThreads()

    async def look(loop, step_idx):
        seen.append(step_idx)

    group = hl.CallbackCollection([hl.on("step_end", look, name="look")])
    first, second = (collection(group, threads=threads) for _ in range(2))
    loops = [FakeLoop(callbacks=parent) for parent in (first, second)]
    for loop in () if in_turn else loops:
        loop.run_steps(1)
    for loop in loops:
        loop.run_steps(2)
        loop.callbacks.close()
    assert seen == ([0, 1, 0, 1] if in_turn else [0, 0, 1, 2, 1, 2])
    assert [thread for thread in threads.all if thread.is_alive()] == []
    assert second.costs()[0].background


def test_async_calls_dropped_before_the_close_stay_in_the_costs():
    async def look(loop, step_idx):
        pass

    callbacks = collection(hl.on("step_end", look, name="look"), queue_size=0)
    FakeLoop(callbacks=callbacks).run_steps(3)
    callbacks.close()
    FakeLoop(callbacks=callbacks).run_steps(2)
    cost = callbacks.costs()[0]
    assert (cost.dropped, cost.background) == (5, True)


@pytest.mark.parametrize("moment", ["step_start", "train_batch_end", "step_end"])
@pytest.mark.parametrize("background", [False, True])
def test_background_returned_dict_is_recorded_at_the_step_that_the_foreground_would(moment, background):
    steps = iter(range(3))
    look = hl.on(moment, lambda loop: {"i": next(steps)}, name="look", background=background)
    callbacks = collection(look, threads=ManualThreads())
    with hl.run(callbacks=callbacks, root=None, summary=False) as run:
        list(run.steps(3))
    rows = [(row.step, row.metrics["look/i"]) for row in run.history if "look/i" in row.metrics]
    assert rows == [(1, 0), (2, 1), (3, 2)]


@pytest.mark.parametrize("moment", ["train_batch_start", "step_end"])
def test_background_samples_are_recorded_at_the_step_of_their_moment(moment):
    look = hl.on(moment, lambda loop: loop.log_samples([{"completion": "4"}]), background=True)
    loop = FakeLoop(callbacks=collection(look, threads=ManualThreads()))
    loop.run_steps(3)
    loop.callbacks.close()
    assert [sample["step"] for sample in loop.samples] == [1, 2, 3]


def test_background_samples_given_a_step_are_recorded_there():
    look = hl.on("step_end", lambda loop: loop.log_samples([{"completion": "4"}], step=7), background=True)
    loop = FakeLoop(callbacks=collection(look, threads=ManualThreads()))
    loop.run_steps(1)
    loop.callbacks.close()
    assert loop.samples == [{"step": 7, "completion": "4"}]


def test_background_subscriber_can_save_a_checkpoint(tmp_path, caplog):
    def save(loop):
        loop.save_checkpoint()

    saves = hl.on("step_end", save, name="saves", background=True, critical=True)
    with hl.run(callbacks=[saves], root=tmp_path, summary=False) as run:
        list(run.steps(1))
    assert ([row.step for row in run.checkpoints], caplog.messages) == ([1], [])


def test_async_subscriber_that_saves_a_checkpoint_does_not_wait_for_the_event_loop(tmp_path, caplog):
    async def saves(loop):
        loop.save_checkpoint()

    async def waits(loop):
        await asyncio.sleep(0)

    members = [hl.on("step_end", waits, name="waits"), hl.on("step_end", saves, name="saves", critical=True)]
    with hl.run(callbacks=members, root=tmp_path, summary=False) as run:
        list(run.steps(1))
    assert ([row.step for row in run.checkpoints], caplog.messages) == ([1], [])


def test_background_subscriber_that_saves_waits_for_the_others(tmp_path):
    seen, begins, may_continue = [], threading.Event(), threading.Event()

    def slow(loop):
        begins.set()
        assert may_continue.wait(30)
        seen.append("slow")

    def saves(loop):
        assert begins.wait(30)
        threading.Thread(target=may_continue.set).start()
        loop.save_checkpoint()
        seen.append("saved")

    members = [hl.on("step_end", slow, background=True), hl.on("step_end", saves, background=True, critical=True)]
    with hl.run(callbacks=members, root=tmp_path, summary=False) as run:
        list(run.steps(1))
    assert seen == ["slow", "saved"]
