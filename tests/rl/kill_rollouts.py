"""Kills a rollout worker with open episodes again and again, at moments of chance, and counts what was lost or doubled.

``python kill_rollouts.py DIRECTORY KILLS`` prints one JSON object. Each child resumes the run from its last checkpoint,
after which earlier sessions' steps are made again. It reports each step whose samples are recorded through a mapped
file. In the end the run has to hold each sample of a worker that was never killed, once, and no other; it exits with 1
otherwise.
"""

import json
import mmap
import os
import random
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the children are forks

from scripted_policy import ScriptedChat, last_turn, worker

from hookline._record.reader import read
from hookline._record.records import Sample
from hookline.hooks import CheckpointHook, Hook
from hookline.rl.environments import Lookup

STEPS_AFTER = 5
"""How many steps the last session makes beyond those of the killed ones."""


class Reports(Hook):
    """Reports the number of the latest step whose samples are recorded."""

    def __init__(self, reported: mmap.mmap) -> None:
        self._reported = reported

    def should_run(self, context: Any) -> bool:
        return True

    def run(self, context: Any) -> None:
        self._reported[:8] = context.step.to_bytes(8, "little")


def answer(prompt: str, rng: random.Random) -> str:
    """Look up the key, or guess."""
    role, text = last_turn(prompt)
    if role == "tool" or rng.random() < 0.3:
        return text
    return f"<call>lookup key={text.rstrip('?')}</call>"


def run(directory: Path, steps: int, hooks: list[Hook]) -> Path:
    """Make rollouts, from the last checkpoint if there is one; returns the directory of the run."""
    rollout = {"prompts": 4, "group_size": 3, "max_tokens": 40, "samples": None}
    made = worker(
        ScriptedChat(answer),
        environment=Lookup(),
        rollout=rollout,
        hooks=[CheckpointHook(4), *hooks],
        output_dir=str(directory),
        name="killed",
        resume="last" if any(directory.glob("*/*/checkpoints/step-*")) else None,
        console=False,
        code="none",
    )
    made.run(steps)
    assert made.dir is not None
    return made.dir


def session(directory: Path, reported: mmap.mmap, steps: int) -> int:
    """Run in a child; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        run(directory, steps, [Reports(reported)])
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(1)


def samples(run_dir: Path) -> Counter[tuple[Any, ...]]:
    """What was recorded: step, task, completion, reward and episode of each sample."""
    return Counter(
        (each.step, each.prompt, each.completion, each.total, each.finish, each.extra["episode"])
        for each in read(run_dir)
        if isinstance(each, Sample)
    )


def main() -> None:
    directory, kills, rng = Path(sys.argv[1]), int(sys.argv[2]), random.Random(0)
    killed, reported, last, sessions = directory / "killed", mmap.mmap(-1, mmap.PAGESIZE), 0, 0
    while sessions < kills:
        reported[:8] = bytes(8)
        pid = session(killed, reported, 1 << 30)
        if rng.random() < 0.8:  # the others are killed while they start
            while not any(reported[:8]) and os.waitpid(pid, os.WNOHANG) == (0, 0):
                threading.Event().wait(0.001)
        threading.Event().wait(rng.uniform(0, 0.2))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            raise SystemExit("a session ended by itself")
        sessions += 1
        last = max(last, int.from_bytes(reported[:8], "little"))
    _, status = os.waitpid(session(killed, reported, last + STEPS_AFTER), 0)
    if status:
        raise SystemExit("the last session failed")
    (run_dir,) = {path.parents[1] for path in killed.glob("*/*/checkpoints/step-*")}
    expected = samples(run(directory / "whole", last + STEPS_AFTER, []))
    found = samples(run_dir)
    total = {"kills": sessions, "steps": last + STEPS_AFTER, "samples": sum(expected.values())}
    total |= {"lost": (expected - found).total(), "doubled_or_wrong": (found - expected).total()}
    print(json.dumps(total))
    if total["lost"] or total["doubled_or_wrong"]:
        raise SystemExit("samples were lost, or recorded twice")


if __name__ == "__main__":
    main()
