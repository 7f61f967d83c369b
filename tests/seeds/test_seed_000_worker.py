"""Seed 000's document, section by section: each of its scripts trains a real model and reports to a real server.

The blocks stand as in the document, but for the import root and the addresses.
"""

import contextlib
import functools
import json
import math
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from destinations.http_server import StatusServer
from waiting import wait_until

import hookline as hl
from hookline._record.delivery import Pace
from hookline._record.records import Metrics
from hookline.sinks import StatusSink, status_hooks, status_outbox
from hookline.status import TAOStatusLogger, create_training_hooks, create_validation_hooks

SUMS = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in (1, 2) for b in (1, 2)]
CONFIG = {
    "model": {"tiny": {"hidden_size": 16, "layers": 1, "heads": 2}},
    "data": {"train": SUMS, "validation": SUMS},
    "train": {"name": "sft", "epochs": 2, "batch_size": 2, "device": "cpu", "summary": False, "strict": True},
    "save_model": False,
    "custom": {"owner": "me"},
}
"""Two epochs of two steps, and after each a validation of two batches."""

METRICS = {"loss", "tokens", "learning_rate"}
TABLE = {
    "pre_training_hook": {"total_epochs", "total_steps", "start_epoch", "start_step"},
    "pre_training_step_hook": {"current_epoch", "current_step", "total_steps"},
    "post_training_step_hook": {"current_epoch", "current_step", "total_steps"} | METRICS,
    "post_training_hook": {"final_epoch", "final_step", "total_steps", "final_val_loss"},
    "pre_validation_hook": {"current_epoch", "is_last_step"},
    "pre_per_step_validation_hook": {"current_epoch", "batch_index"},
    "post_per_step_validation_hook": {"current_epoch", "batch_index", "val_score"},
    "post_validation_hook": {"current_epoch", "val_avg_loss"},
}


@pytest.fixture(autouse=True)
def _one_thread(torch):
    """Several are slower."""


@pytest.fixture(autouse=True)
def _outboxes_end_with_the_test(monkeypatch):
    monkeypatch.setattr(status_outbox, "PACE", Pace(poll_seconds=0.01, retry_seconds=0.01, longest_seconds=0.05))
    monkeypatch.setattr(status_outbox, "_OUTBOXES", {})
    yield
    for each in status_outbox._OUTBOXES.values():
        each.close(0)


@pytest.fixture
def server():
    server = StatusServer()
    yield server
    server.close()


@pytest.fixture
def quick_heartbeats(monkeypatch):
    """Heartbeats come every 10 seconds otherwise."""
    quick = lambda *args, **options: StatusSink(*args, **options | {"heartbeat_seconds": 0.01})  # noqa: E731
    monkeypatch.setattr(status_hooks, "StatusSink", quick)


@pytest.fixture
def command_line(tmp_path, monkeypatch):
    """``--config`` and overrides, as they stand in the shell after ``python train.py``."""
    (tmp_path / "sft.json").write_text(json.dumps(CONFIG))

    def given(*overrides: str) -> list[str]:
        arguments = ["--config", str(tmp_path / "sft.json"), *overrides]
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        return arguments

    given()
    return given


@pytest.fixture
def run_script(tmp_path, command_line):
    """Runs the text of a script as a script, and returns its global names."""

    def run(text: str) -> dict[str, Any]:
        (tmp_path / "train.py").write_text(text)
        return runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")

    return run


