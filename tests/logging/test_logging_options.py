"""Options of the logging functions that the other tests leave at the default: each changes what is recorded."""

from hookline.logging import log_generation_metrics, log_reward_metrics

TEXTS = ["one two", "three"]


def test_log_generation_metrics_finished_says_which_were_cut_off():
    shares = [
        log_generation_metrics(1, TEXTS, finished=flags)["generation/truncated"]
        for flags in (["stop", "length"], ["stop", "stop"])
    ]
    assert shares == [0.5, 0.0]


def test_log_generation_metrics_pattern_decides_what_the_format_is():
    metrics = log_generation_metrics(1, TEXTS, pattern=r"\w+ \w+")
    assert metrics["generation/format_adherence"] == 0.5


def test_log_reward_metrics_groups_tell_which_values_belong_together():
    rewards = {"exact": [1.0, 0.0, 1.0, 0.0]}
    apart = log_reward_metrics(1, rewards, groups=["a", "b", "a", "b"])
    mixed = log_reward_metrics(1, rewards, groups=["a", "a", "b", "b"])
    assert [found["rewards/exact/zero_std_groups"] for found in (apart, mixed)] == [1.0, 0.0]
