"""Supervised fine-tuning: rows, labels, batches, packing and the loss, with real tokenizers and models."""

import json
import logging
import pickle

import msgspec
import pytest

from hookline._engine.errors import OptionError
from hookline.callbacks.throughput_monitor import samples_of, tokens_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hookline.loops.sft import (  # noqa: E402
    PackedDataset,
    PaddingCollator,
    SFTDataset,
    SFTOptions,
    TokenCounts,
    causal_lm_loss,
    check_packing,
    prepare,
    read_rows,
    token_counts,
    training_step,
)
from hookline.testing import character_tokenizer, tiny_causal_lm  # noqa: E402

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '[' + m.role[0] + ']' + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[a]' }}{% endif %}"
)
MARKED = (
    "{{ bos_token }}{% for m in messages %}{{ '[' + m.role[0] + ']' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% else %}{{ m.content + eos_token }}{% endif %}"
    "{% endfor %}"
)
FORGETFUL = TEMPLATE.replace("m.content", "(m.content if loop.last else 'x')")
SUMS = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(8) for b in range(3)]
CHAT = [
    {"role": "system", "content": "be"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "user", "content": "by"},
    {"role": "assistant", "content": "ok"},
]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def tokenizer(chat_template=None):
    return character_tokenizer(chat_template=chat_template)


def merging_tokenizer():
    """Byte-pair encoding in which "a" and "b" become one token; no BOS and no PAD."""
    from tokenizers import Tokenizer, models

    vocabulary = {"<eos>": 0, "a": 1, "b": 2, "ab": 3, "c": 4}
    made = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>")


def gpt2(attention="sdpa", **options):
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer()), n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2,
        attn_implementation=attention, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **options,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config)


def llama(attention="sdpa"):
    model = tiny_causal_lm(tokenizer(), hidden_size=32)
    model.set_attn_implementation(attention)
    return model


def sliding_mistral():
    config = transformers.MistralConfig(
        vocab_size=len(tokenizer()), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.MistralForCausalLM(config)


def tokens_and_trained(rows, tok, **options):
    """For each example, its tokens and those of them that are trained on."""
    examples = []
    for item in SFTDataset(rows, tok, SFTOptions(**options)):  # type: ignore[attr-defined]
        assert all(label in (-100, token) for token, label in zip(item["input_ids"], item["labels"], strict=True))
        chosen = [label for label in item["labels"] if label != -100]
        examples.append(tuple(" ".join(tok.convert_ids_to_tokens(ids)) for ids in (item["input_ids"], chosen)))
    return examples


def whole_batch(rows, **options):
    data, collate = prepare(rows, tokenizer(), SFTOptions(**options))
    return collate([data[i] for i in range(len(data))])


def loss_and_gradients(model, batch):
    model.zero_grad()
    outputs = training_step(model, batch)
    total = outputs["loss"] * outputs["tokens"]
    total.backward()
    return total.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_read_rows_of_a_jsonl_file_skips_blank_lines(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a\u2028b"}\n\n{"text": "\\u00fc"}\n', encoding="utf-8-sig")
    assert read_rows(file) == [{"text": "a\u2028b"}, {"text": "ü"}]


def test_read_rows_of_a_json_file_takes_a_list(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps(SUMS))
    assert read_rows(str(tmp_path / "rows.json")) == SUMS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl:2: not valid JSON: Expecting value"),
        (
            "a.jsonl",
            b'{"text": "a"}\n\n[1]\n',
            r"a\.jsonl:3: a value of type list, where an object is accepted: \{'pro",
        ),
        ("a.jsonl", b"\n \n", r"a\.jsonl: has no rows\. Each is one of"),
        ("a.jsonl", b'{"text": "\xff"}', r"a\.jsonl: is not UTF-8 text \(byte 10\)"),
        ("a.json", b'[\n{"text": "a"},\n{"text" "b"}]', r"a\.json:3: not valid JSON: Expecting ':' delimiter"),
        ("a.json", b'{"text": "a"}', r"a\.json: holds a value of type dict, where a list of rows is accepted"),
        ("a.json", b'[{"text": "a"}, null]', r"a\.json: row 1: None, where an object is accepted"),
        ("a.json", b"[]", r"a\.json: has no rows"),
        ("a.csv", b"text", r"a\.csv: rows are read from a \.jsonl or a \.json file"),
    ],
)
def test_read_rows_file_that_does_not_fit_is_an_error_with_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionError, match=message):
        read_rows(tmp_path / name)


