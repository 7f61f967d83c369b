"""The Prometheus sink: what a scrape and a text file show, read with Prometheus's own parser."""

import importlib.util
import math
import socket
import urllib.request

import pytest
from destinations.prometheus import samples

import hookline as hl
from hookline._engine.errors import MissingExtraError, OptionError
from hookline._record.delivery import Delivery, Pace
from hookline._record.recorder import Recorder
from hookline.sinks import PrometheusSink

PACE = Pace(poll_seconds=0.01, retry_seconds=0.01, longest_seconds=0.05)


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(tmp_path / "run")
    yield recorder
    recorder.close()


@pytest.fixture
def deliver(tmp_path):
    started = []

    def start(sink):
        started.append(Delivery(tmp_path / "run", "prometheus", sink, PACE))
        started[-1].round()
        return started[-1]

    yield start
    for delivery in started:
        finish(delivery)


def finish(delivery):
    delivery.close(0)
    delivery.run()


def scraped(sink):
    with urllib.request.urlopen(sink.address, timeout=10) as answer:
        return samples(answer.read().decode())


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def single(found, name):
    (sample,) = found[name]
    return sample.value


def test_scrape_shows_the_latest_of_each_metric_by_axis(recorder, deliver):
    for step in range(1, 11):
        recorder.log(loss=1.0 / step, step=step)
    recorder.log({"val/loss": 0.5}, step=10, axis="eval")
    sink = PrometheusSink(port=0)
    deliver(sink)
    found = scraped(sink)
    shown = {(s.labels["metric"], s.labels["axis"]): s.value for s in found["hookline_metric"]}
    assert shown == {("loss", "train"): 0.1, ("val/loss", "eval"): 0.5}
    assert {s.labels["axis"]: s.value for s in found["hookline_step"]} == {"train": 10, "eval": 10}


def test_scrape_changes_as_records_come(recorder, deliver):
    sink = PrometheusSink(port=0)
    delivery = deliver(sink)
    assert "hookline_metric" not in scraped(sink)
    recorder.log(loss=2.0, step=1)
    delivery.round()
    assert single(scraped(sink), "hookline_metric") == 2.0


def test_run_is_named_in_the_labels_and_its_status_is_shown(tmp_path):
    sink = PrometheusSink(textfile=tmp_path / "run.prom")
    with hl.run("sft", project="gemma", sinks=[sink], summary=False) as run:
        for _ in run.steps(4):
            run.log(loss=1.0)
    found = samples((tmp_path / "run.prom").read_text())
    (metric,) = found["hookline_metric"]
    labels = {"axis": "train", "metric": "loss", "project": "gemma", "run": run.dir.name, "run_name": "sft"}
    assert metric.labels == labels
    assert {s.labels["status"]: s.value for s in found["hookline_status"]} == {
        "created": 0,
        "failed": 0,
        "finished": 1,
        "running": 0,
        "stopped": 0,
    }
    assert [single(found, f"hookline_{name}") for name in ("num_steps", "progress_ratio")] == [4, 1]


def test_times_tell_life_from_progress(tmp_path):
    now = [1000.0]
    recorder = Recorder(tmp_path / "run", clock=lambda: now[0])
    recorder.status("running", step=0, num_steps=10)
    now[0] = 1010.0
    recorder.log(loss=1.0, step=2)
    recorder.close()
    sink = PrometheusSink(port=0)
    delivery = Delivery(tmp_path / "run", "prometheus", sink, PACE)
    delivery.round()
    found = scraped(sink)
    finish(delivery)
    assert single(found, "hookline_last_progress_timestamp_seconds") == 1010.0
    assert single(found, "hookline_heartbeat_timestamp_seconds") > 1010.0
    assert single(found, "hookline_eta_seconds") == 40.0


def test_events_are_counted(recorder, deliver):
    for name in ("checkpoint", "hook_error", "checkpoint"):
        recorder.event(name)
    sink = PrometheusSink(port=0)
    deliver(sink)
    counts = {s.labels["event"]: s.value for s in scraped(sink)["hookline_events_total"]}
    assert counts == {"checkpoint": 2, "hook_error": 1}


