"""The handlers for CSV and TensorBoard: rows arrive once, off the calling thread, whatever happens to the process."""

import logging
import logging.config
import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from waiting import wait_until

import hookline.logging as hookline_logging
from hookline._engine.errors import MissingExtraError, OptionError
from hookline.logging import CSVHandler, TensorBoardHandler, get_model_logger, log_model_output
from hookline.sinks.csv import CsvSink

COLUMNS = ["timestamp", "question", "answer"]

EMIT_AND_WAIT = """
import logging, sys
from hookline.logging import CSVHandler
logger = logging.getLogger("child")
logger.setLevel(logging.INFO)
logger.addHandler(CSVHandler("out.csv", ["n"], flush_interval=float(sys.argv[2])))
for n in range(int(sys.argv[1]), int(sys.argv[1]) + 100):
    logger.info("row", extra={"n": n})
print("emitted", flush=True)
sys.stdin.readline()
"""


def csv_handler(logger, *columns, **settings):
    handler = CSVHandler("out.csv", columns or COLUMNS, **settings)
    logger.addHandler(handler)
    return handler


def scalars(log_dir):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(log_dir), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def numbers(read_csv):
    return sorted(int(row["n"]) for row in read_csv("out.csv"))


def test_csv_handler_columns_without_a_value_are_empty_and_the_rest_is_extra(plain_logger, read_csv):
    handler = csv_handler(plain_logger)
    plain_logger.info("asked", extra={"hookline": {"question": "2+2?", "score": 0.5}, "step": 7})
    handler.close()
    (row,) = read_csv("out.csv")
    assert (row["question"], row["answer"]) == ("2+2?", "")
    data = {"score": 0.5, "step": 7, "message": "asked", "level": "INFO", "logger": plain_logger.name}
    assert row["extra"] == data
    assert row["timestamp"].startswith("20")


def test_csv_handler_takes_ordinary_records(plain_logger, read_csv):
    handler = csv_handler(plain_logger, "level", "logger", "message", "funcName")
    plain_logger.warning("a %s,\nwith a break", "line")
    handler.close()
    (row,) = read_csv("out.csv")
    assert row["message"] == "a line,\nwith a break"
    assert (row["level"], row["logger"]) == ("WARNING", plain_logger.name)
    assert row["funcName"] == "test_csv_handler_takes_ordinary_records"


def test_csv_handler_without_messages_takes_only_data(plain_logger, read_csv):
    handler = csv_handler(plain_logger, "n", messages=False)
    plain_logger.info("an ordinary line")
    plain_logger.info("data", extra={"n": 1})
    handler.close()
    assert numbers(read_csv) == [1]


def test_csv_handler_without_columns_has_one_for_each_field(plain_logger):
    handler = CSVHandler("out.csv", messages=False)
    plain_logger.addHandler(handler)
    plain_logger.info("x", extra={"hookline": {"a": 1, "deep": {"b": [1, None]}}})
    handler.close()
    header, row = Path("out.csv").read_text().splitlines()
    assert header == "a,deep/b,message,level,logger,timestamp"
    assert row.startswith('1,"[1, null]",x,INFO,')


def test_csv_handler_leaves_out_what_another_library_hides_in_records(plain_logger):
    handler = CSVHandler("out.csv", messages=False)
    plain_logger.addHandler(handler)
    plain_logger.info("x", extra={"hookline": {"a": 1}, "_note_of_a_library": 5, "run": "r0"})
    handler.close()
    assert Path("out.csv").read_text().splitlines()[0] == "a,run,message,level,logger,timestamp"


def test_csv_handler_keeps_a_traceback(plain_logger, read_csv):
    handler = csv_handler(plain_logger, "message", "exception")
    try:
        raise ValueError("wrong")
    except ValueError:
        plain_logger.exception("failed")
    handler.close()
    assert "ValueError: wrong" in read_csv("out.csv")[0]["exception"]


def test_csv_handler_odd_values_are_kept(plain_logger, read_csv, torch):
    handler = csv_handler(plain_logger, "a", "b", "c", "extra")
    plain_logger.info("x", extra={"a": float("nan"), "b": torch.tensor(2.5), "c": "\ud800", "extra": "mine"})
    handler.close()
    (row,) = read_csv("out.csv")
    assert (row["a"], row["b"], row["c"], row["extra"]["extra_"]) == ("NaN", "2.5", "?", "mine")


