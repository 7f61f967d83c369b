"""`initialize` and `shutdown`: a set-up takes the place of the one before, whole or not at all."""

import dataclasses
import io
import json
import logging
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import pytest

import hookline as hl
import hookline.logging as hookline_logging
from hookline._engine.errors import ConfigError, OptionError
from hookline._record.delivery import Delivery
from hookline._record.reader import read
from hookline._record.records import LogLine, Metrics, Rewards, Sample
from hookline._record.sink import Sink
from hookline.logging import CSVHandler


def to_csv(filename, **more):
    handler = {"class": "hookline.logging.CSVHandler", "filename": filename, "columns": ["question"]}
    return {"handlers": {"csv": handler}, "loggers": {"hookline.model": {"level": "INFO", "handlers": ["csv"]}}, **more}


def to_stream(stream, level="INFO"):
    return {
        "handlers": {"out": {"class": "logging.StreamHandler", "stream": stream}},
        "root": {"level": level, "handlers": ["out"]},
    }


def ask(question):
    hookline_logging.log_model_output(question, "4", "<answer>4</answer>")


def questions(read_csv, path):
    return [row["question"] for row in read_csv(path)]


def test_initialize_without_a_configuration_logs_to_files(read_csv):
    hookline_logging.initialize()
    hookline_logging.get_training_logger().info("hello")
    ask("2+2?")
    hookline_logging.shutdown()
    assert "hookline.training - INFO - hello" in Path("logs/training.log").read_text()
    assert questions(read_csv, "logs/model_outputs.csv") == ["2+2?"]


def test_initialize_makes_the_directories_of_files():
    file = {"class": "logging.FileHandler", "filename": "a/b/c.log"}
    hookline_logging.initialize({"handlers": {"file": file}, "root": {"level": "INFO", "handlers": ["file"]}})
    logging.getLogger("anybody").info("hello")
    assert Path("a/b/c.log").read_text() == "hello\n"


def test_initialize_json_formatter_writes_the_fields():
    stream = io.StringIO()
    config = to_stream(stream)
    config["formatters"] = {"json": {"format": "json", "fields": ["level", "message"]}}
    config["handlers"]["out"]["formatter"] = "json"
    hookline_logging.initialize(config)
    hookline_logging.get_training_logger().info("hello")
    assert json.loads(stream.getvalue()) == {"level": "INFO", "message": "hello"}