def test_read_rows_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(OptionError, match=r"none\.jsonl: cannot be read: No such file"):
        read_rows(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "rows is empty: give at least one row"),
        ("rows.jsonl", r"Read a file with read_rows\(path\)"),
        ({"text": "a"}, "give a list of rows"),
        (None, "rows=None: give a list of rows"),
        ([{"text": "a"}, {"prompt": "a", "answer": "b"}], r"row 1: the keys are 'prompt', 'answer'; \{'prompt': text"),
        ([{}], "row 0: the keys are none"),
        (["a"], "row 0: a value of type str was given"),
        ([{"text": None}], "row 0: 'text' is None, text is accepted"),
        ([{"prompt": CHAT, "completion": "a"}], "'prompt' is a value of type list, text is accepted. A conversation"),
        ([{"messages": []}], "row 0: 'messages' is an empty list"),
        ([{"messages": "hi"}], "row 0: 'messages' is a value of type str"),
        ([{"messages": [{"role": "user"}]}], r"row 0: messages\[0\] has the content None, text is accepted"),
        ([{"messages": [CHAT[0], {"content": "a"}]}], r"row 0: messages\[1\] is \{'content': 'a'\}, \{'role': text"),
    ],
)
def test_sft_dataset_rows_that_do_not_fit_are_errors(rows, message):
    with pytest.raises(OptionError, match=message):
        SFTDataset(rows, tokenizer(TEMPLATE))


def test_sft_dataset_something_else_than_a_tokenizer_is_an_error():
    with pytest.raises(OptionError, match="tokenizer='gpt2': give a Hugging Face tokenizer"):
        SFTDataset(SUMS, "gpt2")


def test_sft_dataset_tokenizer_without_eos_is_an_error():
    tok = tokenizer()
    tok.eos_token = None
    with pytest.raises(OptionError, match="no EOS token, so a model could not learn to stop"):
        SFTDataset(SUMS, tok)


def test_sft_options_are_read_from_yaml_values():
    values = {"max_length": 64, "packing": True, "truncate": "left", "pad_to_multiple_of": 8}
    options = msgspec.convert(values, SFTOptions)
    assert options == SFTOptions(max_length=64, packing=True, truncate="left", pad_to_multiple_of=8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_length": 1}, "max_length=1: give a whole number of at least 2"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of=0: give a whole number of at least 1"),
        ({"packing": "yes"}, "packing='yes': give true or false"),
        ({"truncate": "rigth"}, "truncate='rigth': give one of right, left, drop, error. Did you mean 'right'"),
    ],
)
def test_sft_options_values_that_do_not_fit_are_errors(values, message):
    with pytest.raises(OptionError, match=message):
        SFTOptions(**values)


def test_sft_options_unknown_key_is_an_error():
    with pytest.raises(msgspec.ValidationError, match="unknown field `pack`"):
        msgspec.convert({"pack": True}, SFTOptions)


def test_sft_dataset_prompt_is_masked_and_eos_is_trained_on():
    item = SFTDataset([{"prompt": "1+1=", "completion": "2"}], tokenizer())[0]
    plus, equals = (tokenizer().convert_tokens_to_ids(character) for character in "+=")
    assert item == {
        "input_ids": [1, 5, plus, 5, equals, 6, 2],
        "labels": [-100, -100, -100, -100, -100, 6, 2],
    }


@pytest.mark.parametrize(
    ("row", "tokens", "trained"),
    [
        ({"prompt": "ab", "completion": ""}, "<bos> a b <eos>", "<eos>"),
        ({"prompt": "", "completion": "ab"}, "<bos> a b <eos>", "a b <eos>"),
        ({"prompt": "<bos>a", "completion": "b<eos>"}, "<bos> a b <eos>", "b <eos>"),
        ({"prompt": "a<eos>", "completion": ""}, "<bos> a <eos> <eos>", "<eos>"),
        ({"text": "ab", "id": 7}, "<bos> a b <eos>", "a b <eos>"),
        ({"text": ""}, "<bos> <eos>", "<eos>"),
    ],
)
def test_sft_dataset_begins_with_bos_and_ends_with_eos_once(row, tokens, trained):
    assert tokens_and_trained([row], tokenizer()) == [(tokens, trained)]


