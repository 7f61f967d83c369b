"""The losses of GRPO (group-relative policy optimization) and its relatives, by TRL's names.

The completions of one prompt form a group, and the advantage A of each is its reward relative to the group: see
`hookline.rl.rollouts.scoring`. With r the ratio of a token's probability to that under the policy that generated it,
every loss raises the probability of tokens with a positive advantage and lowers that of others:

    grpo, bnpo, dapo, dr_grpo, luspo    -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A), r at most delta
    cispo                               -min(r, epsilon_high) A log p, without a gradient through r
    sapo                                -sigmoid(tau (r - 1)) 4 / tau A, tau by the sign of A
    vespo                               -phi A log p, phi a function of the ratio of the sequence

These are `policy_losses`. `grpo_loss` multiplies them by masks and weights, adds the divergence from a reference model
and the entropy, weighted by `EntropyControl`, and divides by a `Span`, so that the parts of micro-batches and processes
add up to the loss of the whole. Where a mask is 0, all other values are ignored, even if they are not finite.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookline.loops.distributed import ProcessGroup
from hookline.rl.learner.config import GRPOConfig


@dataclass(frozen=True, slots=True)
class Span:
    """The divisors of an optimizer step's losses.

    Gradients are averaged over the processes, so totals over all of them are divided by their number.

    Attributes:
        tokens: The tokens of all its rollout steps and processes, per process.
        sequences: The completions of all its rollout steps and processes, per process.
        local_tokens: The tokens of the rollout step and the process that a micro-batch is of.
        rollout_steps: How many rollout steps the optimizer step learns from.
        max_tokens: The largest number of tokens of a completion.
    """

    tokens: float
    sequences: float
    local_tokens: float
    rollout_steps: int = 1
    max_tokens: int = 1


class Facts:
    """Means, minima and maxima over the micro-batches of an optimizer step, which stay on the device until then."""

    def __init__(self) -> None:
        self._means: dict[str, tuple[Tensor, Tensor]] = {}
        self._extremes: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {}

    def add_mean(self, name: str, values: Tensor, mask: Tensor | None = None) -> None:
        """Add values of tokens where the mask is 1; without a mask, and of whole sequences, each counts once."""
        if mask is None or values.shape[1] != mask.shape[1]:
            mask = torch.ones_like(values)
        total, count = values.detach().masked_fill(mask == 0, 0).sum(), mask.sum()
        if name in self._means:
            total, count = total + self._means[name][0], count + self._means[name][1]
        self._means[name] = total, count

    def add_minimum(self, name: str, values: Tensor) -> None:
        """Add values of which the smallest counts; infinite ones do not."""
        self._add_extreme(name, torch.amin, values.masked_fill(~values.isfinite(), math.inf))

    def add_maximum(self, name: str, values: Tensor) -> None:
        """Add values of which the largest counts; infinite ones do not."""
        self._add_extreme(name, torch.amax, values.masked_fill(~values.isfinite(), -math.inf))

    def _add_extreme(self, name: str, choose: Callable[[Tensor], Tensor], values: Tensor) -> None:
        own = choose(values.detach())
        if name in self._extremes:
            own = choose(torch.stack([own, self._extremes[name][1]]))
        self._extremes[name] = choose, own

    def total(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the sum and the count of a mean."""
        return self._means[name]

    def values(self) -> dict[str, Tensor]:
        """Return everything by name; an extreme of no values is 0."""
        means = {name: total / count.clamp(min=1) for name, (total, count) in self._means.items()}
        return means | {name: value.masked_fill(value.isinf(), 0) for name, (_, value) in self._extremes.items()}


