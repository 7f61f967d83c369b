"""What TRL's trainers generate: prompts, completions, rewards and advantages as rollouts.

A trainer that generates (`GRPOTrainer` and those made like it) tells its callbacks nothing of it. Its reward
functions, which are the user's, see everything but the advantages, so they are where this listens: each one in
``trainer.reward_funcs`` is replaced by one that calls it and notes what it was given and gave. What is generated while
the trainer trains becomes `on_rollout_start` and `on_rollout_end`, with the step that it is for; what is generated
while it evaluates becomes part of the validation. Both are recorded as samples, on the axes "train" and "eval".

Advantages, and the rewards that models give, stand in one private place of TRL, which `_noted_by_trl` reads and nothing
else does; where it is not as expected, they are left out, and that is said once.
"""

import functools
import inspect
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hookline.integrations.host_loop import HostLoop
from hookline.logging.completions import extract_reasoning_and_answer
from hookline.rl.rewards.batch import RewardCall
from hookline.rl.types import Completion, Rollout, Task

logger = logging.getLogger("hookline")

CORRECTNESS = ("correct", "accuracy", "exact")
"""What the name of a reward function has in it that tells right from wrong."""


def generates(trainer: Any) -> bool:
    """Whether a trainer generates completions and has functions score them."""
    functions, names = getattr(trainer, "reward_funcs", None), getattr(trainer, "reward_func_names", None)
    both = isinstance(functions, list) and isinstance(names, list) and len(functions) == len(names)
    return both and any(map(_is_function, functions or ()))


def correctness_name(names: Iterable[str]) -> str | None:
    """The reward function that tells right from wrong, by its name; None where there is none."""
    return next((name for name in names if any(word in name.lower() for word in CORRECTNESS)), None)


