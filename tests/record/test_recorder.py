"""Recorder, read and follow."""

import errno
import fcntl
import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

import hookline as hl
from hookline._record.reader import Cursor, Reader, last_status
from hookline._record.records import Event, Metrics, Sample, Status


def recorded(run_dir, **options):
    return hl.Recorder(run_dir, clock=lambda: 1.0, **options)


def test_recorder_metrics_come_back_as_they_were(tmp_path):
    recorder = recorded(tmp_path)
    recorder.log({"loss": 0.5, "grad": {"norm": 2.0}}, step=3)
    recorder.log(reward=1, step=4, axis="rollout")
    recorder.close()
    assert list(hl.read(tmp_path)) == [
        Metrics(time=1.0, step=3, values={"loss": 0.5, "grad/norm": 2.0}),
        Metrics(time=1.0, step=4, values={"reward": 1}, axis="rollout"),
    ]


@pytest.mark.parametrize(
    "value",
    [
        math.inf,
        -math.inf,
        None,
        1e308,
        5e-324,
        -0.0,
        2**63,
        2**70,
        True,
        "😀",
        "a\0b",
        "line\nbreak",
        '"quoted"',
        "null",
        "{[",
        "",
    ],
)
def test_recorder_values_round_trip(tmp_path, value):
    recorder = recorded(tmp_path)
    recorder.log({"value": value, "other": 1.5}, step=1)
    recorder.close()
    (record,) = hl.read(tmp_path)
    assert record.values == {"value": value, "other": 1.5}
    assert type(record.values["value"]) is type(value)


def test_recorder_nan_comes_back_as_nan_and_a_lone_surrogate_is_replaced(tmp_path):
    recorder = recorded(tmp_path)
    recorder.log({"nan": math.nan, "text": "a\ud800b", "nested": {"deep": math.nan}}, step=1)
    recorder.close()
    (record,) = hl.read(tmp_path)
    assert math.isnan(record.values["nan"])
    assert math.isnan(record.values["nested/deep"])
    assert record.values["text"] == "a?b"


def test_recorder_numpy_and_tensors_are_plain_numbers(tmp_path, torch):
    import numpy as np

    recorder = recorded(tmp_path)
    recorder.log({"a": np.float32(0.5), "b": np.int64(3), "c": torch.tensor(2.5), "d": np.float64("nan")}, step=1)
    recorder.close()
    (record,) = hl.read(tmp_path)
    assert [record.values[key] for key in "abc"] == [0.5, 3, 2.5]
    assert math.isnan(record.values["d"])


def test_recorder_of_something_else_is_an_error_naming_the_key(tmp_path):
    recorder = recorded(tmp_path)
    with pytest.raises(hl.OptionError, match="'model' is an object"):
        recorder.log({"loss": 1.0, "model": object()}, step=1)
    recorder.close()
    assert list(hl.read(tmp_path)) == []


def test_recorder_samples_keep_what_is_known_and_what_is_not(tmp_path):
    recorder = recorded(tmp_path)
    row = {"prompt": "2+2", "completion": "4", "rewards": {"exact": 1.0, "style": math.nan}, "total": 1.0, "seed": 7}
    recorder.samples([row, {"completion": "5", "lesson": "sums", "group": "g1", "axis": "eval"}], step=9)
    recorder.close()
    first, second = hl.read(tmp_path)
    assert (first.prompt, first.completion, first.total, first.extra) == ("2+2", "4", 1.0, {"seed": 7})
    assert math.isnan(first.rewards["style"])
    assert (second.step, second.lesson, second.group, second.axis) == (9, "sums", "g1", "eval")