class Reports:
    """Hook functions under all eight names, and what they were called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.workers: list[Any] = []

    def hooks(self) -> dict[str, Any]:
        return {name: functools.partial(self._take, name) for name in TABLE}

    def of(self, name: str) -> list[dict[str, Any]]:
        return [report for called, report in self.calls if called == name]

    def _take(self, name: str, worker: Any, report_data: dict[str, Any]) -> None:
        self.calls.append((name, report_data))
        self.workers.append(worker)


def reported(server: StatusServer) -> list[tuple[str, int]]:
    return [(body["phase"], body["step"]) for body in server.bodies if body.get("kind") != "heartbeat"]


def drain() -> None:
    """Wait until everything was delivered, as the end of the process does."""
    assert all(each.drain(60) for each in status_outbox._OUTBOXES.values())


# Custom Logger Functions


def test_custom_logger_function_with_the_signature_of_the_document_is_taken(run_script):
    script = '''
from typing import Any, Dict

from hookline import main

def custom_logger_fn(report_data: Dict[str, Any], step: int) -> None:
    """
    Args:
        report_data: Dictionary containing training/validation metrics
        step: Current training step
    """
    pass

result = main(custom_logger_fns=[custom_logger_fn])
'''
    assert run_script(script)["result"].step == 4


def test_custom_logger_function_is_called_after_each_step_and_each_validation(command_line):
    rows = []
    result = hl.main(custom_logger_fns=[lambda report_data, step: rows.append((step, report_data))])
    training, validation = METRICS, {"val/loss", "val/tokens"}
    kinds = [(1, training), (2, training), (2, validation), (3, training), (4, training), (4, validation)]
    assert [(step, set(report)) for step, report in rows] == kinds
    assert rows[-1][1]["val/loss"] == result.metrics["val/loss"]
    assert {type(value) for _, report in rows for value in report.values()} == {float, int}


STATUS_LOGGER = """
from hookline import main
from hookline.status import create_status_logger

# Create a custom logger that sends status to an external endpoint
status_logger = create_status_logger(
    endpoint="http://monitoring-server/api/status",
    component_name="My SFT Training"
)

