"""Media under faults: full disks, killed processes, odd values, many threads. Training continues, losses count."""

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from waiting import wait_until

import hookline as hl
from hookline._record import media, media_writer
from hookline._record.blobs import BlobStore, blob_problem, read_blob, root_references
from hookline._record.media_writer import MediaWriter, SpillFiles
from hookline._record.records import Event, Media, TableRows

NOISE = np.random.default_rng(0)


def noise(side=32):
    return NOISE.integers(0, 255, (side, side), dtype=np.uint8)


def records(run_dir, kind=(Media, TableRows)):
    return [record for record in hl.read(run_dir) if isinstance(record, kind)]


def events(run_dir, name):
    return [record.data for record in records(run_dir, Event) if record.name == name]


def run_directory(tmp_path):
    run_dir = tmp_path / "p" / "run"
    run_dir.mkdir(parents=True)
    return run_dir


def test_media_killed_process_leaves_every_acknowledged_record_and_no_orphan(tmp_path):
    script = Path(__file__).with_name("kill_media.py")
    done = subprocess.run([sys.executable, script, tmp_path, "6"], capture_output=True, text=True, check=True)
    counted = json.loads(done.stdout)
    print(counted)
    assert min(counted.pop("records"), counted.pop("blobs"), counted.pop("lines")) > 10
    for varying in ("collected", "rests", "redacted"):
        counted.pop(varying)
    none = dict.fromkeys(("lost", "lost_lines", "damaged_blobs", "duplicates", "orphans", "partial_files"), 0)
    assert counted == {"kills": 6} | none


@pytest.fixture
def small_disk(tmp_path):
    """A file system of three megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system cannot be mounted: not root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_media_on_a_full_disk_are_counted_exactly_and_resume_when_there_is_room(small_disk):
    run_dir = run_directory(small_disk)
    recorder = hl.Recorder(run_dir, segment_bytes=64 << 10)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(1 << 20))
    for step in range(200):
        recorder.log(picture=hl.Image(noise(128)), step=step)
    recorder.flush()
    full = recorder.journal.lost + sum(data["count"] for data in events(run_dir, "media_lost"))
    filler.unlink()
    for step in range(200, 210):
        recorder.log(picture=hl.Image(noise()), step=step)
    recorder.close()
    found = records(run_dir)
    lost = sum(data["count"] for data in events(run_dir, "media_lost"))
    assert 0 < full < 200
    assert len(found) + lost + recorder.journal.lost == 210
    assert not any(blob_problem(run_dir, record.blob, record.size) for record in found)
    assert not list((small_disk / ".blobs").glob("*.partial"))


def test_media_lost_is_recorded_where_only_the_end_has_room(small_disk):
    run_dir = run_directory(small_disk)
    recorder = hl.Recorder(run_dir, segment_bytes=4096)
    with (small_disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))
    for step in range(30):
        recorder.log({"picture": hl.Image(noise()), "text": "x" * 1000}, step=step)
    recorder.flush()
    (small_disk / "filler").unlink()
    recorder.close()
    lost = sum(data["count"] for data in events(run_dir, "media_lost"))
    assert lost == 30 - len(records(run_dir)) > 0


def test_media_where_blobs_cannot_be_written_are_kept_by_the_run(tmp_path):
    """The directory of the blobs is a link to somebody else's: nothing is written there."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run_dir = run_directory(tmp_path / "root")
    (tmp_path / "root" / ".blobs").symlink_to(elsewhere)
    recorder = hl.Recorder(run_dir)
    recorder.log(picture=hl.Image(noise()), step=1)
    recorder.close()
    [record] = records(run_dir)
    assert read_blob(run_dir, record.blob)
    assert (run_dir / ".blobs").is_dir()
    assert not list(elsewhere.iterdir())


