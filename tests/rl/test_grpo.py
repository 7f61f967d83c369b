"""GRPO's arithmetic: the loss beside a slow reference, advantages of groups, batches that line up with the model."""

import math
import random
from statistics import fmean, stdev
from types import SimpleNamespace

import pytest

from hookline import rl
from hookline._engine.errors import OptionError
from hookline.rl.rollouts.metrics import EPSILON, group_advantages

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hookline.rl.learner.loss import (  # noqa: E402
    grpo_loss,
    rollout_batch,
    token_logprobs,
)
from hookline.testing import character_tokenizer, tiny_causal_lm  # noqa: E402

torch.set_num_threads(1)


def slow_loss(logprobs, old, advantages, mask, *, clip, reference=None, kl=0.0):
    """One token at a time, by the book."""
    losses, clipped, divergences, ratios = [], 0, [], []
    for row, advantage in enumerate(advantages):
        for place, counts in enumerate(mask[row]):
            if not counts:
                continue
            ratio = math.exp(logprobs[row][place] - old[row][place])
            bounded = min(max(ratio, 1 - clip), 1 + clip)
            loss = -min(ratio * advantage, bounded * advantage)
            if reference is not None:
                behind = reference[row][place] - logprobs[row][place]
                divergences.append(math.exp(behind) - behind - 1)
                loss += kl * divergences[-1]
            losses.append(loss)
            ratios.append(ratio)
            clipped += ratio > 1 + clip if advantage > 0 else ratio < 1 - clip
    facts = {"clip_share": clipped / len(losses), "ratio": fmean(ratios)}
    if reference is not None:
        facts["kl"] = fmean(divergences)
    return fmean(losses), facts


def numbers(seed, rows=6, places=9):
    generator = torch.Generator().manual_seed(seed)

    def draw():
        return -3 * torch.rand(rows, places, generator=generator, dtype=torch.float64)

    logprobs = draw()
    old = logprobs + 0.4 * torch.randn(rows, places, generator=generator, dtype=torch.float64)
    reference = logprobs + 0.4 * torch.randn(rows, places, generator=generator, dtype=torch.float64)
    advantages = torch.randn(rows, generator=generator, dtype=torch.float64)
    mask = (torch.rand(rows, places, generator=generator) < 0.7).double()
    return logprobs.requires_grad_(), old, advantages, mask, reference


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kl", [None, 0.0, 0.3])
def test_grpo_loss_and_its_facts_are_those_of_a_slow_reference(seed, kl):
    logprobs, old, advantages, mask, reference = numbers(seed)
    options = {"clip": 0.2} if kl is None else {"clip": 0.2, "reference": reference, "kl": kl}
    loss, facts = grpo_loss(logprobs, old, advantages, mask, **options)
    options = {name: each.tolist() if name == "reference" else each for name, each in options.items()}
    expected, known = slow_loss(logprobs.tolist(), old.tolist(), advantages.tolist(), mask.tolist(), **options)
    assert loss.item() == pytest.approx(expected)
    assert {name: value.item() for name, value in facts.items()} == pytest.approx(known)
    assert 0 < facts["clip_share"] < 1


def gradient_at(ratio, advantage, clip=0.2):
    logprobs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    loss, _ = grpo_loss(
        logprobs, torch.zeros(1, 1), torch.tensor([advantage], dtype=torch.float64), torch.ones(1, 1), clip=clip
    )
    loss.backward()
    return logprobs.grad.item()


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
    assert gradient_at(ratio, advantage) == pytest.approx(-ratio * advantage if moves else 0.0)


def test_grpo_loss_tokens_outside_of_the_mask_get_no_gradient():
    logprobs, old, advantages, mask, reference = numbers(1)
    loss, _ = grpo_loss(logprobs, old, advantages, mask, clip=10.0, reference=reference, kl=0.1)
    loss.backward()
    assert (logprobs.grad[mask == 0] == 0).all()
    assert (logprobs.grad[mask == 1] != 0).all()


