"""Seed 004: the logging plan of a Gemma GRPO training, with its configuration and its code as they stand there.

Only the import root differs.
"""

import csv
import json
import logging
import sys
import textwrap
import types
from pathlib import Path

import pytest
from gemma_plan import CALLBACK, CONFIG, GENERATION, IMPORTS, MEMORY, REWARD, SETUP

import hookline.logging as hookline_logging

OUTPUT = "<reasoning>two and two</reasoning><answer>4</answer>"


class Worker:
    """What the seed's code finds around it: a trainer with its batch, arguments, state and reward functions."""

    def __init__(self):
        batch = {"questions": ["2+2?", "3+3?"], "true_answers": ["4", "6"], "model_outputs": [OUTPUT, OUTPUT]}
        self.names = {
            "TrainerCallback": object,
            "trainer": types.SimpleNamespace(current_batch_info=batch),
            "extract_reasoning_and_answer": hookline_logging.extract_reasoning_and_answer,
            "extract_xml_answer": lambda text: hookline_logging.extract_reasoning_and_answer(text)[1],
            "correctness_reward_func": lambda prompts, completions, answer, **kwargs: [2.0, 0.0],
            "is_mps_available": True,
        }
        self.args = types.SimpleNamespace(per_device_train_batch_size=2, num_generations=1, max_steps=12)
        self.run(IMPORTS)
        self.run(SETUP)

    def run(self, code):
        exec(compile(textwrap.dedent(code), "seed 004", "exec"), self.names)

    def train(self, steps):
        self.run(CALLBACK)
        callback = self.names["EnhancedLoggingCallback"]()
        callback.on_init_end(self.args, None, "control")
        for step in range(1, steps + 1):
            state = types.SimpleNamespace(global_step=step)
            logs = {"rewards/correctness_reward_func": 2.0, "loss": 0.5}
            assert callback.on_step_end(self.args, state, "control", logs=logs) == "control"
        callback.on_train_end(self.args, state, "control")


@pytest.fixture
def worker(monkeypatch):
    """The seed's configuration file in its place, in force."""
    path = Path("src/logging/config/gemma_logging_config.yaml")
    path.parent.mkdir(parents=True)
    path.write_text(CONFIG)
    monkeypatch.setitem(sys.modules, "reward_config", types.SimpleNamespace(CORRECTNESS_REWARD=2.0))
    yield Worker()
    hookline_logging.shutdown()


def rows():
    with Path("logs/model_outputs.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def scalars():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator("logs/tensorboard", size_guidance={"scalars": 0})
    found.Reload()
    return {tag: {event.step: event.value for event in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def is_pytest(handler):
    """Whether a handler is one with which pytest captures what is logged."""
    return type(handler).__module__ == "_pytest.logging"


def test_seed_configuration_is_in_force_as_it_stands(worker):
    kinds = {
        name: [type(each).__name__ for each in logging.getLogger(f"hookline.{name}").handlers if not is_pytest(each)]
        for name in ("training", "model", "reward", "system", "metrics")
    }
    file, table, board = "RotatingFileHandler", "CSVHandler", "TensorBoardHandler"
    assert kinds == {
        "training": ["StreamHandler", file, board],
        "model": ["StreamHandler", file, table, board],
        "reward": [file, board],
        "system": [file],
        "metrics": [file, board],
    }
    settings = hookline_logging.settings()
    assert (settings.logging_frequency, settings.validation_frequency, settings.sampling_ratio) == (5, 250, 0.1)


def test_seed_configuration_with_our_names_is_the_same(worker):
    ours = CONFIG.replace("  logging.", "  hookline.").replace("logging.custom.", "hookline.logging.")
    assert ours.count("hookline.") == 7
    Path("ours.yaml").write_text(ours)
    worker.names["init_logging"]("ours.yaml")
    worker.names["logger"].info("hello")
    hookline_logging.shutdown()
    assert "hookline.training - INFO - hello\n" in Path("logs/training.log").read_text()


def test_seed_print_statement_becomes_a_line_in_the_file(worker):
    worker.names["is_mps_available"] = False
    worker.run('logger.info(f"MPS (Apple Silicon GPU) available: {is_mps_available}")')
    line = Path("logs/training.log").read_text()
    assert line.endswith(" - hookline.training - INFO - MPS (Apple Silicon GPU) available: False\n")


def test_seed_callback_fills_the_table_of_model_outputs(worker):
    worker.train(12)
    hookline_logging.shutdown()
    found = rows()
    assert list(found[0]) == ["timestamp", "question", "answer", "llm_reasoning", "llm_answer", "extra"]
    assert [(row["question"], row["answer"], row["llm_reasoning"], row["llm_answer"]) for row in found] == [
        ("2+2?", "4", "two and two", "4"),
        ("3+3?", "6", "two and two", "4"),
    ] * 12
    assert json.loads(found[-1]["extra"]) == {"step": 12, "model_output": OUTPUT}
    assert all(row["timestamp"] for row in found)


def test_seed_callback_shows_its_progress_in_tensorboard(worker):
    worker.train(12)
    hookline_logging.shutdown()
    found = scalars()
    percent = {1: 100 / 12, 5: 500 / 12, 10: 1000 / 12, 12: 100.0}
    assert found["progress_percent"] == pytest.approx(percent, rel=1e-6)
    assert found["rewards/correctness_reward_func/mean"] == {5: 2.0, 10: 2.0}
    assert found["training_complete"] == {12: 1.0}


def test_seed_callback_writes_to_the_log_file(worker):
    worker.train(5)
    text = Path("logs/training.log").read_text()
    assert "Training initialization completed" in text
    assert "step 5: progress_percent=41.6667, correct_answers=5, total_answers=10, accuracy=50" in text
    assert text.endswith("Training completed\n")
    assert "Error capturing training data" not in text


def test_seed_reward_wrapper_records_each_reward(worker):
    worker.run(REWARD)
    completions = [[{"role": "assistant", "content": OUTPUT}]] * 2
    assert worker.names["wrapped_correctness_reward"](["p", "p"], completions, ["4", "6"]) == [2.0, 0.0]
    text = Path("logs/training.log").read_text()
    assert [line.partition(" - INFO - ")[2] for line in text.splitlines()] == [
        "step 0: reward correctness=[2]",
        "step 0: reward correctness=[0]",
    ]


def test_seed_generation_metrics_are_logged(worker):
    steps = [step for step in range(5, 101, 5) if hookline_logging.settings().is_sampled(step)]
    for step in range(1, 101):
        worker.names |= {
            "self": types.SimpleNamespace(log_counter=step),
            "state": types.SimpleNamespace(global_step=step),
        }
        worker.run(GENERATION)
    hookline_logging.shutdown()
    assert scalars()["generation/format_adherence"] == dict.fromkeys(steps, 1.0)
    assert len(steps) == 2


def test_seed_memory_usage_is_logged(worker):
    mps = types.SimpleNamespace(current_allocated_memory=lambda: 0)
    worker.names["torch"] = types.SimpleNamespace(mps=mps)
    worker.run(MEMORY)
    assert " - hookline.system - INFO - step 0: memory/rss_mib=" in Path("logs/training.log").read_text()


def test_seed_logging_leaves_only_its_files(worker, tmp_path):
    worker.train(3)
    hookline_logging.shutdown()
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [
        "model_outputs.csv",
        "tensorboard",
        "training.log",
    ]
