"""`RolloutStream`: the data of a learner, made while it learns by a `RolloutSource`, in this process or in others.

An optimizer step learns from ``accumulation`` rollout steps, which form a round. Each of them is divided into
``mini_batches``, each mini-batch is learnt from ``updates`` times, and goes through the model in micro-batches:

    round = accumulation rollout steps
    for each of the updates, for each of the mini-batches: one optimizer step
        for each rollout step of the round, for each micro-batch of its mini-batch: one forward and backward

The state of the stream includes the rollouts that are still needed, so a resume may begin within a round. A round that
a stop request leaves incomplete is made again from its first rollout step.

Several processes make rollouts of their own, as many steps as each other, and agree on everything that collectives
depend on: how many micro-batches there are, and whether log-probabilities have to be computed.
"""

import copy
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from hookline._engine.errors import CheckpointError, OptionError
from hookline.loops import distributed
from hookline.loops.distributed import ProcessGroup
from hookline.loops.session import Session
from hookline.loops.training_step import combined
from hookline.rl.learner.batch import Batch, empty_like, mini_batches
from hookline.rl.learner.config import GRPOConfig
from hookline.rl.learner.loss import Facts, Span, entropy_threshold, importance_weights
from hookline.rl.learner.reference import Reference
from hookline.rl.policies.base import PolicyError
from hookline.rl.rollouts.scoring import AdvantageOptions, rollout_metrics, set_advantages, zero_variance_groups
from hookline.rl.types import Rollout, Sampling

logger = logging.getLogger("hookline")

MAX_EMPTY_STEPS = 100
"""The stream gives up after this many rollout steps in a row without usable rollouts."""


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

    def share_results(self, gather: Callable[[Any], list[Any]]) -> None:
        """Count the results of all processes in the curriculum; called in all of them after each step."""

    def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Use new weights from now on."""

    def close_hooks(self) -> None:
        """Close the hooks, and make no more rollouts. Further calls do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the rollouts."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""


