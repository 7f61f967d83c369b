"""The status sink: the messages to a monitor, their times, and the meaning of its responses."""

import importlib.util
import json
import logging
import math

import pytest
from destinations.http_server import StatusServer

import hookline as hl
from hookline._engine.errors import MissingExtraError, OptionError, RefusedError
from hookline._record.delivery import Delivery, Pace
from hookline._record.delivery_manager import record_death
from hookline._record.recorder import Recorder
from hookline._record.sink import make_sink
from hookline.sinks import StatusSink

PACE = Pace(poll_seconds=0.01, retry_seconds=0.01, longest_seconds=0.05)


@pytest.fixture
def server():
    server = StatusServer()
    yield server
    server.close()


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(tmp_path / "run")
    yield recorder
    recorder.close()


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def deliver(tmp_path):
    """Starts deliveries, which end with the test."""
    started = []

    def start(sink, *, name="status"):
        started.append(Delivery(tmp_path / "run", name, sink, PACE))
        started[-1].round()
        return started[-1]

    yield start
    for delivery in started:
        finish(delivery)


def finish(delivery):
    delivery.close(0)
    delivery.run()


def train(sinks, **options):
    with hl.run("sft", sinks=sinks, summary=False, **options) as run:
        for _ in run.epochs(2):
            for loss in run.steps([4.0, 2.0]):
                run.log(loss=loss)
            with run.validate() as val:
                val.log(loss=1.0)
    return run


def test_run_tells_its_statuses_and_events_in_order(server):
    train([StatusSink(server.url)])
    reported = [(body["kind"], body["phase"], body["step"]) for body in server.reported("status", "event")]
    assert reported == [
        ("status", "running", 0),
        ("event", "eval", 2),
        ("event", "eval", 4),
        ("status", "finished", 4),
    ]


def test_message_says_who_where_and_how_far(server):
    run = train([StatusSink(server.url, component="trainer-7")])
    last = server.reported("status")[-1]
    assert {key: last[key] for key in ("component", "project", "run", "status", "num_steps", "progress")} == {
        "component": "trainer-7",
        "project": "default",
        "run": run.dir.name,
        "status": "finished",
        "num_steps": 4,
        "progress": 1.0,
    }


def test_component_not_given_is_the_name_of_the_run(server):
    train([StatusSink(server.url)])
    assert {body["component"] for body in server.bodies} == {"sft"}


def test_idempotency_key_is_the_id_of_the_message_and_no_two_are_the_same(server):
    train([StatusSink(server.url, metrics="all")])
    assert [request.key for request in server.attempts] == [request.body["id"] for request in server.attempts]
    assert len({request.key for request in server.attempts}) == len(server.attempts)


def test_metrics_latest_tells_validations_and_sends_the_others_with_a_heartbeat(server, recorder, deliver):
    for step in range(1, 101):
        recorder.log(loss=1.0 / step, step=step)
    recorder.log({"val/loss": 0.5}, step=100, axis="eval")
    deliver(StatusSink(server.url))
    assert [(body["kind"], body["step"], body["metrics"]) for body in server.bodies] == [
        ("metrics", 100, {"val/loss": 0.5}),
        ("heartbeat", 100, {"loss": 0.01, "val/loss": 0.5}),
    ]


def test_metrics_all_tells_every_row(server, recorder, deliver):
    for step in range(1, 31):
        recorder.log(loss=float(step), step=step)
    deliver(StatusSink(server.url, metrics="all"))
    assert [body["metrics"]["loss"] for body in server.reported("metrics")] == list(range(1, 31))


def test_metrics_none_tells_no_row(server, recorder, deliver):
    recorder.log({"val/loss": 0.5}, step=1, axis="eval")
    deliver(StatusSink(server.url, metrics="none", heartbeat_seconds=0))
    assert server.bodies == []


