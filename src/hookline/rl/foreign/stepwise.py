"""Environments with ``reset`` and ``step``: those of Gymnasium, and clients of OpenEnv.

The policy gets each observation as a user message, and its answer is parsed into an action. An answer without a valid
action does not step the environment: the policy gets an error message and may try again.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from hookline._engine.errors import OptionError
from hookline.rl.chat_format import Message
from hookline.rl.environments.base import HELD_OUT_SHARE, SOLVED
from hookline.rl.environments.episodes import REWARD, Rewards
from hookline.rl.foreign.base import (
    SEEDS,
    ForeignEnvironment,
    Session,
    accepted_options,
    as_function,
    call,
    until_limit,
)
from hookline.rl.rollouts.episode import EpisodePolicy
from hookline.rl.types import Task

_INTEGER = re.compile(r"-?\d+")
_OWN_FIELDS = {"done", "reward", "metadata"}
"""The fields of an OpenEnv observation that belong to the step, not to its content."""


class Stepwise(ForeignEnvironment):
    """An environment with ``reset`` and ``step``.

    Args:
        make: Makes the environment of an episode.
        probe: One environment, to read the properties that all share.
        name: Its name in records and messages.
        parse: Converts the policy's text to an action; a `ValueError` or None means that there is no valid action.
        render: Converts an observation to text or to the content of a message.
        instructions: A text that comes before the first observation.
        dataset: Rows of options for ``reset``; by default a task is a seed, so a group begins in the same state.
        seeds: How many seeds there are.
        success_total: The total reward from which a task counts as solved.
        held_out_share: The share of tasks that is never trained on.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        probe: Any,
        *,
        name: str | None = None,
        parse: Any = None,
        render: Any = None,
        instructions: str = "",
        dataset: Any = None,
        seeds: int = SEEDS,
        success_total: float = SOLVED,
        held_out_share: float = HELD_OUT_SHARE,
    ) -> None:
        self.make = make
        self.parse = as_function(parse, "parse") or self.default_parse(probe)
        self.render = as_function(render, "render") or _as_text
        self.instructions = instructions
        super().__init__(
            name or self.default_name(probe),
            dataset=dataset,
            seeds=seeds,
            success_total=success_total,
            held_out_share=held_out_share,
        )

    def default_name(self, probe: Any) -> str:
        """Return the name of an environment."""
        return type(probe).__name__

    def default_parse(self, probe: Any) -> Callable[[str], Any]:
        """Return the default function that parses a text into an action."""
        raise NotImplementedError

    async def reset(self, environment: Any, task: Task) -> Any:
        """Begin an episode, and return the first observation."""
        raise NotImplementedError

    async def step(self, environment: Any, action: Any) -> tuple[Any, Any, bool]:
        """Take an action, and return the observation, the reward and whether the episode is over."""
        raise NotImplementedError

    async def play(self, task: Task, policy: EpisodePolicy, session: Session) -> Rewards:
        """Play an episode; each turn gets its reward."""
        environment = await session.open(self.make)
        first = self.render(await self.reset(environment, task))
        messages: list[Message] = [{"role": "user", "content": _joined(self.instructions, first)}]
        with until_limit():
            while True:
                reply = await policy.chat(messages)
                try:
                    action = self.parse(reply.text)
                    problem = "" if action is not None else "no action"
                except ValueError as error:
                    problem = str(error)
                if problem:
                    content: Any = f"That is not a valid action: {problem}."
                else:
                    observation, reward, done = await self.step(environment, action)
                    if reward is not None:
                        policy.add_reward(reward, REWARD)
                    if done:
                        break
                    content = self.render(observation)
                if reply.finish != "stop":  # a turn that was cut off cannot be continued
                    break
                messages = [*messages, reply.message, {"role": "user", "content": content}]
        return None


