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


CHAT_TOKENS = ("<system>", "<user>", "<assistant>", "<tool>", "<call>", "</call>")
CHAT_TEMPLATE = (
    "<bos>"
    "{%- if tools %}<system>{% for tool in tools %}{{ tool.function.name }} "
    "{{ tool.function.parameters.properties.keys() | join(',') }};{% endfor %}<eos>{% endif %}"
    "{%- for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}<call>{{ call.function.name }}{{ ' ' }}"
    "{%- for name, value in call.function.arguments.items() %}{{ ',' if not loop.first }}{{ name }}={{ value }}"
    "{%- endfor %}</call>{% endfor %}<eos>{% endfor %}"
    "{%- if add_generation_prompt %}<assistant>{% endif %}"
)
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {
        "content": {"close": "<eos>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"<call>(?P<name>\w+)",
            "close": "</call>",
            "repeats": True,
            "content": "kv-lines",
            "content_args": {"line_sep": ",", "kv_sep": "="},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
    },
}


def character_tokenizer(alphabet: str = PRINTABLE, *, chat_template: str | None = None) -> Any:
    """Return a `PreTrainedTokenizerFast` with a token for each character, and PAD, BOS, EOS and UNK as tokens 0 to 3.

    It puts BOS before a text, as many tokenizers do. Decoding returns the text, character by character.

    Args:
        alphabet: The characters; any other is UNK.
        chat_template: A Jinja template for conversations, which may write ``<bos>`` and ``<eos>``.
    """
    return _tokenizer(alphabet, (), chat_template)


def chat_tokenizer(alphabet: str = PRINTABLE) -> Any:
    """Return a `character_tokenizer` for conversations with tools, in the shortest form: for tiny models.

    A message is ``<user>text<eos>``; each role is one token. A tool call is ``<call>name key=value,key=value</call>``
    in the text, and the tools are listed at the beginning. It has a chat template and a response template.

    Args:
        alphabet: The characters; any other is UNK.
    """
    made = _tokenizer(alphabet, CHAT_TOKENS, CHAT_TEMPLATE)
    made.response_template = RESPONSE_TEMPLATE
    return made


def _tokenizer(alphabet: str, more_tokens: tuple[str, ...], chat_template: str | None) -> Any:
    if not isinstance(alphabet, str) or not alphabet:
        raise OptionError(f"alphabet={alphabet!r}: give the characters as text.")
    try:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise MissingExtraError("A tokenizer", "hf") from error
    tokens = [*SPECIAL.values(), *more_tokens, *dict.fromkeys(alphabet)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    bos = SPECIAL["bos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, vocabulary[bos])]
    )
    options: dict[str, Any] = {"extra_special_tokens": list(more_tokens)} if more_tokens else {}
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **SPECIAL, **options)
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
