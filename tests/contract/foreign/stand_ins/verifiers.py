"""Environments, rubrics and clients of verifiers, as in verifiers 0.1.14."""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from hookline import rl


class Message:
    """A message; its fields are attributes."""

    def __init__(self, role: str, content: Any = None, **fields: Any) -> None:
        self.role, self.content = role, content
        self.tool_calls: list[Any] | None = fields.pop("tool_calls", None)
        self.tool_call_id: str | None = fields.pop("tool_call_id", None)


class ToolCall:
    def __init__(self, id: str, name: str, arguments: str) -> None:  # noqa: A002 - its name there
        self.id, self.name, self.arguments = id, name, arguments


class Response:
    """What a client returns."""

    def __init__(self, *, message: dict[str, Any], **fields: Any) -> None:
        self.message = Message("assistant", message["content"])
        calls = message["tool_calls"]
        self.message.tool_calls = None if calls is None else [ToolCall(**each) for each in calls]


class Client(ABC):
    @abstractmethod
    async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **options: Any) -> Any:
        """Return the model's next message."""


class Rubric:
    """Reward functions, with weights."""

    def __init__(self, funcs: list[Callable[..., Any]], weights: list[float]) -> None:
        self.funcs, self.weights = funcs, weights

    async def score_rollout(self, state: dict[str, Any]) -> None:
        scores = [float(_called(each, state)) for each in self.funcs]
        state["reward"] = sum(score * weight for score, weight in zip(scores, self.weights, strict=True))
        state["metrics"] = {each.__name__: score for each, score in zip(self.funcs, scores, strict=True)}

    async def cleanup(self, state: dict[str, Any]) -> None:
        pass


def _called(function: Callable[..., Any], state: dict[str, Any]) -> Any:
    known = {**state, "state": state}
    return function(**{name: known[name] for name in inspect.signature(function).parameters})


def stop(function: Any) -> Any:
    function.is_stop = True
    return function


def cleanup(function: Any) -> Any:
    function.is_cleanup = True
    return function


class MultiTurnEnv(ABC):
    """Has a conversation with a client until a stop condition holds."""

    requires_group_rollouts = False
    tool_defs: list[Any] | None = None
    env_id = ""

    def __init__(self, *, dataset: Any, rubric: Rubric, max_turns: int = -1) -> None:
        self.dataset, self.rubric, self.max_turns = dataset, rubric, max_turns

    def get_dataset(self, n: int = -1, seed: int | None = None) -> Any:
        return self.dataset

    async def setup_state(self, state: dict[str, Any]) -> Any:
        return state

    @abstractmethod
    async def env_response(self, messages: list[Any], state: dict[str, Any]) -> Any:
        """Return the messages of the environment."""

    async def rollout(self, row: Any, client: Client, model: str, sampling_args: Any = None) -> dict[str, Any]:
        if not isinstance(client, Client):
            raise ValueError(f"Unsupported client type: {type(client)}")
        state: dict[str, Any] = {**deepcopy(row), "trajectory": [], "error": None, "completion": None}
        prompt = [Message(**each) for each in state["prompt"]]
        try:
            await self.setup_state(state)
            while not await self._is_completed(state):
                messages = prompt
                if state["trajectory"]:
                    last = state["trajectory"][-1]
                    messages = last["prompt"] + last["completion"]
                    new = await self.env_response(messages, state)
                    messages = messages + [each if isinstance(each, Message) else Message(**each) for each in new]
                response = await client.get_response(
                    prompt=messages, model=model, sampling_args=sampling_args, tools=self.tool_defs, state=state
                )
                state["trajectory"].append({"prompt": messages, "completion": [response.message]})
        finally:
            if state["trajectory"]:
                last = state["trajectory"][-1]
                state["completion"] = (last["prompt"] + last["completion"])[len(prompt) :]
            for each in self._marked("is_cleanup"):
                await each(state)
        return state

    async def _is_completed(self, state: dict[str, Any]) -> bool:
        if 0 < self.max_turns <= len(state["trajectory"]):
            return True
        return any([await each(state) for each in self._marked("is_stop")])

    def _marked(self, mark: str) -> list[Any]:
        functions = inspect.getmembers(type(self), predicate=inspect.isfunction)
        return [getattr(self, name) for name, function in functions if hasattr(function, mark)]


class _ToolDef:
    def __init__(self, function: Callable[..., Any]) -> None:
        schema = rl.Tool(function).schema["function"]
        self.name, self.description, self.parameters = schema["name"], schema["description"], schema["parameters"]


class ToolEnv(MultiTurnEnv):
    """Runs the calls of the policy until it makes none."""

    def __init__(self, *, tools: list[Callable[..., Any]], **options: Any) -> None:
        super().__init__(**options)
        self.tool_map = {each.__name__: each for each in tools}
        self.tool_defs = [_ToolDef(each) for each in tools]

    @stop
    async def no_tools_called(self, state: dict[str, Any]) -> bool:
        return bool(state["trajectory"]) and not state["trajectory"][-1]["completion"][-1].tool_calls

    async def env_response(self, messages: list[Any], state: dict[str, Any]) -> Any:
        results = []
        for each in messages[-1].tool_calls:
            try:
                content = await self.tool_map[each.name](**json.loads(each.arguments))
            except Exception as error:
                content = str(error)
            results.append(Message("tool", content, tool_call_id=each.id))
        return results
