"""TRL's environments and reward functions.

An environment of ``environment_factory`` has ``reset(**row)``, public methods that are the tools, and ``get_reward()``
unless reward functions score it. The policy calls tools until one of its messages calls none.

A reward function gets the arguments that TRL passes, one completion at a time if there is an environment. Values that
it logs with ``log_extra`` and ``log_metric`` are not recorded, and ``trainer_state`` is None.
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from hookline._engine.errors import OptionError
from hookline.rl.chat_format import Message
from hookline.rl.environments.base import HELD_OUT_SHARE, SOLVED
from hookline.rl.environments.dataset import RewardDataset
from hookline.rl.environments.episodes import Rewards
from hookline.rl.environments.tools import as_tools
from hookline.rl.foreign.base import (
    SEEDS,
    ForeignEnvironment,
    Session,
    accepted_options,
    as_function,
    call,
    until_limit,
)
from hookline.rl.rewards.batch import function_name
from hookline.rl.rollouts.episode import EpisodePolicy
from hookline.rl.types import Task

NOT_TOOLS = {"reset", "get_reward", "close"}


class ToolEnvironment(ForeignEnvironment):
    """An environment of TRL's ``environment_factory``.

    Args:
        make: The factory.
        probe: One environment.
        dataset: The rows: each is given to ``reset``, with its ``prompt``. Without it, tasks are seeds, which are
            passed to ``reset`` if it has a parameter ``seed``.
        rewards: Reward functions, beside the environment's own reward, or their import paths.
        instructions: A text that comes before the first observation, where rows have no prompt.
        name: Its name in records and messages.
        seeds: How many seeds there are.
        success_total: The total reward from which a task counts as solved.
        held_out_share: The share of tasks that is never trained on.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        probe: Any,
        *,
        dataset: Any = None,
        rewards: Any = (),
        instructions: str = "",
        name: str | None = None,
        seeds: int = SEEDS,
        success_total: float = SOLVED,
        held_out_share: float = HELD_OUT_SHARE,
    ) -> None:
        self.make, self.instructions = make, instructions
        listed = [rewards] if isinstance(rewards, str) or callable(rewards) else list(rewards)
        self.rewards = [as_function(each, "rewards") for each in listed]
        if not self.rewards and not hasattr(probe, "get_reward"):
            raise OptionError(f"{type(probe).__name__} has no get_reward(): give reward functions with rewards=.")
        as_tools(_tools_of(probe))
        super().__init__(
            name or type(probe).__name__,
            dataset=dataset,
            seeds=seeds,
            success_total=success_total,
            held_out_share=held_out_share,
        )

    async def play(self, task: Task, policy: EpisodePolicy, session: Session) -> Rewards:
        """Let the policy call tools until it answers, and return the rewards."""
        environment = await session.open(self.make)
        row = task.metadata if self._rows is not None else accepted_options(environment.reset, task.metadata)
        observation = await call(environment.reset, **row)
        prompt = self._prompt(task, observation)
        messages, tools = prompt, as_tools(_tools_of(environment))
        with until_limit():
            while True:
                reply = await policy.chat(messages, tools=tools)
                messages = [*messages, reply.message]
                if not reply.tool_calls or reply.finish != "stop":
                    break
                messages = [*messages, *await policy.call_tools(reply, tools)]
        rewards: dict[str, float | None] = {}
        if hasattr(environment, "get_reward"):
            rewards[type(environment).__name__] = await call(environment.get_reward)
        columns = {name: [value] for name, value in task.metadata.items() if name != "prompt"}
        for function in self.rewards:
            arguments = {"prompts": [prompt], "completions": [messages[len(prompt) :]], "environments": [environment]}
            reply_ids = policy.last_branch.completion("stop").token_ids if policy.last_branch is not None else ()
            options = _of_trainer() | {"completion_ids": [list(reply_ids)]} | columns | arguments
            returned = list(await call(function, **accepted_options(function, options)))
            if len(returned) != 1:
                raise TypeError(f"{function_name(function)}() gave {len(returned)} rewards for one completion")
            rewards[function_name(function)] = returned[0]
        return rewards

    def _prompt(self, task: Task, observation: Any) -> list[Message]:
        """Return the first messages: as in TRL, an observation is appended to the last of them."""
        content: Any = task.prompt if self._rows is not None and task.prompt else self.instructions
        prompt: list[Message] = [{"role": "user", "content": content}]
        if task.messages is not None:
            prompt = [dict(message) for message in task.messages]
        if observation is None:
            return prompt
        last = prompt[-1]["content"]
        if not isinstance(observation, str | list):
            raise TypeError(f"reset() gave {observation!r:.200}, where a text or None is accepted")
        if isinstance(last, str) and isinstance(observation, list):
            last = [{"type": "text", "text": last}]
        elif isinstance(last, list) and isinstance(observation, str):
            observation = [{"type": "text", "text": observation}]
        return [*prompt[:-1], {**prompt[-1], "content": last + observation}]


def reward_dataset(functions: Sequence[Any], *, dataset: Any, **options: Any) -> RewardDataset:
    """Return a dataset scored by TRL's reward functions, which may be async."""
    return RewardDataset(dataset, [_called_as_by_trl(as_function(each, "rewards")) for each in functions], **options)


def _called_as_by_trl(function: Any) -> Callable[..., Any]:
    """Return a reward function of ours that passes the arguments TRL would pass."""
    try:
        required = {
            each.name
            for each in inspect.signature(function).parameters.values()
            if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        }
    except (TypeError, ValueError):
        required = set()
    if missing := required & {"completion_ids", "environments"}:
        raise OptionError(
            f"{function_name(function)} needs {min(missing)}, which does not exist without an environment: score the "
            "text of the completions."
        )

    def scored(**arguments: Any) -> Any:
        value = function(**accepted_options(function, _of_trainer() | arguments))
        return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value

    scored.__name__ = function_name(function)
    return scored


async def _awaited(value: Any) -> Any:
    return await value


def _of_trainer() -> dict[str, Any]:
    """Return the arguments that TRL's trainer passes to reward functions besides the columns."""
    return {"trainer_state": None, "log_extra": _ignored, "log_metric": _ignored}


def _ignored(name: str, value: Any) -> None:
    pass


def _tools_of(environment: Any) -> list[Any]:
    """Return the methods that TRL exposes as tools."""
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    return [getattr(environment, name) for name, _ in members if name not in NOT_TOOLS and not name.startswith("_")]
