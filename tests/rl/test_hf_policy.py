"""A policy on a Hugging Face model: exact log-probabilities, exact sampling, and no global random state."""

import random
from collections import Counter

import pytest

from hookline._engine.errors import OptionError
from hookline.rl.policies.base import Policy, PolicyError
from hookline.rl.types import Sampling

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from hookline.rl.policies.hf import HFPolicy  # noqa: E402
from hookline.testing import character_tokenizer, tiny_causal_lm  # noqa: E402

torch.set_num_threads(1)
ALPHABET = "0123456789>=+ "
PROMPTS = ["1+2=", "7>", "12+345=", "", "99+1=", "0"]
POSITIONS = 48
SAMPLINGS = [Sampling(max_tokens=20, seed=0), Sampling(temperature=1.5, top_p=0.9, max_tokens=20, seed=0)]


def llama(tokenizer):
    model = tiny_causal_lm(tokenizer, hidden_size=32)
    model.config.max_position_embeddings = POSITIONS
    return model


def gpt2(tokenizer):
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=POSITIONS, **special(tokenizer)
    )
    return transformers.GPT2LMHeadModel(config)


def mistral(tokenizer):
    """Sees the last six tokens only."""
    config = transformers.MistralConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        sliding_window=6,
        **special(tokenizer),
    )
    return transformers.MistralForCausalLM(config)


def bloom(tokenizer):
    """Takes no positions: it has none."""
    config = transformers.BloomConfig(
        vocab_size=len(tokenizer), hidden_size=32, n_layer=2, n_head=2, **special(tokenizer)
    )
    return transformers.BloomForCausalLM(config)


