"""hl.run: the driver for a bare loop."""

import sys

import pytest

import hookline as hl
from hookline.testing import RecordingCallback

STEP = ["on_step_start", "on_train_batch_start", "on_train_batch_end", "on_step_end", "on_log"]


def run_with(*callbacks, **options):
    return hl.run(callbacks=callbacks, strict=True, summary=False, **options)


def test_run_fires_every_moment_once_in_order():
    recording = RecordingCallback()
    with run_with(recording) as run:
        for _ in run.steps("ab", epochs=2):
            run.log(loss=1.0)
    epoch = ["on_train_epoch_start", *STEP, *STEP, "on_train_epoch_end"]
    assert recording.names() == ["on_train_start", *epoch, *epoch, "on_train_end"]
    assert (run.state, run.step, run.epoch, run.num_steps, run.num_epochs) == ("completed", 4, 1, 4, 2)


def test_run_step_end_has_the_index_batch_metrics_and_completed_count():
    seen = []
    with run_with(hl.on("step_end", lambda loop, i, batch, m: seen.append((loop.step, i, batch, dict(m))))) as run:
        for batch in run.steps(["a", "b"]):
            run.log("loss", len(seen))
            run.log({"nested": {"x": batch}})
    assert seen == [(1, 0, "a", {"loss": 0, "nested/x": "a"}), (2, 1, "b", {"loss": 1, "nested/x": "b"})]


def test_run_derived_metrics_land_in_the_row_of_the_step():
    derived = hl.on("step_end", lambda loop, i, b, metrics: {"double": 2 * metrics["loss"]}, name="d")
    with run_with(derived) as run:
        for i in run.steps(2):
            run.log(loss=i)
    assert [(row.step, row.metrics) for row in run.history] == [
        (1, {"loss": 0, "d/double": 0}),
        (2, {"loss": 1, "d/double": 2}),
    ]


def test_run_epochs_and_steps_nest():
    recording = RecordingCallback()
    with run_with(recording) as run:
        for epoch in run.epochs(2):
            for _ in run.steps([1]):
                run.log(epoch=epoch)
    epoch = ["on_train_epoch_start", *STEP, "on_train_epoch_end"]
    assert recording.names() == ["on_train_start", *epoch, *epoch, "on_train_end"]
    assert run.num_steps == 2


def test_run_plan_is_known_at_train_start():
    plans = []
    with run_with(hl.on("train_start", lambda loop: plans.append((loop.num_steps, loop.num_epochs)))) as run:
        for _ in run.steps([1, 2, 3], epochs=4):
            pass
    assert plans == [(12, 4)]


def test_run_total_limits_a_stream_and_leaves_the_epoch_in_order():
    recording = RecordingCallback()
    with run_with(recording) as run:
        seen = list(run.steps(iter(range(100)), total=3))
    assert seen == [0, 1, 2]
    assert (run.num_steps, recording.names()[-2:]) == (3, ["on_train_epoch_end", "on_train_end"])


def test_run_stop_request_ends_at_the_step_boundary_in_every_epoch():
    recording = RecordingCallback()
    with run_with(
        recording, hl.on("step_end", lambda loop, i: (i == 2 and loop.request_stop("enough")) or None)
    ) as run:
        for _ in run.steps([1, 2], epochs=5):
            pass
    assert (run.step, run.epoch, run.state, run.stop_reason) == (3, 1, "stopped", "enough")
    assert recording.names()[-2:] == ["on_train_epoch_end", "on_train_end"]


def test_run_should_stop_can_be_set_and_taken_back():
    with run_with() as run:
        for i in run.steps(10):
            run.should_stop = i in (2, 5)
            if i == 2:
                run.should_stop = False
    assert (run.step, run.stop_reason) == (6, "should_stop was set")


def test_run_break_completes_the_step_and_the_epoch():
    recording = RecordingCallback()
    with run_with(recording) as run:
        for i in run.steps(10):
            run.log(loss=i)
            if i == 1:
                break
        run.log(final=1)
    assert (run.step, run.state) == (2, "completed")
    assert recording.names()[-4:] == ["on_step_end", "on_log", "on_train_epoch_end", "on_train_end"]
    assert [row.metrics for row in run.history] == [{"loss": 0}, {"loss": 1, "final": 1}]


@pytest.mark.parametrize("code", [None, 0])
def test_run_that_is_left_by_sys_exit_without_an_error_is_complete(code):
    recording = RecordingCallback()
    with pytest.raises(SystemExit), run_with(recording) as run:
        for i in run.steps(10):
            run.log(loss=i)
            if i == 1:
                sys.exit(code)
    assert (run.step, run.state) == (2, "completed")
    assert "on_exception" not in recording.names()
    assert [row.metrics for row in run.history] == [{"loss": 0}, {"loss": 1}]


