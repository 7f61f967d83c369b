"""The status functions with a real loop and a real HTTP server, and all the faults it can have."""

import contextlib
import copy
import importlib.util
import inspect
import itertools
import json
import math
import pickle
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from destinations.http_server import StatusServer
from waiting import wait_until

import hookline as hl
from hookline._engine.errors import MissingExtraError, OptionError
from hookline._record.delivery import Pace
from hookline.functions import HOOK_FUNCTIONS
from hookline.sinks import StatusSink, status_outbox
from hookline.sinks.status_hooks import StatusReport
from hookline.status import TAOStatusLogger, create_status_logger, create_training_hooks, create_validation_hooks

FAULTS = ("unreachable", "hanging", "error", "half_closed", "refused")


@pytest.fixture(autouse=True)
def _outboxes_end_with_the_test(monkeypatch):
    monkeypatch.setattr(status_outbox, "PACE", Pace(poll_seconds=0.01, retry_seconds=0.01, longest_seconds=0.05))
    monkeypatch.setattr(status_outbox, "_OUTBOXES", {})  # those of other tests in this process are none of ours
    yield
    for each in status_outbox._OUTBOXES.values():
        each.close(0)
    status_outbox._OUTBOXES.clear()


@pytest.fixture
def server():
    server = StatusServer()
    yield server
    server.close()


def train(callbacks, *, steps=6, at=None):
    """Losses that depend on everything before, and a validation after the last step."""
    weight, losses = 1.0, []
    with hl.run("sft", callbacks=callbacks, summary=False, strict=True) as run:
        for step in run.steps(steps):
            if at and step in at:
                at[step]()
            weight -= 0.1 * math.sin(weight + step)
            losses.append(weight * weight)
            run.log(loss=losses[-1])
        with run.validate() as val:
            for batch in val.batches([1.0, 3.0]):
                val.log(loss=batch)
    return losses


def everything(server, **options):
    """The logger and the hooks of the seed's last example."""
    logger_fn = create_status_logger(endpoint=server.url, component_name="Training Monitor")
    training_hooks = create_training_hooks(status_endpoint=server.url, heartbeat_interval=2, **options)
    validation_hooks = create_validation_hooks(status_endpoint=server.url)
    return [logger_fn, {**training_hooks, **validation_hooks}]


EXPECTED = [
    ("training_starting", 0),
    ("metrics", 1),
    ("training_heartbeat", 2),
    ("metrics", 2),
    ("metrics", 3),
    ("training_heartbeat", 4),
    ("metrics", 4),
    ("metrics", 5),
    ("training_heartbeat", 6),
    ("metrics", 6),
    ("validation_starting", 6),
    ("validation_complete", 6),
    ("metrics", 6),
    ("training_complete", 6),
]


def hooks_of(made):
    return made.get_hooks() if isinstance(made, TAOStatusLogger) else made


def reported(server):
    return [(body["phase"], body["step"]) for body in server.reported("status")]


def the_outbox():
    (only,) = status_outbox._OUTBOXES.values()
    return only


def has_felt_it():
    """Whether every outbox knows by now that its endpoint is down."""
    return all(each.has_failed() for each in status_outbox._OUTBOXES.values())


def python(code, server, *, kill_at=None, cwd=None):
    """Run a script with the server's address as ``url``; what it printed. It may be killed at a line that it prints."""
    start = f"import sys, threading; url = {server.url!r}; from hookline.status import *\n"
    process = subprocess.Popen([sys.executable, "-c", start + code], stdout=subprocess.PIPE, text=True, cwd=cwd)
    with process:
        if kill_at is not None:
            assert process.stdout.readline().strip() == kill_at
            process.send_signal(signal.SIGKILL)
        return process.stdout.read()


def test_names_and_signatures_are_those_of_the_seed():
    first = {
        create_status_logger: ["endpoint", "component_name"],
        create_training_hooks: ["status_endpoint", "heartbeat_interval"],
        create_validation_hooks: ["status_endpoint"],
        TAOStatusLogger: ["status_endpoint", "experiment_name"],
    }
    for function, names in first.items():
        assert list(inspect.signature(function).parameters)[: len(names)] == names
    assert inspect.signature(create_training_hooks).parameters["heartbeat_interval"].default == 10


