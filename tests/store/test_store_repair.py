"""What the store repairs by itself: damaged files of its own, an index that was closed, one that a fork inherited."""

import subprocess
import sys

import pytest
from recorded_runs import append, ended, finished_run, journal, make_run, row

import hookline as hl
from hookline.store import DamagedIndexError, QueryError, runs
from hookline.store.run_summary import Liveness
from hookline.store.store import open_store


@pytest.fixture(autouse=True)
def parquet_for_every_run(monkeypatch):
    """Parquet files for the smallest ended run: usually those stay in the database."""
    monkeypatch.setattr("hookline.store.ingest.COMPACT_ROWS", 0)


MISTAKES = [
    "SELECT checksum FROM metrics",
    "SELECT error('corrupt')",
    "SELECT CAST(text AS INTEGER) FROM metrics WHERE name = 'note'",
    "SELECT 1 // 0 FROM metrics",
]


def count(found):
    return len(found.metrics().rows())


def run_with_words(root):
    directory = make_run(root)
    append(directory, row(1, loss=1.0, note="corrupt"), ended(1))


@pytest.mark.parametrize("query", MISTAKES)
def test_mistake_of_a_query_says_so_and_leaves_the_index(tmp_path, query):
    run_with_words(tmp_path)
    found = runs(tmp_path)
    before = (tmp_path / ".hookline" / "index.duckdb").stat().st_ino
    with pytest.raises(QueryError):
        found.sql(query).rows()
    assert (count(found.refresh()), found.notes) == (2, [])
    assert (tmp_path / ".hookline" / "index.duckdb").stat().st_ino == before


@pytest.mark.parametrize("query", MISTAKES)
def test_mistake_of_a_query_says_so_in_a_private_index(tmp_path, query):
    run_with_words(tmp_path)
    (tmp_path / ".hookline").write_text("a file where the folder should be")
    found = runs(tmp_path)
    with pytest.raises(QueryError):
        found.sql(query).rows()
    assert (bool(found.note), count(found)) == (True, 2)


def test_index_of_an_earlier_process_is_used_again_without_reading_the_journals(tmp_path):
    code = "import sys; from hookline.store import runs; print(runs(sys.argv[1]).ingest().rows)"
    with hl.run("live", root=tmp_path, summary=False) as run:  # the rows of a live run are in the index alone
        run.log(loss=1.0, step=1)
        first = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
        second = runs(tmp_path)
        assert (int(first.stdout) > 0, second.ingest().rows, count(second)) == (True, 0, 1)


def zeros(data):
    return bytes(len(data))


def changed_at_the_end(data):
    return data[:-60] + bytes(byte ^ 0xFF for byte in data[-60:-8]) + data[-8:]


def changed_within(data):
    return data[:4] + bytes(byte ^ 0xFF for byte in data[4:200]) + data[200:]


def damage_parquet(root, how):
    (file,) = (root / ".hookline" / "runs").glob("*/metrics-*.parquet")
    file.write_bytes(how(file.read_bytes()))


QUESTIONS = {
    "rows": count,
    "sql": lambda found: len(found.sql("SELECT * FROM metrics").rows()),
    "series": lambda found: sum(line.points for line in found.series("loss")),
    "bands": lambda found: len(found.bands("loss", by="id").bands[0].x),
}


def asked_twice(question, found):
    """The answer, and that to the second time where the index was damaged."""
    try:
        return question(found)
    except DamagedIndexError:
        return question(found)


@pytest.mark.parametrize("how", [zeros, changed_at_the_end, changed_within])
@pytest.mark.parametrize("question", QUESTIONS)
def test_parquet_file_damaged_at_its_size_is_rebuilt_from_the_journal(tmp_path, how, question):
    finished_run(tmp_path, losses=[float(step % 7) for step in range(500)])
    found = runs(tmp_path)
    assert count(found) == 500
    damage_parquet(tmp_path, how)
    assert asked_twice(QUESTIONS[question], found) == 500
    assert QUESTIONS[question](found.refresh()) == 500