def test_sft_dataset_train_on_prompt_trains_on_all_but_the_first():
    row = {"prompt": "a", "completion": "b"}
    assert tokens_and_trained([row], tokenizer(), train_on_prompt=True) == [("<bos> a b <eos>", "a b <eos>")]


@pytest.mark.parametrize(
    ("row", "tokens", "trained"),
    [
        ({"prompt": "a", "completion": "bc"}, "a b c <eos>", "b c <eos>"),
        ({"prompt": "ab", "completion": "ab"}, "ab ab <eos>", "ab <eos>"),
        ({"prompt": "", "completion": "cab"}, "c ab <eos>", "ab <eos>"),
    ],
)
def test_sft_dataset_token_never_lies_across_the_end_of_the_prompt(row, tokens, trained):
    assert tokens_and_trained([row], merging_tokenizer()) == [(tokens, trained)]


@pytest.mark.parametrize("template", [TEMPLATE, MARKED], ids=["rendered", "marked"])
def test_sft_dataset_messages_train_on_the_turns_of_the_assistant(template):
    ((tokens, trained),) = tokens_and_trained([{"messages": CHAT}], tokenizer(template))
    assert tokens.replace(" ", "") == "<bos>[s]be<eos>[u]hi<eos>[a]yo<eos>[u]by<eos>[a]ok<eos>"
    assert trained == "y o <eos> o k <eos>"


def test_sft_dataset_messages_of_several_turns_of_the_assistant_in_a_row():
    ((_, trained),) = tokens_and_trained([{"messages": [*CHAT[:3], CHAT[4]]}], tokenizer(TEMPLATE))
    assert trained == "y o <eos> o k <eos>"


def test_sft_dataset_messages_with_train_on_prompt_train_on_all_but_the_first():
    item = SFTDataset([{"messages": CHAT}], tokenizer(FORGETFUL), SFTOptions(train_on_prompt=True))[0]
    assert item["labels"] == [-100, *item["input_ids"][1:]]


def test_sft_dataset_messages_without_a_chat_template_are_an_error():
    with pytest.raises(OptionError, match="row 0: has messages, but the tokenizer has no chat template: set sft"):
        SFTDataset([{"messages": CHAT}], tokenizer())


def test_sft_dataset_template_that_renders_earlier_turns_differently_is_an_error():
    with pytest.raises(OptionError, match=r"renders messages\[2\] differently once more follow.*generation"):
        SFTDataset([{"messages": CHAT}], tokenizer(FORGETFUL))


def test_sft_dataset_template_that_refuses_is_an_error_with_the_row():
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(OptionError, match="row 0: the chat template rejects its messages: .*roles must alternate"):
        SFTDataset([{"messages": CHAT}], tokenizer(template))


@pytest.mark.parametrize(
    ("truncate", "kept", "side"),
    [("right", ("<bos> a b c", "c"), "end"), ("left", ("b c d <eos>", "c d <eos>"), "beginning")],
)
def test_sft_dataset_long_example_is_cut_and_said_once(caplog, truncate, kept, side):
    rows = [
        {"prompt": "ab", "completion": "cd"},
        {"prompt": "a", "completion": "b"},
        {"prompt": "ab", "completion": "cd"},
    ]
    short = ("<bos> a b <eos>", "b <eos>")
    assert tokens_and_trained(rows, tokenizer(), max_length=4, truncate=truncate) == [kept, short, kept]
    assert caplog.messages == [
        f"2 of 3 examples are longer than max_length=4 (the longest has 6 tokens) and lost their {side}."
    ]


def test_sft_dataset_example_without_completion_left_is_left_out_and_said(caplog):
    rows = [{"prompt": "abcdef", "completion": "g"}, {"prompt": "a", "completion": "b"}]
    data = SFTDataset(rows, tokenizer(), SFTOptions(max_length=4))
    assert (len(data), data.cut, data.dropped) == (1, 1, 1)
    assert caplog.messages[1] == ("1 of 2 examples have no token to train on within max_length=4 and were left out.")


def test_sft_dataset_long_examples_can_be_left_out(caplog):
    rows = [{"text": "abcdef"}, {"text": "a"}]
    data = SFTDataset(rows, tokenizer(), SFTOptions(max_length=4, truncate="drop"))
    assert (len(data), data.cut, data.dropped) == (1, 0, 1)
    assert caplog.messages == ["1 of 2 examples are longer than max_length=4 and were left out."]


