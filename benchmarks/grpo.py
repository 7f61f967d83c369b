"""That GRPO learns, beside TRL, and what hooks and the record add to it: sorting digits and a tool, on one thread.

**It learns.** For each seed a model of 109 thousand parameters is made on the spot, is shown examples until it gets
about 0.3 of what it is asked right, and then learns by GRPO from an exact-match reward. Accuracy is that on tasks
that are held out: neither the examples nor the rollouts ever have one of them, and neither decides when to stop. It
is given for sampled answers and for the likeliest ones, before and after, since much of what sampled answers gain is
that the model becomes surer of what it knows already. The seconds are those of the whole of it, the record included.
The seeds are drawn for each run and printed; ``--seeds`` and ``--compared`` repeat one.

**It uses a tool.** For each seed a model that can call a tool, and rarely does, learns by GRPO that calling it pays: a
conversation has up to three turns, and only the tool knows the right answers. See `tool_recipe`.

**It learns no less than with TRL, in less time.** TRL's `GRPOTrainer` gets the same model, the same prompts in the same
order, and as many steps with the same loss, batch, optimizer and learning rates. First, TRL is given the completions
of ours for some steps: rewards, losses, norms of gradients and the weights afterwards have to be equal but for
rounding, or nothing is printed but an error. So what is left to differ is chance, since each draws completions of its
own. Other seeds, eight of them, then train with both, for half as many steps, which is what one run of the benchmark
has time for. Compared are the mean reward of the last tenth of the steps, and that of sampled answers to all tasks that
are held out, four to each. The mean of the paired differences is given with its confidence interval of 95%. The bar
needs both ends: zero must not be above the interval, and a loss of 0.02 must be below it. So a loss that is more than
chance does not meet the bar, however small it is, and neither do so few or such different pairs that a loss could hide
in them. The time is that of a step on the CPU. Its parts are shown by the clock: generating, scoring and learning.
What is left of a step is its record, and loading the weights into the policy.

**It costs nothing.** Two trainings with the same seed make their steps in turns, in one process: one without hooks
that keeps no samples and writes nothing, and one with hooks that records all samples and metrics. They are made
several times over. A step has the same work in it each time, so the least of its times is what it takes, and the rest
is what else the machine did. What is added is the difference between both, over all steps, as a share of the plain
ones; in brackets the middle half of the steps. It is given in time of the CPU, all threads of the process together,
which the bar is for, since other programs hardly change it, and by the clock on the wall, which would show a wait.

The hooks look at the context at every step, log a line of it and derive a metric. Hooks that evaluate generate, which
is work that was asked for, so they are not counted here. What the metrics take to be computed is the same in both; it
is measured by itself, and added.

**It changes nothing.** Both trainings, and a third one with hooks that evaluate after every other step, must have
the same rollouts, to the last log-probability, and the same losses, and the record must hold every sample and every
row, or nothing is printed but an error.

Neither accuracies nor timings are asserted: the bars are marked as met or not.
"""

import argparse
import copy
import gc
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles
from typing import Any

import tool_recipe
import torch
from grpo_pair import CheckError, Pair, Stopwatch, Times, check_same, keep_memory, train_watched
from grpo_recipe import ENVIRONMENT, TOKENIZER, accuracy, grpo_config, show_examples
from grpo_trl import (
    PARTS,
    Difference,
    SameTasks,
    Side,
    check_equal,
    difference,
    tasks_of,
    train_with_ours,
    train_with_trl,
)
from measure import at_least, met, quiet, require_whole
from rich.console import Console
from rich.table import Table

import hookline as hl
from hookline import rl
from hookline.rl.rollouts.scoring import rollout_metrics

BARS = {"sampled": 0.90, "greedy": 0.93, "seconds": 60.0, "tool": 0.9, "minutes": 5.0, "share": 0.03, "time": 1.0}
"""Accuracies of at least; seconds, minutes and a share of at most; beside TRL, the most time."""
TOLERATED = 0.02
"""The loss of reward beside TRL that the pairs have to exclude."""
SEEDS, COMPARED = 3, 8
COPIES = 4
"""How many sampled answers each held-out task gets: the noise of the measurement is small beside that of training."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The share of tasks that were answered exactly right."""

    sampled: float
    greedy: float


