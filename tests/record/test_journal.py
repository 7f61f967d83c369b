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
from hookline._record.journal import Journal
from hookline._record.reader import Cursor, read_lines
from hookline._record.records import Metrics, seal_line
from hookline._record.segment import journal_files


def given(line):
    """A line as it was given to `append`, without its number, its checksum and the brace at its end."""
    return re.sub(rb',"#":\d+,"crc":"[0-9a-f]+"\}\Z', b"", line)


def size(line, number):
    """The bytes that a line of a number takes in its file, given without its brace."""
    return len(seal_line(line + b"}", number)) + 1


def contents(directory):
    return [given(line).decode() for file in journal_files(directory) for line, _ in read_lines(file.path)]


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
    sizes = [file.path.stat().st_size for file in journal_files(tmp_path)]
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
    file = journal_files(tmp_path)[0]
    whole = file.path.read_bytes().rstrip(b"\0")
    for cut in range(len(whole) + 1):
        (tmp_path / "main-0009-1-aa-000000.jsonl").write_bytes(whole[:cut] + bytes(50))
        found = [given(line) for line, _ in read_lines(tmp_path / "main-0009-1-aa-000000.jsonl")]
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
        from hookline._record.journal import Journal
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
    for file in journal_files(tmp_path):
        by_writer.setdefault(file.writer, []).extend(given(line) for line, _ in read_lines(file.path))
    assert sorted(by_writer.values()) == [[b"child"], [b"parent before", b"parent after"]]


def test_journal_each_start_is_a_new_session(tmp_path):
    for _ in range(3):
        journal = Journal(tmp_path)
        journal.append(b"x}")
        journal.close()
    other = Journal(tmp_path, name="rank1")
    assert [file.session for file in journal_files(tmp_path)] == [0, 1, 2]
    assert other.session == 0
    other.close()


def test_journal_that_joins_continues_the_latest_session_beside_its_writer(tmp_path):
    journals = []
    for options, line in (({}, b"one}"), ({}, b"two}"), ({"joins": True}, b"three}")):
        journals.append(Journal(tmp_path, **options))
        journals[-1].append(line)
    for journal in journals:
        journal.close()
    assert [journal.session for journal in journals] == [0, 1, 1]
    assert sorted(contents(tmp_path)) == ["one", "three", "two"]


def test_journal_sync_reports_a_file_that_the_background_could_not_sync(tmp_path, monkeypatch, caplog):
    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr("os.fdatasync", fail)
        journal = Journal(tmp_path, segment_bytes=8192, durability="checkpoint")
        for _ in range(20):
            journal.append(b"x" * 1000 + b"}")
        wait_until(lambda: "cannot be synced to the disk" in caplog.text)
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


def test_journal_on_a_full_disk_continues_and_resumes_when_there_is_room(small_disk, caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("hookline._record.journal.time.monotonic", lambda: now[0])
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
    monkeypatch.setattr("hookline._record.journal.time.monotonic", lambda: now[0])
    monkeypatch.setattr("hookline._record.journal.can_map", lambda directory: is_mapped)
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
    monkeypatch.setattr("hookline._record.journal.time.monotonic", lambda: now[0])
    monkeypatch.setattr("hookline._record.journal.can_map", lambda directory: False)
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
    size_on_disk = journal_files(tmp_path)[0].path.stat().st_size
    assert (journal.lost, journal.bytes_written) == (results.count(False), size_on_disk)


def test_resume_mark_behind_a_torn_line_is_read_back(tmp_path, monkeypatch):
    now, disk = [0.0], SmallDisk(5)
    monkeypatch.setattr("hookline._record.journal.time.monotonic", lambda: now[0])
    monkeypatch.setattr("hookline._record.journal.can_map", lambda directory: False)
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
    monkeypatch.setattr("hookline._record.journal.can_map", lambda directory: is_mapped)
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
    assert "cannot be synced to the disk (Input/output error)" in said[0]
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


def test_journal_killed_two_hundred_times_loses_nothing(tmp_path):
    script = Path(__file__).with_name("kill_many.py")
    done = subprocess.run([sys.executable, script, tmp_path, "200"], capture_output=True, text=True, check=True)
    counted = json.loads(done.stdout)
    print(counted)
    assert counted.pop("rows") > 2_000
    assert counted == {"kills": 200, "lost": 0, "duplicates": 0, "unreadable": 0}


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
from hookline._record.journal import Journal
journal = Journal(sys.argv[1])
journal.append(b"one}")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_journal_gives_back_what_a_killed_session_had_set_aside(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False, timeout=200)
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


class RaiseAtLine:
    """A tracer that raises at one of the lines that hookline runs, counted from when it is set."""

    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, _):
        if "hookline/_record" in frame.f_code.co_filename:
            if event == "line":
                self.left -= 1
                if self.left < 0:
                    raise KeyboardInterrupt
            return self
        return None


