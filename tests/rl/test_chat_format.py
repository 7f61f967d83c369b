"""Chats as tokens: with the chat templates of real models, and a tokenizer of characters instead of theirs."""

import re
import string
from pathlib import Path

import pytest

from hookline import rl
from hookline._engine.errors import OptionError
from hookline.rl.chat_format import parse_hermes
from hookline.testing import character_tokenizer, chat_tokenizer

tokenizers = pytest.importorskip("tokenizers")
trl = pytest.importorskip("trl")
from transformers import PreTrainedTokenizerFast  # noqa: E402

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "One."}}},
    },
}
ASKED = {"role": "user", "content": "1 + 1?"}
ANSWER = {"role": "assistant", "content": "2"}
THOUGHT = {**ANSWER, "reasoning_content": "Easy."}
CALL = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
THOUGHTFULLY_CALLED = {**CALLED, "reasoning_content": "Easy."}
RESULT = {"role": "tool", "name": "add", "content": "2", "tool_call_id": "call00000"}
FURTHER = {"role": "user", "content": "2 + 2?"}


def tokenizer_of(name, eos):
    """A tokenizer with a chat template of TRL, a token for each character, and one for each special token."""
    template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    special = {eos, *re.findall(r"<\|\w+\|>|<\uff5c[^\uff5c]+\uff5c>|<(?:start|end)_of_turn>", template)}
    tokens = ["<pad>", "<unk>", *sorted(special), *dict.fromkeys(string.printable + template)]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="<unk>")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), behavior="isolated")
    made.decoder = tokenizers.decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token=eos,
        extra_special_tokens=sorted(special - {eos}),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = template
    return tokenizer


def sampled_turn(tokenizer, before, messages, tools):
    """The tokens that a model samples if it writes a turn as the template does."""
    text = tokenizer.apply_chat_template(messages, tools=tools or None, tokenize=False).removeprefix(before)
    end = text.rfind(tokenizer.eos_token) + len(tokenizer.eos_token)
    return tokenizer(text[:end], add_special_tokens=False)["input_ids"]


IM_END, DEEPSEEK_END = "<|im_end|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"
APPENDS, REWRITES = True, False


@pytest.mark.parametrize(
    ("name", "eos", "turn", "new", "appends"),
    [
        ("qwen2_5", IM_END, ANSWER, FURTHER, APPENDS),
        ("qwen2_5", IM_END, CALLED, RESULT, APPENDS),
        ("qwen3_instruct_2507", IM_END, CALLED, RESULT, APPENDS),
        ("qwen3", IM_END, THOUGHTFULLY_CALLED, RESULT, APPENDS),
        ("qwen3", IM_END, THOUGHT, FURTHER, REWRITES),  # it removes the reasoning of earlier questions
        ("qwen3_training", IM_END, THOUGHT, FURTHER, APPENDS),
        ("qwen3_5_think", IM_END, THOUGHTFULLY_CALLED, RESULT, APPENDS),
        ("llama3_1", "<|eot_id|>", CALLED, RESULT, APPENDS),
        ("gemma", "<end_of_turn>", ANSWER, FURTHER, APPENDS),
        ("glm4moe", "<|user|>", CALLED, RESULT, APPENDS),
        ("gptoss", "<|end|>", CALLED, RESULT, APPENDS),
        ("lfm2", IM_END, CALLED, RESULT, APPENDS),
        ("deepseek_r1_distill", DEEPSEEK_END, THOUGHT, FURTHER, REWRITES),  # nor does it repeat its <think>
    ],
)
def test_continuation_appends_to_sampled_tokens_or_reports_that_the_template_does_not(name, eos, turn, new, appends):
    tokenizer = tokenizer_of(name, eos)
    tools = [ADD] if new is RESULT else []
    chat_format = rl.ChatFormat(tokenizer)
    prompt = chat_format.prompt([ASKED], tools)
    sampled = sampled_turn(tokenizer, prompt.text, [ASKED, turn], tools)
    continued = chat_format.continuation(prompt.text, sampled, [ASKED, turn], [new], tools)
    assert (continued is not None) == appends
    if continued is not None:
        whole = tokenizer.apply_chat_template(
            [ASKED, turn, new], tools=tools or None, add_generation_prompt=True, return_dict=False
        )
        assert prompt.ids + sampled + continued.ids == whole


def test_continuation_keeps_sampled_tokens_that_the_template_would_write_otherwise():
    tokenizer = tokenizer_of("qwen2_5", IM_END)
    chat_format = rl.ChatFormat(tokenizer)
    prompt = chat_format.prompt([ASKED], [ADD])
    text = '<tool_call>{"arguments":{"a":1},"name":"add"}</tool_call><|im_end|>'  # without the spaces of the template
    sampled = tokenizer(text, add_special_tokens=False)["input_ids"]
    message = chat_format.message(sampled, prompt_ids=prompt.ids, tools=[ADD])
    continued = chat_format.continuation(prompt.text, sampled, [ASKED, message], [RESULT], [ADD])
    assert continued is not None
    assert tokenizer.decode(continued.ids).startswith("\n<|im_start|>user\n<tool_response>\n2\n</tool_response>")