@pytest.mark.parametrize("code", [3, "no data"])
def test_run_that_is_left_by_sys_exit_with_an_error_failed(code):
    with pytest.raises(SystemExit), run_with() as run:
        for _ in run.steps(10):
            sys.exit(code)
    assert (run.state, run.ctx.error) == ("failed", f"SystemExit: {code}")


def test_run_exception_fires_on_exception_not_train_end_and_propagates():
    recording = RecordingCallback()
    with pytest.raises(ZeroDivisionError), run_with(recording) as run:
        for i in run.steps(10):
            run.log(value=1 / (1 - i))
    assert recording.names()[-3:] == ["on_step_start", "on_train_batch_start", "on_exception"]
    assert (run.step, run.state, run.ctx.error) == (1, "failed", "ZeroDivisionError: division by zero")


def test_run_critical_failure_ends_the_run():
    def explode(loop):
        raise RuntimeError("disk full")

    recording = RecordingCallback()
    with (
        pytest.raises(RuntimeError, match="disk full"),
        hl.run(callbacks=[hl.on("step_end", explode, critical=True), recording], summary=False) as run,
    ):
        list(run.steps(3))
    assert (run.state, recording.names()[-1]) == ("failed", "on_exception")


def test_run_callbacks_are_closed_in_every_case():
    closed = []

    class Closing(hl.Callback):
        def close(self):
            closed.append(True)

    with run_with(Closing()):
        pass
    with pytest.raises(KeyboardInterrupt), run_with(Closing()):
        raise KeyboardInterrupt
    assert closed == [True, True]


def test_run_without_steps_still_starts_and_ends():
    recording = RecordingCallback()
    with run_with(recording) as run:
        run.log(loss=1.0)
    assert recording.names() == ["on_train_start", "on_log", "on_train_end"]


def test_run_log_inside_on_log_is_written_without_firing_again():
    with run_with(hl.on("log", lambda loop, step, metrics: {"rows": 1}, name="counting")) as run:
        for _ in run.steps(2):
            run.log(loss=1)
    assert [row.metrics for row in run.history] == [{"loss": 1}, {"counting/rows": 1}] * 2


def test_run_logs_from_other_threads_come_in_at_the_next_boundary():
    import threading

    recording = RecordingCallback()
    with run_with(recording) as run:
        for i in run.steps(2):
            run.log(i=i)
            if i == 0:
                thread = threading.Thread(target=lambda: run.log(other=1, step=77))
                thread.start()
                thread.join()
    rows = [(row.step, row.metrics) for row in run.history]
    assert rows == [(1, {"i": 0}), (77, {"other": 1}), (2, {"i": 1})]


def test_run_metrics_are_plain_numbers(torch):
    import numpy as np

    with run_with() as run:
        for _ in run.steps(1):
            run.log(loss=torch.tensor(0.5), accuracy=np.float32(0.25), n=np.int64(3), one=torch.ones(1).sum())
    assert run.history[0].metrics == {"loss": 0.5, "accuracy": 0.25, "n": 3, "one": 1.0}
    assert [type(value) for value in run.metrics.values()] == [float, float, int, float]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("loss",), "give log"),
        ((1.0,), "give log"),
        (({"x": object()},), "'x' is an object"),
        (({"x": {"y": [1, 2]}},), "'x/y' is a list"),
        (({3: 1.0},), "the name 3"),
    ],
)
def test_run_log_of_something_else_is_an_error_naming_it(arguments, message):
    with run_with() as run, pytest.raises(hl.OptionError, match=message):
        run.log(*arguments)


def test_run_steps_with_bad_arguments_are_errors_when_called():
    with run_with() as run:
        for arguments, message in [
            ({"batches": None}, "give something to iterate over"),
            ({"batches": 2.5}, r"steps\(2\.5\): give something to iterate over"),
            ({"batches": -1}, r"steps\(-1\): give something to iterate over"),
            ({"batches": [1], "epochs": 0}, "epochs=0"),
            ({"batches": [1], "total": -1}, "total=-1"),
            ({"batches": iter([1]), "epochs": 2}, "is an iterator"),
        ]:
            with pytest.raises(hl.OptionError, match=message):
                run.steps(**arguments)


def test_run_is_entered_once():
    with run_with() as run:
        pass
    with pytest.raises(hl.OptionError, match="entered once"), run:
        pass


def test_run_takes_functions_dicts_names_and_hooks_as_callbacks():
    logged, hooked = [], []
    with run_with(
        "early_stopping",
        lambda report_data, step: logged.append((step, report_data)),
        {"post_training_step_hook": lambda worker, report_data: hooked.append(report_data["loss"])},
        hl.hooks.MetricsHook(2, lambda context: {"m": context.step}),
    ) as run:
        for i in run.steps(2):
            run.log({"loss": i})
    assert logged == [(1, {"loss": 0}), (2, {"loss": 1, "metrics_hook/m": 2})]
    assert hooked == [0, 1]