def test_sft_dataset_long_example_can_be_an_error():
    with pytest.raises(OptionError, match="row 1: has 8 tokens, max_length=4: give a larger max_length"):
        SFTDataset([{"text": "a"}, {"text": "abcdef"}], tokenizer(), SFTOptions(max_length=4, truncate="error"))


def test_sft_dataset_conversation_without_the_assistant_is_left_out(caplog):
    data = SFTDataset([{"messages": CHAT}, {"messages": CHAT[:2]}], tokenizer(TEMPLATE))
    assert (len(data), data.dropped) == (1, 1)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_sft_dataset_with_nothing_to_train_on_is_an_error():
    with pytest.raises(OptionError, match="None of the 2 rows has a token to train on within max_length=3"):
        SFTDataset([{"prompt": "abc", "completion": "d"}] * 2, tokenizer(), SFTOptions(max_length=3))


def test_padding_collator_pads_on_the_right_and_masks_it():
    batch = whole_batch([{"prompt": "1", "completion": "2"}, {"text": "1"}], pad_to_multiple_of=3)
    assert {name: value.tolist() for name, value in batch.items() if name != "counts"} == {
        "input_ids": [[1, 5, 6, 2, 0, 0], [1, 5, 2, 0, 0, 0]],
        "labels": [[-100, -100, 6, 2, -100, -100], [-100, 5, 2, -100, -100, -100]],
        "attention_mask": [[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]],
    }
    assert batch["counts"] == TokenCounts(trained=4, tokens=7, padded=12, examples=2)


def test_padding_collator_tokenizer_without_pad_token_pads_with_eos():
    tok = merging_tokenizer()
    data = SFTDataset([{"text": "ab"}, {"text": "cab"}], tok)
    batch = PaddingCollator(tok)([data[0], data[1]])
    assert batch["input_ids"].tolist() == [[3, 0, 0], [4, 3, 0]]
    assert batch["labels"].tolist() == [[-100, 0, -100], [-100, 3, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]


def test_padding_collator_items_that_do_not_go_together_are_errors():
    data, collate = prepare(SUMS, tokenizer(), SFTOptions(packing=True))
    with pytest.raises(OptionError, match="0 items were given"):
        collate([])
    with pytest.raises(OptionError, match="2 items were given: give at least one, all packed or all not"):
        collate([data[0], data.dataset[0]])


def test_padding_collator_multiple_that_does_not_fit_is_an_error():
    with pytest.raises(OptionError, match="pad_to_multiple_of=-8"):
        PaddingCollator(tokenizer(), pad_to_multiple_of=-8)


@pytest.mark.parametrize("packing", [False, True])
def test_batches_come_from_the_workers_of_a_data_loader(packing):
    data, collate = prepare(SUMS, tokenizer(), SFTOptions(packing=packing, max_length=32))
    loaders = [torch.utils.data.DataLoader(each, batch_size=3, collate_fn=collate) for each in (data, copied(data))]
    first, second = ([batch["input_ids"].tolist() for batch in loader] for loader in loaders)
    assert first == second
    assert copied(collate)([data[0]])["counts"] == collate([data[0]])["counts"]


def copied(value):
    """As a worker process gets it."""
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("packing", [False, True])
def test_token_counts_without_those_of_the_collator_come_from_the_tensors(packing):
    batch = whole_batch(SUMS, packing=packing, max_length=16)
    counted, counts = token_counts({**batch, "counts": None}), token_counts(batch)
    assert (counted.trained, counted.padded) == (counts.trained, counts.padded)
    if not packing:  # the padding of packed rows does not show
        assert counted == counts


@pytest.mark.parametrize("packing", [False, True])
def test_token_counts_never_look_at_the_device(packing):
    batch = whole_batch(SUMS, packing=packing)
    moved = {name: v.to("meta") if isinstance(v, torch.Tensor) else v for name, v in batch.items()}
    assert token_counts(moved) == token_counts(batch)


def test_token_counts_say_how_many_examples_are_packed():
    assert token_counts(whole_batch(SUMS, packing=True)).examples == len(SUMS)


def test_batch_shows_its_samples_and_tokens_to_monitors():
    batch = whole_batch(SUMS)
    assert (samples_of(batch), tokens_of(batch)) == (len(SUMS), token_counts(batch).padded)


def test_packed_dataset_concatenates_examples_with_positions_of_their_own():
    data = PackedDataset(SFTDataset([{"text": "1"}, {"prompt": "1", "completion": "2"}], tokenizer()))
    assert [data[i] for i in range(len(data))] == [
        {
            "input_ids": [1, 5, 2, 1, 5, 6, 2],
            "labels": [-100, 5, 2, -100, -100, 6, 2],
            "position_ids": [0, 1, 2, 0, 1, 2, 3],
        }
    ]


def test_packed_dataset_has_each_example_once_in_full_rows():
    rows = [{"text": "x" * (1 + 7 * i % 13)} for i in range(50)]
    data = PackedDataset(SFTDataset(rows, tokenizer(), SFTOptions(max_length=16)))
    lengths = data.dataset.lengths()
    assert sorted(i for row in data.rows for i in row) == list(range(50))
    assert max(len(data[i]["input_ids"]) for i in range(len(data))) <= 16
    assert len(data) <= -(-sum(lengths) // 16) + 1
    assert [row[0] for row in data.rows] == sorted(row[0] for row in data.rows)
    assert data.rows == PackedDataset(data.dataset).rows


def test_packed_dataset_max_length_stands_above_that_of_the_examples():
    data = SFTDataset([{"text": "1"}] * 4, tokenizer(), SFTOptions(max_length=12))  # of three tokens each
    assert [PackedDataset(data, room).rows for room in (None, 6)] == [[[0, 1, 2, 3]], [[0, 1], [2, 3]]]


def test_packed_dataset_rows_that_are_too_short_are_an_error():
    data = SFTDataset([{"text": "abc"}], tokenizer())
    with pytest.raises(OptionError, match="max_length=4: an example has 5 tokens. Give at least that"):
        PackedDataset(data, 4)


def test_packed_batch_pads_rows_with_a_sequence_of_its_own():
    batch = whole_batch([{"text": "12"}, {"text": "1"}, {"text": "1"}], packing=True, max_length=6)
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1], [0, 1, 2, 0, 1, 2]]
    assert batch["labels"].tolist()[0] == [-100, 5, 6, 2, -100, -100]
    assert "attention_mask" not in batch
    assert batch["counts"] == TokenCounts(trained=7, tokens=10, padded=12, examples=3)