@pytest.mark.parametrize(
    ("change", "prompt", "timings"),
    [
        ({}, "3141>", {"generate": 0.5, "score": 2}),
        ({"prompt": "token=3c5d7a9b1e2f4a6c"}, "token=[redacted]", {"generate": 0.5, "score": 2}),
        ({"timings": {"generate": math.inf}}, "3141>", {}),
        ({"timings": {3: 0.5}}, "3141>", {}),
    ],
    ids=["plain", "secret", "infinite", "no name"],
)
def test_recorder_sample_of_a_rollout_is_the_same_with_and_without_a_closer_look(change, prompt, timings, tmp_path):
    row = {"prompt": "3141>", "completion": "1134", "rewards": {"correct": 1.0}, "total": 1.0, "advantage": -0.5}
    row |= {"rollout": "0-1-0", "episode": "0-1-0", "finish": "stop", "timings": {"generate": 0.5, "score": 2}}
    samples = []
    for name, redact in (("quick", None), ("close", lambda text: text)):
        recorder = recorded(tmp_path / name, redact=redact)
        recorder.samples([row | change], step=1)
        recorder.close()
        samples += [msgspec.structs.replace(sample, time=0.0) for sample in hl.read(tmp_path / name)]
    assert samples[0] == samples[1]
    assert (samples[0].prompt, samples[0].timings, samples[0].extra["episode"]) == (prompt, timings, "0-1-0")


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"step": 1 << 70}, {"step": 1 << 70}),
        ({"axis": "eval", "step": 4}, {"axis": "eval", "step": 4}),
        ({"note": "another field"}, {"extra": {"note": "another field"}}),
        ({"completion": "password='hunter22'"}, {"completion": "password='[redacted]'"}),
        ({"completion": "c" * 40}, {"completion": "c" * 32, "truncated": {"completion": 40}}),
        ({"rewards": {"exact": math.inf}}, {"rewards": {"exact": math.inf}}),
        ({"total": True}, {"total": True}),
        ({"expected": "\ud800"}, {"expected": "?"}),
    ],
    ids=["huge step", "axis", "field", "secret", "long", "infinite", "bool", "surrogate"],
)
def test_recorder_samples_beside_one_that_needs_a_closer_look_are_all_recorded_in_order(change, shown, tmp_path):
    recorder = recorded(tmp_path, text_bytes=32)
    rows = [{"completion": str(number), "expected": "7", "rewards": {"exact": 1.0}} for number in range(5)]
    recorder.samples([*rows[:2], rows[2] | change, *rows[3:]], step=3)
    recorder.close()
    samples = list(hl.read(tmp_path))
    usual = [Sample(time=1.0, step=3, **row) for row in rows]
    assert samples == [*usual[:2], msgspec.structs.replace(usual[2], **shown), *usual[3:]]


def test_recorder_long_texts_are_cut_and_marked(tmp_path):
    recorder = recorded(tmp_path, text_bytes=10)
    recorder.samples([{"prompt": "short", "completion": "é" * 5_000_000, "note": "n" * 11}], step=1)
    recorder.close()
    (sample,) = hl.read(tmp_path)
    assert (sample.prompt, sample.completion, sample.extra["note"]) == ("short", "é" * 5, "n" * 10)
    assert sample.truncated == {"completion": 10_000_000, "extra.note": 11}


def test_recorder_redacts_texts(tmp_path):
    recorder = recorded(tmp_path, redact=lambda text: text.replace("secret", "***"))
    recorder.samples([{"prompt": "my secret", "completion": "a secret too"}], step=1)
    recorder.line("INFO", "train", "the secret is out")
    recorder.close()
    sample, line = hl.read(tmp_path)
    assert (sample.prompt, sample.completion, line.message) == ("my ***", "a *** too", "the *** is out")


def test_recorder_status_events_rewards_and_lines(tmp_path):
    recorder = recorded(tmp_path)
    recorder.status("running", "step 3 of 10", step=3, progress=0.3)
    recorder.event("checkpoint", step=3, path="step-3", loss=math.inf)
    recorder.rewards("exact", [1.0, None, math.nan], ["a", "b", "c"], step=3)
    recorder.close()
    status, event, rewards = hl.read(tmp_path)
    assert status == Status(time=1.0, status="running", message="step 3 of 10", step=3, data={"progress": 0.3})
    assert event == Event(time=1.0, name="checkpoint", step=3, data={"path": "step-3", "loss": math.inf})
    assert (rewards.name, rewards.values[:2], rewards.samples) == ("exact", [1.0, None], ["a", "b", "c"])  # type: ignore[index]


