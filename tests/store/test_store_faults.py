"""What the store makes of journals and of an index that are cut, replaced, deleted, damaged or shared."""

import contextlib
import errno
import gc
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from recorded_runs import (
    append,
    close,
    ended,
    finished_run,
    journal,
    make_run,
    resumed,
    row,
    what_read_says,
    what_store_says,
)

import hookline as hl
from hookline._record import run_directory
from hookline._record.records import Event
from hookline.store import compaction, runs
from hookline.store.index import DamagedIndexError
from hookline.store.run_contents import saved_checkpoints


@pytest.fixture(autouse=True)
def parquet_for_every_run(monkeypatch):
    """Parquet files for the smallest ended run: usually those stay in the database."""
    monkeypatch.setattr("hookline.store.ingest.COMPACT_ROWS", 0)


def losses(found, run=None):
    chosen = found if run is None else found.filter(id=run)
    return [each["value"] for each in chosen.metrics("loss")]


def live_run(root):
    directory = make_run(root)
    run_directory.acquire(directory)
    return directory


def problems_of(root):
    found = runs(root)
    found.ingest()
    return found.refresh()[0].problems


def test_refresh_reads_only_what_is_new(tmp_path):
    directory = live_run(tmp_path)
    append(directory, *[row(step, loss=1.0) for step in range(100)])
    found = runs(tmp_path)
    taken = [found.ingest(), found.ingest()]
    append(directory, row(100, loss=1.0), row(101, loss=1.0))
    taken.append(found.ingest())
    assert [(each.runs, each.rows) for each in taken] == [(1, 100), (0, 0), (1, 2)]
    run_directory.release(directory)


def test_live_refresh_follows_a_run_while_it_writes(tmp_path):
    with hl.run("live", summary=False) as run:
        found = runs("runs")
        seen = []
        for step in run.steps(30):
            run.log(loss=float(step))
            if step % 10 == 5:
                seen.append(len(losses(found)))
    found.refresh()
    assert seen == [5, 15, 25]  # the row of a step is written when the step is complete
    assert losses(found) == [float(step) for step in range(30)]


def test_resume_takes_back_rows_that_were_read_before(tmp_path):
    directory = live_run(tmp_path)
    append(directory, *[row(step, loss=1.0) for step in range(1, 6)])
    found = runs(tmp_path)
    before = losses(found)
    append(directory, resumed(3), row(4, loss=2.0, time=50.0), session=1)
    assert (before, losses(found)) == ([1.0] * 5, [1.0, 1.0, 1.0, 2.0])
    run_directory.release(directory)


def test_resume_of_a_run_that_was_compacted_takes_back_rows_of_its_files(tmp_path):
    directory = finished_run(tmp_path, losses=(1.0, 1.0, 1.0))
    found = runs(tmp_path)
    before = losses(found)
    append(directory, resumed(2), row(3, loss=2.0, time=50.0), session=1)
    run_directory.acquire(directory)
    live = losses(found.refresh())
    append(directory, row(4, loss=3.0, time=51.0), ended(4), session=1)
    run_directory.release(directory)
    assert (before, live, losses(found.refresh())) == ([1.0] * 3, [1.0, 1.0, 2.0], [1.0, 1.0, 2.0, 3.0])
    assert found._store.index.state("p/r0").read.is_compact


def test_evaluation_done_again_replaces_the_one_before(tmp_path):
    directory = live_run(tmp_path)
    append(directory, row(2, "eval", loss=5.0), row(4, "eval", loss=4.0))
    found = runs(tmp_path)
    found.ingest()
    append(directory, row(2, "eval", loss=1.0, time=9.0), session=1)
    assert losses(found) == [1.0, 4.0]
    run_directory.release(directory)


def test_evaluation_done_again_in_part_keeps_the_names_that_were_not(tmp_path):
    directory = live_run(tmp_path)
    append(directory, row(5, "eval", acc=0.5, ppl=5.0))
    found = runs(tmp_path)
    found.ingest()
    append(directory, row(5, "eval", acc=0.9, time=9.0), session=1)
    rows = {each["name"]: each["value"] for each in found.metrics() if each["axis"] == "eval"}
    run_directory.release(directory)
    assert rows == {"acc": 0.9, "ppl": 5.0}
    assert what_store_says(found, "p/r0") == what_read_says(directory)


