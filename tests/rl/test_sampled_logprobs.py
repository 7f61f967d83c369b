"""With a temperature or top-p other than 1 the learner's ratios are those of the distribution that was sampled from."""

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

import hookline as hl
from hookline import rl

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hookline.rl.learner.batch import mini_batches  # noqa: E402
from hookline.rl.learner.logprobs import token_logprobs  # noqa: E402
from hookline.testing import character_tokenizer, tiny_causal_lm  # noqa: E402

torch.set_num_threads(1)
TOKENIZER = character_tokenizer("0123456789>")
TEMPERATURE = 0.7
PROMPTS = ["1>", "4321>", "77777777>"]


def model_with_dropout(seed=0):
    """In training mode, with opinions: fresh weights find all tokens alike."""
    model = tiny_causal_lm(TOKENIZER, hidden_size=32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3, generator=generator)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    return model.train()


def changed(model):
    """As it is some updates later."""
    later, generator = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in later.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return later


def rollouts_of(model, *, temperature=TEMPERATURE, top_p=1.0, known=True):
    sampling = rl.Sampling(temperature=temperature, top_p=top_p, max_tokens=7, seed=0)
    groups = rl.HFPolicy(model, TOKENIZER).generate(PROMPTS, 4, sampling)
    completions = [each if known else replace(each, sampled_logprobs=()) for group in groups for each in group]
    return [rl.Rollout(rl.Task("1>"), each, {"r": 1.0}, 1.0, advantage=1.0) for each in completions]


def by_hand(model, rollouts, *, temperature=TEMPERATURE, top_p=1.0):
    """Log-probabilities of all tokens, by one plain pass for each completion, without dropout."""
    found = []
    for each in rollouts:
        prompt, written = each.completion.prompt_ids, each.completion.token_ids
        with torch.no_grad():
            logits = copy.deepcopy(model).eval()(torch.tensor([[*prompt, *written]])).logits[0]
        rows = (logits / temperature).log_softmax(-1)[len(prompt) - 1 : -1]
        found += [row[token].item() - math.log(mass_of(row, top_p)) for row, token in zip(rows, written, strict=True)]
    return found


def mass_of(logprobs, top_p):
    """The probability of the likeliest tokens that have at least this share together."""
    mass = 0.0
    for probability in sorted(logprobs.exp().tolist(), reverse=True):
        mass += probability
        if mass >= top_p:
            break
    return 1.0 if top_p == 1 else mass


def first_batch(model, rollouts, *, latest_version=0, top_p=1.0, exact=True, grpo=None, **options):
    """The first batch of a learner."""
    batches = []
    source = SimpleNamespace(
        latest_version=latest_version,
        roll_out=lambda: rollouts,
        exact_logprobs=exact,
        step=0,
        attach_to=lambda loop: None,
        update_weights=lambda version, weights: None,
        close_hooks=lambda: None,
        state_dict=dict,
        **options,
    )
    learner = rl.GRPOLearner(
        model,
        source,
        pad_id=0,
        config=hl.TrainerConfig(max_steps=1, output_dir=None, summary=False, learning_rate=1e-9),
        grpo=rl.GRPOConfig(**(grpo or {})),
        temperature=TEMPERATURE,
        top_p=top_p,
        max_tokens=7,
        callbacks=[hl.on("train_batch_start", lambda loop, batch: batches.append(batch))],
    )
    learner.fit()
    return batches[0]


def written(batch, name="old"):
    return batch[name][batch["mask"].bool()].tolist()


