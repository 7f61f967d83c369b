"""Seed 000: functions as loggers ``(report_data, step)`` and dicts of functions as hooks ``(worker, report_data)``."""

import json
from typing import Any

import numpy as np
import pytest

import hookline as hl
from hookline.functions import HOOK_FUNCTIONS
from hookline.testing import FakeLoop

TABLE = {
    "pre_training_hook": ["total_epochs", "total_steps", "start_epoch", "start_step"],
    "pre_training_step_hook": ["current_epoch", "current_step", "total_steps"],
    "post_training_step_hook": ["current_epoch", "current_step", "total_steps", "loss"],
    "post_training_hook": ["final_epoch", "final_step", "total_steps", "final_val_loss"],
    "pre_validation_hook": ["current_epoch", "is_last_step"],
    "pre_per_step_validation_hook": ["current_epoch", "batch_index"],
    "post_per_step_validation_hook": ["current_epoch", "batch_index", "val_score"],
    "post_validation_hook": ["current_epoch", "val_avg_loss"],
}


class Reports:
    """Hook functions under all eight names, and what they were called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.workers: list[Any] = []

    def hook(self, name):
        def hook_fn(worker, report_data: dict[str, Any]) -> None:
            self.workers.append(worker)
            self.calls.append((name, report_data))

        return hook_fn

    def hooks(self):
        return {name: self.hook(name) for name in TABLE}


def train(callbacks, *, epochs=2, strict=True) -> hl.Run:
    """Two steps an epoch, with losses 4 and 2, then a validation of two batches: its loss is 2 plus the epoch."""
    with hl.run("sft", callbacks=callbacks, config={"lr": 0.1}, strict=strict, summary=False) as run:
        for epoch in run.epochs(epochs):
            for loss in run.steps([4.0, 2.0]):
                run.log(loss=loss)
            with run.validate() as val:
                for loss in val.batches([1.0, 3.0]):
                    val.log(loss=loss + epoch)
    return run


def test_hook_functions_names_are_the_eight_of_the_table():
    assert list(HOOK_FUNCTIONS) == list(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_hook_function_in_a_real_run_gets_exactly_the_keys_of_the_table(name):
    reports = Reports()
    train([{name: reports.hook(name)}])
    assert reports.calls
    assert [sorted(data) for _, data in reports.calls] == [sorted(TABLE[name])] * len(reports.calls)


def test_hook_functions_one_epoch_fire_in_order_with_right_values():
    reports = Reports()
    train([reports.hooks()], epochs=1)
    assert reports.calls == [
        ("pre_training_hook", {"total_epochs": 1, "total_steps": 2, "start_epoch": 0, "start_step": 0}),
        ("pre_training_step_hook", {"current_epoch": 0, "current_step": 0, "total_steps": 2}),
        ("post_training_step_hook", {"current_epoch": 0, "current_step": 1, "total_steps": 2, "loss": 4.0}),
        ("pre_training_step_hook", {"current_epoch": 0, "current_step": 1, "total_steps": 2}),
        ("post_training_step_hook", {"current_epoch": 0, "current_step": 2, "total_steps": 2, "loss": 2.0}),
        ("pre_validation_hook", {"current_epoch": 0, "is_last_step": True}),
        ("pre_per_step_validation_hook", {"current_epoch": 0, "batch_index": 0}),
        ("post_per_step_validation_hook", {"current_epoch": 0, "batch_index": 0, "val_score": 1.0}),
        ("pre_per_step_validation_hook", {"current_epoch": 0, "batch_index": 1}),
        ("post_per_step_validation_hook", {"current_epoch": 0, "batch_index": 1, "val_score": 3.0}),
        ("post_validation_hook", {"current_epoch": 0, "val_avg_loss": 2.0}),
        ("post_training_hook", {"final_epoch": 0, "final_step": 2, "total_steps": 2, "final_val_loss": 2.0}),
    ]


def test_hook_functions_second_epoch_reports_its_own_epoch_steps_and_validation():
    reports = Reports()
    train([reports.hooks()], epochs=2)
    assert reports.calls[-8:] == [
        ("post_training_step_hook", {"current_epoch": 1, "current_step": 4, "total_steps": 4, "loss": 2.0}),
        ("pre_validation_hook", {"current_epoch": 1, "is_last_step": True}),
        ("pre_per_step_validation_hook", {"current_epoch": 1, "batch_index": 0}),
        ("post_per_step_validation_hook", {"current_epoch": 1, "batch_index": 0, "val_score": 2.0}),
        ("pre_per_step_validation_hook", {"current_epoch": 1, "batch_index": 1}),
        ("post_per_step_validation_hook", {"current_epoch": 1, "batch_index": 1, "val_score": 4.0}),
        ("post_validation_hook", {"current_epoch": 1, "val_avg_loss": 3.0}),
        ("post_training_hook", {"final_epoch": 1, "final_step": 4, "total_steps": 4, "final_val_loss": 3.0}),
    ]


def test_pre_validation_hook_between_and_after_epochs_says_which_is_the_last():
    reports = Reports()
    train([{"pre_validation_hook": reports.hook("pre_validation_hook")}], epochs=3)
    assert [data["is_last_step"] for _, data in reports.calls] == [False, False, True]


def test_pre_validation_hook_inside_the_last_step_says_it_is_the_last():
    reports = Reports()
    with hl.run(callbacks=[{"pre_validation_hook": reports.hook("pre")}], strict=True, summary=False) as run:
        for _ in run.steps(2):
            with run.validate() as val:
                val.log(loss=1.0)
    assert [data["is_last_step"] for _, data in reports.calls] == [False, True]


def test_post_validation_hook_two_evaluators_each_gets_its_own_loss():
    reports = Reports()
    with hl.run(callbacks=[{"post_validation_hook": reports.hook("post")}], strict=True, summary=False) as run:
        for _ in run.steps(1):
            pass
        for name, loss in (("val", 1.0), ("holdout", 5.0)):
            with run.validate(name) as val:
                val.log(loss=loss)
    assert [data["val_avg_loss"] for _, data in reports.calls] == [1.0, 5.0]


def test_post_training_hook_without_a_validation_has_no_final_val_loss():
    reports = Reports()
    with hl.run(callbacks=[{"post_training_hook": reports.hook("post")}], strict=True, summary=False) as run:
        for _ in run.steps(3):
            run.log(loss=1.0)
    report = {"final_epoch": 0, "final_step": 3, "total_steps": 3, "final_val_loss": None}
    assert reports.calls == [("post", report)]


def test_pre_training_hook_of_a_resumed_run_starts_where_the_checkpoint_was(tmp_path):
    with hl.run(strict=True, summary=False) as first:
        for _ in first.epochs(1):
            for _ in first.steps(3):
                pass
        first.save_checkpoint(tmp_path / "saved")
    reports = Reports()
    with hl.run(callbacks=[{"pre_training_hook": reports.hook("pre")}], strict=True, summary=False) as run:
        run.load_checkpoint(tmp_path / "saved")
        for _ in run.steps(100, total=5):
            pass
    assert reports.calls == [("pre", {"total_epochs": 1, "total_steps": 5, "start_epoch": 0, "start_step": 3})]


def test_post_training_step_hook_several_metrics_gets_them_all_as_plain_numbers(torch):
    reports = Reports()
    with hl.run(callbacks=[{"post_training_step_hook": reports.hook("post")}], strict=True, summary=False) as run:
        for _ in run.steps(1):
            run.log(loss=torch.tensor(0.5), grad_norm=np.float32(0.25))
            run.log({"train": {"tokens": np.int64(7)}})
    report = {"current_epoch": 0, "current_step": 1, "total_steps": 1}
    assert reports.calls == [("post", {**report, "loss": 0.5, "grad_norm": 0.25, "train/tokens": 7})]
    assert json.loads(json.dumps(reports.calls[0][1])) == reports.calls[0][1]


def test_validation_hooks_tensor_losses_arrive_as_plain_numbers(torch):
    reports = Reports()
    with hl.run(callbacks=[reports.hooks()], strict=True, summary=False) as run, run.validate() as val:
        for loss in val.batches([torch.tensor(1.0), np.float32(3.0)]):
            val.log(loss=loss)
    numbers = [data[key] for _, data in reports.calls for key in ("val_score", "val_avg_loss") if key in data]
    assert numbers == [1.0, 3.0, 2.0]
    assert {type(number) for number in numbers} == {float}


def test_hook_function_worker_of_a_bare_loop_is_the_run_with_config_and_trainer():
    seen = []

    def pre_training_hook(worker, report_data):
        seen.append((worker.config, worker.trainer.num_steps))

    run = train([{"pre_training_hook": pre_training_hook}])
    assert seen == [(run.config, 4)]


def test_hook_functions_every_call_gets_the_same_worker():
    reports = Reports()
    run = train([reports.hooks()])
    assert {id(worker) for worker in reports.workers} == {id(run)}


def test_hook_function_loop_with_a_worker_of_its_own_gets_that_worker():
    class SFTPolicyWorker:
        trainer, config = "trainer", "config"

    reports, worker = Reports(), SFTPolicyWorker()
    loop = FakeLoop(callbacks=[{"pre_training_hook": reports.hook("pre")}], worker=worker)
    loop.callbacks.on_train_start(loop)
    assert reports.workers == [worker]


def test_hook_functions_several_under_one_name_all_run_in_order():
    seen = []
    first = lambda worker, report_data: seen.append(("first", report_data["current_step"]))  # noqa: E731
    second = lambda worker, report_data: seen.append(("second", report_data["current_step"]))  # noqa: E731
    train([{"post_training_step_hook": [first, second]}], epochs=1)
    assert seen == [("first", 1), ("second", 1), ("first", 2), ("second", 2)]


def test_hook_functions_two_dicts_with_one_name_do_not_replace_each_other():
    one, other = Reports(), Reports()
    train([{"pre_training_hook": one.hook("one")}, {"pre_training_hook": other.hook("other")}])
    assert [name for name, _ in [*one.calls, *other.calls]] == ["one", "other"]


def test_hook_functions_merged_training_and_validation_dicts_all_run():
    reports = Reports()
    training_hooks = {name: hook for name, hook in reports.hooks().items() if "training" in name}
    validation_hooks = {name: hook for name, hook in reports.hooks().items() if "validation" in name}
    all_hooks = {**training_hooks, **validation_hooks}
    train([all_hooks])
    assert {name for name, _ in reports.calls} == set(TABLE)


def test_hook_functions_empty_dict_adds_nobody():
    assert hl.CallbackCollection([{}]).names() == []


def test_hook_functions_unknown_name_is_an_error_with_the_closest():
    with pytest.raises(hl.UnknownNameError, match=r"'post_train_step_hook'.*Did you mean 'post_training_step_hook'"):
        hl.run(callbacks=[{"post_train_step_hook": lambda worker, report_data: None}])


def test_hook_functions_unknown_name_beside_good_ones_adds_none_of_them():
    callbacks = hl.CallbackCollection()
    good = lambda worker, report_data: None  # noqa: E731
    with pytest.raises(hl.UnknownNameError):
        callbacks.add({"pre_training_hook": good, "pre_trainin_hook": good})
    assert callbacks.names() == []


def test_hook_function_with_a_wrong_signature_is_an_error_when_added():
    with pytest.raises(hl.MomentError, match=r"\(worker, report_data\)"):
        hl.CallbackCollection([{"pre_training_hook": lambda worker: None}])


def test_logger_function_is_called_once_a_step_and_once_a_validation():
    rows = []

    def custom_logger_fn(report_data: dict[str, Any], step: int) -> None:
        rows.append((report_data, step))

    train([custom_logger_fn])
    assert rows == [
        ({"loss": 4.0}, 1),
        ({"loss": 2.0}, 2),
        ({"val/loss": 2.0}, 2),
        ({"loss": 4.0}, 3),
        ({"loss": 2.0}, 4),
        ({"val/loss": 3.0}, 4),
    ]


def test_logger_function_several_of_them_are_each_called_once():
    first, second = [], []
    train(
        [
            lambda report_data, step: first.append((report_data, step)),
            lambda report_data, step: second.append((report_data, step)),
        ]
    )
    assert len(first) == 6
    assert first == second


def test_logger_function_tensor_and_array_scalars_arrive_as_plain_numbers(torch):
    rows = []
    with hl.run(callbacks=[lambda data, step: rows.append(data)], strict=True, summary=False) as run:
        for _ in run.steps(1):
            run.log(loss=torch.tensor(0.5), norm=np.array(0.25), tokens=np.int64(3), flag=np.bool_(True))
        with run.validate() as val:
            val.log(loss=torch.tensor(1.5, requires_grad=True))
    assert rows == [{"loss": 0.5, "norm": 0.25, "tokens": 3, "flag": True}, {"val/loss": 1.5}]
    assert [type(value) for row in rows for value in row.values()] == [float, float, int, bool, float]


def test_logger_function_under_a_loop_that_hands_out_tensors_still_gets_numbers(torch):
    rows = []
    loop = FakeLoop(callbacks=[lambda report_data, step: rows.append((report_data, step))])
    loop.run_steps(2, lambda step_idx: {"loss": torch.tensor(float(step_idx)), "lr": np.float64(0.1)})
    loop.callbacks.on_eval(loop, 1, "val", {"val/loss": torch.tensor(2.0)})
    assert json.loads(json.dumps(rows)) == [
        [{"loss": 0.0, "lr": 0.1}, 1],
        [{"loss": 1.0, "lr": 0.1}, 2],
        [{"val/loss": 2.0}, 2],
    ]


def test_logger_function_changing_its_report_data_changes_nobody_elses():
    rows = []
    run = train([lambda report_data, step: report_data.clear(), lambda report_data, step: rows.append(report_data)])
    assert rows[0] == {"loss": 4.0}
    assert run.history[0].metrics == {"loss": 4.0}


def test_logger_function_step_that_logs_nothing_is_reported_all_the_same():
    rows = []
    with hl.run(callbacks=[lambda report_data, step: rows.append((report_data, step))], summary=False) as run:
        for _ in run.steps(2):
            pass
    assert rows == [({}, 1), ({}, 2)]


def test_logger_function_sees_what_hooks_added_to_the_step():
    rows = []

    def post_training_step_hook(worker, report_data):
        worker.log("perplexity", 2 ** report_data["loss"])

    train([lambda data, step: rows.append(data), {"post_training_step_hook": post_training_step_hook}], epochs=1)
    assert rows[:2] == [{"loss": 4.0, "perplexity": 16.0}, {"loss": 2.0, "perplexity": 4.0}]


def test_logger_function_that_fails_does_not_stop_the_training(caplog):
    def offline(report_data, step):
        raise ConnectionError("monitoring-server is down")

    with hl.run(callbacks=[offline], summary=False) as run:
        for _ in run.steps(5):
            run.log(loss=1.0)
    assert (run.state, run.step) == ("completed", 5)
    failures = [(failure.subscriber, failure.step, failure.disabled) for failure in run.callbacks.failures]
    assert failures == [("offline", 1, False), ("offline", 2, False), ("offline", 3, True)]
    assert "offline is DISABLED" in caplog.text


def test_logger_function_with_a_wrong_signature_is_an_error_when_added():
    with pytest.raises(hl.MomentError, match=r"\(report_data, step\)"):
        hl.run(callbacks=[lambda report_data: None])


def test_logger_and_hooks_of_one_object_report_side_by_side():
    class StatusLogger:
        """The shape of a TAO-style logger: a bound method as a logger, a dict of closures as hooks."""

        def __init__(self):
            self.statuses = []

        def log_status(self, report_data: dict[str, Any], step: int) -> None:
            self.statuses.append(("RUNNING", step))

        def get_hooks(self):
            return {
                "pre_training_hook": lambda worker, report_data: self.statuses.append(("STARTED", 0)),
                "post_training_hook": lambda worker, report_data: self.statuses.append(
                    ("SUCCESS", report_data["final_step"])
                ),
            }

    status_logger = StatusLogger()
    train([status_logger.log_status, status_logger.get_hooks()], epochs=1)
    running = [("RUNNING", 1), ("RUNNING", 2), ("RUNNING", 2)]
    assert status_logger.statuses == [("STARTED", 0), *running, ("SUCCESS", 2)]


def test_monitoring_added_or_left_out_leaves_the_training_as_it_is():
    monitored = train([Reports().hooks(), lambda report_data, step: None])
    assert monitored.history == train([]).history


def test_hook_functions_taken_out_by_name_no_longer_run():
    reports = Reports()
    callbacks = hl.CallbackCollection([reports.hooks()])
    callbacks.remove("pre_training_step_hook")
    callbacks.remove("post_training_step_hook")
    train(callbacks, epochs=1)
    assert [name for name, _ in reports.calls if "training" in name] == ["pre_training_hook", "post_training_hook"]


def test_heartbeat_in_a_long_validation_is_sent_around_every_batch():
    beats = []
    heartbeat = lambda worker, report_data: beats.append(report_data["batch_index"])  # noqa: E731
    hooks = {"pre_per_step_validation_hook": heartbeat, "post_per_step_validation_hook": heartbeat}
    with hl.run(callbacks=[hooks], strict=True, summary=False) as run, run.validate() as val:
        for _ in val.batches(range(3)):
            pass
    assert beats == [0, 0, 1, 1, 2, 2]
