"""Tokens a second of `HFPolicy` on a GPU, beside ``model.generate``, and whether a graph samples the same tokens.

A model of 124M parameters in bfloat16 with random weights, 256 completions of 128 tokens, prompts of 64 tokens or of
different lengths. ``generate`` samples without log-probabilities; `HFPolicy` returns those of each token, and draws
each row from a seed of its own. Systems are timed in turns, round by round; a ratio is the median over the rounds.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
import transformers
from measure import at_least, met
from tokenizers import Tokenizer, models, pre_tokenizers

from hookline import rl
from hookline.rl.policies import captured

VOCABULARY, ROWS, PROMPT, TOKENS = 50257, 256, 64, 128


def make_model(kind: str) -> Any:
    """A model of GPT-2's or Llama's architecture, of GPT-2's size."""
    torch.manual_seed(0)
    ends = {"eos_token_id": None, "bos_token_id": None}
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=VOCABULARY, **ends)
    else:
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=768,
            intermediate_size=2048,
            num_hidden_layers=12,
            num_attention_heads=12,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            pad_token_id=0,
            **ends,
        )
    model = transformers.AutoModelForCausalLM.from_config(config)
    return model.cuda().to(torch.bfloat16).eval()


def make_tokenizer() -> Any:
    """A tokenizer with a word for each token; it has no end-of-text token, so that completions have equal lengths."""
    padding = "w0"
    words = Tokenizer(models.WordLevel({f"w{index}": index for index in range(VOCABULARY)}, unk_token=padding))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token=padding, unk_token=padding)


@contextmanager
def without_graphs() -> Iterator[None]:
    """Generate as for completions that are too short for a graph."""
    least, captured.MIN_TOKENS = captured.MIN_TOKENS, 10**9
    try:
        yield
    finally:
        captured.MIN_TOKENS = least


def timed(work: Callable[[], object]) -> float:
    """Seconds until the device has done it."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measured(kind: str, rounds: int, tokenizer: Any) -> dict[str, Any]:
    """Tokens a second of each system."""
    draw = random.Random(0)
    prompts = [[draw.randrange(2, VOCABULARY) for _ in range(PROMPT)] for _ in range(ROWS)]
    ragged = [prompt[: draw.randrange(PROMPT // 2, PROMPT + 1)] for prompt in prompts]
    model = make_model(kind)
    ids = torch.tensor(prompts, device="cuda")
    mask = torch.ones_like(ids)
    policy = rl.HFPolicy(model, tokenizer, batch_size=ROWS)
    sampling = rl.Sampling(max_tokens=TOKENS, seed=1)

    def generate(**options: Any) -> None:
        options |= {"do_sample": True, "top_k": 0, "max_new_tokens": TOKENS, "pad_token_id": 0}
        made = model.generate(input_ids=ids, attention_mask=mask, **options)
        if made.shape != (ROWS, PROMPT + TOKENS):
            raise RuntimeError(f"generate gave a tensor of {tuple(made.shape)}.")

    def without_graph() -> None:
        with without_graphs():
            policy.generate(prompts, 1, sampling)

    systems: dict[str, Callable[[], object]] = {
        "model.generate": generate,
        "model.generate, static cache": lambda: generate(cache_implementation="static"),
        "HFPolicy": lambda: policy.generate(prompts, 1, sampling),
        "HFPolicy, different lengths": lambda: policy.generate(ragged, 1, sampling),
        "HFPolicy, one prompt of 16 each": lambda: policy.generate(prompts[: ROWS // 16], 16, sampling),
        "HFPolicy without a graph": without_graph,
    }
    for work in systems.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, work in systems.items():
            seconds[name].append(timed(work))
    first = seconds["model.generate"]
    return {
        name: {
            "tokens_per_second": round(ROWS * TOKENS / median(own)),
            "times_generate": round(median(base / each for base, each in zip(first, own, strict=True)), 2),
        }
        for name, own in seconds.items()
    }


def same_tokens(kind: str, tokenizer: Any) -> float:
    """The share of rows with the same tokens with and without a graph, in float32, with growing caches."""
    model = make_model(kind).float()
    policy = rl.HFPolicy(model, tokenizer, batch_size=ROWS)
    draw = random.Random(1)
    prompts = [[draw.randrange(2, VOCABULARY) for _ in range(draw.randrange(3, 40))] for _ in range(32)]
    sampling = rl.Sampling(temperature=0.9, top_p=0.95, max_tokens=300, seed=2, stop=("w123",))  # some rows end early
    made = policy.generate(prompts, 2, sampling)
    with without_graphs():
        usual = policy.generate(prompts, 2, sampling)
    pairs = [pair for group, other in zip(made, usual, strict=True) for pair in zip(group, other, strict=True)]
    return sum(one.token_ids == other.token_ids for one, other in pairs) / len(pairs)


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "This measures a GPU: there is none.\n")
    tokenizer = make_tokenizer()
    results = {kind: measured(kind, arguments.rounds, tokenizer) for kind in ("gpt2", "llama")}
    shares = {kind: same_tokens(kind, tokenizer) for kind in results}
    ok = all(result["HFPolicy"]["times_generate"] >= 1 for result in results.values())
    if arguments.json:
        print(json.dumps({"systems": results, "rows_with_the_same_tokens": shares, "met": ok}))
        return
    for kind, result in results.items():
        print(f"{kind}, 124M parameters, bfloat16, {ROWS} x {TOKENS} tokens")
        for name, numbers in result.items():
            print(f"  {name:34} {numbers['tokens_per_second']:9,} tokens/s {numbers['times_generate']:6.2f} x generate")
        print(f"  rows with the same tokens with and without a graph, float32: {shares[kind]:.1%}")
    print(f"at least as fast as model.generate: {met(ok)}")


if __name__ == "__main__":
    main()