class Computer(Protocol):
    """Computes log-probabilities for a stream, without gradients: the learner."""

    processes: ProcessGroup
    advantages: AdvantageOptions

    def policy_logprobs(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies under the present weights, without dropout."""

    def reference_logprobs(self, batch: Batch) -> torch.Tensor:
        """Return log-probabilities under the reference model."""

    def agree_on_more(self, more: bool) -> tuple[bool, bool]:
        """Return whether any process needs another rollout step, and whether all of them are to stop."""

    def note_unused(self, rollouts: Sequence[Rollout], outcome: str) -> None:
        """Record that nothing is learnt from these rollouts."""


@dataclass(slots=True)
class GeneratedBatch:
    """The rollouts to learn from, and what was made for them.

    Attributes:
        steps: The number of rollout steps.
        tokens: The number of generated tokens.
        seconds: The seconds by what they were spent on.
        groups: The number of groups, and how many of them have equal rewards or were too many.
    """

    rollouts: list[Rollout] = field(default_factory=list)
    steps: int = 0
    tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    groups: int = 0
    equal_groups: int = 0
    discarded_groups: int = 0


class RolloutStream:
    """An endless iterable of micro-batches.

    Args:
        worker: Makes the rollouts.
        learner: Computes what rollouts lack.
        config: The settings of the loss.
        pad_id: The padding token.
        sampling: The settings of the sampling. If it is processed, log-probabilities are the ``sampled_logprobs`` of
            the completions.
        device: Returns where the model is.
        accumulation: How many rollout steps an optimizer step learns from.
        max_tokens: The largest number of tokens of a completion.
        reference: The reference model, if any.
    """

    is_shared_out = True
    """Each process has its own batches: a Trainer must not share them out among the processes."""

    def __init__(
        self,
        worker: RolloutSource,
        learner: Computer,
        *,
        config: GRPOConfig,
        pad_id: int,
        sampling: Sampling,
        device: Callable[[], Any],
        accumulation: int = 1,
        max_tokens: int = 1,
        reference: Reference | None = None,
    ) -> None:
        self.worker, self._learner, self._config = worker, learner, config
        self._pad_id, self._sampling, self._device = pad_id, sampling, device
        self._accumulation, self._max_tokens, self._reference = accumulation, max_tokens, reference
        self._round: list[dict[str, Any]] = []
        self._used = 0  # optimizer steps of the round that are complete
        self._worker_before: dict[str, Any] | None = None  # the worker's state before a round that is incomplete
        self._window_began = 0.0
        self._has_warned = False
        self.is_open = False
        """Whether a step is being prepared, or was and is not complete yet."""

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.is_open = True
            if self._round_is_over():
                self._begin_round()
            if not self._round:
                self._worker_before = copy.deepcopy(self.worker.state_dict())
            while len(self._round) < self._accumulation:
                generated = self._generate()
                if generated is None:
                    self._begin_round()
                    self.is_open = False  # a checkpoint is of the state before the round
                    return
                self._round.append(self._prepared(generated))
            self._worker_before = None
            self._window_began = time.perf_counter()
            yield from self._window()

    def set_old_logprobs(self, batch: Batch, logprobs: torch.Tensor) -> None:
        """Set the log-probabilities that later updates compare a micro-batch with."""
        step, part, index = batch["place"]
        self._round[step]["parts"][part][index] |= {"old": logprobs, "is_fresh": False}

    @property
    def samples(self) -> list[str]:
        """The names of the recorded samples that the present optimizer step learns from."""
        part = self._used % self._config.mini_batches
        return [name for made in self._round for batch in made["parts"][part] for name in batch["samples"]]

    def complete_step(self) -> tuple[dict[str, Any], float, bool]:
        """Count an optimizer step.

        Returns the metrics of its rollouts, the seconds since they were there, and whether new ones are needed next.
        """
        several = [made["metrics"] for made in self._round]
        metrics = dict(several[0]) if len(several) == 1 else combined(several, [1 / len(several)] * len(several))
        if not self._used:  # otherwise these seconds belong to an earlier step
            names = dict.fromkeys(name for made in self._round for name in made["seconds"])
            metrics |= {name: sum(made["seconds"].get(name, 0.0) for made in self._round) for name in names}
        self._used += 1
        self.is_open = False
        return metrics, time.perf_counter() - self._window_began, self._round_is_over()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the worker, and the rollouts that are still needed."""
        steps, used = ([], 0) if self._round_is_over() else (self._round, self._used)
        reference = self._fixed_reference
        return {
            "worker": self.worker.state_dict() if self._worker_before is None else self._worker_before,
            "round": {"steps": steps, "used": used, **self._shape()},
            "reference": None if reference is None else reference.fingerprint(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            CheckpointError: The reference model is not the saved one.
        """
        reference, saved = self._fixed_reference, state["reference"]
        if reference is not None and saved is not None and not reference.has_fingerprint(saved):
            raise CheckpointError(
                "beta: the reference is the model at the start of the training, and the given model is another. Give "
                "the model that the training started with."
            )
        self.worker.load_state_dict(state["worker"])
        self._worker_before = None
        self._begin_round()
        saved_round = state["round"]
        # With other settings or another number of processes, the saved round does not fit: a new one is generated.
        if {name: saved_round.get(name) for name in self._shape()} == self._shape():
            self._round, self._used = list(saved_round["steps"]), saved_round["used"]
        self.is_open = False

    @property
    def _fixed_reference(self) -> Reference | None:
        """The reference model, if it is the initial one; of any other, the learner's checkpoint has the weights."""
        return None if self._config.sync_ref_model else self._reference

    def _round_is_over(self) -> bool:
        return self._used >= self._config.updates * self._config.mini_batches

    def _shape(self) -> dict[str, Any]:
        """Return the settings under which a saved round is valid."""
        own = {"rank": distributed.rank(), "world_size": distributed.world_size()}
        return own | {"accumulation": self._accumulation, "mini_batches": self._config.mini_batches}

    def _begin_round(self) -> None:
        self._round, self._used = [], 0

    def _window(self) -> Iterator[Batch]:
        """Yield the micro-batches of one optimizer step."""
        part = self._used % self._config.mini_batches
        own = [made["parts"][part] for made in self._round]
        totals = [float(sum(batch[name] for batches in own for batch in batches)) for name in ("tokens", "sequences")]
        processes = self._learner.processes
        tokens, sequences = (max(1.0, total) / processes.size() for total in processes.add_up(totals))
        count = sum(map(len, own))
        for step, batches in enumerate(own):
            local_tokens = max(1, sum(batch["tokens"] for batch in batches))
            shared: Batch = {
                "span": Span(tokens, sequences, local_tokens, len(own), self._max_tokens),
                "parts": count,
                "is_last_use": self._used >= (self._config.updates - 1) * self._config.mini_batches,
            }
            if self._config.top_entropy_quantile < 1 and (len(batches) > 1 or processes.size() > 1):
                shared |= self._entropy_selection(batches)
            for index, batch in enumerate(batches):
                is_last = step == len(own) - 1 and index == len(batches) - 1
                yield {**batch, **shared, "place": (step, part, index), "ends_step": is_last}

    def _entropy_selection(self, batches: list[Batch]) -> Batch:
        """Return the entropy from which on tokens are learnt from, and the number of such tokens here."""
        # In a separate pass, since the threshold spans all micro-batches and processes.
        own = torch.cat([self._learner.policy_logprobs(batch)[1][batch["mask"] > 0] for batch in batches])
        everyones = torch.cat(self._learner.processes.gather(own.cpu())).to(own.device)
        threshold = entropy_threshold(self._config, everyones)
        return {"entropy_threshold": threshold, "acting_tokens": (own >= threshold).sum().clamp(min=1)}

    def _generate(self) -> GeneratedBatch | None:
        """Return rollouts of at least one step; None if there are none and a stop is requested."""
        made = GeneratedBatch()
        latest: list[Rollout] = []
        generated: list[Rollout] = []
        empty_steps, target, is_enough = 0, 0, False
        while True:
            rollouts = self._roll_out(made)
            usable = [each for each in rollouts if each.completion.token_ids]
            equal = zero_variance_groups(rollouts)
            empty_steps = 0 if usable and equal else empty_steps + 1
            latest = usable if equal else latest
            made.groups, made.equal_groups = made.groups + len(equal), made.equal_groups + sum(equal.values())
            if self._config.dynamic_sampling:
                target = target or len(equal)
                generated += usable
                made.rollouts += [each for each in usable if not equal.get(each.task.id, True)]
                is_full = target > 0 and len({each.task.id for each in made.rollouts}) >= target
                is_enough = is_full or (bool(latest) and made.steps >= self._config.max_generation_batches)
            elif not is_enough:  # otherwise another process needs a further step
                made.rollouts, is_enough = rollouts, bool(usable and equal)
            more, is_stopping = self._learner.agree_on_more(not is_enough)
            if not more:
                break
            if is_stopping:
                return None
            if empty_steps >= MAX_EMPTY_STEPS:
                raise PolicyError(
                    f"{MAX_EMPTY_STEPS} rollout steps in a row have no usable rollouts: no task, no completion, or no "
                    "reward. See the faults/ metrics of the rollouts."
                )
        if self._config.dynamic_sampling:
            varied = {id(each) for each in made.rollouts}
            self._cut(made, target, latest)
            kept = {id(each) for each in made.rollouts}
            unused = [each for each in generated if id(each) not in kept]
            self._learner.note_unused([each for each in unused if id(each) in varied], "surplus")
            self._learner.note_unused([each for each in unused if id(each) not in varied], "equal_rewards")
        return made

    def _roll_out(self, made: GeneratedBatch) -> list[Rollout]:
        began = time.perf_counter()
        rollouts = self.worker.roll_out()
        # Without the hooks of the worker, where it says how long its parts took.
        seconds: Mapping[str, float] = getattr(self.worker, "step_seconds", {"generate": time.perf_counter() - began})
        for name, own in seconds.items():
            made.seconds[name] = made.seconds.get(name, 0.0) + own
        made.steps += 1
        made.tokens += sum(each.completion.length for each in rollouts)
        if self._learner.processes.size() > 1:
            self.worker.share_results(self._learner.processes.gather)
        return rollouts

    def _cut(self, made: GeneratedBatch, target: int, latest: list[Rollout]) -> None:
        """Leave out the groups that are too many; where all groups are equal, keep those of the last step."""
        groups = list(dict.fromkeys(each.task.id for each in made.rollouts))
        kept, made.discarded_groups = set(groups[:target]), max(0, len(groups) - target)
        made.rollouts = [each for each in made.rollouts if each.task.id in kept]
        if not made.rollouts:
            made.rollouts = latest
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "dynamic_sampling: all groups of %d rollout steps have equal rewards, so nothing is learnt from "
                    "them. The tasks are too easy or too hard.",
                    made.steps,
                )

    def _prepared(self, made: GeneratedBatch) -> dict[str, Any]:
        """Return rollouts as mini-batches, with the log-probabilities that the loss needs."""
        config, processes, rollouts = self._config, self._learner.processes, made.rollouts
        options = self._learner.advantages
        if options.spans_batch or any(each.advantage is None for each in rollouts):
            set_advantages(rollouts, options, gather=processes.gather)
        is_processed = self._sampling.is_processed
        known = not is_processed or all(each.completion.sampled_logprobs for each in rollouts)
        stale = max(self.worker.latest_version - each.version for each in rollouts)
        everyones = processes.gather((known, stale))
        known, oldest = all(each for each, _ in everyones), max(age for _, age in everyones)
        if not known:
            self._require_newest(oldest)
        parts = mini_batches(
            rollouts,
            config.mini_batches,
            pad_id=self._pad_id,
            micro_batch_size=config.micro_batch_size,
            as_sampled=is_processed if known else None,
            mask_truncated=config.mask_truncated_completions,
            device=self._device(),
        )
        needed = [max(counts) for counts in zip(*processes.gather([len(part) for part in parts]), strict=True)]
        for part, count in zip(parts, needed, strict=True):
            part += [empty_like(part[-1]) for _ in range(count - len(part))]
        facts = Facts()
        for number, part in enumerate(parts):
            for batch in part:
                # Of the newest weights, the first pass is compared with itself: its ratio is 1, also with dropout.
                batch["is_fresh"] = oldest <= 0 and number == 0
                self._add_logprobs(batch, facts, known=known)
        metrics = rollout_metrics(rollouts) | {
            "policy/version": min(each.version for each in rollouts),
            "policy/staleness": stale,
            "tokens_per_second": made.tokens / max(sum(made.seconds.values()), 1e-9),
            "groups/zero_variance": made.equal_groups / max(1, made.groups),
            **{name: value.item() for name, value in facts.values().items()},
        }
        if config.dynamic_sampling:
            metrics |= {"groups/dropped": made.equal_groups, "groups/discarded": made.discarded_groups}
            metrics["groups/rollout_steps"] = made.steps
        seconds = {f"seconds/{name}": own for name, own in made.seconds.items()}
        return {"parts": parts, "metrics": metrics, "seconds": seconds}

    def _add_logprobs(self, batch: Batch, facts: Facts, *, known: bool) -> None:
        """Add the log-probabilities of a micro-batch that it is compared with, and the weights of its tokens."""
        config, reported = self._config, batch.pop("reported", None)
        is_exact = known and self.worker.exact_logprobs
        corrects = known and not is_exact and config.vllm_importance_sampling_correction
        if corrects or (config.mini_batches > 1 and not is_exact):
            batch["old"] = self._learner.policy_logprobs(batch)[0]
        else:  # what is unknown is set by the first pass
            batch["old"] = torch.zeros_like(batch["mask"]) if reported is None else reported
        if corrects:
            batch["importance"] = importance_weights(config, batch["old"], reported, batch["mask"], facts)
        if config.off_policy_mask_threshold is not None and known and not is_exact:
            batch["sampled"] = reported
        if self._reference is not None:
            batch["reference"] = self._learner.reference_logprobs(batch)

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