def test_continuation_after_a_turn_without_its_last_token_adds_it():
    tokenizer = chat_tokenizer()
    chat_format = rl.ChatFormat(tokenizer)
    prompt = chat_format.prompt([ASKED])
    cut_off = tokenizer("2", add_special_tokens=False)["input_ids"]
    continued = chat_format.continuation(prompt.text, cut_off, [ASKED, ANSWER], [FURTHER])
    assert continued is not None
    assert tokenizer.decode(continued.ids) == "<eos><user>2 + 2?<eos><assistant>"


@pytest.mark.parametrize(
    ("name", "eos", "text", "expected"),
    [
        (
            "qwen3",
            IM_END,
            '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>',
            {"content": "", "reasoning_content": "Hm.", "calls": [("add", {"a": 1})]},
        ),
        ("qwen3", IM_END, "It is 2.<|im_end|>", {"content": "It is 2."}),
        (
            "qwen3_5_nothink",
            IM_END,
            "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call><|im_end|>",
            {"content": "", "calls": [("add", {"a": 1})]},
        ),
        (
            "llama3_1",
            "<|eot_id|>",
            '{"name": "add", "parameters": {"a": 1}}<|eot_id|>',
            {"content": "", "calls": [("add", {"a": 1})]},
        ),
        (
            "qwen3",
            IM_END,
            "<tool_call>\nadd(1)\n</tool_call><|im_end|>",
            {"content": "<tool_call>\nadd(1)\n</tool_call>"},
        ),
    ],
)
def test_message_by_the_response_template_of_a_tokenizer(name, eos, text, expected):
    tokenizer = trl.add_response_schema(tokenizer_of(name, eos))
    chat_format = rl.ChatFormat(tokenizer)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    message = chat_format.message(ids, prompt_ids=chat_format.prompt([ASKED], [ADD]).ids, tools=[ADD])
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.pop("tool_calls", [])]
    assert message.pop("role") == "assistant"
    assert message | ({"calls": calls} if calls else {}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello.", {"content": "Hello."}),
        ("<think>Hm.</think>\n\nHello.", {"content": "Hello.", "reasoning_content": "Hm."}),
        ("Hm.</think>Hello.", {"content": "Hello.", "reasoning_content": "Hm."}),
        (
            'A <tool_call>{"name": "f", "arguments": {}}</tool_call> <tool_call>{"name": "g"}</tool_call>',
            {
                "content": "A",
                "tool_calls": [
                    {"type": "function", "function": {"name": "f", "arguments": {}}},
                    {"type": "function", "function": {"name": "g"}},
                ],
            },
        ),
    ],
)
def test_parse_hermes_finds_reasoning_and_calls(text, expected):
    assert parse_hermes(text) == {"role": "assistant"} | expected


@pytest.mark.parametrize(
    "text",
    ["<tool_call>{</tool_call>", "<tool_call>[1]</tool_call>", '<tool_call>{"name": 4}</tool_call>', "<tool_call>{"],
)
def test_message_with_a_malformed_call_is_text(text):
    tokenizer = character_tokenizer(chat_template="{{ messages }}")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert rl.ChatFormat(tokenizer).message([*ids, tokenizer.eos_token_id]) == {"role": "assistant", "content": text}


def test_message_by_a_parser_of_the_user():
    tokenizer = chat_tokenizer()
    chat_format = rl.ChatFormat(tokenizer, parser=lambda text, tools: {"content": text.upper(), "tool_calls": None})
    ids = tokenizer("yes<eos>", add_special_tokens=False)["input_ids"]
    assert chat_format.message(ids) == {"role": "assistant", "content": "YES"}


def test_prompt_template_options_and_json_arguments_reach_the_template():
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = "{{ mode }}{% for m in messages %}{{ m.tool_calls[0].function.arguments.a }}{% endfor %}"
    called = {**CALLED, "tool_calls": [{**CALL, "function": {"name": "add", "arguments": '{"a": 5}'}}]}
    chat_format = rl.ChatFormat(tokenizer, template_options={"mode": "short"})
    assert chat_format.prompt([called]).text == "short5"
    assert chat_format.with_options({"mode": "long"}).prompt([called]).text == "long5"


def test_prompt_of_text_parts_is_their_text():
    parts = [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]
    chat_format = rl.ChatFormat(chat_tokenizer())
    assert chat_format.prompt([{"role": "user", "content": parts}]) == chat_format.prompt([ASKED])


def test_tokenizer_without_a_chat_template_raises():
    with pytest.raises(OptionError, match="has no chat template"):
        rl.ChatFormat(character_tokenizer()).prompt([ASKED])


def test_messages_that_a_template_refuses_raise():
    tokenizer = tokenizer_of("gemma", "<end_of_turn>")
    with pytest.raises(OptionError, match="does not accept messages with the roles user, user: .*alternate"):
        rl.ChatFormat(tokenizer).prompt([ASKED, ASKED])


def test_invalid_response_template_raises():
    tokenizer = chat_tokenizer()
    tokenizer.response_template = {"fields": {}}
    with pytest.raises(OptionError, match=r"tokenizer\.response_template is not valid"):
        rl.ChatFormat(tokenizer)