def test_run_summary_is_printed_with_costs_and_failures(capsys):
    def fail(loop):
        raise ValueError("broken observer")

    with hl.run("trial", callbacks=[hl.on("step_end", fail)]) as run:
        for _ in run.steps(5):
            run.log(loss=0.125)
    printed = capsys.readouterr().err
    assert "trial finished after 5 steps" in printed
    assert "loss 0.125" in printed
    assert "DISABLED: fail failed at on_step_end, step 3: ValueError: broken observer" in printed


def test_run_summary_without_callbacks_says_how_it_ended_and_where_it_is_recorded(capsys):
    with hl.run("plain") as run:
        for _ in run.steps(3):
            run.log(loss=0.5)
    headline, metrics, where = capsys.readouterr().err.splitlines()
    assert headline.startswith("plain finished after 3 steps in ")
    assert (metrics, where) == ("  loss 0.5", f"recorded in {run.dir}")


def test_run_summary_of_what_is_neither_recorded_nor_watched_is_not_printed(capsys):
    with hl.run(root=None) as run:
        list(run.steps(3))
    assert capsys.readouterr().err == ""


def test_run_summary_after_ctrl_c_has_the_word_of_the_record(capsys):
    with pytest.raises(KeyboardInterrupt), hl.run("plain") as run:
        raise KeyboardInterrupt
    assert capsys.readouterr().err.startswith("plain stopped after 0 steps")
    assert list(hl.read(run.dir))[-1].status == "stopped"


def test_run_summary_shows_names_with_brackets_as_they_are(capsys):
    with hl.run("sweep[lr=0.1]", callbacks=[hl.on("step_end", lambda loop: None, name="a[red]")]) as run:
        for _ in run.steps(2):
            run.log({"loss[/x]": 0.5})
            run.request_stop("reached [bold]goal")
    printed = capsys.readouterr().err
    assert "sweep[lr=0.1] stopped (reached [bold]goal)" in printed
    assert "loss[/x] 0.5" in printed
    assert "a[red]" in printed


def test_run_draws_no_batch_that_it_does_not_use():
    stream = iter(range(10))
    with run_with() as run:
        seen = [list(run.steps(stream, total=3)), list(run.steps(stream, total=6))]
    assert seen == [[0, 1, 2], [3, 4, 5]]


def test_run_outside_of_with_is_an_error():
    run = run_with()
    words = r"must be called inside `with hl\.run\(\.\.\.\) as run:`\. This run"
    for name in ("steps", "epochs"):
        with pytest.raises(hl.OptionError, match=rf"run\.{name}\(\) {words} has not started\."):
            getattr(run, name)(3)
    with run:
        pass
    with pytest.raises(hl.OptionError, match=f"{words} is over: it finished"):
        run.steps(3)


def test_run_log_before_the_with_is_an_error_and_not_lost_in_silence():
    run = run_with()
    with pytest.raises(hl.OptionError, match=r"run\.log\(\) must be called inside .* This run has not started\."):
        run.log(early=1)
    with run:
        run.log(in_time=1)
    assert [row.metrics for row in run.history] == [{"in_time": 1}]


@pytest.mark.parametrize("inner", ["steps", "epochs"])
def test_run_steps_in_the_body_of_its_steps_are_an_error_that_says_what_to_do(inner):
    with run_with() as run:
        for _ in run.steps(2):
            with pytest.raises(hl.OptionError, match=rf"run\.{inner}\(\) in the body .* a run of its own"):
                getattr(run, inner)(3)
    assert (run.step, run.state) == (2, "completed")


def test_run_loops_one_after_the_other_continue_however_the_first_was_left():
    with run_with() as run:
        for _ in run.steps(3):
            break
        with pytest.raises(ZeroDivisionError):
            for _ in run.steps(3):
                raise ZeroDivisionError
        kept = run.steps(3)
        next(kept)
        kept.close()
        list(run.steps(3))
    assert run.step == 6


def test_run_epochs_whose_steps_are_left_and_kept_continue():
    with run_with() as run:
        for _ in run.epochs(3):
            kept = run.steps(10)  # as a progress bar around it is
            for _ in kept:
                break
    assert (run.step, run.state) == (3, "completed")


def test_run_built_in_one_thread_and_driven_in_another_logs_into_its_rows():
    import threading

    run = run_with()

    def train():
        with run:
            for _ in run.steps(2):
                run.log(loss=1.0)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert [(row.step, row.metrics) for row in run.history] == [(1, {"loss": 1.0}), (2, {"loss": 1.0})]