@pytest.mark.parametrize(("temperature", "top_p"), [(TEMPERATURE, 1.0), (TEMPERATURE, 0.8), (1.0, 0.8)])
def test_hf_policy_returns_sampled_and_model_log_probabilities(temperature, top_p):
    model = model_with_dropout()
    rollouts = rollouts_of(model, temperature=temperature, top_p=top_p)
    sampled = [logprob for each in rollouts for logprob in each.completion.sampled_logprobs]
    own = [logprob for each in rollouts for logprob in each.completion.logprobs]
    assert sampled == pytest.approx(by_hand(model, rollouts, temperature=temperature, top_p=top_p), abs=1e-4)
    assert own == pytest.approx(by_hand(model, rollouts, temperature=1.0), abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_hf_policy_at_temperature_one_or_zero_returns_model_log_probabilities_only(temperature):
    rollouts = rollouts_of(model_with_dropout(), temperature=temperature)
    assert {len(each.completion.sampled_logprobs) for each in rollouts} == {0}


@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("known", [True, False], ids=["given", "computed"])
def test_learner_old_logprobs_are_as_sampled_by_the_policy_without_dropout(known, top_p):
    model = model_with_dropout()
    rollouts = rollouts_of(model, known=known, top_p=top_p)
    old = written(first_batch(model, rollouts, top_p=top_p, grpo={"mini_batches": 2}))
    rollouts = rollouts[: len(rollouts) // 2]
    assert old == pytest.approx(by_hand(model, rollouts, top_p=top_p), abs=1e-4)
    assert all(module.training for module in model.modules())


def test_learner_old_logprobs_of_stale_rollouts_are_those_of_the_weights_that_generated():
    wrote = model_with_dropout()
    model = changed(wrote)
    rollouts = rollouts_of(wrote)
    batch = first_batch(model, rollouts, latest_version=1, max_staleness=2)
    assert written(batch) == pytest.approx(by_hand(wrote, rollouts), abs=1e-4)
    assert not batch["is_fresh"]
    before, after = torch.tensor(by_hand(wrote, rollouts)), torch.tensor(by_hand(model, rollouts))
    assert ((after - before).exp() - 1).abs().mean() > 0.1


@pytest.mark.parametrize("latest_version", [0, 1])
def test_learner_of_inexact_logprobs_compares_with_its_own_and_weights_by_the_difference(latest_version):
    wrote = model_with_dropout()
    model = changed(wrote)
    rollouts = rollouts_of(wrote)
    mode = {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 100.0}
    batch = first_batch(model, rollouts, latest_version=latest_version, max_staleness=2, exact=False, grpo=mode)
    before, after = torch.tensor(by_hand(wrote, rollouts)), torch.tensor(by_hand(model, rollouts))
    assert written(batch) == pytest.approx(after.tolist(), abs=1e-4)
    assert written(batch, "importance") == pytest.approx((after - before).exp().tolist(), abs=1e-3)


@pytest.mark.parametrize("source", [{"max_staleness": 1}, {"latest_version": 1}], ids=["may be", "is"])
def test_learner_stale_rollouts_without_sampled_logprobs_raise(source):
    model = model_with_dropout()
    with pytest.raises(
        hl.OptionError, match=r"temperature=0\.7 and top_p=1\.0 with rollouts of older weights.*max_staleness=0"
    ):
        first_batch(model, rollouts_of(model, known=False), **source)


def test_token_logprobs_with_top_p_are_those_of_the_distribution_that_was_sampled_from():
    model = model_with_dropout()
    batch = first_batch(model, rollouts_of(model, top_p=0.8), top_p=0.8)
    now, _ = token_logprobs(model.eval(), batch["ids"], batch["first"], temperature=TEMPERATURE, top_p=0.8)
    torch.testing.assert_close(now[batch["mask"].bool()], batch["old"][batch["mask"].bool()], atol=1e-4, rtol=0)


def test_token_logprobs_with_top_p_of_a_token_that_others_sampled_are_finite_and_have_a_gradient():
    wrote = model_with_dropout()
    model = changed(wrote).eval()
    batch = first_batch(model, rollouts_of(wrote), latest_version=1, max_staleness=1)
    now, _ = token_logprobs(model, batch["ids"], batch["first"], temperature=TEMPERATURE, top_p=0.3)
    now[batch["mask"].bool()].sum().backward()
    assert now[batch["mask"].bool()].isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_mini_batches_with_too_few_sampled_log_probabilities_raises():
    completion = rl.Completion("42", (6, 4), (-0.1, -0.2), prompt_ids=(1, 5), sampled_logprobs=(-0.3,))
    with pytest.raises(hl.OptionError, match="2 tokens and 1 log-probabilities"):
        mini_batches([rl.Rollout(rl.Task("1>"), completion)], 1, pad_id=0, as_sampled=True)