def test_rows_of_several_writers_carry_their_names(tmp_path):
    directory = finished_run(tmp_path, losses=(1.0,))
    append(directory, row(1, loss=2.0), name="rank1")
    found = {(each["writer"], each["name"]): each["value"] for each in runs(tmp_path).metrics()}
    assert found == {("main", "loss"): 1.0, ("rank1", "rank1/loss"): 2.0}


def test_journal_cut_anywhere_shows_what_is_whole_and_says_what_is_cut(tmp_path):
    whole = journal(finished_run(tmp_path / "whole")).read_bytes()
    directory = finished_run(tmp_path / "root", started=1000.0)
    found = runs(tmp_path / "root")
    for cut in range(0, len(whole), 41):
        journal(directory).write_bytes(whole[:cut])
        assert what_store_says(found, "p/r0") == what_read_says(directory)
        said = any("is cut off" in problem for problem in found.refresh()[0].problems)
        assert said == (cut > 0 and whole[cut - 1 : cut] != b"\n")


def test_journal_that_shrank_or_was_replaced_is_read_again_and_says_so(tmp_path):
    directory = live_run(tmp_path)
    append(directory, *[row(step, loss=1.0) for step in range(5)])
    found = runs(tmp_path)
    found.ingest()
    journal(directory).write_bytes(b"")
    append(directory, *[row(step, loss=2.0) for step in range(9)])
    assert losses(found) == [2.0] * 9
    Path(shutil.copy(journal(directory), directory / "copy")).replace(journal(directory))
    assert losses(found) == [2.0] * 9  # another file with the same contents is the same journal
    assert found.ingest().rows == 0
    journal(directory).unlink()
    append(directory, row(1, loss=3.0), number=1)
    assert losses(found) == [3.0]
    run_directory.release(directory)
    problems = found.refresh()[0].problems
    assert ["replaced" in problem or "is missing" in problem for problem in problems] == [True, True]


def test_lines_that_are_no_records_are_counted_and_the_rest_is_read(tmp_path):
    directory = make_run(tmp_path)
    journal(directory).write_bytes(b'nonsense\n{"kind":"metrics","step":"x"}\n')
    append(directory, row(1, loss=1.0), ended(1))
    assert problems_of(tmp_path) == ("2 lines are not records; skipped",)
    assert losses(runs(tmp_path)) == [1.0]


def test_line_with_a_flipped_bit_and_one_that_is_doubled_cost_those_lines_and_are_said(tmp_path):
    with hl.run(root=tmp_path, summary=False) as run:
        for step in run.steps(4):
            run.log(loss=float(step))
    (file,) = (run.dir / "journal").glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    flipped = lines[2].replace(b'"loss":1', b'"loss":9')
    file.write_bytes(b"".join([*lines[:2], flipped, lines[3], lines[3], *lines[4:]]))
    assert problems_of(tmp_path) == ("2 lines are not records; skipped",)
    assert losses(runs(tmp_path)) == [0.0, 2.0, 3.0]


def test_hole_in_a_journal_is_reported(tmp_path):
    directory = finished_run(tmp_path)
    data = bytearray(journal(directory).read_bytes())
    first = data.index(b"\n") + 1
    data[first : first + 10] = bytes(10)
    journal(directory).write_bytes(data)
    assert [problem for problem in problems_of(tmp_path) if "has a hole" in problem]
    assert losses(runs(tmp_path)) == [3.0, 1.0]


def test_files_that_are_missing_are_said_however_large_their_numbers_are(tmp_path):
    directory = finished_run(tmp_path)
    for number in (2, 5, 999_999_999):
        append(directory, ended(3), number=number)
    assert problems_of(tmp_path) == (
        "main-0000-1-abc-000001.jsonl is missing",
        "main-0000-1-abc-000003.jsonl to 000004.jsonl are missing: 2 files",
        "main-0000-1-abc-000006.jsonl to 999999998.jsonl are missing: 999,999,993 files",
    )


def test_files_that_are_missing_in_many_places_are_said_in_few_words(tmp_path):
    directory = finished_run(tmp_path)
    for number in range(2, 52, 2):
        append(directory, ended(3), number=number)
    *first, last = problems_of(tmp_path)
    assert [said.endswith("is missing") for said in first] == [True] * 10
    assert last == "and 15 more of the files are missing"


