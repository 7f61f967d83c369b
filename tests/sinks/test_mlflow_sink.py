"""The sink for MLflow: against its databases, against servers that fail, and against a real one that is killed.

The real server takes many seconds to start, so one test does everything with it.
"""

import http.client
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from destinations.mlflow import empty_database
from waiting import wait_until

import hookline as hl
from hookline._engine.errors import MissingExtraError, OptionError, RefusedError
from hookline._record.delivery import Delivery, Pace
from hookline._record.delivery_manager import find_lost_outputs
from hookline._record.recorder import Recorder
from hookline._record.sink import make_sink
from hookline.sinks.mlflow import MlflowSink, _batches, entity_name
from hookline.sinks.mlflow_connection import Connection

PACE = Pace(poll_seconds=0.01, retry_seconds=0.01, longest_seconds=0.05)
MODES = {"pass": "ok", "error": "lagging", "half_closed": "lagging", 401: "refused", "unreachable": "lagging"}
FACTS = {"id": "2026-01-02-brave-otter-1", "project": "sums", "started": 1000.5, "host": "h", "user": "ann"}


@pytest.fixture
def uri(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(empty_database(tmp_path.parent), tmp_path)
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def run_dir(tmp_path):
    directory = tmp_path / "runs" / "sums" / FACTS["id"]
    directory.mkdir(parents=True)
    given = {"config": {"lr": 0.1, "model": {"layers": 2}}, "tags": ["nightly", "long"]}
    (directory / "run.json").write_text(json.dumps(FACTS | given))
    return directory


@pytest.fixture
def recorder(run_dir):
    recorder = Recorder(run_dir)
    yield recorder
    recorder.close()


def deliver(run_dir, sink):
    """One round of a new delivery, as after a start of the program."""
    delivery = Delivery(run_dir, "mlflow", sink, PACE)
    delivery.round()
    delivery.close(0)
    delivery.run()
    return delivery


def client_of(uri):
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def only_run(uri):
    client = client_of(uri)
    (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return client, run


def history(uri, name):
    client, run = only_run(uri)
    return sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name))


def test_run_carries_the_project_the_id_the_configuration_and_the_tags(run_dir, uri):
    deliver(run_dir, MlflowSink(uri, tags={"team": "sums"}))
    client, run = only_run(uri)
    assert client.get_experiment(run.info.experiment_id).name == "sums"
    assert (run.info.run_name, run.info.start_time, run.info.status) == (FACTS["id"], 1_000_500, "RUNNING")
    assert run.data.params == {"lr": "0.1", "model/layers": "2"}
    tags = {key: run.data.tags[key] for key in ("team", "mlflow.user", "hookline.tags")}
    assert tags == {"team": "sums", "mlflow.user": "ann", "hookline.tags": "nightly, long"}


def test_run_with_other_names_given_goes_by_those(run_dir, uri):
    deliver(run_dir, MlflowSink(uri, experiment="other/place", run_name="mine"))
    client, run = only_run(uri)
    assert (client.get_experiment(run.info.experiment_id).name, run.info.run_name) == ("other/place", "mine")


def test_start_whose_state_was_lost_continues_in_the_same_run(run_dir, recorder, uri):
    recorder.log(loss=1.0, step=1)
    deliver(run_dir, MlflowSink(uri)).progress.path.unlink()
    recorder.log(loss=2.0, step=2)
    deliver(run_dir, MlflowSink(uri))
    assert history(uri, "loss") == [(1, 1.0), (2, 2.0)]


def test_database_that_is_gone_is_reported_as_lost(run_dir, recorder, uri, tmp_path):
    recorder.log(loss=1.0, step=1)
    deliver(run_dir, MlflowSink(uri))
    before = find_lost_outputs(run_dir)
    (tmp_path / "mlflow.db").unlink()
    assert (before, find_lost_outputs(run_dir)) == ({}, {"mlflow": f"{tmp_path / 'mlflow.db'} is gone"})