def test_csv_handler_in_a_plain_dict_config_is_an_ordinary_handler(read_csv):
    before = logging.root.handlers[:]
    csv = {
        "class": "hookline.logging.CSVHandler",
        "filename": "logs/out.csv",
        "columns": ["message"],
        "level": "WARNING",
    }
    plain = {"version": 1, "disable_existing_loggers": False, "handlers": {"csv": csv}}
    try:
        logging.config.dictConfig({**plain, "loggers": {"test-plain": {"handlers": ["csv"], "level": "INFO"}}})
        logging.getLogger("test-plain").info("no")
        logging.getLogger("test-plain").warning("yes")
        handler = logging.getLogger("test-plain").handlers.pop()
        handler.close()
    finally:
        logging.root.handlers[:] = before
    assert [row["message"] for row in read_csv("logs/out.csv")] == ["yes"]


def test_csv_handler_flush_brings_rows_into_the_file_at_once(plain_logger, read_csv):
    handler = csv_handler(plain_logger, "n", flush_interval=3600.0)
    for n in range(250):
        plain_logger.info("x", extra={"n": n})
    handler.flush()
    assert numbers(read_csv) == list(range(250))


def test_csv_handler_rows_arrive_within_the_interval(plain_logger, read_csv):
    csv_handler(plain_logger, "n", flush_interval=0.02)
    plain_logger.info("x", extra={"n": 1})
    wait_until(lambda: Path("out.csv").exists() and read_csv("out.csv"))
    assert numbers(read_csv) == [1]


def test_csv_handler_close_leaves_nothing_but_the_file(plain_logger, tmp_path):
    handler = csv_handler(plain_logger, "n")
    plain_logger.info("x", extra={"n": 1})
    handler.close()
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_csv_handler_appends_to_what_an_earlier_one_wrote(plain_logger, read_csv):
    for n in range(3):
        handler = csv_handler(plain_logger, "n")
        plain_logger.info("x", extra={"n": n})
        plain_logger.removeHandler(handler)
        handler.close()
    assert [int(row["n"]) for row in read_csv("out.csv")] == [0, 1, 2]


def test_csv_handler_emit_after_close_is_not_lost(plain_logger, read_csv):
    handler = csv_handler(plain_logger, "n")
    handler.close()
    plain_logger.info("x", extra={"n": 1})
    handler.close()
    assert numbers(read_csv) == [1]


def test_csv_handler_delivers_from_another_thread(plain_logger, monkeypatch):
    threads = set()
    write = CsvSink.open

    def noted(self, run_dir, state):
        threads.add(threading.current_thread().name)
        return write(self, run_dir, state)

    monkeypatch.setattr(CsvSink, "open", noted)
    handler = csv_handler(plain_logger)
    plain_logger.info("x")
    handler.close()
    assert threads == {"hookline-csv"}


def emitted_around(damage, handler, logger):
    """Emit rows, do some damage to what they were written to, and emit more."""
    for n in range(30):
        logger.info("x", extra={"n": n, "step": n, "long": "x" * 50_000})
    handler.flush()
    damage()
    for n in range(30, 50):
        logger.info("x", extra={"n": n, "step": n})
    handler.flush()
    handler.close()


@pytest.mark.parametrize("damage", ["delete", "cut", "replace"])
def test_csv_handler_writes_lost_rows_again_and_keeps_those_before_it(plain_logger, tmp_path, read_csv, damage):
    out = tmp_path / "out.csv"
    out.write_text("n,extra\r\n-1,\r\n")
    other = tmp_path / "other"
    other.write_text("another file")
    damages = {"delete": out.unlink, "cut": lambda: os.truncate(out, 60), "replace": lambda: other.replace(out)}
    emitted_around(damages[damage], csv_handler(plain_logger, "n", flush_interval=0.01), plain_logger)
    before = [-1] if damage == "cut" else []
    assert (numbers(read_csv), (tmp_path / ".out.csv.journal").exists()) == ([*before, *range(50)], False)


def test_tensorboard_handler_writes_a_deleted_directory_again(plain_logger, tmp_path):
    handler = TensorBoardHandler("logs", flush_secs=0.01)
    plain_logger.addHandler(handler)
    emitted_around(lambda: shutil.rmtree(tmp_path / "logs"), handler, plain_logger)
    assert [step for step, _ in scalars(tmp_path / "logs")["n"]] == list(range(50))


@pytest.mark.parametrize("flush_interval", [3600.0, 0.01])
def test_csv_handler_killed_delivers_the_rest_at_the_next_start(
    plain_logger, python, read_csv, tmp_path, flush_interval
):
    child = python(EMIT_AND_WAIT, 0, flush_interval)
    assert child.stdout.readline() == "emitted\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    handler = csv_handler(plain_logger, "n")
    plain_logger.info("x", extra={"n": 100})
    handler.close()
    assert [int(row["n"]) for row in read_csv("out.csv")] == list(range(101))
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_csv_handler_with_other_columns_after_a_kill_delivers_once(plain_logger, python, read_csv):
    child = python(EMIT_AND_WAIT, 0, 0.01)
    child.stdout.readline()
    child.kill()
    child.wait()
    csv_handler(plain_logger, "message", "n").close()
    assert numbers(read_csv) == list(range(100))