def test_read_after_resumes_has_no_duplicate_and_no_gap(tmp_path):
    for session, (start, end) in enumerate([(0, 10), (6, 12), (9, 11), (9, 20)]):
        recorder = recorded(tmp_path)
        recorder.resume(train=start, eval=start)
        for step in range(start + 1, end + 1):
            recorder.log(loss=session, step=step)
        recorder.log(accuracy=session, step=end, axis="eval")
        recorder.close()
    rows = [r for r in hl.read(tmp_path) if isinstance(r, Metrics)]
    train = {r.step: r.values["loss"] for r in rows if r.axis == "train"}
    assert len([r for r in rows if r.axis == "train"]) == 20
    assert [train[step] for step in range(1, 21)] == [0] * 6 + [1] * 3 + [3] * 11
    assert [(r.step, r.values["accuracy"]) for r in rows if r.axis == "eval"] == [(20, 3)]


def test_read_of_an_evaluation_done_again_in_part_keeps_the_names_that_were_not(tmp_path):
    times = itertools.count(1.0)
    for name in ("main", "rank1"):
        for values in ({"acc": 0.5, "ppl": 5.0}, {"acc": 0.7}, {"acc": 0.9, "f1": 0.1}):
            recorder = hl.Recorder(tmp_path, name=name, clock=lambda: next(times))
            recorder.log(values, step=5, axis="eval")
            recorder.close()
    assert [(record.step, record.values) for record in hl.read(tmp_path)] == [
        (5, {"ppl": 5.0}),
        (5, {"acc": 0.9, "f1": 0.1}),
        (5, {"rank1/ppl": 5.0}),
        (5, {"rank1/acc": 0.9, "rank1/f1": 0.1}),
    ]


def test_read_merges_writers_by_time_and_resumes_concern_their_own_writer(tmp_path):
    times = iter(range(100))
    for name in ("rank0", "rank1"):
        recorder = hl.Recorder(tmp_path, name=name, clock=lambda: float(next(times)))
        recorder.log(loss=1, step=5)
        recorder.close()
    again = hl.Recorder(tmp_path, name="rank0", clock=lambda: float(next(times)))
    again.resume(train=2)
    again.close()
    assert [(type(r).__name__, r.time) for r in hl.read(tmp_path)] == [("Metrics", 1.0), ("Event", 2.0)]


def test_floats_that_are_not_finite_come_back_from_lists_at_any_depth(tmp_path):
    odd = [-math.inf, 1, [math.inf, "text"], {"inner": [[math.inf], None]}]
    recorder = recorded(tmp_path)
    recorder.samples([{"prompt": "p", "completion": "c", "logprobs": [-0.5, -math.inf]}], step=1)
    recorder.event("eval", odd=odd)
    recorder.status("running", odd=odd)
    recorder.rewards("r", [math.inf, 1.0], step=1)
    recorder.close()
    sample, event, status, rewards = hl.read(tmp_path)
    assert (sample.extra, rewards.values) == ({"logprobs": [-0.5, -math.inf]}, [math.inf, 1.0])
    assert event.data == status.data == {"odd": odd}


def test_follow_gives_records_as_they_come_until_the_run_ends(tmp_path):
    recorder = recorded(tmp_path)
    recorder.log(loss=0, step=0)
    more = iter([lambda: recorder.log(loss=1, step=1), lambda: recorder.status("finished")])
    seen = [getattr(r, "step", None) for r in hl.follow(tmp_path, sleep=lambda seconds: next(more)())]
    recorder.close()
    assert seen == [0, 1, None]


def status_of(record):
    return record.status if isinstance(record, Status) else record.name


@pytest.mark.parametrize("resume", [lambda run: run.status("running"), lambda run: run.resume(1)])
def test_follow_of_a_run_that_failed_and_was_resumed_continues(tmp_path, resume):
    first = recorded(tmp_path)
    first.status("failed")
    first.close()
    second = recorded(tmp_path)
    resume(second)
    second.status("heartbeat")
    more = iter([lambda: [second.status(status) for status in ("finished", "heartbeat")]])
    seen = [status_of(r) for r in hl.follow(tmp_path, sleep=lambda seconds: next(more)())]
    second.close()
    assert (seen[0], seen[2:]) == ("failed", ["heartbeat", "finished", "heartbeat"])


def test_follow_of_a_run_that_died_and_was_resumed_skips_its_failed_status(tmp_path):
    for name, status, time in [("main", "running", 1.0), ("courier", "failed", 2.0), ("main", "running", 3.0)]:
        recorder = hl.Recorder(tmp_path, name=name, clock=lambda time=time: time)
        recorder.status(status)
        recorder.close()
    dies = hl.Recorder(tmp_path, name="courier", clock=lambda: 4.0)
    more = iter([lambda: dies.status("failed")])
    seen = [r.status for r in hl.follow(tmp_path, sleep=lambda seconds: next(more)())]
    dies.close()
    assert seen == ["running", "running", "failed", "failed"]


