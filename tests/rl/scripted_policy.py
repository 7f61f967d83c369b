"""A policy that sorts digits with a given success rate, and a worker with it: no model, no device."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookline import rl
from hookline.rl.environments import Sorting
from hookline.testing import chat_tokenizer


def sort_digits(prompt: str, rng: random.Random, *, chance: float = 0.5) -> str:
    return "".join(sorted(prompt.removesuffix(">"))) if rng.random() < chance else "x"


class ScriptedPolicy:
    """Writes what a function of the prompt and a generator makes; remembers what it was asked for."""

    def __init__(self, write: Callable[[str, random.Random], str] = sort_digits) -> None:
        self.version = 0
        self.write = write
        self.requests: list[tuple[list[str], int, rl.Sampling]] = []

    def generate(self, prompts: Sequence[str], n: int, sampling: rl.Sampling) -> list[list[rl.Completion]]:
        self.requests.append((list(prompts), n, sampling))
        rng = random.Random(sampling.seed)
        return [[self._completion(prompt, rng, sampling) for _ in range(n)] for prompt in prompts]

    def _completion(self, prompt: str, rng: random.Random, sampling: rl.Sampling) -> rl.Completion:
        ids = [ord(character) for character in self.write(prompt, rng)]
        kept, finish = ids[: sampling.max_tokens], "length" if len(ids) > sampling.max_tokens else "stop"
        text = "".join(map(chr, kept))
        return rl.Completion(text, kept, [-0.5] * len(kept), finish, [ord(character) for character in prompt])

    def load_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        self.version = version


class Unreachable(ScriptedPolicy):
    """Fails in some of its calls, which are counted from 1."""

    def __init__(self, fails: Callable[[int], bool]) -> None:
        super().__init__()
        self.fails = fails

    def generate(self, prompts: Sequence[str], n: int, sampling: rl.Sampling) -> list[list[rl.Completion]]:
        written = super().generate(prompts, n, sampling)
        if self.fails(len(self.requests)):
            raise rl.PolicyError(f"no answer to request {len(self.requests)}")
        return written


def curriculum(*lessons: rl.Lesson, **options: Any) -> rl.CurriculumConfig:
    """Without evaluations, unless asked for."""
    settings = {"micro_eval_frequency": 0, "eval_frequency": 0} | options
    return rl.CurriculumConfig(list(lessons or [rl.Lesson("sort", Sorting(2))]), **settings)


def worker(
    policy: Any = None,
    *,
    environment: Any = None,
    lessons: rl.CurriculumConfig | None = None,
    rollout: dict[str, Any] | None = None,
    hooks: Any = None,
    callbacks: Any = (),
    index: int = 0,
    **settings: Any,
) -> rl.RolloutWorker:
    """A worker that keeps all in memory, unless it gets an ``output_dir``."""
    if lessons is None:
        lessons = curriculum(*([] if environment is None else [rl.Lesson("lesson", environment)]))
    config = rl.RolloutWorkerConfig(
        curriculum_config=lessons,
        rollout=rl.RolloutConfig(**({"prompts": 3, "group_size": 4, "max_tokens": 8} | (rollout or {}))),
        **({"output_dir": None, "summary": False} | settings),
    )
    policy = ScriptedPolicy() if policy is None else policy
    return rl.RolloutWorker(config, policy=policy, hooks=hooks, callbacks=callbacks, index=index)


class ScriptedChat:
    """Writes turns of chats: what a function of the text before them and a generator makes, as tokens."""

    def __init__(self, write: Callable[[str, random.Random], str]) -> None:
        self.version = 0
        self.write = write
        self.tokenizer = chat_tokenizer()
        self.chat_format = rl.ChatFormat(self.tokenizer)
        self.prompts: list[str] = []

    def generate(self, prompts: Sequence[Any], n: int, sampling: rl.Sampling) -> list[list[rl.Completion]]:
        return [[self._completion(list(prompt), index, sampling) for index in range(n)] for prompt in prompts]

    def _completion(self, ids: list[int], index: int, sampling: rl.Sampling) -> rl.Completion:
        prompt = str(self.tokenizer.decode(ids))
        self.prompts.append(prompt)
        text = self.write(prompt, random.Random(f"{sampling.seed}/{index}"))
        made: list[int] = self.tokenizer(f"{text}<eos>", add_special_tokens=False)["input_ids"]
        kept, finish = made[: sampling.max_tokens], "length" if len(made) > sampling.max_tokens else "stop"
        return rl.Completion(text, kept, [-0.5] * len(kept), finish, ids)

    def load_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        self.version = version


def last_turn(prompt: str) -> tuple[str, str]:
    """The role and the text of the last message before the turn."""
    *_, last, _ = prompt.split("<eos>")
    role, _, text = last.removeprefix("<bos>").removeprefix("<").partition(">")
    return role, text
