"""The library of reward functions: the values of each, for any text."""

import math
import pickle
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hookline as hl
from hookline.rewards import extract_reasoning_and_answer, extract_xml_answer, library

STRICT = "<reasoning>\ntwo and two\n</reasoning>\n<answer>\n4\n</answer>\n"
SOFT = "Well: <reasoning>two and two</reasoning> <answer>4</answer> So there."

FUNCTIONS = [
    library.xmlcount_reward_func,
    library.soft_format_reward_func,
    library.strict_format_reward_func,
    library.int_reward_func,
    library.correctness_reward_func,
    library.anti_repetition_reward_func,
    library.topic_relevance_reward_func,
    library.length_reward_func,
]
RANGES = {
    "xmlcount": (0, 0.5),
    "soft_format": (0, 0.5),
    "strict_format": (0, 0.5),
    "integer": (0, 0.5),
    "correctness": (0, 2),
    "anti_repetition": (-0.5, 0),
    "topic_relevance": (0, 0.5),
    "length": (0, 0.5),
}

tagged = st.lists(st.sampled_from(["<reasoning>", "</reasoning>", "<answer>", "</answer>", "\n", " 4", "word ", "<"]))
texts = st.one_of(st.text(), st.text(st.characters(categories=["Cs", "L", "Zs"])), tagged.map("".join))


def chat(text, role="assistant"):
    return [{"role": role, "content": text}]


def score(function, *completions, prompt="What is 2+2?", **columns):
    return function(prompts=[prompt] * len(completions), completions=list(completions), **columns)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.reward_name)
def test_library_function_goes_by_the_name_it_is_imported_by(function):
    assert getattr(library, function.__name__) is function
    assert pickle.loads(pickle.dumps(function)) == function


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.reward_name)
@given(prompt=texts, text=texts, answer=texts)
def test_library_function_with_any_text_stays_in_its_range(function, prompt, text, answer):
    low, high = RANGES[function.reward_name]
    (value,) = score(function, text, prompt=prompt, answer=[answer])
    assert value is None or (math.isfinite(value) and low <= value <= high)
    assert score(function, chat(text), prompt=chat(prompt, "user"), answer=[answer]) == [value]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.reward_name)
def test_library_function_of_no_completions_returns_no_rewards(function):
    assert function(prompts=[], completions=[], answer=[]) == []


@pytest.mark.parametrize(
    "text",
    ["<reasoning>" * 20_000, "<answer>" * 20_000, "<" * 200_000, "</reasoning>" + " " * 200_000, "1," * 100_000],
    ids=["open", "answers", "brackets", "white", "digits"],
)
def test_library_formats_of_degenerate_texts_take_little_time(text):
    began = time.process_time()
    for kind in (library.SoftFormat, library.StrictFormat, library.XMLCount, library.AntiRepetition):
        score(kind(), text)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        ("<answer>4</answer>", "4", True),
        ("<answer> 4.0 </answer>", 4, True),
        ("<answer>1,234</answer>", "1234", True),
        ("<answer>12,34</answer>", "1234", False),
        ("<answer>-.5</answer>", "-0.50", True),
        ("<answer>New\n York</answer>", "new york", True),
        ("<answer>3</answer><answer>4</answer>", "4", True),
        ("<answer>4</answer><answer>3</answer>", "4", False),
        ("<answer>4", "4", False),
        ("4", "4", False),
        ("", "4", False),
        ("<answer></answer>", "", True),
        ("<answer>nan</answer>", "nan", True),
    ],
)
def test_correctness_compares_the_tagged_answer(text, answer, right):
    assert score(library.Correctness(reward=3, wrong=-1), text, answer=[answer]) == [3 if right else -1]


def test_correctness_without_tags_compares_the_whole_text_if_allowed():
    loose = library.Correctness(tagged=False)
    assert score(loose, " 4 ", "<answer>5</answer>", answer=["4", "4"]) == [2.0, 0.0]


def test_correctness_of_a_question_without_an_answer_does_not_apply():
    assert score(library.Correctness(), "<answer>4</answer>", "x", answer=[None, "4"]) == [None, 0.0]


def test_correctness_finds_the_column_or_raises_with_the_closest():
    assert score(library.Correctness(), "<answer>4</answer>", solution=["4"]) == [2.0]
    assert score(library.Correctness(column="gold"), "<answer>4</answer>", gold=["4"], answer=["5"]) == [2.0]
    with pytest.raises(hl.OptionError, match="there is no column 'gold' with the right answers. Did you mean 'golds'"):
        score(library.Correctness(column="gold"), "4", golds=["4"])
    with pytest.raises(hl.OptionError, match="one of 'expected', 'answer'"):
        score(library.Correctness(), "4", topic=["4"])
    with pytest.raises(hl.OptionError, match="give a list of 1 right answers"):
        score(library.Correctness(), "4", answer="4")


