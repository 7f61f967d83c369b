"""Charts read the metrics of runs as columns: whatever happens to journals and files, they show what was recorded."""

import gc
import math
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import append, close, ended, journal, make_run, resumed, row

import hookline as hl
from hookline._record.records import Metrics, encode, seal_line
from hookline.store import QueryTimeoutError, Runs, run_columns, runs
from hookline.store.filters import FUNCTIONS
from hookline.store.outcomes import outcomes
from hookline.store.query_limits import QueryLimit
from hookline.store.run_columns import FILE, ColumnCache, RunColumns
from hookline.store.run_info import RunLocation
from hookline.store.run_summary import Liveness
from hookline.store.series import Extremes, downsampled
from hookline.store.store import open_store

LONG = 4000
"""As many rows make a journal long enough for a file of columns."""


def points(root, name="loss", **options):
    """The points of a metric by run."""
    return {line.run: list(zip(line.x, line.y, strict=True)) for line in runs(root).series(name, **options)}


def long_run(root, run_id="r0", rows=LONG, value=1.0):
    directory = make_run(root, run_id)
    append(directory, *[row(step, loss=value + step, other=0.0, third=1.0) for step in range(rows)], ended(rows))
    return directory


def column_files(root):
    return sorted((root / ".hookline" / "runs").glob(f"*/{FILE}"))


def forget(root):
    """Let go of everything that a process knows of a root."""
    close(root)
    gc.collect()


@pytest.mark.parametrize("is_over", [True, False])
def test_chart_needs_no_database(tmp_path, is_over):
    append(make_run(tmp_path), row(1, loss=3.0), row(2, loss=2.0), *([ended(2)] if is_over else []))
    found = runs(tmp_path)
    assert [line.y for line in found.series("loss")] == [[3.0, 2.0]]
    assert [each["points"] for each in found.metric_names()] == [2]
    assert found._store.index.state("p/r0").read is None


def test_chart_of_a_run_that_seems_to_be_over_has_what_was_recorded_since(tmp_path):
    directory = make_run(tmp_path)
    recorder = hl.Recorder(directory)  # holds no lock, so its run counts as killed
    for step in range(1, 5):  # into a mapped file, whose size and time need not change
        recorder.log({"loss": float(step)}, step=step)
        os.utime(directory / "journal", (1.0, 1.0))  # no file has been added for long
        found = runs(tmp_path)
        assert (found[0].status, found.series("loss")[0].y) == ("killed", [1.0 + each for each in range(step)])
    recorder.close()


