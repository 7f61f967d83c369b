"""GRPO's arithmetic: properties of the losses, advantages of groups, batches that line up with the model.

That losses and gradients are those of TRL is shown in `test_grpo_equals_trl`.
"""

import math
import random
from dataclasses import replace
from statistics import pstdev, stdev
from types import SimpleNamespace
from typing import Any

import pytest

from hookline import rl
from hookline._engine.errors import OptionError
from hookline.rl.rollouts.scoring import EPSILON, AdvantageOptions, group_advantages, rollout_metrics, set_advantages

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hookline.rl.learner import logprobs as logprobs_module  # noqa: E402
from hookline.rl.learner.batch import mini_batches  # noqa: E402
from hookline.rl.learner.logprobs import token_logprobs  # noqa: E402
from hookline.rl.learner.loss import Facts, Span, grpo_loss, importance_weights  # noqa: E402
from hookline.testing import character_tokenizer, tiny_causal_lm  # noqa: E402

torch.set_num_threads(1)

LOSSES = ("dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo")
EVERYTHING = {
    "beta": 0.1,
    "entropy_coef": 0.1,
    "off_policy_mask_threshold": 0.1,
    "top_entropy_quantile": 0.8,
    "epsilon_high": 1.2,
    "delta": 1.5,
}
"""Settings with which every number of a batch is used."""


def numbers(seed, rows=6, places=9):
    """The log-probabilities of a policy, and a batch of everything that they are compared with."""
    generator = torch.Generator().manual_seed(seed)

    def near(logprobs):
        return logprobs + 0.4 * torch.randn(rows, places, generator=generator, dtype=torch.float64)

    logprobs = -3 * torch.rand(rows, places, generator=generator, dtype=torch.float64)
    batch = {"old": near(logprobs), "reference": near(logprobs), "sampled": near(logprobs)}
    batch["importance"] = near(torch.ones_like(logprobs))
    batch["advantages"] = torch.randn(rows, generator=generator, dtype=torch.float64)
    batch["mask"] = (torch.rand(rows, places, generator=generator) < 0.7).double()
    return logprobs.requires_grad_(), batch


def result(logprobs, batch, **options):
    """The loss, its gradient by the log-probabilities, and the facts."""
    mask, facts = batch["mask"], Facts()
    span = Span(tokens=max(1.0, mask.sum().item()), sequences=len(mask), local_tokens=max(1.0, mask.sum().item()))
    entropy = logprobs.square()
    loss = grpo_loss(rl.GRPOConfig(**options), logprobs, entropy, batch, span, facts, entropy_coef=0.1)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), gradient, facts.values()


def of_one_token(ratio, advantage, **options):
    batch = {"old": torch.zeros(1, 1), "mask": torch.ones(1, 1), "advantages": torch.tensor([advantage]).double()}
    logprobs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    return result(logprobs, batch, **options)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.0, 1.0, True),
        (1.5, 1.0, False),
        (0.5, 1.0, True),
        (0.5, -1.0, False),
        (1.5, -1.0, True),
        (1.19, 1.0, True),
        (0.81, -1.0, True),
    ],
)
def test_grpo_loss_moves_a_token_only_as_far_as_the_clip_in_the_direction_of_its_advantage(ratio, advantage, moves):
    _, gradient, facts = of_one_token(ratio, advantage)
    assert gradient.item() == pytest.approx(-ratio * advantage if moves else 0.0)
    assert facts["clip_share"] == facts["clip_ratio/region_mean"] == (not moves)
    assert facts["clip_ratio/low_mean"] == (not moves and ratio < 1)
    assert facts["clip_ratio/high_mean"] == (not moves and ratio > 1)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_grpo_loss_at_the_policy_that_generated_is_the_policy_gradient_in_every_form(loss_type):
    logprobs, batch = numbers(2)
    mask, advantages = batch["mask"], batch["advantages"][:, None]
    batch = {"old": logprobs.detach(), "mask": mask, "advantages": batch["advantages"]}
    _, gradient, facts = result(logprobs, batch, loss_type=loss_type, epsilon_high=1.0)
    lengths = mask.sum(-1, keepdim=True)
    divisor = {"grpo": lengths * len(mask), "sapo": lengths * len(mask), "luspo": len(mask), "dr_grpo": len(mask)}
    expected = -advantages * mask / divisor.get(loss_type, mask.sum())
    if loss_type == "sapo":  # the gate of a negative advantage is steeper; the slope of both is 1 where the ratio is 1
        assert rl.GRPOConfig().sapo_temperature_neg > rl.GRPOConfig().sapo_temperature_pos
        tau = torch.where(advantages > 0, 1.0, 1.05)
        expected = expected * 4 * torch.sigmoid(0 * tau) * (1 - torch.sigmoid(0 * tau))
    torch.testing.assert_close(gradient, expected)
    assert facts["ratio"] == 1.0


