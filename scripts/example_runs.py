"""Runs for the pictures of the page: an experiment, a running run, and some that failed.

Nothing is trained: the numbers are made up, the same each time, by loops that use hookline as a training would.
"""

import contextlib
import logging
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hookline as hl
from hookline.logging.handlers import RunHandler
from hookline.rl.types import Task

STEPS = 240
GROUP = 6
KILLED = """
import os, signal, sys
sys.path.insert(0, {docs!r})
import example_runs
example_runs.train_alone("sft-warmup", {root!r}, steps=400, until=90, at_the_end=lambda: os.kill(os.getpid(), 9))
"""


class SortingBenchmark(hl.Benchmark):
    """Sort digits; the right answer is known."""

    name = "sorting"

    def tasks(self) -> list[Task]:
        drawn = random.Random(3)
        return [
            Task(_prompt(digits), expected=_sorted(digits), metadata={"tags": {"digits": str(len(digits))}})
            for digits in ([str(drawn.randrange(10)) for _ in range(4 + index % 3)] for index in range(36))
        ]

    def score(self, task: Task, output: Any) -> float:
        return float(output == task.expected)


class SlowObserver(hl.Callback):
    """Costs something, so that there is something to see."""

    name = "gradient_norms"
    every = 10

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        sum(math.sqrt(index) for index in range(4000))


class BrokenPager(hl.Callback):
    """Fails whenever it is to report."""

    name = "pager"
    every = 80

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        raise OSError("no answer from pager")


def make(root: Path) -> None:
    """Record everything below a root."""
    arms = [hl.Arm("baseline", {"clip": 0.2, "skill": 0.88}), hl.Arm("wide-clip", {"clip": 0.28, "skill": 0.96})]
    arms += [hl.Arm("no-std", {"clip": 0.2, "skill": 0.80, "scale_rewards": False}, tags=["ablation"])]
    hl.Experiment(
        "sorting-grpo",
        arms,
        repeats=3,
        train=_train_arm,
        benchmarks=[SortingBenchmark()],
        callbacks=[SlowObserver, BrokenPager],
        output_dir=root / "sorting-grpo",
    ).run(report=False)
    train_alone("sft-warmup", str(root), steps=200)
    _fail(root)
    code = KILLED.format(docs=str(Path(__file__).parent), root=str(root))
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)


def train_alone(
    name: str, root: str, *, steps: int, until: int | None = None, at_the_end: Callable[[], object] = lambda: None
) -> None:
    """A run that belongs to no experiment; it may come to its end early."""
    parts: dict[str, Any] = {"sinks": ["csv"], "callbacks": [SlowObserver()], "tags": ["sft", "nightly"]}
    with hl.run(name, project="warmup", root=root, summary=False, **parts) as run:
        drawn = random.Random(5)
        for step in run.steps(steps):
            run.log(loss=2.4 * math.exp(-step / 60) + 0.35 + drawn.gauss(0, 0.03), lr=3e-4 * (1 - step / steps))
            if step == until:
                at_the_end()


def train_rollouts(run: Any, config: dict[str, Any], *, steps: int, seed: int, until: int | None = None) -> None:
    """What a GRPO training logs."""
    drawn = random.Random(seed)
    log, handler = logging.Logger("training"), RunHandler(run)
    log.addHandler(handler)
    for step in run.steps(steps):
        progress = 1 - math.exp(-(step + drawn.uniform(0, 8)) / 70)
        skill = 0.28 + (config["skill"] - 0.28) * progress + drawn.gauss(0, 0.02)
        run.log(
            {
                "loss": 0.4 * (1 - progress) + drawn.gauss(0.05, 0.02) + (4.0 if step == 131 else 0.0),
                "reward": max(0.0, min(1.0, skill)),
                "reward_std": 0.45 * (1 - progress) + 0.08,
                "kl": 0.02 * progress + abs(drawn.gauss(0, 0.002)),
                "entropy": 1.6 - 1.1 * progress + drawn.gauss(0, 0.03),
                "completions/mean_length": 9 + 14 * progress + drawn.gauss(0, 0.6),
                "completions/clipped_ratio": max(0.0, 0.2 - 0.2 * progress + drawn.gauss(0, 0.01)),
                "throughput/tokens_per_second": 5200 + drawn.gauss(0, 180),
                "throughput/steps_per_second": 2.4 + drawn.gauss(0, 0.1),
                "system/rss_mib": 880 + step * 0.3 + drawn.gauss(0, 3),
                "system/cpu_percent": 61 + drawn.gauss(0, 6),
                "system/cuda0/utilization_percent": min(100.0, 88 + drawn.gauss(0, 4)),
                "system/cuda0/allocated_mib": 14200 + drawn.gauss(0, 90),
            }
        )
        if step % 40 == 39:
            run.log({name: value for cost in run.callbacks.costs() for name, value in cost.as_metrics().items()})
        if step % 20 == 0:
            run.log_samples(_samples(step, skill, drawn))
            log.info("step %d: reward %.3f", step, skill)
        if step == 131:
            log.warning("the loss jumped at step %d", step)
        if step == until:
            return
    run.answers = lambda prompts: [_answer(prompt.split(":")[1].split(), skill, drawn) for prompt in prompts]