@dataclass(frozen=True, slots=True)
class Learnt:
    """How one seed did.

    Attributes:
        cpu_seconds: Of SFT and GRPO together: what they take where nothing else runs.
    """

    seed: int
    sft_steps: int
    sft_seconds: float
    before: Accuracy
    grpo_steps: int
    grpo_seconds: float
    cpu_seconds: float
    after: Accuracy

    @property
    def bars(self) -> dict[str, bool]:
        """Whether it learnt what it was to learn, in time."""
        return {
            "sampled": self.after.sampled >= BARS["sampled"],
            "greedy": self.after.greedy >= BARS["greedy"],
            "seconds": self.sft_seconds + self.grpo_seconds < BARS["seconds"],
        }


def learn(seed: int, options: argparse.Namespace, directory: Path) -> tuple[Learnt, Any]:
    """Let a seed learn; and the model as it was when it had been shown examples."""
    held_out, used = _held_out(options), time.process_time()
    model, sft_steps, sft_seconds = show_examples(seed, options.sft_steps)
    used -= time.process_time()
    start, before = copy.deepcopy(model), _accuracies(model, held_out)
    used, began = used + time.process_time(), time.perf_counter()
    done = rl.train(grpo_config(seed, options.steps, directory), model=model, tokenizer=TOKENIZER)
    require_whole(done)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    after = _accuracies(model, held_out)
    return Learnt(seed, sft_steps, sft_seconds, before, done.step, seconds, used, after), start


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How one seed learnt to call a tool.

    Attributes:
        seconds: Of showing examples and GRPO together, by the clock.
        before: Sampled answers before GRPO.
        after: The same afterwards.
        greedy: The likeliest answers afterwards.
    """

    seed: int
    seconds: float
    cpu_seconds: float
    before: tool_recipe.Skill
    after: tool_recipe.Skill
    greedy: tool_recipe.Skill

    @property
    def bars(self) -> dict[str, bool]:
        """Whether it learnt to call the tool, in minutes."""
        return {
            "tool": self.after.right >= BARS["tool"],
            "minutes": self.seconds < 60 * BARS["minutes"],
        }


def use_tool(seed: int, options: argparse.Namespace, directory: Path) -> ToolUse:
    """Let a seed learn to call the tool."""
    tasks = tool_recipe.ENVIRONMENT.held_out(options.held_out, random.Random(0))
    used, began = time.process_time(), time.perf_counter()
    model, _, _ = tool_recipe.show_examples(seed, options.tool_sft_steps)
    before = tool_recipe.skill(model, tasks, 1.0)
    config = tool_recipe.grpo_config(seed, options.tool_steps, directory)
    require_whole(rl.train(config, model=model, tokenizer=tool_recipe.TOKENIZER, hooks=[]))
    seconds, used = time.perf_counter() - began, time.process_time() - used
    after, greedy = (tool_recipe.skill(model, tasks, temperature) for temperature in (1.0, 0.0))
    return ToolUse(seed, seconds, used, before, after, greedy)


@dataclass(frozen=True, slots=True)
class Compared:
    """How one seed did here and with TRL: the trainings, and the accuracies of both models afterwards."""

    seed: int
    own: Side
    trl: Side
    own_after: Accuracy
    trl_after: Accuracy

    @property
    def time(self) -> float:
        """The time of a step as a share of TRL's, both on the CPU."""
        return self.own.cpu_milliseconds / self.trl.cpu_milliseconds


def compare(seed: int, options: argparse.Namespace, directory: Path) -> Compared:
    """Train a seed here and with TRL, from the same start."""
    held_out, tasks = _held_out(options), tasks_of(seed, options.compare_steps)
    start, _, _ = show_examples(seed, options.sft_steps)
    config = grpo_config(seed, options.compare_steps, directory, SameTasks(tasks))
    model, own = train_with_ours(start, config)
    other, trl = train_with_trl(start, config, tasks)
    return Compared(seed, own, trl, _accuracies(model, held_out), _accuracies(other, held_out))


def _held_out(options: argparse.Namespace) -> list[rl.Task]:
    return list(ENVIRONMENT.held_out(options.held_out, random.Random(0)))


def _accuracies(model: Any, tasks: Sequence[rl.Task]) -> Accuracy:
    return Accuracy(accuracy(model, tasks, 1.0, COPIES), accuracy(model, tasks, 0.0))


