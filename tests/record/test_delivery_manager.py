"""DeliveryManager: several sinks, a start that fails early, an end that does not hang, and `sync`."""

import json
import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import wait_until

import hookline as hl
from hookline._record import run_directory
from hookline._record.delivery import Pace
from hookline._record.delivery_manager import DeliveryManager, record_death, sync
from hookline._record.reader import Reader
from hookline._record.recorder import Recorder
from hookline._record.records import Status
from hookline._record.sink import Sink
from hookline.sinks import JsonlSink

PACE = Pace(poll_seconds=0.01, retry_seconds=0.01, longest_seconds=0.05)


@dataclass(eq=False)
class GatedSink(Sink):
    """Waits at given places until the gate is opened."""

    stands_at: str = ""
    name: str | None = None

    def __post_init__(self):
        self.gate, self.steps, self.beats, self.closed = threading.Event(), [], 0, threading.Event()

    def open(self, run_dir, state):
        self._pass("open")
        return state

    def write(self, entries):
        self._pass("write")
        self.steps += [getattr(entry.record, "step", None) for entry in entries]

    def beat(self):
        self.beats += 1

    def close(self):
        self._pass("close")
        self.closed.set()

    def _pass(self, where):
        if where == self.stands_at:
            self.gate.wait()


@dataclass(eq=False)
class SlowlyClosedSink(Sink):
    """Needs some time to bring what it was given to its place, as trackers do."""

    name: str | None = None

    def open(self, run_dir, state):
        self._run_dir, self._was_opened = run_dir, True
        return state

    def write(self, entries):
        return None

    def close(self):
        if hasattr(self, "_was_opened"):
            threading.Event().wait(1.5)
            (self._run_dir / "uploaded").touch()


@dataclass(eq=False)
class RefusingSink(Sink):
    """Refuses when it is opened, or when it is checked."""

    when: str = "open"
    name: str | None = None

    def check(self):
        if self.when == "check":
            raise hl.ConfigError("no such setting")

    def open(self, run_dir, state):
        raise hl.RefusedError("Set API_KEY.")

    def write(self, entries):
        return None


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(tmp_path)
    yield recorder
    recorder.close()


@pytest.fixture
def start(tmp_path):
    """Starts a delivery manager, and closes it with the test."""
    started = []

    def manager(seconds=60.0, **sinks):
        started.append(DeliveryManager(tmp_path, sinks, pace=PACE))
        started[-1].start(seconds)
        return started[-1]

    yield manager
    for each in started:
        for delivery in each.deliveries:
            if isinstance(delivery.sink, GatedSink):
                delivery.sink.gate.set()
        each.close(1.0)


def statuses(run_dir):
    records = (entry.record for entry in Reader(Path(run_dir) / "journal").new())
    return [(record.status, record.step) for record in records if isinstance(record, Status)]


def sink_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("hookline-sink-")]


@pytest.mark.parametrize("where", ["open", "write", "close"])
def test_manager_with_a_hanging_sink_delivers_to_others_and_ends_in_time(recorder, start, tmp_path, where):
    hanging = GatedSink(where)
    manager = start(0.2, hanging=hanging, jsonl=JsonlSink())
    recorder.log(loss=1.0, step=1)
    wait_until(lambda: manager.states()[1].delivered == 1)
    manager.close(0.3)
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 1


def test_manager_start_with_a_hanging_sink_returns_in_time(start):
    began = time.monotonic()
    start(0.2, hanging=GatedSink("open"))
    assert time.monotonic() - began > 0.15


def test_manager_close_delivers_what_is_left(recorder, start):
    sink = GatedSink()
    manager = start(kept=sink)
    for step in range(2000):
        recorder.log(loss=1.0, step=step)
    manager.close(20.0)
    assert sink.steps == list(range(2000))
    assert sink.closed.is_set()


def test_manager_close_again_is_fine(start):
    manager = start(kept=GatedSink())
    manager.close(60.0)
    manager.close(60.0)
    assert sink_threads() == []


def test_manager_start_with_a_refusing_sink_raises_and_stops(recorder, start):
    other = GatedSink()
    with pytest.raises(hl.RefusedError, match="^mine: Set API_KEY.$"):
        start(other=other, mine=RefusingSink())
    wait_until(lambda: not sink_threads())
    recorder.log(loss=1.0, step=1)
    assert other.steps == []


def test_manager_checks_all_sinks_before_it_starts(tmp_path):
    with pytest.raises(hl.ConfigError, match="no such setting"):
        DeliveryManager(tmp_path, {"jsonl": JsonlSink(), "mine": RefusingSink("check")})
    assert not (tmp_path / "sinks").exists()


def test_manager_start_with_an_unreachable_sink_opens_it_later(recorder, start):
    sink = GatedSink()
    faults = [OSError("unreachable")] * 3
    sink.open = lambda run_dir, state: (_ for _ in ()).throw(faults.pop()) if faults else state
    start(mine=sink)
    recorder.log(loss=1.0, step=1)
    wait_until(lambda: sink.steps)
    assert (sink.steps, faults) == ([1], [])