def grpo_loss(
    config: GRPOConfig,
    logprobs: Tensor,
    entropy: Tensor,
    batch: Mapping[str, Any],
    span: Span,
    facts: Facts,
    *,
    entropy_coef: float = 0.0,
) -> Tensor:
    """Return a micro-batch's part of the loss of an optimizer step.

    Args:
        logprobs: The log-probability of each token under the policy in training.
        entropy: The entropy of the distribution of each token.
        batch: ``mask``, ``advantages`` and ``old`` log-probabilities, and as far as the settings need them
            ``reference`` and ``sampled`` log-probabilities and ``importance`` weights. If the rollout step has further
            micro-batches, also its ``entropy_threshold`` and the number of its tokens above, ``acting_tokens``.
        span: What the loss is divided by.
        facts: Gets the numbers to record.
        entropy_coef: The weight of the entropy in this step.
    """
    mask, advantages = batch["mask"], batch["advantages"][:, None]
    outside = mask == 0
    logprobs = logprobs.masked_fill(outside, 0)
    log_ratio = (logprobs - batch["old"]).masked_fill(outside, 0)  # masked before exp(): an overflow times 0 is NaN
    of_tokens = config.importance_sampling_level == "token"
    ratio = (log_ratio if of_tokens else _mean_over_tokens(log_ratio, mask)).exp()
    losses = policy_losses(config, logprobs, log_ratio, ratio, batch, facts)
    facts.add_mean("ratio", ratio, mask)
    facts.add_mean("entropy", entropy, mask)

    if config.off_policy_mask_threshold is not None:
        moved = (batch.get("sampled", batch["old"]) - logprobs.detach()).masked_fill(outside, 0).nan_to_num(nan=0.0)
        kept = (advantages >= 0) | (_mean_over_tokens(moved, mask) <= config.off_policy_mask_threshold)
        losses = losses * kept
        facts.add_mean("off_policy/masked", ~kept, mask)
    acting, acting_tokens = mask, span.local_tokens
    if config.top_entropy_quantile < 1:
        threshold = batch.get("entropy_threshold")
        if threshold is None:
            threshold = entropy_threshold(config, entropy.detach()[mask > 0])
        acting = mask * (entropy.detach() >= threshold)
        acting_tokens = batch.get("acting_tokens", acting.sum().clamp(min=1))
        losses = losses * acting
    if "importance" in batch and config.loss_type != "vespo":
        losses = losses * batch["importance"]
    if config.beta:
        behind = (batch["reference"] - logprobs).masked_fill(outside, 0)
        divergence = behind.exp() - behind - 1  # an unbiased estimate that is never negative
        if config.use_bias_correction_kl:
            divergence = divergence * ratio
        losses = losses + config.beta * divergence
        facts.add_mean("kl", divergence, mask)

    loss = _divided(config, losses.masked_fill(outside, 0), mask, span)
    if config.uses_entropy_bonus:
        facts.add_mean("policy_loss", loss * batch.get("parts", 1))
        facts.add_mean("entropy/acting", entropy, acting)
        bonus = entropy.masked_fill(acting == 0, 0).sum() / (acting_tokens * span.rollout_steps)
        loss = loss - entropy_coef * bonus
    return loss


def entropy_threshold(config: GRPOConfig, entropies: Tensor) -> Tensor:
    """Return the entropy from which on tokens are learnt from, given those of all tokens of a rollout step."""
    if not entropies.numel():
        return entropies.new_tensor(math.inf)
    return torch.quantile(entropies, 1 - config.top_entropy_quantile)


def policy_losses(
    config: GRPOConfig,
    logprobs: Tensor,
    log_ratio: Tensor,
    ratio: Tensor,
    batch: Mapping[str, Any],
    facts: Facts,
) -> Tensor:
    """Return the loss of each token, or of each sequence where there is one ratio for all of its tokens."""
    mask, advantages = batch["mask"], batch["advantages"][:, None]
    if config.loss_type == "cispo":
        facts.add_mean("cispo_clip_ratio", (ratio > config.upper_epsilon) & (advantages > 0), mask)
        return -ratio.clamp(max=config.upper_epsilon).detach() * advantages * logprobs
    if config.loss_type == "sapo":
        temperature = torch.where(advantages > 0, config.sapo_temperature_pos, config.sapo_temperature_neg)
        return -torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * advantages
    if config.loss_type == "vespo":
        weight = vespo_weights(config, log_ratio, advantages, batch.get("importance"))
        facts.add_mean("vespo/phi_seq_mean", weight, mask)
        return -weight * advantages * logprobs
    clipped = ratio.clamp(1 - config.epsilon, 1 + config.upper_epsilon)
    if config.delta is not None:
        ratio = ratio.clamp(max=config.delta)
    _add_clip_facts(config, ratio.detach(), advantages, mask, facts)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def vespo_weights(config: GRPOConfig, log_ratio: Tensor, advantages: Tensor, importance: Tensor | None) -> Tensor:
    """Return the weight of each sequence in "vespo": e^lambda w^k e^(-lambda w), w the ratio of the whole sequence.

    It has no gradient.

    Args:
        importance: The weights of tokens that correct what generated them, if any; they are part of the ratio.
    """
    lowest, highest = math.log(1e-8), 20.0
    total = log_ratio.detach().clamp(-20.0, highest).sum(-1, keepdim=True)
    if importance is not None:
        total = total + importance.log().clamp(lowest, highest).sum(-1, keepdim=True)
    log_weight = total.clamp(lowest, highest)
    is_positive = advantages >= 0
    k = torch.where(is_positive, config.vespo_k_pos, config.vespo_k_neg)
    decay = torch.where(is_positive, config.vespo_lambda_pos, config.vespo_lambda_neg).clamp(min=1e-4)
    log_phi = decay + k * log_weight - decay * log_weight.exp()
    return log_phi.exp().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def importance_weights(config: GRPOConfig, old: Tensor, sampled: Tensor, mask: Tensor, facts: Facts) -> Tensor:
    """Return weights that correct the difference between what generated tokens and what learns from them.

    They have a column for each token, or one for a whole sequence. A token without a log-probability (NaN) counts as if
    there were no difference.

    Args:
        old: The log-probabilities under the learner's weights.
        sampled: Those that the policy reported.
    """
    difference = (old - sampled).masked_fill(mask == 0, 0)
    known = mask * ~difference.isnan()
    difference = difference.nan_to_num(nan=0.0)
    facts.add_mean("sampling/sampling_logp_difference/mean", difference.abs(), known)
    facts.add_maximum("sampling/sampling_logp_difference/max", difference.abs())
    is_of_sequence = config.vllm_importance_sampling_mode.startswith("sequence")
    weights = (difference.sum(-1, keepdim=True) if is_of_sequence else difference).exp()
    low, high = config.vllm_importance_sampling_clip_min, config.vllm_importance_sampling_clip_max
    if config.vllm_importance_sampling_mode.endswith("truncate"):
        weights = weights.clamp(low, high)
    else:
        is_outside = (weights < (-math.inf if low is None else low)) | (weights > (math.inf if high is None else high))
        weights = weights.masked_fill(is_outside, 0.0)
    facts.add_mean("sampling/importance_sampling_ratio/mean", weights, mask)
    counted = weights if is_of_sequence else weights.masked_fill(mask == 0, math.inf)
    facts.add_minimum("sampling/importance_sampling_ratio/min", counted)
    facts.add_maximum("sampling/importance_sampling_ratio/max", counted)
    return weights


