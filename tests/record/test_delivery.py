"""Delivery: cursors that are exact, faults that pass, and one deliverer at a time."""

import asyncio
import contextlib
import csv
import json
import logging
import math
import random
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from dataclasses import dataclass

import pytest
from waiting import wait_until

import hookline as hl
from hookline._record import files
from hookline._record.delivery import Delivery, Pace, Progress, sink_states
from hookline._record.recorder import Recorder
from hookline._record.sink import Sink
from hookline.sinks import CsvSink, JsonlSink

PACE = Pace(poll_seconds=0.0, retry_seconds=1.0, longest_seconds=30.0, jitter=lambda: 1.0)


@dataclass(eq=False)
class KeptSink(Sink):
    """Keeps what it receives, and raises what it is given."""

    setting: int = 0
    name: str | None = None

    def __post_init__(self):
        self.reported, self.steps, self.errors = [], [], []

    def open(self, run_dir, state):
        self.reported.append(("open", state))
        return state or 0

    def write(self, entries):
        steps = [getattr(entry.record, "step", None) for entry in entries]
        self.reported.append(("write", steps))
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        self.steps += steps
        return len(self.steps)

    def close(self):
        self.reported.append("close")


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(tmp_path)
    yield recorder
    recorder.close()


def log(recorder, steps):
    for step in steps:
        recorder.log(loss=float(step), step=step)


def finish(delivery):
    delivery.close(0)
    delivery.run()


def die(delivery):
    """What is left when its process is killed: the files, and no lock."""
    delivery.sink.close()
    files.release_lock(delivery._lock)


def csv_steps(tmp_path):
    with (tmp_path / "metrics.csv").open(newline="") as file:
        return [int(row["step"]) for row in csv.DictReader(file, strict=True)]