def test_samples_that_come_again_are_kept_once(run_dir, recorder, uri, tmp_path):
    recorder.samples([{"prompt": "p", "completion": text} for text in ("ü🐟", "two\nlines")], step=1)
    deliver(run_dir, MlflowSink(uri, samples=True)).progress.path.unlink()
    deliver(run_dir, MlflowSink(uri, samples=True))
    client, run = only_run(uri)
    (file,) = client.list_artifacts(run.info.run_id, "samples")
    text = Path(client.download_artifacts(run.info.run_id, file.path, str(tmp_path))).read_text(encoding="utf-8")
    assert [json.loads(line)["completion"] for line in text.splitlines()] == ["ü🐟", "two\nlines"]


def test_artifacts_of_a_local_database_lie_beside_it(run_dir, recorder, uri, tmp_path):
    recorder.samples([{"prompt": "p", "completion": "c"}], step=1)
    deliver(run_dir, MlflowSink(uri, samples=True))
    assert len(list((tmp_path / "mlartifacts" / "sums").rglob("samples/*.jsonl"))) == 1


def test_text_among_metrics_is_a_tag_cut_to_what_mlflow_takes(run_dir, recorder, uri):
    recorder.log(note="first", step=1)
    recorder.log(note="ü\0" * 5000, other=None, step=2)
    deliver(run_dir, MlflowSink(uri))
    _, run = only_run(uri)
    assert run.data.tags["note"] == "ü\ufffd" * 2500
    assert "other" not in run.data.tags | run.data.metrics


def test_metrics_of_another_writer_carry_its_name(run_dir, recorder, uri):
    recorder.log(loss=1.0, step=1)
    rank = Recorder(run_dir, name="rank1")
    rank.log(loss=2.0, step=1)
    rank.close()
    deliver(run_dir, MlflowSink(uri))
    assert only_run(uri)[1].data.metrics == {"loss": 1.0, "rank1/loss": 2.0}


def test_number_too_large_for_a_float_is_infinite(run_dir, recorder, uri):
    recorder.log(tokens=10**400, step=1)
    assert deliver(run_dir, MlflowSink(uri)).progress.status == "ok"
    assert history(uri, "tokens") == [(1, sys.float_info.max)]


@pytest.mark.parametrize(("step", "shown"), [(2**65, 2**63 - 1), (-(2**65), 1 - 2**63)])
def test_step_too_large_for_mlflow_is_the_largest_that_it_takes(run_dir, recorder, uri, step, shown):
    recorder.log(loss=0.5, step=step)
    recorder.log(loss=0.25, step=1)
    assert deliver(run_dir, MlflowSink(uri)).progress.status == "ok"
    assert history(uri, "loss") == sorted([(shown, 0.5), (1, 0.25)])


@pytest.mark.parametrize(
    ("word", "shown"),
    [("finished", "FINISHED"), ("failed", "FAILED"), ("stopped", "KILLED"), ("tokenizing", "RUNNING")],
)
def test_status_is_shown_as_mlflow_has_it(word, shown, run_dir, recorder, uri):
    recorder.status("running")
    recorder.status(word, "why")
    deliver(run_dir, MlflowSink(uri))
    run = only_run(uri)[1]
    assert (run.info.status, run.data.tags["hookline.status"], run.data.tags["hookline.message"]) == (
        shown,
        word,
        "why",
    )


def test_status_of_a_resumed_run_is_running(run_dir, recorder, uri):
    recorder.status("failed")
    deliver(run_dir, MlflowSink(uri))
    recorder.status("running")
    deliver(run_dir, MlflowSink(uri))
    assert only_run(uri)[1].info.status == "RUNNING"


def test_status_of_a_dead_run_stays_failed_when_older_words_come_later(run_dir, uri):
    for name, word, when in (("courier", "failed", 20.0), ("rank1", "finished", 30.0), ("main", "running", 10.0)):
        recorder = Recorder(run_dir, name=name, clock=lambda when=when: when)
        recorder.status(word)
        recorder.close()
        deliver(run_dir, MlflowSink(uri))
    run = only_run(uri)[1]
    assert (run.info.status, run.info.end_time) == ("FAILED", 20_000)


