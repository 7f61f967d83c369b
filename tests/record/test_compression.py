"""Compressed journals: the same content at the same offsets, whatever kills the compression or damages its result."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import hookline as hl
from hookline._record.blobs import referenced_blobs
from hookline._record.compression import compress_directory
from hookline._record.reader import Cursor, Reader, read_lines
from hookline._record.recorder import Recorder
from hookline._record.seekable import FRAME_BYTES, zstd
from hookline._record.segment import journal_files, open_journal
from hookline.store.journal_files import regular_journal_files

ROWS = 12_000


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The directory of an ended run with a journal file of several frames."""
    with hl.run("long", root=tmp_path_factory.mktemp("recorded"), summary=False) as run:
        for step in run.steps(ROWS):
            run.log({f"metric{index}": step / 7 + index for index in range(10)})
    return run.dir


@pytest.fixture
def run_dir(recorded, tmp_path):
    return Path(shutil.copytree(recorded, tmp_path / "run"))


@pytest.fixture
def journal(run_dir):
    return run_dir / "journal"


def content(directory):
    """What the plain files of a journal hold, with what is known about them."""
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns, path.stat().st_mode)
        for path in directory.iterdir()
    }


def names(directory):
    return sorted(path.name for path in directory.iterdir() if path.suffix != ".sha256")


def lines_of(directory):
    return [(file, *found) for file in journal_files(directory) for found in read_lines(file.path)]


def frames(path):
    """The compressed sizes of a file's frames, read from its index."""
    data = path.read_bytes()
    count = struct.unpack("<I", data[-9:-5])[0]
    table = data[len(data) - 9 - 8 * count : -9]
    return [size for size, _ in struct.iter_unpack("<II", table)]


def write_packed(path, parts, sizes):
    """Write frames and an index that promises these sizes."""
    entries = b"".join(struct.pack("<II", len(part), size) for part, size in zip(parts, sizes, strict=True))
    index = struct.pack("<II", 0x184D2A5E, len(entries) + 9) + entries + struct.pack("<IBI", len(parts), 0, 0x8F92EAB1)
    path.write_bytes(b"".join(parts) + index)


def test_compressed_journal_is_unpacked_byte_for_byte(journal):
    (journal / "main-0009-1-abc-000000.jsonl").write_bytes(b'{"small": 1}\n')
    before, size = content(journal), sum(path.stat().st_size for path in journal.iterdir())
    done = compress_directory(journal)
    assert names(journal)[-1] == "main-0009-1-abc-000000.jsonl"
    assert {name.endswith(".jsonl.zst") for name in names(journal)[:-1]} == {True}
    assert sum(path.stat().st_size for path in journal.iterdir()) < size / 2
    undone = compress_directory(journal, undo=True)
    assert (content(journal), undone.before, undone.after) == (before, done.after, done.before)