class Generations:
    """Listens to a trainer's reward functions, and makes rollouts of what they score.

    Args:
        samples: How many of each generation are recorded; None for all.
    """

    def __init__(self, trainer: Any, loop: HostLoop, samples: int | None) -> None:
        self._trainer, self._loop, self._samples = trainer, loop, samples
        self._own = list(trainer.reward_funcs)
        for index, function in enumerate(self._own):
            if _is_function(function):
                trainer.reward_funcs[index] = self._listening(trainer.reward_func_names[index], function)
        self._arguments: dict[str, Any] | None = None
        self._values: dict[str, Sequence[Any]] = {}
        self._batches = 0
        self._next_at: int | None = 0 if trainer.state.global_step == 0 else None
        self._is_announced = False
        self._said: set[str] = set()

    def remove(self) -> None:
        """Give the trainer its own reward functions back."""
        self._trainer.reward_funcs[: len(self._own)] = self._own

    def before_training(self) -> None:
        """A training batch begins: the completions of so many batches are generated at once, in the first of them."""
        self._forget()
        self._is_announced = self._batches == self._next_at
        if self._is_announced:
            self._loop.rollout_start(self._loop.step)

    def after_training(self) -> None:
        """It ended: tell what was generated in it, if anything was."""
        rollouts = self._rollouts()
        if rollouts:
            if not self._is_announced:
                self._loop.rollout_start(self._loop.step)
            self._next_at = self._batches + self._batches_per_generation()
            self._loop.rollout_end(self._loop.step, rollouts)
            self._record(rollouts, self._loop.step + 1, "train")
        self._batches += 1

    def after_evaluation(self) -> dict[str, Any]:
        """A batch of an evaluation ended: what was generated in it, as a part of its outputs."""
        rollouts = self._rollouts()
        self._record(rollouts, self._loop.step, "eval")
        return {"rollouts": rollouts} if rollouts else {}

    def _batches_per_generation(self) -> int:
        args = self._trainer.args
        return int(getattr(args, "steps_per_generation", None) or 1) * int(getattr(args, "num_iterations", None) or 1)

    def _listening(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if _is_async(function):

            @functools.wraps(function, updated=())
            async def listen_later(*args: Any, **kwargs: Any) -> Any:
                return self._note(name, kwargs, await function(*args, **kwargs))

            return listen_later

        @functools.wraps(function, updated=())
        def listen(*args: Any, **kwargs: Any) -> Any:
            return self._note(name, kwargs, function(*args, **kwargs))

        return listen

    def _note(self, name: str, arguments: dict[str, Any], result: Any) -> Any:
        """Keep what a function scored and gave; returns what it gave, as a list where it can be read only once."""
        given = list(result) if isinstance(result, Iterator) else result
        self._arguments = {**(self._arguments or {}), **arguments}
        self._values[name] = given
        return given

    def _forget(self) -> None:
        self._arguments, self._values = None, {}

    def _rollouts(self) -> list[Rollout]:
        """The rollouts of what was scored since the last time; whatever the functions were given, training goes on."""
        arguments, values = self._arguments, self._values
        self._forget()
        try:
            return [] if arguments is None else self._made_of(arguments, values)
        except Exception as error:
            self._warn("What was generated cannot be told: %r", error)
            return []

    def _made_of(self, arguments: Mapping[str, Any], values: Mapping[str, Sequence[Any]]) -> list[Rollout]:
        call = RewardCall.from_arguments(arguments)
        if call is None:
            return []
        advantages, noted = self._noted(arguments)
        given = {**noted, **values}
        return [
            self._rollout(
                call,
                index,
                arguments,
                {name: reward for name in given if (reward := _number(given[name], index)) is not None},
                None if advantages is None else advantages[index],
            )
            for index in range(len(call.completions))
        ]

    def _rollout(
        self,
        call: RewardCall,
        index: int,
        arguments: Mapping[str, Any],
        rewards: dict[str, float],
        advantage: float | None,
    ) -> Rollout:
        expected = None if call.expected is None else call.expected[index]
        own_id = "" if call.ids is None else call.ids[index]
        token_ids = tuple(arguments.get("completion_ids", {index: ()})[index])
        right = correctness_name(rewards)
        return Rollout(
            Task("" if call.prompts is None else call.prompts[index], expected, own_id),
            Completion(call.completions[index], token_ids, finish="stop" if self._is_finished(token_ids) else "length"),
            rewards,
            total=self._total(rewards),
            success=right is not None and rewards[right] > 0,
            advantage=advantage,
            version=self._loop.step,
        )

    def _total(self, rewards: Mapping[str, float]) -> float:
        given = getattr(self._trainer, "reward_weights", None)
        names = self._trainer.reward_func_names
        weights = {} if given is None else dict(zip(names, given.tolist(), strict=False))
        return float(sum(weights.get(name, 1.0) * value for name, value in rewards.items()))

    def _is_finished(self, token_ids: Sequence[int]) -> bool:
        tokenizer = getattr(self._trainer.processing_class, "tokenizer", self._trainer.processing_class)
        ends = (getattr(tokenizer, "eos_token_id", None), getattr(tokenizer, "pad_token_id", None))
        return bool(token_ids) and token_ids[-1] in ends

    def _noted(self, arguments: Mapping[str, Any]) -> tuple[list[float] | None, dict[str, list[float]]]:
        """The advantages of these completions and the rewards by every function, where TRL has them."""
        count, rank, size = len(arguments["completions"]), self._loop.rank, self._loop.world_size
        try:
            return _noted_by_trl(
                self._trainer, arguments["prompts"], slice(rank * count, (rank + 1) * count), count * size
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._warn("The advantages of rollouts are not known, where TRL does not keep them: %r", error)
            return None, {}

    def _warn(self, text: str, error: Exception) -> None:
        """Say something once."""
        if text not in self._said:
            self._said.add(text)
            logger.warning(text, error)

    def _record(self, rollouts: list[Rollout], step: int, axis: str) -> None:
        shown = rollouts if self._samples is None else rollouts[: self._samples]
        if shown:
            self._loop.log_samples([sample(each, step, axis) for each in shown])


def sample(rollout: Rollout, step: int, axis: str) -> dict[str, Any]:
    """A rollout as it is recorded."""
    reasoning, answer = extract_reasoning_and_answer(rollout.completion.text)
    found = {"reasoning": reasoning, "answer": answer}
    return {"step": step, "axis": axis, **rollout.as_sample(), **{k: v for k, v in found.items() if v is not None}}


def _noted_by_trl(
    trainer: Any, prompts: Sequence[Any], own: slice, count: int
) -> tuple[list[float], dict[str, list[float]]]:
    """What TRL notes of its latest generation, for this process's part of it.

    Raises:
        ValueError: It is not about these prompts.
        AttributeError, KeyError, TypeError: It is not kept there.
    """
    notes = trainer._logs
    latest = {name: list(notes[name])[-count:][own] for name in ("prompt", "advantages")}
    if latest["prompt"] != list(prompts):
        raise ValueError("the prompts noted there are others")
    return latest["advantages"], {name: list(values)[-count:][own] for name, values in notes["rewards"].items()}


def _number(values: Sequence[Any], index: int) -> float | None:
    value = values[index]
    number = None if value is None else float(value)
    return None if number is None or math.isnan(number) else number


def _is_function(function: Any) -> bool:
    return callable(function) and not hasattr(function, "named_parameters")


def _is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(function.__call__)
