"""Lessons and the curriculum: drawing, unlocking, graduation, regression, state and validation."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import hookline as hl
from hookline._engine.errors import ConfigError, OptionError, UnknownNameError
from hookline.rl.environments import Arithmetic, Sorting
from hookline.rl.rollouts.config import Lesson
from hookline.rl.rollouts.curriculum import Curriculum, CurriculumConfig, CurriculumEvent


def lesson(name, *depends_on, **options):
    return Lesson(name, "sorting", depends_on=depends_on, **options)


def curriculum(*lessons, seed=0, **options):
    config = CurriculumConfig(lessons=list(lessons), **{"window": 10, "min_results": 4} | options)
    return Curriculum(config, seed=seed)


def chain(**options):
    """Three lessons, of which each needs the one before."""
    return curriculum(lesson("one"), lesson("two", "one"), lesson("three", "two"), **options)


def learn(course, *ids, step=1):
    for each in ids:
        course.record(each, [True] * 10, step)


def events_of(course):
    return [(event.kind, event.lesson, event.step) for event in course.take_events()]


def drawn(course, draws=2000, seed=0):
    rng = random.Random(seed)
    return Counter(course.sample_lesson(rng).id for _ in range(draws))


# Unlocking, learning, forgetting


def test_curriculum_at_the_start_has_only_lessons_without_dependencies():
    course = chain()
    assert course.states() == {"one": "active", "two": "locked", "three": "locked"}
    assert (course.active, course.locked, course.graduated) == (["one"], ["two", "three"], [])
    assert set(drawn(course)) == {"one"}
    assert course.take_events() == []


def test_curriculum_lesson_that_reaches_its_threshold_graduates_and_unlocks_the_next():
    course = chain()
    course.record("one", [True] * 9 + [False], 7)
    assert course.states() == {"one": "graduated", "two": "active", "three": "locked"}
    assert course.take_events() == [
        CurriculumEvent("graduated", "one", 7, 0.9),
        CurriculumEvent("unlocked", "two", 7, None),
    ]
    assert course.take_events() == []


def test_curriculum_waits_for_enough_results():
    course = chain()
    course.record("one", [True] * 3, 1)
    assert course.active == ["one"]
    course.record("one", [True], 2)
    assert course.graduated == ["one"]


def test_curriculum_lesson_waits_for_all_of_its_dependencies():
    course = curriculum(lesson("a"), lesson("b"), lesson("c", "a", "b"))
    learn(course, "a")
    assert course.locked == ["c"]
    learn(course, "b")
    assert course.active == ["c"]


def test_curriculum_counts_the_latest_results_only():
    course = chain()
    course.record("one", [False] * 10, 1)
    course.record("one", [True] * 9, 2)
    assert (course.success_rate("one"), course.graduated) == (0.9, ["one"])


def test_curriculum_lesson_that_is_forgotten_is_active_again_and_its_dependents_stay():
    course = chain()
    learn(course, "one", "two")
    course.take_events()
    course.record("one", [True] * 8 + [False] * 2, 5)
    assert events_of(course) == []
    course.record("one", [False], 6)
    assert course.states() == {"one": "active", "two": "graduated", "three": "active"}
    assert course.take_events() == [CurriculumEvent("regressed", "one", 6, 0.7)]
    learn(course, "one", step=8)
    assert events_of(course) == [("graduated", "one", 8)]


@pytest.mark.parametrize(("margin", "rate", "state"), [(0.0, 0.85, "active"), (0.3, 0.65, "graduated")])
def test_curriculum_regression_margin_decides_how_much_worse_is_forgotten(margin, rate, state):
    course = curriculum(lesson("one", threshold=0.9), regression_margin=margin)
    learn(course, "one")
    course.record("one", rate, 2, n=10)
    assert course.states() == {"one": state}


def test_curriculum_low_threshold_can_be_forgotten_too():
    course = curriculum(lesson("one", threshold=0.1))
    course.record("one", 0.1, 1, n=10)
    course.record("one", 0.06, 2, n=10)
    assert course.graduated == ["one"]
    course.record("one", 0.04, 3, n=10)
    assert course.active == ["one"]


def test_curriculum_lesson_learnt_while_locked_graduates_when_it_is_unlocked():
    course = curriculum(lesson("one"), lesson("two", "one"), lesson("other", "one"), lesson("three", "two", "other"))
    learn(course, "three", "two", "other")
    assert (course.locked, events_of(course)) == (["two", "other", "three"], [])
    learn(course, "one", step=9)
    assert events_of(course) == [
        ("graduated", "one", 9),
        ("unlocked", "two", 9),
        ("unlocked", "other", 9),
        ("graduated", "two", 9),
        ("graduated", "other", 9),
        ("unlocked", "three", 9),
        ("graduated", "three", 9),
    ]
    assert course.graduated == ["one", "two", "other", "three"]


# Results


def test_curriculum_success_rate_without_results_is_none():
    assert chain().success_rate("one") is None


def test_curriculum_rate_counts_as_n_results():
    course = chain()
    course.record("one", [False] * 6, 1)
    course.record("one", 0.5, 2, n=4)
    assert course.success_rate("one") == pytest.approx(0.2)
    course.record("one", 1.0, 3, n=1_000_000)
    assert course.success_rate("one") == 1.0


def test_curriculum_takes_one_result_and_none_at_all():
    course = chain()
    course.record("one", True, 1)
    course.record("one", [], 2)
    course.record("one", 0.5, 3, n=0)
    assert course.success_rate("one") == 1.0


@pytest.mark.parametrize("successes", [1.5, -0.1, float("nan"), [2], [True, float("nan")]])
def test_curriculum_results_out_of_range_raise_and_change_nothing(successes):
    course = chain()
    with pytest.raises(OptionError, match="successes="):
        course.record("one", successes, 1)
    assert course.success_rate("one") is None


def test_curriculum_config_takes_numpy_integers():
    config = CurriculumConfig([Lesson("sort", Sorting(2))], eval_frequency=np.int64(5), window=np.int32(60))
    assert (config.eval_frequency, type(config.eval_frequency), config.window) == (5, int, 60)
    assert len(Sorting(np.int64(2)).sample(np.int64(4), random.Random(0))) == 4


def test_curriculum_unknown_lesson_raises_with_the_closest_name():
    for call in (chain().success_rate, chain().lesson, lambda name: chain().record(name, [True], 1)):
        with pytest.raises(UnknownNameError, match="no lesson 'onee'. Did you mean 'one'"):
            call("onee")


# Draws


def test_curriculum_draws_lessons_with_middling_success_most():
    course = curriculum(lesson("hard"), lesson("middling"), lesson("good", threshold=1.0), window=100)
    course.record("hard", 0.0, 1, n=100)
    course.record("middling", 0.5, 1, n=100)
    course.record("good", 0.8, 1, n=100)
    counts = drawn(course)
    assert counts["middling"] > counts["good"] > counts["hard"] > 50


def test_curriculum_starves_no_active_lesson():
    lessons = [lesson(f"lesson {n}", threshold=1.0) for n in range(6)]
    course = curriculum(*lessons, window=1000)
    for each, rate in zip(lessons, (0.0, 0.999, 0.5, 0.5, 0.5, 0.5), strict=True):
        course.record(each.id, rate, 1, n=1000)
    likely = course.probabilities()
    assert sum(likely.values()) == pytest.approx(1)
    assert min(likely.values()) >= 0.1 / 6 * 0.99


def test_curriculum_draws_graduated_lessons_rarely():
    course = chain(review_share=0.2)
    learn(course, "one", "two")
    assert course.probabilities() == pytest.approx({"three": 0.8, "one": 0.1, "two": 0.1})
    counts = drawn(course)
    assert 0 < counts["one"] < counts["three"]


def test_curriculum_with_everything_learnt_prefers_the_weakest():
    course = curriculum(lesson("a", threshold=0.5), lesson("b", threshold=0.5))
    course.record("a", 0.6, 1, n=10)
    course.record("b", 1.0, 1, n=10)
    assert course.active == []
    assert drawn(course)["a"] > drawn(course)["b"] > 0


def test_curriculum_takes_one_number_from_the_generator_for_each_draw():
    course, rng, other = chain(), random.Random(3), random.Random(3)
    course.sample_lesson(rng)
    other.random()
    assert rng.getstate() == other.getstate()


def test_curriculum_without_a_generator_draws_by_its_seed():
    lessons = [lesson(name) for name in "abcdef"]

    def draws(seed):
        course = curriculum(*lessons, seed=seed)
        return [course.sample_lesson().id for _ in range(30)]

    assert draws(1) == draws(1) != draws(2)


# State


def test_curriculum_state_goes_through_json_and_on_from_there():
    course = chain()
    learn(course, "one")
    course.record("two", 0.4, 2, n=7)
    [course.sample_lesson() for _ in range(5)]
    restored = chain()
    restored.load_state_dict(json.loads(json.dumps(course.state_dict())))
    assert restored.state_dict() == course.state_dict()
    assert [restored.sample_lesson().id for _ in range(20)] == [course.sample_lesson().id for _ in range(20)]
    for each in (course, restored):
        each.record("one", [False] * 4, 3)
        learn(each, "two", step=4)
    assert restored.states() == course.states() == {"one": "active", "two": "graduated", "three": "active"}
    assert restored.take_events() == course.take_events() != []


def test_curriculum_state_of_other_lessons_is_loaded_partly_with_a_warning(caplog):
    course = chain()
    learn(course, "one", "two")
    later = curriculum(lesson("one"), lesson("new", "one"), lesson("last", "new"), lesson("two", "one"))
    later.load_state_dict(course.state_dict())
    assert later.states() == {"one": "graduated", "new": "active", "last": "locked", "two": "graduated"}
    assert "ignoring the saved lessons ['three']" in caplog.text


def test_curriculum_state_in_a_smaller_window_keeps_the_latest_results():
    course = chain()
    course.record("one", [True] * 5 + [False] * 5, 1)
    small = chain(window=5)
    small.load_state_dict(course.state_dict())
    assert small.success_rate("one") == 0.0


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"lessons": {}, "draws": 0},
        {"lessons": {"one": {"status": "done", "was_learnt": True, "results": []}}, "draws": 0, "events": []},
        {"lessons": {"one": {"status": "active"}}, "draws": 0, "events": []},
        {"lessons": [], "draws": 0, "events": []},
    ],
)
def test_curriculum_invalid_state_raises_and_changes_nothing(state):
    course = chain()
    learn(course, "one")
    before = course.state_dict()
    with pytest.raises(hl.CheckpointError, match="is not the state of a curriculum"):
        course.load_state_dict(state)
    assert course.state_dict() == before


# Configuration


def test_lesson_builds_its_environment_from_a_mapping_and_keeps_an_instance():
    mine = Sorting()
    made = Lesson("a", {"arithmetic": {"difficulty": "hard"}}, depends_on=["b"])
    assert (type(made.environment), made.environment.difficulty, made.depends_on) == (Arithmetic, "hard", ("b",))
    assert Lesson("a", mine).environment is mine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"id": " "}, "give a text that is not blank"),
        ({"id": 7}, "Lesson(id=7)"),
        ({"threshold": 0}, "threshold=0.0: give a number above 0, at most 1"),
        ({"threshold": 1.1}, "Lesson 'a': threshold=1.1"),
        ({"threshold": float("nan")}, "threshold=nan"),
        ({"depends_on": "other"}, "depends_on='other'"),
        ({"environment": "sortin"}, "Did you mean 'sorting'"),
        ({"environment": 7}, "7 is not an environment"),
    ],
)
def test_lesson_with_invalid_settings_raises(arguments, message):
    with pytest.raises((ConfigError, OptionError)) as caught:
        Lesson(**{"id": "a", "environment": "sorting"} | arguments)
    assert message in str(caught.value)


def test_curriculum_config_takes_lessons_and_mappings_and_can_be_changed():
    mine = lesson("a")
    config = CurriculumConfig(lessons=[mine, {"id": "b", "environment": "copying", "depends_on": ["a"]}])  # type: ignore[list-item]
    assert config.lessons[0] is mine
    assert (config.lessons[1].environment.name, config.lessons[1].depends_on) == ("copying", ("a",))
    assert (config.micro_eval_frequency, config.eval_frequency) == (10, 100)
    config.micro_eval_frequency = 5
    assert Curriculum(config).config.micro_eval_frequency == 5


def test_curriculum_from_a_mapping_is_that_of_the_config():
    course = Curriculum({"lessons": [{"id": "a", "environment": "sorting"}], "window": 7, "min_results": 1})
    assert (course.config.window, [each.id for each in course.lessons]) == (7, ["a"])


YAML = """\
lessons:
  - id: sums
    environment: {arithmetic: {difficulty: easy}}
    threshold: 0.8
  - id: explained
    environment: {reasoning: {environment: {arithmetic: {difficulty: medium}}}}
    depends_on: [sums]