def test_status_of_a_run_that_lives_is_not_heartbeat(run_dir, recorder, uri):
    recorder.status("tokenizing", "why")
    recorder.status("heartbeat", step=1)
    deliver(run_dir, MlflowSink(uri))
    tags = only_run(uri)[1].data.tags
    assert (tags["hookline.status"], tags["hookline.message"]) == ("tokenizing", "why")


def test_status_of_a_run_that_has_ended_outlives_a_late_heartbeat(run_dir, recorder, uri):
    recorder.status("finished")
    deliver(run_dir, MlflowSink(uri))
    recorder.status("heartbeat", step=1)
    deliver(run_dir, MlflowSink(uri))
    run = only_run(uri)[1]
    assert (run.info.status, run.data.tags["hookline.status"]) == ("FINISHED", "finished")


@pytest.mark.parametrize(
    "name", ["loss 🐟", "a//b", "/a", "a/", "..", "a/../b", "", "x" * 300, "🐟" * 300, "50%", "a\n"]
)
def test_name_that_mlflow_does_not_take_becomes_one_that_it_does(name):
    from mlflow.utils.validation import _validate_metric_name

    _validate_metric_name(entity_name(name))
    assert len(entity_name(name)) <= 250


@pytest.mark.parametrize("name", ["loss", "val/loss", "a.b-c_d:e f", "Fehler/Größe", "x" * 250])
def test_name_that_mlflow_takes_stays(name):
    assert entity_name(name) == name


def test_names_that_differ_only_in_replaced_characters_stay_apart(run_dir, recorder, uri):
    recorder.log({"loss 🐟": 1.0, "loss 🐠": 2.0, "loss _": 3.0}, step=1)
    deliver(run_dir, MlflowSink(uri))
    assert sorted(only_run(uri)[1].data.metrics.values()) == [1.0, 2.0, 3.0]


def test_batch_of_long_texts_stays_below_what_one_request_may_hold():
    from mlflow.entities import RunTag

    tags = [RunTag(f"note{i}", "🐟" * 5000) for i in range(40)]
    batches = list(_batches(tags, 100))
    assert [tag for batch in batches for tag in batch] == tags
    assert all(sum(len(json.dumps(tag.value)) for tag in batch) < 1_000_000 for batch in batches)


def test_run_deleted_in_mlflow_is_refused_with_the_fix(run_dir, recorder, uri):
    deliver(run_dir, MlflowSink(uri))
    client, run = only_run(uri)
    client.delete_run(run.info.run_id)
    delivery = deliver(run_dir, MlflowSink(uri))
    assert delivery.progress.status == "refused"
    assert "restore it" in delivery.progress.error


def test_run_unknown_to_mlflow_is_refused_with_the_fix(run_dir, uri):
    with pytest.raises(RefusedError, match="remove the sink's file"):
        MlflowSink(uri).open(run_dir, {"run_id": "0" * 32, "uri": uri, "status_time": 0.0})


def test_experiment_deleted_in_mlflow_is_refused_with_the_fix(run_dir, uri):
    client = client_of(uri)
    client.delete_experiment(client.create_experiment("sums"))
    with pytest.raises(RefusedError, match="restore it, or give the sink another one"):
        MlflowSink(uri).open(run_dir, None)


