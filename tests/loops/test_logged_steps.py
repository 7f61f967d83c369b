"""Loops that do not use run.steps: their steps are counted by what they log."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

import hookline as hl
from hookline._record.reader import last_status
from hookline._record.records import Metrics
from hookline.testing import RecordingCallback

STEP = ["on_step_start", "on_step_end", "on_log"]


def start(*callbacks, **options):
    return hl.start(callbacks=callbacks, summary=False, strict=True, **options)


def rows(run):
    return [(row.step, row.metrics) for row in run.history]


def test_run_that_only_logs_counts_a_step_for_each_row(caplog):
    with hl.run(summary=False) as run:
        for i in range(4):
            run.log({"loss": i})
    assert rows(run) == [(i, {"loss": i}) for i in range(4)]
    assert (run.step, run.state, caplog.records) == (4, "completed", [])


def test_start_and_finish_drive_a_loop_without_a_with_block():
    recording = RecordingCallback()
    run = start(recording, notes="as it is")
    for i in range(3):
        run.log(loss=i)
    run.finish()
    first = ["on_log", "on_step_start", "on_step_end"]  # it was not known to be a step when it was logged
    assert recording.names() == ["on_train_start", *first, *STEP, *STEP, "on_train_end"]
    assert (last_status(run.dir).status, run.notes) == ("finished", "as it is")


def test_log_without_commit_waits_for_the_next_row():
    run = start()
    for i in range(3):
        run.log(loss=i, commit=False)
        run.log(lr=0.1)
    run.log(left=1, commit=False)
    run.finish()
    assert rows(run) == [*((i, {"loss": i, "lr": 0.1}) for i in range(3)), (3, {"left": 1})]


def test_step_end_makes_one_row_of_everything_logged_since_the_last():
    ends = []
    run = start(hl.on("step_end", lambda loop, i, batch: ends.append((i, batch))))
    for i in range(3):
        run.log(loss=i)
        if i % 2 == 0:
            run.log(lr=0.1)
        run.step_end(f"batch {i}")
    run.finish()
    assert rows(run) == [(0, {"loss": 0}), (0, {"lr": 0.1}), (1, {"loss": 1}), (2, {"loss": 2, "lr": 0.1})]
    assert ends == [(0, "batch 0"), (1, "batch 1"), (2, "batch 2")]


def test_cadences_checkpoints_and_results_of_subscribers_work_in_a_loop_that_only_logs(tmp_path):
    double = hl.on("step_end", lambda loop, i, batch, metrics: {"x": 2 * metrics["loss"]}, name="double")
    run = start({"checkpoint": {"every_n_steps": 2, "save_top_k": -1}}, double, root=tmp_path)
    for i in range(5):
        run.log(loss=i)
    run.finish()
    assert [row.step for row in run.checkpoints] == [2, 4, 5]
    assert rows(run)[:3] == [(0, {"loss": 0}), (0, {"double/x": 0}), (1, {"loss": 1, "double/x": 2})]


def test_facts_logged_before_the_steps_are_no_steps():
    plans = []
    with hl.run(callbacks=[hl.on("train_start", lambda loop: plans.append(loop.num_steps))], summary=False) as run:
        run.log(parameters=10)
        run.log(vocabulary=3)
        for i in run.steps(2):
            run.log(loss=i)
        run.log(done=True)
        run.log(done=True)
    facts = [(0, {"parameters": 10}), (0, {"vocabulary": 3})]
    assert rows(run) == [*facts, (1, {"loss": 0}), (2, {"loss": 1}), (2, {"done": True}), (2, {"done": True})]
    assert plans == [2]


def test_rows_with_a_step_are_recorded_there():
    run = start()
    for i in (10, 20, 30):
        run.log(loss=i, step=i)
    run.finish()
    assert rows(run) == [(i, {"loss": i}) for i in (10, 20, 30)]


def test_steps_after_logged_steps_count_from_the_beginning():
    with hl.run(summary=False) as run:
        for i in range(3):
            run.log(baseline=i)
        for i in run.steps(2):
            run.log(loss=i)
    assert rows(run)[3:] == [(1, {"loss": 0}), (2, {"loss": 1})]


@pytest.mark.parametrize("how", ["log", "rows"])
def test_step_end_beside_another_boundary_is_an_error(how):
    run = start()
    for i in range(3):
        run.log({"loss": i}, step=i if how == "rows" else None)
    with pytest.raises(hl.OptionError, match=r"step_end\(\) in a loop where .*: use one of them"):
        run.step_end()
    run.finish()


def test_step_end_in_a_loop_with_steps_is_an_error():
    with hl.run(summary=False) as run:
        for _ in run.steps(1):
            with pytest.raises(hl.OptionError, match=r"step_end\(\) in a loop with run.steps\(\)"):
                run.step_end()


def test_resumed_loop_that_only_logs_continues_after_the_checkpoint(tmp_path):
    options = {"name": "again", "root": tmp_path, "callbacks": [{"checkpoint": {"every_n_steps": 3}}]}
    with pytest.raises(RuntimeError), hl.run(**options, summary=False) as run:
        for i in range(5):
            run.log(loss=i)
        raise RuntimeError
    with hl.run(**options, resume="last", summary=False) as run:
        assert run.step == 3
        for i in range(run.step, 6):
            run.log(loss=10 * i)
    kept = [(record.step, record.values) for record in hl.read(run.dir) if isinstance(record, Metrics)]
    assert kept == [*((i, {"loss": i}) for i in range(3)), *((i, {"loss": 10 * i}) for i in range(3, 6))]


@pytest.mark.parametrize(("number", "leaves"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_signal_ends_a_loop_that_does_not_look_one_step_later(number, leaves):
    done = []
    with pytest.raises(leaves), hl.run(summary=False) as run:
        for i in range(100):
            if i == 5:
                os.kill(os.getpid(), number)
            run.log(loss=i)
            done.append(i)
    assert (done[-1], last_status(run.dir).status) == (5, "stopped")


def test_signal_leaves_it_to_a_loop_that_looks():
    with hl.run(summary=False) as run:
        for i in range(100):
            if run.stop_requested:
                break
            if i == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            run.log(loss=i)
    assert (i, run.state) == (6, "stopped")


@pytest.mark.parametrize(
    ("ending", "status", "message"),
    [("", "stopped", "the program ended"), ("raise ValueError('broken')", "failed", "ValueError: broken")],
)
def test_program_that_ends_without_finish_says_how(tmp_path, ending, status, message):
    code = f"import hookline as hl\nrun = hl.start(root={str(tmp_path)!r})\nrun.log(loss=1)\nrun.log(loss=2)\n{ending}"
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, timeout=60)
    (facts,) = tmp_path.glob("*/*/run.json")
    last = last_status(facts.parent)
    assert (last.status, message in last.message) == (status, True)
    assert [record.step for record in hl.read(facts.parent) if isinstance(record, Metrics)] == [0, 1]


def test_row_of_a_step_whose_end_raises_is_kept_where_the_program_continues():
    def fail(loop, step_idx):
        if step_idx == 1:
            raise ValueError("boom")

    run = start(hl.on("step_end", fail))
    for i in range(4):
        with contextlib.suppress(ValueError):
            run.log(loss=i)
    run.finish()
    assert rows(run) == [(i, {"loss": i}) for i in range(4)]
    assert run.step == 4
