"""TRL: turns the generations of its trainers into rollouts with prompts, completions, rewards and advantages.

A trainer that generates (`GRPOTrainer` and similar ones) does not report generations to its callbacks. Its reward
functions see everything but the advantages, so each function in ``trainer.reward_funcs`` is replaced by one that calls
it and keeps its arguments and result. What is generated during training fires `on_rollout_start` and `on_rollout_end`
with the step it is for; what is generated during an evaluation becomes part of the validation's outputs. Both are
recorded as samples, on the axes "train" and "eval".

`AsyncGRPOTrainer` scores its generations in another process. They arrive in ``trainer.rollout_queue``, as samples with
rewards and advantages: whatever a training step takes from it becomes the rollouts of that step (`QueueObserver`).

Advantages of the other trainers, and the rewards of reward models, are only in one private attribute of TRL, which
`_logged_by_trl` reads. If it is not as expected, they are left out, with one warning.
"""

import functools
import inspect
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hookline._record.chats import prompt_text
from hookline.integrations.host_loop import HostLoop
from hookline.logging.payloads import extract_reasoning_and_answer
from hookline.rl.rewards.batch import RewardCall
from hookline.rl.types import Completion, Rollout, Task

logger = logging.getLogger("hookline")

CORRECTNESS = ("correct", "accuracy", "exact")
"""Words in the name of a reward function that distinguishes right from wrong answers."""


def generates(trainer: Any) -> bool:
    """Check whether a trainer generates completions and scores them with functions."""
    functions, names = getattr(trainer, "reward_funcs", None), getattr(trainer, "reward_func_names", None)
    both = isinstance(functions, list) and isinstance(names, list) and len(functions) == len(names)
    return both and any(map(_is_function, functions or ()))


def correctness_name(names: Iterable[str]) -> str | None:
    """Return the reward function that scores correctness, by its name; None if there is none."""
    return next((name for name in names if any(word in name.lower() for word in CORRECTNESS)), None)


def observe(trainer: Any, loop: HostLoop, samples: int | None) -> "GenerationObserver | QueueObserver | None":
    """Observe the generations of a trainer; None if it makes none."""
    if callable(getattr(getattr(trainer, "rollout_queue", None), "get", None)):
        return QueueObserver(trainer, loop, samples)
    return GenerationObserver(trainer, loop, samples) if generates(trainer) else None


