"""The nouns of reinforcement learning: what is asked, how it is sampled, what comes, how it is rewarded."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hookline._engine.errors import OptionError
from hookline._engine.metrics import whole


@dataclass(frozen=True, slots=True)
class Task:
    """Something to ask a policy for.

    Attributes:
        prompt: What the policy is given.
        expected: The right answer, where there is one.
        id: The same for the same question, in every run; made from prompt and expected where it is left out.
        metadata: Whatever the environment needs to score a completion.
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
        temperature: 0 takes the likeliest token each time.
        top_p: The share of probability that the sampled tokens come from.
        max_tokens: The most tokens of a completion.
        stop: Texts that end a completion; they are not part of its text.
        seed: Makes the completions the same each time.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 64
    stop: Sequence[str] = ()
    seed: int | None = None

    @property
    def is_processed(self) -> bool:
        """Whether tokens are sampled from another distribution than the model's own."""
        return self.temperature != 1 or self.top_p != 1

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise OptionError(f"temperature={self.temperature!r}: give a number of at least 0.")
        if not 0 < self.top_p <= 1:
            raise OptionError(f"top_p={self.top_p!r}: give a number above 0, and at most 1.")
        most = whole(self.max_tokens)
        if most is None or most < 1:
            raise OptionError(f"max_tokens={self.max_tokens!r}: give a whole number of at least 1.")
        if isinstance(self.stop, str) or not all(isinstance(text, str) and text for text in self.stop):
            raise OptionError(f"stop={self.stop!r}: give a list of texts that are not empty.")


@dataclass(frozen=True, slots=True)
class Completion:
    """What a policy wrote.

    Attributes:
        text: Without the stop text and special tokens.
        token_ids: Its tokens, the end-of-text token included where it was sampled.
        logprobs: The log-probability of each token at temperature 1 without top-p: that of the model itself.
        finish: "stop" where it came to an end, "length" where it was cut off.
        prompt_ids: The tokens of the prompt, as the policy saw it.
        sampled_logprobs: The log-probability of each token under the distribution that it was sampled from: at the
            temperature, among the tokens that top-p leaves. Empty where that is the model's own (temperature and top-p
            of 1), where nothing is sampled (temperature 0), and from a policy that does not know them.
    """

    text: str
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    finish: Literal["stop", "length"] = "stop"
    prompt_ids: Sequence[int] = ()
    sampled_logprobs: Sequence[float] = ()


@dataclass(slots=True)
class Rollout:
    """A completion of a task, scored.

    Attributes:
        rewards: By the name of the reward function; one that gave nothing is missing.
        total: What the learner is to make larger.
        success: Whether it counts as solved, for the curriculum.
        advantage: How much better than the others of its group; the worker computes it once all are scored.
        version: That of the weights that wrote it.
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
        """It as a sample of the record; what it does not have is left out."""
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