def test_compressed_journal_has_the_same_records_offsets_and_cursors(run_dir, journal):
    records, lines = list(hl.read(run_dir)), lines_of(journal)
    cursors = [Cursor({file.writer: (file.number, end)}) for file, _, end in lines[:: ROWS // 50]]
    behind = [cursor.behind(journal) for cursor in cursors]
    compress_directory(journal)
    assert (list(hl.read(run_dir)), lines_of(journal)) == (records, lines)
    assert [cursor.behind(journal) for cursor in cursors] == behind
    rest = [entry.id for entry in Reader(journal, cursors[30]).new()]
    assert rest == [f"{file.writer}-{file.number}-{end}" for file, _, end in lines[30 * (ROWS // 50) + 1 :]]


@pytest.mark.parametrize("count", [1, 300, FRAME_BYTES, 3 * FRAME_BYTES])
def test_open_journal_reads_the_same_bytes_at_every_offset(journal, count):
    plain = max(journal.glob("*.jsonl"), key=lambda path: path.stat().st_size)
    data = plain.read_bytes()
    compress_directory(journal)
    with open_journal(plain) as file:
        assert (file.size, file.is_compressed) == (len(data), True)
        for offset in [*range(0, len(data) + count, 311_111), FRAME_BYTES - 1, FRAME_BYTES, len(data)]:
            assert file.pread(count, offset) == data[offset : offset + count]


@pytest.mark.parametrize("undo", [False, True])
def test_journal_that_is_replaced_while_it_is_read_loses_nothing(run_dir, journal, undo):
    records = list(hl.read(run_dir))
    if undo:
        compress_directory(journal)
    reading = hl.read(run_dir)
    read = [next(reading) for _ in range(ROWS // 3)]
    compress_directory(journal, undo=undo)
    assert [*read, *reading] == records


def test_compressing_again_changes_nothing(journal):
    compress_directory(journal)
    before = content(journal)
    assert (compress_directory(journal).files, content(journal)) == (0, before)


def test_journal_with_both_files_is_read_from_the_original_and_completed(journal):
    lines, originals = lines_of(journal), {path: path.read_bytes() for path in journal.glob("*.jsonl")}
    compress_directory(journal)
    for path, data in originals.items():  # as after a kill, and with a line that was appended since
        path.write_bytes(data + b"{}\n")
    assert len(lines_of(journal)) == len(lines) + len(originals)
    compress_directory(journal)
    assert not list(journal.glob("*.jsonl"))
    assert len(lines_of(journal)) == len(lines) + len(originals)


@pytest.mark.parametrize("size", [0, 5000])
def test_journal_with_a_shorter_original_beside_it_loses_nothing(journal, size):
    originals = {path: path.read_bytes() for path in journal.glob("*.jsonl")}
    compress_directory(journal)
    for path, data in originals.items():
        path.write_bytes(data[:size])
    compress_directory(journal)
    compress_directory(journal, undo=True)
    assert {path: path.read_bytes() for path in journal.glob("*.jsonl")} == originals
    assert not list(journal.glob("*.zst"))


def test_empty_original_beside_a_compressed_file_is_passed_over(journal):
    lines = lines_of(journal)
    originals = list(journal.glob("*.jsonl"))
    compress_directory(journal)
    for path in originals:
        path.touch()
    assert lines_of(journal) == lines


KILLS = """
import json, os, shutil, signal, sys
from pathlib import Path
from hookline._record.compression import compress_directory
from hookline._record.reader import read_lines
from hookline._record.segment import journal_files

CALLS = {"open", "write", "compress", "decompress", "fdatasync", "fsync", "fchmod", "utime", "rename", "unlink"}
source, undo = Path(sys.argv[1]), sys.argv[2] == "undo"
if undo:
    compress_directory(source)
lines = [found for file in journal_files(source) for found in read_lines(file.path)]
reached = []
while True:
    directory = source.with_name("killed")
    shutil.copytree(source, directory)
    child = os.fork()
    if child == 0:
        calls = []
        def count(frame, event, function):
            if event == "c_call" and function.__name__ in CALLS:
                calls.append(function.__name__)
                if len(calls) > len(reached):
                    Path("last_call").write_text(function.__name__)
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.setprofile(count)
        compress_directory(directory, undo=undo)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert [found for file in journal_files(directory) for found in read_lines(file.path)] == lines, reached
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
    reached.append(Path("last_call").read_text())
    compress_directory(directory, undo=undo)
    assert [found for file in journal_files(directory) for found in read_lines(file.path)] == lines, reached
    kinds = {path.suffix for path in directory.iterdir()} - {".sha256"}
    assert kinds == ({".jsonl"} if undo else {".zst"}), (reached, kinds)
    shutil.rmtree(directory)
print(json.dumps(reached))
"""


@pytest.mark.parametrize(
    ("what", "stages"),
    [
        ("compress", {"open", "compress", "write", "fdatasync", "decompress", "fchmod", "utime", "rename", "unlink"}),
        ("undo", {"open", "decompress", "write", "fdatasync", "fchmod", "utime", "rename", "unlink"}),
    ],
)
def test_compression_that_is_killed_at_any_call_leaves_a_whole_journal(journal, tmp_path, what, stages):
    for path in journal.glob("*.jsonl"):  # two frames
        lines = path.read_bytes()[: FRAME_BYTES * 3 // 2]
        path.write_bytes(lines[: lines.rfind(b"\n") + 1])
    command = [sys.executable, "-c", KILLS, str(journal), what]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    reached = json.loads(result.stdout)
    assert (stages - set(reached), reached[-1]) == (set(), "fsync")  # after the last one, all is done


def test_damaged_frame_loses_only_its_lines_and_is_reported(journal, caplog):
    lines = lines_of(journal)
    compress_directory(journal)
    path = min(journal.glob("*.zst"))
    sizes, data = frames(path), bytearray(path.read_bytes())
    data[sizes[0] + sizes[1] // 2] ^= 0xFF
    path.write_bytes(data)
    reader = Reader(journal)
    found = [entry.id for entry in reader.new()]
    ids = [f"{file.writer}-{file.number}-{end}" for file, _, end in lines]
    intact = set(found)
    lost = [index for index, each in enumerate(ids) if each not in intact]
    assert (reader.skipped, lost) == (1, list(range(lost[0], lost[0] + len(lost))))
    assert FRAME_BYTES * 0.9 < sum(len(lines[index][1]) + 1 for index in lost) <= FRAME_BYTES
    assert [text.partition(" of ")[0] for text in caplog.messages] == [
        f"The line at byte {lines[lost[0] - 1][2]}",
    ]
    undone = compress_directory(journal, undo=True)
    assert [(name, reason.partition(":")[0]) for name, reason in undone.skipped.items()] == [
        (path.name.removesuffix(".zst"), f"The frame at byte {lines[lost[0] - 1][2]:,} is damaged")
    ]
    assert path.read_bytes() == data
    with pytest.raises(OSError, match="damaged"):  # which blobs it refers to is unknown
        referenced_blobs([path.with_suffix("")])


@pytest.mark.parametrize("kept", ["the index is cut off", "the last frame is cut off", "the index has other sizes"])
def test_damaged_index_is_rebuilt_from_the_frames(journal, kept):
    plain = min(journal.glob("*.jsonl"))
    lines = list(read_lines(plain))
    compress_directory(journal)
    path = plain.with_name(f"{plain.name}.zst")
    sizes, data = frames(path), bytearray(path.read_bytes())
    if kept == "the index has other sizes":
        data[-9 - 8 * len(sizes) : -9 - 8 * len(sizes) + 4] = struct.pack("<I", 1)
    else:
        del data[sum(sizes) + 3 if kept == "the index is cut off" else sum(sizes) - 3 :]
    path.write_bytes(data)
    found = list(read_lines(plain))
    assert found == lines[: len(found)]
    assert len(found) == len(lines) if kept != "the last frame is cut off" else 0 < len(found) < len(lines)


def test_compressed_file_of_noise_is_an_error_and_not_a_crash(journal):
    plain = min(journal.glob("*.jsonl"))
    plain.unlink()
    plain.with_name(f"{plain.name}.zst").write_bytes(os.urandom(10_000))
    with pytest.raises(OSError, match="not a compressed journal"):
        list(read_lines(plain))


READ_ALL = """
import resource, sys
from pathlib import Path
from hookline._record.reader import read_lines
from hookline._record.seekable import zstd
zstd().decompress(zstd().compress(b"x"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = sum(len(line) for line, _ in read_lines(Path(sys.argv[1])))
print(total, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize(
    ("line", "size", "count", "most"),
    [
        (b"a", FRAME_BYTES, 2000, 110 << 20),  # many frames without a line's end: 2 GB
        (b"a", 200 << 20, 1, FRAME_BYTES),  # a frame that is larger than its index says
        (b"a" * 1023 + b"\n", FRAME_BYTES, 2000, 110 << 20),
    ],
    ids=["one long line", "a large frame", "many lines"],
)
def test_bomb_is_read_with_bounded_memory_and_time(tmp_path, line, size, count, most):
    plain = tmp_path / "main-0000-1-abc-000000.jsonl"
    frame = zstd().compress(line * (size // len(line)))
    write_packed(plain.with_name(f"{plain.name}.zst"), [frame] * count, [FRAME_BYTES] * count)
    result = subprocess.run([sys.executable, "-c", READ_ALL, str(plain)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    total, kilobytes = map(int, result.stdout.split())
    assert total <= most
    assert kilobytes < 150 << 10


def test_frame_with_a_window_beyond_the_limit_is_damaged(tmp_path):
    plain = tmp_path / "main-0000-1-abc-000000.jsonl"
    module = zstd()
    compressor = module.ZstdCompressor(options={module.CompressionParameter.window_log: 27})
    frame = compressor.compress(b"{}\n" * 100) + compressor.flush()  # without its size, so the window counts
    write_packed(plain.with_name(f"{plain.name}.zst"), [frame], [300])
    assert list(read_lines(plain)) == [(b" " * 299, 300)]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{}\n" * 3000 + bytes(100) + b"{}\n", "it has zeros in place of lines"),
        (b"{}\n" + b"x" * (17 << 20) + b"\n", "it has a line of more than 16,777,216 bytes"),
    ],
    ids=["a hole", "a very long line"],
)
def test_file_that_readers_could_not_bound_is_left_alone(tmp_path, data, reason):
    path = tmp_path / "main-0000-1-abc-000000.jsonl"
    path.write_bytes(data)
    done = compress_directory(tmp_path)
    assert (done.skipped, [each.name for each in tmp_path.iterdir()]) == ({path.name: reason}, [path.name])


def test_file_that_would_look_like_a_bomb_is_left_alone(tmp_path):
    path = tmp_path / "main-0000-1-abc-000000.jsonl"
    with path.open("wb") as file:
        for _ in range(90):
            file.write(b"{}\n" * 333_333)
    done = compress_directory(tmp_path)
    assert done.skipped[path.name].startswith("no reader would accept it: 89,999,910 bytes")
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_file_that_a_writer_uses_is_left_alone(tmp_path):
    recorder = Recorder(tmp_path, segment_bytes=1 << 16)
    while len(journal_files(tmp_path / "journal")) < 3:
        recorder.log(loss=1.0)
    done = compress_directory(tmp_path / "journal")
    *complete, used = journal_files(tmp_path / "journal")
    assert (done.files, list(done.skipped)) == (len(complete), [used.path.name])
    recorder.close()


def test_file_of_a_killed_writer_is_compressed_without_its_reserve(tmp_path):
    code = (
        "import os, signal; from hookline._record.recorder import Recorder; recorder = Recorder('.')\n"
        "for step in range(500): recorder.log(step=step, loss=1.0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=200, check=False)
    lines = lines_of(tmp_path / "journal")
    done = compress_directory(tmp_path / "journal")
    assert (done.files, lines_of(tmp_path / "journal"), len(lines)) == (1, lines, 500)


def test_links_are_neither_followed_nor_replaced(journal, tmp_path):
    plain = min(journal.glob("*.jsonl"))
    target = plain.rename(tmp_path / "target")
    plain.symlink_to(target)
    assert (compress_directory(journal).files, plain.is_symlink()) == (len(names(journal)) - 1, True)
    plain.unlink()
    compressed = min(journal.glob("*.zst")).rename(tmp_path / "target.zst")
    plain.with_name(f"{plain.name}.zst").symlink_to(compressed)
    assert plain not in [file.path for file in regular_journal_files(journal)]
    assert compress_directory(journal, undo=True).skipped == {}
    assert compressed.is_file()


def test_full_disk_leaves_the_original_and_says_why(journal):
    before = content(journal)
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from hookline._record.compression import compress_directory\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (2000, -1))\n"
        "print(set(compress_directory(Path(sys.argv[1])).skipped.values()))"
    )
    result = subprocess.run([sys.executable, "-c", code, str(journal)], capture_output=True, text=True, timeout=200)
    assert (result.stdout, content(journal)) == ("{'File too large'}\n", before)


BLOCKED = """
import sys
sys.modules["backports.zstd"] = sys.modules["compression.zstd"] = None
import hookline as hl
try:
    list(hl.read(sys.argv[1]))
except hl.MissingExtraError as error:
    print(error)
"""


def test_compressed_journal_without_the_package_says_what_to_install(run_dir, journal):
    compress_directory(journal)
    result = subprocess.run([sys.executable, "-c", BLOCKED, str(run_dir)], capture_output=True, text=True, timeout=200)
    expected = (
        "A compressed journal needs a package that is not installed. Install it with: pip install 'hookline[ui]'\n"
    )
    assert (result.returncode, result.stdout) == (0, expected), result.stderr