def test_clock_that_jumps_back_is_reported_and_nothing_is_lost(tmp_path):
    directory = make_run(tmp_path)
    rows = [row(1, loss=1.0, time=9000.0), row(2, loss=2.0, time=9001.0), row(3, loss=3.0, time=5401.0)]
    append(directory, *rows, ended(3, time=5402.0))
    problems = problems_of(tmp_path)
    found = runs(tmp_path)
    assert problems == ("the clock went back by 3,600 s at step 3: times are not in order",)
    assert (found[0].status, found[0].step, found[0].ended) == ("finished", 3, 5402.0)
    assert [line.y for line in found.series("loss")] == [[1.0, 2.0, 3.0]]
    assert [line.x for line in found.series("loss", x="time")] == [[5401.0, 9000.0, 9001.0]]


def test_records_lost_to_a_full_disk_are_said(tmp_path):
    directory = make_run(tmp_path)
    append(directory, Event(name="records_lost", data={"count": 12}), ended())
    assert problems_of(tmp_path) == ("12 records could not be written: the disk was full, or a journal was truncated",)


def test_run_deleted_meanwhile_is_gone_after_a_refresh_and_its_rows_with_it(tmp_path):
    finished_run(tmp_path, "stays")
    directory = finished_run(tmp_path, "goes")
    found = runs(tmp_path)
    assert len(losses(found)) == 6
    shutil.rmtree(directory)
    assert len(losses(found)) in (3, 6)  # as it was listed, without an error
    assert [info.id for info in found.refresh()] == ["p/stays"]
    assert len(losses(found)) == 3
    assert len(list((tmp_path / ".hookline" / "runs").iterdir())) == 1


def test_index_deleted_at_any_time_costs_only_a_rebuild(tmp_path):
    directory = live_run(tmp_path)
    append(directory, row(1, loss=1.0))
    finished_run(tmp_path, "done")
    found = runs(tmp_path)
    before = sorted(losses(found))
    shutil.rmtree(tmp_path / ".hookline")
    assert sorted(losses(found)) == before
    assert sorted(losses(found.refresh())) == before
    close(tmp_path)
    shutil.rmtree(tmp_path / ".hookline")
    assert sorted(losses(runs(tmp_path))) == before
    run_directory.release(directory)


def test_files_of_ended_runs_are_taken_over_without_reading_their_journals(tmp_path):
    finished_run(tmp_path)
    assert losses(runs(tmp_path)) == [3.0, 2.0, 1.0]
    close(tmp_path)
    (tmp_path / ".hookline" / "index.duckdb").unlink()
    found = runs(tmp_path)
    assert found.ingest().rows == 0
    assert losses(found) == [3.0, 2.0, 1.0]


@pytest.mark.parametrize("damage", [b"", b"garbage" * 1000, None])
def test_damaged_database_is_rebuilt(tmp_path, damage):
    directory = live_run(tmp_path)
    append(directory, row(1, loss=1.0))
    assert losses(runs(tmp_path)) == [1.0]
    close(tmp_path)
    database = tmp_path / ".hookline" / "index.duckdb"
    database.write_bytes(database.read_bytes()[:5000] if damage is None else damage)
    found = runs(tmp_path)
    assert (found.note, losses(found)) == ("", [1.0])
    run_directory.release(directory)


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_damage_within_the_database_is_found_when_it_is_read_and_then_rebuilt(tmp_path, place):
    directory, rng = live_run(tmp_path), random.Random(0)
    given = [rng.random() for _ in range(20_000)]
    append(directory, *[row(step, loss=value) for step, value in enumerate(given)])
    assert losses(runs(tmp_path)) == given
    close(tmp_path)
    damage(tmp_path / ".hookline" / "index.duckdb", place)
    append(directory, row(20_000, loss=2.0))
    found = runs(tmp_path)
    with contextlib.suppress(DamagedIndexError):  # which is said once, where only the query reads the damaged part
        losses(found)
    assert (losses(found.refresh()), found.note) == ([*given, 2.0], "")
    run_directory.release(directory)


def damage(path, place):
    """Change some bytes in the middle of a file."""
    content = bytearray(path.read_bytes())
    begin = int(len(content) * place)
    content[begin : begin + 1000] = random.Random(1).randbytes(1000)
    path.write_bytes(content)