@pytest.mark.parametrize("loss_type", LOSSES)
def test_grpo_loss_tokens_outside_of_the_mask_get_no_gradient(loss_type):
    logprobs, batch = numbers(1)
    _, gradient, _ = result(logprobs, batch, **EVERYTHING, loss_type=loss_type)
    assert (gradient[batch["mask"] == 0] == 0).all()
    assert (gradient[batch["mask"] == 1] != 0).any()


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("number", [-1e3, 1e3, -math.inf, math.inf, math.nan])
def test_grpo_loss_extreme_number_outside_of_the_mask_changes_nothing(loss_type, level, number):
    logprobs, batch = numbers(1)
    options = {**EVERYTHING, "loss_type": loss_type, "importance_sampling_level": level}
    loss, gradient, facts = result(logprobs, batch, **options)
    for name in ("old", "reference", "sampled"):
        extreme = {**batch, name: batch[name].masked_fill(batch["mask"] == 0, number)}
        made = result(logprobs, extreme, **options)
        torch.testing.assert_close(made, (loss, gradient, facts), rtol=0, atol=0)


def test_grpo_loss_of_an_empty_mask_is_zero_and_finite():
    logprobs, batch = numbers(4)
    batch["mask"] = torch.zeros_like(batch["mask"])
    for loss_type in LOSSES:
        loss, gradient, facts = result(logprobs, batch, **EVERYTHING, loss_type=loss_type)
        assert (loss.item(), gradient.abs().sum().item()) == (0.0, 0.0)
        assert all(value.isfinite() for value in facts.values())


def test_grpo_loss_divergence_is_zero_at_the_reference_and_positive_elsewhere():
    logprobs, batch = numbers(3)
    same = {**batch, "reference": logprobs.detach()}
    kl = [result(logprobs, each, beta=1.0)[2]["kl"].item() for each in (same, batch)]
    assert (kl[0], kl[1] > 0) == (0.0, True)


def test_importance_weights_of_a_token_without_a_logprob_are_one():
    old, mask = torch.full((1, 3), -1.0), torch.tensor([[1.0, 1.0, 0.0]])
    sampled = torch.tensor([[math.nan, -2.0, -9.0]])
    facts = Facts()
    config = rl.GRPOConfig(vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_max=9.0)
    weights = importance_weights(config, old, sampled, mask, facts)
    assert weights.tolist() == [[1.0, pytest.approx(math.e), 1.0]]
    assert facts.values()["sampling/sampling_logp_difference/mean"] == 1.0


# Groups


@pytest.mark.parametrize("totals", [[1.0, 0.0, 0.0, 1.0], [0.1, 0.1, 0.1], [-3.5, 2.0, 1e200], [7.0]], ids=str)
def test_rollout_metrics_have_the_mean_and_deviation_of_rewards(totals):
    made = [rl.Rollout(rl.Task("1>"), rl.Completion("1", (5, 2)), {"own": each}, each) for each in totals]

    metrics = rollout_metrics(made)

    for name in ("reward", "rewards/own"):
        assert metrics[f"{name}/mean"] == pytest.approx(sum(totals) / len(totals), rel=1e-12)
        assert metrics[f"{name}/std"] == pytest.approx(pstdev(totals), rel=1e-12, abs=0)  # exactly 0 for equal ones


def test_group_advantages_are_distances_from_the_mean_in_standard_deviations_of_the_sample():
    totals, groups = [1.0, 0.0, 0.5, 3.0, 1.0], ["a", "a", "a", "b", "b"]
    advantages = group_advantages(totals, groups)
    expected = [(total - 0.5) / (stdev([1.0, 0.0, 0.5]) + EPSILON) for total in (1.0, 0.0, 0.5)]
    pair = 1 / (math.sqrt(2) + EPSILON)
    assert advantages == pytest.approx([*expected, pair, -pair])


