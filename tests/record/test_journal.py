"""The journal: what it keeps, and under which faults."""

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import wait_until

import hookline as hl
from hookline.record.journal import Journal
from hookline.record.reader import lines
from hookline.record.records import Metrics, sealed
from hookline.record.segment import files


def given(line):
    """A line as it was given to `append`, without its number, its checksum and the brace at its end."""
    return re.sub(rb',"#":\d+,"crc":"[0-9a-f]+"\}\Z', b"", line)


def size(line, number):
    """The bytes that a line of a number takes in its file, given without its brace."""
    return len(sealed(line + b"}", number)) + 1


def contents(directory):
    return [given(line).decode() for file in files(directory) for line, _ in lines(file.path)]


def test_journal_lines_are_read_back_while_open_and_after_close(tmp_path):
    journal = Journal(tmp_path)
    journal.append(b"one}")
    journal.append(b"two}")
    while_open = contents(tmp_path)
    journal.close()
    assert (while_open, contents(tmp_path)) == (["one", "two"], ["one", "two"])


def test_journal_rotates_segments_and_gives_back_what_it_did_not_use(tmp_path):
    journal = Journal(tmp_path, segment_bytes=8192)
    written = [f"{i:05d}" + "x" * 500 for i in range(100)]
    for line in written:
        journal.append(line.encode() + b"}")
    journal.close()
    assert contents(tmp_path) == written
    sizes = [file.path.stat().st_size for file in files(tmp_path)]
    assert sum(sizes) == journal.bytes_written == sum(size(line.encode(), n) for n, line in enumerate(written))
    assert len(sizes) > 5


def test_journal_line_larger_than_a_segment_gets_one_of_its_own(tmp_path):
    journal = Journal(tmp_path, segment_bytes=8192)
    for line in (b"small", b"L" * 100_000, b"after"):
        assert journal.append(line + b"}")
    journal.close()
    assert [len(line) for line in contents(tmp_path)] == [5, 100_000, 5]


def test_journal_torn_tail_is_left_out(tmp_path):
    journal = Journal(tmp_path)
    for line in (b'{"a": 1}', b'{"b": 2}'):
        journal.append(line)
    file = files(tmp_path)[0]
    whole = file.path.read_bytes().rstrip(b"\0")
    for cut in range(len(whole) + 1):
        (tmp_path / "main-0009-1-aa-000000.jsonl").write_bytes(whole[:cut] + bytes(50))
        found = [given(line) for line, _ in lines(tmp_path / "main-0009-1-aa-000000.jsonl")]
        assert found == [b'{"a": 1', b'{"b": 2'][: whole[:cut].count(b"\n")]
    journal.close()


def test_journal_threads_share_one_writer(tmp_path):
    journal = Journal(tmp_path, segment_bytes=8192)
    gate = threading.Barrier(4)

    def write(label):
        gate.wait()
        for i in range(500):
            journal.append(f"{label}{i}}}".encode())

    threads = [threading.Thread(target=write, args=(label,)) for label in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    found = contents(tmp_path)
    assert len(found) == 2000
    assert [line for line in found if line[0] == "b"] == [f"b{i}" for i in range(500)]


def test_journal_forked_child_writes_to_a_file_of_its_own(tmp_path):
    code = """
        import os, sys
        from pathlib import Path
        from hookline.record.journal import Journal
        journal = Journal(Path(sys.argv[1]))
        journal.append(b"parent before}")
        pid = os.fork()
        if pid == 0:
            journal.append(b"child}")
            journal.close()
            os._exit(0)
        os.waitpid(pid, 0)
        journal.append(b"parent after}")
        journal.close()
    """
    subprocess.run([sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines()), tmp_path], check=True)
    by_writer = {}
    for file in files(tmp_path):
        by_writer.setdefault(file.writer, []).extend(given(line) for line, _ in lines(file.path))
    assert sorted(by_writer.values()) == [[b"child"], [b"parent before", b"parent after"]]


