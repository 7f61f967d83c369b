"""SkyRL: the trajectories of its generators become rollouts and samples of a run.

    from hookline.integrations.skyrl import ObservedGenerator

    class Experiment(BasePPOExp):
        def get_generator(self, *args):
            generator = super().get_generator(*args)
            return ObservedGenerator(generator, [Watch()], name="grpo", tokenizer=self.tokenizer)

The trainer calls ``generate`` with prompts, and gets tokens, rewards and masks. What is generated for training fires
`on_rollout_start` and `on_rollout_end`, with the index of its step; trajectories of evaluations are recorded as samples
on the axis "eval". The generator's own metrics are recorded at the step. SkyRL computes advantages later, in its
trainer, so rollouts have none.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from hookline._engine.errors import OptionError
from hookline._record.chats import prompt_text
from hookline.integrations.passive_run import PassiveRun
from hookline.loops.options import RunOptions
from hookline.rl.chat_format import check_messages
from hookline.rl.types import Completion, Rollout, Task

__all__ = ["ObservedGenerator"]

REWARD = "reward"


class ObservedGenerator:
    """A generator of SkyRL whose trajectories are recorded.

    The run begins with the first call of ``generate``, and ends with ``end()`` or as a context manager.

    Args:
        generator: The generator, with ``async def generate(input_batch)``.
        callbacks, name, options: As for every run of hookline.
        tokenizer: Makes texts of the tokens; without it, samples have none.
        samples: How many trajectories of each call are recorded; None for all.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
    """

    def __init__(
        self,
        generator: Any,
        callbacks: Iterable[Any] = (),
        *,
        name: str = "run",
        tokenizer: Any = None,
        samples: int | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        if not callable(getattr(generator, "generate", None)):
            raise OptionError(f"{generator!r:.200} is no generator of SkyRL: it has no generate().")
        self.loop = PassiveRun(name, native=generator, callbacks=callbacks, **options)
        self._generator, self._tokenizer, self._samples = generator, tokenizer, samples

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_generator":  # not there yet in a copy
            raise AttributeError(name)
        return getattr(self._generator, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.loop.failed(error)
        self.end()

    async def generate(self, input_batch: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Call the generator, and record its result."""
        loop, metadata = self.loop, input_batch.get("batch_metadata")
        if not loop.is_running:
            loop.begin()
            loop.train_start()
        step = loop.step if metadata is None else int(metadata.global_step)
        trains = metadata is None or metadata.training_phase == "train"
        if trains:
            loop.step = max(loop.step, step - 1)  # SkyRL counts from 1 the step it is in
            loop.rollout_start(loop.step)
        output = await self._generator.generate(input_batch, *args, **kwargs)
        rollouts = self._rollouts(input_batch, output, loop.step)
        if trains:
            loop.rollout_end(loop.step, rollouts)
        axis = "train" if trains else "eval"
        recorded = [each.as_sample() | {"step": step, "axis": axis} for each in rollouts[: self._samples]]
        if recorded:
            loop.log_samples(recorded)
        if trains:
            loop.record(output.get("rollout_metrics") or {}, step)
        return output

    def end(self) -> None:
        """End the run."""
        if self.loop.is_running:
            self.loop.train_end()

    def _rollouts(self, given: Mapping[str, Any], output: Mapping[str, Any], version: int) -> list[Rollout]:
        """Return the trajectories as rollouts: of several rows for the turns of one, the last."""
        ends = output.get("is_last_step") or [True] * len(output["response_ids"])
        rows = [row for row, is_last in enumerate(ends) if is_last]
        if len(rows) != len(given["prompts"]):
            raise ValueError(f"generate() gave {len(rows)} trajectories for {len(given['prompts'])} prompts.")
        return [self._rollout(given, index, output, row, version) for index, row in enumerate(rows)]

    def _rollout(
        self, given: Mapping[str, Any], index: int, output: Mapping[str, Any], row: int, version: int
    ) -> Rollout:
        messages = check_messages(given["prompts"][index], "prompts")
        extras = (given.get("env_extras") or [{}] * (index + 1))[index] or {}
        expected = (extras.get("reward_model") or {}).get("ground_truth")
        identity = (given.get("trajectory_ids") or [None] * (index + 1))[index]
        ids, mask = list(output["response_ids"][row]), list(output["loss_masks"][row])
        reward = output["rewards"][row]
        total = float(sum(reward)) if isinstance(reward, Sequence) else float(reward)
        stops, logprobs = output.get("stop_reasons"), output.get("rollout_logprobs")
        completion = Completion(
            "" if self._tokenizer is None else self._tokenizer.decode(ids, skip_special_tokens=True),
            ids,
            list(logprobs[row]) if logprobs else (),
            finish="length" if stops and stops[row] == "length" else "stop",
            prompt_ids=list(output["prompt_token_ids"][row]),
            mask=() if all(mask) else mask,
        )
        task = Task(
            prompt_text(messages),
            None if expected is None else str(expected),
            id="" if identity is None else str(identity.instance_id),
            messages=messages,
        )
        return Rollout(
            task,
            completion,
            {REWARD: total},
            total=total,
            success=total > 0,
            lesson=str(given["env_classes"][index]),
            version=version,
            episode="" if identity is None else identity.to_string(),
        )
