"""The recipe of the GRPO benchmark: sorting four digits with a tiny model, first from examples, then by GRPO.

The reward is 1 for the right answer and 0 for any other. The learning rate rises over ten steps, since the first steps
of a fresh Adam move every weight by all of it and undo some of what was learnt, and then falls to nothing: kept at
7e-4 to the end, the policy is soon sure of wrong answers as well, and stays below 0.8.
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import require_whole
from torch.utils.data import DataLoader

import hookline as hl
from hookline import rl
from hookline.loops import sft
from hookline.rl.environments import Sorting
from hookline.testing import character_tokenizer, tiny_causal_lm

SHOWN_UNTIL = 0.3
"""The share of right answers from which on no more examples are shown."""
BATCH_SIZE = 128
PROBE_EVERY = 2
PROMPTS, GROUP_SIZE, MAX_TOKENS = 32, 8, 8
LEARNING_RATE, WARMUP_STEPS = 6e-4, 10
ENVIRONMENT = Sorting(length=4)
TOKENIZER = character_tokenizer("0123456789>")


def accuracy(model: Any, tasks: Sequence[rl.Task], temperature: float, copies: int = 1) -> float:
    """The share of tasks that a model answers right, each asked some times."""
    sampling = rl.Sampling(temperature=temperature, max_tokens=MAX_TOKENS, seed=0)
    written = rl.HFPolicy(model, TOKENIZER).generate([task.prompt for task in tasks], copies, sampling)
    right = [text.text == task.expected for task, texts in zip(tasks, written, strict=True) for text in texts]
    return sum(right) / len(right)


class UntilRight(hl.Callback):
    """Asks for a stop once enough of other tasks are answered right."""

    def __init__(self, tasks: Sequence[rl.Task]) -> None:
        self._tasks = tasks

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        if (step_idx + 1) % PROBE_EVERY == 0 and accuracy(loop.model, self._tasks, 1.0) >= SHOWN_UNTIL:
            loop.request_stop("it gets enough right")


def show_examples(seed: int, most_steps: int) -> tuple[Any, int, float]:
    """A model that was shown examples, after how many steps, and how long that took."""
    began, rng = time.perf_counter(), random.Random(seed)
    model = tiny_causal_lm(TOKENIZER, seed=seed)
    tasks = ENVIRONMENT.sample(most_steps * BATCH_SIZE, rng)
    rows = [{"prompt": task.prompt, "completion": task.expected} for task in tasks]
    data, collate = sft.prepare(rows, TOKENIZER, sft.SFTOptions(max_length=16))
    trainer = hl.Trainer(
        model,
        DataLoader(data, batch_size=BATCH_SIZE, collate_fn=collate),
        config=_train_config(seed, most_steps, None, learning_rate=2e-3),
        training_step=sft.training_step,
        callbacks=[UntilRight(ENVIRONMENT.sample(256, rng))],
    )
    require_whole(trainer.fit())
    return model, trainer.step, time.perf_counter() - began


def _train_config(seed: int, steps: int, directory: Path | None, **settings: Any) -> hl.TrainerConfig:
    return hl.TrainerConfig(
        max_steps=steps,
        seed=seed,
        output_dir=None if directory is None else str(directory),
        save_at_end=False,
        summary=False,
        strict=True,
        **settings,
    )


def grpo_config(seed: int, steps: int, directory: Path | None, environment: Any = ENVIRONMENT) -> rl.RLConfig:
    """The recipe, all samples recorded; where there is no directory, nothing is."""
    return rl.RLConfig(
        curriculum=rl.CurriculumConfig(
            lessons=[rl.Lesson("sorting", environment)], micro_eval_frequency=0, eval_frequency=100
        ),
        rollout=rl.RolloutConfig(
            prompts=PROMPTS,
            group_size=GROUP_SIZE,
            max_tokens=MAX_TOKENS,
            samples=0 if directory is None else None,
        ),
        train=_train_config(
            seed,
            steps,
            directory,
            learning_rate=LEARNING_RATE,
            warmup_steps=WARMUP_STEPS,
            schedule="linear",
            gradient_clip_norm=1.0,
        ),
    )