def save_artifacts(root: Path) -> None:
    """Save versions of a model and its data, and use one of them."""
    with tempfile.TemporaryDirectory() as directory:
        files = Path(directory)
        for epoch, accuracy in enumerate((0.81, 0.9, 0.87)):
            with hl.run(f"sft-epoch-{epoch}", project="sorting", root=root, summary=False) as run:
                (files / "weights.safetensors").write_bytes(random.Random(epoch).randbytes(300_000))
                (files / "config.json").write_text('{"layers": 4}')
                metadata = {"epoch": epoch, "accuracy": accuracy}
                run.save_artifact("model", files, kind="model", aliases=["best"] * (epoch < 2), metadata=metadata)
        (files / "rows.csv").write_text("3 1 2,1 2 3\n" * 5000)
        for name in ("quiz", "grpo-from-best"):
            with hl.run(name, project="sorting", root=root, summary=False) as run:
                run.save_artifact("digits", files / "rows.csv", kind="dataset", metadata={"rows": 5000})
                run.use_artifact("model:best")


def make_sweep(root: Path) -> None:
    """Record a hyperparameter search of 60 runs: two diverge, one fails."""
    drawn = random.Random(8)
    for number in range(60):
        config = {
            "lr": float(f"{10 ** drawn.uniform(-4.5, -2):.2g}"),
            "batch_size": drawn.choice([16, 32, 64, 128]),
            "optimizer": drawn.choice(["adamw", "lion", "sgd"]),
        }
        parts: dict[str, Any] = {"config": config, "tags": ["sweep"], "summary": False}
        with (
            contextlib.suppress(MemoryError),
            hl.run(f"digits-{number:02}", project="digits", root=root, **parts) as run,
        ):
            _train_digits(run, config, drawn, diverges=number in (17, 41), fails=number == 33)


def make_chats(root: Path) -> None:
    """Record samples that are chats with a tool, with what is known about each token."""
    drawn = random.Random(4)
    with hl.run("tool-use", project="assistant", root=root, summary=False) as run:
        for step in run.steps(20):
            run.log(reward=0.3 + step / 40)
            run.log_samples([_chat(step, number, drawn) for number in range(4)])


def _train_arm(ctx: Any, run: Any) -> None:
    train_rollouts(run, ctx.run_config, steps=STEPS, seed=_seed(ctx.run_key))


def _fail(root: Path) -> None:
    with contextlib.suppress(MemoryError), _large(root) as run:
        for step in run.steps(300):
            run.log(loss=1.0 / (1 + step / 30), reward=0.2 + step / 400)
            if step == 120:
                raise MemoryError("tried to allocate 2.50 GiB; 1.20 GiB are free")


def _large(root: Path) -> Any:
    return hl.run("grpo-large", project="warmup", root=root, summary=False, tags=["nightly"])


