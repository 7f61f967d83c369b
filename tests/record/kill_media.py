"""Kills a process that records images, tables, metrics and console lines, again and again, and counts what was lost.

``python kill_media.py DIRECTORY KILLS`` prints one JSON object. A child reports through a mapped file what was
acknowledged: rows and metrics when `log()` returned, console lines when `write()` did, images and rows with images when
`flush()` did. In every second life of a child its parent collects unused blobs meanwhile. After each kill every record
that can be read must have its blobs, with the content of their digests; after a last collection no other blob may be
left. Console lines are read when the child's pump has ended; each must be there once, also when what the pump saved is
redacted on the disk, as in every third life.
"""

import contextlib
import json
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image  # noqa: F401 - here: what is imported late, each child would import

import hookline as hl
from hookline._record import media_writer  # noqa: F401
from hookline._record.blobs import BlobStore, blob_problem, root_references
from hookline._record.console import ConsoleWriter
from hookline._record.console_capture import attach
from hookline._record.console_reader import read_console
from hookline._record.console_rest import redact_leftovers
from hookline._record.recorder import Recorder
from hookline._record.records import Media, Metrics, TableRows

KILLS_PER_RUN = 10
FLUSH_EVERY = 7
PLAIN, FLUSHED, PRINTED = slice(0, 8), slice(8, 16), slice(16, 24)
"""Where a child writes the last step that was logged, the last that was flushed, and the last that was printed."""
LINES_PER_STEP = 10


def child(run_dir: Path, reported: mmap.mmap, step: int, ready: int, screen: int) -> None:
    os.dup2(screen, 1)
    attach(ConsoleWriter(run_dir, file_bytes=32 << 10), "fd")
    recorder = Recorder(run_dir, segment_bytes=32 << 10)
    plain, pictures = hl.Table(["step", "text"]), hl.Table(["step", "picture"])
    recorder.log(plain=plain, pictures=pictures, step=step)
    os.write(ready, b".")
    while True:
        step += 1
        image = np.full((8, 8), step % 251, np.uint8)
        image[0, :4] = list(step.to_bytes(4, "little"))
        recorder.log({"loss": 1.0 / step, "picture": hl.Image(image), "same": hl.Image(image * 0)}, step=step)
        recorder.log(values=hl.Histogram(image), step=step)
        plain.append([step, "x" * (step % 300)])
        pictures.append([step, hl.Image(image)])
        reported[PLAIN] = step.to_bytes(8, "little")
        for number in range(LINES_PER_STEP):
            os.write(1, b"line %d %s\n" % (step * LINES_PER_STEP + number, b"x" * (step % 50)))
        reported[PRINTED] = step.to_bytes(8, "little")
        if step % FLUSH_EVERY == 0:
            recorder.flush()
            reported[FLUSHED] = step.to_bytes(8, "little")


def kill_one(run_dir: Path, reported: mmap.mmap, start: int, rng: random.Random, collect: Any) -> tuple[int, int, int]:
    """Return the last steps that the child had logged, flushed, and printed."""
    reported[PLAIN] = reported[FLUSHED] = reported[PRINTED] = start.to_bytes(8, "little")
    listening, ready = os.pipe()
    shown, screen = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child(run_dir, reported, start, ready, screen)
        finally:
            os._exit(1)
    os.close(ready)
    os.close(screen)
    os.read(listening, 1)
    os.close(listening)
    deadline = time.monotonic() + rng.uniform(0, 0.15)
    os.set_blocking(shown, False)
    while time.monotonic() < deadline:
        collect()
        with contextlib.suppress(BlockingIOError):  # somebody reads what is printed, or printing would wait
            os.read(shown, 1 << 20)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.set_blocking(shown, True)
    while os.read(shown, 1 << 20):
        pass  # until the pump has ended, which has it open as well
    os.close(shown)
    logged, flushed, printed = (int.from_bytes(reported[each], "little") for each in (PLAIN, FLUSHED, PRINTED))
    return logged, flushed, printed


def references(record: Any) -> Iterator[tuple[str, int]]:
    """Yield the digest and size of each blob that a record names."""
    facts = [record] if isinstance(record, Media) else []
    if isinstance(record, TableRows):
        facts = [cell["media"] for row in record.rows for cell in row if isinstance(cell, dict)]
    for fact in facts:
        blob, size = (fact["blob"], fact["size"]) if isinstance(fact, dict) else (fact.blob, fact.size)
        if blob:
            yield blob, size


def check(run_dir: Path, start: int, logged: int, flushed: int, printed: int) -> dict[str, int]:
    """Compare what a child acknowledged, from a step on, with what can be read."""
    seen: dict[str, list[int]] = {}
    blobs: set[tuple[str, int]] = set()
    for record in hl.read(run_dir):
        if isinstance(record, Metrics):
            seen.setdefault("metrics", []).append(record.step)
        elif isinstance(record, Media):
            seen.setdefault(record.name, []).append(record.step)
        elif isinstance(record, TableRows):
            seen.setdefault(record.name, []).extend(row[0] for row in record.rows)
        blobs.update(references(record))
    expected = dict.fromkeys(("metrics", "plain"), logged) | dict.fromkeys(("picture", "values", "pictures"), flushed)
    lost = sum(len(set(range(start + 1, last + 1)).difference(seen.get(name, ()))) for name, last in expected.items())
    seen["console"] = [int(row.text.split()[1]) for row in read_console(run_dir) if row.text.startswith("line ")]
    lines = set(range((start + 1) * LINES_PER_STEP, (printed + 1) * LINES_PER_STEP)).difference(seen["console"])
    return {
        "lines": len(seen["console"]),
        "records": sum(map(len, seen.values())),
        "lost": lost,
        "lost_lines": len(lines),
        "duplicates": sum(len(steps) - len(set(steps)) for steps in seen.values()),
        "damaged_blobs": sum(bool(blob_problem(run_dir, *blob)) for blob in blobs),
    }


def main() -> None:
    directory, kills = Path(sys.argv[1]), int(sys.argv[2])
    rng, reported = random.Random(0), mmap.mmap(-1, mmap.PAGESIZE)
    store = BlobStore(directory / ".blobs")
    total = dict.fromkeys(("kills", "collected", "blobs", "orphans", "rests", "redacted", "lines"), 0)

    def collect() -> None:
        with contextlib.suppress(FileNotFoundError):  # before the first run is there
            total["collected"] += store.collect_garbage(lambda: root_references(directory)).blobs

    last = 0
    for number in range(kills):
        run_dir, start = directory / "p" / str(number // KILLS_PER_RUN), last + 2
        last, flushed, printed = kill_one(run_dir, reported, start, rng, collect if number % 2 else lambda: None)
        total["kills"] += 1
        total["rests"] += len(list((run_dir / "console").glob("*.rest")))
        if number % 3 == 0:
            total["redacted"] += redact_leftovers(run_dir)
        found = check(run_dir, start, last, flushed, printed)
        total |= {key: total.get(key, 0) + found[key] for key in ("lost", "lost_lines", "damaged_blobs")}
        if number % KILLS_PER_RUN == KILLS_PER_RUN - 1 or number == kills - 1:
            total["lines"] += found["lines"]
            total |= {key: total.get(key, 0) + found[key] for key in ("records", "duplicates")}
    collect()
    digests = set(store.digests())
    total["blobs"], total["orphans"] = len(digests), len(digests - root_references(directory))
    total["partial_files"] = len(list(store.directory.glob("*.partial")))
    print(json.dumps(total))


if __name__ == "__main__":
    main()