class GenerationObserver:
    """Wraps a trainer's reward functions and turns the scored completions into rollouts.

    Args:
        samples: How many samples of each generation are recorded; None for all.
    """

    def __init__(self, trainer: Any, loop: HostLoop, samples: int | None) -> None:
        self._trainer, self._loop, self._samples = trainer, loop, samples
        self._original = list(trainer.reward_funcs)
        for index, function in enumerate(self._original):
            if _is_function(function):
                trainer.reward_funcs[index] = self._observed(trainer.reward_func_names[index], function)
        self._arguments: dict[str, Any] | None = None
        self._values: dict[str, Sequence[Any]] = {}
        self._batches = 0
        self._next_generation: int | None = 0 if trainer.state.global_step == 0 else None
        self._is_announced = False
        self._warned: set[str] = set()

    def remove(self) -> None:
        """Restore the trainer's reward functions."""
        self._trainer.reward_funcs[: len(self._original)] = self._original

    def before_training(self) -> None:
        """Handle the start of a training batch."""
        self._arguments, self._values = None, {}
        self._is_announced = self._batches == self._next_generation
        if self._is_announced:
            self._loop.rollout_start(self._loop.step)

    def after_training(self) -> None:
        """Handle the end of a training batch: report the completions generated in it."""
        rollouts = self._take_rollouts()
        if rollouts:
            if not self._is_announced:
                self._loop.rollout_start(self._loop.step)
            # One generation serves several batches and iterations.
            args = self._trainer.args
            steps, iterations = getattr(args, "steps_per_generation", None), getattr(args, "num_iterations", None)
            self._next_generation = self._batches + int(steps or 1) * int(iterations or 1)
            self._loop.rollout_end(self._loop.step, rollouts)
            self._record(rollouts, self._loop.step + 1, "train")
        self._batches += 1

    def after_evaluation(self) -> dict[str, Any]:
        """Handle the end of an evaluation batch; returns the generated completions as a part of its outputs."""
        rollouts = self._take_rollouts()
        self._record(rollouts, self._loop.step, "eval")
        return {"rollouts": rollouts} if rollouts else {}

    def _observed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if _is_async(function):

            @functools.wraps(function, updated=())
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                return self._keep(name, kwargs, await function(*args, **kwargs))

            return call_async

        @functools.wraps(function, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._keep(name, kwargs, function(*args, **kwargs))

        return call

    def _keep(self, name: str, arguments: dict[str, Any], result: Any) -> Any:
        values = list(result) if isinstance(result, Iterator) else result  # an iterator can be read only once
        self._arguments = {**(self._arguments or {}), **arguments}
        self._values[name] = values
        return values

    def _take_rollouts(self) -> list[Rollout]:
        """Return the rollouts scored since the last call; never fails, whatever the functions received."""
        arguments, values = self._arguments, self._values
        self._arguments, self._values = None, {}
        try:
            return [] if arguments is None else self._rollouts(arguments, values)
        except Exception as error:
            self._warn_once("Rollouts cannot be made of the generated completions: %r", error)
            return []

    def _rollouts(self, arguments: Mapping[str, Any], values: Mapping[str, Sequence[Any]]) -> list[Rollout]:
        call = RewardCall.from_arguments(arguments)
        if call is None:
            return []
        count, rank, size = len(arguments["completions"]), self._loop.rank, self._loop.world_size
        advantages: list[float] | None = None
        logged: dict[str, list[float]] = {}
        try:
            own = slice(rank * count, (rank + 1) * count)
            advantages, logged = _logged_by_trl(self._trainer, arguments["prompts"], own, count * size)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._warn_once("The advantages of rollouts are not known, because TRL does not keep them: %r", error)
        scores = {**logged, **values}
        tokenizer = getattr(self._trainer.processing_class, "tokenizer", self._trainer.processing_class)
        ends = (getattr(tokenizer, "eos_token_id", None), getattr(tokenizer, "pad_token_id", None))
        rollouts = []
        for index, completion in enumerate(call.completions):
            rewards = {name: reward for name in scores if (reward := _number(scores[name], index)) is not None}
            correctness = correctness_name(rewards)
            token_ids = tuple(arguments.get("completion_ids", {index: ()})[index])
            is_finished = bool(token_ids) and token_ids[-1] in ends
            rollouts.append(
                Rollout(
                    Task(
                        "" if call.prompts is None else call.prompts[index],
                        None if call.expected is None else call.expected[index],
                        "" if call.ids is None else call.ids[index],
                        messages=None if call.prompt_chats is None else call.prompt_chats[index],
                    ),
                    Completion(
                        completion,
                        token_ids,
                        finish="stop" if is_finished else "length",
                        messages=None if call.completion_chats is None else call.completion_chats[index],
                    ),
                    rewards,
                    total=self._total(rewards),
                    success=correctness is not None and rewards[correctness] > 0,
                    advantage=None if advantages is None else advantages[index],
                    version=self._loop.step,
                )
            )
        return rollouts

    def _total(self, rewards: Mapping[str, float]) -> float:
        given = getattr(self._trainer, "reward_weights", None)
        names = self._trainer.reward_func_names
        weights = {} if given is None else dict(zip(names, given.tolist(), strict=False))
        return float(sum(weights.get(name, 1.0) * value for name, value in rewards.items()))

    def _warn_once(self, text: str, error: Exception) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text, error)

    def _record(self, rollouts: list[Rollout], step: int, axis: str) -> None:
        _record(self._loop, rollouts, self._samples, step, axis)