def _add_clip_facts(config: GRPOConfig, ratio: Tensor, advantages: Tensor, mask: Tensor, facts: Facts) -> None:
    """Add the shares of tokens whose clipping takes effect: beyond the band in the direction of their advantage."""
    is_low = (ratio < 1 - config.epsilon) & (advantages < 0)
    is_high = (ratio > 1 + config.upper_epsilon) & (advantages > 0)
    facts.add_mean("clip_ratio/low_mean", is_low, mask)
    facts.add_mean("clip_ratio/high_mean", is_high, mask)
    for name in ("clip_ratio/region_mean", "clip_share"):
        facts.add_mean(name, is_low | is_high, mask)
    has_tokens = mask.any(-1, keepdim=True)
    low, high = (_mean_over_tokens(each.float(), mask).masked_fill(~has_tokens, math.inf) for each in (is_low, is_high))
    facts.add_minimum("clip_ratio/low_min", low)
    facts.add_maximum("clip_ratio/high_max", high)


def _mean_over_tokens(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of each sequence, in one column; values per sequence are returned unchanged."""
    if values.shape[1] != mask.shape[1]:
        return values
    return (values * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)


def _divided(config: GRPOConfig, losses: Tensor, mask: Tensor, span: Span) -> Tensor:
    """Return the sum of the losses of tokens, divided as the type of the loss requires."""
    if config.loss_type in ("grpo", "sapo"):
        return _mean_over_tokens(losses, mask).sum() / span.sequences
    divisor = {
        "bnpo": span.local_tokens * span.rollout_steps,
        "dr_grpo": span.sequences * span.max_tokens,
        "luspo": span.sequences,
    }
    return (losses * mask).sum() / divisor.get(config.loss_type, span.tokens)


class EntropyControl:
    """The weight of the entropy in the loss, constant or adapted to keep the entropy above a target.

    As in Skywork-OR1 and TRL, the weight changes by a constant after each optimizer step, and only counts in a step if
    the entropy of the previous one was at or below the target. The first step has no such entropy, and no bonus.

    Attributes:
        coef: The weight, adapted or constant.
    """

    def __init__(self, config: GRPOConfig) -> None:
        self._config = config
        self.coef = config.entropy_coef
        self._latest = math.inf

    @property
    def applied(self) -> float:
        """The weight in the step in progress."""
        if self._config.use_adaptive_entropy and self._latest > self._config.entropy_target:
            return 0.0
        return self.coef

    def adapt(self, total: Tensor, count: Tensor, processes: ProcessGroup) -> None:
        """Adapt the weight to the entropy of a step; a collective.

        Args:
            total: The sum of the entropies of the tokens of this process.
            count: The number of these tokens.
        """
        if not self._config.use_adaptive_entropy:
            return
        entropy, tokens = processes.add_up([float(total), float(count)])
        self._latest = entropy / max(1.0, tokens)
        step = self._config.entropy_coef_delta
        changed = self.coef + (step if self._latest <= self._config.entropy_target else -step)
        self.coef = min(max(changed, self._config.entropy_coef_min), self._config.entropy_coef_max)

    def state_dict(self) -> dict[str, Any]:
        """Return the weight and the latest entropy."""
        return {"coef": self.coef, "latest": self._latest} if self._config.use_adaptive_entropy else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; without one, from the settings."""
        if self._config.use_adaptive_entropy:
            self.coef, self._latest = state.get("coef", self.coef), state.get("latest", self._latest)