@dataclass(frozen=True, slots=True)
class Added:
    """A share over all steps, and the middle half of the steps."""

    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What hooks, samples and metrics take, as shares of the time of a plain step.

    Attributes:
        plain_milliseconds: What a plain step takes.
        added: By the hooks and the record, in time of the CPU.
        added_on_the_wall: The same, by the clock on the wall.
        metrics: By the computing of metrics, which a plain step does as well.
    """

    plain_milliseconds: float
    added: Added
    added_on_the_wall: Added
    metrics: float

    @property
    def share(self) -> float:
        """All of it."""
        return self.added.share + self.metrics


def cost(start: Any, seed: int, options: argparse.Namespace, directory: Path) -> Cost:
    """Measure what is added; who goes first changes from round to round."""
    pairs, metrics = [], []
    for number in range(options.rounds):
        pair = Pair(start, seed, options.cost_steps, directory / str(number), plain_goes_first=number % 2 == 0)
        with _collector_spared():
            pair.run()
        pairs.append((pair.plain.nanoseconds, pair.observed.nanoseconds))
        metrics += [_computing(pair.plain.rollouts) for _ in range(5)]
    plain, observed = (least(rounds) for rounds in zip(*pairs, strict=True))
    mean = sum(on_cpu for on_cpu, _ in plain) / len(plain)
    on_cpu, on_wall = (added([a[clock] for a in plain], [b[clock] for b in observed]) for clock in (0, 1))
    return Cost(mean / 1e6, on_cpu, on_wall, min(metrics) / mean)


def least(rounds: Iterable[Sequence[Times]]) -> list[Times]:
    """The least times of each step in all rounds."""
    steps = zip(*rounds, strict=True)
    return [(min(on_cpu for on_cpu, _ in step), min(on_wall for _, on_wall in step)) for step in steps]


def added(plain: Sequence[int], observed: Sequence[int]) -> Added:
    """What steps take more than plain ones."""
    low, _, high = quantiles([its / own - 1 for own, its in zip(plain, observed, strict=True)], n=4, method="inclusive")
    return Added(sum(observed) / sum(plain) - 1, low, high)


@contextmanager
def _collector_spared() -> Iterator[None]:
    """What is there already is not searched: once in a while a step would take three times as long, whosever it is."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _computing(rollouts: Sequence[rl.Rollout]) -> int:
    """What the metrics of a step take: for the row of the rollouts, for their lesson, and for the learner's row."""
    began = time.process_time_ns()
    for _ in range(3):
        rollout_metrics(rollouts)
    return time.process_time_ns() - began


class Evaluations(hl.Callback):
    """Counts evaluations of lessons; the mean over all lessons is another one."""

    count = 0

    def on_eval(self, loop: Any, step_idx: int, eval_name: str, metrics: Any) -> None:
        self.count += "/" in eval_name