def test_csv_handler_killed_needs_no_new_record_to_deliver_the_rest(python, read_csv):
    child = python(EMIT_AND_WAIT, 0, 3600.0)
    child.stdout.readline()
    child.kill()
    child.wait()
    CSVHandler("out.csv", ["n"]).close()
    assert numbers(read_csv) == list(range(100))


def test_csv_handler_of_several_processes_fills_one_file(python, read_csv, tmp_path):
    children = [python(EMIT_AND_WAIT, start, 0.02) for start in range(0, 400, 100)]
    for child in children:
        assert child.stdout.readline() == "emitted\n"
    for child in children:
        child.communicate("\n")
    assert numbers(read_csv) == list(range(400))
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_csv_handler_another_process_takes_over_from_a_killed_one(python, read_csv):
    first = python(EMIT_AND_WAIT, 0, 3600.0)
    first.stdout.readline()
    second = python(EMIT_AND_WAIT, 100, 0.02)
    second.stdout.readline()
    first.kill()
    first.wait()
    second.communicate("\n")
    assert numbers(read_csv) == list(range(200))


def test_csv_handler_of_another_rank_says_so(python, read_csv):
    child = python(EMIT_AND_WAIT, 0, 0.02, env={**os.environ, "RANK": "1"})
    child.stdout.readline()
    child.communicate("\n")
    assert {row["extra"]["writer"] for row in read_csv("out.csv")} == {"rank1"}


def test_csv_handler_in_a_forked_child_loses_nothing(python, read_csv, tmp_path):
    code = """
import logging, os
from hookline.logging import CSVHandler
logger = logging.getLogger("child")
logger.setLevel(logging.INFO)
logger.addHandler(CSVHandler("out.csv", ["n"], flush_interval=0.05))
logger.info("parent", extra={"n": 0})
child = os.fork()
logger.info("both", extra={"n": 2 if child else 1})
if child:
    os.waitpid(child, 0)
"""
    python(code).wait()
    assert numbers(read_csv) == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_csv_handler_at_an_ordinary_exit_is_drained(python, read_csv):
    python(EMIT_AND_WAIT, 0, 3600.0).communicate("\n")
    assert numbers(read_csv) == list(range(100))


def test_csv_handler_whose_file_cannot_be_written_keeps_the_rows(plain_logger, read_csv, tmp_path, caplog):
    handler = csv_handler(plain_logger, "n", drain_seconds=0.2)
    (tmp_path / "out.csv").mkdir()
    plain_logger.info("x", extra={"n": 1})
    handler.close()
    assert "some records were not delivered in time" in caplog.text
    (tmp_path / "out.csv").rmdir()
    CSVHandler("out.csv", ["n"]).close()
    assert numbers(read_csv) == [1]


