"""The monitor for prime-rl with a stand-in of its orchestrator, beyond what the contract suite compares."""

import pytest
from host_runs import end_of, values
from hosts.stand_ins.prime_rl import episode, orchestrate

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._record.records import Sample
from hookline.callbacks import SampleLogger
from hookline.integrations.prime_rl import HooklineMonitor
from hookline.testing import RecordingCallback


def test_rows_and_evaluations_have_the_names_of_prime_rl_and_hooklines(options):
    monitor = HooklineMonitor(**options)
    orchestrate([monitor], steps=3)
    loop = monitor.loop
    assert values(loop, "loss") == values(loop, "loss/mean")
    assert [step for step, _ in values(loop, "progress/tokens")] == [1, 2, 3]
    assert values(loop, "sums/avg@1") == values(loop, "eval/sums/avg@1") == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert (len(monitor.history), end_of(loop)[0]) == (6, "finished")


def test_rollouts_of_training_and_evaluations_are_chats_with_rewards(options):
    seen = RecordingCallback()
    with HooklineMonitor([seen, SampleLogger(n=8)], **options) as monitor:
        orchestrate([monitor], steps=1)
    ((step, (rollout,)),) = [event.arguments for event in seen.events if event.moment == "on_rollout_end"]
    assert (step, rollout.rewards, rollout.total, rollout.task.prompt) == (0, {"right": 1.0}, 2.0, "1+1=")
    (outputs,) = [event.arguments[0] for event in seen.events if event.moment == "on_validation_batch_end"]
    assert [each.success for each in outputs["rollouts"]] == [True, False]
    (sample,) = [record for record in hl.read(monitor.loop.dir) if isinstance(record, Sample)]
    assert (sample.completion, sample.group) == ("2", "task")


def test_steps_that_begin_elsewhere_and_further_metrics_keep_their_numbers(options):
    with HooklineMonitor(**options) as monitor:
        monitor.log({"loss/mean": 1.0}, step=5)
        monitor.log({"trainer/lr": 0.1}, step=5)
        monitor.log_episodes([episode("a", "b", 1.0, group="g")], 6, kind="train")
        monitor.log({"loss/mean": 0.5}, step=6)
    assert values(monitor.loop, "loss") == [(5, 1.0), (6, 0.5)]
    assert values(monitor.loop, "trainer/lr") == [(5, 0.1)]


def test_several_environments_are_several_evaluations(options):
    seen = RecordingCallback()
    with HooklineMonitor([seen], **options) as monitor:
        monitor.log({"eval/math/avg@8": 0.5, "eval/code/avg@1": 0.25, "eval/math/pass@8": 0.75}, step=0)
    names = [event.arguments[1:] for event in seen.events if event.moment == "on_eval"]
    assert [(name, sorted(metrics)) for name, metrics in names] == [
        ("math", ["eval/math/avg@8", "eval/math/pass@8", "math/avg@8", "math/pass@8"]),
        ("code", ["code/avg@1", "eval/code/avg@1"]),
    ]


def test_stop_is_refused_with_one_warning_and_the_run_finishes(options, caplog):
    stop = hl.on("step_end", lambda loop, step_idx: loop.request_stop("enough"))
    with HooklineMonitor([stop, hl.callbacks.Timer(seconds=100)], **options) as monitor:
        orchestrate([monitor], steps=3)
    assert (monitor.loop.step, end_of(monitor.loop)) == (3, ["finished", ""])
    assert caplog.text.count("prime-rl's monitors only listen.") == 2  # of the timer, and at the first request
    assert "timer stops nothing" in caplog.text


def test_checkpoint_callback_saves_nothing_and_says_so(options, caplog):
    with HooklineMonitor([hl.callbacks.CheckpointCallback(every_n_steps=1)], **options) as monitor:
        orchestrate([monitor], steps=2)
    assert "checkpoint saves nothing: the run only records another program's values." in caplog.text
    assert (monitor.loop.checkpoints, end_of(monitor.loop)[0]) == ([], "finished")


@pytest.mark.parametrize("how", ["orchestrator", "callback"])
def test_error_ends_the_run_as_failed(options, how):
    def fail(loop, step_idx, rollouts):
        raise RuntimeError("the callback is gone")

    callbacks = [hl.on("rollout_end", fail)] if how == "callback" else []
    monitor = HooklineMonitor(callbacks, **options)
    with pytest.raises(RuntimeError, match="gone"), monitor:
        orchestrate([monitor], breaks_at=1)
    assert end_of(monitor.loop)[0] == "failed"


def test_steps_that_are_no_number_are_refused():
    with pytest.raises(OptionError, match="steps=0"):
        HooklineMonitor(root=None, steps=0)