class GymnasiumEnvironment(Stepwise):
    """A Gymnasium environment whose actions are texts or numbers, or that has ``parse``."""

    def default_name(self, probe: Any) -> str:
        return str(getattr(getattr(probe, "spec", None), "id", None) or type(probe).__name__)

    def default_parse(self, probe: Any) -> Callable[[str], Any]:
        space = probe.action_space
        if hasattr(space, "n") and hasattr(space, "start"):
            return _Number(space)
        if hasattr(space, "character_set"):
            return _Text(space)
        raise OptionError(f"parse: the actions of {self.default_name(probe)} are {space}: give a function from a text.")

    async def reset(self, environment: Any, task: Task) -> Any:
        options = {"seed": task.metadata.get("seed")}
        if self._rows is not None:
            options["options"] = {name: value for name, value in task.metadata.items() if name != "seed"}
        returned = await call(environment.reset, **options)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError(f"reset() gave {returned!r:.200}, where (observation, info) is accepted")
        return returned[0]

    async def step(self, environment: Any, action: Any) -> tuple[Any, Any, bool]:
        returned = await call(environment.step, action)
        if not isinstance(returned, tuple) or len(returned) != 5:
            raise TypeError(
                f"step() gave {returned!r:.200}, where (observation, reward, terminated, truncated, info) is accepted"
            )
        observation, reward, terminated, truncated, _ = returned
        return observation, reward, bool(terminated or truncated)


class OpenEnvEnvironment(Stepwise):
    """An OpenEnv client, synchronous or asynchronous, or an OpenEnv environment in this process."""

    def default_parse(self, probe: Any) -> Callable[[str], Any]:
        return parse_json

    async def reset(self, environment: Any, task: Task) -> Any:
        result = await call(environment.reset, **accepted_options(environment.reset, task.metadata))
        return _observation_and_reward(result, "reset()")[0]

    async def step(self, environment: Any, action: Any) -> tuple[Any, Any, bool]:
        result = await call(environment.step, action)
        observation, reward = _observation_and_reward(result, "step()")
        return observation, reward, bool(result.done)


class _Number:
    """Parses a discrete action: the last integer of a text."""

    def __init__(self, space: Any) -> None:
        self._first, self._last = int(getattr(space, "start", 0)), int(getattr(space, "start", 0)) + int(space.n) - 1

    def __call__(self, text: str) -> int:
        found = _INTEGER.findall(text)
        if not found or len(found[-1]) > 10 or not self._first <= int(found[-1]) <= self._last:
            raise ValueError(f"end with a number from {self._first} to {self._last}")
        return int(found[-1])


class _Text:
    """Uses a text as the action, if the space contains it."""

    def __init__(self, space: Any) -> None:
        self._space = space

    def __call__(self, text: str) -> str:
        if not self._space.contains(text):
            raise ValueError(f"it is not in {self._space}")
        return text


def parse_json(text: str) -> Mapping[str, Any]:
    """Parse a text as a JSON object."""
    try:
        action = json.loads(text)
    except RecursionError:
        action = None
    if not isinstance(action, dict):
        raise ValueError("give a JSON object")  # noqa: TRY004 - what a parser raises for no valid action
    return action


def _observation_and_reward(result: Any, method: str) -> tuple[Any, Any]:
    """Return the parts of a client's ``StepResult``, or of an environment's observation."""
    if not hasattr(result, "done") or not hasattr(result, "reward"):
        raise TypeError(f"{method} gave {result!r:.200}, where a result with observation, reward and done is accepted")
    return getattr(result, "observation", result), result.reward


def _as_text(observation: Any) -> Any:
    """Return an observation as text: fields as JSON, anything else by `str`."""
    if isinstance(observation, str):
        return observation
    fields: Any = None
    if callable(getattr(observation, "model_dump", None)):
        fields = observation.model_dump(mode="json")
    elif is_dataclass(observation) and not isinstance(observation, type):
        fields = asdict(observation)
    elif isinstance(observation, Mapping):
        fields = dict(observation)
    if fields is None:
        return str(observation)
    return json.dumps({name: value for name, value in fields.items() if name not in _OWN_FIELDS}, default=str)


def _joined(instructions: str, content: Any) -> Any:
    if not instructions:
        return content
    if isinstance(content, str):
        return f"{instructions}\n\n{content}"
    return [{"type": "text", "text": instructions}, *content]