def test_directory_of_a_database_that_is_gone_is_a_fault_at_once(run_dir, tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        MlflowSink(f"sqlite:///{tmp_path}/nowhere/mlflow.db").open(run_dir, None)


def test_sink_without_an_address_takes_the_environments(run_dir, uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert MlflowSink().open(run_dir, None)["uri"] == uri


def test_sink_without_an_address_anywhere_has_a_database_in_the_root_of_the_runs(run_dir, uri, tmp_path):
    (tmp_path / "mlflow.db").rename(tmp_path / "runs" / "mlflow.db")
    assert MlflowSink().open(run_dir, None)["uri"] == f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}"


def test_sink_continues_where_it_began_when_the_environment_changed(run_dir, recorder, uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    deliver(run_dir, MlflowSink())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    recorder.log(loss=1.0, step=1)
    assert deliver(run_dir, MlflowSink()).progress.status == "ok"
    assert history(uri, "loss") == [(1, 1.0)]


def test_relative_address_of_a_database_is_written_down_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert MlflowSink("sqlite:///mlflow.db").spec()["with"] == {"tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"}


def test_sink_from_a_configuration_has_its_settings():
    sink = make_sink({"mlflow": {"tracking_uri": "http://127.0.0.1:5000", "tags": {"a": "b"}, "timeout_seconds": 3}})
    assert (sink.tracking_uri, sink.tags, sink.timeout_seconds) == ("http://127.0.0.1:5000", {"a": "b"}, 3)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("mlruns", "file store would keep repeated records twice"),
        ("file:///somewhere/mlruns", "sqlite:///mlflow.db"),
        ("htp://127.0.0.1:5000", "has no store for it. Give one of http, https, sqlite"),
        ("https://ann:secret@example.org", "MLFLOW_TRACKING_USERNAME"),
        ("postgresql://ann:secret@example.org/mlflow", "MLFLOW_TRACKING_URI in the environment"),
    ],
)
def test_address_that_cannot_be_used_is_an_error_at_the_start(uri, message):
    with pytest.raises(OptionError, match=message) as caught:
        MlflowSink(uri).check()
    assert "secret" not in str(caught.value)


def test_address_in_the_environment_is_checked_too_and_may_have_a_password(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+psycopg2://ann:secret@example.org/mlflow")
    MlflowSink().check()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "mlruns")
    with pytest.raises(OptionError, match="MLFLOW_TRACKING_URI='mlruns'"):
        MlflowSink().check()


def test_missing_package_is_an_error_with_the_command(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"hookline\[mlflow\]"):
        MlflowSink().check()


def test_time_limit_that_is_none_is_an_error():
    with pytest.raises(OptionError, match="timeout_seconds=0"):
        MlflowSink(timeout_seconds=0)


def test_limits_hold_for_the_sinks_thread_and_no_other():
    from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES, MLFLOW_HTTP_REQUEST_TIMEOUT

    seen = []

    def look():
        seen.append((MLFLOW_HTTP_REQUEST_MAX_RETRIES.get(), MLFLOW_HTTP_REQUEST_TIMEOUT.get()))

    before = dict(os.environ)
    with Connection("http://127.0.0.1:9", 2.5):
        look()
        other = threading.Thread(target=look)
        other.start()
        other.join()
        assert dict(os.environ) == before
    look()
    assert seen == [(0, 2.5), (7, 120), (7, 120)]


@pytest.mark.parametrize("fault", ["error", "hanging", "half_closed", "unreachable"])
def test_server_that_fails_is_a_fault_that_the_time_limit_ends(fault, run_dir):
    with proxy(to=None) as front:
        front.mode = fault
        delivery = deliver(run_dir, sink := MlflowSink(front.uri, timeout_seconds=1))
        assert (delivery.progress.status, sink._connection.timeout_seconds) == ("lagging", 1)


@pytest.mark.parametrize(
    ("status", "fix"), [(401, "MLFLOW_TRACKING_PASSWORD"), (403, "TOKEN"), (404, "is not an MLflow")]
)
def test_server_that_refuses_is_reported_with_the_fix(status, fix, run_dir):
    with proxy(to=None) as front:
        front.mode = status
        with pytest.raises(RefusedError, match=fix):
            MlflowSink(front.uri).open(run_dir, None)


def test_media_are_left_out_and_counted_where_the_server_has_no_place_for_them(run_dir, recorder, uri):
    recorder.log(shot=hl.Image(np.zeros((2, 2), np.uint8)), loss=1.0, step=1)
    recorder.flush()
    delivery = deliver(run_dir, MlflowSink(uri, media=False))
    client, run = only_run(uri)
    assert (delivery.progress.state["left_out"], client.list_artifacts(run.info.run_id)) == (1, [])
    assert history(uri, "loss") == [(1, 1.0)]