def test_hooks_merge_to_the_eight_of_the_seed(server):
    merged = {**create_training_hooks(server.url), **create_validation_hooks(server.url)}
    assert set(merged) == set(HOOK_FUNCTIONS) == set(TAOStatusLogger(server.url).get_hooks())


def test_logger_and_hooks_of_one_endpoint_arrive_in_the_order_of_the_training(server):
    train(everything(server))
    assert reported(server) == EXPECTED


def test_reports_carry_what_the_seed_says(server):
    losses = train(everything(server))
    first, second, *_, last = server.bodies
    start = {"total_epochs": 1, "total_steps": 6, "start_epoch": 0, "start_step": 0}
    assert (first["component"], first["data"]) == ("Training", start)
    assert (second["component"], second["metrics"]) == ("Training Monitor", {"loss": losses[0]})
    assert last["data"] == {"final_epoch": 0, "final_step": 6, "total_steps": 6, "final_val_loss": 2.0}
    assert (last["status"], last["progress"]) == ("finished", 1.0)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_leaves_training_alone_and_everything_is_reported_once_after_healing(server, fault):
    def fail():
        server.fail(fault)

    def feel():
        if fault == "unreachable":
            wait_until(has_felt_it)
        else:
            assert server.arrived.wait(60)

    losses = train(everything(server, drain_seconds=0), at={2: fail, 5: feel})
    assert losses == train([])
    server.heal()
    wait_until(the_outbox().is_done)
    assert reported(server) == EXPECTED
    assert len({request.key for request in server.requests}) == len(server.requests)


def test_endpoint_that_hangs_from_the_start_holds_up_no_call(server):
    server.fail("hanging")
    train(everything(server, drain_seconds=0), at={5: lambda: server.arrived.wait(60)})
    assert (len(server.attempts), server.bodies) == (1, [])  # the first message hangs, and the training is over
    server.heal()
    wait_until(the_outbox().is_done)
    assert reported(server) == EXPECTED


def test_end_of_training_waits_for_what_is_left_but_not_for_an_endpoint_that_is_down(server):
    train(everything(server, drain_seconds=60))
    assert the_outbox().is_done()
    server.fail("unreachable")
    train(everything(server, drain_seconds=3600))
    assert not the_outbox().is_done()


def test_making_them_starts_nothing(server, tmp_path):
    before = threading.active_count()
    everything(server)
    TAOStatusLogger(status_file=tmp_path / "status.json").get_hooks()
    assert (threading.active_count(), list(tmp_path.iterdir()), server.attempts) == (before, [], [])


def test_import_loads_no_http_client():
    code = "import sys, hookline.status; print(sorted({'httpx', 'prometheus_client'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("make", [create_status_logger, create_training_hooks, create_validation_hooks])
def test_bad_address_is_an_error_when_they_are_made(make):
    for bad in (None, "", "localhost:8080", "ftp://host", 8080):
        with pytest.raises(OptionError, match="give an address such as 'http://localhost:8080/status'"):
            make(bad)


def test_httpx_not_installed_is_an_error_when_they_are_made(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"hookline\[status\]"):
        create_status_logger("http://localhost:8080/status")


@pytest.mark.parametrize("interval", [0, -1, 1.5, True])
def test_heartbeat_interval_that_cannot_be_is_an_error(server, interval):
    with pytest.raises(OptionError, match="heartbeat_interval"):
        create_training_hooks(server.url, heartbeat_interval=interval)


def test_heartbeats_come_every_so_many_steps(server):
    train([create_training_hooks(server.url, heartbeat_interval=4)], steps=10)
    assert [step for phase, step in reported(server) if phase == "training_heartbeat"] == [4, 8]


