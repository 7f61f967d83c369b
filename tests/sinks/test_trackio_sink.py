"""The sink for trackio: what trackio's API and command find in the database."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from hookline._engine.errors import MissingExtraError, RefusedError
from hookline._record.delivery import Delivery, Pace
from hookline._record.recorder import Recorder
from hookline._record.sink import make_sink
from hookline.sinks.trackio import TrackioSink

PACE = Pace(poll_seconds=0.01, retry_seconds=0.01, longest_seconds=0.05)
FACTS = {"id": "2026-01-02-brave-otter-1", "project": "sums", "started": 1000.5, "host": "h", "user": "ann"}
KILLED = """
import os, signal, sys
from pathlib import Path
from hookline._record.delivery import Delivery
from hookline._record.recorder import Recorder
from hookline.sinks.trackio import TrackioSink

recorder = Recorder(sys.argv[1])
recorder.log(loss=0.5, step=1)
Delivery(Path(sys.argv[1]), "trackio", TrackioSink(directory=sys.argv[2])).round()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def run_dir(tmp_path):
    directory = tmp_path / "runs" / "sums" / FACTS["id"]
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(FACTS | {"config": {"lr": 0.1, "model": {"layers": 2}}}))
    return directory


@pytest.fixture
def recorder(run_dir):
    recorder = Recorder(run_dir)
    yield recorder
    recorder.close()


@pytest.fixture
def place(tmp_path):
    return tmp_path / "trackio"


def deliver(run_dir, sink):
    """One round of a new delivery, as after a start of the program."""
    delivery = Delivery(run_dir, "trackio", sink, PACE)
    delivery.round()
    delivery.close(0)
    delivery.run()
    return delivery


@contextmanager
def trackio_in(directory):
    """Trackio's own storage, looking at a directory, and the one run that it has there."""
    from trackio import Api, sqlite_storage

    before, sqlite_storage.TRACKIO_DIR = sqlite_storage.TRACKIO_DIR, directory
    try:
        (run,) = Api().runs("sums")
        yield sqlite_storage.SQLiteStorage, run
    finally:
        sqlite_storage.TRACKIO_DIR = before


def rows(place):
    """(step, values) of everything logged, by time."""
    with trackio_in(place) as (storage, run):
        found = storage.get_logs("sums", run_id=run.id)
    return [(row.pop("step"), {name: row[name] for name in row if name != "timestamp"}) for row in found]


def test_run_carries_the_project_the_id_and_the_configuration(run_dir, recorder, place):
    recorder.log(loss=0.5, step=1)
    deliver(run_dir, TrackioSink(directory=place))
    with trackio_in(place) as (_, run):
        assert (run.name, run.config["lr"], run.config["model"]) == (FACTS["id"], 0.1, {"layers": 2})
        assert (run.config["_Created"], run.config["_Username"]) == ("1970-01-01T00:16:40.500000+00:00", "ann")


def test_row_has_the_time_and_the_step_of_its_record(run_dir, place):
    recorder = Recorder(run_dir, clock=lambda: 1.25)
    recorder.log(loss=0.5, step=7)
    recorder.close()
    deliver(run_dir, TrackioSink(directory=place))
    with trackio_in(place) as (storage, run):
        expected = [{"loss": 0.5, "step": 7, "timestamp": "1970-01-01T00:00:01.250000+00:00"}]
        assert storage.get_logs("sums", run_id=run.id) == expected


def test_trackios_own_command_finds_the_run(run_dir, recorder, place):
    recorder.log(loss=0.5, step=1)
    deliver(run_dir, TrackioSink(directory=place))
    command = [sys.executable, "-m", "trackio.cli", "list", "runs", "--project", "sums", "--json"]
    done = subprocess.run(command, env=os.environ | {"TRACKIO_DIR": str(place)}, capture_output=True, check=True)
    assert FACTS["id"] in done.stdout.decode()


def test_start_whose_state_was_lost_writes_nothing_twice(run_dir, recorder, place):
    recorder.log(loss=0.5, step=1)
    recorder.samples([{"prompt": "p", "completion": "c"}], step=1)
    deliver(run_dir, TrackioSink(directory=place)).progress.path.unlink()
    deliver(run_dir, TrackioSink(directory=place))
    with trackio_in(place) as (storage, run):
        assert len(storage.get_traces("sums", run_id=run.id)) == 1
    assert [row for row in rows(place) if row[1]] == [(1, {"loss": 0.5})]


def test_database_that_is_gone_is_written_again(run_dir, recorder, place):
    recorder.log(loss=0.5, step=1)
    deliver(run_dir, TrackioSink(directory=place))
    shutil.rmtree(place)
    recorder.log(loss=0.25, step=2)
    deliver(run_dir, TrackioSink(directory=place))
    assert [row for row in rows(place) if row[1]] == [(1, {"loss": 0.5}), (2, {"loss": 0.25})]


def test_resume_takes_out_what_is_done_again(run_dir, recorder, place):
    for step in range(1, 6):
        recorder.log(loss=float(step), step=step)
        recorder.samples([{"prompt": "p", "completion": f"first {step}"}], step=step)
    deliver(run_dir, TrackioSink(directory=place))
    again = Recorder(run_dir)
    again.resume(3)
    again.log(loss=40.0, step=4)
    again.close()
    deliver(run_dir, TrackioSink(directory=place))
    assert [row for row in rows(place) if row[1]] == [
        (1, {"loss": 1.0}),
        (2, {"loss": 2.0}),
        (3, {"loss": 3.0}),
        (4, {"loss": 40.0}),
    ]
    with trackio_in(place) as (storage, run):
        assert sorted(trace["step"] for trace in storage.get_traces("sums", run_id=run.id)) == [1, 2, 3]


