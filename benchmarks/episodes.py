"""What failing environments cost the others: 256 open conversations, one in ten of which hangs, raises or goes wrong.

Each conversation has several turns, and their number varies: with ``--spread 0`` all conversations that work stay in
step, which no others do, and are generated in whole batches. Between two turns its environment waits a few
milliseconds, as one does that asks a service. The policy is a tiny model that always writes as many tokens as it may,
so that every turn is the same work.
One environment in ten fails at one of its turns, each in one of these ways: it waits forever, blocks a thread forever,
raises, returns no message, or returns no number as its reward.

Steps without and with failing environments are made in turns. Throughput is the number of rollouts per second of a
step, by the clock on the wall, since it is waiting that might be lost. The bar: it falls by no more than the share of
failing environments. Nothing may be lost: every conversation must become a rollout or a fault, and every fault must be
counted, or nothing is printed but an error. CPU time is that of the process, all threads together.
"""

import argparse
import asyncio
import itertools
import json
import logging
import os
import platform
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from statistics import median
from typing import Any

import torch
from measure import Taken, at_least, met, quiet, taken
from rich.console import Console
from rich.table import Table

import hookline as hl
from hookline import rl
from hookline.testing import chat_tokenizer, tiny_causal_lm

LIMIT_SHARE, LEAST_LIMIT_SECONDS = 0.03, 0.5
"""The time limit of an environment between two turns: this share of a step, as a busy machine takes longer for both.

A step ends with its last conversation. If that one hangs, the step takes longer by the limit: with a large share, the
limit would be measured instead of the throughput. So a step has 4,096 conversations by default: with 2,048, it would
take hardly ten seconds on a fast machine, since the keys and values of earlier turns are kept.
"""
WAIT_MILLISECONDS = (1, 20)
RELEASED = threading.Event()
"""Ends the functions that block a thread, once the step is over."""


async def _hang() -> Any:
    await asyncio.Event().wait()


def _block() -> Any:
    RELEASED.wait()


async def _raise() -> Any:
    raise ConnectionError("the service has gone")


async def _no_message() -> Any:
    return rl.Step(observation=4)  # type: ignore[arg-type]


async def _no_number() -> Any:
    return rl.Step(reward="good", done=True)  # type: ignore[arg-type]


FAILURES: dict[str, Callable[[], Any]] = {
    "waits forever": _hang,
    "blocks a thread": _block,
    "raises": _raise,
    "no message": _no_message,
    "no number": _no_number,
}