def rows_around_an_interrupt(directory, *, before, name, number):
    """The steps that are read where the row after ``before`` others is interrupted, and whether it was."""
    recorder = hl.Recorder(directory, segment_bytes=4096)
    for step in range(before):
        recorder.log(loss=1.0, step=step)
    was_interrupted, tracing = False, sys.gettrace()
    sys.settrace(RaiseAtLine(number))
    try:
        recorder.log({name: 1.0}, step=-1)
    except KeyboardInterrupt:
        was_interrupted = True
    finally:
        sys.settrace(tracing)
    for step in range(before, before + 60):
        recorder.log(loss=1.0, step=step)
    recorder.close()
    return was_interrupted, [record.step for record in hl.read(directory) if record.step >= 0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file that was just opened
@pytest.mark.parametrize(
    ("before", "name", "at_least"),
    # The last row is too large for what 25 rows leave of a segment, however many digits their times have.
    [(0, "loss", 50), (1, "loss", 10), (25, "loss" + "x" * 3000, 50)],
    ids=["first", "usual", "in a new file"],
)
def test_row_interrupted_at_any_line_of_code_hides_no_other(tmp_path, before, name, at_least):
    number, lost = 0, []
    while True:
        directory = tmp_path / str(number)
        was_interrupted, steps = rows_around_an_interrupt(directory, before=before, name=name, number=number)
        if steps != list(range(before + 60)):
            lost.append((number, steps))
        if not was_interrupted:
            break
        number += 1
    assert (lost, number > at_least) == ([], True)


def with_holes(file, holes):
    """Make zeros of the lines of a file from one number to another, newlines included."""
    data = file.read_bytes()
    ends = [0, *(match.end() for match in re.finditer(rb"\n", data))]
    for first, last in holes:
        data = data[: ends[first]] + bytes(ends[last] - ends[first]) + data[ends[last] :]
    file.write_bytes(data)


@pytest.mark.parametrize("is_open", [True, False])
def test_reader_skips_holes_and_reads_every_other_row(tmp_path, is_open):
    recorder = hl.Recorder(tmp_path)
    for step in range(3000):
        recorder.log(loss=1.0, step=step)
    if not is_open:
        recorder.close()
    (file,) = journal_files(tmp_path / "journal")
    before = file.path.read_bytes()
    with_holes(file.path, [(5, 6), (7, 9), (100, 500)])
    missing = {5, 7, 8, *range(100, 500)}
    assert [record.step for record in hl.read(tmp_path)] == [step for step in range(3000) if step not in missing]
    assert Cursor().behind(tmp_path / "journal") == len(before.rstrip(b"\0"))
    recorder.close()


def test_reader_reads_a_line_whose_newline_is_missing_before_others(tmp_path):
    recorder = hl.Recorder(tmp_path)
    for step in range(3):
        recorder.log(loss=1.0, step=step)
    (file,) = journal_files(tmp_path / "journal")
    end = file.path.read_bytes().index(b"\n")
    with file.path.open("r+b") as changed:
        os.pwrite(changed.fileno(), b"\0", end)
    assert [record.step for record in hl.read(tmp_path)] == [0, 1, 2]
    recorder.close()


def test_journal_of_a_killed_session_with_a_hole_keeps_what_is_behind_it(tmp_path):
    lines_of = KILLED.replace("journal.append(b", "for number in range(3000): journal.append(b'%d ' % number + b")
    subprocess.run([sys.executable, "-c", lines_of, tmp_path], check=False, timeout=200)
    (file,) = journal_files(tmp_path)
    written = len(file.path.read_bytes().rstrip(b"\0"))
    with_holes(file.path, [(1, 2900)])  # at which halving would end
    Journal(tmp_path).close()
    assert file.path.stat().st_size == written
    assert [line for line in contents(tmp_path) if line.strip()] == [f"{n} one" for n in (0, *range(2900, 3000))]


@pytest.mark.parametrize("rest", [b"", bytes(5000)], ids=["tidied", "as it was killed"])
def test_line_that_a_killed_process_was_copying_is_no_damage(tmp_path, rest, caplog):
    with hl.run("killed", root=tmp_path, summary=False) as run:
        for _ in run.steps(3):
            run.log(loss=1.0)
    (file,) = journal_files(run.dir / "journal")
    lines_before = file.path.read_bytes().splitlines(keepends=True)
    torn = b'{"kind":"metrics","step":3,"values":{"text":"xx\0\0\0\0xx"},"time":1.0}'  # its parts come in any order
    file.path.write_bytes(b"".join(lines_before[:-1]) + torn + rest)
    for digest in (run.dir / "journal").glob("*.sha256"):
        digest.unlink()
    steps = [record.step for record in hl.read(run.dir) if isinstance(record, Metrics)]
    assert (steps, caplog.messages) == ([1, 2, 3], [])
    (found,) = verified(run.dir)
    assert [each for each in found["findings"] if each["kind"] == "damage"] == []


TRAINS = """
import sys
import hookline as hl

with hl.run("trains", root=sys.argv[1], summary=False) as run:
    for step in run.steps(6000):
        run.log(loss=1.0)
        if step == 2999:
            print(run.dir, flush=True)
            sys.stdin.readline()
print(run.recorder.journal.lost)
"""


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.999], ids=["all", "half", "the end"])
def test_training_whose_journal_is_truncated_survives_and_reports_the_loss(tmp_path, kept):
    command = [sys.executable, "-c", TRAINS, tmp_path]
    training = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    directory = Path(training.stdout.readline().strip())
    (file,) = journal_files(directory / "journal")
    size = len(file.path.read_bytes().rstrip(b"\0"))
    os.truncate(file.path, int(size * kept))
    output, _ = training.communicate("\n", timeout=100)
    records = list(hl.read(directory))
    steps = [record.step for record in records if isinstance(record, Metrics)]
    lost = [record.data["count"] for record in records if getattr(record, "name", "") == "records_lost"]
    begun = round(3000 * kept)
    page = 4096 // (size // 3000)  # rows of the page in which the file ends: they are lost before it is noticed
    assert training.returncode == 0
    assert steps[-3000 + page :] == list(range(3001 + page, 6001))
    assert int(output) == sum(lost) == 6002 - len(records) + len(lost)
    assert begun - page <= len(steps) - 3000 <= begun + page
    assert [one["ok"] for one in verified(directory)] == [False]