def test_follow_continues_when_only_another_writer_has_ended(tmp_path):
    main, rank = recorded(tmp_path), recorded(tmp_path, name="rank1")
    rank.status("finished")
    more = iter([lambda: main.status("finished")])
    seen = list(hl.follow(tmp_path, sleep=lambda seconds: next(more)()))
    main.close()
    rank.close()
    assert len(seen) == 2


def test_follow_of_a_killed_run_ends_when_it_is_idle(tmp_path):
    recorder = recorded(tmp_path)
    recorder.log(loss=0, step=0)
    waits = []
    seen = list(hl.follow(tmp_path, idle_seconds=1.0, poll_seconds=0.5, sleep=waits.append))
    recorder.close()
    assert (len(seen), waits) == (1, [0.5, 0.5])


def test_read_of_no_run_is_an_error(tmp_path):
    with pytest.raises(hl.ConfigError, match="is not a run's directory"):
        hl.read(tmp_path / "nothing")


def test_reader_continues_from_a_cursor_and_reads_only_what_is_new(tmp_path):
    recorder = recorded(tmp_path, segment_bytes=8192)
    for step in range(100):
        recorder.log(loss=step, step=step)
    reader = Reader(tmp_path / "journal")
    first = list(itertools.islice(reader.new(), 30))
    saved = msgspec.json.decode(msgspec.json.encode(reader.cursor), type=type(reader.cursor))
    recorder.log(loss=100, step=100)
    rest = list(Reader(tmp_path / "journal", saved).new())
    recorder.close()
    assert [entry.record.step for entry in first] == list(range(30))
    assert [entry.record.step for entry in rest] == list(range(30, 101))


def test_reader_skips_what_is_no_record_and_counts_it(tmp_path):
    recorder = recorded(tmp_path)
    recorder.journal.append(b'{"kind":"met')
    recorder.journal.append(b'{"kind":"unheard of"}')
    recorder.log(loss=1, step=1)
    recorder.close()
    reader = Reader(tmp_path / "journal")
    assert ([entry.record.step for entry in reader.new()], reader.skipped) == ([1], 2)
    assert len(list(hl.read(tmp_path))) == 1


@pytest.fixture(params=["pipe", "directory", "link to itself"])
def no_journal(request, tmp_path):
    """Something that has the name of a journal's file, and is none."""
    place = tmp_path / "journal" / "main-0001-1-ab-000000.jsonl"
    place.parent.mkdir()
    make = {"pipe": os.mkfifo, "directory": os.mkdir, "link to itself": lambda path: path.symlink_to(path.name)}
    make[request.param](place)
    if not place.is_fifo():
        yield place
        return
    end = os.open(place, os.O_RDWR | os.O_NONBLOCK)  # so that opening it fails instead of waiting for ever
    yield place
    os.close(end)


def test_something_else_in_place_of_a_journal_is_passed_over_by_all_that_read(no_journal, tmp_path):
    recorder = recorded(tmp_path)
    recorder.status("finished", step=3)
    recorder.close()
    written = sum(path.stat().st_size for path in no_journal.parent.glob("main-0000-*.jsonl"))
    assert list(hl.read(tmp_path)) == list(hl.follow(tmp_path)) == [last_status(tmp_path)]
    assert last_status(tmp_path).step == 3
    assert Cursor().behind(no_journal.parent) == written


def edited(run_dir, change):
    """Record five rows, and change the lines of their file."""
    recorder = recorded(run_dir)
    for step in range(5):
        recorder.log(loss=0.5, step=step)
    recorder.close()
    (file,) = (run_dir / "journal").glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    change(lines)
    file.write_bytes(b"".join(lines))
    return file, len(b"".join(lines[:2]))


def test_read_leaves_out_a_line_whose_bytes_changed_and_reports_its_place(tmp_path, caplog):
    def change(lines):
        lines[2] = lines[2].replace(b"0.5", b"0.7")

    file, offset = edited(tmp_path, change)
    assert [record.step for record in hl.read(tmp_path)] == [0, 1, 3, 4]
    assert [record.getMessage() for record in caplog.records] == [
        f"The line at byte {offset} of {file} is damaged (its checksum is wrong): it is left out, the others are read."
    ]