def test_parquet_file_of_an_earlier_boot_is_compared_before_it_is_used(tmp_path, monkeypatch):
    directory = make_run(tmp_path)
    append(directory, *[row(step, loss=float(step)) for step in range(100)], ended(100))
    expected = runs(tmp_path).metrics().rows()
    damage_parquet(tmp_path, changed_within)
    monkeypatch.setattr("hookline.store.ingest.boot_id", lambda: "another boot")
    assert runs(tmp_path).metrics().rows() == expected


def test_damaged_parquet_file_of_a_run_that_continues_is_rebuilt(tmp_path):
    directory = finished_run(tmp_path)
    found = runs(tmp_path)
    assert count(found) == 3
    damage_parquet(tmp_path, zeros)
    append(directory, row(4, loss=0.5), ended(4))
    assert [found.refresh().ingest().rows, count(found)] == [6, 4]


PRIVATE = """
import sys
from hookline.store import DamagedIndexError, runs
found = runs(sys.argv[1])
try:
    found.metrics().rows()
except DamagedIndexError:
    pass
print(found.note, len(found.metrics().rows()), len(found.metrics().rows()))
"""


def test_damaged_parquet_file_is_passed_by_in_a_private_index_and_left_to_its_owner(tmp_path):
    finished_run(tmp_path)
    found = runs(tmp_path)
    assert count(found) == 3
    damage_parquet(tmp_path, zeros)
    command = [sys.executable, "-c", PRIVATE, str(tmp_path)]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (second.stdout, second.stderr) == ("another process is using it 3 3\n", "")
    assert list((tmp_path / ".hookline" / "runs").glob("*/metrics-*.parquet"))
    assert asked_twice(count, found) == 3


def with_a_hole(data):
    """The contents without the second page, as after a loss of power."""
    return data[:4096] + bytes(4096) + data[8192:]


def long_run(root, *, is_finished=True):
    directory = make_run(root)
    append(directory, *[row(step, loss=1.0) for step in range(300)], *([ended(300)] if is_finished else []))
    return directory


def holes(root):
    found = runs(root)
    found.ingest()
    return [problem for problem in found.refresh()[0].problems if "has a hole" in problem]


@pytest.mark.parametrize(("is_finished", "tail"), [(True, b""), (False, bytes(9000)), (False, b'{"kind' + bytes(99))])
def test_hole_that_begins_within_a_line_is_reported(tmp_path, is_finished, tail):
    directory = long_run(tmp_path, is_finished=is_finished)
    data = journal(directory).read_bytes()
    journal(directory).write_bytes(with_a_hole(data) + tail)
    whole = len(with_a_hole(data).splitlines()) - 1
    assert holes(tmp_path) == [f"{journal(directory).name} has a hole at byte 4,096: zeros in place of lines"]
    assert count(runs(tmp_path)) == whole - is_finished


def test_hole_in_a_file_before_the_last_is_reported_until_it_is_repaired(tmp_path):
    directory = long_run(tmp_path, is_finished=False)
    append(directory, row(300, loss=1.0), ended(300), number=1)
    data = journal(directory).read_bytes()
    journal(directory).write_bytes(with_a_hole(data))
    found = runs(tmp_path)
    before = (len(holes(tmp_path)), 200 < count(found) < 301)
    journal(directory).write_bytes(data)
    assert (before, count(found), holes(tmp_path)) == ((1, True), 301, [])


@pytest.mark.parametrize("tail", [b"", bytes(9000), b'{"kind' + bytes(99), b'{"kind'])
def test_killed_run_without_a_hole_has_none(tmp_path, tail):
    directory = long_run(tmp_path, is_finished=False)
    journal(directory).write_bytes(journal(directory).read_bytes() + tail)
    assert (holes(tmp_path), count(runs(tmp_path))) == ([], 300)


