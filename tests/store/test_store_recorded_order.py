"""Which value of a step is the last: the one that was recorded last, whatever the clock said."""

import math

import pytest
from recorded_runs import append, close, ended, make_run, resumed, row

import hookline as hl
from hookline.store import runs


def means(root, **options):
    return [found["mean"] for found in runs(root).aggregate("loss", by="name", **options)]


@pytest.mark.parametrize("times", [(0.0, 0.0, 0.0), (100.0, 50.0, 40.0), (1.0, 9.0, 5.0)])
@pytest.mark.parametrize("is_over", [True, False])
def test_last_value_of_a_step_is_the_one_recorded_last_whatever_the_clock_says(tmp_path, times, is_over):
    directory = make_run(tmp_path)
    end = [ended(1, time=0.0)] if is_over else []
    values = zip(times, (1.0, 2.0, 3.0), strict=True)
    append(directory, *[row(1, time=time, loss=value, tokens=10 * value) for time, value in values], *end)
    assert means(tmp_path) == [3.0]
    [line] = runs(tmp_path).series("loss", x="tokens")
    assert line.x == [30.0] * 3
    assert line.y == [1.0, 2.0, 3.0]


def test_last_value_of_a_step_by_a_clock_that_stands_still_is_that_of_the_last_log(tmp_path):
    recorder = hl.Recorder(make_run(tmp_path), clock=lambda: 5.0)
    for value in (3.0, 2.0, math.nan, 1.0):
        recorder.log({"loss": value}, step=1)
    recorder.close()
    assert means(tmp_path) == [1.0]


def test_last_value_of_a_step_that_is_nan_leaves_no_mean(tmp_path):
    directory = make_run(tmp_path)
    append(directory, row(1, time=0.0, loss=1.0), row(1, time=0.0, loss=math.nan), ended(1, time=0.0))
    assert means(tmp_path) == [None]


def test_last_value_of_a_step_is_the_same_read_at_once_or_bit_by_bit(tmp_path):
    directory = make_run(tmp_path)
    for value, time in ((1.0, 9.0), (2.0, 9.0), (3.0, 4.0), (4.0, 4.0)):
        append(directory, row(1, time=time, loss=value))
        assert means(tmp_path) == [value]
        close(tmp_path)  # how far the clock was is kept
    append(directory, ended(1, time=0.0))
    assert means(tmp_path) == [4.0]


def test_last_value_of_a_step_is_that_of_the_later_session_with_an_earlier_clock(tmp_path):
    directory = make_run(tmp_path)
    append(directory, row(1, time=500.0, loss=1.0))
    append(directory, resumed(1, time=10.0), row(1, time=10.0, loss=2.0), ended(1, time=11.0), session=1)
    assert means(tmp_path) == [2.0]


def test_last_value_of_a_step_of_two_processes_of_a_writer_is_by_time(tmp_path):
    directory = make_run(tmp_path)
    append(directory, row(1, time=1.0, loss=1.0), row(1, time=8.0, loss=8.0))
    forked = directory / "journal" / "main-0000-2-def-000000.jsonl"
    append(directory, row(1, time=5.0, loss=5.0), number=1)
    (directory / "journal" / "main-0000-1-abc-000001.jsonl").rename(forked)
    assert means(tmp_path) == [8.0]


def test_order_of_what_was_recorded_is_no_column_that_users_see(tmp_path):
    append(make_run(tmp_path), row(1, time=0.0, loss=1.0), row(1, time=0.0, loss=2.0), ended(1))
    found = runs(tmp_path)
    shown = ["run", "writer", "axis", "step", "time", "name", "value", "text"]
    assert list(found.metrics().columns()) == list(found.sql("FROM metrics").columns()) == shown
    assert [line["time"] for line in found.metrics()] == [0.0, 0.0]