def test_heartbeats_come_at_most_so_often_and_carry_the_last_step(server, recorder, deliver):
    sink = StatusSink(server.url, heartbeat_seconds=10)
    sink.clock = clock = Clock()
    delivery = deliver(sink)
    for step in range(1, 41):
        clock.now += 1
        recorder.log(loss=1.0, step=step)
        delivery.round()
    assert [body["step"] for body in server.reported("heartbeat")] == [0, 10, 20, 30, 40]


def test_heartbeats_continue_through_a_long_validation_that_records_nothing(server, recorder, deliver):
    sink = StatusSink(server.url, heartbeat_seconds=10)
    sink.clock = clock = Clock()
    recorder.status("running", step=0, num_steps=100, num_epochs=1)
    recorder.log(loss=1.0, step=50)
    delivery = deliver(sink)
    for _ in range(60):
        clock.now += 1
        delivery.round()
    beats = server.reported("heartbeat")
    assert [(body["step"], body["progress"]) for body in beats] == [(50, 0.5)] * 7


def test_heartbeats_end_with_the_run(server, recorder, deliver):
    sink = StatusSink(server.url, heartbeat_seconds=10)
    sink.clock = clock = Clock()
    recorder.status("finished", step=3)
    delivery = deliver(sink)
    clock.now += 100
    delivery.round()
    assert [body["kind"] for body in server.bodies] == ["status"]


def test_heartbeat_that_did_not_get_through_is_followed_by_a_newer_one(server, recorder, deliver):
    sink = StatusSink(server.url)
    server.fail("error")
    delivery = deliver(sink)
    assert delivery.progress.status == "lagging"
    server.heal()
    recorder.log(loss=1.0, step=5)
    delivery.round()
    assert [body["step"] for body in server.reported("heartbeat")] == [5]
    assert delivery.progress.status == "ok"


@pytest.mark.parametrize(
    ("fault", "message"),
    [("refused", r"answers 401.*headers.*Authorization"), ("missing", r"answers 404.*Check the address")],
)
def test_endpoint_that_refuses_at_the_start_is_an_error_with_the_fix(server, fault, message):
    server.fail(fault)
    with pytest.raises(RefusedError, match=message), hl.run(sinks=[StatusSink(server.url)], summary=False):
        pass


def test_endpoint_that_is_down_at_the_start_is_no_error_and_gets_everything_later(server):
    server.fail("unreachable")
    with hl.run(sinks=[StatusSink(server.url)], summary=False, drain_seconds=0) as run:
        for _ in run.steps(3):
            run.log(loss=1.0)
    server.heal()
    delivery = Delivery(run.dir, "status", StatusSink(server.url), PACE)
    delivery.round()
    finish(delivery)
    assert [body["phase"] for body in server.reported("status")] == ["running", "finished"]


def test_message_that_is_rejected_shows_as_refused_and_holds_up_what_follows(server, recorder, deliver):
    recorder.event("fine", step=1)
    recorder.event("odd", step=2)
    recorder.event("after", step=3)
    server.rejects = lambda body: body.get("phase") == "odd"
    delivery = deliver(StatusSink(server.url))
    assert delivery.progress.status == "refused"
    assert "answers 400 Bad Request to message" in delivery.progress.error
    assert "'no such thing'. Check format=; skip_rejected=True skips such messages." in delivery.progress.error
    server.rejects = lambda body: False
    delivery.round()
    assert [body["phase"] for body in server.reported("event")] == ["fine", "odd", "after"]


def test_message_that_is_rejected_is_left_out_loudly_where_asked(server, recorder, deliver, caplog):
    for name in ("fine", "odd", "after"):
        recorder.event(name)
    server.rejects = lambda body: body.get("phase") == "odd"
    with caplog.at_level(logging.WARNING, "hookline"):
        deliver(StatusSink(server.url, skip_rejected=True))
    assert [body["phase"] for body in server.reported("event")] == ["fine", "after"]
    assert [record.message for record in caplog.records if "was skipped" in record.message]