def test_program_that_ends_without_shutdown_logs_the_last_row():
    code = """
import hookline.logging as hookline_logging
hookline_logging.initialize({
    "handlers": {"file": {"class": "logging.FileHandler", "filename": "a.log"}},
    "root": {"level": "INFO", "handlers": ["file"]},
    "metrics": {"logging_frequency": 10},
})
for step in range(1, 6):
    hookline_logging.log_training_progress(step, {"loss": step})
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
    assert re.findall(r"^step (\d+)", Path("a.log").read_text(), re.MULTILINE) == ["1", "5"]


def test_initialize_twice_shuts_the_first_down(read_csv, tmp_path):
    hookline_logging.initialize(to_csv("first.csv"))
    ask("one")
    hookline_logging.initialize(to_csv("second.csv"))
    ask("two")
    assert questions(read_csv, "first.csv") == ["one"]
    hookline_logging.shutdown()
    assert questions(read_csv, "second.csv") == ["two"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.csv", "second.csv"]


def test_initialize_twice_with_the_same_file_loses_and_repeats_nothing(read_csv, tmp_path):
    for number in range(3):
        hookline_logging.initialize(to_csv("same.csv"))
        ask(str(number))
    hookline_logging.shutdown()
    assert questions(read_csv, "same.csv") == ["0", "1", "2"]
    assert [path.name for path in tmp_path.iterdir()] == ["same.csv"]


@pytest.mark.parametrize(
    "broken",
    [
        {"rot": {}},
        {"handlers": {"file": {"class": "logging.FileHandler", "filename": "/proc/no/such.log"}}},
        {"handlers": {"z": {"class": "hookline.logging.CSVHandler", "filename": "z.csv", "buffer_size": 0}}},
        {"formatters": {"bad": {"format": "%(message"}}},
    ],
)
def test_initialize_that_fails_leaves_the_set_up_before_in_force(broken, read_csv):
    hookline_logging.initialize(to_csv("first.csv"))
    handlers = list(hookline_logging.get_model_logger().handlers)
    config = to_csv("second.csv")
    for section, parts in broken.items():
        config.setdefault(section, {}).update(parts)
    with pytest.raises(ConfigError, match="unknown key|cannot be built"):
        hookline_logging.initialize(config)
    assert hookline_logging.get_model_logger().handlers == handlers
    ask("one")
    hookline_logging.shutdown()
    assert questions(read_csv, "first.csv") == ["one"]
    assert not Path("second.csv").exists()


@pytest.mark.parametrize("filename", ["", "folder", "/proc/a.csv"])
def test_initialize_with_a_table_that_cannot_be_written_changes_nothing(filename, tmp_path):
    (tmp_path / "folder").mkdir()
    before = list(hookline_logging.get_model_logger().handlers)
    with pytest.raises(ConfigError, match=r"handlers.csv: cannot be built: .* give (the name of a file|another)"):
        hookline_logging.initialize(to_csv(filename))
    assert hookline_logging.get_model_logger().handlers == before


def test_initialize_says_why_the_standard_library_could_not_build_a_handler():
    with pytest.raises(ConfigError, match=r"handlers.out: cannot be built: ModuleNotFoundError: .*no-such-stream"):
        hookline_logging.initialize(
            {"handlers": {"out": {"class": "logging.StreamHandler", "stream": "ext://sys.no-such-stream"}}}
        )


def test_initialize_that_fails_says_which_handler_cannot_be_built(tmp_path):
    (tmp_path / "logging.yaml").write_text(
        "handlers:\n  csv:\n    class: logging.custom.CSVHandler\n    filename: a.csv\n    columns: [a, a]\n"
    )
    with pytest.raises(ConfigError, match=r"logging.yaml:2: handlers.csv: cannot be built: columns=.* given twice"):
        hookline_logging.initialize("logging.yaml")


def test_initialize_with_tensorboard_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    board = {"class": "logging.custom.TensorBoardHandler", "log_dir": "tb"}
    with pytest.raises(ConfigError, match=r"handlers.board: cannot be built: .*pip install 'hookline\[tensorboard\]'"):
        hookline_logging.initialize({"handlers": {"board": board}})


def test_import_of_the_logging_front_loads_nothing_heavy(python):
    heavy = "{'torch', 'numpy', 'yaml', 'tensorboard', 'psutil', 'wandb', 'mlflow'}"
    child = python(f"import sys, hookline.logging; print(sorted({heavy} & set(sys.modules)))")
    assert child.communicate()[0] == "[]\n"


def test_initialize_leaves_loggers_that_are_not_named_alone():
    other = logging.getLogger("test-other")
    handler = logging.NullHandler()
    other.addHandler(handler)
    hookline_logging.initialize(to_csv("a.csv"))
    assert other.handlers == [handler]
    assert not other.disabled
    other.removeHandler(handler)


def test_initialize_disables_existing_loggers_only_where_asked():
    other = logging.getLogger("test-disabled")
    hookline_logging.initialize(to_csv("a.csv", disable_existing_loggers=True))
    assert other.disabled
    hookline_logging.shutdown()
    assert not other.disabled


def test_shutdown_gives_the_loggers_back_as_they_were():
    root, model = logging.getLogger(), hookline_logging.get_model_logger()
    before = [(each.level, each.propagate, list(each.handlers)) for each in (root, model)]
    hookline_logging.initialize()
    assert [(each.level, each.propagate, list(each.handlers)) for each in (root, model)] != before
    hookline_logging.shutdown()
    assert [(each.level, each.propagate, list(each.handlers)) for each in (root, model)] == before


def test_shutdown_before_initialize_and_again_changes_nothing(read_csv):
    handlers = list(logging.getLogger().handlers)
    hookline_logging.shutdown()
    hookline_logging.initialize(to_csv("a.csv"))
    ask("2+2?")
    hookline_logging.shutdown()
    hookline_logging.shutdown()
    assert (questions(read_csv, "a.csv"), logging.getLogger().handlers) == (["2+2?"], handlers)


def test_shutdown_with_a_sink_that_is_stuck_is_bounded(tmp_path, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr("hookline.logging.handlers.RowsSink.write", lambda self, entries: gate.wait(30))
    hookline_logging.initialize(to_csv("a.csv"))
    ask("one")
    stopper = threading.Thread(target=hookline_logging.shutdown, args=(0.1,))
    stopper.start()
    stopper.join(10)
    gate.set()
    assert not stopper.is_alive()
    assert (tmp_path / ".a.csv.journal").is_dir()


def test_program_that_ends_without_a_shutdown_is_drained(python, read_csv):
    code = """
