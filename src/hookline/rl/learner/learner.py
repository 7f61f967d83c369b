"""`GRPOLearner`: a `Trainer` whose data are rollouts of the model that it trains.

Everything of a `Trainer` applies: callbacks, checkpoints and exact resume, signals, clipping, schedules. Its data are a
`RolloutStream`, made while it learns by a `RolloutSource`, in this process or in others. Each batch is a rollout step.
An optimizer step uses ``accumulation`` batches, which form a round, and each round is used for ``updates`` optimizer
steps. A resume may begin within a round: the state of the stream includes the rollouts that are still needed.
"""

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch

from hookline._engine.errors import CheckpointError, OptionError
from hookline._engine.torch_models import plain_state
from hookline.loops.session import Session
from hookline.loops.trainer import Trainer
from hookline.loops.trainer_config import TrainerConfig
from hookline.loops.training_step import set_to_evaluate
from hookline.rl.learner.config import GRPOConfig
from hookline.rl.learner.loss import Batch, grpo_loss, rollout_batch, token_logprobs
from hookline.rl.policies.base import PolicyError
from hookline.rl.rollouts.metrics import rollout_metrics
from hookline.rl.types import Rollout, Sampling


class RolloutSource(Protocol):
    """Makes rollouts for a learner: a `RolloutWorker`, or workers in other processes."""

    step: int
    """The number of rollout steps so far."""
    latest_version: int
    """The newest version of the weights."""

    @property
    def exact_logprobs(self) -> bool:
        """Whether a learner with the same weights computes the same log-probabilities as the policy."""

    def attach_to(self, loop: Session) -> None:
        """Make rollouts for this learner."""

    def roll_out(self) -> list[Rollout]:
        """Return the rollouts of one step; none if the step failed."""

    def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Use new weights from now on."""

    def close_hooks(self) -> None:
        """Close the hooks, and make no more rollouts. Further calls do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the rollouts."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""


MAX_EMPTY_STEPS = 100
"""The stream gives up after this many rollout steps in a row without usable rollouts."""
RELATIVE_ROUNDING = 1e-11
"""How much sums of equal weights may differ, relative to the sum of their absolute values."""