def test_integer_takes_whole_numbers_only():
    texts = ["4", "-12", "+3", "1,234", "4.0", "four", "", "12,34", "4 apples"]
    given = score(library.Integer(reward=1), *(f"<answer>{text}</answer>" for text in texts))
    assert given == [1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert score(library.Integer(), "4", SOFT) == [0.0, 0.5]
    assert score(library.Integer(tagged=False), "4") == [0.5]


def test_formats_soft_and_strict():
    texts = [STRICT, SOFT, STRICT.strip(), "x" + STRICT, STRICT + STRICT, SOFT.replace("</answer>", ""), "", "4"]
    texts.append("<answer>4</answer><reasoning>late</reasoning>")
    assert score(library.SoftFormat(reward=1), *texts) == [1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert score(library.StrictFormat(reward=1), *texts) == [1, 0, 1, 0, 0, 0, 0, 0, 0]


def test_formats_take_other_signs_inside_the_tags():
    text = "<reasoning>\nif 1 < 2 and <b>bold</b>\n</reasoning>\n<answer>\n<4>\n</answer>"
    assert score(library.SoftFormat(), text) == [0.5]
    assert score(library.StrictFormat(), text) == [0.5]


def test_xmlcount_counts_tags_that_stand_once_and_what_follows():
    count = library.XMLCount(reward=1.0, trailing_penalty=0.01)
    texts = [STRICT, "<reasoning><answer>", "<answer><answer></answer>", STRICT + "0123456789", STRICT + "x" * 500, ""]
    assert score(count, *texts) == pytest.approx([1.0, 0.5, 0.25, 0.9, 0.0, 0.0])


def test_anti_repetition_costs_in_proportion_above_the_threshold():
    rule = library.AntiRepetition(penalty=1.0, threshold=0.5, run=1)
    texts = ["a b c d", "a a b b", "a a a b", "a " * 1000, "", "one"]
    assert score(rule, *texts) == pytest.approx([0, 0, 0, -0.998, 0, 0], abs=1e-9)
    assert score(library.AntiRepetition(penalty=1.0, threshold=0, run=1), "a A a b") == [-0.5]
    assert score(library.AntiRepetition(), "too short") == [0.0]


def test_topic_relevance_counts_key_words_of_the_question():
    rule = library.TopicRelevance(reward=1.0, threshold=1.0)
    ask = {"prompt": "What would apples and oranges cost?"}
    assert score(rule, "APPLES cost more.", "Oranges!", "Bananas.", **ask) == pytest.approx([2 / 3, 1 / 3, 0])
    assert score(library.TopicRelevance(reward=1.0, threshold=0.5), "apples, oranges", **ask) == [1.0]
    assert score(rule, "four", prompt="2+2?") == [None]


def test_topic_relevance_of_a_chat_uses_the_users_last_message():
    prompt = [*chat("Respond in tags", "system"), *chat("About pears", "user"), *chat("Yes?"), *chat("Plums", "user")]
    assert score(library.TopicRelevance(), "plums", "pears", prompt=prompt) == [0.5, 0.0]


def test_topic_relevance_of_a_column():
    rule = library.TopicRelevance(column="topic")
    assert score(rule, "cherries", "pears", topic=["cherries", "plums"]) == [0.5, 0.0]
    with pytest.raises(hl.OptionError, match="topic_relevance: topic=None"):
        score(rule, "cherries")


def test_length_is_right_between_its_limits():
    rule = library.Length(reward=1.0, minimum=4, maximum=10)
    words = ["w " * count for count in (0, 1, 4, 10, 15, 20, 100)]
    assert score(rule, *words) == [0.0, 0.25, 1.0, 1.0, 0.5, 0.0, 0.0]
    assert score(library.Length(reward=1, minimum=4, unit="characters"), "ab") == [0.5]


def test_length_in_tokens_counts_ids():
    rule = library.Length(reward=1.0, minimum=4, unit="tokens")
    assert score(rule, "a", "b", completion_ids=[[1, 2], [1, 2, 3, 4]]) == [0.5, 1.0]
    with pytest.raises(hl.OptionError, match="needs the ids of each completion"):
        score(rule, "a")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: library.Correctness(reward="2"), "Correctness\\(reward='2'\\)"),
        (lambda: library.Correctness(reward=0), "give more for right answers"),
        (lambda: library.Correctness(reward=math.inf), "reward=inf\\): give a finite number"),
        (lambda: library.SoftFormat(weight=math.nan), "weight=nan\\): give a finite number"),
        (lambda: library.XMLCount(trailing_penalty=-1), "at least 0"),
        (lambda: library.AntiRepetition(threshold=1.0), "below 1"),
        (lambda: library.AntiRepetition(penalty=-0.5), "it is subtracted"),
        (lambda: library.AntiRepetition(run=0), "at least 1"),
        (lambda: library.TopicRelevance(threshold=0), "above 0"),
        (lambda: library.Length(minimum=5, maximum=4), "at least 1 and the minimum"),
        (lambda: library.Length(unit="bytes"), "'words', 'characters', 'tokens'"),
    ],
)
def test_library_refuses_settings_that_make_no_sense(make, message):
    with pytest.raises(hl.OptionError, match=message):
        make()


def test_extract_xml_answer_and_reasoning():
    assert (extract_xml_answer(SOFT), extract_xml_answer("4")) == ("4", None)
    assert extract_reasoning_and_answer(STRICT) == ("two and two", "4")


def test_correctness_takes_the_answers_by_position_as_a_wrapper_of_the_plan_gives_them(caplog):
    from hookline.logging import get_reward_logger, log_reward

    correctness_reward_func = library.correctness_reward_func

    def wrapped_correctness_reward(prompts, completions, answer, **kwargs):
        """Wrapper around correctness_reward to log detailed metrics"""
        rewards = correctness_reward_func(prompts, completions, answer, **kwargs)

        # Log individual rewards
        reward_logger = get_reward_logger()  # noqa: F841
        for i, reward in enumerate(rewards):
            if i < len(completions) and i < len(answer):
                response = completions[i][0]["content"] if i < len(completions) else "N/A"
                expected = answer[i] if i < len(answer) else "N/A"  # noqa: F841
                extracted = extract_xml_answer(response)  # noqa: F841

                # Log via the reward system
                log_reward(reward_name="correctness", values=[reward], samples=[f"sample_{i}"])

        return rewards

    with caplog.at_level("INFO", "hookline.reward"):
        assert wrapped_correctness_reward(["2+2?"], [chat(SOFT)], ["4"], completion_ids=[[1]]) == [2.0]
    assert [each.partition(": ")[2] for each in caplog.messages] == ["reward correctness=[2]"]