def test_manager_sends_heartbeats_until_stop_beating(recorder, start):
    sink, beats = GatedSink(), []
    manager = start(mine=sink)
    wait_until(lambda: sink.beats > 3)
    manager.stop_beating()
    for step in range(1, 5):  # the first may come in a round that has begun
        recorder.log(loss=1.0, step=step)
        wait_until(lambda step=step: step in sink.steps)
        beats.append(sink.beats)
    assert len(set(beats[1:])) == 1


def test_run_refused_at_the_start_is_recorded_as_failed_and_can_be_started_again(tmp_path):
    with pytest.raises(hl.RefusedError, match="Set API_KEY"), hl.run("r", root=tmp_path, sinks=[RefusingSink()]):
        pass
    (run_dir,) = (tmp_path / "default").iterdir()
    assert statuses(run_dir) == [("failed", None)]
    assert not run_directory.is_alive(run_dir)


def test_run_with_a_sink_that_hangs_ends(tmp_path):
    hanging = GatedSink("write")
    run = hl.run("r", root=tmp_path, sinks=[hanging, "jsonl"], summary=False, drain_seconds=2.0)
    with run:
        for _ in run.steps(5):
            run.log(loss=1.0)
    assert {state.name: state.behind_bytes > 0 for state in run.sinks()} == {"GatedSink": True, "jsonl": False}
    hanging.gate.set()
    wait_until(lambda: not sink_threads())


def dead_run(tmp_path, steps=3):
    """What a killed run leaves: a status that says it runs, rows, and cursors that stand still."""
    DeliveryManager(tmp_path, {"jsonl": JsonlSink()})
    recorder = Recorder(tmp_path)
    recorder.status("running", step=0)
    for step in range(1, steps + 1):
        recorder.log(loss=1.0, step=step)
    recorder.close()


def test_sync_delivers_what_a_dead_run_left_and_records_that_it_failed(tmp_path):
    dead_run(tmp_path)
    seen = []
    (state,) = sync(tmp_path, seconds=20, progress=seen.append)
    assert (state.status, state.behind_bytes, state.delivered) == ("ok", 0, 5)
    assert sorted(statuses(tmp_path)) == [("failed", 3), ("running", 0)]
    last = json.loads((tmp_path / "records.jsonl").read_text().splitlines()[-1])
    assert last["status"] == "failed"


def test_sync_lets_a_sink_finish_what_it_does_at_its_close(tmp_path):
    DeliveryManager(tmp_path, {"slow": SlowlyClosedSink()})
    recorder = Recorder(tmp_path)
    recorder.log(loss=1.0, step=1)
    recorder.close()
    sync(tmp_path, seconds=20, progress=lambda states: None)
    assert (tmp_path / "uploaded").exists()


def test_sync_of_a_refusing_sink_still_delivers_to_the_others(tmp_path):
    DeliveryManager(tmp_path, {"jsonl": JsonlSink(), "mine": RefusingSink()})
    recorder = Recorder(tmp_path)
    recorder.log(loss=1.0, step=1)
    recorder.close()
    states = {state.name: state for state in sync(tmp_path, seconds=1.5, progress=lambda states: None)}
    assert (states["jsonl"].behind_bytes, states["mine"].status) == (0, "refused")


def test_note_death_twice_is_one_record(tmp_path):
    dead_run(tmp_path)
    assert [record_death(tmp_path), record_death(tmp_path)] == [True, False]
    assert [status for status, _ in statuses(tmp_path)].count("failed") == 1


def test_note_death_after_a_resume_that_died_too_is_another_record(tmp_path):
    dead_run(tmp_path)
    record_death(tmp_path)
    recorder = Recorder(tmp_path)
    recorder.status("running", step=3)
    recorder.close()
    assert record_death(tmp_path)


@pytest.mark.parametrize("word", ["finished", "failed", "stopped"])
def test_note_death_of_a_run_that_said_how_it_ended_records_nothing(tmp_path, word):
    recorder = Recorder(tmp_path)
    recorder.status("running")
    recorder.status(word)
    recorder.close()
    assert not record_death(tmp_path)


def test_note_death_of_a_living_run_records_nothing(tmp_path):
    dead_run(tmp_path)
    run_directory.acquire(tmp_path)
    try:
        assert not record_death(tmp_path)
    finally:
        run_directory.release(tmp_path)


def test_note_death_before_the_first_step_is_recorded_too(tmp_path):
    directory = run_directory.create(tmp_path, "p", {"name": "n"})
    recorder = Recorder(directory)
    recorder.line("INFO", "me", "loading the model")
    recorder.close()
    assert record_death(directory)


def test_manager_logs_nothing_if_all_goes_well(recorder, start, caplog):
    caplog.set_level(logging.INFO, "hookline")
    manager = start(kept=GatedSink())
    recorder.log(loss=1.0, step=1)
    manager.close(5.0)
    assert caplog.records == []
