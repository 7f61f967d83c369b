"""A tokenizer and a model of transformers, made in memory."""

import sys

import pytest

from hookline._engine.errors import MissingExtraError, OptionError
from hookline.testing import character_tokenizer, tiny_causal_lm

pytest.importorskip("transformers")

TEMPLATE = "{% for m in messages %}{{ m.role[0] + ':' + m.content + eos_token }}{% endfor %}"


def test_character_tokenizer_has_one_token_for_each_character_after_bos():
    tokenizer = character_tokenizer("ab \n")
    assert tokenizer.convert_ids_to_tokens(tokenizer("a b\nz").input_ids) == ["<bos>", "a", " ", "b", "\n", "<unk>"]
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id")
    assert [getattr(tokenizer, name) for name in names] == [0, 1, 2, 3]
    assert len(tokenizer) == 8


def test_character_tokenizer_decoding_gives_the_text_back():
    tokenizer = character_tokenizer()
    text = "3 + 4 = 7,  isn't it ?\n\nYes."
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


def test_character_tokenizer_special_tokens_in_text_are_special():
    tokenizer = character_tokenizer("ab")
    assert tokenizer("a<eos>b", add_special_tokens=False).input_ids == [4, 2, 5]


def test_character_tokenizer_repeated_characters_count_once():
    assert len(character_tokenizer("abab")) == 6


def test_character_tokenizer_saved_and_loaded_is_the_same(tmp_path):
    from transformers import AutoTokenizer

    tokenizer = character_tokenizer("helo wrd", chat_template=TEMPLATE)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "hello"}]
    for each in (tokenizer, loaded):
        assert each("hello world").input_ids == [1, 4, 5, 6, 6, 7, 8, 9, 7, 10, 6, 11]
        assert each.decode(each("hello world").input_ids, skip_special_tokens=True) == "hello world"
        assert each.apply_chat_template(messages, tokenize=False) == "u:hello<eos>"
    assert (loaded.pad_token, loaded.eos_token) == ("<pad>", "<eos>")


@pytest.mark.parametrize("alphabet", ["", None, ["a"]])
def test_character_tokenizer_alphabet_that_is_no_text_is_an_error(alphabet):
    with pytest.raises(OptionError, match="give the characters as text"):
        character_tokenizer(alphabet)


def test_tiny_causal_lm_same_seed_gives_the_same_weights_and_leaves_the_random_state(torch):
    tokenizer = character_tokenizer("ab")
    state = torch.random.get_rng_state()
    one, same, other = (tiny_causal_lm(tokenizer, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = [model.model.embed_tokens.weight for model in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_tiny_causal_lm_fits_the_tokenizer_and_the_sizes(torch):
    tokenizer = character_tokenizer("ab")
    model = tiny_causal_lm(tokenizer, hidden_size=16, layers=3, heads=2)
    assert model.config.architectures is None or model.config.architectures == ["LlamaForCausalLM"]
    assert (len(model.model.layers), model.config.num_attention_heads, model.config.hidden_size) == (3, 2, 16)
    assert model.get_input_embeddings().num_embeddings == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_tiny_causal_lm_by_default_is_about_a_hundred_thousand_parameters(torch):
    size = sum(p.numel() for p in tiny_causal_lm(character_tokenizer()).parameters())
    assert 80_000 < size < 130_000


def test_tiny_causal_lm_saved_and_loaded_generates_the_same(torch, tmp_path):
    from transformers import AutoModelForCausalLM

    tokenizer = character_tokenizer()
    model = tiny_causal_lm(tokenizer)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    prompt = tokenizer("2+2=", return_tensors="pt", return_token_type_ids=False)
    answers = [each.generate(**prompt, max_new_tokens=8, do_sample=False).tolist() for each in (model, loaded)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"hidden_size": 0}, "hidden_size=0: give a whole number of at least 1"),
        ({"layers": 1.5}, "layers=1.5"),
        ({"heads": True}, "heads=True"),
        ({"hidden_size": 20, "heads": 4}, "hidden_size=20: give a multiple of 2 \\* heads, which is 8"),
    ],
)
def test_tiny_causal_lm_sizes_that_do_not_fit_are_errors(sizes, message):
    with pytest.raises(OptionError, match=message):
        tiny_causal_lm(character_tokenizer("a"), **sizes)


def test_tiny_model_without_transformers_says_how_to_install_it(monkeypatch):
    tokenizer = character_tokenizer("a")
    monkeypatch.setitem(sys.modules, "transformers", None)
    for make in (character_tokenizer, lambda: tiny_causal_lm(tokenizer)):
        with pytest.raises(MissingExtraError, match=r"pip install 'hookline\[hf\]'"):
            make()