def test_csv_handler_on_the_root_hears_of_its_own_full_disk_without_a_loop(monkeypatch, caplog):
    from hookline._record import journal

    handler = CSVHandler("out.csv", ["n"])

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal, "Segment", full)
    logging.root.addHandler(handler)
    try:
        logging.getLogger("test-full").warning("x", extra={"n": 1})
    finally:
        logging.root.removeHandler(handler)
    assert "RECORDS ARE LOST" in caplog.text
    monkeypatch.undo()
    handler.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": "question"}, "give a list of names"),
        ({"columns": ["a", "a"]}, "a name is given twice"),
        ({"buffer_size": 0}, "give a whole number of at least 1"),
        ({"flush_interval": -1}, "give a finite number greater than 0"),
    ],
)
def test_csv_handler_with_wrong_settings_is_an_error(settings, message, tmp_path):
    with pytest.raises(OptionError, match=message):
        CSVHandler("out.csv", **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("filename", ["", "a\0b", "folder", "/dev/null"])
def test_csv_handler_whose_file_is_none_is_an_error(filename, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OptionError, match="filename='.*': give the name of a file"):
        CSVHandler(filename)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("place", ["/proc/a", "/proc/version"])
@pytest.mark.parametrize("handler", [CSVHandler, TensorBoardHandler])
def test_handler_in_a_place_that_cannot_be_written_is_an_error(handler, place):
    with pytest.raises(OptionError, match="cannot be written to .*: give another|give a directory"):
        handler(place)


def test_tensorboard_handler_takes_numbers_of_records_with_a_step(plain_logger, tmp_path):
    handler = TensorBoardHandler("logs/tb")
    plain_logger.addHandler(handler)
    for step in range(300):
        plain_logger.info("x", extra={"step": step, "loss": step / 2, "note": "text"})
    plain_logger.info("no step", extra={"loss": 5.0})
    plain_logger.info("no data")
    handler.close()
    assert scalars("logs/tb") == {"loss": [(step, step / 2) for step in range(300)]}
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["tb"]


def test_tensorboard_handler_of_rewards_and_their_metrics_has_one_point_per_name_and_step():
    tensorboard = {"class": "hookline.logging.TensorBoardHandler", "log_dir": "logs/tb"}
    topic = {"level": "INFO", "handlers": ["tensorboard"], "propagate": False}
    loggers = {"hookline.reward": topic, "hookline.metrics": topic}
    hookline_logging.initialize({"handlers": {"tensorboard": tensorboard}, "loggers": loggers})
    for step in (1, 2):
        for value in (1.0, 0.0):
            hookline_logging.log_reward("right", [value], step=step)
        hookline_logging.log_reward_metrics(step, {"right": [1.0, 0.0]})
    hookline_logging.shutdown()
    found = scalars("logs/tb")
    assert (found["rewards/right"], found["rewards/right/mean"]) == ([(1, 0.5), (2, 0.5)], [(1, 0.5), (2, 0.5)])


def test_tensorboard_handler_of_a_second_training_keeps_what_the_first_wrote(plain_logger):
    for step in (1, 2):
        handler = TensorBoardHandler("logs/tb")
        plain_logger.addHandler(handler)
        plain_logger.info("x", extra={"step": step, "loss": 1.0})
        plain_logger.removeHandler(handler)
        handler.close()
    assert scalars("logs/tb") == {"loss": [(1, 1.0), (2, 1.0)]}


def test_tensorboard_handler_killed_delivers_the_rest_at_the_next_start(python):
    code = """
import logging, os, signal
from hookline.logging import TensorBoardHandler
logger = logging.getLogger("child")
logger.setLevel(logging.INFO)
logger.addHandler(TensorBoardHandler("tb", flush_secs=0.02))
for step in range(100):
    logger.info("x", extra={"step": step, "loss": 1.0})
os.kill(os.getpid(), signal.SIGKILL)
"""
    python(code).wait()
    TensorBoardHandler("tb").close()
    assert scalars("tb") == {"loss": [(step, 1.0) for step in range(100)]}


def test_tensorboard_handler_without_the_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hookline\[tensorboard\]'"):
        TensorBoardHandler("tb")


def test_tensorboard_handler_whose_package_is_missing_for_a_while_delivers_afterwards(
    plain_logger, monkeypatch, caplog, tmp_path
):
    handler = TensorBoardHandler("logs")
    plain_logger.addHandler(handler)
    with monkeypatch.context() as during_an_upgrade:
        during_an_upgrade.setattr("importlib.util.find_spec", lambda name: None)
        plain_logger.info("x", extra={"step": 1, "loss": 0.5})
        wait_until(lambda: "tensorboard lags" in caplog.text)
    handler.close()
    assert scalars(tmp_path / "logs") == {"loss": [(1, 0.5)]}


def test_tensorboard_handler_shows_outputs_of_evaluations_apart(plain_logger):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    handler = TensorBoardHandler("tb")
    get_model_logger().addHandler(handler)
    get_model_logger().setLevel(logging.INFO)
    try:
        for axis in (None, "train", "eval"):
            log_model_output("2+2?", "4", "4", step=1, axis=axis)
    finally:
        get_model_logger().setLevel(logging.NOTSET)
        get_model_logger().removeHandler(handler)
        handler.close()
    found = [EventAccumulator(folder).Reload().Tags()["tensors"] for folder in ("tb", "tb/eval")]
    assert found == [["samples/train/1", "samples/train/2"], ["samples/eval/1"]]


def test_tensorboard_handler_in_a_program_that_ends_at_once_is_drained_silently(python):
    code = """
from hookline.logging import initialize, log_training_progress
board = {"class": "hookline.logging.TensorBoardHandler", "log_dir": "tb"}
training = {"level": "INFO", "handlers": ["board"]}
initialize({"handlers": {"board": board}, "loggers": {"hookline.training": training}})
log_training_progress(1, {"loss": 1.0})
"""
    _, said = python(code, stderr=subprocess.PIPE).communicate()
    assert said == ""
    assert scalars("tb") == {"loss": [(1, 1.0)]}


@pytest.mark.parametrize("log_dir", ["", "a\0b", "file", "file/below"])
def test_tensorboard_handler_that_cannot_have_its_directory_is_an_error(log_dir, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises((OptionError, OSError), match="give a directory|file"):
        TensorBoardHandler(log_dir)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("settings", [{"flush_secs": 0}, {"max_queue": 0}])
def test_tensorboard_handler_with_wrong_settings_is_an_error(settings):
    with pytest.raises(OptionError, match="give a (finite|whole) number"):
        TensorBoardHandler("tb", **settings)