def test_what_was_accepted_is_not_sent_again_when_a_later_message_fails(server, recorder, deliver):
    for name in ("one", "two", "three", "four"):
        recorder.event(name)
    server.rejects = lambda body: body.get("phase") == "three"
    delivery = deliver(StatusSink(server.url))
    delivery.round()
    server.rejects = lambda body: False
    delivery.round()
    phases = [request.body["phase"] for request in server.attempts if "phase" in request.body]
    assert phases == ["one", "two", "three", "three", "three", "four"]


def test_retry_after_is_kept_to(server, recorder, deliver):
    recorder.event("one")
    server.retry_after = "30"
    server.fail("busy")
    sink = StatusSink(server.url)
    sink.clock = clock = Clock()
    delivery = deliver(sink)
    server.heal()
    clock.now += 29
    delivery.round()
    assert (len(server.attempts), delivery.progress.status) == (1, "lagging")
    clock.now += 2
    delivery.round()
    assert [body["phase"] for body in server.reported("event")] == ["one"]


def test_header_from_the_environment_is_read_when_it_is_used(server, recorder, deliver, monkeypatch):
    sink = StatusSink(server.url, headers={"Authorization": "Bearer ${MONITOR_TOKEN}"})
    with pytest.raises(RefusedError, match="MONITOR_TOKEN.*not set"):
        sink.check()
    monkeypatch.setenv("MONITOR_TOKEN", "s3cret")
    recorder.event("one")
    deliver(sink)
    assert server.requests[0].headers["authorization"] == "Bearer s3cret"
    assert sink.spec()["with"]["headers"] == {"Authorization": "Bearer ${MONITOR_TOKEN}"}


def test_header_given_literally_is_sent_and_never_written_down(server, recorder, deliver, tmp_path, monkeypatch):
    sink = StatusSink(server.url, headers={"X-Api-Key": "s3cret", "User-Agent": "me"})
    recorder.event("one")
    delivery = deliver(sink)
    finish(delivery)
    assert server.requests[0].headers["x-api-key"] == "s3cret"
    assert "s3cret" not in "".join(path.read_text() for path in (tmp_path / "run" / "sinks").glob("*.json"))
    monkeypatch.setenv("HOOKLINE_HEADER_X_API_KEY", "another")
    recorder.event("two")
    deliver(make_sink(sink.spec()))
    assert [server.requests[-1].headers[name] for name in ("x-api-key", "user-agent")] == ["another", "me"]


def test_endpoint_from_the_environment_is_no_part_of_the_spec(server, recorder, deliver, monkeypatch):
    monkeypatch.setenv("WEBHOOK", server.url)
    sink = StatusSink("${WEBHOOK}")
    recorder.event("one")
    deliver(sink)
    assert server.bodies
    assert sink.spec()["with"]["endpoint"] == "${WEBHOOK}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give one of them"),
        ({"endpoint": "http://a", "path": "b"}, "give one of them"),
        ({"endpoint": "monitor:8080"}, "give an address"),
        ({"endpoint": "ftp://host/x"}, "give an address"),
        ({"endpoint": "http://host:port/"}, "give an address"),
        ({"endpoint": "https://me:s3cret@host/"}, "https://host/ is given with a password"),
        ({"endpoint": "http://a", "format": "taos"}, "Did you mean 'tao'"),
        ({"endpoint": "http://a", "metrics": "some"}, "metrics='some'"),
        ({"endpoint": "http://a", "heartbeat_seconds": -1}, "give numbers of seconds"),
        ({"endpoint": "http://a", "timeout_seconds": 0}, "give numbers of seconds"),
    ],
)
def test_settings_that_cannot_be_are_an_error_when_the_sink_is_made(settings, message):
    with pytest.raises(OptionError, match=message):
        StatusSink(**settings)


def test_httpx_not_installed_is_an_error_with_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hookline\[status\]'"):
        StatusSink("http://localhost").check()
    StatusSink(path="status.json").check()


def lines(path):
    read = [json.loads(line, parse_constant=not_json) for line in path.read_text(encoding="utf-8").splitlines()]
    assert read, "nothing was written"
    return read