@pytest.mark.parametrize("name", ["old", "reference"])
@pytest.mark.parametrize("number", [-1e3, 1e3, -math.inf, math.inf, math.nan])
def test_grpo_loss_extreme_number_outside_of_the_mask_changes_nothing(name, number):
    logprobs, old, advantages, mask, reference = numbers(1)
    given = {"old": old, "reference": reference}

    def result(**changed):
        made = given | changed
        loss, facts = grpo_loss(logprobs, made["old"], advantages, mask, clip=0.2, reference=made["reference"], kl=0.1)
        (gradient,) = torch.autograd.grad(loss, logprobs)
        return [loss, gradient, *facts.values()]

    extreme = result(**{name: given[name].masked_fill(mask == 0, number)})
    torch.testing.assert_close(extreme, result(), rtol=0, atol=0)


def test_grpo_loss_at_the_policy_that_wrote_is_the_plain_policy_gradient():
    logprobs, _, advantages, mask, _ = numbers(2)
    loss, facts = grpo_loss(logprobs, logprobs.detach(), advantages, mask, clip=0.2)
    loss.backward()
    expected = -(advantages[:, None] * mask) / mask.sum()
    torch.testing.assert_close(logprobs.grad, expected)
    assert (facts["clip_share"], facts["ratio"]) == (0.0, 1.0)


def test_grpo_loss_divergence_is_zero_at_the_reference_and_positive_elsewhere():
    logprobs, old, advantages, mask, reference = numbers(3)
    same = grpo_loss(logprobs, old, advantages, mask, clip=0.2, reference=logprobs.detach(), kl=1.0)[1]["kl"]
    other = grpo_loss(logprobs, old, advantages, mask, clip=0.2, reference=reference, kl=1.0)[1]["kl"]
    assert (same, other > 0) == (0.0, True)


def test_grpo_loss_of_an_empty_mask_is_zero_and_finite():
    logprobs, old, advantages, mask, _ = numbers(4)
    loss, facts = grpo_loss(logprobs, old, advantages, torch.zeros_like(mask), clip=0.2)
    assert (loss.item(), facts["clip_share"].item()) == (0.0, 0.0)


# Groups


def test_group_advantages_are_distances_from_the_mean_in_standard_deviations_of_the_sample():
    totals, groups = [1.0, 0.0, 0.5, 3.0, 1.0], ["a", "a", "a", "b", "b"]
    advantages, equal = group_advantages(totals, groups)
    expected = [(total - 0.5) / (stdev([1.0, 0.0, 0.5]) + EPSILON) for total in (1.0, 0.0, 0.5)]
    pair = 1 / (math.sqrt(2) + EPSILON)
    assert advantages == pytest.approx([*expected, pair, -pair])
    assert equal == 0.0


def test_group_advantages_are_those_of_trl():
    utils = pytest.importorskip("trl.trainer.utils")
    rewards = torch.tensor([[1.0, 0.0, 0.5, 2.0], [3.0, 1.0, 1.0, 1.0]])
    expected = (rewards - rewards.mean(1, keepdim=True)) / (utils.nanstd(rewards, dim=1, keepdim=True) + 1e-4)
    advantages, _ = group_advantages(rewards.flatten().tolist(), ["a"] * 4 + ["b"] * 4)
    assert advantages == pytest.approx(expected.flatten().tolist())


@pytest.mark.parametrize(
    ("ratio", "advantage", "share"),
    [(1.5, 1.0, 1.0), (1.5, -1.0, 0.0), (0.5, -1.0, 1.0), (0.5, 1.0, 0.0), (1.1, 1.0, 0.0)],
)
def test_grpo_loss_clip_share_counts_tokens_whose_clip_took_effect(ratio, advantage, share):
    logprobs = torch.tensor([[math.log(ratio)]])
    _, facts = grpo_loss(logprobs, torch.zeros(1, 1), torch.tensor([advantage]), torch.ones(1, 1), clip=0.2)
    assert facts["clip_share"] == share


def test_group_advantages_unscaled_are_distances_from_the_mean():
    assert group_advantages([4.0, 0.0, 1.0], [1, 1, 2], scale=False) == ([2.0, -2.0, 0.0], 0.5)


@pytest.mark.parametrize("scale", [True, False])
def test_group_advantages_of_equal_rewards_are_exactly_zero(scale):
    for hundredths in range(100):  # the mean of seven of them is not always the number itself
        assert group_advantages([hundredths / 100] * 7, ["a"] * 7, scale=scale) == ([0.0] * 7, 1.0)