def test_odd_values_are_shown_as_prometheus_has_them_or_left_out(recorder, deliver):
    odd = {
        "nan": math.nan,
        "inf": -math.inf,
        "flag": True,
        "text": "x",
        "none": None,
        'quo"te\n🐟': 1.5,
        "big": 10**400,
    }
    recorder.log(odd, step=1)
    sink = PrometheusSink(port=0)
    deliver(sink)
    shown = {s.labels["metric"]: s.value for s in scraped(sink)["hookline_metric"]}
    assert math.isnan(shown.pop("nan"))
    assert shown == {"inf": -math.inf, "flag": 1.0, 'quo"te\n🐟': 1.5}


def test_reopened_sink_shows_what_it_showed_before(recorder, deliver):
    recorder.log(loss=0.5, bad=math.nan, step=7)
    recorder.event("checkpoint")
    finish(deliver(PrometheusSink(port=0)))
    sink = PrometheusSink(port=0)
    deliver(sink)
    found = scraped(sink)
    shown = {s.labels["metric"]: s.value for s in found["hookline_metric"]}
    assert math.isnan(shown.pop("bad"))
    assert (shown, single(found, "hookline_step"), single(found, "hookline_events_total")) == ({"loss": 0.5}, 7, 1)


def test_port_is_free_again_after_the_end(recorder, deliver):
    port = free_port()
    finish(deliver(PrometheusSink(port)))
    sink = PrometheusSink(port)
    assert deliver(sink).progress.status == "ok"
    assert sink.address == f"http://127.0.0.1:{port}/metrics"


def test_port_that_is_taken_is_a_fault_that_says_what_to_do_and_passes(recorder, deliver):
    sink = PrometheusSink(free_port())
    recorder.log(loss=1.0, step=1)
    with socket.create_server(("127.0.0.1", sink.port)):
        delivery = deliver(sink)
        assert delivery.progress.status == "lagging"
        assert "is in use: give another port, or port=0" in delivery.progress.error
    delivery.round()
    assert single(scraped(sink), "hookline_metric") == 1.0


def test_neither_port_nor_file_given_writes_into_the_run_directory():
    with hl.run(sinks=["prometheus"], summary=False) as run:
        run.log(loss=1.0)
    assert single(samples((run.dir / "metrics.prom").read_text()), "hookline_metric") == 1.0
    assert [path.name for path in run.dir.glob("*.prom*")] == ["metrics.prom"]


def test_port_and_file_can_be_had_together(recorder, deliver, tmp_path):
    recorder.log(loss=1.0, step=1)
    sink = PrometheusSink(port=0, textfile=tmp_path / "deep" / "run.prom", prefix="mine")
    deliver(sink)
    written = samples((tmp_path / "deep" / "run.prom").read_text())
    assert single(scraped(sink), "mine_metric") == single(written, "mine_metric") == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"port": 70000}, "port=70000"), ({"port": -1}, "port=-1"), ({"prefix": "my run"}, "prefix='my run'")],
)
def test_settings_that_cannot_be_are_an_error_when_the_sink_is_made(settings, message):
    with pytest.raises(OptionError, match=message):
        PrometheusSink(**settings)


def test_prometheus_client_not_installed_is_an_error_with_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hookline\[status\]'"):
        PrometheusSink().check()


def test_heartbeat_says_how_far_the_run_is_and_leaves_its_status_alone(recorder, deliver):
    sink = PrometheusSink(port=0)
    recorder.status("running", step=0, num_steps=10)
    recorder.status("heartbeat", step=4)
    deliver(sink)
    found = scraped(sink)
    statuses = {sample.labels["status"]: sample.value for sample in found["hookline_status"]}
    assert (statuses["running"], single(found, "hookline_progress_ratio")) == (1.0, 0.4)
    assert "heartbeat" not in statuses
