"""Generation with a cache of fixed capacity, as CUDA graphs need it: the same tokens as with a growing one.

Graphs themselves need a GPU: ``benchmarks/gpu_generation.py`` compares them there.
"""

import pytest

from hookline.rl.types import Sampling

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hookline.rl.policies import captured  # noqa: E402
from hookline.rl.policies.decoding import Decoder, Row  # noqa: E402
from hookline.rl.policies.hf import HFPolicy  # noqa: E402
from hookline.testing import character_tokenizer, tiny_causal_lm  # noqa: E402

torch.set_num_threads(1)
POSITIONS = 64
PROMPTS = {"equal": ["12+3=", "45+6="], "ragged": ["1+2=", "7>", "12+345=", "0"]}


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def policy(request):
    tokenizer = character_tokenizer("0123456789>=+ ")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        if request.param == "llama":
            model = tiny_causal_lm(tokenizer, hidden_size=32)
            model.config.max_position_embeddings = POSITIONS
        else:
            config = transformers.GPT2Config(
                vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=POSITIONS
            )
            config.eos_token_id = tokenizer.eos_token_id
            model = transformers.GPT2LMHeadModel(config)
        with torch.no_grad():
            for parameter in model.parameters():  # fresh weights are near 0, and all tokens alike
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.35)
    return HFPolicy(model.eval(), tokenizer)


def rows_of(policy, prompts, sampling, generate, **options):
    criteria = policy.stop_criteria(sampling)
    encoded = policy.encode(prompts)
    rows = [Row(prompt, criteria) for prompt in encoded for _ in range(3)]
    generator = torch.Generator().manual_seed(5)
    noise = torch.rand(len(rows), criteria.max_tokens, generator=generator) if sampling.temperature else None
    decoder = policy.decoder(encoded)
    with torch.no_grad():
        generate(decoder, decoder.prefill(3), rows, noise, criteria, **options)
    return rows


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=60),
        Sampling(temperature=1.5, top_p=0.9, max_tokens=60),
        Sampling(temperature=0, max_tokens=40),
        Sampling(max_tokens=60, stop=("7",)),
    ],
    ids=["sampled", "nucleus", "greedy", "stop"],
)
@pytest.mark.parametrize("prompts", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("first_room", [1, 20, 256])
def test_cache_of_fixed_capacity_gives_the_same_completions(policy, prompts, sampling, first_room):
    usual = rows_of(policy, prompts, sampling, Decoder.generate)
    own = rows_of(policy, prompts, sampling, captured.generate_captured, first_room=first_room)
    assert [(row.tokens, row.finish) for row in own] == [(row.tokens, row.finish) for row in usual]
    for row, expected in zip(own, usual, strict=True):
        assert row.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        assert row.sampled_logprobs == pytest.approx(expected.sampled_logprobs, abs=1e-4)


def test_graph_is_not_used_on_the_cpu(policy):
    decoder = policy.decoder(policy.encode(PROMPTS["equal"]))
    with torch.no_grad():
        decoder.prefill(1)
    assert not captured.can_capture(decoder, 1000)