def test_journal_each_start_is_a_new_session(tmp_path):
    for _ in range(3):
        journal = Journal(tmp_path)
        journal.append(b"x}")
        journal.close()
    other = Journal(tmp_path, name="rank1")
    assert [file.session for file in files(tmp_path)] == [0, 1, 2]
    assert other.session == 0
    other.close()


def test_journal_sync_reports_a_file_that_the_background_could_not_sync(tmp_path, monkeypatch, caplog):
    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr("os.fdatasync", fail)
        journal = Journal(tmp_path, segment_bytes=8192, durability="checkpoint")
        for _ in range(20):
            journal.append(b"x" * 1000 + b"}")
        wait_until(lambda: "cannot be brought to the disk" in caplog.text)
    with pytest.raises(OSError, match="Input/output error"):
        journal.sync()
    journal.sync()
    journal.close()


def test_journal_signal_handler_may_append_in_the_middle_of_an_append(tmp_path):
    journal = Journal(tmp_path, segment_bytes=64 << 10)
    previous = signal.signal(signal.SIGALRM, lambda *_: journal.append(b"from the handler}"))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        for i in range(20_000):
            journal.append(b"%d}" % i)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    journal.close()
    found = contents(tmp_path)
    assert [line for line in found if line[0] != "f"] == [str(i) for i in range(20_000)]
    assert "from the handler" in found


