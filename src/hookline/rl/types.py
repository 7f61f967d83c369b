"""The data types of reinforcement learning: tasks, sampling settings, completions and scored rollouts."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError

Finish = Literal["stop", "length", "turns", "time", "error", "abort"]
"""Why a completion ended: by itself, at a limit of tokens, of turns or of time, by a failure, or by a stop request."""


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt for a policy.

    Attributes:
        prompt: The text for the policy.
        expected: The right answer, if there is one.
        id: Identifies the task in every run; made of prompt and expected by default.
        metadata: Data that the environment needs to score a completion.
        messages: The messages of a prompt that is a chat; ``prompt`` is their text.
    """

    prompt: str
    expected: str | None = None
    id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] | None = None

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
    """What follows a prompt: the tokens that a policy sampled, and in an episode those of the environment between them.

    The sequences of tokens have one entry for each token after ``prompt_ids``. A token of the environment (a tool's
    result, an observation, a later message of the user) has 0 in ``mask`` and 0.0 as its log-probabilities.

    Attributes:
        text: The text without the stop text and special tokens; of several turns, that of the last one.
        token_ids: The tokens, including the end-of-text token if it was sampled.
        logprobs: The log-probability of each token under the model, at temperature 1 without top-p.
        finish: "stop" if it ended by itself, or the reason why it was ended: "length" (tokens), "turns", "time",
            "error" or "abort" (a stop was requested).
        prompt_ids: The tokens of the prompt that the policy used.
        sampled_logprobs: The log-probability of each token under the distribution it was sampled from, with
            temperature and top-p. Empty if that is the model's own (temperature and top-p of 1), if nothing was sampled
            (temperature 0), or if the policy does not provide them.
        messages: The messages of a completion that is a chat; ``text`` is the text of the last one of the policy.
        mask: 1 for each token that the policy sampled, 0 for each of the environment; empty if all were sampled.
        versions: The version of the weights that sampled each token; empty if it is the rollout's for all.
        images: The images of the prompt and the completion, in the order of their places in it.
    """

    text: str
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    finish: Finish = "stop"
    prompt_ids: Sequence[int] = ()
    sampled_logprobs: Sequence[float] = ()
    messages: Sequence[Mapping[str, Any]] | None = None
    mask: Sequence[int] = ()
    versions: Sequence[int] = ()
    images: Sequence[Any] = ()

    @property
    def length(self) -> int:
        """The number of tokens that the policy sampled."""
        return sum(self.mask) if self.mask else len(self.token_ids)


@dataclass(slots=True)
class Rollout:
    """A scored completion of a task, or a scored branch of an episode.

    An episode has several branches if its environment forks the conversation or replaces its beginning. They have the
    same ``episode``, rewards and advantage, and each is a sequence to learn from.

    Attributes:
        rewards: Rewards by the name of the reward function; a function without a reward is missing.
        total: The reward that the learner maximizes.
        success: Whether the task counts as solved, for the curriculum.
        advantage: The total relative to the group; computed once all completions are scored.
        version: The version of the weights that generated it.
        episode: Identifies the episode in the run.
        id: Identifies the branch in the run; that of the first branch is the episode's.
        parent: The id of the branch that this one was forked from.
        turns: The number of completions that the policy generated in it.
        timings: The seconds of its episode by what they were spent on: "generate", "environment" and "score".
        turn_rewards: The rewards of each turn of the episode, if the environment gives any; ``rewards`` has their sums.
        recorded: Whether it is recorded as a sample, and whether with its tokens.
    """

    task: Task
    completion: Completion
    rewards: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    success: bool = False
    advantage: float | None = None
    lesson: str | None = None
    version: int = 0
    episode: str = ""
    id: str = ""
    parent: str | None = None
    turns: int = 1
    timings: Mapping[str, float] = field(default_factory=dict)
    turn_rewards: Sequence[Mapping[str, float]] = ()
    recorded: Literal["", "sample", "tokens"] = ""

    def as_sample(self) -> dict[str, Any]:
        """Return a row for `Recorder.samples`, without missing values."""
        newest = max(self.completion.versions, default=self.version)
        fields = {
            "group": self.task.id,
            "prompt": self.task.prompt,
            "completion": self.completion.text,
            "expected": self.task.expected,
            "rewards": self.rewards,
            "total": self.total if self.rewards else None,
            "advantage": self.advantage,
            "lesson": self.lesson,
            "prompt_messages": self.task.messages,
            "completion_messages": self.completion.messages,
            "finish": self.completion.finish,
            "version": self.version,
            "last_version": newest if newest != self.version else None,
            "length": self.completion.length or None,
            "prompt_length": len(self.completion.prompt_ids) or None,
            "episode": self.episode or None,
            "rollout": self.id or None,
            "parent": self.parent,
            "turns": self.turns if self.completion.messages else None,
            "timings": {name: round(seconds, 6) for name, seconds in self.timings.items()} or None,
            "turn_rewards": list(self.turn_rewards) or None,
        }
        return {name: value for name, value in fields.items() if value is not None}