@pytest.mark.parametrize("max_length", [16, 512], ids=["several-rows", "one-row"])
@pytest.mark.parametrize("train_on_prompt", [False, True])
@pytest.mark.parametrize(
    "make",
    [llama, lambda: llama("eager"), gpt2, lambda: gpt2("eager"), sliding_mistral],
    ids=["llama-sdpa", "llama-eager", "gpt2-sdpa", "gpt2-eager", "mistral-sliding"],
)
def test_packed_batch_has_the_loss_and_gradients_of_the_padded_one(make, max_length, train_on_prompt):
    rows = [*SUMS[:7], {"text": "what is it"}, {"prompt": "", "completion": "x"}]
    model, options = make(), {"train_on_prompt": train_on_prompt, "max_length": max_length}
    packed = whole_batch(rows, packing=True, **options)
    assert (len(packed["input_ids"]) > 1) == (max_length == 16)
    loss, gradients = loss_and_gradients(model, whole_batch(rows, **options))
    packed_loss, packed_gradients = loss_and_gradients(model, packed)
    torch.testing.assert_close(packed_loss, loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed_gradients, gradients, rtol=1e-5, atol=1e-5)


def test_packed_batch_of_a_model_that_mixes_examples_is_an_error():
    config = transformers.MambaConfig(vocab_size=len(tokenizer()), hidden_size=16, num_hidden_layers=1, state_size=4)
    model = transformers.MambaForCausalLM(config)
    with pytest.raises(OptionError, match="packing: MambaForCausalLM .* lets packed examples see each other"):
        training_step(model, whole_batch(SUMS, packing=True))


