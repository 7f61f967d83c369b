"""Environments with several turns: the protocols, and `Step`, the answer of an episode to a message of the policy.

An environment has a ``name`` and ``sample(n, rng)`` like any other, and one of these:

- ``tools``: functions that the policy may call before it answers; ``score(task, completion)`` gets the answer;
- ``episode()``: returns a new object with ``reset(task)`` and ``step(message)`` for each conversation;
- ``async def rollout(task, policy)``: has the conversation itself, and returns the rewards.

Episodes run at the same time on one event loop. What is ``async`` runs on it, everything else on a pool of threads.
"""

import inspect
import random
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hookline._engine.errors import OptionError
from hookline.rl.chat_format import Message, check_messages
from hookline.rl.environments.tools import tools_of
from hookline.rl.types import Task

if TYPE_CHECKING:
    from hookline.rl.rollouts.episode import EpisodePolicy

Rewards = Mapping[str, float | None] | float | None
"""Rewards by name, one reward without a name, or none."""

REWARD = "reward"
"""The name of a reward that is given without one."""


@dataclass(frozen=True, slots=True)
class Step:
    """The environment's response to a message of the policy.

    Attributes:
        observation: The next message or messages: a text is a message of the user. None if the episode is done.
        reward: The reward of this turn, alone or by name; those of all turns are added up. None is no reward, not 0.
        done: Whether the episode is over.
        metrics: Numbers that are recorded as the mean over the episodes of a step.
    """

    observation: str | Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    reward: Rewards = None
    done: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)

    def messages(self) -> list[Message]:
        """Return the observation as messages."""
        return [] if self.observation is None else check_messages(self.observation, "Step.observation")


class Episode(Protocol):
    """One conversation with an environment. Both methods may be ``async``.

    Optional parts: ``tools``, or methods marked with `hookline.rl.tool`; ``score()``, the rewards at the end;
    ``close()``, called at the end however the episode ends. ``reset`` gets a generator if it has a parameter ``rng``.
    """

    def reset(self, task: Task) -> Any:
        """Begin: return the first messages, a text as the first message of the user, or None to use the task's."""

    def step(self, message: Message) -> Step | Awaitable[Step]:
        """Respond to a message of the policy that calls no tools."""


@runtime_checkable
class EpisodeEnvironment(Protocol):
    """Provides tasks, and an object for each conversation."""

    name: str

    def sample(self, n: int, rng: random.Random) -> list[Task]:
        """Return ``n`` tasks to train on."""

    def episode(self) -> Any:
        """Return a new `Episode`."""


@runtime_checkable
class RolloutEnvironment(Protocol):
    """Provides tasks, and has the conversations itself."""

    name: str

    def sample(self, n: int, rng: random.Random) -> list[Task]:
        """Return ``n`` tasks to train on."""

    async def rollout(self, task: Task, policy: "EpisodePolicy") -> Rewards:
        """Have a conversation with the policy, and return its rewards."""


def has_episodes(environment: Any) -> bool:
    """Return whether completions of an environment's tasks are episodes, rather than single completions."""
    has_own = any(callable(getattr(environment, name, None)) for name in ("rollout", "episode"))
    return has_own or bool(tools_of(environment))


def check_episodes(environment: Any) -> None:
    """Check the parts of an environment with episodes that can be checked before there is one.

    Raises:
        OptionError: ``rollout`` is not async, there is more than one way to make an episode, or a tool is not one.
    """
    rollout, episode = getattr(environment, "rollout", None), getattr(environment, "episode", None)
    name = getattr(environment, "name", type(environment).__name__)
    if callable(rollout) and callable(episode):
        raise OptionError(f"{name} has both rollout() and episode(): give one of them.")
    if callable(rollout) and not inspect.iscoroutinefunction(rollout):
        raise OptionError(f"{name}.rollout() is not async: write 'async def rollout(self, task, policy)'.")
    tools_of(environment)
