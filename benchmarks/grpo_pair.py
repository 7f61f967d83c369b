"""Two GRPO trainings that make their steps in turns, one of them observed, and the checks that they are the same.

The same step of both is made within a fraction of a second, so a machine that is slow for a while is slow for both.
`keep_memory` belongs to it: glibc gives memory back to the system and asks for it again within a step, how often
depends on what else lies there, and that is worth more than what is measured, in favour of the one that records.
"""

import copy
import ctypes
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from grpo_recipe import GROUP_SIZE, PROMPTS, TOKENIZER, grpo_config
from measure import require_whole

import hookline as hl
from hookline import rl
from hookline._record.records import Metrics, Sample
from hookline.hooks import Hook, HookContext, LoggingHook, MetricsHook

Times = tuple[int, int]
"""Nanoseconds of this process on the CPU, and by the clock on the wall."""


def clocks() -> Times:
    """What both show."""
    return time.process_time_ns(), time.perf_counter_ns()


def keep_memory() -> None:
    """Have the process keep the memory that it frees, and all threads share it, where the C library is glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    arena_max, mmap_threshold, top_pad, trim_threshold = -8, -3, -2, -1  # as malloc.h has them
    for option, value in ((arena_max, 1), (mmap_threshold, 32 << 20), (top_pad, 64 << 20), (trim_threshold, 1 << 30)):
        if mallopt is not None:
            mallopt(option, value)


class CheckError(RuntimeError):
    """A training did not do the work that it was timed for."""


class Turns:
    """Lets two threads go on in turns, the first one first."""

    def __init__(self) -> None:
        self._may_go = [threading.Semaphore(1), threading.Semaphore(0)]
        self._has_left = [False, False]

    def wait(self, own: int) -> None:
        """Wait until it is one's turn."""
        self._may_go[own].acquire()

    def pass_on(self, own: int) -> None:
        """Let the other one go on, and wait until it has passed on or left."""
        if not self._has_left[1 - own]:
            self._may_go[1 - own].release()
            self.wait(own)

    def leave(self, own: int) -> None:
        """Take no more turns."""
        self._has_left[own] = True
        self._may_go[1 - own].release()


class Stopwatch(hl.Callback):
    """Takes the time of each step but the first, keeps what was done in it, and passes the turn on.

    The first step ends when the environment of the run has been gathered.

    Attributes:
        nanoseconds: What each step took: from the end of the one before, whose row is still to be written then.
        steps: The rollouts and the loss of each step.
        rollouts: Those of the last step.
    """

    def __init__(self, turns: Turns | None = None, own: int = 0) -> None:
        self._turns, self.own = turns, own
        self._began: Times | None = None
        self.nanoseconds: list[Times] = []
        self.steps: list[Any] = []
        self.rollouts: Sequence[rl.Rollout] = ()

    def on_rollout_end(self, loop: Any, step_idx: int, rollouts: Any) -> None:
        self.rollouts = rollouts

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        now = clocks()
        if self._began is not None:
            self.nanoseconds.append((now[0] - self._began[0], now[1] - self._began[1]))
        else:  # it belongs to the start of a run, and not to a step
            for thread in threading.enumerate():
                if thread.name == "hookline-environment":
                    thread.join()
        self.steps.append((float(metrics["loss"]), [_facts(rollout) for rollout in self.rollouts]))
        if self._turns is not None:
            self._turns.pass_on(self.own)
        self._began = clocks()


def _facts(rollout: rl.Rollout) -> int:
    """A number that differs where rollouts do."""
    written = rollout.completion
    tokens = (tuple(written.prompt_ids), tuple(written.token_ids), tuple(written.logprobs))
    return hash((rollout.task.id, tokens, tuple(rollout.rewards.items()), rollout.total, rollout.advantage))


def derived(context: HookContext) -> dict[str, Any]:
    """A metric that a hook makes of what it sees."""
    return {"reward_per_token": context.metadata["reward_mean"] / context.metadata["completions/length_mean"]}


class Pair:
    """Two trainings from one start that make their steps in turns: a plain one, and one that is observed."""

    def __init__(self, start: Any, seed: int, steps: int, directory: Path, *, plain_goes_first: bool = True) -> None:
        self._start, self._seed, self._steps, self._directory = start, seed, steps, directory
        self._turns = Turns()
        self.plain = Stopwatch(self._turns, 0 if plain_goes_first else 1)
        self.observed = Stopwatch(self._turns, 1 - self.plain.own)

    def run(self) -> None:
        """Make both, and see that they did the same work and that all of it was recorded."""
        hooks = [LoggingHook(1), MetricsHook(1, derived)]
        with ThreadPoolExecutor(2) as threads:
            both = [
                threads.submit(self._train, self.plain, None, []),
                threads.submit(self._train, self.observed, self._directory, hooks),
            ]
        for training in both:
            training.result()
        check_same(self.plain.steps, self.observed.steps, "hooks and a record")
        check_record(self._directory, self._steps)

    def _train(self, watch: Stopwatch, directory: Path | None, hooks: Sequence[Hook]) -> None:
        self._turns.wait(watch.own)
        try:
            train_watched(self._start, grpo_config(self._seed, self._steps, directory), watch, hooks)
        finally:
            self._turns.leave(watch.own)


def train_watched(start: Any, config: rl.RLConfig, watch: Stopwatch, hooks: Sequence[Hook], *callbacks: Any) -> None:
    """Train a copy of a model."""
    torch.set_num_threads(1)  # each thread has a setting of its own
    model = copy.deepcopy(start)
    require_whole(rl.train(config, model=model, tokenizer=TOKENIZER, hooks=hooks, callbacks=[watch, *callbacks]))


def check_same(plain: Sequence[Any], other: Sequence[Any], what: str) -> None:
    """See that two trainings had the same rollouts and losses."""
    for step, (own, its) in enumerate(zip(plain, other, strict=False), 1):
        if own != its:
            raise CheckError(f"With {what} step {step} is another: its rollouts or its loss differ from the plain one.")
    if len(plain) != len(other) or not plain:
        raise CheckError(f"With {what} there are {len(other)} steps, and {len(plain)} in the plain training.")


def check_record(directory: Path, steps: int) -> None:
    """See that all samples and all rows, and what the hooks gave, can be read back."""
    records = [record for journal in directory.rglob("journal") for record in hl.read(journal.parent)]
    samples = [record.step for record in records if isinstance(record, Sample)]
    rows = [record for record in records if isinstance(record, Metrics)]
    for what, name, axis in (("learning", "loss", "train"), ("rollouts", "reward/mean", "rollout")):
        if [row.step for row in rows if name in row.values and row.axis == axis] != list(range(1, steps + 1)):
            raise CheckError(f"The record lacks rows of {what}: there must be one for each of {steps} steps.")
    if samples != [step for step in range(1, steps + 1) for _ in range(PROMPTS * GROUP_SIZE)]:
        raise CheckError(f"The record has {len(samples)} samples, where {steps * PROMPTS * GROUP_SIZE} were made.")
    if sum("reward_per_token" in row.values for row in rows) != steps:
        raise CheckError(f"The record lacks what a hook gave: there must be a value for each of {steps} steps.")