def test_run_that_fails_keeps_what_background_subscribers_logged():
    background = hl.on("step_end", lambda loop: {"x": loop.step}, name="bg", background=True)
    with pytest.raises(ZeroDivisionError), hl.run(callbacks=[background], summary=False) as run:
        for i in run.steps(5):
            run.log(value=1 / (3 - i))
    assert [row.metrics["bg/x"] for row in run.history if "bg/x" in row.metrics] == [1, 2, 3]


# A loop of its own: rows with step=, and no run.steps


def test_run_without_steps_starts_at_the_second_step_and_tells_rows_as_they_come():
    recording, reported = RecordingCallback(), []
    with run_with(recording, hl.on("log", lambda loop, step: reported.append((step, loop.step)) or None)) as run:  # type: ignore[func-returns-value]
        run.log(before=1)
        for i in range(1, 4):
            run.log({"loss": 1.0}, step=i)
            run.log({"also": 1.0}, step=i)
            reported.append(f"end of {i}")
    first = [(0, 0), (1, 0), (1, 0)]  # they had to wait for on_train_start
    assert reported == ["end of 1", *first, (2, 2), (2, 2), "end of 2", (3, 3), (3, 3), "end of 3"]
    assert recording.names() == ["on_train_start", *["on_log"] * 7, "on_train_end"]


def test_run_without_steps_can_be_stopped_by_a_loop_that_looks():
    stopper = hl.on("log", lambda loop, step: (step == 5 and loop.request_stop("enough")) or None)
    with run_with(stopper) as run:
        for i in range(100):
            if run.stop_requested:
                break
            run.log({"loss": 1.0}, step=i)
    assert (i, run.step, run.state) == (6, 5, "stopped")


def test_run_without_steps_shows_its_last_step_in_summary_and_record_and_warns_once(capsys, caplog):
    with hl.run("plain") as run:
        for i in range(10):
            run.log({"loss": 1.0}, step=i)
        run.log({"late": 1.0}, step=3)
    assert "plain finished after 9 steps" in capsys.readouterr().err
    assert [(each.status, each.step) for each in hl.read(run.dir) if hasattr(each, "status")][-1] == ("finished", 9)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "a stop request only takes effect if the loop checks run.stop_requested" in message


def test_run_without_steps_that_validates_first_is_counted_by_its_rows():
    with run_with() as run:
        for i in range(4):
            with run.validate() as val:
                val.log(loss=1.0)
            run.log({"loss": 1.0}, step=i)
    assert [(row.step, *row.metrics) for row in run.history if "val/loss" in row.metrics] == [
        (0, "val/loss"),
        (0, "val/loss"),
        (1, "val/loss"),
        (2, "val/loss"),
    ]
    assert run.step == 3


def test_run_without_steps_commits_what_other_threads_logged_at_its_next_row():
    import threading

    reported = []
    with run_with(hl.on("log", lambda loop, step, metrics: reported.extend(metrics))) as run:
        for i in range(3):
            run.log({f"own{i}": 1.0}, step=i)
            thread = threading.Thread(target=lambda: run.log(other=1, step=77))
            thread.start()
            thread.join()
        assert reported == ["own0", "other", "own1", "other", "own2"]
    assert (reported[5:], run.step) == (["other"], 2)


def test_run_rows_with_one_step_before_the_steps_wait_for_them(caplog):
    plans = []
    with run_with(hl.on("train_start", lambda loop: plans.append((loop.step, loop.num_steps)))) as run:
        run.log(a=1, step=5)
        run.log(b=1, step=5)
        list(run.steps(3))
    assert (plans, run.step, caplog.records) == ([(0, 3)], 3, [])


def test_run_rows_of_several_steps_before_the_steps_leave_their_count_alone():
    with run_with() as run:
        for i in range(50):
            run.log(baseline=i, step=i)
        for i in run.steps(3):
            run.log(loss=i)
        run.log(late=1, step=70)
    assert (run.step, run.num_steps) == (3, 3)
    assert [(row.step, row.metrics) for row in run.history[50:]] == [
        (1, {"loss": 0}),
        (2, {"loss": 1}),
        (3, {"loss": 2}),
        (70, {"late": 1}),
    ]


def test_live_run_in_a_notebook_shows_state_last_values_and_charts(tmp_path):
    with hl.run("<b>warm", root=tmp_path, summary=False, console=False) as run:
        assert "step 0" in run._repr_html_()
        for step in run.steps(3):
            run.log(loss=1 / (step + 1), note="text")
        html = run._repr_html_()
        assert "&lt;b&gt;warm</b> running, step 3 of 3" in html
        assert (html.count("<polyline"), html.count("<tr>")) == (1, 3)
    assert "finished, step 3" in run._repr_html_()