main(custom_logger_fns=[status_logger])
"""


def test_status_logger_of_the_document_sends_the_metrics_of_steps_and_validations(run_script, server):
    run_script(STATUS_LOGGER.replace("http://monitoring-server/api/status", server.url))
    drain()
    assert reported(server) == [("metrics", step) for step in (1, 2, 2, 3, 4, 4)]
    assert {body["component"] for body in server.bodies} == {"My SFT Training"}
    sent = [(body["step"], body["metrics"]) for body in server.bodies]
    assert sent == [(row.step, row.values) for row in recorded()]


def recorded() -> list[Metrics]:
    """The rows of the run that was just recorded."""
    (directory,) = Path("runs/default").iterdir()
    return [record for record in hl.read(directory) if isinstance(record, Metrics)]


# Training and Validation Hooks


def test_hooks_of_the_table_get_exactly_its_keys(command_line):
    reports = Reports()
    hl.main(hook_fns=reports.hooks())
    assert {name: {frozenset(report) for report in reports.of(name)} for name in TABLE} == {
        name: {frozenset(keys)} for name, keys in TABLE.items()
    }


def test_hooks_of_the_table_are_called_in_order_with_right_values(command_line):
    reports = Reports()
    hl.main(hook_fns=reports.hooks(), argv=command_line("train.epochs=1"))
    losses = [report["loss"] for report in reports.of("post_training_step_hook")]
    scores = [report["val_score"] for report in reports.of("post_per_step_validation_hook")]
    average = pytest.approx(sum(scores) / 2)  # all answers have one digit: the batches weigh the same
    metrics = [{"loss": loss, "tokens": 4, "learning_rate": 0.001} for loss in losses]
    assert reports.calls == [
        ("pre_training_hook", {"total_epochs": 1, "total_steps": 2, "start_epoch": 0, "start_step": 0}),
        ("pre_training_step_hook", {"current_epoch": 0, "current_step": 0, "total_steps": 2}),
        ("post_training_step_hook", {"current_epoch": 0, "current_step": 1, "total_steps": 2, **metrics[0]}),
        ("pre_training_step_hook", {"current_epoch": 0, "current_step": 1, "total_steps": 2}),
        ("post_training_step_hook", {"current_epoch": 0, "current_step": 2, "total_steps": 2, **metrics[1]}),
        ("pre_validation_hook", {"current_epoch": 0, "is_last_step": True}),
        ("pre_per_step_validation_hook", {"current_epoch": 0, "batch_index": 0}),
        ("post_per_step_validation_hook", {"current_epoch": 0, "batch_index": 0, "val_score": scores[0]}),
        ("pre_per_step_validation_hook", {"current_epoch": 0, "batch_index": 1}),
        ("post_per_step_validation_hook", {"current_epoch": 0, "batch_index": 1, "val_score": scores[1]}),
        ("post_validation_hook", {"current_epoch": 0, "val_avg_loss": average}),
        ("post_training_hook", {"final_epoch": 0, "final_step": 2, "total_steps": 2, "final_val_loss": average}),
    ]
    assert all(math.log(50) < loss < math.log(200) for loss in losses + scores)  # untrained: about 100 characters


def test_hooks_final_val_loss_is_that_of_the_last_validation(command_line):
    reports = Reports()
    hl.main(hook_fns=reports.hooks(), argv=command_line("train.epochs=3", "train.learning_rate=0.01"))
    averages = [report["val_avg_loss"] for report in reports.of("post_validation_hook")]
    assert averages[0] > averages[1] > averages[2]
    assert reports.of("post_training_hook")[0]["final_val_loss"] == averages[2]


def test_hooks_without_validation_data_have_no_final_val_loss(command_line):
    reports = Reports()
    hl.main(hook_fns=reports.hooks(), argv=command_line("data.validation=null"))
    report = {"final_epoch": 1, "final_step": 4, "total_steps": 4, "final_val_loss": None}
    assert reports.of("post_training_hook") == [report]
    assert not [name for name, _ in reports.calls if "validation" in name]


def test_hooks_of_a_resumed_training_begin_where_it_was(command_line):
    hl.main(argv=command_line("train.max_steps=3"))
    reports = Reports()
    hl.main(hook_fns=reports.hooks(), argv=command_line("train.epochs=3", "train.resume=last"))
    report = {"total_epochs": 3, "total_steps": 6, "start_epoch": 1, "start_step": 3}
    assert reports.of("pre_training_hook") == [report]
    assert [report["current_step"] for report in reports.of("post_training_step_hook")] == [4, 5, 6]


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_hooks_of_a_resumed_training_start_in_the_epoch_of_the_first_step(command_line, steps):
    hl.main(argv=command_line(f"train.max_steps={steps}"))
    reports = Reports()
    hl.main(hook_fns=reports.hooks(), argv=command_line("train.epochs=3", "train.resume=last"))
    (start,), first = reports.of("pre_training_hook"), reports.of("pre_training_step_hook")[0]
    assert (start["start_epoch"], start["start_step"]) == (first["current_epoch"], first["current_step"])


def test_hooks_of_a_resumed_training_that_is_done_start_in_its_last_epoch(command_line):
    hl.main(argv=command_line())
    reports = Reports()
    hl.main(hook_fns=reports.hooks(), argv=command_line("train.resume=last"))
    assert [(report["start_epoch"], report["start_step"]) for report in reports.of("pre_training_hook")] == [(1, 4)]


def test_hook_function_with_the_signature_of_the_document_is_taken_under_each_name(run_script):
    script = f'''
from typing import Any, Dict

from hookline import main

def hook_fn(worker, report_data: Dict[str, Any]) -> None:
    """
    Args:
        worker: The SFTPolicyWorker instance (access to trainer, config, etc.)
        report_data: Dictionary containing context-specific data
    """
    pass

result = main(hook_fns={{name: hook_fn for name in {list(TABLE)}}})
'''
    assert run_script(script)["result"].step == 4


def test_hook_function_worker_is_the_sft_policy_worker_with_trainer_config_and_data(command_line):
    reports = Reports()
    hl.main(hook_fns=reports.hooks())
    (worker,) = set(reports.workers)
    assert isinstance(worker, hl.SFTPolicyWorker)
    assert isinstance(worker.trainer, hl.Trainer)
    assert (worker.trainer.step, worker.trainer.num_epochs, worker.state) == (4, 2, "completed")
    assert (worker.config.train.epochs, worker.config.custom) == (2, {"owner": "me"})
    assert (len(worker.train_data_loader), len(worker.val_data_loader)) == (2, 2)
    assert worker.tokenizer.decode(worker.tokenizer("1+2=").input_ids, skip_special_tokens=True) == "1+2="
    assert worker.model is worker.trainer.model


def test_hook_function_acts_on_the_training_through_the_worker(command_line):
    def post_training_step_hook(worker, report_data):
        worker.trainer.log("perplexity", math.exp(report_data["loss"]))
        if report_data["current_step"] == 3:
            worker.trainer.request_stop("enough")

    rows = []
    logger_fn = lambda report_data, step: rows.append(report_data)  # noqa: E731
    result = hl.main([logger_fn], {"post_training_step_hook": post_training_step_hook})
    assert (result.step, result.stop_reason) == (3, "enough")
    assert [report["perplexity"] for report in rows if "loss" in report] == [
        math.exp(report["loss"]) for report in rows if "loss" in report
    ]


@pytest.mark.parametrize(
    ("stop", "saves_model"),
    [
        (lambda worker, report_data: worker.trainer.request_stop("learned"), True),
        (lambda worker, report_data: signal.raise_signal(signal.SIGTERM), False),
    ],
    ids=["by_a_hook", "by_a_signal"],
)
def test_hook_function_that_stops_the_training_leaves_a_model_unless_it_can_resume(command_line, stop, saves_model):
    argv = command_line("save_model=true")
    with contextlib.suppress(SystemExit):
        hl.main(hook_fns={"post_training_step_hook": stop}, argv=argv)
    (directory,) = Path("runs/default").iterdir()
    assert (directory / "model").exists() == saves_model
    assert (directory / "checkpoints" / "step-00000001").exists()


@pytest.mark.parametrize(("overrides", "shown"), [([], True), (["train.callbacks=[]"], False)])
def test_progress_bar_is_shown_unless_the_callbacks_are_an_empty_list(command_line, capsys, overrides, shown):
    hl.main(argv=command_line(*overrides))
    assert ("step 4/4" in capsys.readouterr().err) == shown


TAO = """
from hookline import main
from hookline.status import TAOStatusLogger