eval_frequency: 0
"""


def test_curriculum_config_from_yaml_builds_the_environments():
    Path("lessons.yaml").write_text(YAML)
    config = CurriculumConfig.from_yaml("lessons.yaml", ["window=60"])
    sums, explained = config.lessons
    assert (sums.environment.difficulty, sums.threshold, config.eval_frequency, config.window) == ("easy", 0.8, 0, 60)
    assert (explained.environment.environment.difficulty, explained.depends_on) == ("medium", ("sums",))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("threshold: 0.8", "treshold: 0.8", "lessons[0].treshold: unknown key. Did you mean 'threshold'"),
        ("threshold: 0.8", "threshold: 8", "lessons[0]: Lesson 'sums': threshold=8.0"),
        ("easy", "easier", "easier"),
        ("[sums]", "[sum]", "Lesson 'explained' depends on 'sum', which is not a lesson. Did you mean 'sums'?"),
    ],
)
def test_curriculum_config_from_yaml_with_a_mistake_names_the_place(old, new, message):
    Path("lessons.yaml").write_text(YAML.replace(old, new))
    with pytest.raises(ConfigError, match="lessons.yaml") as caught:
        CurriculumConfig.from_yaml("lessons.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("lessons", "message"),
    [
        ([], "give at least one lesson"),
        ([lesson("a"), lesson("a")], "Two lessons have the id 'a'"),
        (
            [lesson("sums"), lesson("b", "sum")],
            "Lesson 'b' depends on 'sum', which is not a lesson. Did you mean 'sums'?",
        ),
        ([lesson("a", "a")], "in a circle, 'a' -> 'a'"),
        ([lesson("a"), lesson("b", "a", "d"), lesson("c", "b"), lesson("d", "c")], "-> 'b'"),
        ([lesson("a", "b"), lesson("b", "a")], "At least one lesson of a curriculum must not depend on another"),
    ],
)
def test_curriculum_config_unreachable_lessons_raise(lessons, message):
    with pytest.raises(OptionError) as caught:
        CurriculumConfig(lessons=lessons)
    assert message in str(caught.value)


def test_curriculum_config_circle_is_named_in_the_order_of_dependency():
    with pytest.raises(OptionError) as caught:
        CurriculumConfig(lessons=[lesson("x"), lesson("a", "b", "x"), lesson("b", "c"), lesson("c", "a")])
    circle = "'a' -> 'b' -> 'c' -> 'a' -> 'b' -> 'c'"
    (named,) = [part for part in str(caught.value).split(", ") if "->" in part]
    assert named in circle


@pytest.mark.parametrize(
    "options",
    [
        {"micro_eval_frequency": -1},
        {"eval_n_examples": 0},
        {"window": 10, "min_results": 11},
        {"regression_margin": 1.0},
        {"review_share": float("nan")},
        {"window": 2.5},
    ],
)
def test_curriculum_config_setting_out_of_range_raises_with_its_name(options):
    with pytest.raises(OptionError, match=rf"CurriculumConfig\({list(options)[-1]}="):
        CurriculumConfig(lessons=[lesson("a")], **options)