import hookline.logging as l
l.initialize()
l.log_model_output("2+2?", "4", "<answer>4</answer>")
"""
    assert python(code).wait() == 0
    assert questions(read_csv, "logs/model_outputs.csv") == ["2+2?"]


def test_topic_loggers_before_initialize_are_plain_loggers(caplog):
    caplog.set_level(logging.INFO)
    for topic in ("training", "model", "reward", "metrics", "system"):
        getattr(hookline_logging, f"get_{topic}_logger")().info(topic)
    assert [(record.name, record.message) for record in caplog.records] == [
        (f"hookline.{topic}", topic) for topic in ("training", "model", "reward", "metrics", "system")
    ]


def test_initialize_with_a_run_records_everything_to_its_journal():
    with hl.run("grpo", summary=False) as run:
        hookline_logging.initialize(to_stream(io.StringIO()), run=run)
        for _ in run.steps(2):
            ask("2+2?")
            hookline_logging.log_reward("correctness", [1.0, None], ["a", "b"])
            hookline_logging.log_training_progress(run.step + 1, {"accuracy": 0.5})
            hookline_logging.get_training_logger().warning("careful")
        hookline_logging.shutdown()
    found = list(read(run.dir))
    assert [(each.step, each.prompt, each.expected, each.answer) for each in found if isinstance(each, Sample)] == [
        (1, "2+2?", "4", "4"),
        (2, "2+2?", "4", "4"),
    ]
    assert [(e.step, e.name, e.values) for e in found if isinstance(e, Rewards)] == [
        (1, "correctness", [1.0, None]),
        (2, "correctness", [1.0, None]),
    ]
    assert [(e.step, e.values) for e in found if isinstance(e, Metrics)] == [
        (1, {"accuracy": 0.5}),
        (2, {"accuracy": 0.5}),
    ]
    lines = [(e.step, e.level, e.logger, e.message) for e in found if isinstance(e, LogLine)]
    assert lines == [(1, "WARNING", "hookline.training", "careful"), (2, "WARNING", "hookline.training", "careful")]


def test_initialize_with_a_run_records_each_line_once_whether_loggers_propagate_or_not():
    with hl.run("lines", summary=False) as run:
        config = to_stream(io.StringIO())
        config["loggers"] = {"hookline.training": {"propagate": False}, "hookline.model": {"level": "INFO"}}
        hookline_logging.initialize(config, run=run)
        for logger in (
            hookline_logging.get_training_logger(),
            hookline_logging.get_model_logger(),
            logging.getLogger("x"),
        ):
            logger.warning("once")
        hookline_logging.shutdown()
    names = [each.logger for each in read(run.dir) if isinstance(each, LogLine)]
    assert names == ["hookline.training", "hookline.model", "x"]


@dataclasses.dataclass(eq=False)
class TalkativeSink(Sink):
    """Logs whatever it does, and fails to write."""

    name: str | None = None
    said: ClassVar[int] = 0

    def _say(self, *_):
        self.said += 1
        logging.getLogger("talkative").warning("from the sink")

    open = beat = close = _say

    def write(self, entries):
        self._say()
        raise OSError("full")


def test_initialize_with_a_run_leaves_out_what_sinks_log_while_they_deliver():
    with hl.run("lines", summary=False) as run:
        hookline_logging.initialize(to_stream(io.StringIO()), run=run)
        delivery = Delivery(run.dir, "talkative", TalkativeSink())
        run.log(loss=1.0, step=1)
        delivery.round()
        delivery.close(0)
        delivery.run()
        logging.getLogger("mine").warning("after it")
        hookline_logging.shutdown()
    lines = [(each.logger, each.message) for each in read(run.dir) if isinstance(each, LogLine)]
    assert delivery.sink.said >= 3  # type: ignore[attr-defined]
    assert lines == [
        ("hookline", "talkative lags: OSError: full. Its records are kept and delivered later."),
        ("mine", "after it"),
    ]


def test_initialize_with_a_run_records_data_whatever_the_levels_are():
    with hl.run("quiet", summary=False) as run:
        hookline_logging.initialize(to_stream(io.StringIO(), level="ERROR"), run=run)
        hookline_logging.log_training_progress(1, {"loss": 0.5})
        hookline_logging.shutdown()
    assert [each.values for each in read(run.dir) if isinstance(each, Metrics)] == [{"loss": 0.5}]


def test_initialize_with_a_run_that_records_nothing_logs_to_the_stream():
    stream = io.StringIO()
    with hl.run("memory", root=None, summary=False) as run:
        hookline_logging.initialize(to_stream(stream), run=run)
        hookline_logging.log_training_progress(1, {"loss": 0.5})
        hookline_logging.get_training_logger().info("hello")
    assert "hello" in stream.getvalue().splitlines()


def test_initialize_with_something_that_is_no_run_is_an_error():
    with pytest.raises(OptionError, match="give a run"):
        hookline_logging.initialize(run="grpo")


def test_handlers_of_a_set_up_are_those_of_the_configuration():
    hookline_logging.initialize(to_csv("a.csv"))
    (handler,) = hookline_logging.get_model_logger().handlers
    assert isinstance(handler, CSVHandler)
    assert handler.name == "csv"


def test_memory_handler_finds_its_target():
    stream = io.StringIO()
    config = to_stream(stream)
    config["handlers"]["buffer"] = {"class": "logging.handlers.MemoryHandler", "capacity": 100, "target": "out"}
    config["root"]["handlers"] = ["buffer"]
    hookline_logging.initialize(config)
    logging.getLogger("x").info("buffered")
    assert stream.getvalue() == ""
    hookline_logging.shutdown()
    assert stream.getvalue() == "buffered\n"