def test_packed_batch_of_a_model_without_positions_is_an_error():
    config = transformers.BloomConfig(vocab_size=len(tokenizer()), hidden_size=16, n_layer=1, n_head=2)
    with pytest.raises(OptionError, match="packing: BloomForCausalLM .* set packing to false"):
        training_step(transformers.BloomForCausalLM(config), whole_batch(SUMS, packing=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_check_packing_tells_models_apart_in_any_precision(make, dtype):
    model = make().to(dtype)
    check_packing(model)

    class Mixing(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, position_ids, **options):
            return self.model(input_ids, **options)

    with pytest.raises(OptionError, match="packing: Mixing"):
        check_packing(Mixing())


def test_check_packing_leaves_training_modes_and_random_state_alone():
    model = gpt2()
    model.train()
    model.transformer.h[0].eval()
    before, state = [module.training for module in model.modules()], torch.random.get_rng_state()
    check_packing(model)
    assert [module.training for module in model.modules()] == before
    assert torch.equal(torch.random.get_rng_state(), state)


class FlashLike(torch.nn.Module):  # type: ignore[name-defined]
    """A model whose attention finds sequences in a single row only; any other shape of packed rows it refuses."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.config = transformers.LlamaConfig()
        self.config._attn_implementation = "flash_attention_2"

    def forward(self, input_ids, position_ids, use_cache):
        assert len(input_ids) == 1
        return self.inner(input_ids=input_ids, position_ids=position_ids, use_cache=use_cache)


def test_packed_batch_for_flash_attention_is_one_row_with_the_same_loss():
    batch, model = whole_batch(SUMS, packing=True, max_length=16), llama()
    assert len(batch["input_ids"]) > 1
    torch.testing.assert_close(training_step(FlashLike(model), batch), training_step(model, batch))


@pytest.mark.parametrize("make", [llama, gpt2])
def test_causal_lm_loss_is_that_of_the_model(make):
    model, batch = make(), whole_batch(SUMS)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    outputs = model(**inputs)
    torch.testing.assert_close(causal_lm_loss(outputs.logits, batch["labels"]), outputs.loss)
    step = training_step(model, batch)
    torch.testing.assert_close(step["loss"], outputs.loss)
    assert step["tokens"] == int((batch["labels"] != -100).sum())


def test_training_step_batch_without_labels_has_a_loss_of_zero_with_a_graph():
    model, batch = llama(), whole_batch(SUMS)
    batch["labels"] = torch.full_like(batch["labels"], -100)
    outputs = training_step(model, {**batch, "counts": None})
    outputs["loss"].backward()
    assert (outputs["loss"].item(), outputs["tokens"]) == (0.0, 0)
    assert all(not p.grad.any() for p in model.parameters())
    assert causal_lm_loss(torch.zeros(1, 4, 8), batch["labels"][:1, :4]).item() == 0.0


def test_causal_lm_loss_parts_of_a_step_divided_by_its_tokens_add_up():
    logits, labels = torch.randn(4, 6, 9), torch.randint(0, 9, (4, 6))
    labels[0, :4] = -100
    tokens = int((labels[:, 1:] != -100).sum())
    parts = [causal_lm_loss(logits[part], labels[part], tokens=tokens) for part in (slice(2), slice(2, 4))]
    torch.testing.assert_close(sum(parts), causal_lm_loss(logits, labels))


@pytest.mark.parametrize("packing", [False, True])
def test_training_step_learns_sums_so_that_the_model_answers(packing):
    tok = tokenizer()
    model, batch = tiny_causal_lm(tok), whole_batch(SUMS, packing=packing, max_length=48)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(80):
        outputs = training_step(model, batch)
        optimizer.zero_grad()
        outputs["loss"].backward()
        optimizer.step()
        losses.append(outputs["loss"].item())
    assert losses[0] > 4
    assert losses[-1] < 0.1
    prompt = tok("6+2=", return_tensors="pt", return_token_type_ids=False)
    answer = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert tok.decode(answer[0]) == "<bos>6+2=8<eos>"


def test_sft_dataset_chat_template_of_the_options_is_used_and_the_tokenizer_keeps_its_own(tmp_path):
    template = "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }};{% endfor %}"
    (tmp_path / "chat.jinja").write_text(template)
    own = tokenizer()
    for given in (template, str(tmp_path / "chat.jinja")):
        data = SFTDataset([{"messages": CHAT}], own, SFTOptions(chat_template=given, train_on_prompt=True))
        assert own.decode(data[0]["input_ids"]).startswith(CHAT[0]["role"][0] + CHAT[0]["content"])
    assert own.chat_template is None


def test_sft_dataset_chat_template_that_is_no_file_is_an_error():
    with pytest.raises(OptionError, match="neither a Jinja template nor a file"):
        SFTDataset([{"messages": CHAT}], tokenizer(), SFTOptions(chat_template="nowhere.jinja"))