def not_json(name):
    pytest.fail(f"{name} is not JSON")


def test_tao_file_has_a_line_for_each_status_with_the_fields_of_tao(tmp_path):
    path = tmp_path / "results" / "status.json"
    train([StatusSink(path=path, format="tao", metrics="all", heartbeat_seconds=0)])
    found = lines(path)
    assert [line["status"] for line in found] == ["STARTED", *["RUNNING"] * 8, "SUCCESS"]
    row = next(line for line in found if "graphical" in line and line["step"] == 3)
    assert row["graphical"] == {"loss": 4.0}
    assert (row["epoch"], row["max_epoch"], row["max_step"], row["verbosity"]) == (2, 2, 4, "INFO")
    assert {"date", "time", "message", "time_per_epoch", "time_per_step", "eta"} <= set(row)
    assert [line["kpi"] for line in found if "kpi" in line] == [{"val/loss": 1.0}] * 2


def test_tao_numbers_that_are_not_finite_are_words(tmp_path, recorder, deliver):
    recorder.log(loss=math.nan, norm=math.inf, note="warm", step=1)
    deliver(StatusSink(path=tmp_path / "status.json", format="tao", metrics="all", heartbeat_seconds=0))
    (line,) = lines(tmp_path / "status.json")
    assert (line["graphical"], line["categorical"]) == ({"loss": "NaN", "norm": "Infinity"}, {"note": "warm"})


def test_file_is_appended_to_and_a_batch_given_again_is_there_once(tmp_path, recorder, deliver):
    path = tmp_path / "status.json"
    path.write_text('{"status": "STARTED", "message": "by the launcher"}\n')
    sink = StatusSink(path=path, format="tao", heartbeat_seconds=0)
    recorder.event("one")
    delivery = deliver(sink)
    before = delivery.progress.path.read_text()
    recorder.event("two")
    delivery.round()
    finish(delivery)
    delivery.progress.path.write_text(before)  # as if the process had died before it was saved
    deliver(StatusSink(path=path, format="tao", heartbeat_seconds=0))
    assert [line["message"] for line in lines(path)] == ["by the launcher", "one", "two"]


@pytest.mark.parametrize(
    ("status", "message", "word"),
    [
        ("finished", "", "SUCCESS"),
        ("failed", "ValueError: bad", "FAILURE"),
        ("stopped", "early stopping: val/loss", "SUCCESS"),
        ("stopped", "SIGTERM", "FAILURE"),
    ],
)
def test_tao_word_for_how_a_run_ended(tmp_path, recorder, deliver, status, message, word):
    recorder.status(status, message, step=3)
    deliver(StatusSink(path=tmp_path / "status.json", format="tao"))
    assert [line["status"] for line in lines(tmp_path / "status.json")] == [word]


def test_kubeflow_payload_is_the_trainer_status(server, tmp_path):
    recorder = Recorder(tmp_path / "run", clock=Clock())
    recorder.status("running", step=0, num_steps=8, num_epochs=2)
    recorder.event("checkpoint", step=1)
    recorder._clock.now += 10  # type: ignore[attr-defined]
    recorder.log(loss=0.25, step=2)
    recorder.close()
    delivery = Delivery(tmp_path / "run", "status", StatusSink(server.url, format="kubeflow", metrics="all"), PACE)
    delivery.round()
    finish(delivery)
    assert server.bodies[1] == {
        "trainerStatus": {
            "progressPercentage": 25,
            "estimatedRemainingSeconds": 30,
            "metrics": [
                {"name": "currentEpoch", "value": "1"},
                {"name": "totalEpochs", "value": "2"},
                {"name": "currentStep", "value": "2"},
                {"name": "totalSteps", "value": "8"},
                {"name": "loss", "value": "0.25"},
            ],
            "lastUpdatedTime": "1970-01-01T00:01:50Z",
        }
    }