class QueueObserver:
    """Turns the samples that `AsyncGRPOTrainer` takes from its queue into rollouts.

    A sample of older weights than the trainer accepts is dropped by it, and is no rollout.

    Args:
        samples: How many samples of each training step are recorded; None for all.
    """

    def __init__(self, trainer: Any, loop: HostLoop, samples: int | None) -> None:
        self._trainer, self._loop, self._samples = trainer, loop, samples
        self._original = trainer.rollout_queue
        self._taken: deque[Any] = deque()
        trainer.rollout_queue = _ObservedQueue(self._original, self._taken.append)

    def remove(self) -> None:
        """Restore the trainer's queue; a training in progress keeps the one it has."""
        self._trainer.rollout_queue = self._original

    def before_training(self) -> None:
        """Handle the start of a training batch."""
        if self._taken:
            self._loop.rollout_start(self._loop.step)

    def after_training(self) -> None:
        """Handle the end of a training batch: report the rollouts taken from the queue for it."""
        taken = [self._taken.popleft() for _ in range(len(self._taken))]
        if not taken:
            return
        oldest = self._trainer.model_version - self._trainer.args.max_staleness
        rollouts = [self._rollout(sample) for sample in taken if sample.model_version >= oldest]
        self._loop.rollout_end(self._loop.step, rollouts)
        _record(self._loop, rollouts, self._samples, self._loop.step + 1, "train")

    def after_evaluation(self) -> dict[str, Any]:
        """Handle the end of an evaluation batch: nothing is generated for it."""
        return {}

    def _rollout(self, sample: Any) -> Rollout:
        mask = [int(each) for each in sample.completion_mask]
        start = mask.index(1) if 1 in mask else len(mask)
        ids = [int(token) for token in sample.input_ids]
        prefix = "rewards/"
        rewards = {
            name.removeprefix(prefix): float(value)
            for name, value in sample.metrics.items()
            if name.startswith(prefix) and not math.isnan(value)
        }
        correctness = correctness_name(rewards)
        completion = Completion(
            str(sample.completion[-1].get("content") or "") if sample.completion else "",
            ids[start:],
            [float(value) for value in sample.old_log_probs][start:],
            finish="stop" if ids[-1:] == [self._trainer.processing_class.eos_token_id] else "length",
            prompt_ids=ids[:start],
            messages=sample.completion,
            mask=() if all(mask[start:]) else mask[start:],
        )
        return Rollout(
            Task(prompt_text(sample.prompt), id=str(sample.group_id), messages=sample.prompt),
            completion,
            rewards,
            total=float(sample.metrics.get("reward", 0.0)),
            success=correctness is not None and rewards[correctness] > 0,
            advantage=float(sample.advantage),
            version=int(sample.model_version),
            turns=sum(message.get("role") == "assistant" for message in sample.completion),
        )


class _ObservedQueue:
    """A queue that records the items taken from it."""

    def __init__(self, queue: Any, note: Callable[[Any], None]) -> None:
        self._queue, self._note = queue, note

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Take an item."""
        item = self._queue.get(*args, **kwargs)
        self._note(item)
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def _record(loop: HostLoop, rollouts: list[Rollout], count: int | None, step: int, axis: str) -> None:
    """Record at most ``count`` rollouts as samples."""
    samples = []
    for rollout in rollouts[:count]:
        reasoning, answer = extract_reasoning_and_answer(rollout.completion.text)
        sample = {"step": step, "axis": axis, **rollout.as_sample()}
        if not rollout.completion.token_ids:
            del sample["finish"]  # not known without the tokens
        sample |= {"reasoning": reasoning} if reasoning is not None else {}
        sample |= {"answer": answer} if answer is not None else {}
        samples.append(sample)
    if samples:
        loop.log_samples(samples)


def _logged_by_trl(
    trainer: Any, prompts: Sequence[Any], own: slice, count: int
) -> tuple[list[float], dict[str, list[float]]]:
    """Return the advantages and rewards that TRL logged for this process's part of the latest generation.

    Raises:
        ValueError: They are not those of these prompts.
        AttributeError, KeyError, TypeError: TRL does not keep them there.
    """
    logs = trainer._logs
    latest = {name: list(logs[name])[-count:][own] for name in ("prompt", "advantages")}
    if latest["prompt"] != list(prompts):
        raise ValueError("the logged prompts are different")
    return latest["advantages"], {name: list(values)[-count:][own] for name, values in logs["rewards"].items()}


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