# Create TAO-style status logger
tao_logger = TAOStatusLogger(
    status_endpoint="http://tao-server/api/status",
    experiment_name="sft-experiment-001"
)

# Launch with both custom logger and hooks
main(
    custom_logger_fns=[tao_logger.log_status],
    hook_fns=tao_logger.get_hooks(),
)
"""


def test_tao_example_of_the_document_reports_the_training_in_taos_format(run_script, server):
    run_script(TAO.replace("http://tao-server/api/status", server.url))
    drain()
    reports = [(body["status"], body["phase"], body["epoch"], body["step"]) for body in server.bodies]
    assert reports == [
        ("STARTED", "training_starting", 1, 0),
        ("RUNNING", "metrics", 1, 1),
        ("RUNNING", "metrics", 1, 2),
        ("RUNNING", "validation_starting", 1, 2),
        ("RUNNING", "validation_complete", 1, 2),
        ("RUNNING", "metrics", 1, 2),
        ("RUNNING", "metrics", 2, 3),
        ("RUNNING", "metrics", 2, 4),
        ("RUNNING", "validation_starting", 2, 4),
        ("RUNNING", "validation_complete", 2, 4),
        ("RUNNING", "metrics", 2, 4),
        ("SUCCESS", "training_complete", 2, 4),
    ]
    whole = {"component": "sft-experiment-001", "verbosity": "INFO", "max_epoch": 2, "max_step": 4}
    assert [{name: body[name] for name in whole} for body in server.bodies] == [whole] * 12
    assert [set(body) & {"graphical", "kpi"} for body in server.bodies[1:6]] == [
        {"graphical"},
        {"graphical"},
        set(),
        {"kpi"},
        {"kpi"},
    ]
    assert {"date", "time", "message", "eta", "time_per_step", "time_per_epoch"} <= set(server.bodies[-1])
    assert server.bodies[-1]["data"]["final_val_loss"] == server.bodies[-2]["kpi"]["val/loss"]


CREATORS = """
from hookline import main
from hookline.status import (
    create_status_logger,
    create_training_hooks,
    create_validation_hooks,
)

# Create custom logger
logger_fn = create_status_logger(
    endpoint="http://localhost:8080/status",
    component_name="Training Monitor"
)

# Create hooks
training_hooks = create_training_hooks(
    status_endpoint="http://localhost:8080/status",
    heartbeat_interval=10  # Send heartbeat every 10 steps
)
validation_hooks = create_validation_hooks(
    status_endpoint="http://localhost:8080/status"
)

# Merge all hooks
all_hooks = {**training_hooks, **validation_hooks}