def special(tokenizer):
    return {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def made(build, tokenizer):
    """A model in training mode that has opinions: fresh weights are near 0, and all tokens alike."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = build(tokenizer)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.35)
    return model.train()


@pytest.fixture(scope="module")
def tokenizer():
    return character_tokenizer(ALPHABET)


@pytest.fixture(params=[llama, gpt2, mistral, bloom], ids=lambda build: build.__name__)
def model(request, tokenizer):
    return made(request.param, tokenizer)


@pytest.fixture
def policy(tokenizer):
    return HFPolicy(made(llama, tokenizer), tokenizer)


def flat(groups):
    return [completion for group in groups for completion in group]


def tokens_of(groups):
    return [[completion.token_ids for completion in group] for group in groups]


def full_pass(model, completion):
    """Log-probabilities by one plain pass over prompt and completion."""
    ids = torch.tensor([[*completion.prompt_ids, *completion.token_ids]])
    with torch.no_grad():
        logprobs = model.eval()(ids).logits[0].log_softmax(-1)
    first = len(completion.prompt_ids)
    return [logprobs[place - 1, ids[0, place]].item() for place in range(first, ids.shape[1])]


def always(policy, prompt, token):
    """Make a token by far the likeliest after a prompt."""
    ids = torch.tensor(policy.tokenizer([prompt])["input_ids"])
    with torch.no_grad():
        hidden = policy.model.eval().model(ids).last_hidden_state[0, -1]
        policy.model.lm_head.weight.zero_()
        policy.model.lm_head.weight[token] = 10 * hidden


def test_hf_policy_is_a_policy(policy):
    assert isinstance(policy, Policy)
    assert policy.version == 0


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_logprobs_of_prompts_of_different_lengths_are_those_of_a_full_pass(model, tokenizer, sampling):
    completions = flat(HFPolicy(model, tokenizer).generate(PROMPTS, 8, sampling))
    assert len(completions) == 48
    lengths = {len(completion.token_ids) for completion in completions}
    assert len(lengths) > 5, "rows end at different times"
    for completion in completions:
        assert torch.allclose(torch.tensor(completion.logprobs), torch.tensor(full_pass(model, completion)), atol=1e-4)


def test_greedy_in_a_batch_equals_generate_one_by_one(model, tokenizer):
    written = HFPolicy(model, tokenizer).generate(PROMPTS, 2, Sampling(temperature=0, max_tokens=15))
    for prompt, (first, second) in zip(PROMPTS, written, strict=True):
        ids = torch.tensor(tokenizer([prompt])["input_ids"])
        expected = model.eval().generate(ids, do_sample=False, max_new_tokens=15)[0, ids.shape[1] :].tolist()
        assert first.token_ids == expected
        assert second == first
        assert first.prompt_ids == ids[0].tolist()


def test_greedy_in_a_batch_equals_the_policy_one_by_one(model, tokenizer):
    policy, sampling = HFPolicy(model, tokenizer), Sampling(temperature=0, max_tokens=15)
    together = policy.generate(PROMPTS, 1, sampling)
    assert tokens_of(together) == [tokens_of(policy.generate([prompt], 1, sampling))[0] for prompt in PROMPTS]


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_completions_do_not_depend_on_the_batch_size(model, tokenizer, batch_size):
    sampling = Sampling(max_tokens=12, seed=5)
    whole = HFPolicy(model, tokenizer).generate(PROMPTS, 4, sampling)
    rows = []
    model.register_forward_pre_hook(lambda *called: rows.append(len(called[2]["input_ids"])), with_kwargs=True)
    split = HFPolicy(model, tokenizer, batch_size=batch_size).generate(PROMPTS, 4, sampling)
    assert tokens_of(split) == tokens_of(whole)
    assert 1 <= max(rows) <= batch_size


def test_seed_reproduces_completions_and_another_seed_changes_them(policy):
    first, again, other = (
        tokens_of(policy.generate(PROMPTS, 2, Sampling(max_tokens=12, seed=seed))) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_seed_by_default_differs_each_time(policy):
    first, second = (tokens_of(policy.generate(PROMPTS, 2, Sampling(max_tokens=12))) for _ in range(2))
    assert first != second


def test_seed_repeated_prompt_has_different_completions_in_one_call(policy):
    groups = tokens_of(policy.generate(["1+2="] * 3, 3, Sampling(max_tokens=12, seed=1)))
    assert len({tuple(tokens) for group in groups for tokens in group}) == 9


@pytest.mark.parametrize("seed", [None, 7])
def test_generate_leaves_global_random_states_alone(policy, seed):
    torch.manual_seed(0)
    random.seed(0)
    before = torch.get_rng_state(), random.getstate()
    policy.generate(PROMPTS, 2, Sampling(max_tokens=5, seed=seed, top_p=0.9))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def first_token_shares(policy, sampling, count=4000):
    groups = policy.generate(["1+2="], count, sampling)
    counts = Counter(completion.token_ids[0] for completion in groups[0])
    return torch.tensor([counts[token] / count for token in range(len(policy.tokenizer))])


def first_token_logits(policy):
    with torch.no_grad():
        return policy.model.eval()(torch.tensor(policy.tokenizer(["1+2="])["input_ids"])).logits[0, -1]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_temperature_samples_with_the_expected_shares(policy, temperature):
    shares = first_token_shares(policy, Sampling(temperature=temperature, max_tokens=1, seed=0))
    expected = (first_token_logits(policy) / temperature).softmax(-1)
    assert (shares - expected).abs().sum() / 2 < 0.04


def test_temperature_next_to_nothing_is_greedy(policy):
    cold = policy.generate(PROMPTS, 1, Sampling(temperature=1e-40, max_tokens=10, seed=0))
    assert tokens_of(cold) == tokens_of(policy.generate(PROMPTS, 1, Sampling(temperature=0, max_tokens=10)))


def test_generate_takes_numpy_integers(policy):
    numpy = pytest.importorskip("numpy")
    sampling = Sampling(max_tokens=numpy.int64(3), seed=0)
    written = policy.generate(PROMPTS[:1], numpy.int64(2), sampling)
    assert written == policy.generate(PROMPTS[:1], 2, Sampling(max_tokens=3, seed=0))


@pytest.mark.parametrize("top_p", [0.2, 0.6, 0.9])
def test_top_p_leaves_the_likeliest_tokens_with_their_relative_shares(policy, top_p):
    shares = first_token_shares(policy, Sampling(top_p=top_p, max_tokens=1, seed=0))
    expected, order = first_token_logits(policy).softmax(-1).sort(descending=True)
    size = int((expected.cumsum(-1) < top_p).sum()) + 1
    kept = torch.zeros_like(shares).scatter(0, order[:size], expected[:size] / expected[:size].sum())
    assert shares[kept == 0].sum() == 0
    assert (shares - kept).abs().sum() / 2 < 0.04


def test_stop_text_across_tokens_ends_the_completion_at_the_token_that_completes_it(policy):
    whole = flat(policy.generate(PROMPTS, 8, Sampling(max_tokens=20, seed=1)))
    place = next(place for place, each in enumerate(whole) if min(each.token_ids[:6]) > 3)
    long, stop = whole[place], whole[place].text[3:6]
    cut = flat(policy.generate(PROMPTS, 8, Sampling(max_tokens=20, seed=1, stop=["never", stop])))
    end = long.text.index(stop)
    assert (cut[place].finish, cut[place].text) == ("stop", long.text[:end])
    assert cut[place].token_ids == long.token_ids[: end + 3]
    assert cut[place].logprobs == pytest.approx(long.logprobs[: end + 3], abs=1e-5)
    others = [place for place, each in enumerate(whole) if stop not in each.text]
    assert len(others) > 30
    assert [cut[place].token_ids for place in others] == [whole[place].token_ids for place in others]


def test_eos_as_first_token_makes_an_empty_text(policy):
    always(policy, "7>", policy.tokenizer.eos_token_id)
    [[completion]] = policy.generate(["7>"], 1, Sampling(seed=0))
    assert (completion.text, completion.token_ids, completion.finish) == ("", [policy.tokenizer.eos_token_id], "stop")
    assert completion.logprobs == pytest.approx([0.0], abs=1e-3)


def test_eos_of_the_generation_config_ends_a_completion_too(policy):
    token = policy.tokenizer.convert_tokens_to_ids("5")
    always(policy, "7>", token)
    policy.model.generation_config.eos_token_id = [policy.tokenizer.eos_token_id, token]
    [[completion]] = policy.generate(["7>"], 1, Sampling(seed=0))
    assert (completion.token_ids, completion.finish) == ([token], "stop")


def test_stop_text_that_is_a_special_token_ends_a_completion(policy):
    always(policy, "7>", policy.tokenizer.unk_token_id)
    [[completion]] = policy.generate(["7>"], 1, Sampling(seed=0, stop=["<unk>"]))
    assert (completion.text, len(completion.token_ids), completion.finish) == ("", 1, "stop")


def test_max_tokens_cuts_a_completion_off(policy):
    completions = flat(policy.generate(PROMPTS, 20, Sampling(max_tokens=3, seed=0)))
    cut = [completion for completion in completions if policy.tokenizer.eos_token_id not in completion.token_ids]
    assert len(cut) > 50
    assert {(len(completion.token_ids), completion.finish) for completion in cut} == {(3, "length")}


def test_empty_prompt_begins_with_bos(policy):
    [[completion]] = policy.generate([""], 1, Sampling(max_tokens=3))
    assert completion.prompt_ids == [policy.tokenizer.bos_token_id]
    assert completion.token_ids


def test_empty_prompt_without_bos_begins_with_eos_and_without_both_is_an_error():
    bare = character_tokenizer(ALPHABET)
    bare.backend_tokenizer.post_processor = tokenizers.processors.Sequence([])
    bare.bos_token = None
    policy = HFPolicy(made(llama, bare), bare)
    [[completion]] = policy.generate([""], 1, Sampling(max_tokens=3))
    assert completion.prompt_ids == [bare.eos_token_id]
    bare.eos_token = None
    with pytest.raises(OptionError, match="An empty prompt has no first token.*neither BOS nor EOS"):
        policy.generate([""], 1, Sampling())


def test_prompt_with_its_own_bos_gets_no_second_one(policy):
    [[own], [plain]] = policy.generate(["<bos>7>", "7>"], 1, Sampling(max_tokens=1))
    assert own.prompt_ids == plain.prompt_ids


def test_prompt_of_all_positions_is_an_error_that_names_it(policy):
    message = rf"prompts\[1\], '1111.*has {POSITIONS} tokens, the model {POSITIONS} positions: .* at most 47"
    with pytest.raises(OptionError, match=message):
        policy.generate(["7>", "1" * (POSITIONS - 1)], 1, Sampling())


@pytest.mark.parametrize("build", [llama, gpt2], ids=["llama", "gpt2"])
def test_prompts_near_the_last_position_are_completed_up_to_it(build):
    tokenizer = character_tokenizer(ALPHABET)
    policy = HFPolicy(made(build, tokenizer), tokenizer)
    tokenizer.eos_token = policy.model.generation_config.eos_token_id = None
    prompts = ["1" * (POSITIONS - 3), *["1+2="] * 9]
    nearly, *others = policy.generate(prompts, 1, Sampling(max_tokens=1000, temperature=0))
    alone = policy.generate(["1+2="], 1, Sampling(max_tokens=1000, temperature=0))[0]
    assert (len(nearly[0].token_ids), nearly[0].finish) == (2, "length")
    assert (len(alone[0].token_ids), alone[0].finish) == (POSITIONS - 5, "length")
    assert [group[0].token_ids for group in others] == [alone[0].token_ids] * 9


def test_generate_leaves_each_module_in_its_mode_also_after_an_error(policy):
    frozen = policy.model.model.layers[0].train(False)
    modes = [module.training for module in policy.model.modules()]
    policy.generate(PROMPTS, 1, Sampling(max_tokens=2))
    assert [module.training for module in policy.model.modules()] == modes
    with torch.no_grad():
        policy.model.lm_head.weight.fill_(float("nan"))
    for sampling in (Sampling(max_tokens=2), Sampling(max_tokens=2, temperature=0)):
        with pytest.raises(PolicyError, match="returns NaN for the next token, so its weights are not finite"):
            policy.generate(PROMPTS, 1, sampling)
    assert [module.training for module in policy.model.modules()] == modes
    assert policy.model.training
    assert not frozen.training


def test_generate_builds_no_graph_and_leaves_gradients_alone(policy):
    policy.generate(PROMPTS, 1, Sampling(max_tokens=2))
    loss = policy.model(torch.tensor([[1, 5, 6]])).logits.sum()
    loss.backward()
    assert all(parameter.grad is not None for parameter in policy.model.parameters())


def test_no_prompts_give_no_completions(policy):
    assert policy.generate([], 3, Sampling()) == []


@pytest.mark.parametrize(
    ("prompts", "n", "message"),
    [
        ("7>", 1, "prompts='7>': give a list of texts"),
        ([7], 1, r"prompts\[0\] is int: give texts"),
        (["7>"], 0, "n=0: give a whole number of at least 1"),
        (["7>"], True, "n=True: give a whole number"),
    ],
)
def test_request_that_makes_no_sense_is_an_error(policy, prompts, n, message):
    with pytest.raises(OptionError, match=message):
        policy.generate(prompts, n, Sampling())


@pytest.mark.parametrize("batch_size", [0, True, 1.5])
def test_batch_size_that_is_invalid_raises(policy, batch_size):
    with pytest.raises(OptionError, match="batch_size=.*give a whole number of at least 1"):
        HFPolicy(policy.model, policy.tokenizer, batch_size=batch_size)


def test_device_is_checked_and_used(policy):
    assert HFPolicy(policy.model, policy.tokenizer, device="cpu").model.device.type == "cpu"
    with pytest.raises(OptionError, match="'nowhere'"):
        HFPolicy(policy.model, policy.tokenizer, device="nowhere")


def test_load_weights_writes_with_them_from_then_on(policy, tokenizer):
    other = tiny_causal_lm(tokenizer, hidden_size=32, seed=9)
    policy.load_weights(4, other.state_dict())
    assert policy.version == 4
    sampling = Sampling(max_tokens=8, seed=0)
    expected = HFPolicy(other, tokenizer).generate(PROMPTS, 2, sampling)
    assert tokens_of(policy.generate(PROMPTS, 2, sampling)) == tokens_of(expected)
    with torch.no_grad():
        other.lm_head.weight.zero_()
    assert policy.model.lm_head.weight.any(), "a copy"


def test_load_weights_that_do_not_fit_changes_nothing(policy):
    before = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    wrong = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    wrong["lm_head.weight"] = torch.zeros(2, 3)
    wrong["model.extra"] = wrong.pop("model.norm.weight")
    message = (
        r"'lm_head.weight' has shape \(2, 3\), not \(18, 32\); 'model.extra' is not in it; "
        "'model.norm.weight' is missing. Give the state_dict.* nothing was loaded"
    )
    with pytest.raises(OptionError, match=message):
        policy.load_weights(4, wrong)
    assert policy.version == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.model.state_dict().items())


def test_load_weights_of_a_tied_model_takes_them_by_either_name(tokenizer):
    policy, other = (HFPolicy(made(gpt2, tokenizer), tokenizer) for _ in range(2))
    weights = {name: parameter.detach() + 1 for name, parameter in other.model.named_parameters()}
    assert "lm_head.weight" not in weights
    policy.load_weights(1, weights)
    assert torch.equal(policy.model.lm_head.weight, weights["transformer.wte.weight"])


@pytest.mark.parametrize("version", [-1, 1.0, True, "1"])
def test_load_weights_with_an_invalid_version_raises(policy, version):
    with pytest.raises(OptionError, match="version=.*give a whole number of at least 0"):
        policy.load_weights(version, policy.model.state_dict())


def test_load_weights_that_are_no_tensors_is_an_error(policy):
    weights = {**policy.model.state_dict(), "lm_head.weight": [1.0]}
    with pytest.raises(OptionError, match="'lm_head.weight' is list, not a tensor"):
        policy.load_weights(1, weights)