def messages(caplog):
    return [(record.levelno, record.getMessage()) for record in caplog.records]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own for the cursors, which can be filled."""
    folder = tmp_path / "sinks"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system cannot be mounted: not root")

    def fill():
        with (folder / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(b"x" * 512)

    yield fill
    subprocess.run(["umount", "-l", folder], check=True)


def test_delivery_brings_what_is_new_each_round_in_order(recorder, tmp_path):
    delivery = Delivery(tmp_path, "kept", KeptSink(), PACE)
    log(recorder, [1, 2])
    delivery.round()
    log(recorder, [3])
    delivery.round()
    assert delivery.sink.reported == ["close", ("open", None), ("write", [1, 2]), ("write", [3])]  # type: ignore[attr-defined]
    assert (delivery.progress.delivered, delivery.is_done()) == (3, True)


def test_delivery_state_of_open_is_saved_before_anything_is_written(recorder, tmp_path):
    log(recorder, [1])
    sink = KeptSink()
    sink.errors = [OSError("no")]
    delivery = Delivery(tmp_path, "kept", sink, PACE)
    delivery.round()
    assert json.loads(delivery.progress.path.read_text())["state"] == 0


def test_delivery_batch_that_failed_comes_again_behind_a_close_and_an_open(recorder, tmp_path):
    log(recorder, [1, 2])
    sink = KeptSink()
    sink.errors = [None, OSError("no")]
    delivery = Delivery(tmp_path, "kept", sink, PACE)
    delivery.round()
    log(recorder, [3])
    delivery.round()
    log(recorder, [4])
    delivery.round()
    assert sink.reported[2:] == [("write", [1, 2]), ("write", [3]), "close", ("open", 2), ("write", [3, 4])]
    assert sink.steps == [1, 2, 3, 4]


def test_delivery_next_process_continues_from_cursor_and_state(recorder, tmp_path):
    log(recorder, [1, 2])
    first = Delivery(tmp_path, "kept", KeptSink(), PACE)
    first.round()
    die(first)
    log(recorder, [3])
    second = Delivery(tmp_path, "kept", KeptSink(), PACE)
    second.round()
    assert second.sink.reported[1:] == [("open", 2), ("write", [3])]  # type: ignore[attr-defined]


def test_delivery_of_a_sink_with_other_settings_starts_over(recorder, tmp_path):
    log(recorder, [1, 2])
    finish(Delivery(tmp_path, "kept", KeptSink(), PACE))
    other = Delivery(tmp_path, "kept", KeptSink(setting=1), PACE)
    other.round()
    assert other.sink.reported[1:] == [("open", None), ("write", [1, 2])]  # type: ignore[attr-defined]
    assert sink_states(tmp_path)[0].spec["with"] == {"setting": 1}


def test_delivery_resume_mark_comes_alone(tmp_path):
    for start in (0, 3):
        recorder = Recorder(tmp_path)
        recorder.resume(start)
        log(recorder, [start + 1, start + 2])
        recorder.close()
    delivery = Delivery(tmp_path, "kept", KeptSink(), PACE)
    delivery.round()
    assert [reported[1] for reported in delivery.sink.reported[2:]] == [[None], [1, 2], [None], [4, 5]]  # type: ignore[attr-defined]


def test_delivery_batches_hold_so_many_records_at_most(recorder, tmp_path):
    log(recorder, range(1201))
    delivery = Delivery(tmp_path, "kept", KeptSink(), PACE)
    delivery.round()
    assert [len(reported[1]) for reported in delivery.sink.reported[2:]] == [500, 500, 201]  # type: ignore[attr-defined]


def test_delivery_of_large_samples_takes_little_memory(recorder, tmp_path):
    for step in range(400):
        recorder.samples([{"prompt": "p" * 60_000, "completion": "c" * 60_000}], step)
    delivery = Delivery(tmp_path, "kept", KeptSink(), PACE)
    tracemalloc.start()
    delivery.round()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert delivery.sink.steps == list(range(400))  # type: ignore[attr-defined]
    assert peak < 12 << 20  # of 48 MB


@pytest.mark.parametrize(("faults", "seconds"), [(1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (10_000, 30.0)])
def test_pace_waits_double_up_to_a_limit(faults, seconds):
    assert Pace(jitter=lambda: 1.0).after(faults) == seconds
    assert Pace(jitter=lambda: 0.0).after(faults) == seconds / 2


def test_pace_jitter_leaves_the_global_random_state_alone():
    state = random.getstate()
    waits = {Pace().after(1) for _ in range(10)}
    assert len(waits) > 1
    assert random.getstate() == state


def test_delivery_waits_longer_after_each_fault_and_starts_over_after_a_success(recorder, tmp_path):
    log(recorder, [1])
    sink = KeptSink()
    sink.errors = [OSError("no")] * 4
    delivery = Delivery(tmp_path, "kept", sink, PACE)
    waits = [delivery.round() for _ in range(5)]
    sink.errors = [OSError("no")]
    log(recorder, [2])
    assert [*waits, delivery.round()] == [1.0, 2.0, 4.0, 8.0, 0.0, 1.0]


def test_delivery_says_once_when_a_sink_begins_and_ceases_to_lag(recorder, tmp_path, caplog):
    log(recorder, [1])
    sink = KeptSink()
    sink.errors = [OSError("no"), OSError("still no"), OSError("no")]
    delivery = Delivery(tmp_path, "kept", sink, PACE)
    states = []
    for _ in range(4):
        delivery.round()
        states.append((sink_states(tmp_path)[0].status, sink_states(tmp_path)[0].error))
    assert states == [
        ("lagging", "OSError: no"),
        ("lagging", "OSError: still no"),
        ("lagging", "OSError: no"),
        ("ok", ""),
    ]
    assert messages(caplog) == [
        (logging.WARNING, "kept lags: OSError: no. Its records are kept and delivered later."),
        (logging.WARNING, "kept accepts records again."),
    ]


def test_delivery_refused_is_reported_once_as_an_error_and_tried_now_and_then(recorder, tmp_path, caplog):
    log(recorder, [1])
    sink = KeptSink()
    sink.errors = [hl.RefusedError("Give another key.")] * 3
    delivery = Delivery(tmp_path, "kept", sink, PACE)
    assert [delivery.round() for _ in range(4)] == [30.0, 30.0, 30.0, 0.0]
    assert messages(caplog) == [
        (
            logging.ERROR,
            "kept refuses: Give another key. Records are kept, and delivery is retried.",
        ),
        (logging.WARNING, "kept accepts records again."),
    ]


def test_delivery_states_survive_the_process(recorder, tmp_path):
    log(recorder, [1])
    sink = KeptSink()
    sink.errors = [hl.RefusedError("Give another key.")]
    Delivery(tmp_path, "kept", sink, PACE).round()
    (state,) = sink_states(tmp_path)
    assert (state.name, state.status, state.delivered, state.error) == ("kept", "refused", 0, "Give another key.")
    assert state.behind_bytes > 0


def test_delivery_beats_when_there_is_news_and_when_there_is_none(recorder, tmp_path):
    sink = KeptSink()
    beats = []
    sink.beat = lambda: beats.append(len(sink.steps))
    delivery = Delivery(tmp_path, "kept", sink, PACE)
    delivery.round()
    log(recorder, [1])
    delivery.round()
    delivery.beats = False
    delivery.round()
    assert beats == [0, 1]


def test_delivery_sink_that_cannot_be_closed_is_opened_again_all_the_same(recorder, tmp_path):
    log(recorder, [1])
    sink = KeptSink()
    sink.errors = [OSError("no")]
    sink.close = lambda: 1 / 0
    delivery = Delivery(tmp_path, "kept", sink, PACE)
    delivery.round()
    delivery.round()
    assert sink.steps == [1]


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
def test_delivery_sink_that_exits_lags_and_its_thread_lives(recorder, tmp_path, error):
    log(recorder, [1])
    sink = KeptSink()
    sink.errors = [error]
    delivery = Delivery(tmp_path, "kept", sink, Pace(poll_seconds=0.01, retry_seconds=0.01))
    thread = threading.Thread(target=delivery.run)
    thread.start()
    wait_until(lambda: sink.steps or not thread.is_alive())
    delivery.close(1.0)
    thread.join()
    assert sink.steps == [1]


@pytest.mark.parametrize("state", [object(), {1, 2}, float("nan"), b"bytes"])
def test_delivery_state_that_json_cannot_hold_does_not_end_it(recorder, tmp_path, state):
    log(recorder, [1])
    sink = KeptSink()
    sink.open = lambda run_dir, saved: None
    sink.write = lambda entries: state
    delivery = Delivery(tmp_path, "kept", sink, PACE)
    delivery.round()
    delivery.round()
    assert json.loads(delivery.progress.path.read_text(), parse_constant=pytest.fail)["delivered"] >= 0


def test_delivery_line_at_the_end_that_is_no_record_is_passed_by(recorder, tmp_path):
    log(recorder, [1])
    recorder.journal.append(b'{"kind":"of another version"}')
    delivery = Delivery(tmp_path, "kept", KeptSink(), PACE)
    delivery.round()
    assert delivery.is_done()
    assert sink_states(tmp_path)[0].behind_bytes == 0


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}"])
def test_delivery_cursor_file_that_cannot_be_read_means_from_the_beginning(recorder, tmp_path, text):
    log(recorder, [1, 2])
    finish(Delivery(tmp_path, "csv", CsvSink(), PACE))
    (tmp_path / "sinks" / "csv.json").write_text(text)
    delivery = Delivery(tmp_path, "csv", CsvSink(), PACE)
    delivery.round()
    finish(delivery)
    assert csv_steps(tmp_path) == [1, 2]


def test_delivery_passes_finished_segments_and_keeps_a_small_cursor(tmp_path):
    recorder = Recorder(tmp_path, segment_bytes=4096)
    log(recorder, range(2000))
    delivery = Delivery(tmp_path, "kept", KeptSink(), PACE)
    delivery.round()
    log(recorder, range(2000, 2100))
    delivery.round()
    recorder.close()
    assert len(list((tmp_path / "journal").glob("*.jsonl"))) > 30
    assert delivery.sink.steps == list(range(2100))  # type: ignore[attr-defined]
    assert delivery.progress.path.stat().st_size < 500
    assert len(delivery.progress.cursor.places) == 1
    assert delivery.is_done()


def test_delivery_full_disk_for_the_cursor_is_reported_once_and_healed(recorder, tmp_path, small_disk, caplog):
    delivery = Delivery(tmp_path, "kept", KeptSink(), PACE)
    delivery.round()
    small_disk()
    for step in (1, 2, 3):
        log(recorder, [step])
        delivery.round()
    (tmp_path / "sinks" / "ballast").unlink()
    log(recorder, [4])
    for _ in range(2):
        delivery.round()
    assert delivery.sink.steps == [1, 2, 3, 4]  # type: ignore[attr-defined]
    assert json.loads(delivery.progress.path.read_text())["delivered"] == 4
    assert sum("No space left" in message for _, message in messages(caplog)) == 1


def test_delivery_full_disk_for_the_cursor_at_the_start_does_not_end_the_training(recorder, tmp_path, small_disk):
    small_disk()
    log(recorder, [1])
    delivery = Delivery(tmp_path, "kept", KeptSink(), PACE)
    delivery.round()
    (tmp_path / "sinks" / "ballast").unlink()
    delivery.round()
    assert delivery.sink.steps == [1]  # type: ignore[attr-defined]


def session(tmp_path, *, resume=None, rows=(), text=""):
    recorder = Recorder(tmp_path, clock=lambda: 1.0)
    if resume is not None:
        recorder.resume(resume)
    for step in rows:
        recorder.log({"text": text, "loss": 1.0}, step=step)
    recorder.close()


@pytest.mark.parametrize("length", range(20))
def test_delivery_killed_while_the_cursor_cannot_be_saved_leaves_an_exact_table(tmp_path, small_disk, length):
    session(tmp_path, rows=range(1, 31))
    delivery = Delivery(tmp_path, "csv", CsvSink(), PACE)
    delivery.round()
    small_disk()
    session(tmp_path, resume=12, rows=range(13, 90), text="x" * length)
    delivery.round()
    die(delivery)
    (tmp_path / "sinks" / "ballast").unlink()
    again = Delivery(tmp_path, "csv", CsvSink(), PACE)
    again.round()
    finish(again)
    assert csv_steps(tmp_path) == list(range(1, 90))


def test_delivery_second_one_waits_for_the_first(recorder, tmp_path):
    log(recorder, [1])
    first = Delivery(tmp_path, "kept", KeptSink(), PACE)
    first.round()
    second = Delivery(tmp_path, "kept", KeptSink(), PACE)
    log(recorder, [2])
    second.round()
    assert (second.sink.steps, second.progress.status) == ([], "lagging")  # type: ignore[attr-defined]
    assert "another process" in second.progress.error
    first.round()
    finish(first)
    second.round()
    assert second.progress.status == "ok"


def test_delivery_that_waits_for_another_leaves_the_others_cursor_alone(recorder, tmp_path):
    log(recorder, [1])
    first = Delivery(tmp_path, "kept", KeptSink(), PACE)
    second = Delivery(tmp_path, "kept", KeptSink(), PACE)
    first.round()
    before = first.progress.path.read_text()
    second.round()
    Delivery(tmp_path, "kept", KeptSink(), PACE)
    assert first.progress.path.read_text() == before


def test_delivery_that_waited_for_another_continues_where_that_one_ended(recorder, tmp_path):
    log(recorder, [1])
    first = Delivery(tmp_path, "kept", KeptSink(), PACE)
    first.round()
    second = Delivery(tmp_path, "kept", KeptSink(), PACE)
    second.round()
    log(recorder, [2, 3])
    first.round()
    finish(first)
    log(recorder, [4])
    second.round()
    assert second.sink.steps == [4]  # type: ignore[attr-defined]


@pytest.mark.parametrize("length", range(20))
def test_delivery_table_of_two_deliverers_and_a_resume_between_them_is_exact(tmp_path, length):
    session(tmp_path, rows=range(1, 31))
    first = Delivery(tmp_path, "csv", CsvSink(), PACE)
    first.round()
    second = Delivery(tmp_path, "csv", CsvSink(), PACE)
    second.round()
    session(tmp_path, resume=12, rows=range(13, 90), text="x" * length)
    first.round()
    finish(first)
    second.round()
    finish(second)
    assert csv_steps(tmp_path) == list(range(1, 90))


def test_delivery_by_two_processes_at_once_brings_every_row_once(recorder, tmp_path):
    log(recorder, range(3000))
    code = """
        import sys
        from pathlib import Path
        from hookline._record.delivery import Delivery, Pace
        from hookline.sinks import JsonlSink

        JsonlSink.batch_records = 7
        delivery = Delivery(Path(sys.argv[1]), "jsonl", JsonlSink(), Pace(0.001, 0.001, 0.01))
        delivery.close(60)
        delivery.run()
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    for process in [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(3)]:
        assert process.wait(120) == 0
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(3000))


