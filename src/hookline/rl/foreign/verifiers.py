"""Environments of the package verifiers, with their rubrics: single-turn, multi-turn, and with tools.

The environment runs the conversation itself, with the episode's policy as its client. The reward is the rubric's
weighted sum; the values of its functions are metrics. In verifiers, a function that raises scores 0.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hookline._engine.errors import OptionError
from hookline.rl.chat_format import Message
from hookline.rl.environments.base import HELD_OUT_SHARE, SOLVED
from hookline.rl.environments.episodes import REWARD, Rewards
from hookline.rl.foreign.base import ForeignEnvironment, Session
from hookline.rl.rollouts.episode import EpisodeEnd, EpisodePolicy
from hookline.rl.types import Task

MODEL = "hookline"
"""The model name that environments get."""


class VerifiersEnvironment(ForeignEnvironment):
    """A verifiers environment.

    Args:
        environment: The environment; its dataset has the tasks.
        name: Its name in records and messages.
        success_total: The total reward from which a task counts as solved.
        held_out_share: The share of tasks that is never trained on.
    """

    def __init__(
        self,
        environment: Any,
        *,
        name: str | None = None,
        success_total: float = SOLVED,
        held_out_share: float = HELD_OUT_SHARE,
    ) -> None:
        if getattr(environment, "requires_group_rollouts", False):
            raise OptionError(
                f"{type(environment).__name__} has reward functions that compare the rollouts of a group, which are "
                "independent here: give it a rubric whose functions score one rollout."
            )
        self.environment = environment
        self._client_type, self._response_type = _types_of(environment)
        super().__init__(
            name or getattr(environment, "env_id", "") or type(environment).__name__,
            dataset=environment.get_dataset(),
            success_total=success_total,
            held_out_share=held_out_share,
        )

    async def play(self, task: Task, policy: EpisodePolicy, session: Session) -> Rewards:
        """Let the environment run the conversation, and return its rubric's reward."""
        self._client_type.register(PolicyClient)
        client = PolicyClient(policy, self._response_type)
        arguments = {
            "temperature": policy.sampling.temperature,
            "top_p": policy.sampling.top_p,
            "max_tokens": policy.sampling.max_tokens,
        }
        try:
            state = await self.environment.rollout(dict(task.metadata), client, MODEL, arguments)
        except EpisodeEnd as end:
            if end.reason in ("time", "abort") or client.state is None:
                raise
            state = client.state
            state["is_truncated"] = True
        error = state.get("error")
        if error is not None:
            raise error if isinstance(error, BaseException) else RuntimeError(str(error))
        rubric = self.environment.rubric
        await rubric.score_rollout(state)
        await rubric.cleanup(state)
        metrics = state.get("metrics") or {}
        policy.add_metrics({name: value for name, value in metrics.items() if isinstance(value, int | float)})
        return {REWARD: state["reward"]}


class PolicyClient:
    """A verifiers client that answers with the policy of an episode.

    Attributes:
        state: The state of the rollout, set by the first request.
    """

    def __init__(self, policy: EpisodePolicy, response_type: Any) -> None:
        self.state: Any = None
        self._policy, self._response_type = policy, response_type
        self._sent: list[Message] = []

    async def get_response(
        self, prompt: Sequence[Any], model: str, sampling_args: Mapping[str, Any], tools: Any = None, **options: Any
    ) -> Any:
        """Sample the next message of a conversation."""
        self.state = options.get("state", self.state)
        messages = [self._as_message(each) for each in prompt]
        schemas = [
            {"type": "function", "function": _fields(each, "name", "description", "parameters")} for each in tools or ()
        ]
        most = sampling_args.get("max_tokens") or sampling_args.get("max_completion_tokens")
        limit = None if most is None else min(int(most), self._policy.sampling.max_tokens)
        reply = await self._policy.chat(messages, tools=schemas, max_tokens=limit)
        self._sent.append(reply.message)
        calls = [
            {"id": each["id"], "name": each["function"]["name"], "arguments": json.dumps(each["function"]["arguments"])}
            for each in reply.tool_calls
        ]
        is_cut = reply.finish == "length"
        completion = reply.completion
        return self._response_type(
            id=f"turn-{self._policy.turns}",
            created=int(time.time()),
            model=model,
            usage=None,
            message={
                "content": reply.text,
                "reasoning_content": reply.message.get("reasoning_content"),
                "tool_calls": calls or None,
                "finish_reason": "length" if is_cut else "tool_calls" if calls else "stop",
                "is_truncated": is_cut,
                "tokens": {
                    "prompt_ids": list(completion.prompt_ids),
                    "prompt_mask": [0] * len(completion.prompt_ids),
                    "completion_ids": list(completion.token_ids),
                    "completion_mask": [1] * len(completion.token_ids),
                    "completion_logprobs": list(completion.sampled_logprobs or completion.logprobs),
                },
            },
        )

    async def close(self) -> None:
        """Do nothing: the worker owns the policy."""

    def _as_message(self, given: Any) -> Message:
        """Convert a verifiers message; the policy's own are matched to their originals, so they continue a branch."""
        message = _fields(given, "role", "content", "tool_call_id", "tool_calls")
        calls = [_fields(each, "id", "name") for each in message.pop("tool_calls", None) or ()]
        if message["role"] == "assistant":
            for sent in self._sent:
                own = [{"id": each["id"], "name": each["function"]["name"]} for each in sent.get("tool_calls", ())]
                if (sent.get("content") or "") == (message.get("content") or "") and own == calls:
                    return sent
        return {name: value for name, value in message.items() if value is not None}


def _fields(given: Any, *names: str) -> dict[str, Any]:
    """Return fields of a mapping or an object, as plain data."""
    if callable(getattr(given, "model_dump", None)):
        given = given.model_dump(exclude_none=True)
    found = given if isinstance(given, Mapping) else {name: getattr(given, name, None) for name in names}
    return {name: found[name] for name in names if name in found}


def _types_of(environment: Any) -> tuple[Any, Any]:
    """Return the classes ``Client`` and ``Response`` of the package that an environment comes from."""
    for kind in type(environment).__mro__:
        module = sys.modules.get(kind.__module__)
        if hasattr(module, "Client") and hasattr(module, "Response"):
            return module.Client, module.Response  # type: ignore[union-attr]
    raise OptionError(f"{type(environment).__name__} is not an environment of verifiers 0.1.11 to 0.1.14.")