def test_group_advantages_of_members_that_are_not_side_by_side_belong_to_their_group():
    advantages, equal = group_advantages([1.0, 5.0, 3.0, 5.0], ["a", "b", "a", "b"], scale=False)
    assert (advantages, equal) == ([-1.0, 0.0, 1.0, 0.0], 0.5)


def test_group_advantages_of_nothing_are_nothing():
    assert group_advantages([], []) == ([], 0.0)


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


@pytest.mark.parametrize(
    "sampling",
    [
        rl.Sampling(max_tokens=7, seed=0),
        rl.Sampling(max_tokens=7, seed=1, temperature=0.7, top_p=0.8),
        rl.Sampling(max_tokens=7, seed=2, stop=["3"]),
    ],
)
def test_rollout_batch_log_probabilities_of_the_model_equal_those_that_were_stored(policy, sampling):
    batch = rollout_batch(rollouts_of(policy, PROMPTS, sampling), pad_id=0)
    with torch.no_grad():
        logprobs, entropy = token_logprobs(policy.model, batch["ids"], batch["attention"])
    mask = batch["mask"].bool()
    torch.testing.assert_close(logprobs[mask], batch["old"][mask], atol=1e-5, rtol=1e-5)
    assert logprobs.shape == entropy.shape == batch["mask"].shape
    assert (entropy[mask] > 0).all()


def test_rollout_batch_mask_has_the_tokens_of_each_completion_and_nothing_else(policy):
    rollouts = rollouts_of(policy, PROMPTS, rl.Sampling(max_tokens=7, seed=0))
    batch = rollout_batch(rollouts, pad_id=0)
    for row, each in enumerate(rollouts):
        assert batch["ids"][row, 1:][batch["mask"][row].bool()].tolist() == list(each.completion.token_ids)
        tokens = [*each.completion.prompt_ids, *each.completion.token_ids]
        assert batch["ids"][row][batch["attention"][row].bool()].tolist() == tokens
    assert batch["advantages"].tolist() == pytest.approx([each.advantage for each in rollouts])


def test_token_logprobs_entropy_is_that_of_the_distribution(policy):
    ids = torch.tensor([[1, 5, 6]])
    with torch.no_grad():
        _, entropy = token_logprobs(policy.model, ids, torch.ones_like(ids))
        distribution = torch.distributions.Categorical(logits=policy.model(ids).logits[0, :-1])
    torch.testing.assert_close(entropy[0], distribution.entropy())


def test_token_logprobs_entropy_ignores_impossible_tokens():
    def model(input_ids, attention_mask, use_cache):
        return SimpleNamespace(logits=torch.tensor([0.0, 0.0, -math.inf]).repeat(*input_ids.shape, 1))

    ids = torch.tensor([[0, 1, 2]])
    logprobs, entropy = token_logprobs(model, ids, torch.ones_like(ids))
    assert entropy.tolist() == [pytest.approx([math.log(2)] * 2)]
    assert logprobs.tolist() == [[pytest.approx(-math.log(2)), -math.inf]]


def test_rollout_batch_skips_completions_without_tokens(policy):
    empty = rl.Rollout(rl.Task("1>"), rl.Completion("", (), (), "stop", (1, 5)), advantage=3.0)
    rollouts = rollouts_of(policy, ["12>"], rl.Sampling(max_tokens=3, seed=0))
    batch, without = rollout_batch([empty, *rollouts], pad_id=0), rollout_batch(rollouts, pad_id=0)
    assert all(torch.equal(batch[name], without[name]) for name in without)


@pytest.mark.parametrize(
    "completion",
    [rl.Completion("42", (6, 4), (-0.1, -0.2)), rl.Completion("42", (6, 4), (), prompt_ids=(1, 5))],
    ids=["prompt", "logprobs"],
)
def test_rollout_batch_completion_without_tokens_or_logprobs_raises(completion):
    with pytest.raises(OptionError, match="The completion '42' has .* use a policy that returns them"):
        rollout_batch([rl.Rollout(rl.Task("1>"), completion)], pad_id=0)