class Service:
    """Conversations with an environment that waits; some of them fail.

    Args:
        turns, spread: A conversation has that many turns, more or less.
        failing: The share of conversations that fail.
    """

    name = "service"

    def __init__(self, turns: int, spread: int, failing: float) -> None:
        self.turns, self.spread, self.failing = turns, spread, failing
        self._numbers = itertools.count()

    def sample(self, n: int, rng: random.Random) -> list[rl.Task]:
        """Every so many tasks, one fails."""
        numbers = [next(self._numbers) for _ in range(n)]
        return [rl.Task(f"{number}?", metadata={"failure": self._failure(number)}) for number in numbers]

    def _failure(self, number: int) -> str | None:
        if not self.failing or number % round(1 / self.failing):
            return None
        return list(FAILURES)[number // round(1 / self.failing) % len(FAILURES)]

    def episode(self) -> "Conversation":
        """Begin a conversation."""
        return Conversation(self.turns, self.spread)


class Conversation:
    """One conversation: it answers after a wait, and fails at a turn of its own."""

    def __init__(self, turns: int, spread: int) -> None:
        self.turns, self.spread = turns, spread
        self.failure: str | None = None

    async def reset(self, task: rl.Task, *, rng: random.Random) -> None:
        """Draw its number of turns, and note how it fails, and when."""
        self.failure, self.rng = task.metadata["failure"], rng
        self.left = self.turns + rng.randint(-self.spread, self.spread)
        self.fails_at = rng.randrange(self.left)

    async def step(self, message: Any) -> Any:
        """Wait, and answer or fail."""
        await asyncio.sleep(self.rng.uniform(*WAIT_MILLISECONDS) / 1000)
        self.left -= 1
        if self.failure is not None and self.left == self.fails_at:
            function = FAILURES[self.failure]
            made = function() if asyncio.iscoroutinefunction(function) else asyncio.to_thread(function)
            return await made
        return rl.Step(observation="and?", reward=1.0, done=self.left == 0)


class EndlessPolicy(rl.HFPolicy):
    """Writes as many tokens as it may, and its turns count as complete; all tokens are the same letter.

    Random tokens might call tools. The letter is what the model really samples, so its keys and values are those of the
    conversation, and a next turn that is computed from them is computed correctly.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__(model, tokenizer)
        letter = tokenizer.convert_tokens_to_ids("a")
        others = [token for token in range(len(tokenizer)) if token != letter]
        model.lm_head.register_forward_hook(lambda _, __, logits: logits.index_fill(-1, torch.tensor(others), -1e4))

    def completions(self, rows: list[Any]) -> list[rl.Completion]:
        """Return rows as complete turns."""
        for row in rows:
            row.tokens[-1], row.finish = self.tokenizer.eos_token_id, "stop"
        return super().completions(rows)

    def _end_tokens(self, sampling: rl.Sampling) -> frozenset[int]:
        return frozenset()


class LossError(Exception):
    """A conversation was lost, or a fault was not counted."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of rollouts.

    Attributes:
        rollouts: How many conversations have a reward.
        faults: How many failed.
    """

    rollouts: int
    faults: int
    seconds: float
    cpu_seconds: float

    @property
    def throughput(self) -> float:
        """Rollouts per second."""
        return self.rollouts / self.seconds


class Worker:
    """A rollout worker whose steps are timed and checked."""

    def __init__(self, policy: Any, options: argparse.Namespace, failing: float, limit: float | None) -> None:
        self.options = options
        self.environment = Service(options.turns, options.spread, failing)
        config = rl.RolloutWorkerConfig(
            curriculum_config=rl.CurriculumConfig(
                lessons=[rl.Lesson("service", self.environment)], micro_eval_frequency=0, eval_frequency=0
            ),
            rollout=rl.RolloutConfig(
                prompts=options.episodes,
                group_size=1,
                max_tokens=options.tokens,
                max_turns=options.turns + options.spread + 1,
                max_open_episodes=options.open,
                environment_seconds=limit,
                samples=0,
            ),
            output_dir=None,
            summary=False,
        )
        self.worker = rl.RolloutWorker(config, policy=policy, hooks=[])

    def step(self) -> Step:
        """Make a step, and check that nothing is lost."""
        before, made = sum(self.worker.faults.values()), []
        taken_here: Taken = taken(lambda: made.extend(self.worker.roll_out()))
        RELEASED.set()  # the threads of this step: a process may have a limited number of abandoned ones
        RELEASED.clear()
        faults = sum(self.worker.faults.values()) - before
        failing = sum(1 for _ in self._failing())
        if len(made) + faults != self.options.episodes or faults != failing:
            raise LossError(
                f"of {self.options.episodes} conversations, {failing} of which fail, {len(made)} became rollouts and "
                f"{faults} faults; on a machine that is too busy, environments that work exceed their time limit too"
            )
        return Step(len(made), faults, taken_here.wall, taken_here.cpu)

    def _failing(self) -> Iterator[int]:
        """The conversations of the latest step that fail."""
        last = self.worker.step * self.options.episodes
        return (n for n in range(last - self.options.episodes, last) if self.environment._failure(n) is not None)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured.

    Attributes:
        ratios: The throughput with failing environments, as a share of that without, of each round.
    """

    episodes: int
    open: int
    turns: int
    spread: int
    tokens: int
    share: float
    whole: list[Step]
    failing: list[Step]
    ratios: list[float]
    limit_seconds: float
    cpus: int | None
    versions: dict[str, str]

    @property
    def ratio(self) -> float:
        """The usual ratio."""
        return median(self.ratios)

    @property
    def bars(self) -> dict[str, bool]:
        """Whether throughput falls by no more than the share of failing environments."""
        return {"throughput": self.ratio >= 1 - self.share}


def measure(options: argparse.Namespace) -> Report:
    """Measure everything there is."""
    torch.set_num_threads(1)
    logging.getLogger("hookline").setLevel(logging.CRITICAL)  # the first fault of each kind is a warning
    tokenizer = chat_tokenizer("0123456789?and")
    policy = EndlessPolicy(tiny_causal_lm(tokenizer), tokenizer)
    whole: list[Step] = []
    failing: list[Step] = []
    with quiet():
        unlimited = Worker(policy, options, 0.0, None)
        limit = max(LEAST_LIMIT_SECONDS, LIMIT_SHARE * max(unlimited.step().seconds for _ in range(2)))
        unlimited.worker.close_hooks()
        workers = {fails: Worker(policy, options, options.share * fails, limit) for fails in (False, True)}
        for worker in workers.values():
            worker.step()  # warm up
        for number in range(options.rounds):
            for fails in (False, True) if number % 2 else (True, False):
                (failing if fails else whole).append(workers[fails].step())
        RELEASED.set()
        for worker in workers.values():
            worker.worker.close_hooks()
    ratios = [its.throughput / own.throughput for own, its in zip(whole, failing, strict=True)]
    own = {"Python": platform.python_version(), "torch": torch.__version__, "hookline": hl.__version__}
    versions = own | {"transformers": version("transformers")}
    sizes = {name: getattr(options, name) for name in ("episodes", "open", "turns", "spread", "tokens", "share")}
    return Report(
        **sizes,
        whole=whole,
        failing=failing,
        ratios=ratios,
        limit_seconds=limit,
        cpus=os.cpu_count(),
        versions=versions,
    )


def show(report: Report, console: Console) -> None:
    """Print the table and the lines beneath."""
    least, most = report.turns - report.spread, report.turns + report.spread
    turns = f"{least} to {most}" if report.spread else str(report.turns)
    title = f"{report.episodes} conversations of {turns} turns, {report.open} open at a time"
    table = Table("environments", title=title)
    for heading in ("rollouts", "faults", "seconds", "of the CPU", "rollouts/s"):
        table.add_column(heading, justify="right")
    for name, steps in (("all work", report.whole), (f"{report.share:.0%} fail", report.failing)):
        seconds, cpu = median(each.seconds for each in steps), median(each.cpu_seconds for each in steps)
        counts = [str(steps[0].rollouts), str(steps[0].faults)]
        table.add_row(name, *counts, f"{seconds:.2f}", f"{cpu:.2f}", f"{median(each.throughput for each in steps):.1f}")
    console.print(table)
    shown = ", ".join(f"{ratio:.3f}" for ratio in report.ratios)
    bar = f">= {1 - report.share:.2f} {met(report.bars['throughput'])}"
    for line in (
        f"throughput with failing environments: {report.ratio:.3f} of that without (bar: {bar}); rounds: {shown}",
        "every conversation became a rollout or a counted fault",
        f"{report.tokens} tokens a turn; at most {report.limit_seconds:.1f} s for an environment",
        f"{report.cpus} CPUs, one thread; " + ", ".join(f"{name} {number}" for name, number in report.versions.items()),
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _share(text: str) -> float:
    """Read a share: at most every second environment fails."""
    share = float(text)
    if not 0 < share <= 0.5:
        raise argparse.ArgumentTypeError(f"{text}: give a number above 0, and at most 0.5")
    return share


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description="What failing environments cost the others.")
    add = parser.add_argument
    add("--episodes", type=at_least(10), default=4096, help="conversations of a step")
    add("--open", type=at_least(1), default=256, help="how many of them are open at a time")
    add("--turns", type=at_least(1), default=4, help="turns of each")
    add("--spread", type=int, default=2, help="by how much the number of turns varies, at most")
    add("--tokens", type=at_least(1), default=24, help="tokens of each turn")
    add("--share", type=_share, default=0.1, help="the share of environments that fail")
    add("--rounds", type=at_least(1), default=3, help="pairs of steps")
    add("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args(arguments)
    if not 0 <= options.spread < options.turns:
        parser.error(f"--spread {options.spread}: give at least 0, and less than the {options.turns} turns")
    return options


def main() -> None:
    """Measure, and print a table or one JSON object."""
    options = parse()
    report = measure(options)
    if options.json:
        print(json.dumps(asdict(report) | {"ratio": report.ratio, "bars": report.bars}))
    else:
        show(report, Console())


if __name__ == "__main__":
    main()