@pytest.fixture
def small_disk(tmp_path):
    """A file system of two megabytes."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_journal_on_a_full_disk_goes_on_and_resumes_when_there_is_room(small_disk, caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("hookline.record.journal.time.monotonic", lambda: now[0])
    gaps = []
    journal = Journal(small_disk, segment_bytes=1 << 20, on_gap=gaps.append)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(1 << 19))
    results = [journal.append(b"x" * 1000 + b"}") for _ in range(2000)]
    lost = results.count(False)
    filler.unlink()
    while_full = journal.append(b"y" * 1000 + b"}")
    now[0] += 10
    assert (lost > 0, while_full, journal.append(b"z" * 1000 + b"}")) == (True, False, True)
    journal.close()
    assert (journal.lost, gaps) == (lost + 1, [lost + 1])
    assert contents(small_disk)[-1] == "z" * 1000
    assert len(contents(small_disk)) == results.count(True) + 1
    assert sum("RECORDS ARE LOST" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("is_mapped", [True, False])
def test_resume_mark_on_a_full_disk_is_written_before_the_first_row(small_disk, monkeypatch, is_mapped):
    now = [0.0]
    monkeypatch.setattr("hookline.record.journal.time.monotonic", lambda: now[0])
    monkeypatch.setattr("hookline.record.journal.can_map", lambda directory: is_mapped)
    session = hl.Recorder(small_disk, segment_bytes=8192)
    for step in (1, 2, 3):
        session.log(loss=1.0, step=step)
    session.close()
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))
    session = hl.Recorder(small_disk, segment_bytes=8192)
    session.resume(1)
    session.log(loss=2.0, step=2)
    filler.unlink()
    now[0] += 10
    session.log(loss=2.0, step=3)
    session.close()
    found = [json.loads(line + "}") for line in contents(small_disk / "journal")[3:]]
    assert [record.get("name", record.get("step")) for record in found] == ["resume", "records_lost", 3]
    assert [(record.step, record.values["loss"]) for record in metrics(small_disk)] == [(1, 1.0), (3, 2.0)]
    assert (session.journal.lost, found[1]["data"]) == (1, {"count": 1})


class SmallDisk:
    """Writes as much as there is room for, as `os.write` does."""

    def __init__(self, room):
        self.room, self._write = room, os.write

    def write(self, descriptor, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(descriptor, data[: self.room])
        self.room -= written
        return written


@pytest.mark.parametrize("room", range(0, 40, 4))
def test_journal_of_plain_appends_ends_a_torn_line_before_the_next(tmp_path, monkeypatch, room):
    now, disk = [0.0], SmallDisk(size(b"one", 0) + room)
    monkeypatch.setattr("hookline.record.journal.time.monotonic", lambda: now[0])
    monkeypatch.setattr("hookline.record.journal.can_map", lambda directory: False)
    monkeypatch.setattr("os.write", disk.write)
    journal = Journal(tmp_path)
    results = [journal.append(b"one}"), journal.append(b"another}")]
    for disk.room in (1, 0, 5, 100):
        now[0] += 10
        results.append(journal.append(b"third%d}" % disk.room))
    journal.close()
    given = ["one", "another", "third1", "third0", "third5", "third100"]
    kept = [line for line, was_kept in zip(given, results, strict=True) if was_kept]
    fitting = given[: 1 + (room >= size(b"another", 1))]
    assert [line for line in contents(tmp_path) if line in given] == kept == [*fitting, "third100"]
    assert (journal.lost, journal.bytes_written) == (results.count(False), files(tmp_path)[0].path.stat().st_size)


def test_resume_mark_behind_a_torn_line_is_read_back(tmp_path, monkeypatch):
    now, disk = [0.0], SmallDisk(5)
    monkeypatch.setattr("hookline.record.journal.time.monotonic", lambda: now[0])
    monkeypatch.setattr("hookline.record.journal.can_map", lambda directory: False)
    monkeypatch.setattr("os.write", disk.write)
    session = hl.Recorder(tmp_path)
    session.resume(1)
    disk.room, now[0] = 1000, 10.0
    session.log(loss=2.0, step=2)
    session.close()
    found = list(hl.read(tmp_path))
    assert [getattr(record, "name", "row") for record in found] == ["resume", "records_lost", "row"]


def metrics(run_dir):
    return [record for record in hl.read(run_dir) if isinstance(record, Metrics)]


def test_journal_where_files_cannot_be_preallocated_uses_plain_appends_and_says_so_once(tmp_path, caplog, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    journal = Journal(tmp_path)
    for i in range(3):
        assert journal.append(b"line %d}" % i)
    while_open = contents(tmp_path)
    journal.close()
    assert while_open == contents(tmp_path) == ["line 0", "line 1", "line 2"]
    assert ["plain appends" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("is_mapped", [True, False])
def test_journal_power_durability_syncs_off_the_training_thread(tmp_path, monkeypatch, is_mapped):
    monkeypatch.setattr("hookline.record.journal.can_map", lambda directory: is_mapped)
    synced = threading.Event()
    threads = []

    def note(descriptor):
        threads.append(threading.current_thread().name)
        synced.set()

    monkeypatch.setattr("os.fdatasync", note)
    journal = Journal(tmp_path, durability="power", sync_seconds=0.01)
    journal.append(b"x}")
    assert synced.wait(30)
    assert threads[0] == "hookline-journal"
    journal.close()


class FailingDisk:
    """Brings nothing to the disk; counts how often it was asked."""

    def __init__(self):
        self.asked = 0

    def sync(self, descriptor):
        self.asked += 1
        raise OSError(errno.EIO, "Input/output error")


def open_descriptors(directory):
    """The files in a directory that this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if link.readlink().is_relative_to(directory)]


def test_journal_whose_syncs_fail_says_so_once_and_keeps_no_descriptors(tmp_path, monkeypatch, caplog):
    disk = FailingDisk()
    monkeypatch.setattr("os.fdatasync", disk.sync)
    journal = Journal(tmp_path, durability="power", sync_seconds=0.01)
    journal.append(b"one}")
    wait_until(lambda: disk.asked > 5)
    with pytest.raises(OSError, match="Input/output"):
        journal.close()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "cannot be brought to the disk (Input/output error)" in said[0]
    assert (open_descriptors(tmp_path), contents(tmp_path)) == ([], ["one"])


def test_journal_whose_last_sync_fails_is_closed_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fdatasync", FailingDisk().sync)
    journal = Journal(tmp_path, segment_bytes=8192, durability="power", sync_seconds=1000)
    for line in (b"one", b"L" * 100_000, b"after"):
        journal.append(line + b"}")
    with pytest.raises(OSError, match="Input/output"):
        journal.close()
    journal.close()
    assert (open_descriptors(tmp_path), list(tmp_path.glob("*.prepared"))) == ([], [])
    assert (journal.append(b"late}"), [len(line) for line in contents(tmp_path)]) == (False, [3, 100_000, 5])