def test_chart_of_a_live_run_has_what_was_appended_since(tmp_path):
    directory = make_run(tmp_path)
    seen = []
    for step in range(5):
        append(directory, row(step, loss=float(step)), number=step // 2)
        seen.append(points(tmp_path)["p/r0"])
    assert seen == [[(float(step), float(step)) for step in range(last + 1)] for last in range(5)]


CHANGES = {
    "resume": lambda directory: append(directory, resumed(1), row(2, loss=20.0), session=1),
    "late line": lambda directory: append(directory, row(9, loss=90.0), session=0),
    "evaluation again": lambda directory: append(directory, row(1, "eval", loss=7.0), session=1),
    "other writer": lambda directory: append(directory, row(1, loss=5.0), name="rank1"),
    "text": lambda directory: append(directory, row(4, loss="many", note="x")),
    "not a number": lambda directory: append(directory, row(4, loss=math.nan), row(5, loss=math.inf)),
    "earlier step": lambda directory: append(directory, row(0, loss=0.5)),
    "shorter": lambda directory: os.truncate(journal(directory), journal(directory).stat().st_size // 2),
    "replaced": lambda directory: shutil.copy(
        journal(directory), directory / "journal" / "main-0000-1-abc-000001.jsonl"
    ),
    "removed": lambda directory: journal(directory).unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_over", [True, False])
def test_chart_after_a_change_is_that_of_a_new_reading(tmp_path, change, is_over):
    root, directory = tmp_path, make_run(tmp_path)
    append(directory, row(1, loss=1.0), row(1, "eval", loss=4.0), row(2, loss=2.0), row(3, loss=3.0))
    if change == "late line":
        append(directory, row(5, loss=5.0), session=1)
    if is_over:
        append(directory, ended(3), session=int(change == "late line"))
    points(root)
    CHANGES[change](directory)
    after = [(line.name, line.axis, line.x, line.y, line.not_finite) for line in runs(root).series("*")]
    forget(root)
    shutil.rmtree(root / ".hookline", ignore_errors=True)
    assert after == [(line.name, line.axis, line.x, line.y, line.not_finite) for line in runs(root).series("*")]


def test_ended_run_gets_a_file_that_later_processes_use(tmp_path):
    directory = long_run(tmp_path)
    expected = points(tmp_path, max_points=LONG)
    forget(tmp_path)
    assert len(column_files(tmp_path)) == 1
    # The same size, times and identity: only reading the journal again would show the difference.
    before = journal(directory).stat()
    journal(directory).write_bytes(journal(directory).read_bytes().replace(b'"loss":1', b'"loss":2'))
    os.utime(journal(directory), ns=(before.st_atime_ns, before.st_mtime_ns))
    assert points(tmp_path, max_points=LONG) == expected


def test_short_and_live_runs_get_no_file(tmp_path):
    append(make_run(tmp_path, "short"), row(1, loss=1.0), ended(1))
    with hl.run("live", root=tmp_path) as run:
        for step in range(LONG):
            run.log(loss=1.0, other=2.0, third=3.0, step=step)
        assert sorted(len(each) for each in points(tmp_path, max_points=LONG).values()) == [1, LONG]
    assert column_files(tmp_path) == []


def flip_last_byte(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def flip_header(path):
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)


def link_elsewhere(path):
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


DAMAGES = {
    "last byte": flip_last_byte,
    "header": flip_header,
    "shorter": lambda path: os.truncate(path, path.stat().st_size - 8),
    "longer": lambda path: path.write_bytes(path.read_bytes() + bytes(8)),
    "empty": lambda path: path.write_bytes(b""),
    "other file": lambda path: path.write_bytes(b"hookline columns 2\n" + b"\xff" * 40),
    "link": link_elsewhere,
    "directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_of_columns_is_passed_by(tmp_path, damage):
    long_run(tmp_path)
    expected = points(tmp_path)
    forget(tmp_path)
    [path] = column_files(tmp_path)
    DAMAGES[damage](path)
    assert points(tmp_path) == expected


def test_file_of_columns_of_another_run_is_passed_by(tmp_path):
    long_run(tmp_path, "a", value=1.0)
    long_run(tmp_path, "b", value=5.0)
    expected = points(tmp_path)
    forget(tmp_path)
    first, second = column_files(tmp_path)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    assert points(tmp_path) == expected


def test_run_that_continues_after_its_file_was_written_has_all_its_rows(tmp_path):
    directory = long_run(tmp_path, rows=LONG)
    points(tmp_path)
    append(directory, resumed(LONG - 10), row(LONG, loss=-1.0), ended(LONG), session=1)
    found = points(tmp_path, max_points=2 * LONG)["p/r0"]
    assert (len(found), found[-1]) == (LONG - 9 + 1, (float(LONG), -1.0))


def test_columns_that_take_too_much_memory_are_read_again(tmp_path):
    for name in "abc":
        append(make_run(tmp_path, name), *[row(step, loss=float(step)) for step in range(50)])
    cache = ColumnCache(max_bytes=1)
    wanted = [(RunLocation("p", tmp_path / "p" / name), None, False) for name in "abc"]
    seen = [[len(columns.column("loss", "train").value) for columns in cache.current(wanted)] for _ in range(2)]
    assert (seen, list(cache._runs)) == ([[50, 50, 50]] * 2, ["p/c"])


def test_columns_of_very_many_runs_are_kept_within_a_limit_while_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(run_columns, "MAX_RUNS", 2)
    counted = []
    original = cast(property, vars(RunColumns)["nbytes"]).fget
    assert original is not None

    def nbytes(self):
        counted.append(self)
        return original(self)

    monkeypatch.setattr(RunColumns, "nbytes", property(nbytes))
    for name in "abcdef":
        append(make_run(tmp_path, name), row(1, loss=1.0))
    cache = ColumnCache()
    wanted = [(RunLocation("p", tmp_path / "p" / name), None, False) for name in "abcdef"]
    kept = [list(cache._runs) for _ in cache.current(wanted)]
    assert (max(map(len, kept)), list(cache._runs), cache._bytes) == (3, ["p/e", "p/f"], sum(cache._sizes.values()))
    assert len(counted) == 6  # each once, when it is read


def test_outcomes_are_those_that_sql_gives(tmp_path):
    nan, infinite = math.nan, math.inf
    append(make_run(tmp_path, "a"), *[row(step, loss=value) for step, value in enumerate([3.0, nan, 1.0, infinite])])
    append(make_run(tmp_path, "b"), row(5, loss=1.0), row(2, loss=7.0), row(5, axis="eval", loss=2.0), row(6, note="x"))
    append(make_run(tmp_path, "c"), row(1, loss=nan), row(2, other=-infinite))
    append(make_run(tmp_path, "d"), *[row(step, loss=float(step)) for step in range(10)], ended(9))
    append(tmp_path / "p" / "d", resumed(4), row(5, loss=-1.0), session=1)
    query = """
        SELECT run, name, axis, last(value ORDER BY step, recorded) AS last, max(step) AS step,
            min(value) FILTER (isfinite(value)) AS least, max(value) FILTER (isfinite(value)) AS largest,
            count(*) AS points
        FROM metrics_in_order WHERE value IS NOT NULL GROUP BY ALL ORDER BY run, name, axis
    """
    found = runs(tmp_path)
    expected = [tuple(each.values()) for each in found.sql(query)]
    made = [
        (run, *metric, each.last, each.step, each.least, each.largest, each.points)
        for run, own in sorted(outcomes(found).items())
        for metric, each in own.items()
    ]
    assert repr(made) == repr(expected)
    assert len(made) == 6


def test_values_of_ended_runs_are_the_same_once_their_metrics_were_read(tmp_path, monkeypatch):
    nan, infinite = math.nan, math.inf
    append(make_run(tmp_path, "a"), *[row(step, loss=value) for step, value in enumerate([3.0, nan, 1.0, infinite])])
    append(make_run(tmp_path, "b"), row(1, axis="eval", loss=5.0), row(2, axis="bench", loss=2.0), row(6, note="x"))
    append(make_run(tmp_path, "c"), row(1, loss=nan), row(2, axis="eval", loss=1.0), row(3, other=-infinite))
    for name in "abc":
        append(tmp_path / "p" / name, ended(6))
    fields = [f"{function}({name})" for name in ("loss", "other") for function in FUNCTIONS] + ["min(loss, 2)"]
    before = runs(tmp_path).values(fields)
    forget(tmp_path)
    found = runs(tmp_path)
    found.metric_names().rows()
    kept = [field for field in fields if "mean" not in field and "," not in field]
    with monkeypatch.context() as patch:
        patch.setattr(ColumnCache, "current", None)  # no run is read
        assert repr(found.values(kept)) == repr([{key: each[key] for key in ("id", *kept)} for each in before])
    assert repr(found.values(fields)) == repr(before)


def test_metric_names_of_ended_runs_are_found_without_reading_them_again(tmp_path, monkeypatch):
    append(make_run(tmp_path, "over"), row(1, loss=3.0, note="text"), row(2, loss=2.0), ended(2))
    append(make_run(tmp_path, "open"), row(1, loss=1.0))
    found = Runs(open_store(tmp_path), Liveness(clock=lambda: 10.0, host="elsewhere"))
    before = found.metric_names().rows()
    read = []
    original = ColumnCache.current

    def current(self, wanted):
        read.extend(wanted)
        return original(self, wanted)

    monkeypatch.setattr(ColumnCache, "current", current)
    append(tmp_path / "p" / "open", row(2, loss=1.0))
    after = found.metric_names().rows()
    assert [location.id for location, _, _ in read] == ["p/open"]
    assert [(each["name"], each["runs"], each["points"], each["texts"]) for each in before] == [
        ("loss", 2, 3, 0),
        ("note", 1, 1, 1),
    ]
    assert [(each["points"], each["last_step"]) for each in after] == [(4, 2), (1, 1)]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    length=st.integers(1, 6000),
    max_points=st.integers(4, 60),
    levels=st.integers(1, 50),
    cut=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_extremes_make_no_difference_to_the_points_of_a_chart(seed, length, max_points, levels, cut):
    random = np.random.default_rng(seed)
    xs = np.cumsum(random.integers(0, 3, length)).astype(float)
    ys = random.integers(0, levels, length).astype(float)  # few levels: many points are equally low
    first, last = sorted(int(share * length) for share in cut)
    extremes = Extremes(is_append_only=True)
    for end in (length // 3, length // 2):  # as a live run grows
        downsampled(xs[:end], ys[:end], max_points, extremes=extremes)
    for part in (slice(0, length), slice(first, max(last, first + 1))):
        assert np.array_equal(downsampled(xs, ys, max_points, part, extremes), downsampled(xs, ys, max_points, part))


def sealed(rows):
    return [seal_line(encode(each), number) for number, each in enumerate(rows)]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lines: [*lines[:5], lines[5].replace(b'"loss":5.0', b'"loss":6.0'), *lines[6:]],
        lambda lines: [*lines[:5], b"no record", *lines[5:]],
        lambda lines: [*lines[:5], lines[4], *lines[5:]],
        lambda lines: [*lines[:5], lines[7], *lines[5:]],
        lambda lines: [*lines[:5], b"", b"\xff\xfe", *lines[5:]],
        lambda lines: [*lines[:5], seal_line(encode(Metrics(step=1 << 70, values={"loss": 1})), 5), *lines[6:]],
    ],
    ids=["changed", "no record", "doubled", "out of order", "blank", "huge step"],
)
def test_unusual_lines_count_the_same_in_charts_and_tables(tmp_path, spoil):
    directory = make_run(tmp_path)
    lines = spoil(sealed([Metrics(time=float(step), step=step, values={"loss": float(step)}) for step in range(9)]))
    journal(directory).write_bytes(b"\n".join(lines) + b"\n")
    found = runs(tmp_path)
    table = sorted((float(each["step"]), each["value"]) for each in found.metrics("loss"))
    assert sorted(points(tmp_path)["p/r0"]) == table


def test_rows_that_arrive_after_the_end_of_a_run_are_shown(tmp_path):
    directory = make_run(tmp_path)
    append(directory, row(1, loss=1.0), ended(1))
    append(directory, *[row(step, loss=1.0) for step in range(5)], name="rank1")
    moment = time.time() - 100  # directories that changed just now count as changed
    os.utime(directory / "journal", (moment, moment))
    assert len(points(tmp_path, "rank1/loss")["p/r0"]) == 5
    append(directory, *[row(step, loss=1.0) for step in range(5, 15)], name="rank1")
    os.utime(directory / "journal", (moment, moment))
    assert len(points(tmp_path, "rank1/loss")["p/r0"]) == 15


def test_chart_after_one_that_failed_is_drawn_by_any_thread(tmp_path, monkeypatch):
    append(make_run(tmp_path), row(1, loss=1.0), ended(1))
    found, failures = runs(tmp_path), []

    def fail(*args):
        raise MemoryError

    monkeypatch.setattr("hookline.store.series._downsampled_line", fail)
    with pytest.raises(MemoryError) as caught:
        found.series("loss")
    failures.append(caught)  # with its traceback, which holds the frames
    monkeypatch.undo()
    with ThreadPoolExecutor(1) as pool:
        assert [line.y for line in pool.submit(found.series, "loss").result(30)] == [[1.0]]


def test_text_metrics_are_counted_and_take_no_memory(tmp_path):
    append(make_run(tmp_path), *[row(step, note="x" * 10_000) for step in range(50)])
    found = runs(tmp_path)
    assert [(each["points"], each["texts"]) for each in found.metric_names()] == [(50, 50)]
    [columns] = found._store.columns(list(found))
    assert columns.nbytes == 0


def test_file_of_columns_that_others_may_write_is_not_mapped(tmp_path):
    long_run(tmp_path)
    expected = points(tmp_path)
    forget(tmp_path)
    [path] = column_files(tmp_path)
    path.chmod(0o666)
    found = runs(tmp_path)
    shown = {line.run: list(zip(line.x, line.y, strict=True)) for line in found.series("loss")}
    os.truncate(path, 0)  # reading a mapped page would end the process
    assert shown == expected == {line.run: list(zip(line.x, line.y, strict=True)) for line in found.series("loss")}


def test_chart_that_nobody_waits_for_is_cancelled_and_reads_on_later(tmp_path):
    for name in "ab":
        append(make_run(tmp_path, name), row(1, loss=1.0))
    with QueryLimit() as limit:
        limit.cancel()
        with pytest.raises(QueryTimeoutError, match="cancelled"):
            runs(tmp_path).series("loss")
    assert len(points(tmp_path)) == 2


def test_memory_of_cached_lines_does_not_grow_with_requests(tmp_path):
    directory = make_run(tmp_path)
    append(directory, row(0, loss=0.0))
    found = runs(tmp_path)
    sizes = set()
    for step in range(1, 6):
        append(directory, row(step, loss=1.0))
        found.series("loss")
        [columns] = found._store.columns(list(found))
        sizes.add(columns.cached_bytes - 8 * (step + 1))
    assert sizes == {0}
