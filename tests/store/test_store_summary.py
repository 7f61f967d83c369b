"""The summary of a live run, kept up to date from what its journal gains."""

import os
import random

import pytest
from recorded_runs import append, ended, finished_run, journal, make_run, resumed, row

from hookline._record.records import Event, LogLine, Sample, Status, encode
from hookline._record.segment import journal_files
from hookline.store.run_summary import GrowingSummary, Liveness, summarize
from hookline.store.runs import Runs
from hookline.store.store import open_store


def begun(num_steps=100):
    return Status(time=1.0, status="running", step=0, data={"num_steps": num_steps})


def files_of(directory):
    return journal_files(directory / "journal")


def settle(directory):
    """Make the set of journal files old: one that changed a moment ago is listed again."""
    os.utime(directory / "journal", (1000.0, 1000.0))


def some_records(noise):
    """A short journal with records of many kinds, in any order."""
    kinds = [
        lambda step: row(step, loss=noise.random()),
        lambda step: row(step, axis="eval", score=noise.random()),
        lambda step: row(step, **{f"name{noise.randrange(5)}": noise.random()}),
        lambda step: Sample(time=float(step), step=step, prompt="x" * noise.randrange(200)),
        lambda step: LogLine(time=float(step), level="INFO", logger="a", message="text"),
        lambda step: Status(time=float(step), status="heartbeat", step=step),
        lambda step: Status(time=float(step), status="running", step=step, message=f"at {step}"),
        lambda step: Event(time=float(step), name="hang"),
    ]
    records = [begun(), *(noise.choice(kinds)(step) for step in range(1, noise.randrange(5, 30)))]
    return [*records, ended(30)] if noise.random() < 0.3 else records


@pytest.mark.parametrize("seed", range(20))
def test_summary_fed_with_any_pieces_of_a_journal_is_that_of_the_whole(tmp_path, seed):
    noise = random.Random(seed)
    directory = make_run(tmp_path)
    content = b"".join(encode(record) + b"\n" for record in some_records(noise))
    journal(directory).write_bytes(content[: noise.randrange(len(content))])
    growing = GrowingSummary(files_of(directory))
    while (size := journal(directory).stat().st_size) < len(content):
        with journal(directory).open("ab") as file:
            file.write(content[size : size + noise.randrange(1, 400)])
        assert growing.refresh()
        assert growing.summary == summarize(files_of(directory))
    assert not growing.refresh()


@pytest.mark.parametrize(
    "rounds",
    [
        [([2], False, 1), ([1], True, 3)],  # a line waits for the one before it
        [([1, 3], True, 4), ([2], False, 4)],  # so many at once are read from the end
        [([1], True, 2), ([2], True, 3), ([3], True, 4)],
    ],
)
def test_summary_of_a_preallocated_file_whose_lines_are_filled_in_any_order_has_the_last(tmp_path, rounds):
    directory = make_run(tmp_path)
    lines = [encode(row(step, loss=1.0 / step)) + b"\n" for step in (1, 2, 3, 4)]
    journal(directory).write_bytes(lines[0] + bytes(1000))
    growing = GrowingSummary(files_of(directory))
    for filled, has_grown, step in rounds:
        with journal(directory).open("r+b") as file:
            for number in filled:
                file.seek(sum(map(len, lines[:number])))
                file.write(lines[number])
        assert (growing.refresh(), growing.summary.step) == (has_grown, step)


def test_summary_of_a_journal_that_gained_very_much_is_read_from_its_ends(tmp_path):
    directory = make_run(tmp_path)
    append(directory, begun(5000), row(1, first=1.0))
    growing = GrowingSummary(files_of(directory))
    for first in (2, 2000, 4000):
        append(directory, *[row(step, loss=float(step)) for step in range(first, first + 1000)])
        assert growing.refresh()
        assert growing.summary == summarize(files_of(directory))


def test_live_run_is_listed_by_decoding_only_what_it_gained(tmp_path, monkeypatch):
    directory = make_run(tmp_path)
    append(directory, begun(5000), *[row(step, loss=1.0) for step in range(1, 1000)])
    settle(directory)
    found = Runs(open_store(tmp_path), Liveness(clock=lambda: 1000.0, host="elsewhere"))
    assert found.refresh()[0].status == "running"
    read = []
    original = os.pread
    monkeypatch.setattr(os, "pread", lambda *args: read.append(len(found := original(*args))) or found)  # type: ignore[func-returns-value]
    append(directory, row(1000, loss=0.5))
    listed = found.refresh()[0]
    assert (listed.step, listed.metrics, sum(read) < 200) == (1000, {"loss": 0.5}, True)


def test_live_run_that_did_not_change_is_listed_as_the_same_object(tmp_path):
    directory = make_run(tmp_path)
    append(directory, begun(), row(1, loss=1.0))
    settle(directory)
    found = Runs(open_store(tmp_path), Liveness(clock=lambda: 10.0, host="elsewhere"))
    before = [found.refresh()[0], found.refresh()[0]]
    append(directory, row(2, loss=0.5))
    after = [found.refresh()[0], found.refresh()[0]]
    assert before[0] is before[1]
    assert after[0] is after[1]
    assert [each.step for each in (before[0], after[0])] == [1, 2]


def test_live_run_that_ends_is_listed_with_the_metrics_near_its_end(tmp_path):
    directory = make_run(tmp_path)
    append(directory, begun(), *[row(step, loss=1.0) for step in range(1, 200)])
    settle(directory)
    found = Runs(open_store(tmp_path), Liveness(clock=lambda: 100.0, host="elsewhere"))
    assert found.refresh()[0].metrics == {"loss": 1.0}
    append(directory, row(200, axis="eval", score=0.5), *[row(step, loss=0.5) for step in range(201, 400)])
    assert found.refresh()[0].metrics == {"loss": 0.5, "score": 0.5}
    append(directory, ended(400))
    listed = found.refresh()[0]
    assert (listed.status, listed.metrics) == ("finished", {"loss": 0.5})


def test_run_that_is_resumed_while_it_is_listed_is_summarized_from_its_new_session(tmp_path):
    directory = finished_run(tmp_path)
    found = Runs(open_store(tmp_path), Liveness(clock=lambda: 10.0, host="elsewhere"))
    assert found.refresh()[0].status == "finished"
    append(directory, resumed(2), begun(), row(3, loss=0.5), session=1)
    listed = found.refresh()[0]
    assert (listed.status, listed.step, listed.metrics) == ("running", 3, {"loss": 0.5})