def test_group_advantages_are_those_of_trl():
    utils = pytest.importorskip("trl.trainer.utils")
    rewards = torch.tensor([[1.0, 0.0, 0.5, 2.0], [3.0, 1.0, 1.0, 1.0]])
    expected = (rewards - rewards.mean(1, keepdim=True)) / (utils.nanstd(rewards, dim=1, keepdim=True) + 1e-4)
    advantages = group_advantages(rewards.flatten().tolist(), ["a"] * 4 + ["b"] * 4)
    assert advantages == pytest.approx(expected.flatten().tolist())


def test_group_advantages_unscaled_are_distances_from_the_mean():
    assert group_advantages([4.0, 0.0, 1.0], [1, 1, 2], scale=False) == [2.0, -2.0, 0.0]


@pytest.mark.parametrize("scale", [True, False])
def test_group_advantages_of_equal_rewards_are_exactly_zero(scale):
    for hundredths in range(100):  # the mean of seven of them is not always the number itself
        assert group_advantages([hundredths / 100] * 7, ["a"] * 7, scale=scale) == [0.0] * 7


def test_group_advantages_of_members_that_are_not_side_by_side_belong_to_their_group():
    assert group_advantages([1.0, 5.0, 3.0, 5.0], ["a", "b", "a", "b"], scale=False) == [-1.0, 0.0, 1.0, 0.0]


def test_group_advantages_of_nothing_are_nothing():
    assert group_advantages([], []) == []
    set_advantages([])


def scored(*totals, episode=""):
    return [
        rl.Rollout(
            rl.Task("1>"), rl.Completion("1"), {} if total is None else {"r": total}, total or 0.0, episode=episode
        )
        for total in totals
    ]


def test_set_advantages_leaves_rollouts_without_a_reward_out_of_the_baseline():
    rollouts = scored(4.0, None, 2.0)
    set_advantages(rollouts, AdvantageOptions(scale="none"))
    assert [each.advantage for each in rollouts] == [1.0, 0.0, -1.0]


def test_set_advantages_counts_the_branches_of_an_episode_once():
    rollouts = [*scored(4.0, 4.0, 4.0, episode="first"), *scored(2.0, episode="second")]
    set_advantages(rollouts, AdvantageOptions(scale="none"))
    assert [each.advantage for each in rollouts] == [1.0, 1.0, 1.0, -1.0]


def test_set_advantages_clip_is_the_largest_distance_from_zero():
    rollouts = scored(9.0, 1.0, 1.0, 1.0)
    set_advantages(rollouts, AdvantageOptions(scale="none", clip=2.5))
    assert [each.advantage for each in rollouts] == [2.5, -2.0, -2.0, -2.0]


def test_set_advantages_by_batch_uses_the_deviation_over_all_processes():
    rollouts, others = scored(3.0, 1.0), [5.0, 7.0]
    set_advantages(rollouts, AdvantageOptions(scale="batch"), gather=lambda own: [own, others])
    expected = 1 / (stdev([3.0, 1.0, *others]) + EPSILON)
    assert [each.advantage for each in rollouts] == pytest.approx([expected, -expected])


def test_set_advantages_of_rewards_normalized_first_are_weighted():
    rewards: list[dict[str, float]] = [{"a": 100.0, "b": 0.0}, {"a": 0.0, "b": 1.0}, {"a": 0.0, "b": 0.0}]
    rollouts = [rl.Rollout(rl.Task("1>"), rl.Completion("1"), own, sum(own.values())) for own in rewards]
    set_advantages(rollouts, AdvantageOptions(normalizes_first=True, reward_weights={"a": 1.0, "b": 1.0}))
    first, second, third = (each.advantage for each in rollouts)
    assert first == pytest.approx(second, abs=1e-3)  # 100 of one reward count as much as 1 of another
    assert third < 0
    set_advantages(rollouts, AdvantageOptions(normalizes_first=True, reward_weights={"a": 1.0, "b": 0.0}))
    assert rollouts[1].advantage == pytest.approx(rollouts[2].advantage)


# Batches


@pytest.fixture(scope="module")
def policy():
    tokenizer = character_tokenizer("0123456789>")
    model = tiny_causal_lm(tokenizer, hidden_size=32)
    with torch.no_grad():  # fresh weights find all tokens alike
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3, generator=generator)
    return rl.HFPolicy(model, tokenizer)


def rollouts_of(policy, prompts, sampling):
    groups = policy.generate(prompts, 3, sampling)
    return [
        rl.Rollout(rl.Task(prompt), completion, advantage=random.Random(str(completion.token_ids)).random())
        for prompt, group in zip(prompts, groups, strict=True)
        for completion in group
    ]


