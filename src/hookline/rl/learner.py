"""`GRPOLearner`: a `Trainer` whose data are rollouts of the model that it trains.

Everything a Trainer does holds here too: callbacks, checkpoints and exact resume, signals, clipping, schedules.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hookline.core.errors import OptionError
from hookline.core.model_names import plain_state
from hookline.loops.trainer import Trainer
from hookline.loops.trainer_config import TrainerConfig
from hookline.rl.grpo import grpo_loss, token_logprobs
from hookline.rl.grpo_config import GRPOConfig
from hookline.rl.rollout_source import RolloutSource
from hookline.rl.rollout_stream import RolloutStream, frozen_copy


class GRPOLearner(Trainer):
    """Learns from the rollouts of a worker.

    Args:
        model: The model, which the worker's policy writes with.
        worker: Who makes the rollouts.
        pad_id: The token that batches are padded with.
        grpo: The settings of the loss.
        temperature, top_p: With which the worker samples.
        config: The settings of the training; ``max_steps`` says how long.
        optimizer, scheduler, callbacks, custom_logger_fns, hook_fns: As for every `Trainer`.
    """

    def __init__(
        self,
        model: Any,
        worker: RolloutSource,
        *,
        pad_id: int,
        config: TrainerConfig,
        grpo: GRPOConfig | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        optimizer: Any = None,
        scheduler: Any = None,
        callbacks: Any = None,
        custom_logger_fns: Iterable[Callable[..., Any]] | None = None,
        hook_fns: Mapping[str, Any] | None = None,
    ) -> None:
        self.grpo = GRPOConfig() if grpo is None else grpo
        if config.max_steps is None:
            raise OptionError("Rollouts never end: give the TrainerConfig max_steps.")
        reference = frozen_copy(model) if self.grpo.kl else None
        self.temperature, self.top_p = temperature, top_p
        self.stream = RolloutStream(
            worker,
            model,
            pad_id=pad_id,
            updates=self.grpo.updates,
            accumulation=config.accumulation,
            reference=reference,
            temperature=temperature,
            top_p=top_p,
            stops=lambda: self.stop_requested,
        )
        self.rollout_worker = worker
        super().__init__(
            model,
            self.stream,
            config=config,
            optimizer=optimizer,
            scheduler=scheduler,
            callbacks=callbacks,
            custom_logger_fns=custom_logger_fns,
            hook_fns=hook_fns,
        )
        own = {
            "rollouts": getattr(worker, "config", None),
            "grpo": self.grpo,
            "temperature": temperature,
            "top_p": top_p,
        }
        self.recorded_config = {**own, "train": config}

    def training_step(self, model: Any, batch: Any) -> dict[str, Any]:
        """The loss of a batch of rollouts, and what is known about it."""
        logprobs, entropy = token_logprobs(
            model, batch["ids"], batch["attention"], temperature=self.temperature, top_p=self.top_p
        )
        old = batch["old"]
        if batch["is_fresh"]:  # the same weights wrote it: with dropout, only this pass itself has a ratio of 1
            old = logprobs.detach()
            self.stream.keep_old(batch["place"], old)
        loss, facts = grpo_loss(
            logprobs,
            old,
            batch["advantages"],
            batch["mask"],
            clip=self.grpo.clip,
            reference=batch.get("reference"),
            kl=self.grpo.kl,
        )
        tokens = batch["mask"].sum().clamp(min=1)
        entropy = entropy.masked_fill(batch["mask"] == 0, 0).sum() / tokens
        return {"loss": loss, "entropy": entropy, **facts, **batch["metrics"]}

    def start(self) -> None:
        """Begin to record, and let the worker record with it."""
        is_first = not self._train_started
        super().start()
        if is_first:
            self.rollout_worker.work_for(self)
            if self.step:  # it was taken up, and the policy has other weights or does not know which
                self.rollout_worker.update_weights(self.step, plain_state(self.model))

    @property
    def other_axes(self) -> dict[str, int]:
        """How far the rollouts are: more than one learning step may be made with each, or none."""
        return {"rollout": self.rollout_worker.step, "eval": self.rollout_worker.step}

    def _update(self, row: Any) -> None:
        super()._update(row)
        self.stream.is_open = False
        self.rollout_worker.update_weights(self.step + 1, plain_state(self.model))

    def _must_wait(self) -> bool:
        return super()._must_wait() or self.stream.is_open

    def _settle(self) -> None:
        super()._settle()
        self.rollout_worker.close_hooks()

    def _fail(self, error: BaseException) -> None:
        try:
            self.rollout_worker.close_hooks()
        finally:
            super()._fail(error)