def test_index_of_another_version_is_rebuilt(tmp_path, monkeypatch):
    finished_run(tmp_path)
    assert len(losses(runs(tmp_path))) == 3
    close(tmp_path)
    monkeypatch.setattr("hookline.store.index.VERSION", 99)
    monkeypatch.setattr("hookline.store.compaction.VERSION", 99)
    found = runs(tmp_path)
    assert (found.ingest().rows, len(losses(found))) == (4, 3)


def test_damaged_parquet_file_is_rebuilt(tmp_path):
    finished_run(tmp_path)
    found = runs(tmp_path)
    expected = losses(found)
    index = found._store.index
    for path in compaction.paths(index, "p/r0", index.state("p/r0").read).values():
        path.write_bytes(path.read_bytes()[:-20])
    assert losses(found) == expected


@contextlib.contextmanager
def no_room_for(name):
    """No file of this name can be written."""
    write_bytes = Path.write_bytes

    def write(path, data):
        if name in path.name:
            write_bytes(path, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write_bytes(path, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_bytes", write)
        yield


def test_run_whose_files_find_no_room_keeps_its_rows_until_they_do(tmp_path):
    directory = live_run(tmp_path)
    append(directory, *[row(step, loss=1.0) for step in range(5)])
    found = runs(tmp_path)
    counts = [len(losses(found))]
    run_directory.release(directory)
    with no_room_for("run.json"):
        counts += [len(losses(found.refresh())), len(losses(found))]
        left = [path for path in (tmp_path / ".hookline" / "runs").rglob("*") if path.is_file()]
        was_compact = found._store.index.state("p/r0").read.is_compact
    counts += [len(losses(found)), len(losses(found.refresh()))]
    assert (counts, left, was_compact) == ([5] * 5, [], False)
    assert found._store.index.state("p/r0").read.is_compact
    assert what_store_says(found, "p/r0") == what_read_says(directory)


def test_compacted_run_that_continues_keeps_its_rows_where_new_files_find_no_room(tmp_path):
    directory = finished_run(tmp_path, losses=(1.0, 1.0))
    found = runs(tmp_path)
    counts = [len(losses(found))]
    append(directory, row(3, loss=1.0), ended(3))
    with no_room_for("run.json"):
        counts += [len(losses(found.refresh())), len(losses(found))]
    counts += [len(losses(found)), len(losses(found.refresh()))]
    assert counts == [2, 3, 3, 3, 3]
    assert found._store.index.state("p/r0").read.is_compact
    assert what_store_says(found, "p/r0") == what_read_says(directory)


def test_directory_that_cannot_be_written_gets_a_private_index(tmp_path):
    finished_run(tmp_path)
    (tmp_path / ".hookline").write_text("a file where the folder should be")
    found = runs(tmp_path)
    assert found.note
    assert losses(found) == [3.0, 2.0, 1.0]


def test_project_and_run_with_odd_names_are_found_and_kept_apart(tmp_path):
    root = tmp_path / "ro[o]t *'s"
    for name in ("a b", "it's", "x*[1]?", "ü"):
        finished_run(root, name, losses=(1.0, 2.0), project="p 'q' [*]")
    found = runs(root)
    assert [losses(found, info.id.replace("*", "?")) or losses(found, info.id) for info in found] == [[1.0, 2.0]] * 4
    assert losses(found.refresh()) == [1.0, 2.0] * 4


SECOND_PROCESS = """
import sys
from hookline.store import runs
found = runs(sys.argv[1])
print(found.note, len(found.metrics("loss").rows()), found.sql("SELECT count(*) AS n FROM metrics").rows()[0]["n"])
"""


def test_second_process_on_one_store_answers_the_same_from_a_private_index(tmp_path):
    directory = live_run(tmp_path)
    append(directory, row(1, loss=1.0))
    finished_run(tmp_path, "done")
    found = runs(tmp_path)
    found.ingest()
    command = [sys.executable, "-c", SECOND_PROCESS, str(tmp_path)]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (second.stdout, second.stderr) == ("another process is using it 4 4\n", "")
    assert (found.note, len(losses(found))) == ("", 4)
    run_directory.release(directory)


def parquet_of(root):
    return sorted(path.name for path in (root / ".hookline" / "runs").glob("*/metrics-*.parquet"))


def test_files_of_earlier_compactions_are_removed(tmp_path):
    directory = finished_run(tmp_path)
    found = runs(tmp_path)
    kept = []
    for more in range(3):
        append(directory, row(4 + more, loss=0.5), ended(4 + more))
        kept.append((len(losses(found)), parquet_of(tmp_path)))
    assert kept == [(4 + more, [f"metrics-{1 + more}.parquet"]) for more in range(3)]


READER = """
import sys
from hookline.store.run_summary import Liveness
from hookline.store.store import open_store
store = open_store(sys.argv[1])
with store.snapshot(store.list_runs(Liveness()), "metrics") as cursor:
    print("begun", flush=True)
    sys.stdin.readline()
    print(cursor.execute("SELECT count(*) FROM metrics").fetchone()[0])
"""


def test_files_that_a_query_of_another_process_reads_are_kept_until_it_has(tmp_path):
    directory = finished_run(tmp_path)
    found = runs(tmp_path)
    found.ingest()
    command = [sys.executable, "-c", READER, str(tmp_path)]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdout.readline() == "begun\n"
    append(directory, row(4, loss=0.5), ended(4))
    during = (len(losses(found)), parquet_of(tmp_path))
    assert (during, reader.communicate("\n")[0]) == ((4, ["metrics-1.parquet", "metrics-2.parquet"]), "3\n")
    assert (len(losses(found)), parquet_of(tmp_path)) == (4, ["metrics-2.parquet"])


def test_files_that_nothing_names_are_removed_by_the_next_index(tmp_path):
    for run in ("r0", "gone"):
        finished_run(tmp_path, run)
    assert len(losses(runs(tmp_path))) == 6
    close(tmp_path)
    (folder,) = (tmp_path / ".hookline" / "runs").glob("p_r0-*")
    shutil.copy(folder / "metrics-1.parquet", folder / "metrics-7.parquet")  # of a process that died while it wrote
    shutil.rmtree(tmp_path / "p" / "gone")
    (tmp_path / ".hookline" / "index.duckdb").unlink()  # without it, nothing tells that there was such a run
    assert (len(losses(runs(tmp_path))), parquet_of(tmp_path)) == (3, ["metrics-1.parquet"])
    assert [path.name for path in (tmp_path / ".hookline" / "runs").iterdir()] == [folder.name]


def test_forked_child_leaves_the_index_of_its_parent_alone(tmp_path):
    finished_run(tmp_path)
    found = runs(tmp_path)
    expected = losses(found)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put((runs(tmp_path).note, losses(runs(tmp_path)))))
    child.start()
    child.join(60)
    assert answers.get() == ("the parent of this forked process is using it", expected)
    assert losses(found) == expected


def test_threads_that_query_while_a_run_grows_and_ends_never_miss_a_row(tmp_path):
    directory = live_run(tmp_path)
    append(directory, *[row(step, loss=1.0) for step in range(1, 101)])
    found = runs(tmp_path)
    counts, errors = [], []

    def query():
        try:
            counts.extend(len(losses(found)) for _ in range(8))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=query) for _ in range(3)]
    for thread in threads:
        thread.start()
    append(directory, *[row(step, loss=1.0) for step in range(101, 201)], ended(200))
    run_directory.release(directory)
    runs(tmp_path).ingest()  # moves the rows to files
    for thread in threads:
        thread.join()
    assert errors == []
    assert (len(counts), min(counts) >= 100) == (24, True)
    assert len(losses(found)) == 200


def test_store_that_nobody_holds_lets_go_of_its_index(tmp_path):
    finished_run(tmp_path)
    runs(tmp_path).ingest()
    gc.collect()
    command = [sys.executable, "-c", SECOND_PROCESS, str(tmp_path)]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (second.stdout, second.stderr) == (" 3 3\n", "")


@pytest.mark.parametrize("kind", ["pipe", "deep"])
def test_files_of_a_hostile_run_neither_block_nor_fail(tmp_path, kind):
    good, hostile = (finished_run(tmp_path, name) for name in ("good", "hostile"))
    saved = good / "checkpoints" / "step-1"
    saved.mkdir(parents=True)
    (hostile / "run.json").unlink()
    for path in (saved / "manifest.json", hostile / "run.json"):
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.write_text("[" * 100_000)
    [found] = saved_checkpoints(good)
    assert (found.step, "its manifest.json" in found.damage) == (None, True)
    assert hl.control("latest", root=tmp_path).run_dir == good