def check_evaluated(start: Any, seed: int, steps: int, directory: Path) -> int:
    """See that a training with hooks that evaluate is the same as one without; how many evaluations were made."""
    plain, evaluated, evaluations = Stopwatch(), Stopwatch(), Evaluations()
    hooks = [
        rl.EvaluationHook(2, 16, "micro_eval", evaluate_all_lessons=False),
        rl.EvaluationHook(2, 16, "eval"),
    ]
    train_watched(start, grpo_config(seed, steps, None), plain, [])
    train_watched(start, grpo_config(seed, steps, directory), evaluated, hooks, evaluations)
    check_same(plain.steps, evaluated.steps, "hooks that evaluate")
    if evaluations.count != steps // 2 * len(hooks):
        raise CheckError(
            f"{evaluations.count} evaluations were made in {steps} steps, by hooks that run at every other."
        )
    return evaluations.count


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured."""

    cpus: int | None
    versions: dict[str, str]
    held_out: int
    learnt: list[Learnt]
    tools: list[ToolUse]
    compare_steps: int
    weights: float
    compared: list[Compared]
    rounds: int
    cost_steps: int
    cost: Cost
    evaluations: int

    @property
    def differences(self) -> dict[str, Difference]:
        """What ours has more than TRL: reward of the last steps, and sampled accuracy on tasks that are held out."""
        each = self.compared
        return {
            "reward": difference([one.own.reward for one in each], [one.trl.reward for one in each]),
            "held_out": difference([one.own_after.sampled for one in each], [one.trl_after.sampled for one in each]),
        }

    @property
    def bars(self) -> dict[str, bool]:
        """Whether every seed learns in time, no less than with TRL, and whether hooks and the record are cheap."""
        of_seeds = {
            name: all(each.bars[name] for each in several)
            for several in (self.learnt, self.tools)
            for name in several[0].bars
        }
        beside = {name: each.is_equal_or_better(TOLERATED) for name, each in self.differences.items()}
        is_faster = all(each.time < BARS["time"] for each in self.compared)
        return of_seeds | beside | {"time": is_faster, "share": self.cost.share < BARS["share"]}


def measure(options: argparse.Namespace) -> Report:
    """Measure everything there is."""
    torch.set_num_threads(1)
    keep_memory()
    with quiet(), tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        runs = [learn(seed, options, directory / f"seed-{seed}") for seed in options.seeds]
        start, seed = runs[0][1], options.seeds[0]
        weights = check_equal(start, seed, options.check_steps)
        evaluations = check_evaluated(start, seed, options.check_steps, directory / "evaluated")
        taken = cost(start, seed, options, directory / "cost")
        tools = [use_tool(seed, options, directory / f"tool-{seed}") for seed in options.seeds]
        compared = [compare(seed, options, directory / f"compared-{seed}") for seed in options.compared]
    return Report(
        cpus=os.cpu_count(),
        versions=_versions(),
        held_out=len(_held_out(options)),
        learnt=[learnt for learnt, _ in runs],
        tools=tools,
        compare_steps=options.compare_steps,
        weights=weights,
        compared=compared,
        rounds=options.rounds,
        cost_steps=options.cost_steps,
        cost=taken,
        evaluations=evaluations,
    )


def _versions() -> dict[str, str]:
    own = {"Python": platform.python_version(), "torch": torch.__version__, "hookline": hl.__version__}
    return own | {name: version(name) for name in ("transformers", "trl")}


def show(report: Report, console: Console) -> None:
    """Print how the seeds did, what hooks and the record take, the bars, and the lines beneath."""
    console.print(_learning_table(report))
    console.print(_tool_table(report))
    console.print(_comparison_table(report))
    console.print(_cost_table(report))
    for line in _lines(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _learning_table(report: Report) -> Table:
    table = Table(title=f"Sorting four digits: accuracy on {report.held_out} held-out tasks, before and after GRPO")
    for heading in ("seed", "steps", "sampled", "greedy", "seconds", "of the CPU"):
        table.add_column(heading, justify="right")
    for each in report.learnt:
        table.add_row(
            str(each.seed),
            f"{each.sft_steps} + {each.grpo_steps}",
            f"{each.before.sampled:.3f} -> {each.after.sampled:.3f}",
            f"{each.before.greedy:.3f} -> {each.after.greedy:.3f}",
            f"{each.sft_seconds:.1f} + {each.grpo_seconds:.1f}",
            f"{each.cpu_seconds:.1f}",
            end_section=each is report.learnt[-1],
        )
    bars = report.bars
    accuracies = [f">= {BARS[name]:.2f} {met(bars[name])}" for name in ("sampled", "greedy")]
    table.add_row("bar", "", *accuracies, f"< {BARS['seconds']:.0f} {met(bars['seconds'])}", "")
    return table


def _tool_table(report: Report) -> Table:
    table = Table(
        title="Calling a tool that alone knows the answers: accuracy on held-out tasks, before and after GRPO"
    )
    for heading in ("seed", "sampled", "greedy", "calls a task", "seconds", "of the CPU"):
        table.add_column(heading, justify="right")
    for each in report.tools:
        table.add_row(
            str(each.seed),
            f"{each.before.right:.3f} -> {each.after.right:.3f}",
            f"{each.greedy.right:.3f}",
            f"{each.before.calls:.2f} -> {each.after.calls:.2f}",
            f"{each.seconds:.1f}",
            f"{each.cpu_seconds:.1f}",
            end_section=each is report.tools[-1],
        )
    bars = report.bars
    table.add_row(
        "bar",
        f">= {BARS['tool']:.2f} {met(bars['tool'])}",
        "",
        "",
        f"< {60 * BARS['minutes']:.0f} {met(bars['minutes'])}",
        "",
    )
    return table


def _comparison_table(report: Report) -> Table:
    title = "Beside TRL's GRPOTrainer: the same model, prompts and learning rates"
    table = Table(title=f"{title}, {report.compare_steps} steps (hookline / TRL)")
    for heading in ("seed", "reward", "sampled", "greedy", "CPU ms a step", *(f"{part}, ms" for part in PARTS)):
        table.add_column(heading, justify="right")
    for each in report.compared:
        own, trl = each.own, each.trl
        table.add_row(
            str(each.seed),
            f"{own.reward:.3f} / {trl.reward:.3f}",
            f"{each.own_after.sampled:.3f} / {each.trl_after.sampled:.3f}",
            f"{each.own_after.greedy:.3f} / {each.trl_after.greedy:.3f}",
            f"{own.cpu_milliseconds:.1f} / {trl.cpu_milliseconds:.1f} ({each.time:.2f})",
            *(f"{own.parts[part]:.1f} / {trl.parts[part]:.1f}" for part in PARTS),
            end_section=each is report.compared[-1],
        )
    bars, both = report.bars, report.differences
    table.add_row("difference", *(f"{both[name].mean:+.4f}" for name in ("reward", "held_out")))
    shown = [f"{both[name].low:+.4f} .. {both[name].high:+.4f}" for name in ("reward", "held_out")]
    table.add_row("its interval", *shown, end_section=True)
    equal = [f"equal {met(bars[name])}" for name in ("reward", "held_out")]
    table.add_row("bar", *equal, "", f"< {BARS['time']:.0f} {met(bars['time'])}")
    return table


def _cost_table(report: Report) -> Table:
    taken, title = report.cost, "Hooks, samples and metrics, as shares of a step of rollout and learning"
    table = Table("", title=f"{title} ({report.cost.plain_milliseconds:.1f} ms)")
    table.add_column("share", justify="right")
    table.add_row("hooks and the record", _range(taken.added))
    table.add_row("computing the metrics", f"{taken.metrics:+.2%}", end_section=True)
    table.add_row("together", f"{taken.share:+.2%}")
    table.add_row("bar", f"< {BARS['share']:.0%} {met(report.bars['share'])}")
    return table


def _range(added: Added) -> str:
    return f"{added.share:+.2%} ({added.low:+.2%} .. {added.high:+.2%})"


def _lines(report: Report) -> Iterator[str]:
    yield f"weights that TRL learns from the same completions: the same but for {report.weights:.1e}"
    yield f"rollouts and losses: the same with hooks and a record, and with {report.evaluations} evaluations"
    yield f"hooks and the record by the clock on the wall: {_range(report.cost.added_on_the_wall)}"
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield f"{report.rounds} rounds of {report.cost_steps} steps; {report.cpus} CPUs, one thread; {versions}"


def _drawn(count: int) -> list[int]:
    generator = random.SystemRandom()
    return [generator.randrange(1_000_000) for _ in range(count)]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description="That GRPO learns, and what hooks and the record add to it.")
    add = parser.add_argument
    add(
        "--seeds", type=int, nargs="+", default=_drawn(SEEDS), help=f"each learns from the beginning; {SEEDS} are drawn"
    )
    add("--compared", type=int, nargs="+", default=_drawn(COMPARED), help=f"seeds beside TRL; {COMPARED} are drawn")
    add("--sft-steps", type=at_least(1), default=100, help="the most steps of showing examples")
    add("--steps", type=at_least(1), default=400, help="steps of GRPO")
    add("--compare-steps", type=at_least(1), default=200, help="steps of GRPO beside TRL")
    add("--tool-sft-steps", type=at_least(1), default=400, help="the most steps of showing conversations")
    add("--tool-steps", type=at_least(1), default=100, help="steps of GRPO with the tool")
    add("--held-out", type=at_least(1), default=1000, help="the most tasks that accuracy is measured on")
    add("--rounds", type=at_least(1), default=10, help="pairs of trainings to measure the cost with")
    add("--cost-steps", type=at_least(3), default=30, help="steps of each of them")
    add("--check-steps", type=at_least(2), default=10, help="steps of the training with hooks that evaluate")
    add("--json", action="store_true", help="print one JSON object instead of the tables")
    return parser.parse_args(arguments)


def _derived(report: Report) -> dict[str, Any]:
    differences = {name: asdict(each) for name, each in report.differences.items()}
    return {"share": report.cost.share, "differences": differences, "bars": report.bars}


def main() -> None:
    """Measure, and print tables or one JSON object."""
    options = parse()
    for name in ("seeds", "compared"):
        print(f"{name}: {' '.join(map(str, getattr(options, name)))}", file=sys.stderr)
    report = measure(options)
    if options.json:
        print(json.dumps(asdict(report) | _derived(report)))
    else:
        show(report, Console())


if __name__ == "__main__":
    main()
