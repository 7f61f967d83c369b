"""Options of the logging functions and handlers that the other tests leave at the default: each changes something."""

import logging
import threading

import pytest
from waiting import wait_until

from hookline.logging import (
    CSVHandler,
    TensorBoardHandler,
    initialize,
    log_generation_metrics,
    log_reward_metrics,
    shutdown,
)
from hookline.sinks.csv import CsvSink
from hookline.sinks.tensorboard import TensorboardSink

TEXTS = ["one two", "three"]


def emit(logger, handler, records=1):
    logger.addHandler(handler)
    for step in range(records):
        logger.info("x", extra={"step": step, "n": 0.5})


def test_log_generation_metrics_finished_says_which_were_cut_off():
    shares = [
        log_generation_metrics(1, TEXTS, finished=flags)["generation/truncated"]
        for flags in (["stop", "length"], ["stop", "stop"])
    ]
    assert shares == [0.5, 0.0]


def test_log_generation_metrics_pattern_decides_what_the_format_is():
    metrics = log_generation_metrics(1, TEXTS, pattern=r"\w+ \w+")
    assert metrics["generation/format_adherence"] == 0.5


def test_log_generation_metrics_max_length_says_which_were_cut_off():
    shares = [
        log_generation_metrics(1, TEXTS, token_counts=[3, 8], max_length=most)["generation/truncated"]
        for most in (8, 9)
    ]
    assert shares == [0.5, 0.0]


def test_log_reward_metrics_groups_tell_which_values_belong_together():
    rewards = {"exact": [1.0, 0.0, 1.0, 0.0]}
    apart = log_reward_metrics(1, rewards, groups=["a", "b", "a", "b"])
    mixed = log_reward_metrics(1, rewards, groups=["a", "a", "b", "b"])
    assert [found["rewards/exact/zero_std_groups"] for found in (apart, mixed)] == [1.0, 0.0]


def test_metric_settings_trend_window_is_how_many_points_a_trend_looks_back_on():
    initialize({"metrics": {"trend_window": 2}})
    found = [log_reward_metrics(step, {"exact": [value]}) for step, value in enumerate((0.0, 4.0, 5.0))]
    assert found[-1]["rewards/exact/trend"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("sink", "make"),
    [
        (CsvSink, lambda: CSVHandler("out.csv", buffer_size=2)),
        (TensorboardSink, lambda: TensorBoardHandler("tb", max_queue=2)),
    ],
)
def test_handler_size_of_a_batch_is_how_many_records_are_written_at_once(plain_logger, monkeypatch, sink, make):
    sizes, emitted, open_sink = [], threading.Event(), sink.open

    def opened(self, run_dir, state):
        write = self.write
        self.write = lambda entries: (sizes.append(len(entries)), write(entries))[1]  # type: ignore[func-returns-value]
        assert emitted.wait(60)
        return open_sink(self, run_dir, state)

    monkeypatch.setattr(sink, "open", opened)
    handler = make()
    emit(plain_logger, handler, records=5)
    emitted.set()
    handler.close()
    assert max(sizes) == 2


@pytest.mark.parametrize(
    ("sink", "make"),
    [
        (CsvSink, lambda: CSVHandler("out.csv", flush_interval=0.001)),
        (TensorboardSink, lambda: TensorBoardHandler("tb", flush_secs=0.001)),
    ],
)
def test_handler_interval_is_how_often_it_looks_for_records(plain_logger, monkeypatch, sink, make):
    looks = []
    monkeypatch.setattr(sink, "beat", lambda self: looks.append(self))
    emit(plain_logger, make())
    wait_until(lambda: len(looks) > 20)
    assert len(set(looks)) == 1


@pytest.mark.parametrize(
    ("sink", "make", "close"),
    [
        (CsvSink, lambda: CSVHandler("out.csv", drain_seconds=0), CSVHandler.close),
        (TensorboardSink, lambda: TensorBoardHandler("tb", drain_seconds=0), TensorBoardHandler.close),
        (CsvSink, lambda: _set_up_to("out.csv"), lambda handler: shutdown(0)),
    ],
    ids=["csv", "tensorboard", "shutdown"],
)
def test_handler_without_time_to_drain_does_not_try_again(plain_logger, monkeypatch, sink, make, close):
    closing, tries = threading.Event(), []

    def fail(self, run_dir, state):
        if closing.is_set():
            tries.append(run_dir)
        raise OSError("not now")

    monkeypatch.setattr(sink, "open", fail)
    handler = make()
    emit(plain_logger, handler)
    closing.set()
    close(handler)
    assert len(tries) < 6  # one before it closes, and one after; ten seconds would see a dozen


def _set_up_to(filename):
    """The handler of a configuration that is in force."""
    csv = {"class": "hookline.logging.CSVHandler", "filename": filename}
    initialize({"handlers": {"csv": csv}, "loggers": {"test-set-up": {"handlers": ["csv"]}}})
    return logging.getLogger("test-set-up").handlers[0]