main(
    custom_logger_fns=[logger_fn],
    hook_fns=all_hooks,
)
"""


def test_hook_creators_of_the_document_report_metrics_validations_and_a_heartbeat_every_ten_steps(
    run_script, command_line, server
):
    command_line("train.epochs=6")
    names = run_script(CREATORS.replace("http://localhost:8080/status", server.url))
    assert set(names["all_hooks"]) == set(TABLE)
    drain()
    metrics = [step for phase, step in reported(server) if phase == "metrics"]
    assert metrics == sorted([*range(1, 13), *range(2, 13, 2)])
    others = [(phase, step) for phase, step in reported(server) if phase != "metrics"]
    validations = [(f"validation_{what}", step) for step in (2, 4, 6, 8, 10, 12) for what in ("starting", "complete")]
    heartbeat = [("training_heartbeat", 10)]
    assert others == [
        ("training_starting", 0),
        *validations[:8],
        *heartbeat,
        *validations[8:],
        ("training_complete", 12),
    ]
    components = {body["phase"].partition("_")[0]: body["component"] for body in server.bodies}
    assert components == {"training": "Training", "validation": "Validation", "metrics": "Training Monitor"}


# Benefits of Using Hooks and Custom Loggers


@pytest.mark.parametrize("script", [STATUS_LOGGER, TAO, CREATORS], ids=["status_logger", "tao", "creators"])
def test_monitoring_of_any_kind_leaves_the_training_as_it_is(run_script, server, script):
    alone = hl.main()
    for address in ("monitoring-server/api", "tao-server/api", "localhost:8080"):
        script = script.replace(f"http://{address}/status", server.url)
    monitored = run_script(script.replace("\nmain(", "\nresult = main("))["result"]
    assert monitored.metrics == alone.metrics


def beats(server: StatusServer) -> list[dict[str, Any]]:
    """What is sent by time, whatever the training does."""
    return [body for body in server.bodies if body.get("kind") == "heartbeat" or body["message"] == "Alive."]


def of_creators(url: str) -> dict[str, Any]:
    return {**create_training_hooks(status_endpoint=url), **create_validation_hooks(status_endpoint=url)}


def of_tao(url: str) -> dict[str, Any]:
    return TAOStatusLogger(status_endpoint=url, experiment_name="sft-experiment-001").get_hooks()


@pytest.mark.parametrize("make_hooks", [of_creators, of_tao])
def test_heartbeats_arrive_while_one_validation_batch_takes_longer_than_the_monitor_waits(
    command_line, server, quick_heartbeats, make_hooks
):
    hooks = make_hooks(server.url)

    def slow_batch(model, arguments):
        if not model.training:
            before = len(beats(server))
            wait_until(lambda: len(beats(server)) >= before + 3)

    slow_down = lambda worker, report_data: worker.model.register_forward_pre_hook(slow_batch)  # noqa: E731
    hl.main(hook_fns={**hooks, "pre_training_hook": [hooks["pre_training_hook"], slow_down]})
    drain()
    phases = [body.get("phase", "beat") for body in server.bodies]
    start, end = phases.index("validation_starting"), phases.index("validation_complete")
    assert set(phases[start + 1 : end]) == {"beat"}
    assert end - start > 6  # three for each of two batches
    assert {body["step"] for body in server.bodies[start : end + 1]} == {2}
    assert phases[-1] == "training_complete"


def test_training_that_fails_is_reported_as_failed_with_its_error(run_script, server):
    script = CREATORS.replace("http://localhost:8080/status", server.url)
    failing = "all_hooks = {**training_hooks, 'pre_training_step_hook': lambda worker, report_data: 1 / 0}\nmain("
    with pytest.raises(ZeroDivisionError):
        run_script(script.replace("main(\n", failing + "\n"))
    wait_until(lambda: any(body["status"] == "failed" for body in server.bodies))
    assert server.bodies[-1]["message"] == "ZeroDivisionError: division by zero"


def test_training_that_is_stopped_is_reported_with_the_reason(run_script, server):
    script = CREATORS.replace("http://localhost:8080/status", server.url)
    stop = """
all_hooks["pre_training_step_hook"] = lambda worker, report_data: worker.trainer.request_stop("seen enough")
main("""
    run_script(script.replace("\nmain(", stop))
    drain()
    last = server.bodies[-1]
    assert (last["phase"], last["message"]) == ("training_stopped", "seen enough")