def test_headers_are_sent(server, monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cret")
    create_status_logger(server.url, headers={"Authorization": "Bearer ${TOKEN}"})({"loss": 1.0}, 1)
    assert the_outbox().drain(60)
    assert server.requests[0].headers["authorization"] == "Bearer s3cret"


@pytest.mark.parametrize(
    ("make", "name", "hook"),
    [
        (create_training_hooks, "component_name", "pre_training_hook"),
        (create_validation_hooks, "component_name", "pre_validation_hook"),
        (TAOStatusLogger, "experiment_name", "pre_training_hook"),
    ],
)
def test_name_headers_and_root_are_those_given(server, tmp_path, make, name, hook):
    hooks = hooks_of(make(server.url, headers={"X-Run": "a"}, root=tmp_path / "elsewhere", **{name: "mine"}))
    worker = SimpleNamespace()
    hooks[hook](worker, {"total_steps": 5})
    assert the_outbox().drain(60)
    first = server.requests[0]
    assert (first.headers["x-run"], first.body["component"]) == ("a", "mine")
    assert len(list((tmp_path / "elsewhere" / ".outbox").iterdir())) == 1


@pytest.mark.parametrize("make", [create_training_hooks, TAOStatusLogger])
def test_end_of_training_waits_for_so_many_seconds_at_most(server, monkeypatch, make):
    hooks = hooks_of(make(server.url, drain_seconds=3))
    now = itertools.count()  # a second passes from each look at the clock to the next
    server.fail("hanging")
    with monkeypatch.context() as patched:
        patched.setattr(status_outbox, "time", SimpleNamespace(monotonic=lambda: next(now)))
        hooks["post_training_hook"](SimpleNamespace(), {"final_step": 5})
    server.heal()
    assert next(now) == 4


@pytest.mark.parametrize("make", [create_validation_hooks, TAOStatusLogger])
def test_batches_of_a_validation_are_all_reported_where_no_time_has_to_pass(server, make):
    hooks = hooks_of(make(server.url, heartbeat_seconds=0))
    for batch in range(2):
        hooks["post_per_step_validation_hook"](SimpleNamespace(), {"current_epoch": 0, "batch_index": batch})
    assert the_outbox().drain(60)
    assert [body["data"]["batch_index"] for body in server.bodies] == [0, 1]


def test_batches_of_a_validation_are_reported_at_a_bounded_rate(server):
    now = [0.0]
    box = status_outbox.outbox_for({"endpoint": StatusSink(server.url)})
    hooks = StatusReport(box, "Validation", heartbeat_seconds=10.0, clock=lambda: now[0]).validation_hooks()
    worker = type("Worker", (), {})()
    hooks["pre_validation_hook"](worker, {"current_epoch": 0, "is_last_step": False})
    for batch in range(1000):
        hooks["pre_per_step_validation_hook"](worker, {"current_epoch": 0, "batch_index": batch})
        now[0] += 0.035
        hooks["post_per_step_validation_hook"](worker, {"current_epoch": 0, "batch_index": batch, "val_score": 0.5})
    assert box.drain(60)
    assert [body["data"]["batch_index"] for body in server.bodies[1:]] == [285, 571, 857]


def test_heartbeats_continue_while_one_batch_takes_long_and_end_with_the_training(server):
    box = status_outbox.outbox_for({"endpoint": StatusSink(server.url, heartbeat_seconds=0.01)})
    report = StatusReport(box, "sft")
    with hl.run(callbacks=[report.training_hooks(), report.validation_hooks()], summary=False, strict=True) as run:
        for _ in run.steps(3):
            pass
        with run.validate() as val:
            for _ in val.batches([1]):
                wait_until(lambda: sum(body["step"] == 3 for body in server.reported("heartbeat")) >= 3)
        assert box.pulse() == 3
    assert box.pulse() is None
    assert box.drain(60)
    assert server.bodies[-1]["phase"] == "training_complete"


def test_validation_without_training_hooks_has_heartbeats_only_while_it_runs(server):
    hooks = create_validation_hooks(server.url)
    with hl.run(callbacks=[hooks], summary=False, strict=True) as run:
        for _ in run.steps(1):
            with run.validate():
                assert the_outbox().pulse() is not None
            assert the_outbox().pulse() is None


def test_validation_without_training_hooks_reports_the_step_it_measures(server):
    hooks = create_validation_hooks(server.url)
    with hl.run(callbacks=[hooks], summary=False, strict=True) as run:
        for _ in run.steps(3):
            with run.validate():
                pass
        with run.validate():
            pass
    assert the_outbox().drain(60)
    expected = [(phase, step) for step in (1, 2, 3, 3) for phase in ("validation_starting", "validation_complete")]
    assert reported(server) == expected


def test_training_that_fails_is_reported_as_failed_and_sends_no_more_heartbeats(server):
    box = status_outbox.outbox_for({"endpoint": StatusSink(server.url, heartbeat_seconds=0.01)})
    with (
        pytest.raises(ValueError, match="bad batch"),
        hl.run(callbacks=[StatusReport(box, "sft", 1).training_hooks()], summary=False) as run,
    ):
        for step in run.steps(5):
            if step == 3:
                raise ValueError("bad batch")
    wait_until(lambda: any(body["status"] == "failed" for body in server.reported("status")))
    last = server.reported("status")[-1]
    assert (last["phase"], last["message"], last["step"]) == ("training_failed", "ValueError: bad batch", 3)
    assert box.pulse() is None


def fail_at_step(step, callbacks):
    """A training whose error is caught, so that nothing is left of it."""
    with (
        contextlib.suppress(ValueError),
        hl.run(callbacks=callbacks, summary=False) as run,
    ):
        for each in run.steps(5):
            if each == step:
                raise ValueError("bad batch")


def test_training_that_fails_is_reported_as_failed_long_before_a_heartbeat_is_due(server):
    box = status_outbox.outbox_for({"endpoint": StatusSink(server.url, heartbeat_seconds=3600.0)})
    fail_at_step(3, [StatusReport(box, "sft").training_hooks()])
    wait_until(lambda: server.bodies and server.bodies[-1]["status"] == "failed")
    assert (server.bodies[-1]["message"], server.bodies[-1]["step"]) == ("ValueError: bad batch", 3)


def test_training_that_failed_just_before_another_begins_is_reported_first(server, monkeypatch):
    monkeypatch.setattr(StatusSink, "beat", lambda sink: None)  # nobody looks in between
    hooks = create_training_hooks(server.url)
    fail_at_step(2, [hooks])
    train([hooks], steps=1)
    starting, failed = ("running", "Training starts."), ("failed", "ValueError: bad batch")
    said = [(body["status"], body["message"]) for body in server.reported("status")]
    assert said == [starting, failed, starting, ("finished", "Training is complete.")]


def test_worker_that_failed_and_has_no_context_is_reported_as_failed(server):
    worker = SimpleNamespace(state="running")
    box = status_outbox.outbox_for({"endpoint": StatusSink(server.url, heartbeat_seconds=3600.0)})
    StatusReport(box, "sft").pre_training_hook(worker, {"total_steps": 5})
    worker.state = "failed"
    wait_until(lambda: server.bodies and server.bodies[-1]["status"] == "failed")
    assert server.bodies[-1]["message"] == "The worker failed."


def test_worker_that_is_gone_sends_no_more_heartbeats(server):
    worker = type("Worker", (), {})()
    hooks = create_training_hooks(server.url)
    hooks["pre_training_hook"](worker, {"total_steps": 5, "total_epochs": 1, "start_step": 0, "start_epoch": 0})
    assert the_outbox().pulse() == 0
    del worker
    assert the_outbox().pulse() is None
    assert the_outbox().drain(60)
    assert server.bodies[-1]["phase"] == "training_failed"


def test_only_rank_zero_reports(server, monkeypatch):
    logger_fn, hooks = everything(server)
    worker = type("Worker", (), {"rank": 1})()
    hooks["pre_training_hook"](worker, {"total_steps": 5, "total_epochs": 1, "start_step": 0, "start_epoch": 0})
    hooks["post_training_step_hook"](worker, {"current_epoch": 0, "current_step": 2, "total_steps": 5})
    hooks["pre_validation_hook"](worker, {"current_epoch": 0, "is_last_step": False})
    monkeypatch.setenv("RANK", "1")
    logger_fn({"loss": 1.0}, 1)
    assert (the_outbox()._recorder, the_outbox().pulse()) == (None, None)


def test_what_an_endpoint_missed_is_delivered_by_the_next_start_before_anything_new(server):
    logger_fn = create_status_logger(server.url)
    server.fail("unreachable")
    for step in (1, 2):
        logger_fn({"loss": float(step)}, step)
    wait_until(has_felt_it)
    the_outbox().close(0)
    server.heal()
    logger_fn({"loss": 3.0}, 3)
    assert the_outbox().drain(60)
    assert [body["metrics"]["loss"] for body in server.bodies] == [1.0, 2.0, 3.0]


def test_what_was_delivered_leaves_nothing_behind(server, tmp_path):
    create_status_logger(server.url)({"loss": 1.0}, 1)
    the_outbox().close(60)
    assert list((tmp_path / "runs" / ".outbox").iterdir()) == []


def test_process_that_was_killed_is_reported_as_failed_by_the_next_start(server, tmp_path):
    code = """
hooks = create_training_hooks(url, heartbeat_interval=1)
class Worker: pass
worker = Worker()
hooks["pre_training_hook"](worker, {"total_steps": 5, "total_epochs": 1, "start_step": 0, "start_epoch": 0})
hooks["post_training_step_hook"](worker, {"current_epoch": 0, "current_step": 1, "total_steps": 5})
print("training", flush=True)
threading.Event().wait()
"""
    server.fail("unreachable")
    python(code, server, kill_at="training", cwd=tmp_path)
    server.heal()
    create_status_logger(server.url)({"loss": 3.0}, 3)
    assert the_outbox().drain(60)
    assert [phase for phase, _ in reported(server)] == [
        "training_starting",
        "training_heartbeat",
        "training_failed",
        "metrics",
    ]


def test_exit_of_the_process_delivers_what_is_left(server, tmp_path):
    python("create_status_logger(url)({'loss': 1.0}, 1)", server, cwd=tmp_path)
    assert reported(server) == [("metrics", 1)]
    assert list((tmp_path / "runs" / ".outbox").iterdir()) == []


def test_exit_in_the_middle_of_a_training_is_reported_as_failed_with_the_error(server, tmp_path):
    code = """
import hookline as hl
with hl.run(callbacks=[create_training_hooks(url)], summary=False, root=None) as run:
    for step in run.steps(5):
        if step == 2:
            sys.stderr = open("/dev/null", "w")
            raise RuntimeError("out of memory")
"""
    python(code, server, cwd=tmp_path)
    last = server.bodies[-1]
    assert (last["status"], last["message"], last["step"]) == ("failed", "RuntimeError: out of memory", 2)


def test_exit_after_a_caught_error_is_reported_as_failed_with_the_error(server, tmp_path):
    code = """
import hookline as hl
from hookline.sinks import StatusSink
StatusSink.beat = lambda sink: None  # nobody looks before the exit
try:
    with hl.run(callbacks=[create_training_hooks(url)], summary=False, root=None) as run:
        for step in run.steps(5):
            raise RuntimeError("out of memory")
except RuntimeError:
    del run
    sys.exit(1)
"""
    python(code, server, cwd=tmp_path)
    assert (server.bodies[-1]["status"], server.bodies[-1]["message"]) == ("failed", "RuntimeError: out of memory")


def test_exit_in_the_middle_of_a_training_without_an_error_is_reported_as_unexplained(server, tmp_path):
    code = """
class Worker: pass
worker = Worker()
create_training_hooks(url)["pre_training_hook"](worker, {"total_steps": 5})
"""
    python(code, server, cwd=tmp_path)
    said = "The process ended before the training was over, and no error says why."
    assert (server.bodies[-1]["status"], server.bodies[-1]["message"]) == ("failed", said)


def test_forked_child_is_delivered_by_its_parent(server, tmp_path):
    code = """
import os
log = create_status_logger(url)
log({"loss": 1.0}, 1)
child = os.fork()
if child == 0:
    log({"loss": 2.0}, 2)
    sys.exit()
os.waitpid(child, 0)
"""
    python(code, server, cwd=tmp_path)
    assert sorted(step for _, step in reported(server)) == [1, 2]


def test_two_outboxes_for_one_place_keep_out_of_each_others_way(server, tmp_path):
    loggers = [create_status_logger(server.url, headers={"X-Run": name}) for name in ("a", "b")]
    for step, log in enumerate(loggers):
        log({"loss": 1.0}, step)
    assert len(list((tmp_path / "runs" / ".outbox").iterdir())) == 2
    assert all(each.drain(60) for each in status_outbox._OUTBOXES.values())
    assert sorted(step for _, step in reported(server)) == [0, 1]


def test_directory_that_another_process_left_is_delivered_beside_the_own_one(server, tmp_path):
    loggers = [create_status_logger(server.url, headers={"X-Run": name}) for name in ("a", "b")]
    server.fail("unreachable")
    for step, log in enumerate(loggers):
        log({"loss": 1.0}, step)
    wait_until(has_felt_it)
    for each in status_outbox._OUTBOXES.values():
        each.close(0)
    server.heal()
    loggers[0]({"loss": 1.0}, 2)
    wait_until(lambda: len(reported(server)) >= 3)
    assert sorted(step for _, step in reported(server)) == [0, 1, 2]


def test_root_that_cannot_be_written_is_reported_and_reporting_continues(server, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    create_status_logger(server.url, root=tmp_path / "file")({"loss": 1.0}, 1)
    assert the_outbox().drain(60)
    assert (reported(server), "cannot be written" in caplog.text) == ([("metrics", 1)], True)


def test_copies_report_through_the_same_outbox(server):
    log = create_status_logger(server.url)
    for each, step in ((log, 1), (copy.deepcopy(log), 2), (pickle.loads(pickle.dumps(log)), 3)):
        each({"loss": 1.0}, step)
    assert the_outbox().drain(60)
    assert reported(server) == [("metrics", 1), ("metrics", 2), ("metrics", 3)]


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_tao_logger_writes_a_line_for_each_report(tmp_path):
    tao_logger = TAOStatusLogger(experiment_name="sft-001", status_file=tmp_path / "status.json", heartbeat_interval=3)
    losses = train([tao_logger.log_status, tao_logger.get_hooks()])
    found = lines(tmp_path / "status.json")
    assert [line["status"] for line in found] == ["STARTED", *["RUNNING"] * 11, "SUCCESS"]
    assert {line["component"] for line in found} == {"sft-001"}
    assert found[1]["graphical"] == {"loss": losses[0]}
    assert [line["kpi"] for line in found if "kpi" in line] == [{"val_avg_loss": 2.0}, {"val/loss": 2.0}]
    assert (found[-1]["step"], found[-1]["max_step"], found[-1]["epoch"]) == (6, 6, 1)


def test_tao_logger_sends_to_an_endpoint_and_a_file(server, tmp_path):
    tao_logger = TAOStatusLogger(server.url, "sft-001", tmp_path / "status.json")
    train([tao_logger.get_hooks()])
    assert server.bodies == lines(tmp_path / "status.json")
    assert [body["status"] for body in server.bodies][::3] == ["STARTED", "SUCCESS"]


def test_tao_logger_finds_the_file_that_tao_names(tmp_path, monkeypatch):
    monkeypatch.setenv("TAO_API_JOB_ID", "job-1")
    monkeypatch.setenv("TAO_API_RESULTS_DIR", str(tmp_path / "results"))
    TAOStatusLogger(experiment_name="sft").log_status({"loss": math.nan}, 1)
    assert the_outbox().drain(60)
    (line,) = lines(tmp_path / "results" / "job-1" / "status.json")
    assert line["graphical"] == {"loss": "NaN"}


def test_tao_logger_with_nowhere_to_report_to_is_an_error(monkeypatch):
    for name in ("TAO_STATUS_FILE", "TAO_API_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OptionError, match="give status_endpoint="):
        TAOStatusLogger(experiment_name="sft")


def test_tensors_arrive_as_numbers(server, torch):
    create_status_logger(server.url)({"loss": torch.tensor(0.5), "grad": {"norm": torch.tensor(2)}}, 1)
    assert the_outbox().drain(60)
    assert server.bodies[0]["metrics"] == {"loss": 0.5, "grad": {"norm": 2}}
