"""`GRPOLearner`: a `Trainer` whose data are rollouts of the model that it trains.

Everything a Trainer does holds here too: callbacks, checkpoints and exact resume, signals, clipping, schedules.

`RolloutSource`: what a learner asks of whoever makes its rollouts, in this process or elsewhere.

`RolloutStream`: the training data of a learner, made while it learns.

Each batch is a rollout step of a worker. An optimizer step learns from `accumulation` batches, which together are a
round, and `updates` optimizer steps learn from each round. It can be resumed in the middle: the rollouts that are still
to be learnt from are part of its state.
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
    """Makes rollouts for a learner; a `RolloutWorker` is one, and so are workers in other processes."""

    step: int
    """How many rollout steps it has made, or handed over."""
    latest_version: int
    """The newest version of the weights."""

    @property
    def exact_logprobs(self) -> bool:
        """Whether a learner with the same weights computes the log-probabilities of rollouts itself."""

    def attach_to(self, loop: Session) -> None:
        """Make rollouts for this learner from now on."""

    def roll_out(self) -> list[Rollout]:
        """The rollouts of one step; none where nothing came of it."""

    def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Write with new weights from now on."""

    def close_hooks(self) -> None:
        """Let hooks finish, and make no more rollouts. May be called again."""

    def state_dict(self) -> dict[str, Any]:
        """Where the rollouts stand."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""


EMPTY_STEPS = 100
"""After how many rollout steps in a row without anything to learn from the stream gives up."""
ROUNDING = 1e-11
"""By how much sums of the same weights may differ, as a share of the sum of their absolute values."""


class RolloutStream:
    """Batches of rollouts, for ever.

    Args:
        worker: Who makes them.
        model: The model that is trained, which the worker's policy writes with.
        updates: How often each batch is learnt from.
        accumulation: How many batches an optimizer step learns from: all of these come before any comes again.
        reference: What the policy is held near, if anything: its log-probabilities become part of the batches.
        temperature, top_p: With which completions are sampled. Where one is not 1, log-probabilities are the
            ``sampled_logprobs`` of the completions; where a policy gives none, they are computed here, with the weights
            of now.
        stops: Whether a stop was asked for; then nothing more is tried where rollouts stay empty.
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
        stops: Callable[[], bool] = lambda: False,
    ) -> None:
        self.worker, self.model = worker, model
        self._pad_id, self._updates, self._reference = pad_id, updates, reference
        self._accumulation, self._stops = accumulation, stops
        self._sampling = Sampling(temperature, top_p)
        self._round: list[Batch] = []
        self._given = 0
        """How many batches of the round were given out, those that came again included."""
        self.is_open = False
        """Whether a batch is being made, or was given out, that nothing has been learnt from yet."""

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.is_open = True
            if self._is_over():
                self._begin_round()
            place = self._given % self._accumulation
            if self._given < self._accumulation:
                made = self._next_batch()
                if made is None:
                    self._begin_round()  # what was learnt from half a round is not repeated
                    return
                self._round.append(made | {"place": place})
            self._given += 1
            yield self._round[place]

    def keep_old(self, place: int, logprobs: torch.Tensor) -> None:
        """Let these be the log-probabilities that later updates compare a batch of the round with."""
        self._round[place] |= {"old": logprobs, "is_fresh": False}

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, with what is still to be learnt from."""
        left = {"batches": [], "given": 0} if self._is_over() else {"batches": self._round, "given": self._given}
        reference = None if self._reference is None else _fingerprint(self._reference)
        left["accumulation"] = self._accumulation
        return {"worker": self.worker.state_dict(), "round": left, "reference": reference}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there.

        Raises:
            CheckpointError: The reference is another model than before.
        """
        saved = state["reference"]
        if self._reference is not None and saved is not None and not _is_of(saved, self._reference):
            raise CheckpointError(
                "kl: the policy is held near the model as it was when the training began, and this is another one. "
                "Give the model with which it began."
            )
        self.worker.load_state_dict(state["worker"])
        saved_round = state["round"]
        self._begin_round()
        if saved_round["accumulation"] == self._accumulation:  # a round of another size begins again, with new rollouts
            self._round, self._given = [dict(each) for each in saved_round["batches"]], saved_round["given"]
        self.is_open = False

    def _is_over(self) -> bool:
        return self._given >= self._updates * self._accumulation

    def _begin_round(self) -> None:
        self._round, self._given = [], 0

    def _next_batch(self) -> Batch | None:
        """A batch to learn from; None where there is none and a stop was asked for."""
        for _ in range(EMPTY_STEPS):
            began = time.perf_counter()
            rollouts = self.worker.roll_out()
            if any(each.completion.token_ids for each in rollouts):
                seconds = getattr(self.worker, "rollout_seconds", time.perf_counter() - began)  # without its hooks
                return self._made(rollouts, seconds)
            if self._stops():
                return None
        raise PolicyError(
            f"{EMPTY_STEPS} rollout steps in a row gave nothing to learn from: no task, no completion, or no reward. "
            "The rows of the rollouts, and faults/ in them, say which."
        )

    def _made(self, rollouts: list[Rollout], seconds: float) -> Batch:
        device = next(self.model.parameters()).device
        stale = max(self.worker.latest_version - each.version for each in rollouts)
        is_processed = self._sampling.is_processed
        is_known = all(each.completion.sampled_logprobs for each in rollouts if each.completion.token_ids)
        batch = rollout_batch(rollouts, pad_id=self._pad_id, device=device, as_sampled=is_processed and is_known)
        if is_processed and not is_known:
            self._require_newest(stale)
            with set_to_evaluate(self.model):  # as the policy wrote
                batch["old"] = self._logprobs(self.model, batch)
        if self._reference is not None:
            reference = self._reference.to(device)  # it was copied before the model was moved
            batch["reference"] = self._logprobs(reference, batch)
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
        """Log-probabilities of older weights cannot be computed: refuse at the first batch, if there may be such."""
        allowed = getattr(self.worker, "max_staleness", 0)
        if stale > 0 or allowed > 0:
            raise OptionError(
                f"temperature={self._sampling.temperature!r} and top_p={self._sampling.top_p!r} with rollouts of older "
                f"weights (max_staleness={allowed}, {max(stale, 0)} versions behind now): the log-probabilities that "
                "they were sampled with are not known. Give max_staleness=0, a temperature and top_p of 1, or a "
                "policy that gives sampled_logprobs, as HFPolicy does."
            )


def _fingerprint(model: Any) -> list[float]:
    """Something that is the same for the same weights, but for rounding, and hardly for others."""
    return [float(parameter.detach().double().sum()) for parameter in model.parameters()]


def _is_of(fingerprint: list[float], model: Any) -> bool:
    """Whether it is that of the model: sums are rounded otherwise with other threads or on another device."""
    sizes = [float(parameter.detach().double().abs().sum()) for parameter in model.parameters()]
    return len(fingerprint) == len(sizes) and all(
        math.isclose(saved, own, rel_tol=0, abs_tol=ROUNDING * size)
        for saved, own, size in zip(fingerprint, _fingerprint(model), sizes, strict=True)
    )


def frozen_copy(model: Any) -> Any:
    """The model as it is now, which nobody trains."""
    reference = copy.deepcopy(model).eval()
    for parameter in reference.parameters():
        parameter.requires_grad_(False)
    return reference


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
            self.rollout_worker.attach_to(self)
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