def test_journal_whose_sync_fails_in_one_file_brings_the_others_to_the_disk(tmp_path, monkeypatch):
    asked = []

    def fail_once(descriptor):
        asked.append(descriptor)
        if len(asked) == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.fdatasync", fail_once)
    journal = Journal(tmp_path, segment_bytes=8192, durability="power", sync_seconds=1000)
    for line in (b"one", b"L" * 100_000):
        journal.append(line + b"}")
    with pytest.raises(OSError, match="Input/output"):
        journal.sync()
    journal.close()
    assert len(asked) == 3


def test_journal_whose_segments_cannot_be_cut_is_closed_all_the_same(tmp_path, monkeypatch):
    def refuse(descriptor, size):
        raise OSError(errno.EIO, "Input/output error")

    journal = Journal(tmp_path)
    journal.append(b"one}")
    monkeypatch.setattr("os.ftruncate", refuse)
    with pytest.raises(OSError, match="Input/output"):
        journal.close()
    assert (open_descriptors(tmp_path), list(tmp_path.glob("*.prepared")), contents(tmp_path)) == ([], [], ["one"])


def test_journal_closed_counts_further_lines_as_lost(tmp_path):
    journal = Journal(tmp_path)
    journal.append(b"x}")
    journal.close()
    journal.close()
    assert (journal.append(b"y}"), journal.lost, contents(tmp_path)) == (False, 1, ["x"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"segment_bytes": 10}, "segment_bytes=10"),
        ({"durability": "luck"}, "durability='luck'"),
        ({"name": "a-b"}, "name='a-b'"),
        ({"name": "w" * 101}, "name='www.*100 bytes at most"),
        ({"name": "é" * 51}, "name='ééé.*100 bytes at most"),
    ],
)
def test_journal_bad_options_are_errors(tmp_path, options, message):
    with pytest.raises(hl.OptionError, match=message):
        Journal(tmp_path, **options)


def test_journal_killed_a_thousand_times_loses_nothing(tmp_path):
    script = Path(__file__).with_name("kill_many.py")
    done = subprocess.run([sys.executable, script, tmp_path, "1000"], capture_output=True, text=True, check=True)
    counted = json.loads(done.stdout)
    print(counted)
    assert counted.pop("rows") > 10_000
    assert counted == {"kills": 1000, "lost": 0, "duplicates": 0, "unreadable": 0}


def test_journals_of_one_name_at_the_same_time_leave_each_other_alone(tmp_path):
    first = Journal(tmp_path, segment_bytes=8192)
    second = Journal(tmp_path, segment_bytes=8192)
    written = [f"{name} {i} " + "x" * 500 for i in range(60) for name in ("first", "second")]
    for line in written:
        assert (first if line.startswith("first") else second).append(line.encode() + b"}")
    first.close()
    second.close()
    assert (sorted(contents(tmp_path)), first.lost, second.lost) == (sorted(written), 0, 0)


def test_journal_whose_prepared_segment_was_taken_away_makes_another(tmp_path):
    journal = Journal(tmp_path)
    for prepared in tmp_path.glob("*.prepared"):
        prepared.unlink()
    assert journal.append(b"one}")
    journal.close()
    assert (contents(tmp_path), journal.lost) == (["one"], 0)


KILLED = """
import os, signal, sys
from hookline.record.journal import Journal
journal = Journal(sys.argv[1])
journal.append(b"one}")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_journal_gives_back_what_a_killed_session_had_set_aside(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False, timeout=60)
    before = sum(file.stat().st_size for file in tmp_path.iterdir())
    Journal(tmp_path).close()
    assert (before > 1 << 20, [file.stat().st_size for file in tmp_path.iterdir()]) == (True, [size(b"one", 0)])
    assert contents(tmp_path) == ["one"]


def test_journal_leaves_what_another_is_writing_to_alone(tmp_path):
    first = Journal(tmp_path)
    first.append(b"one}")
    Journal(tmp_path).close()
    first.append(b"two}")
    first.close()
    assert contents(tmp_path) == ["one", "two"]