PROMPTS = ["1>", "4321>", "", "77777777>"]


def whole(rollouts, **options):
    """All rollouts as one micro-batch."""
    ((batch,),) = mini_batches(rollouts, 1, pad_id=0, **options)
    return batch


@pytest.mark.parametrize(
    "sampling",
    [
        rl.Sampling(max_tokens=7, seed=0),
        rl.Sampling(max_tokens=7, seed=1, temperature=0.7, top_p=0.8),
        rl.Sampling(max_tokens=7, seed=2, stop=["3"]),
    ],
)
@pytest.mark.parametrize("most_numbers", [1 << 24, 40])
def test_mini_batches_log_probabilities_of_the_model_equal_those_that_were_stored(
    policy, sampling, most_numbers, monkeypatch
):
    monkeypatch.setattr(logprobs_module, "CHUNK_NUMBERS", most_numbers)
    batch = whole(rollouts_of(policy, PROMPTS, sampling))
    with torch.no_grad():
        logprobs, entropy = token_logprobs(policy.model, batch["ids"], batch["first"])
    mask = batch["mask"].bool()
    torch.testing.assert_close(logprobs[mask], batch["reported"][mask], atol=1e-5, rtol=1e-5)
    assert logprobs.shape == entropy.shape == batch["mask"].shape
    assert (entropy[mask] > 0).all()


def test_mini_batches_have_the_tokens_of_each_completion_and_nothing_else(policy):
    rollouts = rollouts_of(policy, PROMPTS, rl.Sampling(max_tokens=7, seed=0))
    batch = whole(rollouts)
    for row, each in enumerate(rollouts):
        tokens = [*each.completion.prompt_ids, *each.completion.token_ids]
        assert batch["ids"][row, : len(tokens)].tolist() == tokens
        predicted = batch["ids"][row, batch["first"] :][batch["mask"][row].bool()]
        assert predicted.tolist() == list(each.completion.token_ids)
    assert batch["advantages"].tolist() == pytest.approx([each.advantage for each in rollouts])


def test_mini_batches_mask_the_tokens_of_the_environment_and_truncated_completions(policy):
    rollouts = rollouts_of(policy, ["12>"], rl.Sampling(max_tokens=4, seed=0))
    made = [
        replace(rollouts[0].completion, token_ids=[5, 6, 7, 8], logprobs=[0.0] * 4, mask=[1, 0, 0, 1], finish="stop"),
        replace(rollouts[1].completion, token_ids=[5, 6], logprobs=[0.0] * 2, finish="length"),
    ]
    given = [rl.Rollout(rl.Task("12>"), each, advantage=1.0) for each in made]
    assert whole(given)["mask"].tolist() == [[1, 0, 0, 1], [1, 1, 0, 0]]
    batch = whole(given, mask_truncated=True)
    assert (batch["mask"].tolist(), batch["tokens"]) == ([[1, 0, 0, 1], [0, 0, 0, 0]], 2)


def test_mini_batches_divide_by_rollouts_and_micro_batches_by_length(policy):
    rollouts = rollouts_of(policy, PROMPTS, rl.Sampling(max_tokens=7, seed=0))
    parts = mini_batches(rollouts, 3, pad_id=0, micro_batch_size=3)
    assert [[batch["sequences"] for batch in part] for part in parts] == [[2, 2], [2, 2], [2, 2]]
    advantages = [sorted(a for batch in part for a in batch["advantages"].tolist()) for part in parts]
    assert advantages == [
        pytest.approx(sorted(each.advantage for each in rollouts[start : start + 4])) for start in (0, 4, 8)
    ]
    widths = [batch["ids"].shape[1] for batch in parts[2]]
    assert widths == sorted(widths, reverse=True)


def test_mini_batches_of_fewer_rollouts_have_one_that_nothing_is_learnt_from(policy):
    rollouts = rollouts_of(policy, ["12>"], rl.Sampling(max_tokens=4, seed=0))[:1]
    empty, full = (part[0] for part in mini_batches(rollouts, 2, pad_id=0))
    assert (empty["tokens"], empty["sequences"], empty["mask"].sum()) == (0, 0, 0)
    assert full["sequences"] == 1