@pytest.mark.parametrize("prefix", ["KUBEFLOW_TRAINER_SERVER_", "KUBEFLOW_TRAINER_STATUS_"])
def test_kubeflow_in_a_pod_takes_address_and_token_from_the_environment(
    server, tmp_path, monkeypatch, recorder, deliver, prefix
):
    token = tmp_path / "token"
    token.write_text("first\n")
    monkeypatch.setenv(f"{prefix}URL", server.url)
    monkeypatch.setenv(f"{prefix}TOKEN", str(token))
    sink = StatusSink(format="kubeflow", heartbeat_seconds=0)
    sink.check()
    recorder.status("running", step=0, num_steps=2)
    delivery = deliver(sink)
    token.write_text("rotated\n")
    recorder.status("finished", step=2)
    delivery.round()
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer first", "Bearer rotated"]


def test_kubeflow_outside_of_a_pod_needs_an_endpoint(monkeypatch):
    monkeypatch.delenv("KUBEFLOW_TRAINER_STATUS_URL", raising=False)
    with pytest.raises(OptionError, match="not in a TrainJob's pod"):
        StatusSink(format="kubeflow").check()


def test_progress_after_a_resume_begins_where_it_was_resumed(server, recorder, deliver):
    recorder.status("running", step=0, num_steps=100, num_epochs=1)
    recorder.log(loss=1.0, step=60)
    recorder.resume(40)
    recorder.status("running", step=40, num_steps=100, num_epochs=1)
    deliver(StatusSink(server.url))
    assert [body["step"] for body in server.reported("heartbeat")] == [40]


def test_next_start_knows_the_progress_from_before(server, recorder, deliver):
    recorder.status("running", step=0, num_steps=100, num_epochs=1)
    recorder.log(loss=0.5, step=25)
    finish(deliver(StatusSink(server.url, heartbeat_seconds=0.001)))
    deliver(StatusSink(server.url, heartbeat_seconds=0.001))
    beats = server.reported("heartbeat")
    assert [(body["progress"], body["metrics"]) for body in beats] == [(0.25, {"loss": 0.5})] * 2


def test_custom_status_is_reported_with_all_its_data(server, recorder, deliver):
    data = {"num_steps": "many", "epoch": 1.5, "metrics": 3, "component": 7, "phase": None, "shards": 12}
    recorder.status("tokenizing", "nearly there", step=3, **data)
    finish(deliver(StatusSink(server.url)))
    delivery = deliver(StatusSink(server.url, heartbeat_seconds=0))
    (body,) = server.reported("status")
    assert (body["phase"], body["message"], body["data"], body["component"]) == (
        "tokenizing",
        "nearly there",
        data,
        "run",
    )
    assert delivery.progress.status == "ok"


def test_ranks_report_their_own_status_in_json_and_not_in_tao(server, tmp_path, deliver):
    for name in ("main", "rank1"):
        recorder = Recorder(tmp_path / "run", name=name)
        recorder.status("finished", step=1)
        recorder.close()
    deliver(StatusSink(server.url))
    deliver(StatusSink(path=tmp_path / "status.json", format="tao"), name="tao")
    assert [body.get("writer") for body in server.reported("status")] == [None, "rank1"]
    assert len(lines(tmp_path / "status.json")) == 1


def test_process_that_died_is_reported_as_failed(server, recorder, deliver, tmp_path):
    recorder.status("running", step=0, num_steps=10)
    recorder.log(loss=1.0, step=3)
    delivery = deliver(StatusSink(server.url))
    record_death(tmp_path / "run")
    delivery.beats = False
    delivery.round()
    last = server.bodies[-1]
    assert (last["status"], last["step"], last["writer"]) == ("failed", 3, "courier")


def test_process_of_its_own_delivers_too(server):
    train([StatusSink(server.url, headers={"X-Api-Key": "s3cret"})], delivery="process")
    assert [body["phase"] for body in server.reported("status")] == ["running", "finished"]
    assert server.requests[0].headers["x-api-key"] == "s3cret"