def test_resume_of_one_axis_and_writer_leaves_the_others(run_dir, recorder, place):
    rank = Recorder(run_dir, name="rank1")
    for writer, axis in ((recorder, "train"), (recorder, "rollout"), (rank, "rollout")):
        writer.log({axis: 1.0}, step=9, axis=axis)
    rank.close()
    again = Recorder(run_dir)
    again.resume(rollout=3)
    again.close()
    deliver(run_dir, TrackioSink(directory=place))
    assert sorted(name for _, values in rows(place) for name in values) == ["rank1/rollout", "train"]


def test_names_that_trackio_keeps_for_itself_are_kept_apart(run_dir, recorder, place):
    recorder.log({"step": 1.0, "time": 2.0, "__x": 3.0, "loss": 4.0}, step=5)
    deliver(run_dir, TrackioSink(directory=place))
    assert rows(place) == [(5, {"__step": 1.0, "__time": 2.0, "____x": 3.0, "loss": 4.0})]


def test_numbers_that_its_encoder_refuses_are_the_nearest_that_it_takes(run_dir, recorder, place):
    recorder.log(huge=10**400, large=2**70, right=True, step=1)
    assert deliver(run_dir, TrackioSink(directory=place)).progress.status == "ok"
    assert rows(place) == [(1, {"huge": 1e308, "large": float(2**70), "right": 1})]


@pytest.mark.parametrize(("step", "shown"), [(2**65, 2**63 - 1), (-(2**65), 1 - 2**63)])
def test_step_that_its_database_refuses_is_the_nearest_that_it_takes(run_dir, recorder, place, step, shown):
    recorder.log(loss=0.5, step=step)
    recorder.log(loss=0.25, step=1)
    assert deliver(run_dir, TrackioSink(directory=place)).progress.status == "ok"
    assert sorted(rows(place)) == sorted([(shown, {"loss": 0.5}), (1, {"loss": 0.25})])


def test_resume_at_a_step_that_its_database_refuses_continues(run_dir, recorder, place):
    recorder.log(loss=0.5, step=1)
    again = Recorder(run_dir)
    again.resume(2**65)
    again.log(loss=0.25, step=2)
    again.close()
    assert deliver(run_dir, TrackioSink(directory=place)).progress.status == "ok"
    assert rows(place) == [(1, {"loss": 0.5}), (2, {"loss": 0.25})]


def test_sample_is_a_trace_with_its_rewards(run_dir, recorder, place):
    recorder.samples([{"prompt": "2+2", "completion": "4", "rewards": {"right": 1.0}, "seed": 7}], step=3)
    deliver(run_dir, TrackioSink(directory=place))
    with trackio_in(place) as (storage, run):
        (trace,) = storage.get_traces("sums", run_id=run.id)
    said = [(message["role"], message["content"]) for message in trace["messages"]]
    assert (trace["step"], said) == (3, [("user", "2+2"), ("assistant", "4")])
    assert (trace["metadata"]["rewards"], trace["metadata"]["extra"]) == ({"right": 1.0}, {"seed": 7})


def test_samples_are_left_out_when_asked(run_dir, recorder, place):
    recorder.log(loss=0.5, step=1)
    recorder.samples([{"prompt": "p", "completion": "c"}], step=1)
    deliver(run_dir, TrackioSink(directory=place, samples=False))
    with trackio_in(place) as (storage, run):
        assert storage.get_traces("sums", run_id=run.id) == []


def test_what_was_delivered_survives_a_kill(run_dir, place):
    done = subprocess.run([sys.executable, "-c", KILLED, run_dir, place], check=False)
    assert done.returncode == -signal.SIGKILL
    assert rows(place) == [(1, {"loss": 0.5})]


def test_sink_starts_no_thread_and_uses_no_network(run_dir, recorder, place, monkeypatch):
    def connect(*args):
        raise AssertionError(f"connects to {args}")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setenv("TRACKIO_BUCKET_ID", "nobody/nothing")
    before = {*threading.enumerate()}
    recorder.log(loss=0.5, step=1)
    assert deliver(run_dir, TrackioSink(directory=place)).progress.status == "ok"
    assert [t.name for t in {*threading.enumerate()} - before if "hookline" not in t.name] == []


def test_users_own_trackio_keeps_its_directory(run_dir, recorder, place):
    from trackio import sqlite_storage, utils

    before = (sqlite_storage.TRACKIO_DIR, utils.TRACKIO_DIR, os.environ.get("TRACKIO_DIR"))
    recorder.log(loss=0.5, step=1)
    deliver(run_dir, TrackioSink(directory=place))
    assert (sqlite_storage.TRACKIO_DIR, utils.TRACKIO_DIR, os.environ.get("TRACKIO_DIR")) == before
    assert [path.name for path in place.glob("*.db")] == ["sums.db"]


def test_sink_continues_in_the_directory_where_it_began(run_dir, recorder, place):
    state = TrackioSink(directory=place).open(run_dir, None)
    assert TrackioSink().open(run_dir, state) == state


@pytest.mark.parametrize("project", ["registry-x", "model_artifacts"])
def test_project_that_trackio_keeps_for_itself_is_refused(project, run_dir, place):
    with pytest.raises(RefusedError, match="Give the sink another project"):
        TrackioSink(project=project, directory=place).open(run_dir, None)


def test_missing_package_is_an_error_with_the_command(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"hookline\[trackio\]"):
        TrackioSink().check()


def test_sink_from_a_configuration_has_its_settings(tmp_path):
    sink = make_sink({"trackio": {"project": "p", "directory": str(tmp_path), "samples": False}})
    assert (sink.project, sink.directory, sink.samples) == ("p", tmp_path, False)  # type: ignore[attr-defined]