@pytest.mark.parametrize("most_numbers", [1 << 24, 40])
def test_token_logprobs_entropy_is_that_of_the_distribution_and_differentiable_on_request(
    policy, most_numbers, monkeypatch
):
    monkeypatch.setattr(logprobs_module, "CHUNK_NUMBERS", most_numbers)
    ids = torch.tensor([[1, 5, 6, 7, 8]])
    _, entropy = token_logprobs(policy.model, ids, 1, entropy_grad=True)
    distribution = torch.distributions.Categorical(logits=policy.model(ids).logits[0, :-1])
    torch.testing.assert_close(entropy[0], distribution.entropy())
    parameters = list(policy.model.parameters())
    own = torch.autograd.grad(entropy.sum(), parameters)
    expected = torch.autograd.grad(distribution.entropy().sum(), parameters)
    torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-4)
    assert not token_logprobs(policy.model, ids, 1)[1].requires_grad


class Fixed:
    """A model with given logits, which keeps the sizes of all it returned."""

    def __init__(self, logits: Any) -> None:
        self.logits, self.sizes = logits, []

    def forward(self, input_ids: Any, use_cache: bool, logits_to_keep: int) -> Any:
        self.sizes.append(logits_to_keep)
        return SimpleNamespace(logits=self.logits.expand(*input_ids[:, -logits_to_keep:].shape, -1))

    __call__ = forward


@pytest.mark.parametrize("entropy_grad", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_logprobs_in_chunks_have_the_values_and_gradients_of_autograd(monkeypatch, temperature, entropy_grad):
    monkeypatch.setattr(logprobs_module, "CHUNK_NUMBERS", 3 * 11)  # chunks of three rows
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 8, 11, generator=generator, requires_grad=True)
    ids, weights = torch.randint(0, 11, (2, 9), generator=generator), torch.randn(2, 2, 8, generator=generator)

    logprobs, entropy = token_logprobs(Fixed(logits), ids, 1, temperature=temperature, entropy_grad=entropy_grad)
    (logprobs * weights[0] + entropy * weights[1]).sum().backward()
    own, logits.grad = logits.grad, None

    distribution = torch.log_softmax(logits / temperature, -1)
    expected = distribution.gather(-1, ids[:, 1:, None]).squeeze(-1)
    expected_entropy = -(distribution.exp() * distribution).sum(-1)
    counted = expected_entropy if entropy_grad else expected_entropy.detach()
    (expected * weights[0] + counted * weights[1]).sum().backward()
    torch.testing.assert_close((logprobs, entropy, own), (expected, expected_entropy, logits.grad))


def test_token_logprobs_entropy_ignores_impossible_tokens():
    logits = torch.tensor([0.0, 0.0, -math.inf], requires_grad=True)
    logprobs, entropy = token_logprobs(Fixed(logits), torch.tensor([[0, 1, 2]]), 1, entropy_grad=True)
    assert entropy.tolist() == [pytest.approx([math.log(2)] * 2)]
    assert logprobs.tolist() == [[pytest.approx(-math.log(2)), -math.inf]]
    entropy.sum().backward()
    assert logits.grad.isfinite().all()


def test_token_logprobs_requests_logits_of_predicted_tokens_only():
    model = Fixed(torch.zeros(5))
    ids = torch.zeros(3, 100, dtype=torch.long)
    logprobs, _ = token_logprobs(model, ids, 93)
    assert (model.sizes, logprobs.shape) == ([7], (3, 7))


def test_mini_batches_skip_completions_without_tokens(policy):
    empty = rl.Rollout(rl.Task("1>"), rl.Completion("", (), (), "stop", (1, 5)), advantage=3.0)
    rollouts = rollouts_of(policy, ["12>"], rl.Sampling(max_tokens=3, seed=0))
    batch, without = whole([empty, *rollouts]), whole(rollouts)
    torch.testing.assert_close(batch, without, rtol=0, atol=0)


@pytest.mark.parametrize(
    "completion",
    [rl.Completion("42", (6, 4), (-0.1, -0.2)), rl.Completion("42", (6, 4), (), prompt_ids=(1, 5))],
    ids=["prompt", "logprobs"],
)
def test_mini_batches_completion_without_tokens_or_logprobs_raises(completion):
    with pytest.raises(OptionError, match="The completion '42' has .* use a policy that returns them"):
        whole([rl.Rollout(rl.Task("1>"), completion)])


def test_mini_batches_mask_of_another_length_raises():
    completion = rl.Completion("42", (6, 4), (-0.1, -0.2), prompt_ids=(1, 5), mask=(1,))
    with pytest.raises(OptionError, match="2 tokens and a mask of 1"):
        whole([rl.Rollout(rl.Task("1>"), completion)])