def test_journal_truncated_on_a_full_disk_continues_in_memory_until_the_next_file(tmp_path, monkeypatch):
    recorder = hl.Recorder(tmp_path)
    recorder.log(loss=1.0, step=0)
    (file,) = journal_files(tmp_path / "journal")
    os.truncate(file.path, 0)
    refused = iter([OSError(errno.ENOSPC, "No space left on device")])
    allocate = os.posix_fallocate

    def refuse_once(*arguments):
        for error in refused:
            raise error
        allocate(*arguments)

    monkeypatch.setattr(os, "posix_fallocate", refuse_once)
    for step in range(1, 200):
        recorder.log(loss=1.0, step=step)
    recorder.close()
    steps = [record.step for record in hl.read(tmp_path) if isinstance(record, Metrics)]
    assert steps == list(range(200 - len(steps), 200))
    assert recorder.journal.lost == 200 - len(steps) <= 2


def test_journal_whose_file_is_removed_writes_it_again(tmp_path, caplog):
    recorder = hl.Recorder(tmp_path)
    recorder.log(loss=1.0, step=0)
    (file,) = journal_files(tmp_path / "journal")
    file.path.unlink()
    recorder.log(loss=1.0, step=1)
    wait_until(lambda: file.path.exists())  # the keeper notices
    recorder.log(loss=1.0, step=2)
    recorder.close()
    assert ([record.step for record in hl.read(tmp_path)], recorder.journal.lost) == ([0, 1, 2], 0)
    assert "No record was lost" in caplog.text


REPLACED = """
import os, signal, sys
from pathlib import Path
import hookline as hl

hl.Recorder(sys.argv[1] + "/first").log(loss=1.0)
if sys.argv[2] == "replaced":  # as a library does that puts its own handler in place of the journal's
    signal.signal(signal.SIGBUS, signal.SIG_DFL)
recorder = hl.Recorder(sys.argv[1] + "/second")
for step in range(100):
    recorder.log(loss=1.0, step=step)
    for file in Path(sys.argv[1], "second", "journal").glob("*.jsonl"):
        os.truncate(file, 0)
recorder.log(loss=1.0, step=100)
recorder.log(loss=1.0, step=101)
recorder.close()
"""


@pytest.mark.parametrize("handler", ["kept", "replaced"])
def test_second_journal_truncated_is_survived_with_any_signal_handler(tmp_path, handler):
    process = subprocess.run([sys.executable, "-c", REPLACED, tmp_path, handler], check=False, timeout=200)
    steps = [record.step for record in hl.read(tmp_path / "second") if isinstance(record, Metrics)]
    assert (process.returncode, steps[-1:]) == (0, [101])


FAULTS = """
import faulthandler, mmap, os, signal, sys
import hookline as hl
recorder = hl.Recorder(sys.argv[1])
recorder.log(loss=1.0)
if sys.argv[2] == "replaced":
    faulthandler.enable()
    hl.Recorder(sys.argv[1], name="other").log(loss=1.0)
if sys.argv[2] == "sent":
    os.kill(os.getpid(), signal.SIGBUS)
with open(sys.argv[1] + "/mapped", "w+b") as file:
    file.truncate(8192)
    mapped = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
    mapped[5000] = 1
"""


@pytest.mark.parametrize("how", ["sent", "fault", "replaced"])
def test_bus_error_that_is_none_of_the_journals_ends_the_process_as_before(tmp_path, how):
    process = subprocess.run([sys.executable, "-c", FAULTS, tmp_path, how], check=False, timeout=200)
    assert process.returncode == -signal.SIGBUS


def verified(directory):
    command = [sys.executable, "-m", "hookline", "runs", "verify", str(directory), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, check=False).stdout)
