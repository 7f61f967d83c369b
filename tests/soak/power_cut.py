"""Power cuts: a training on ext4 in a loop device, copies of the image taken while it runs, and what is in them.

What a running machine has not written back yet is not in the file behind the loop device, so a copy of that file is
what a disk holds after the power failed. The training is stopped while a copy is made: a disk that fails does not go on
writing. Each copy is mounted, whereby ext4 recovers its own journal, and examined:

- ``run.json`` is whole, and so is the last checkpoint that was acknowledged before the cut.
- Every row up to that checkpoint is there, once, with its value.
- ``resume="auto"`` continues behind it, and afterwards the record and the CSV file have every row once.

``python -m soak.power_cut --cuts 20`` makes more of them than the tests do. Mounting needs root.
"""

import argparse
import contextlib
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hookline as hl
from hookline.cli.runs_verify import verify
from hookline.loops import checkpoint
from hookline.record import run_directory
from hookline.record.records import Metrics
from hookline.store.catalogue import Place

NAME = "cut"
EVERY = 150
"""Steps between two checkpoints."""
AFTER = 5
"""Steps that are done when a copy is resumed."""
PROGRAM = f"""
import os, sys
import hookline as hl

def save(directory):
    (directory / "weights.bin").write_bytes(os.urandom(100_000))

with hl.run({NAME!r}, root=sys.argv[1], sinks=["csv"], durability=sys.argv[2], summary=False, save=save) as run:
    print("begun", 0, flush=True)
    for step in run.steps(10**9):
        run.log({{"loss": 1.0 / (step + 1), "other": step * 0.5}})
        if (step + 1) % {EVERY} == 0:
            run.request_checkpoint()
        if (step + 1) % {EVERY} == 1 and step > 1:
            print("saved", run.checkpoints[-1].step, flush=True)
            for row in run.checkpoints[:-2]:
                if row.path.exists():
                    for file in row.path.iterdir():
                        file.unlink()
                    row.path.rmdir()
"""


@dataclass(frozen=True)
class Cut:
    """What a copy of the image held: the step that was acknowledged, the one of the checkpoint, and what is wrong."""

    acknowledged: int
    saved: int
    rows: int
    wrong: tuple[str, ...]


def can_cut() -> str:
    """Why there can be no loop device here; nothing where there can."""
    if os.geteuid() != 0:
        return "mounting a loop device needs root"
    return "" if shutil.which("mkfs.ext4") else "mkfs.ext4 is not installed (package e2fsprogs)"


@contextlib.contextmanager
def mounted(image: Path, at: Path) -> Iterator[Path]:
    """An image, mounted on a loop device."""
    at.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(at)], check=True)
    try:
        yield at
    finally:
        if subprocess.run(["umount", str(at)], check=False).returncode:
            subprocess.run(["umount", "-l", str(at)], check=True)


def cuts(home: Path, count: int, *, seed: int, durability: str = "checkpoint") -> list[Cut]:
    """Train in an image, and copy it so many times while that goes on: at the beginning, and after checkpoints."""
    image, rng, found = home / "disk.img", random.Random(seed), []
    with image.open("wb") as file:
        file.truncate(512 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    with mounted(image, home / "disk") as disk:
        command = [sys.executable, "-c", PROGRAM, str(disk / "runs"), durability]
        training = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert training.stdout is not None
            for number in range(count):
                acknowledged = 0
                for _ in range(1 if number == 0 else rng.randint(1, 12)):
                    acknowledged = int(training.stdout.readline().split()[1])
                copy = _copied(image, home / f"copy-{number}.img", training)
                found.append(_examined(copy, home / "examined", acknowledged))
                copy.unlink()
        finally:
            training.kill()
            training.wait()
            assert training.stdout is not None
            training.stdout.close()
    return found


def _copied(image: Path, copy: Path, training: "subprocess.Popen[str]") -> Path:
    training.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, training.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        subprocess.run(["cp", "--sparse=always", str(image), str(copy)], check=True)
    finally:
        training.send_signal(signal.SIGCONT)
    return copy


def _examined(copy: Path, at: Path, acknowledged: int) -> Cut:
    with mounted(copy, at) as disk:
        directory = next((disk / "runs").glob("default/*"), None)
        if directory is None:
            return Cut(acknowledged, 0, 0, ("there is no run",))
        wrong = []
        try:
            json.loads((directory / run_directory.FACTS).read_text())["name"]
        except (OSError, ValueError, KeyError) as error:
            return Cut(acknowledged, 0, 0, (f"run.json: {error!r}",))
        saved = checkpoint.last(directory)
        step = 0 if saved is None else int(saved.name.removeprefix("step-"))
        if step < acknowledged:
            wrong.append(f"the last whole checkpoint is of step {step}, and {acknowledged} was acknowledged")
        rows = _losses(directory)
        if [loss for number, loss in rows if number <= step] != [1.0 / number for number in range(1, step + 1)]:
            wrong.append(f"the rows up to step {step} are not those that were recorded: {len(rows)} are there")
        findings = [finding.what for finding in verify(Place("default", directory)).findings]
        wrong += [what for what in findings if "was saved are missing" in what or what.startswith("checkpoints/")]
        wrong += _resumed(disk, directory, step)
        return Cut(acknowledged, step, len(rows), tuple(wrong))


def _resumed(disk: Path, directory: Path, step: int) -> list[str]:
    """What is wrong after a resume of a few steps."""
    files = {"save": lambda path: None, "load": lambda path: None}
    with hl.run(NAME, root=disk / "runs", sinks=["csv"], resume="auto", summary=False, **files) as run:
        if (run.dir, run.step) != (directory, step):
            return [f"the resume began at step {run.step} of {run.dir}, and not at {step} of {directory}"]
        for _ in run.steps(step + AFTER):
            run.log(loss=1.0 / (run.step + 1))
    expected = list(range(1, step + AFTER + 1))
    recorded = [number for number, _ in _losses(directory)]
    with (directory / "metrics.csv").open(newline="") as file:
        delivered = [int(row["step"]) for row in csv.DictReader(file) if row["axis"] == "train"]
    named = {"the journal": recorded, "the CSV file": delivered}
    wrong = [name for name, steps in named.items() if steps != expected]
    return [f"{name} has {len(named[name])} of {len(expected)} rows after the resume" for name in wrong]


def _losses(directory: Path) -> list[tuple[int, float]]:
    if not (directory / "journal").is_dir():  # the power failed before the first line
        return []
    found = (record for record in hl.read(directory) if isinstance(record, Metrics) and record.axis == "train")
    return [(record.step, record.values["loss"]) for record in found if "loss" in record.values]


def main() -> int:
    """Make power cuts, and print what was wrong."""
    parser = argparse.ArgumentParser(prog="soak.power_cut", description=__doc__)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--durability", default="checkpoint")
    options = parser.parse_args()
    why_not = can_cut()
    if why_not:
        print(f"no power cuts: {why_not}")
        return int(os.environ.get("REQUIRE_ALL") == "1")
    with tempfile.TemporaryDirectory(prefix="power-cut-") as home:
        found = cuts(Path(home), options.cuts, seed=options.seed, durability=options.durability)
    for cut in found:
        wrong = ", ".join(cut.wrong) or "ok"
        print(f"step {cut.saved:,} of {cut.acknowledged:,} acknowledged, {cut.rows:,} rows: {wrong}")
    bad = sum(bool(cut.wrong) for cut in found)
    print(f"{len(found)} power cuts, seed {options.seed}: {bad} with something wrong")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
