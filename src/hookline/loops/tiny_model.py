"""A real tokenizer and a real causal language model, small enough for a CPU and made without any download.

For demonstrations, tests and a first try of a recipe; public as ``hookline.testing``. Both are those of transformers,
so what works with them works with any other: they can be saved and loaded, generate and train.
"""

import string
from typing import Any

from hookline._engine.checks import require_integer
from hookline._engine.errors import MissingExtraError, OptionError

PRINTABLE = string.digits + string.ascii_letters + string.punctuation + " \n"
SPECIAL = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}


def character_tokenizer(alphabet: str = PRINTABLE, *, chat_template: str | None = None) -> Any:
    """Return a `PreTrainedTokenizerFast` with a token for each character, and PAD, BOS, EOS and UNK as tokens 0 to 3.

    It puts BOS before a text, as many tokenizers do. Decoding returns the text, character by character.

    Args:
        alphabet: The characters; any other is UNK.
        chat_template: A Jinja template for conversations, which may write ``<bos>`` and ``<eos>``.
    """
    if not isinstance(alphabet, str) or not alphabet:
        raise OptionError(f"alphabet={alphabet!r}: give the characters as text.")
    try:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise MissingExtraError("character_tokenizer", "hf") from error
    vocabulary = {token: index for index, token in enumerate([*SPECIAL.values(), *dict.fromkeys(alphabet)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    bos = SPECIAL["bos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, vocabulary[bos])]
    )
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **SPECIAL)
    made.chat_template = chat_template
    return made


def tiny_causal_lm(tokenizer: Any, *, hidden_size: int = 64, layers: int = 2, heads: int = 4, seed: int = 0) -> Any:
    """Return a `LlamaForCausalLM` with random weights for a tokenizer; by default about 100,000 parameters.

    The same seed gives the same weights, and the global random state does not change.
    """
    for name, size in (("hidden_size", hidden_size), ("layers", layers), ("heads", heads)):
        require_integer(name, size)
    if hidden_size % (2 * heads):
        raise OptionError(f"hidden_size={hidden_size}: give a multiple of 2 * heads, which is {2 * heads}.")
    try:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise MissingExtraError("tiny_causal_lm", "hf") from error
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=1024,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):  # the weights are drawn on the CPU
        torch.default_generator.manual_seed(seed)
        return LlamaForCausalLM(config)
