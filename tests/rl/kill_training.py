"""Kills the processes of a training on Ray again and again, at random moments, and checks its record.

``python kill_training.py DIRECTORY KILLS [SEED]`` prints one JSON object. A kill hits the program that called
`rl.train`, the learner, or one of two rollout workers. A lost learner or worker is replaced by hookline; a program that
ended is started again here, and resumes the run. After each kill, the samples that the last checkpoint covers are
noted. In the end the run has to hold all of these, each sample once, each use of a sample once, and each step of the
learner and of both workers once; otherwise the exit status is 1.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

import hookline as hl
from hookline import rl
from hookline._record.reader import read
from hookline._record.records import Metrics, Sample, SampleUse
from hookline.loops import checkpoint

STEPS_AFTER = 8
"""How many steps the training makes after the last kill."""
START_SECONDS = 180.0
"""How long a training may take to complete the next steps, after whatever was killed."""
TITLES = {"learner": "ray::LearnerActor", "worker": "ray::RolloutActor"}


class Sevens:
    """Rewards sevens."""

    name = "sevens"

    def sample(self, n: int, rng: random.Random) -> list[rl.Task]:
        return [rl.Task(f"{rng.randrange(10)}>") for _ in range(n)]

    def score(self, task: rl.Task, completion: str) -> dict[str, float]:
        return {"sevens": completion.count("7") / 4}


class ReportsSteps(hl.Callback):
    """Adds a byte to a file for each completed step, and stops some steps after there is a file ``end``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._left = STEPS_AFTER

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        with (self._directory / "steps").open("ab") as steps:
            steps.write(b".")
        self._left -= (self._directory / "end").exists()
        if not self._left:
            loop.request_stop("the end")


def train(directory: Path) -> None:
    """Train until `ReportsSteps` stops it, from the last checkpoint if there is one."""
    from hookline.rl.ray_cluster import RayCluster
    from hookline.testing import character_tokenizer, tiny_causal_lm

    tokenizer = character_tokenizer("0123456789>")
    config = rl.RLConfig(
        curriculum=rl.CurriculumConfig(lessons=[rl.Lesson("sevens", Sevens())], eval_frequency=0),
        rollout=rl.RolloutConfig(prompts=2, group_size=4, max_tokens=4, samples=None),
        train=hl.TrainerConfig(
            max_steps=1 << 30,
            output_dir=str(directory),
            name="killed",
            resume="auto",
            seed=0,
            checkpoint={"every_n_steps": 5},
            summary=False,
            console=False,
            code="none",
        ),
        executor="ray",
        rollout_workers=2,
        max_staleness=2,
        learner_restarts=10,
    )
    model = tiny_causal_lm(tokenizer, hidden_size=16, layers=1, heads=2)
    with RayCluster(3) as cluster:
        cluster.ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import this script
        rl.train(config, model=model, tokenizer=tokenizer, callbacks=[ReportsSteps(directory)])