def _train_digits(run: Any, config: dict[str, Any], drawn: random.Random, *, diverges: bool, fails: bool) -> None:
    distance = abs(math.log10(config["lr"]) + 3.2)
    best = 0.25 + 0.22 * distance**2 + {"adamw": 0.0, "lion": 0.05, "sgd": 0.2}[config["optimizer"]]
    for step in run.steps(80):
        loss = best + config["batch_size"] / 1600 + 2 * math.exp(-step / 18) + drawn.gauss(0, 0.03)
        if diverges and step > 30:
            loss = loss * 4 ** (step - 30) if step < 37 else math.nan
        run.log({"train/loss": loss, "train/accuracy": max(0.0, 1 - loss / 2.5)})
        if step % 10 == 9:
            run.log({"val/loss": 1.08 * loss + drawn.gauss(0, 0.01), "val/accuracy": max(0.0, 1 - loss / 2.3)})
        if fails and step == 44:
            raise MemoryError("tried to allocate 2.50 GiB; 1.20 GiB are free")


def _chat(step: int, number: int, drawn: random.Random) -> dict[str, Any]:
    is_right = drawn.random() < 0.4 + step / 30
    area = 30.0 if is_right else 32.5
    words = f"The triangle has a **right angle**: $5^2 + 12^2 = 13^2$. So its area is ${area:g}".split(" ")
    texts = [words[0], *(f" {word}" for word in words[1:]), r" \text{ cm}^2$."]
    logprobs = [-abs(drawn.gauss(0, 0.4)) for _ in texts]
    logprobs[-2] -= 0.4 if is_right else 2.2
    tool = {"id": "call-1", "type": "function"}
    call = {"name": "python", "arguments": '{"code": "print(5 ** 2 + 12 ** 2, 13 ** 2)"}'}
    return {
        "prompt": [
            {"role": "system", "content": "Answer with a short reason. You may use the tool `python`."},
            {"role": "user", "content": "A triangle has sides of 5, 12 and 13 cm. What is its area?"},
        ],
        "completion": [
            {
                "role": "assistant",
                "reasoning": "Is there a right angle? I check it.",
                "tool_calls": [tool | {"function": call}],
            },
            {"role": "tool", "tool_call_id": "call-1", "content": "169 169"},
            {"role": "assistant", "content": "".join(texts)},
        ],
        "expected": "30",
        "rewards": {"correct": float(is_right), "format": 0.1},
        "total": is_right + 0.1,
        "group": f"{step}",
        "finish": "stop",
        "version": step,
        "length": len(texts),
        "tokens": hl.Tokens(texts, ids=list(range(len(texts))), logprobs=logprobs),
    }


def _samples(step: int, skill: float, drawn: random.Random) -> list[dict[str, Any]]:
    rows = []
    for number in range(4):
        digits = [str(7 * number % 10), str(3 + number), "9", str((step // 20 + number) % 10) if number > 1 else "2"]
        given = [_sample(digits, skill, drawn, f"{step}-{number}") for _ in range(GROUP)]
        mean = sum(row["total"] for row in given) / GROUP
        spread = math.sqrt(sum((row["total"] - mean) ** 2 for row in given) / GROUP) or 1.0
        rows += [row | {"advantage": (row["total"] - mean) / spread} for row in given]
    return rows


def _sample(digits: list[str], skill: float, drawn: random.Random, group: str) -> dict[str, Any]:
    answer, reasoning = _answer(digits, skill, drawn), f"The smallest digit is {min(digits)}; go on from there."
    is_right = float(answer == _sorted(digits))
    return {
        "prompt": _prompt(digits),
        "completion": f"<think>{reasoning}</think>\n{answer}",
        "reasoning": reasoning,
        "answer": answer,
        "expected": _sorted(digits),
        "rewards": {"correct": is_right, "format": 0.1 if drawn.random() < 0.6 + skill / 3 else 0.0},
        "total": is_right + 0.1,
        "group": group,
        "lesson": f"digits-{len(digits)}",
    }


def _prompt(digits: list[str]) -> str:
    return f"Sort these digits in ascending order: {' '.join(digits)}"


def _sorted(digits: list[str]) -> str:
    return " ".join(sorted(digits))


def _answer(digits: list[str], skill: float, drawn: random.Random) -> str:
    ordered = sorted(digits)
    if drawn.random() > skill:
        place = drawn.randrange(len(ordered) - 1)
        ordered[place], ordered[place + 1] = ordered[place + 1], ordered[place]
        ordered = ordered if ordered != sorted(digits) else ordered[::-1]
    return " ".join(ordered)


def _seed(key: str) -> int:
    return sum(ord(letter) * (place + 1) for place, letter in enumerate(key))
