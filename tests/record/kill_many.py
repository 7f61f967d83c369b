"""Kills a recording process again and again, at moments of chance, and counts what was lost: nothing, it is hoped.

``python kill_many.py DIRECTORY KILLS`` prints one JSON object. Each child takes up the run a few
steps before where the one before it was killed, as a resume from a checkpoint does. A child tells
how far it got through a mapped file, written after each `log()` that returned.
"""

import json
import mmap
import os
import random
import signal
import sys
import time
from pathlib import Path

import hookline as hl
from hookline._record.reader import read_lines
from hookline._record.recorder import Recorder  # here: what is imported late, each child would import
from hookline._record.segment import journal_files

KILLS_PER_RUN = 50


def child(run_dir: Path, reported: mmap.mmap, start: int, ready: int) -> None:
    recorder = Recorder(run_dir, segment_bytes=32 << 10)
    recorder.resume(train=start)
    reported[:8] = start.to_bytes(8, "little")
    os.write(ready, b".")
    step = start
    while True:
        step += 1
        recorder.log({"loss": 1.0 / step, "session": os.getpid(), "text": "x" * (step % 300)}, step=step)
        reported[:8] = step.to_bytes(8, "little")


def kill_one(run_dir: Path, reported: mmap.mmap, start: int, rng: random.Random) -> int:
    reported[:8] = bytes(8)
    listening, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child(run_dir, reported, start, ready)
        finally:
            os._exit(1)
    os.close(ready)
    os.read(listening, 1)
    os.close(listening)
    time.sleep(rng.uniform(0, 0.004))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return int.from_bytes(reported[:8], "little")


def check(run_dir: Path, last: int) -> dict[str, int]:
    rows = [record for record in hl.read(run_dir) if type(record).__name__ == "Metrics"]
    steps = sorted(record.step for record in rows)  # type: ignore[type-var]
    unreadable = 0
    for file in journal_files(run_dir / "journal"):
        for line, _ in read_lines(file.path):
            try:
                json.loads(line)
            except ValueError:
                unreadable += 1
    return {
        "rows": len(rows),
        "lost": len(set(range(1, last + 1)) - set(steps)),
        "duplicates": len(steps) - len(set(steps)),
        "unreadable": unreadable,
    }


def main() -> None:
    directory, kills = Path(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(0)
    total = {"kills": 0, "rows": 0, "lost": 0, "duplicates": 0, "unreadable": 0}
    reported = mmap.mmap(-1, mmap.PAGESIZE)
    for number in range(kills // KILLS_PER_RUN):
        run_dir, last = directory / str(number), 0
        for _ in range(KILLS_PER_RUN):
            last = kill_one(run_dir, reported, max(0, last - rng.randrange(20)), rng)
            total["kills"] += 1
        for key, count in check(run_dir, last).items():
            total[key] += count
    print(json.dumps(total))


if __name__ == "__main__":
    main()
