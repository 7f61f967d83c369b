"""The log_* functions: what each records, and what the settings make of it."""

import logging
import math
import threading

import pytest

import hookline.logging as hookline_logging
from hookline._engine.errors import OptionError
from hookline._engine.metrics import Deferred
from hookline.logging.payloads import fields_of

GOOD = "<reasoning>two and two</reasoning><answer>4</answer>"
TOPICS = ("training", "model", "reward", "metrics", "system")


class Listing(logging.Handler):
    """Keeps the data of records."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)

    def data(self):
        return [fields_of(record) for record in self.records]


class FakeDevice:
    """Has its number ready when the test says so."""

    arrives = True

    def __init__(self, arrived):
        self.arrived = arrived

    def ready(self):
        return self.arrived.is_set()

    def number(self, index):
        assert self.arrived.wait(30)
        return 0.5


@pytest.fixture
def listen():
    """Sets up logging with settings of metrics, and gives what is logged."""

    def start(**metrics):
        listing = Listing()
        loggers = {f"hookline.{topic}": {"level": "INFO", "handlers": ["list"], "propagate": False} for topic in TOPICS}
        hookline_logging.initialize(
            {"handlers": {"list": {"()": lambda: listing}}, "loggers": loggers, "metrics": metrics}
        )
        return listing

    return start


def steps(listing):
    return [data["step"] for data in listing.data()]


def test_log_model_output_fills_the_columns_of_the_table(listen):
    listing = listen()
    hookline_logging.log_model_output("2+2?", 4, GOOD, step=3, rewards={"correct": 1.0}, group=7)
    assert listing.data() == [
        {
            "step": 3,
            "question": "2+2?",
            "answer": "4",
            "llm_reasoning": "two and two",
            "llm_answer": "4",
            "model_output": GOOD,
            "rewards": {"correct": 1.0},
            "group": "7",
        }
    ]
    assert listing.records[0].name == "hookline.model"
    assert listing.records[0].getMessage() == "step 3: question='2+2?', answer='4', llm_answer='4'"


def test_log_model_output_takes_chats_and_what_is_given(listen):
    listing = listen()
    question = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    hookline_logging.log_model_output(question, None, [{"role": "assistant", "content": "four"}], "mine", answer=4)
    (data,) = listing.data()
    assert data["question"] == "system: Be brief.\nuser: 2+2?"
    assert (data["model_output"], data["llm_reasoning"], data["llm_answer"]) == ("four", "mine", "4")
    assert "answer" not in data


def test_log_model_output_of_an_evaluation_says_so(listen):
    listing = listen()
    hookline_logging.log_model_output("2+2?", 4, GOOD, step=3, axis="eval")
    assert listing.data()[0]["axis"] == "eval"


@pytest.mark.parametrize("odd", [None, "", 3.5, {"content": None}, []])
def test_log_model_output_of_odd_outputs_is_kept(listen, odd):
    listing = listen()
    hookline_logging.log_model_output(odd, odd, odd)
    assert len(listing.records) == 1


def test_log_model_output_belongs_to_the_last_step_given(listen):
    listing = listen()
    hookline_logging.log_training_progress(41, {"loss": 1.0})
    hookline_logging.log_model_output("q", "a", "o")
    assert steps(listing) == [41, 41]


def test_log_reward_records_values_and_samples(listen, torch):
    listing = listen(logging_frequency=100)
    hookline_logging.log_reward("correctness", torch.tensor([1.0, 0.5]), ["sample_0", "sample_1"], step=2)
    assert listing.data() == [
        {"step": 2, "reward": "correctness", "values": [1.0, 0.5], "samples": ["sample_0", "sample_1"]}
    ]


def test_log_reward_of_many_values_says_the_first(listen):
    listing = listen()
    hookline_logging.log_reward("r", list(range(10)), step=1)
    assert listing.records[0].getMessage() == "step 1: reward r=[0, 1, 2, 3, 4, 5, 6, 7] and 2 more"


def test_log_training_progress_follows_the_logging_frequency(listen):
    listing = listen(logging_frequency=5)
    for step in range(1, 13):
        hookline_logging.log_training_progress(step=step, metrics={"loss": step})
    assert steps(listing) == [1, 5, 10]  # the first brings a metric that was not there


def test_log_training_progress_with_a_new_metric_is_recorded_at_once(listen):
    listing = listen(logging_frequency=5)
    for step in (5, 6):
        hookline_logging.log_training_progress(step, {"loss": 1.0})
    hookline_logging.log_training_progress(7, {"loss": 1.0, "training_complete": True})
    assert steps(listing) == [5, 7]


def test_log_training_progress_last_row_is_recorded_at_shutdown(listen):
    listing = listen(logging_frequency=5)
    for step, metrics in [(5, {"a": 1, "b": 1}), (6, {"a": 2}), (7, {"a": 3}), (7, {"b": 4})]:
        hookline_logging.log_training_progress(step, metrics)
    hookline_logging.shutdown()
    assert listing.data() == [{"step": 5, "a": 1, "b": 1}, {"step": 7, "a": 3, "b": 4}]


def test_log_training_progress_row_left_out_is_recorded_with_a_later_row_of_its_step(listen):
    listing = listen(logging_frequency=5)
    for step in range(1, 8):
        hookline_logging.log_training_progress(step, {"progress_percent": step, "accuracy": 0.5})
    hookline_logging.log_training_progress(7, {"accuracy": 0.6, "training_complete": True})
    hookline_logging.shutdown()
    assert listing.data()[2:] == [{"step": 7, "progress_percent": 7, "accuracy": 0.6, "training_complete": True}]


def test_log_training_progress_last_value_of_each_metric_is_recorded_at_shutdown(listen):
    listing = listen(logging_frequency=5)
    for step in (5, 7):
        hookline_logging.log_training_progress(step, {"loss": step, "accuracy": step})
    for step in (8, 9):
        hookline_logging.log_training_progress(step, {"accuracy": step, "training_complete": True})
    hookline_logging.shutdown()
    assert listing.data()[1:] == [
        {"step": 8, "accuracy": 8, "training_complete": True},
        {"step": 7, "loss": 7},
        {"step": 9, "accuracy": 9, "training_complete": True},
    ]


def test_log_training_progress_keeps_odd_values_as_text(listen, torch):
    listing = listen()
    metrics = {"loss": torch.tensor(0.5), "deep": {"x": [1, 2]}, 3: None, "nan": math.nan, "thing": torch.ones(2)}
    hookline_logging.log_training_progress(1, metrics)
    (data,) = listing.data()
    assert math.isnan(data.pop("nan"))
    assert data == {"loss": 0.5, "deep/x": "[1, 2]", "3": None, "thing": "[1.0, 1.0]", "step": 1}


def test_log_training_progress_does_not_wait_for_a_value_on_a_device(listen, read_csv):
    listing, arrived = listen(), threading.Event()
    table = hookline_logging.CSVHandler("out.csv", ["step", "loss"])
    hookline_logging.get_training_logger().addHandler(table)
    hookline_logging.log_training_progress(1, {"loss": Deferred(FakeDevice(arrived)), "lr": 0.1})
    assert listing.records[0].getMessage() == "step 1: lr=0.1, loss=..."
    arrived.set()
    table.close()
    assert [(row["step"], row["loss"], row["extra"]) for row in read_csv("out.csv")] == [("1", "0.5", {"lr": 0.1})]


def test_log_training_progress_metrics_called_like_fields_of_a_row_do_not_replace_them(listen, read_csv, torch):
    listing = listen()
    table = hookline_logging.CSVHandler("out.csv", ["timestamp", "step", "values/step"])
    hookline_logging.get_training_logger().addHandler(table)
    hookline_logging.log_training_progress(6, {"step": torch.tensor(99), "timestamp": "x", "loss": 1.0})
    table.close()
    assert listing.data() == [{"step": 6, "loss": 1.0, "values/step": 99, "values/timestamp": "x"}]
    (row,) = read_csv("out.csv")
    assert (row["step"], row["values/step"], row["timestamp"][:2]) == ("6", "99", "20")


def test_log_validation_metrics_are_recorded_at_any_step(listen):
    listing = listen(logging_frequency=100, validation_frequency=250)
    hookline_logging.log_validation_metrics(7, {"val/loss": 1.0})
    assert steps(listing) == [7]
    assert [step for step in range(600) if hookline_logging.validation_due(step)] == [250, 500]


def test_log_memory_usage_returns_what_it_records(listen):
    listing = listen(logging_frequency=5)
    metrics = hookline_logging.log_memory_usage()
    assert metrics["memory/rss_mib"] > 1
    assert listing.data() == [{**metrics, "step": 0}]
    assert hookline_logging.log_memory_usage(step=4) == {}
    assert hookline_logging.log_memory_usage(step=5) != {}


def test_log_reward_metrics_are_named_by_reward(listen):
    listing = listen()
    hookline_logging.log_reward_metrics(1, {"a": [0.0, 1.0], "b": [None]})
    metrics = hookline_logging.log_reward_metrics(2, {"a": [1.0, 1.0], "b": []}, group_size=2)
    assert (metrics["rewards/a/mean"], metrics["rewards/a/trend"], metrics["rewards/a/zero_std_groups"]) == (1, 0.5, 1)
    assert metrics["rewards/b/count"] == 0
    assert listing.data()[1] == {**metrics, "step": 2}


def test_log_reward_metrics_follow_the_logging_frequency(listen):
    listing = listen(logging_frequency=5)
    for step in range(1, 11):
        hookline_logging.log_reward_metrics(step, {"a": [1.0]})
    assert steps(listing) == [5, 10]


def test_log_generation_metrics_follow_the_sampling_ratio(listen):
    listing = listen(sampling_ratio=0.1, logging_frequency=1000)
    for step in range(1, 501):
        hookline_logging.log_generation_metrics(step=step, generations=[GOOD])
    assert len(listing.records) == 50
    assert listing.data()[0]["generation/format_adherence"] == 1.0


@pytest.mark.parametrize(
    ("category", "silent"),
    [
        ("reward_metrics", ["hookline.reward", "hookline.metrics"]),
        ("generation_metrics", ["hookline.metrics"]),
        ("validation_metrics", ["hookline.metrics"]),
        ("resource_metrics", ["hookline.system"]),
    ],
)
def test_category_switched_off_is_not_recorded(listen, category, silent):
    listing = listen(enable={category: False})
    calls = {
        "reward_metrics": [
            lambda: hookline_logging.log_reward("a", [1.0]),
            lambda: hookline_logging.log_reward_metrics(1, {"a": [1.0]}),
        ],
        "generation_metrics": [lambda: hookline_logging.log_generation_metrics(1, [GOOD])],
        "validation_metrics": [lambda: hookline_logging.log_validation_metrics(1, {"a": 1.0})],
        "resource_metrics": [lambda: hookline_logging.log_memory_usage()],
    }
    for call in calls.pop(category):  # type: ignore[attr-defined]
        call()
    assert listing.records == []
    for call in (call for others in calls.values() for call in others):  # type: ignore[attr-defined]
        call()
    assert len(listing.records) == 5 - len(silent)


@pytest.mark.parametrize(
    "call",
    [
        lambda: hookline_logging.log_training_progress("one", {}),
        lambda: hookline_logging.log_training_progress(1, [1.0]),
        lambda: hookline_logging.log_validation_metrics(1, None),
        lambda: hookline_logging.log_reward("a", "text"),
        lambda: hookline_logging.log_reward("a", [1.0], "sample_0"),
        lambda: hookline_logging.log_reward("a", [1.0, 2.0], ["sample_0"]),
        lambda: hookline_logging.log_reward_metrics(1, [1.0]),
        lambda: hookline_logging.log_reward_metrics(1, {"a": ["x"]}),
        lambda: hookline_logging.log_generation_metrics(1, "a text"),
        lambda: hookline_logging.log_model_output("q", "a", "o", rewards=[1.0]),
        lambda: hookline_logging.log_model_output("q", "a", "o", axis=""),
        lambda: hookline_logging.validation_due("one"),
    ],
)
def test_log_function_given_a_wrong_type_is_an_error(call):
    with pytest.raises(OptionError, match="give"):
        call()


def test_log_generation_metrics_given_a_wrong_type_are_an_error_also_when_not_sampled(listen):
    listen(sampling_ratio=0.0)
    with pytest.raises(OptionError, match="give a list of strings"):
        hookline_logging.log_generation_metrics(1, "a text")


def test_log_functions_before_initialize_log_to_plain_loggers(caplog):
    caplog.set_level(logging.INFO)
    hookline_logging.log_training_progress(1, {"loss": 0.5})
    hookline_logging.log_training_progress(2, {"loss": 0.25})
    assert caplog.messages == ["step 1: loss=0.5", "step 2: loss=0.25"]


def test_log_functions_point_to_their_caller(listen):
    listing = listen()
    hookline_logging.log_training_progress(1, {"loss": 0.5})
    hookline_logging.log_model_output("q", "a", "o")
    hookline_logging.log_memory_usage()
    assert {record.funcName for record in listing.records} == {"test_log_functions_point_to_their_caller"}


def test_settings_are_those_in_force(listen):
    listen(logging_frequency=5)
    assert hookline_logging.settings().logging_frequency == 5
    hookline_logging.shutdown()
    assert hookline_logging.settings().logging_frequency == 1
