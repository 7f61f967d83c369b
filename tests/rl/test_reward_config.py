"""`RewardConfig`: reward functions from Python, a mapping, a file or constants; what does not fit is refused."""

import inspect
from types import SimpleNamespace

import pytest

import hookline as hl
from hookline import rewards
from hookline._record.records import Sample
from hookline.rewards import RewardConfig, library

SEED = ["xmlcount", "soft_format", "strict_format", "integer", "correctness", "anti_repetition", "topic_relevance"]


@pytest.fixture(autouse=True)
def _nothing_left():
    rewards.reset_statistics()
    yield
    rewards.flush()


def names(config):
    return [each.name for each in config.functions()]


def test_config_by_default_has_the_functions_of_the_plan_in_their_order():
    config = RewardConfig()
    assert names(config) == SEED
    assert config.weights() == [1.0] * 7
    assert [each.__name__ for each in config.functions()][:2] == ["xmlcount_reward_func", "soft_format_reward_func"]
    assert str(inspect.signature(config.functions()[0])).startswith("(prompts: Any, completions: Any, **columns: Any)")


def test_config_weight_of_zero_and_none_leave_a_function_out():
    config = RewardConfig(
        integer=library.Integer(weight=0), xmlcount=None, correctness=library.Correctness(weight=2), length={}
    )
    assert names(config) == [
        "soft_format",
        "strict_format",
        "correctness",
        "anti_repetition",
        "topic_relevance",
        "length",
    ]
    assert config.weights() == [1.0, 1.0, 2.0, 1.0, 1.0, 1.0]


def test_config_from_yaml_scores_and_records_with_weights(tmp_path):
    (tmp_path / "rewards.yaml").write_text(
        "correctness: {weight: 0.5, reward: 4, column: gold}\n"
        "length: {minimum: 2, reward: 1}\n"
        "topic_relevance: {weight: 0}\n"
        "xmlcount: null\nsoft_format: null\nstrict_format: null\ninteger: null\nanti_repetition: null\n"
        "on_error: skip\n"
    )
    config = RewardConfig.from_yaml(tmp_path / "rewards.yaml", ["length.minimum=4"])
    with hl.run("grpo", summary=False) as run:
        functions = config.functions(recorder=run)
        asked = {"prompts": ["2+2?"], "completions": ["<answer>4</answer> indeed"], "gold": ["4"], "step": 3}
        assert [function(**asked) for function in functions] == [[4.0], [0.5]]
    (sample,) = [each for each in hl.read(run.dir) if isinstance(each, Sample)]
    assert (sample.step, sample.expected, sample.rewards) == (3, "4", {"correctness": 4.0, "length": 0.5})
    assert sample.total == 0.5 * 4.0 + 0.5


def test_config_on_error_reaches_the_functions():
    config = RewardConfig.from_dict({"on_error": "skip"})
    correctness = config.functions()[4]
    assert correctness(prompts=["q"], completions=["a"]) == [None]  # there is no column with right answers
    with pytest.raises(hl.OptionError, match="right answers"):
        RewardConfig().functions()[4](prompts=["q"], completions=["a"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("corectness: {reward: 1}", "corectness: unknown key. Did you mean 'correctness'"),
        ("correctness: {rewrad: 1}", "correctness.rewrad: unknown key. Did you mean 'reward'"),
        ("correctness: {reward: much}", "correctness.reward.*'much' was given, float is accepted"),
        ("anti_repetition: {threshold: 2}", "below 1"),
        ("on_error: ignore", "'raise', 'skip'"),
    ],
)
def test_config_file_that_does_not_fit_raises_with_file_and_line(tmp_path, text, message):
    (tmp_path / "rewards.yaml").write_text(text)
    with pytest.raises(hl.ConfigError, match=message) as caught:
        RewardConfig.from_file(tmp_path / "rewards.yaml")
    assert "rewards.yaml" in str(caught.value)


def test_config_mapping_that_does_not_fit_raises():
    with pytest.raises(hl.ConfigError, match="Did you mean 'topic_relevance'"):
        RewardConfig.from_dict({"topic_relevant": {}})
    with pytest.raises(hl.ConfigError, match="Did you mean 'penalty'"):
        RewardConfig(anti_repetition={"penalti": 1})
    with pytest.raises(hl.OptionError, match="'raise', 'skip'"):
        RewardConfig(on_error="ignore")


def test_config_from_constants_of_a_training_script():
    module = SimpleNamespace(
        __name__="reward_config",
        CORRECTNESS_REWARD=3.0,
        CORRECTNESS_WEIGHT=2.0,
        INT_REWARD=0.25,
        STRICT_FORMAT_REWARD=1.0,
        XMLCOUNT_TRAILING_PENALTY=0.002,
        ANTI_REPETITION_PENALTY=0.75,
        TOPIC_RELEVANCE_THRESHOLD=0.3,
        LENGTH_MAXIMUM=50,
        MODEL_NAME="gemma",
        helper=print,
    )
    config = RewardConfig.from_constants(module)
    assert (config.correctness.reward, config.correctness.weight, config.integer.reward) == (3.0, 2.0, 0.25)
    assert (config.strict_format.reward, config.xmlcount.trailing_penalty) == (1.0, 0.002)
    assert (config.anti_repetition.penalty, config.topic_relevance.threshold) == (0.75, 0.3)
    assert config.length.maximum == 50
    assert config.soft_format == library.SoftFormat()


def test_config_constant_of_no_function_raises():
    with pytest.raises(hl.ConfigError, match="CORECTNESS_REWARD is not a setting .* Did you mean 'CORRECTNESS_REWARD'"):
        RewardConfig.from_constants({"CORECTNESS_REWARD": 1.0})