class Program:
    """A training in a process of its own, with Ray's processes below it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def ensure(self) -> None:
        """Start the program if it does not run."""
        if self._process is None or self._process.poll() is not None:
            self.starts += 1
            with (self._directory / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, __file__, str(self._directory)],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={"RAY_worker_niceness": "0"} | os.environ,
                )

    def kill(self, kind: str, rng: random.Random) -> bool:
        """Kill one of its processes; returns whether there was one."""
        assert self._process is not None
        below = self._below()
        if kind == "program":
            self._process.kill()
            self._process.wait()
            # Two programs must not write one record. The actors end with the program; some helpers of Ray would not.
            actors = [each for each in below if _command(each).startswith(tuple(TITLES.values()))]
            _, alive = psutil.wait_procs(actors, timeout=60)
            if alive:
                raise SystemExit(f"actors outlive the program that started them: {alive}")
            for each in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            return True
        title = TITLES[kind]
        found = [each for each in below if _command(each).startswith(title)]
        if found:
            rng.choice(found).kill()
        return bool(found)

    def wait(self) -> int:
        """Wait until it has ended; returns its exit status."""
        assert self._process is not None
        return self._process.wait(timeout=START_SECONDS)

    def _below(self) -> list[psutil.Process]:
        assert self._process is not None
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def completed_steps(directory: Path) -> int:
    """Return how many steps were completed so far, with those that were made again."""
    reported = directory / "steps"
    return reported.stat().st_size if reported.exists() else 0


def covered(run_dir: Path) -> set[str]:
    """Return the names of the samples that the last checkpoint covers."""
    saved = checkpoint.last(run_dir)
    if saved is None:
        return set()
    step = int(saved.name.removeprefix("step-"))
    return {name for use in _records(run_dir, SampleUse) if use.step <= step for name in use.rollouts}


def _records(run_dir: Path, kind: type, **options: Any) -> list[Any]:
    return [record for record in read(run_dir, **options) if isinstance(record, kind)]


def _run_dir(directory: Path) -> Path | None:
    """Return the directory of the run; None before there is one. All programs have to record in the same."""
    found = [path.parent for path in directory.glob("*/*/run.json")]
    if len(found) > 1:
        raise SystemExit(f"a program began another run instead of resuming: {found}")
    return found[0] if found else None


def audit(run_dir: Path, acknowledged: set[str]) -> dict[str, int]:
    """Count what is missing from the record, and what it has more than once."""
    samples = Counter(sample.rollout for sample in _records(run_dir, Sample))
    uses = Counter(name for use in _records(run_dir, SampleUse) for name in use.rollouts)
    steps = [
        row.step for row in _records(run_dir, Metrics, writer="main") if row.axis == "train" and "loss" in row.values
    ]
    uneven = int(steps != list(range(1, len(steps) + 1)))
    for worker in ("rollout0", "rollout1"):
        own = [row.step for row in _records(run_dir, Metrics, writer=worker) if "rollouts" in row.values]
        uneven += own != list(range(1, len(own) + 1))
    return {
        "steps": len(steps),
        "samples": len(samples),
        "acknowledged": len(acknowledged),
        "lost": len(acknowledged - set(samples)) + len(set(uses) - set(samples)),
        "doubled": (samples - Counter(set(samples))).total() + (uses - Counter(set(uses))).total(),
        "writers_with_missing_or_repeated_steps": uneven,
    }


def main() -> None:
    directory, kills = Path(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    directory.mkdir(parents=True, exist_ok=True)
    program, killed, acknowledged = Program(directory), Counter[str](), set[str]()
    pause = threading.Event()
    while killed.total() < kills:
        # Some are killed while they start.
        target, deadline = completed_steps(directory) + rng.randrange(10), time.monotonic() + START_SECONDS
        program.ensure()
        while completed_steps(directory) < target:
            if time.monotonic() > deadline:
                raise SystemExit(f"too few steps in {START_SECONDS:g} s: {(directory / 'log').read_text()[-4000:]}")
            pause.wait(0.01)
            program.ensure()
        pause.wait(rng.uniform(0, 0.5))
        kind = rng.choices(("program", "learner", "worker"), (1, 2, 3))[0]
        if not program.kill(kind, rng):
            continue
        killed[kind] += 1
        run_dir = _run_dir(directory)
        if run_dir is not None:
            acknowledged |= covered(run_dir)
    (directory / "end").touch()
    program.ensure()
    if program.wait():
        raise SystemExit(f"the last program failed: {(directory / 'log').read_text()[-4000:]}")
    run_dir = _run_dir(directory)
    assert run_dir is not None
    found = audit(run_dir, acknowledged)
    print(json.dumps({"kills": dict(killed), "programs": program.starts} | found))
    if found["lost"] or found["doubled"] or found["writers_with_missing_or_repeated_steps"]:
        raise SystemExit("the record is not what it has to be")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        train(Path(sys.argv[1]).resolve())
    else:
        main()