def test_run_with_a_piece_of_a_line_is_written_to_files_once(tmp_path):
    directory = long_run(tmp_path, is_finished=False)
    journal(directory).write_bytes(journal(directory).read_bytes() + b'{"kind')
    found = runs(tmp_path)
    assert [count(found), count(found), count(found)] == [300, 300, 300]
    assert [path.name for path in (tmp_path / ".hookline" / "runs").glob("*/metrics-*")] == ["metrics-1.parquet"]


FORK = """
import os, sys
from hookline.store import runs
found = runs(sys.argv[1])
print(len(found.metrics().rows()), flush=True)
child = os.fork()
if child == 0:
    print(len(found.metrics().rows()), found.note, len(runs(sys.argv[1]).refresh()), flush=True)
    found.close()
    os._exit(0)
print(os.waitpid(child, 0)[1], len(found.refresh().metrics().rows()), found.note)
"""


def test_handle_kept_over_a_fork_answers_from_an_index_of_its_own(tmp_path):
    finished_run(tmp_path)
    command = [sys.executable, "-c", FORK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    own = "3 the parent of this forked process is using it 1"
    assert (done.stdout.splitlines(), done.stderr) == (["3", own, "0 3 "], "")


LOCKED_FORK = """
import os, sys, threading
from hookline.store import runs
found = runs(sys.argv[1])
found.series("loss")
[columns] = found._store.columns(list(found))
columns.lock.acquire()  # as a thread that draws a chart at the fork
with found._store._columns._lock:
    child = os.fork()
    if child == 0:
        done = []
        thread = threading.Thread(target=lambda: done.extend(found.series("loss")), daemon=True)
        thread.start()
        thread.join(30)
        os._exit(0 if done and done[0].points == 3 else 1)
print(os.waitpid(child, 0)[1])
"""


def test_forked_child_draws_charts_whatever_its_parent_was_doing(tmp_path):
    finished_run(tmp_path)
    command = [sys.executable, "-c", LOCKED_FORK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert (done.stdout, done.stderr) == ("0\n", "")


DROPPED = """
import gc, os, sys
from hookline.store import runs
found = runs(sys.argv[1])
child = os.fork()
if child == 0:
    del found
    gc.collect()
    os._exit(0)
print(os.waitpid(child, 0)[1], len(found.metrics().rows()))
"""


def test_handle_that_a_forked_child_drops_does_nothing_to_it_or_its_parent(tmp_path):
    finished_run(tmp_path)
    command = [sys.executable, "-c", DROPPED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert (done.stdout, done.stderr) == ("0 3\n", "")


def test_closed_index_is_opened_again_by_the_next_use_of_any_handle(tmp_path):
    finished_run(tmp_path)
    first, second = runs(tmp_path), runs(tmp_path)
    first.close()
    first.close()
    answers = [count(second), count(first), len(second.refresh())]
    second.close()
    assert answers == [3, 3, 1]
    assert [line.points for line in first.series("loss")] == [3]
    assert (first.note, first.notes) == ("", [])


def test_closed_index_can_be_had_by_another_process_and_the_next_use_is_private(tmp_path):
    finished_run(tmp_path)
    found = runs(tmp_path)
    assert count(found) == 3
    found.close()
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "has it: \n"
        assert (count(found), found.note) == (3, "another process is using it")
        other.communicate("\n")


HOLDER = """
import sys
from hookline.store import runs
found = runs(sys.argv[1])
print("has it:", found.note, flush=True)
sys.stdin.readline()
"""


def test_store_is_the_same_for_everybody_also_after_it_was_closed(tmp_path):
    finished_run(tmp_path)
    store = open_store(tmp_path)
    store.close()
    assert open_store(tmp_path) is store
    assert [info.id for info in store.list_runs(Liveness())] == ["p/r0"]
