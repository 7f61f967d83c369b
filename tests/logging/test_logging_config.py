"""A configuration is checked whole, and an error says where it is wrong."""

import copy
import json
import logging
from pathlib import Path

import pytest

from hookline._engine.errors import ConfigError
from hookline.logging import Categories, MetricSettings
from hookline.logging.config import read_plan

YAML = """\
version: 1
root:
  level: INFO
  handlers: [console]
loggers:
  logging.training:
    level: INFO
    handlers: [console, csv]
handlers:
  console:
    class: logging.StreamHandler
    formatter: json
  csv:
    class: logging.custom.CSVHandler
    filename: out.csv
    columns: [a]
formatters:
  json:
    format: json
    fields: [message]
metrics:
  logging_frequency: 5
  enable:
    reward_metrics: true
"""


def write(text):
    Path("logging.yaml").write_text(text)
    return "logging.yaml"


def test_config_names_of_topics_and_handlers_are_understood_both_ways():
    theirs = read_plan(write(YAML)).dictionary
    ours = YAML.replace("logging.training", "hookline.training").replace("logging.custom.", "hookline.logging.")
    assert theirs == read_plan(write(ours)).dictionary
    assert list(theirs["loggers"]) == ["hookline.training"]


def test_config_as_json_is_the_same(tmp_path):
    import yaml

    (tmp_path / "logging.json").write_text(json.dumps(yaml.safe_load(YAML)))
    assert read_plan(tmp_path / "logging.json").dictionary == read_plan(write(YAML)).dictionary


def test_config_metrics_become_settings():
    plan = read_plan({"metrics": {"logging_frequency": 5, "sampling_ratio": 0, "enable": {"reward_metrics": False}}})
    enable = Categories(reward_metrics=False)
    assert plan.settings == MetricSettings(logging_frequency=5, sampling_ratio=0.0, enable=enable)


def test_config_given_as_a_dict_is_left_as_it_is():
    given = {
        "handlers": {"csv": {"class": "logging.custom.CSVHandler", "filename": "a.csv"}},
        "metrics": {"enable": None},
    }
    before = copy.deepcopy(given)
    read_plan(given)
    assert given == before


@pytest.mark.parametrize(
    ("right", "wrong", "line", "message"),
    [
        ("version: 1", "version: 2", 1, "version: 2 was given, 1 is accepted"),
        ("root:", "rot:", 2, "rot: unknown key. Did you mean 'root'?"),
        ("level: INFO", "level: INFOS", 3, "'INFOS' is not a level. Did you mean 'INFO'?"),
        ("handlers: [console]", "handlers: [consol]", 4, "there is no handler 'consol'. Did you mean 'console'?"),
        ("handlers: [console]", "handlers: console", 4, "'console' was given, a list of handlers is needed"),
        ("logging.training", "logging.trainig", 6, "no such topic. Did you mean 'logging.training'?"),
        ("logging.training", "hookline.trainig", 6, "no such topic. Did you mean 'hookline.training'?"),
        ("handlers: [console, csv]", "propagates: no", 8, "unknown key. Did you mean 'propagate'?"),
        ("handlers: [console, csv]", "propagate: 3", 8, "3 was given, true or false is accepted"),
        ("logging.StreamHandler", "logging.StreamHandlr", 11, "'logging.StreamHandlr' cannot be imported"),
        ("logging.StreamHandler", "logging.StreamHndler", 11, "Did you mean 'logging.StreamHandler'?"),
        ("logging.StreamHandler", "logging.Formatter", 11, "which is not a handler class"),
        ("formatter: json", "formatter: jsn", 12, "there is no formatter 'jsn'. Did you mean 'json'?"),
        ("custom.CSVHandler", "custom.CSVHandlr", 14, "Did you mean 'CSVHandler'?"),
        ("columns: [a]", "colums: [a]", 16, "unknown argument. Did you mean 'columns'?"),
        ("columns: [a]", "columns: a", 16, "'a' was given"),
        ("columns: [a]", "buffer_size: many", 16, "'many' was given, int is accepted"),
        ("format: json", "format: '%(message)s'", 20, "fields are for format: json"),
        ("fields: [message]", "feelds: [message]", 20, "unknown key. Did you mean 'fields'?"),
        ("logging_frequency: 5", "logging_frequenci: 5", 22, "Did you mean 'logging_frequency'?"),
        ("logging_frequency: 5", "logging_frequency: 0", 22, "give a whole number of at least 1"),
        ("logging_frequency: 5", "sampling_ratio: 2", 22, "give a finite number of at least 0 and of at most 1"),
        ("reward_metrics: true", "rewards: true", 24, "Did you mean 'reward_metrics'?"),
        ("reward_metrics: true", "reward_metrics: often", 24, "'often' was given, bool is accepted"),
    ],
)
def test_config_that_is_wrong_is_an_error_that_points_to_it(right, wrong, line, message):
    with pytest.raises(ConfigError) as caught:
        read_plan(write(YAML.replace(right, wrong, 1)))
    assert str(caught.value).startswith(f"logging.yaml:{line}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("no.yaml", "no.yaml: cannot be read"),
        ([], "a mapping is needed"),
        ({"handlers": {"a": {}}}, "handlers.a: a handler needs a class"),
        ({"handlers": []}, None),
        ({"handlers": [1]}, r"handlers: \[1\] was given, a mapping is needed"),
        ({"handlers": {1: {}}}, "1 is not a name"),
        ({"loggers": {"logging.model": {}, "hookline.model": {}}}, "hookline.model is given twice"),
        (
            {"handlers": {"a": {"class": "logging.handlers.RotatingFileHandler", "filename": "a", "maxBytes": "10MB"}}},
            "handlers.a.maxBytes: '10MB' was given, a number without a unit is accepted",
        ),
        ({"incremental": True}, "incremental: unknown key"),
    ],
)
def test_config_of_a_wrong_kind_is_an_error(config, message):
    if message is None:
        read_plan(config)
        return
    with pytest.raises(ConfigError, match=message):
        read_plan(config)


def test_config_of_loggers_that_are_no_topics_is_taken_as_it_is():
    names = ["hookline", "logging", "transformers.trainer", "hookline.model.outputs"]
    assert (
        list(read_plan({"loggers": {name: {"level": logging.INFO} for name in names}}).dictionary["loggers"]) == names
    )