KILLER = """
    import os, random, signal, sys, time
    from pathlib import Path
    from hookline._record.delivery import Delivery
    from hookline._record.recorder import Recorder
    from hookline.sinks import CsvSink, JsonlSink

    run_dir, rng = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    CsvSink.batch_records = JsonlSink.batch_records = 20

    def deliver():
        sinks = {"csv": CsvSink(), "jsonl": JsonlSink(kinds=("metrics",))}
        deliveries = [Delivery(run_dir, name, sink) for name, sink in sinks.items()]
        while not all(delivery.is_done() for delivery in deliveries):
            for delivery in deliveries:
                delivery.round()
        os._exit(0)

    def killed_after(seconds):
        child = os.fork()
        if child == 0:
            deliver()
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1] != 0

    kills, step = 0, 0
    for session in range(30):
        recorder = Recorder(run_dir, segment_bytes=8192)
        step = max(0, step - rng.randrange(30))
        recorder.resume(step)
        for _ in range(100):
            step += 1
            recorder.log({"loss": 1 / step, f"late{step // 150}": float(step), "text": "x,\\n" * (step % 5)}, step=step)
        kills += killed_after(rng.uniform(0.0, 0.03))
        recorder.close()
    while killed_after(rng.uniform(0.01, 0.5 + kills / 100)):  # longer and longer, so that it ends on a busy machine
        kills += 1
    print(kills, step)
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_delivery_killed_at_any_moment_brings_every_row_once(tmp_path, seed):
    command = [sys.executable, "-c", textwrap.dedent(KILLER), str(tmp_path), str(seed)]
    kills, last = map(int, subprocess.run(command, capture_output=True, check=True, text=True).stdout.split())
    assert kills > 15
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    assert [int(row["step"]) for row in rows] == list(range(1, last + 1))
    assert all(row[f"late{int(row['step']) // 150}"] == f"{float(row['step'])}" for row in rows)
    lines = [json.loads(line)["step"] for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    written = [record.step for record in everything(tmp_path)]
    assert lines == written


def everything(tmp_path):
    """All rows ever written, also those that a resume made obsolete."""
    from hookline._record.reader import Reader
    from hookline._record.records import Metrics

    return [entry.record for entry in Reader(tmp_path / "journal").new() if isinstance(entry.record, Metrics)]


def test_progress_that_was_saved_is_loaded_as_it_was(tmp_path):
    progress = Progress(
        tmp_path / "x.json", {"use": "csv"}, state={"rows": 3}, delivered=7, status="lagging", error="e"
    )
    progress.cursor.places["main-0000-1-abc"] = (2, 77)
    progress.save()
    assert Progress.load(tmp_path / "x.json", {"use": "csv"}) == progress
    assert Progress.load(tmp_path / "x.json", {"use": "jsonl"}).cursor.places == {}
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_delivery_of_not_a_number_reaches_the_sink_as_a_float(recorder, tmp_path):
    recorder.log(loss=math.nan, step=1)
    values = []
    sink = KeptSink()
    sink.write = lambda entries: values.extend(entry.record.values["loss"] for entry in entries)
    Delivery(tmp_path, "kept", sink, PACE).round()
    assert math.isnan(values[0])


def test_delivery_of_many_writers_brings_each_ones_rows_in_order(tmp_path):
    recorders = [Recorder(tmp_path, name=name) for name in ("main", "rank1", "rank2")]
    delivery = Delivery(tmp_path, "jsonl", JsonlSink(), PACE)
    for step in range(50):
        for recorder in recorders:
            recorder.log(loss=1.0, step=step)
        delivery.round()
    for recorder in recorders:
        recorder.close()
    finish(delivery)
    steps = [json.loads(line)["step"] for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert steps == [step for step in range(50) for _ in recorders]


@pytest.mark.parametrize(("sink", "file"), [(CsvSink, "metrics.csv"), (JsonlSink, "records.jsonl")])
def test_line_with_a_flipped_bit_costs_that_line_in_a_sink(tmp_path, sink, file):
    recorder = Recorder(tmp_path)
    for step in range(4):
        recorder.log(loss=step + 0.5, step=step)
    recorder.close()
    (journal,) = (tmp_path / "journal").glob("*.jsonl")
    journal.write_bytes(journal.read_bytes().replace(b'"loss":1.5', b'"loss":1.4'))
    delivery = Delivery(tmp_path, "table", sink(), PACE)
    delivery.round()
    delivery.close(0)
    delivery.run()
    lines = (tmp_path / file).read_text().splitlines()
    rows = csv.DictReader(lines) if sink is CsvSink else (json.loads(line)["values"] for line in lines)
    assert [float(row["loss"]) for row in rows] == [0.5, 2.5, 3.5]
