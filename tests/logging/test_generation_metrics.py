"""Metrics of a batch of completions, against NumPy and by hand."""

import re

import numpy as np
import pytest

from hookline._engine.errors import OptionError
from hookline.logging.metrics import generation_metrics
from hookline.logging.payloads import extract_reasoning_and_answer

GOOD = "<reasoning>two and two</reasoning>\n<answer>four</answer>"
TEXTS = ["a b c d e", "a", "", "b b b b b b", GOOD]


def test_generation_metrics_lengths_agree_with_numpy():
    metrics = generation_metrics(TEXTS)
    words = [len(text.split()) for text in TEXTS]
    assert metrics["count"] == len(TEXTS)
    assert metrics["words/mean"] == pytest.approx(np.mean(words))
    assert metrics["words/std"] == pytest.approx(np.std(words))
    assert (metrics["words/min"], metrics["words/max"]) == (min(words), max(words))
    assert metrics["characters/mean"] == pytest.approx(np.mean([len(text) for text in TEXTS]))


def test_generation_metrics_token_counts_are_used_where_given():
    metrics = generation_metrics(["a b", "c"], token_counts=np.array([7, 3]))
    assert [metrics[f"tokens/{name}"] for name in ("mean", "std", "min", "max")] == [5, 2, 3, 7]
    assert metrics["words/mean"] == 1.5


def test_generation_metrics_distinct_counts_the_whole_batch():
    metrics = generation_metrics(["a b a", "a b"])
    assert metrics["distinct_1"] == 2 / 5
    assert metrics["distinct_2"] == 2 / 3


def test_generation_metrics_repetition_is_the_mean_over_those_long_enough():
    repeated = "w x y z w x y z"  # five runs of four, one of which comes again
    assert generation_metrics([repeated, "a b c d", "too short"])["repetition"] == pytest.approx((1 / 5 + 0) / 2)


@pytest.mark.parametrize(
    ("text", "is_well_formed"),
    [
        (GOOD, True),
        (f"  {GOOD}\n", True),
        ("<reasoning></reasoning><answer></answer>", True),
        (f"Well: {GOOD}", False),
        ("<reasoning>a</reasoning>", False),
        ("<answer>a</answer><reasoning>b</reasoning>", False),
        ("<reasoning>a</reasoning><reasoning>b</reasoning><answer>c</answer>", False),
        ("<reasoning>a<answer>b</answer></reasoning><answer>c</answer>", False),
        ("", False),
    ],
)
def test_generation_metrics_format_adherence_wants_one_reasoning_and_one_answer(text, is_well_formed):
    assert generation_metrics([text])["format_adherence"] == is_well_formed


@pytest.mark.parametrize(
    "pattern", [r"^<think>.*</think>$", re.compile(r"<THINK>.*</THINK>", re.DOTALL | re.IGNORECASE)]
)
def test_generation_metrics_pattern_given_decides_the_format(pattern):
    assert generation_metrics(["<think>a\nb</think>", GOOD], pattern=pattern)["format_adherence"] == 0.5


def test_generation_metrics_reasoning_to_answer_leaves_out_those_without_both():
    metrics = generation_metrics([GOOD, "<reasoning>a b c</reasoning><answer></answer>", "nothing"])
    assert metrics["reasoning_to_answer"] == 3
    assert "reasoning_to_answer" not in generation_metrics(["nothing"])


def test_generation_metrics_empty_share_counts_blank_texts_and_none():
    assert generation_metrics(["", " \n", None, "a"])["empty"] == 0.75


@pytest.mark.parametrize(
    "reported",
    [
        {"token_counts": [8, 3, 8], "max_length": 8},
        {"finished": [False, True, False]},
        {"finished": ["length", "stop", "length"]},
        {"finished": np.array([False, True, False])},
    ],
)
def test_generation_metrics_truncated_share_by_length_flags_or_reasons(reported):
    assert generation_metrics(["a", "b", "c"], **reported)["truncated"] == pytest.approx(2 / 3)


def test_generation_metrics_without_a_way_to_tell_have_no_truncated_share():
    assert "truncated" not in generation_metrics(["a"])


def test_generation_metrics_of_nothing_have_only_a_count():
    assert generation_metrics([]) == {"count": 0}
    assert generation_metrics([], max_length=5) == {"count": 0}


def test_generation_metrics_of_one_empty_text_have_no_shares_of_words():
    metrics = generation_metrics([""])
    assert metrics["words/std"] == 0
    assert not {"distinct_1", "distinct_2", "repetition"} & set(metrics)


def test_generation_metrics_of_chats_read_what_the_assistant_said():
    chats = [
        [{"role": "assistant", "content": GOOD}],
        [{"role": "tool", "content": "9 9 9 9"}, {"role": "assistant", "content": [{"type": "text", "text": "x y"}]}],
    ]
    assert generation_metrics(chats) == generation_metrics([GOOD, "x y"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"generations": "one text"}, "give a list of strings"),
        ({"generations": 3}, "give a list of strings"),
        ({"generations": ["a", 3]}, r"generations\[1\]=3"),
        ({"generations": ["a"], "token_counts": [1, 2]}, "each of the 1 generations"),
        ({"generations": ["a"], "token_counts": ["x"]}, "give whole numbers"),
        ({"generations": ["a"], "finished": [True, True]}, "each of the 1 generations"),
        ({"generations": ["a"], "max_length": 5}, "give token_counts too"),
        ({"generations": ["a"], "pattern": "("}, "give a regular expression"),
    ],
)
def test_generation_metrics_of_a_wrong_type_are_an_error(arguments, message):
    with pytest.raises(OptionError, match=message):
        generation_metrics(**arguments)


@pytest.mark.parametrize(
    ("output", "parts"),
    [
        (GOOD, ("two and two", "four")),
        ("<think>hm</think> <answer>1</answer> or <answer>2</answer>", ("hm", "2")),
        ("nothing", (None, None)),
        ("<reasoning>open", (None, None)),
    ],
)
def test_extract_reasoning_and_answer_takes_what_the_tags_mark(output, parts):
    assert extract_reasoning_and_answer(output) == parts