class RolloutStream:
    """An endless iterable of batches of rollouts.

    Args:
        worker: Makes the rollouts.
        model: The model in training, which the worker's policy generates with.
        updates: How many optimizer steps use each batch.
        accumulation: How many batches an optimizer step uses; all of them come before any is repeated.
        reference: The reference model, if any: its log-probabilities become part of the batches.
        temperature, top_p: The settings of the sampling. If one is not 1, log-probabilities are the
            ``sampled_logprobs`` of the completions; if a policy has none, they are computed here with the current
            weights.
        should_stop: Whether a stop is requested; then no further steps are tried after an empty one.
    """

    def __init__(
        self,
        worker: RolloutSource,
        model: Any,
        *,
        pad_id: int,
        updates: int = 1,
        accumulation: int = 1,
        reference: Any = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.worker, self.model = worker, model
        self._pad_id, self._updates, self._reference = pad_id, updates, reference
        self._accumulation, self._should_stop = accumulation, should_stop
        self._sampling = Sampling(temperature, top_p)
        self._round: list[Batch] = []
        self._served = 0  # batches of the round so far, repetitions included
        self.is_open = False
        """Whether a batch is being made, or was returned and not yet used."""

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.is_open = True
            if self._round_is_over():
                self._begin_round()
            index = self._served % self._accumulation
            if self._served < self._accumulation:
                made = self._next_batch()
                if made is None:
                    self._begin_round()  # half a round is not repeated after a resume
                    return
                self._round.append(made | {"index": index})
            self._served += 1
            yield self._round[index]

    def set_old_logprobs(self, index: int, logprobs: torch.Tensor) -> None:
        """Set the log-probabilities that later updates compare a batch of the round with."""
        self._round[index] |= {"old": logprobs, "is_fresh": False}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the worker, and the rollouts that are still needed."""
        remaining = (
            {"batches": [], "given": 0} if self._round_is_over() else {"batches": self._round, "given": self._served}
        )
        reference = None if self._reference is None else _fingerprint(self._reference)
        remaining["accumulation"] = self._accumulation
        return {"worker": self.worker.state_dict(), "round": remaining, "reference": reference}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            CheckpointError: The reference model is not the saved one.
        """
        saved = state["reference"]
        if self._reference is not None and saved is not None and not _has_fingerprint(self._reference, saved):
            raise CheckpointError(
                "kl: the reference is the model at the start of the training, and the given model is another one. "
                "Give the model that the training started with."
            )
        self.worker.load_state_dict(state["worker"])
        saved_round = state["round"]
        self._begin_round()
        if saved_round["accumulation"] == self._accumulation:  # otherwise the round is repeated with new rollouts
            # The index of a batch is its position; version 0.1 saved it under another name.
            self._round = [{**each, "index": index} for index, each in enumerate(saved_round["batches"])]
            self._served = saved_round["given"]
        self.is_open = False

    def _round_is_over(self) -> bool:
        return self._served >= self._updates * self._accumulation

    def _begin_round(self) -> None:
        self._round, self._served = [], 0

    def _next_batch(self) -> Batch | None:
        """Return a batch; None if there is none and a stop is requested."""
        for _ in range(MAX_EMPTY_STEPS):
            began = time.perf_counter()
            rollouts = self.worker.roll_out()
            if any(each.completion.token_ids for each in rollouts):
                seconds = getattr(self.worker, "rollout_seconds", time.perf_counter() - began)  # without its hooks
                return self._make_batch(rollouts, seconds)
            if self._should_stop():
                return None
        raise PolicyError(
            f"{MAX_EMPTY_STEPS} rollout steps in a row have no usable rollouts: no task, no completion, or no reward. "
            "See the faults/ metrics of the rollouts."
        )

    def _make_batch(self, rollouts: list[Rollout], seconds: float) -> Batch:
        device = next(self.model.parameters()).device
        stale = max(self.worker.latest_version - each.version for each in rollouts)
        is_processed = self._sampling.is_processed
        is_known = all(each.completion.sampled_logprobs for each in rollouts if each.completion.token_ids)
        batch = rollout_batch(rollouts, pad_id=self._pad_id, device=device, as_sampled=is_processed and is_known)
        if is_processed and not is_known:
            self._require_newest(stale)
            with set_to_evaluate(self.model):  # without dropout, as the policy generates
                batch["old"] = self._logprobs(self.model, batch)
        if self._reference is not None:
            # The reference was copied before the model was moved.
            batch["reference"] = self._logprobs(self._reference.to(device), batch)
        batch["is_fresh"] = stale <= 0 and getattr(self.worker, "exact_logprobs", False)
        metrics = rollout_metrics(rollouts)
        metrics |= {"policy/version": min(each.version for each in rollouts), "policy/staleness": stale}
        metrics["tokens_per_second"] = metrics["tokens"] / seconds
        groups = {each.task.id for each in rollouts}
        unequal = {each.task.id for each in rollouts if each.advantage}
        metrics["groups/zero_variance"] = (len(groups) - len(unequal)) / len(groups)
        return batch | {"metrics": metrics}

    def _logprobs(self, model: Any, batch: Batch) -> torch.Tensor:
        sampling = self._sampling
        with torch.no_grad():
            logprobs, _ = token_logprobs(
                model, batch["ids"], batch["attention"], temperature=sampling.temperature, top_p=sampling.top_p
            )
        return logprobs

    def _require_newest(self, stale: int) -> None:
        """Raise at the first batch if rollouts may be stale: their log-probabilities cannot be computed."""
        allowed = getattr(self.worker, "max_staleness", 0)
        if stale > 0 or allowed > 0:
            raise OptionError(
                f"temperature={self._sampling.temperature!r} and top_p={self._sampling.top_p!r} with rollouts of older "
                f"weights (max_staleness={allowed}, {max(stale, 0)} versions behind now): the log-probabilities of "
                "their sampling are unknown. Give max_staleness=0, a temperature and top_p of 1, or a policy that "
                "returns sampled_logprobs, such as HFPolicy."
            )


def _fingerprint(model: Any) -> list[float]:
    """Return numbers that are equal for equal weights, up to rounding, and different for others."""
    return [float(parameter.detach().double().sum()) for parameter in model.parameters()]


def _has_fingerprint(model: Any, fingerprint: list[float]) -> bool:
    # Not an exact comparison: the rounding of sums depends on the number of threads and on the device.
    sizes = [float(parameter.detach().double().abs().sum()) for parameter in model.parameters()]
    return len(fingerprint) == len(sizes) and all(
        math.isclose(saved, own, rel_tol=0, abs_tol=RELATIVE_ROUNDING * size)
        for saved, own, size in zip(fingerprint, _fingerprint(model), sizes, strict=True)
    )


class GRPOLearner(Trainer):
    """Learns from the rollouts of a worker.

    Args:
        model: The model, which the worker's policy generates with.
        worker: Makes the rollouts.
        pad_id: The padding token.
        grpo: The settings of the loss.
        temperature, top_p: The settings of the worker's sampling.
        config: The settings of the training; ``max_steps`` is required.
        optimizer, scheduler, callbacks, custom_logger_fns, hook_fns: As for `Trainer`.
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
            raise OptionError("Rollouts never end: give TrainerConfig.max_steps.")
        reference = copy.deepcopy(model).eval().requires_grad_(False) if self.grpo.kl else None
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
            should_stop=lambda: self.stop_requested,
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
        self.recorded_config = {
            "rollouts": getattr(worker, "config", None),
            "grpo": self.grpo,
            "temperature": temperature,
            "top_p": top_p,
            "train": config,
        }

    def training_step(self, model: Any, batch: Any) -> dict[str, Any]:
        """Return the loss of a batch of rollouts, and its metrics."""
        logprobs, entropy = token_logprobs(
            model, batch["ids"], batch["attention"], temperature=self.temperature, top_p=self.top_p
        )
        old = batch["old"]
        if batch["is_fresh"]:  # of the same weights: with dropout, only this very pass has a ratio of 1
            old = logprobs.detach()
            self.stream.set_old_logprobs(batch["index"], old)
        loss, diagnostics = grpo_loss(
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
        return {"loss": loss, "entropy": entropy, **diagnostics, **batch["metrics"]}

    def start(self) -> None:
        """Begin to record, and attach the worker."""
        is_first = not self.has_started
        super().start()
        if is_first:
            self.rollout_worker.attach_to(self)
            if self.step:  # resumed: the policy may have other weights
                self.rollout_worker.update_weights(self.step, plain_state(self.model))

    @property
    def other_axes(self) -> dict[str, int]:
        """The number of rollout steps, which differs from the number of optimizer steps."""
        return {"rollout": self.rollout_worker.step, "eval": self.rollout_worker.step}

    def _update(self, row: Any) -> None:
        super()._update(row)
        self.stream.is_open = False
        self.rollout_worker.update_weights(self.step + 1, plain_state(self.model))

    def _must_wait(self) -> bool:
        return super()._must_wait() or self.stream.is_open

    def _finish_open_work(self) -> None:
        super()._finish_open_work()
        self.rollout_worker.close_hooks()

    def _fail(self, error: BaseException) -> None:
        try:
            self.rollout_worker.close_hooks()
        finally:
            super()._fail(error)
