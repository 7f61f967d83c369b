"""The Trainer, experiments, rewards and environments."""

import random
from typing import Any

import torch

import hookline as hl
from hookline import rewards, rl


def train(model: torch.nn.Module) -> int:
    config = hl.TrainerConfig(max_steps=10, learning_rate=1e-3, batch_size=4, output_dir=None)
    trainer = hl.Trainer(model, [(torch.ones(2), torch.ones(1))] * 8, config=config, loss=torch.nn.functional.mse_loss)
    trainer.callbacks.add(hl.callbacks.Timer("1h"))
    artifacts: hl.LoopArtifacts = trainer.fit()
    return artifacts.step


def arm(ctx: hl.LogContext, run: hl.Run) -> dict[str, float]:
    for step in run.steps(3):
        run.log(loss=1.0 / (step + 1))
    return {"score": 1.0}


def compare() -> list[str]:
    arms = [*hl.grid(learning_rate=[0.1, 0.2]), hl.Arm("other", {"learning_rate": 0.3})]
    result: hl.ExperimentResult = hl.Experiment("typed", arms, repeats=2, train=arm, mode="max").run(report=False)
    return [row.arm for row in result.table()]


@rewards.logged("length")
def length(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    return [float(len(each)) for each in completions]


class Words:
    """An environment needs no base class."""

    name = "words"

    def sample(self, n: int, rng: random.Random) -> list[rl.Task]:
        return [rl.Task("a>", "a") for _ in range(n)]

    def score(self, task: rl.Task, completion: str) -> dict[str, float]:
        return {"exact": float(completion == task.expected)}


environment: rl.Environment = Words()
lessons = rl.CurriculumConfig([rl.Lesson("words", environment)])
settings = rl.GRPOConfig(epsilon=0.1, beta=0.01)
