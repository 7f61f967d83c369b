"""The data types of reinforcement learning: tasks, sampling settings, completions and scored rollouts."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt for a policy.

    Attributes:
        prompt: The text for the policy.
        expected: The right answer, if there is one.
        id: Identifies the task in every run; made of prompt and expected by default.
        metadata: Data that the environment needs to score a completion.
    """

    prompt: str
    expected: str | None = None
    id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.id:
            text = f"{self.prompt}\0{self.expected}".encode("utf-8", "surrogatepass")
            object.__setattr__(self, "id", hashlib.blake2b(text, digest_size=8).hexdigest())


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are sampled.

    Attributes:
        temperature: 0 selects the most likely token.
        top_p: The probability of the nucleus that tokens are sampled from.
        max_tokens: The largest number of tokens of a completion.
        stop: Texts that end a completion; they are not part of its text.
        seed: Makes the completions reproducible.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 64
    stop: Sequence[str] = ()
    seed: int | None = None

    @property
    def is_processed(self) -> bool:
        """Whether tokens are sampled from another distribution than the model's."""
        return self.temperature != 1 or self.top_p != 1

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise OptionError(f"temperature={self.temperature!r}: give a number of at least 0.")
        if not 0 < self.top_p <= 1:
            raise OptionError(f"top_p={self.top_p!r}: give a number above 0, and at most 1.")
        require_integer("max_tokens", self.max_tokens)
        if isinstance(self.stop, str) or not all(isinstance(text, str) and text for text in self.stop):
            raise OptionError(f"stop={self.stop!r}: give a list of texts that are not empty.")


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion that a policy generated.

    Attributes:
        text: The text without the stop text and special tokens.
        token_ids: The tokens, including the end-of-text token if it was sampled.
        logprobs: The log-probability of each token under the model, at temperature 1 without top-p.
        finish: "stop" if it ended, "length" if it was cut off.
        prompt_ids: The tokens of the prompt that the policy used.
        sampled_logprobs: The log-probability of each token under the distribution it was sampled from, with
            temperature and top-p. Empty if that is the model's own (temperature and top-p of 1), if nothing was sampled
            (temperature 0), or if the policy does not provide them.
    """

    text: str
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    finish: Literal["stop", "length"] = "stop"
    prompt_ids: Sequence[int] = ()
    sampled_logprobs: Sequence[float] = ()


@dataclass(slots=True)
class Rollout:
    """A scored completion of a task.

    Attributes:
        rewards: Rewards by the name of the reward function; a function without a reward is missing.
        total: The reward that the learner maximizes.
        success: Whether the task counts as solved, for the curriculum.
        advantage: The total relative to the group; computed once all completions are scored.
        version: The version of the weights that generated it.
    """

    task: Task
    completion: Completion
    rewards: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    success: bool = False
    advantage: float | None = None
    lesson: str | None = None
    version: int = 0

    def as_sample(self) -> dict[str, Any]:
        """Return a row for `Recorder.samples`, without missing values."""
        fields = {
            "group": self.task.id,
            "prompt": self.task.prompt,
            "completion": self.completion.text,
            "expected": self.task.expected,
            "rewards": self.rewards,
            "total": self.total,
            "advantage": self.advantage,
            "lesson": self.lesson,
        }
        return {name: value for name, value in fields.items() if value is not None}