def test_read_gives_lines_that_are_there_twice_once(tmp_path, caplog):
    edited(tmp_path, lambda lines: lines.extend(lines[1:3]))
    reader = Reader(tmp_path / "journal")
    steps = [entry.record.step for entry in reader.new()]
    assert ([record.step for record in hl.read(tmp_path)], steps, reader.skipped) == ([*range(5)], [*range(5)], 2)
    assert "is repeated" in caplog.text


def test_reader_that_begins_at_a_cursor_knows_which_lines_came_before_it(tmp_path):
    file, _ = edited(tmp_path, lambda lines: None)
    reader = Reader(tmp_path / "journal")
    assert len(list(reader.new())) == 5
    whole = file.read_bytes()
    file.write_bytes(whole + whole.splitlines(keepends=True)[3])
    assert list(Reader(tmp_path / "journal", reader.cursor).new()) == []


def test_journal_lines_stay_json_objects_with_a_number_through_all_files(tmp_path):
    recorder = recorded(tmp_path, segment_bytes=4096)
    for step in range(200):
        recorder.log(loss=0.5, step=step)
    recorder.close()
    files = sorted((tmp_path / "journal").glob("*.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
    assert [(line["step"], line["#"]) for line in lines] == [(step, step) for step in range(200)]
    assert len(files) > 2


def test_journal_files_that_are_complete_have_digests_that_sha256sum_checks(tmp_path):
    recorder = recorded(tmp_path, segment_bytes=4096)
    for step in range(200):
        recorder.log(loss=0.5, step=step)
    recorder.close()
    (sums,) = (tmp_path / "journal").glob("*.sha256")
    noted = [line.split("  ") for line in sums.read_text().splitlines()]
    found = {name: digest for digest, name in noted}
    files = (tmp_path / "journal").glob("*.jsonl")
    assert found == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_recorder_threads_write_whole_records(tmp_path):
    recorder = recorded(tmp_path, segment_bytes=16384)
    threads = [
        threading.Thread(target=lambda n=n: [recorder.log(thread=n, i=i, step=i) for i in range(300)]) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    assert sum(1 for record in hl.read(tmp_path) if isinstance(record, Metrics)) == 1200


def test_recorder_step_that_is_no_whole_number_is_an_error(tmp_path):
    import numpy as np

    recorder = recorded(tmp_path)
    recorder.log(x=1, step=np.int64(3))
    for call in (lambda: recorder.log(x=1, step=1.5), lambda: recorder.samples([{"completion": "a"}], step="3")):
        with pytest.raises(hl.OptionError, match="give a whole number"):
            call()
    recorder.close()
    assert [record.step for record in hl.read(tmp_path)] == [3]


def test_recorder_redacts_and_cuts_texts_that_are_nested(tmp_path):
    recorder = recorded(tmp_path, redact=lambda text: text.replace("secret", "***"), text_bytes=8)
    recorder.samples([{"messages": [{"content": "secret"}, {"content": "x" * 20}]}], step=1)
    recorder.close()
    (sample,) = hl.read(tmp_path)
    assert sample.extra == {"messages": [{"content": "***"}, {"content": "x" * 8}]}
    assert sample.truncated == {"extra.messages[1].content": 20}


def test_sample_fields_are_all_recorded(tmp_path):
    recorder = recorded(tmp_path)
    names = [name for name in Sample.__struct_fields__ if name not in ("time", "truncated", "step", "axis")]
    chat = [{"role": "user", "content": "1"}]
    others = {"prompt_messages": chat, "completion_messages": chat, "version": 1, "length": 1}
    others |= {"prompt_length": 1, "last_version": 1, "timings": {"generate": 0.5}}
    others |= {"rewards": {"a": 1.0}, "extra": {"a": 1.0}}
    row = {name: others.get(name, "1") for name in names if name != "tokens"}  # of a type of its own
    recorder.samples([row], step=2)
    recorder.close()
    (sample,) = hl.read(tmp_path)
    assert {name: getattr(sample, name) for name in row} == row


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": None},
        {"completion": None},
        {"axis": None},
        {"axis": 3},
        {"rewards": None},
        {"total": {"a": 1.0}},
        {"extra": [1]},
        {"step": 10**6000},
    ],
    ids=lambda row: next(iter(row)),
)
def test_recorder_sample_that_no_reader_could_read_is_refused_and_none_is_recorded(wrong, tmp_path):
    recorder = recorded(tmp_path)
    with pytest.raises(hl.OptionError, match=next(iter(wrong))):
        recorder.samples([{"completion": "before"}, wrong], step=1)
    recorder.close()
    assert list(hl.read(tmp_path)) == []


@pytest.mark.parametrize("name", ["prompt", "completion", "expected", "reasoning", "answer", "group", "lesson"])
def test_recorder_sample_with_another_type_for_a_text_comes_back_as_its_text(name, tmp_path):
    recorder = recorded(tmp_path)
    given = [3, 2.5, True, [1, 2], b"bytes", {"a": 1}]
    recorder.samples([{name: value} for value in given], step=1)
    recorder.close()
    assert [getattr(sample, name) for sample in hl.read(tmp_path)] == [str(value) for value in given]


@pytest.mark.parametrize("name", ["expected", "reasoning", "answer", "group", "lesson", "total", "advantage"])
def test_recorder_sample_with_none_for_what_may_be_missing_comes_back(name, tmp_path):
    recorder = recorded(tmp_path)
    recorder.samples([{"completion": "x", name: None}], step=1)
    recorder.close()
    assert [(sample.completion, getattr(sample, name)) for sample in hl.read(tmp_path)] == [("x", None)]


def test_recorder_data_of_an_event_may_have_any_name(tmp_path):
    recorder = recorded(tmp_path)
    recorder.event("uploaded", name="model", data={"bytes": 3}, time="noon")
    recorder.status("uploading", status="half", message="Wait.")
    recorder.close()
    event, status = hl.read(tmp_path)
    assert (event.name, event.data) == ("uploaded", {"name": "model", "data": {"bytes": 3}, "time": "noon"})
    assert (status.status, status.message, status.data) == ("uploading", "Wait.", {"status": "half"})


MANY_WRITERS = """
import resource, subprocess, sys
import hookline as hl

resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
with hl.run("many", root=sys.argv[1], sinks=["csv"], summary=False) as run:
    for number in range(1, 151):
        recorder = hl.Recorder(run.dir, name=f"rank{number}", segment_bytes=4096)
        recorder.log(loss=1.0, step=1)
        recorder.close()
    run.log(loss=1.0, step=1)
values = [len(record.values) for record in hl.read(run.dir) if hasattr(record, "values")]
stored = hl.runs(sys.argv[1]).sql("SELECT count(*) AS n FROM metrics WHERE name LIKE '%loss'").rows()[0]["n"]
sunk = sum(1 for line in (run.dir / "metrics.csv").open() if line.strip())
verified = subprocess.run([sys.executable, "-m", "hookline", "runs", "verify", run.dir], stdout=2).returncode
print(len(values), stored, sunk, verified)
"""


def test_writers_beyond_the_limit_of_open_files_are_read_stored_delivered_and_verified(tmp_path):
    command = [sys.executable, "-c", MANY_WRITERS, tmp_path]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120)
    assert done.stdout == b"151 151 152 0\n"  # the CSV file has a header


@pytest.mark.parametrize("has_full_sync", [True, False], ids=["a disk", "a network volume"])
def test_run_on_macos_is_synced_as_far_as_its_drive(tmp_path, monkeypatch, has_full_sync):
    """What macOS has and does not: no `fdatasync`, no preallocation, F_FULLFSYNC, and not on network volumes."""
    full, plain = [], []

    def full_sync(descriptor, command):
        assert command == 51
        if not has_full_sync:
            raise OSError(errno.ENOTSUP, "Operation not supported")
        full.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    monkeypatch.setattr(os, "fsync", lambda descriptor: plain.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    with hl.run("mac", root=tmp_path, durability="power", summary=False) as run:
        run.log(loss=1.0, step=1)
    synced, unused = (full, plain) if has_full_sync else (plain, full)
    (journal,) = (run.dir / "journal").glob("*.jsonl")
    assert {journal, run.dir, run.dir / "journal"} <= set(synced)
    assert unused == []