@pytest.mark.timeout(600)  # a busy machine needs a minute for each start
def test_server_that_fails_in_every_way_and_is_killed_gets_every_row_once(run_dir, recorder, tmp_path):
    port = free_port()
    shutil.copy(empty_database(tmp_path.parent), tmp_path / "server.db")
    steps = iter(range(1, 100))

    def status_after_a_row_while(mode):
        recorder.log(loss=math.inf, score=math.nan, step=next(steps))
        front.mode = mode
        delivery.round()
        front.mode = "pass"
        return delivery.progress.status

    with proxy(to=port) as front:
        delivery = Delivery(run_dir, "mlflow", MlflowSink(front.uri, samples=True, timeout_seconds=60), PACE)
        with server(tmp_path, port):
            recorder.samples([{"prompt": "p", "completion": "ü🐟"}], step=1)
            recorder.log({"val/shot": hl.Image(np.zeros((2, 2), np.uint8))}, step=1)
            recorder.flush()
            for mode, status in MODES.items():
                assert status_after_a_row_while(mode) == status, mode
                assert status_after_a_row_while("pass") == "ok", mode
        assert status_after_a_row_while("pass") == "lagging"
        with server(tmp_path, port):
            assert status_after_a_row_while("pass") == "ok"
            delivery.close(0)
            delivery.run()
            delivered = range(1, next(steps))
            assert history(front.uri, "loss") == [(step, sys.float_info.max) for step in delivered]
            assert [step for step, value in history(front.uri, "score") if math.isnan(value)] == list(delivered)
            client, run = only_run(front.uri)
            assert len(client.list_artifacts(run.info.run_id, "samples")) == 1
            names = [item.path.partition("+")[0] for item in client.list_artifacts(run.info.run_id, "images")]
            assert names == ["images/val~shot"] * 2  # the image and a small version of it, once


class Front(BaseHTTPRequestHandler):
    """Stands before a server, and fails where the test wants it."""

    def forward(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        mode = self.server.mode  # type: ignore[attr-defined]
        if mode == "hanging":
            self.server.done.wait()  # type: ignore[attr-defined]
        elif mode == "pass":
            self._answer(*self._asked(body))
        elif mode == "half_closed" and self.server.to:  # type: ignore[attr-defined]
            self._asked(body)  # it is done, and nobody hears of it
        elif mode in ("error", 401, 403, 404):
            self._answer(500 if mode == "error" else mode, b"no", "text/plain")
        self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = forward

    def _asked(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.to, timeout=60)  # type: ignore[attr-defined]
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers["Content-Type"]
        except OSError:
            return 502, b"", "text/plain"
        finally:
            connection.close()

    def _answer(self, status, body, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind or "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, to):
        super().__init__(("127.0.0.1", 0), Front)
        self.to, self.mode, self.done = to, "pass", threading.Event()
        self.uri = f"http://127.0.0.1:{self.server_port}"

    def verify_request(self, request, address):
        return self.mode != "unreachable"


@contextmanager
def proxy(to):
    with Proxy(to) as front:
        thread = threading.Thread(target=front.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield front
        finally:
            front.done.set()
            front.shutdown()
            thread.join()


@contextmanager
def server(directory, port):
    """A real tracking server, which is killed with all its children at the end."""
    store = ["--backend-store-uri", f"sqlite:///{directory}/server.db", "--artifacts-destination", f"{directory}/kept"]
    command = [sys.executable, "-m", "mlflow", "server", *store, "--host", "127.0.0.1", "--port", str(port)]
    environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
    with (directory / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--workers", "1"], stdout=log, stderr=log, env=environment, cwd=directory, start_new_session=True
        )
    try:
        wait_until(lambda: is_healthy(port), seconds=120)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_healthy(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