def test_media_where_blobs_are_read_only_are_kept_by_the_run(small_disk, tmp_path):
    run_dir = run_directory(tmp_path / "root")
    (tmp_path / "root" / ".blobs").mkdir()
    subprocess.run(["mount", "--bind", small_disk, tmp_path / "root" / ".blobs"], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", tmp_path / "root" / ".blobs"], check=True)
        recorder = hl.Recorder(run_dir)
        recorder.log(picture=hl.Image(noise()), step=1)
        recorder.close()
    finally:
        subprocess.run(["umount", "-l", tmp_path / "root" / ".blobs"], check=True)
    [record] = records(run_dir)
    assert read_blob(run_dir, record.blob)


def test_media_faster_than_they_can_be_written_are_recorded_or_counted(tmp_path):
    written: list[object] = []
    writer = MediaWriter(run_directory(tmp_path), written.append, memory_bytes=200_000, spill_bytes=100_000)
    array = noise()
    for step in range(2000):
        writer.submit("x", [hl.Image(array).capture("x")], (0.0, step, "train"))
    writer.close()
    found = [record.step for record in written if isinstance(record, Media)]
    lost = sum(record.data["count"] for record in written if isinstance(record, Event))
    assert (found, len(found) + lost) == (sorted(found), 2000)
    assert lost == writer.lost > 0


def test_media_logged_while_the_writer_is_closed_are_recorded_or_counted(tmp_path):
    written: list[object] = []
    writer, submitted, go_on = MediaWriter(run_directory(tmp_path), written.append), [0], threading.Event()

    def log() -> None:
        while submitted[0] < 100_000 and not go_on.is_set():
            writer.submit("x", [hl.Text("text").capture("x")], (0.0, submitted[0], "train"))
            submitted[0] += 1

    thread = threading.Thread(target=log)
    thread.start()
    wait_until(lambda: submitted[0] > 50)
    writer.close()
    go_on.set()
    thread.join()
    assert sum(isinstance(record, Media) for record in written) + writer.lost == submitted[0]


def test_media_without_a_thread_are_written_by_flush(tmp_path, monkeypatch):
    def refuse(target, name):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(media_writer, "_started", refuse)
    written: list[object] = []
    writer = MediaWriter(run_directory(tmp_path), written.append, memory_bytes=10_000)
    writer.submit("x", [hl.Text("one").capture("x"), hl.Image(noise(64)).capture("x")], (0.0, 1, "train"))
    writer.flush()
    assert [record.index for record in written if isinstance(record, Media)] == [0, 1]


def test_spill_files_of_a_writer_that_is_never_idle_do_not_grow(tmp_path, monkeypatch):
    monkeypatch.setattr(media_writer, "SPILL_FILE_BYTES", 10_000)
    spill, waiting = SpillFiles(tmp_path, 40_000), []
    for number in range(100):
        waiting.append(spill.write((number, bytes(2000))))
        if len(waiting) > 5:
            assert spill.read(waiting.pop(0))[0] == number - 5
    files = {id(file): os.fstat(file.descriptor).st_size for file, _, _ in waiting}
    assert sum(files.values()) < 30_000
    with pytest.raises(OSError, match="full"):
        spill.write(bytes(50_000))
    for place in waiting:
        spill.read(place)
    spill.close()


ODD_IMAGES = {
    "negative strides": lambda: noise()[::-1, ::-1],
    "not contiguous": lambda: noise(64)[::2, ::2],
    "read-only": lambda: np.broadcast_to(noise()[0], (32, 32)),
    "float16": lambda: (noise() / 255).astype(np.float16),
    "bool": lambda: noise() > 100,
    "big endian": lambda: noise().astype(">i4"),
    "tensor with gradients": lambda: torch.rand(3, 8, 8, requires_grad=True),
    "tensor of bfloat16": lambda: torch.rand(8, 8, dtype=torch.bfloat16),
    "tensor of float8": lambda: torch.rand(8, 8).to(torch.float8_e4m3fn),
    "transposed tensor": lambda: torch.rand(8, 16).T,
    "Pillow with a palette": lambda: PIL.Image.fromarray(noise()).convert("P"),
    "Pillow of CMYK": lambda: PIL.Image.fromarray(noise()).convert("CMYK"),
    "a float array of one value": lambda: np.full((4, 4), 3.5),
}


@pytest.mark.parametrize("kind", ODD_IMAGES)
def test_image_of_an_odd_array_is_recorded(tmp_path, kind):
    recorder = hl.Recorder(run_directory(tmp_path))
    recorder.log(picture=hl.Image(ODD_IMAGES[kind]()), values=hl.Histogram(noise().astype(np.float16)), step=1)
    recorder.close()
    found = {record.name: record for record in records(tmp_path / "p" / "run")}
    assert PIL.Image.open(io.BytesIO(read_blob(tmp_path / "p" / "run", found["picture"].blob))).size
    assert found["values"].data["count"] == 1024


def test_image_of_jax_arrays_is_recorded(tmp_path):
    jax = pytest.importorskip("jax")
    recorder = hl.Recorder(run_directory(tmp_path))
    table = hl.Table(["number", "list"], [[jax.numpy.float32(0.5), jax.numpy.arange(3)]])
    recorder.log(picture=hl.Image(jax.numpy.ones((4, 4), jax.numpy.bfloat16)), table=table, step=1)
    recorder.close()
    rows = [record.rows for record in records(tmp_path / "p" / "run", TableRows)]
    assert rows == [[[0.5, [0, 1, 2]]]]
    assert len(records(tmp_path / "p" / "run", Media)) == 1


def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


BAD = {
    "object array": (lambda path: hl.Image(np.array([[object()]])), "no real numbers"),
    "complex": (lambda path: hl.Image(np.zeros((2, 2), complex)), "complex"),
    "complex tensor": (lambda path: hl.Image(torch.zeros(2, 2, dtype=torch.complex64)), "complex"),
    "sparse tensor": (lambda path: hl.Image(torch.zeros(2, 2).to_sparse()), "sparse"),
    "meta tensor": (lambda path: hl.Histogram(torch.zeros(2, 2, device="meta")), "meta"),
    "a huge array": (lambda path: hl.Image(np.broadcast_to(np.uint8(0), (1 << 24, 1 << 24))), "16777216"),
    "a pipe": (lambda path: hl.File(pipe(path)), "not a regular file"),
    "bytes that are no image": (lambda path: hl.Image(b"not an image"), "12 bytes"),
    "a file that is no image": (lambda path: hl.Image(__file__), "test_media_faults.py"),
    "bytes that are no sound": (lambda path: hl.Audio(b"no sound"), "wav"),
    "a name with a zero": (lambda path: hl.File("a\0b"), "null"),
    "Pillow of floats": (lambda path: hl.Image(PIL.Image.new("F", (2, 2))), "'F'"),
    "a long caption": (lambda path: hl.Text("x", caption="x" * 20_000), "20000"),
    "too many bins": (lambda path: hl.Histogram([1.0], bins=1_000_000), "1000000"),
    "counts that are not finite": (lambda path: hl.Histogram(counts=[float("nan")], edges=[0, 1]), "finite"),
}


@pytest.mark.parametrize("kind", BAD)
def test_media_bad_value_is_refused_at_the_call(tmp_path, kind):
    make, words = BAD[kind]
    captured = make(tmp_path).capture("the name")
    assert isinstance(captured, media.Invalid)
    assert words in captured.reason
    assert "'the name'" in captured.reason


def test_files_by_the_hundred_use_few_descriptors(tmp_path, monkeypatch):
    monkeypatch.setattr(media, "SMALL_FILE_BYTES", 0)

    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    paths = [tmp_path / f"{number}.txt" for number in range(300)]
    for number, path in enumerate(paths):
        path.write_text(str(number))
    run_dir, before = run_directory(tmp_path), descriptors()
    captured = [hl.File(path).capture("x") for path in paths]
    assert descriptors() <= before + media.HELD_FILES
    paths[0].unlink()  # among the first, which are held open
    paths[-1].write_text("changed")
    written: list[object] = []
    writer = MediaWriter(run_dir, written.append)
    writer.submit("x", captured, (0.0, 1, "train"))
    writer.close()
    contents = [read_blob(run_dir, record.blob) for record in written if isinstance(record, Media)]
    assert contents == [str(number).encode() for number in range(299)]
    assert ["changed" in record.data["reason"] for record in written if isinstance(record, Event)] == [True]


def test_table_of_several_threads_has_each_row_once(tmp_path):
    recorder = hl.Recorder(run_directory(tmp_path))
    table = hl.Table(["thread", "number", "picture"])
    recorder.log(table=table)

    def add(thread):
        for number in range(100):
            table.append([thread, number, hl.Text("x") if number % 10 == 0 else None])

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    found = sorted(records(tmp_path / "p" / "run"), key=lambda record: record.start)
    numbers = [record.start + index for record in found for index in range(len(record.rows))]
    assert numbers == list(range(400))
    assert sorted(row[:2] for record in found for row in record.rows) == [[t, n] for t in range(4) for n in range(100)]


def test_table_under_a_second_name_is_an_error_and_stays_with_the_first(tmp_path):
    recorder = hl.Recorder(run_directory(tmp_path))
    table = hl.Table(["a"], [[1]])
    recorder.log(first=table)
    recorder.log(second=table)
    table.append([2])
    recorder.close()
    table.append([3])  # its run has ended
    run_dir = tmp_path / "p" / "run"
    assert [(record.name, record.start, record.rows) for record in records(run_dir)] == [
        ("first", 0, [[1]]),
        ("first", 1, [[2]]),
    ]
    [error] = events(run_dir, "media_error")
    assert "'first'" in error["reason"]
    again = hl.Recorder(run_dir)
    again.log(first=table)
    again.close()
    assert [record.rows for record in records(run_dir)][-1] == [[3]]


def test_table_in_a_forked_child_is_another_table(tmp_path):
    code = """
import os, sys, hookline as hl
recorder = hl.Recorder(sys.argv[1])
table = hl.Table(["a"], [["before"]])
recorder.log(table=table)
if os.fork() == 0:
    table.append(["child"])
    os._exit(0)
os.wait()
table.append(["parent"])
recorder.close()
"""
    subprocess.run([sys.executable, "-c", code, run_directory(tmp_path)], check=True, timeout=100)
    found = {(record.rows[0][0], record.start) for record in records(tmp_path / "p" / "run")}
    assert found == {("before", 0), ("parent", 1), ("child", 0)}
    assert len({record.table for record in records(tmp_path / "p" / "run")}) == 2


def test_table_with_long_cells_keeps_them_as_blobs_and_its_lines_short(tmp_path):
    run_dir = run_directory(tmp_path)
    recorder = hl.Recorder(run_dir, segment_bytes=64 << 10)
    rows: list[list[Any]] = [["é" * 200_000, list(range(50_000))], ["short", [1]], ["x" * (17 << 20), None]]
    recorder.log(table=hl.Table(["text", "list"], rows))
    recorder.log(wide=hl.Table(["text"], [["y" * 60_000]] * 100))  # larger than a segment in all
    recorder.close()
    [table, *wide] = sorted(records(run_dir), key=lambda record: (record.name, record.start))
    text, values = (read_blob(run_dir, cell["media"]["blob"]) for cell in table.rows[0])
    assert (text.decode(), json.loads(values)) == (rows[0][0], rows[0][1])
    assert table.rows[1] == rows[1]
    assert "at most" in table.rows[2][0]
    assert [row for record in wide for row in record.rows] == [["y" * 60_000]] * 100
    assert max(len(record.rows) for record in wide) < 20


def test_media_before_a_checkpoint_are_on_the_disk_when_it_is_saved(tmp_path):
    with hl.run("m", root=tmp_path, project="p", save=lambda d: None, load=lambda d: None, summary=False) as run:
        for _ in run.steps(range(3)):
            run.log(picture=hl.Image(noise()))
            run.save_checkpoint()
            found = [record for record in records(run.output_dir) if record.step <= run.step]
            assert len(found) == run.step  # the steps before: this one's row is written at its end
            assert not any(blob_problem(run.output_dir, record.blob) for record in found)


def test_media_of_a_program_that_ends_without_closing_are_recorded(tmp_path):
    code = "import sys, hookline as hl; hl.Recorder(sys.argv[1]).log(a=hl.Text('last words'))"
    subprocess.run([sys.executable, "-c", code, run_directory(tmp_path)], check=True, timeout=100)
    [record] = records(tmp_path / "p" / "run")
    assert read_blob(tmp_path / "p" / "run", record.blob) == b"last words"


def test_blobs_are_not_collected_where_a_journal_cannot_be_read(tmp_path):
    recorder = hl.Recorder(run_directory(tmp_path))
    recorder.log(picture=hl.Image(noise()))
    recorder.close()
    store, journal = BlobStore(tmp_path / ".blobs"), tmp_path / "p" / "run" / "journal"
    (journal / "loop.jsonl").symlink_to("loop.jsonl")
    with pytest.raises(OSError, match="symbolic links"):
        store.collect_garbage(lambda: root_references(tmp_path))
    (journal / "loop.jsonl").unlink()
    os.mkfifo(journal / "pipe.jsonl")
    assert store.collect_garbage(lambda: root_references(tmp_path)) == (0, 0)
