"""Power cuts: a training on ext4 in a loop device, copies of the image taken while it runs, and what is in them.

What a running machine has not written back yet is not in the file behind the loop device, so a copy of that file is
what a disk holds after the power failed. The training is stopped while a copy is made: a disk that fails does not go on
writing. Each copy is mounted, whereby ext4 recovers its own journal, and examined:

- ``run.json`` is whole, and so is the last checkpoint that was acknowledged before the cut.
- Every row up to that checkpoint is there, once, with its value. With ``durability="process"`` some may be missing.
- ``resume="auto"`` continues after it, and afterwards the record and the CSV file have every row once. Rows that are
  missing are recorded as missing.

The soak makes such cuts all along; ``python -m soak.power_cut --cuts 20`` makes only them. Mounting needs root.
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
from hookline._record import run_directory
from hookline._record.delivery_manager import sync
from hookline._record.records import Event, Metrics
from hookline.cli.runs.verify import verify
from hookline.loops import checkpoint
from hookline.store.run_info import RunLocation

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
    """What a copy of the image held.

    Attributes:
        acknowledged: The step of the last checkpoint that the training had reported as saved.
        saved: The step of the last whole checkpoint in the copy.
        rows: How many rows there are in the copy.
        missing: How many rows up to the checkpoint are not there.
        wrong: What is not as promised.
    """

    acknowledged: int
    saved: int = 0
    rows: int = 0
    missing: int = 0
    wrong: tuple[str, ...] = ()


def why_not() -> str:
    """Why there can be no loop device here; empty where there can."""
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


class PowerCuts:
    """A training in an image that is cut off from power as often as it is asked for, and goes on all the same.

    It is stopped between two cuts, so it takes no time from what else is tested.

    Args:
        home: A directory for the image and the mounts.
        seed: Decides how many checkpoints lie between two cuts.
        durability: Of the training.
    """

    def __init__(self, home: Path, *, seed: int, durability: str = "checkpoint") -> None:
        self.home, self.durability, self.found = home, durability, list[Cut]()
        self._rng, self._image = random.Random(seed), home / "disk.img"
        self._open = contextlib.ExitStack()
        self._training: subprocess.Popen[str] | None = None

    def cut(self) -> Cut:
        """Let the training go on, copy its disk, and examine the copy. The first cut comes as the run begins."""
        begins = self._training is None
        training = self._training or self._begin()
        assert training.stdout is not None
        training.send_signal(signal.SIGCONT)
        acknowledged = 0
        for _ in range(1 if begins else self._rng.randint(1, 12)):
            acknowledged = int(training.stdout.readline().split()[1])
        training.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, training.pid, os.WSTOPPED | os.WNOWAIT)
        copy = self.home / "copy.img"
        subprocess.run(["cp", "--sparse=always", str(self._image), str(copy)], check=True)
        with mounted(copy, self.home / "examined") as disk:
            self.found.append(examined(disk, acknowledged, is_synced=self.durability != "process"))
        copy.unlink()
        return self.found[-1]

    def close(self) -> None:
        """End the training."""
        self._open.close()

    def _begin(self) -> "subprocess.Popen[str]":
        self.home.mkdir(exist_ok=True)
        with self._image.open("wb") as file:
            file.truncate(512 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self._image)], check=True)
        disk = self._open.enter_context(mounted(self._image, self.home / "disk"))
        command = [sys.executable, "-c", PROGRAM, str(disk / "runs"), self.durability]
        self._training = self._open.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        self._open.callback(self._training.kill)
        return self._training


def examined(disk: Path, acknowledged: int, *, is_synced: bool) -> Cut:
    """The content of a copy, and the result of resuming its run."""
    directory = next((disk / "runs").glob("default/*"), None)
    if directory is None:
        return Cut(acknowledged, wrong=("there is no run",))
    try:
        json.loads((directory / run_directory.METADATA).read_text())["name"]
    except (OSError, ValueError, KeyError) as error:
        return Cut(acknowledged, wrong=(f"run.json: {error!r}",))
    wrong = []
    saved = checkpoint.last(directory)
    step = 0 if saved is None else int(saved.name.removeprefix("step-"))
    if step < acknowledged:
        wrong.append(f"the last whole checkpoint is of step {step}, and {acknowledged} was acknowledged")
    rows = _losses(directory)
    there = [number for number, loss in rows if number <= step and loss == 1.0 / number]
    missing = step - len(there)
    if there != sorted(set(there)) or (missing and is_synced):
        wrong.append(f"the rows up to step {step} are not those that were recorded: {len(rows)} are there")
    findings = [finding.what for finding in verify(RunLocation("default", directory)).findings]
    if any("was saved are missing" in what for what in findings) != bool(missing):
        wrong.append(f"{missing} rows are missing, and verify reports {findings}")
    wrong += [what for what in findings if what.startswith("checkpoints/")]
    wrong += _resumed(disk, directory, [*there, *range(step + 1, step + AFTER + 1)], step)
    return Cut(acknowledged, step, len(rows), missing, tuple(wrong))


def _resumed(disk: Path, directory: Path, expected: list[int], step: int) -> list[str]:
    """The problems after a resume of a few steps."""
    files = {"save": lambda path: None, "load": lambda path: None}
    with hl.run(NAME, root=disk / "runs", sinks=["csv"], resume="auto", summary=False, **files) as run:
        if (run.dir, run.step) != (directory, step):
            return [f"the resume began at step {run.step} of {run.dir}, and not at {step} of {directory}"]
        for _ in run.steps(step + AFTER):
            run.log(loss=1.0 / (run.step + 1))
    sync(directory, seconds=300)  # a run waits for its sinks only so long when it ends; the rest is for `runs sync`
    recorded = [number for number, _ in _losses(directory)]
    with (directory / "metrics.csv").open(newline="") as file:
        delivered = [int(row["step"]) for row in csv.DictReader(file) if row["axis"] == "train"]
    named = {"the journal": recorded, "the CSV file": delivered}
    wrong = [name for name, steps in named.items() if steps != expected]
    said = [f"{name} has {len(named[name])} of {len(expected)} rows after the resume" for name in wrong]
    is_recorded = any(isinstance(each, Event) and each.name == "records_missing" for each in hl.read(directory))
    if is_recorded != (len(expected) < step + AFTER):
        word = "recorded" if is_recorded else "not recorded"
        said.append(f"{step + AFTER - len(expected)} rows are missing, which is {word}")
    return said


def _losses(directory: Path) -> list[tuple[int, float]]:
    if not (directory / "journal").is_dir():  # the power failed before the first line
        return []
    found = (record for record in hl.read(directory) if isinstance(record, Metrics) and record.axis == "train")
    return [(record.step, record.values["loss"]) for record in found if "loss" in record.values]


def main() -> int:
    """Make power cuts, and print the problems found."""
    parser = argparse.ArgumentParser(prog="soak.power_cut", description=__doc__)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--durability", default="checkpoint")
    options = parser.parse_args()
    if why_not():
        print(f"no power cuts: {why_not()}")
        return 1
    with tempfile.TemporaryDirectory(prefix="power-cut-") as home:
        cuts = PowerCuts(Path(home), seed=options.seed, durability=options.durability)
        with contextlib.closing(cuts):
            for _ in range(options.cuts):
                cut = cuts.cut()
                wrong = ", ".join(cut.wrong) or "ok"
                counts = f"{cut.rows:,} rows, {cut.missing:,} missing"
                print(f"step {cut.saved:,} of {cut.acknowledged:,} acknowledged, {counts}: {wrong}")
    bad = sum(bool(cut.wrong) for cut in cuts.found)
    print(f"{len(cuts.found)} power cuts, seed {options.seed}: {bad} with something wrong")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
