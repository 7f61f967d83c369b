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

import hookline.logging as hookline_logging

CONFIG = """\
# src/logging/config/gemma_logging_config.yaml
version: 1
disable_existing_loggers: false

root:
  level: INFO
  handlers: [console]

loggers:
  logging.training:
    level: INFO
    handlers: [console, file, tensorboard]
    propagate: false

  logging.model:
    level: INFO
    handlers: [console, file, csv, tensorboard]
    propagate: false

  logging.reward:
    level: INFO
    handlers: [file, tensorboard]
    propagate: false

  logging.system:
    level: INFO
    handlers: [file]
    propagate: false

  logging.metrics:
    level: INFO
    handlers: [file, tensorboard]
    propagate: false

handlers:
  console:
    class: logging.StreamHandler
    formatter: standard
    level: INFO

  file:
    class: logging.handlers.RotatingFileHandler
    formatter: standard
    filename: logs/training.log
    maxBytes: 10485760  # 10MB
    backupCount: 5

  csv:
    class: logging.custom.CSVHandler
    filename: logs/model_outputs.csv
    columns: [timestamp, question, answer, llm_reasoning, llm_answer]
    buffer_size: 100
    flush_interval: 5.0

  tensorboard:
    class: logging.custom.TensorBoardHandler
    log_dir: logs/tensorboard
    flush_secs: 30
    max_queue: 100

formatters:
  standard:
    format: "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
    datefmt: "%Y-%m-%d %H:%M:%S"

  json:
    format: json
    fields: [timestamp, level, name, message]

# Model evaluation metrics configuration
metrics:
  # How frequently to log metrics (in training steps)
  logging_frequency: 5

  # How frequently to run validation (in training steps)
  validation_frequency: 250

  # Sample a subset of batches for more expensive metrics
  sampling_ratio: 0.1

  # Enable/disable specific metric categories
  enable:
    reward_metrics: true
    generation_metrics: true
    validation_metrics: true
    resource_metrics: true
"""

IMPORTS = """\
# Import centralized logging system
from hookline.logging import (
    initialize as init_logging,
    get_training_logger,
    get_model_logger,
    get_reward_logger,
    get_metrics_logger,
    get_system_logger,
    log_model_output,
    log_reward,
    log_training_progress,
    log_memory_usage,
    log_reward_metrics,
    log_generation_metrics
)
"""

SETUP = """\
# Initialize logging system with Gemma-specific configuration
init_logging("src/logging/config/gemma_logging_config.yaml")
logger = get_training_logger()
"""

CALLBACK = """\
class EnhancedLoggingCallback(TrainerCallback):
    def __init__(self):
        self.log_counter = 0
        self.total_answers = 0
        self.correct_answers = 0

    def on_init_end(self, args, state, control, **kwargs):
        logger.info("Training initialization completed")
        return control

    def on_step_end(self, args, state, control, logs=None, model=None, tokenizer=None, **kwargs):
        self.log_counter += 1

        # Update correct answers counter if available in logs
        if logs and 'rewards/correctness_reward_func' in logs:
            batch_size = args.per_device_train_batch_size
            num_generations = args.num_generations
            examples_this_step = batch_size * num_generations

            self.total_answers += examples_this_step

            from reward_config import CORRECTNESS_REWARD
            correct_value = logs['rewards/correctness_reward_func']

            if correct_value > 0:
                correct_count = int(round(correct_value / CORRECTNESS_REWARD))
                self.correct_answers += correct_count

        # Log training progress
        progress_pct = (state.global_step / args.max_steps) * 100
        accuracy = 0.0
        if self.total_answers > 0:
            accuracy = (self.correct_answers / self.total_answers) * 100

        # Use the new logging system to log progress
        log_training_progress(
            step=state.global_step,
            metrics={
                "progress_percent": progress_pct,
                "correct_answers": self.correct_answers,
                "total_answers": self.total_answers,
                "accuracy": accuracy
            }
        )

        # Get model outputs if available
        if hasattr(trainer, 'current_batch_info') and trainer.current_batch_info:
            try:
                batch_info = trainer.current_batch_info

                # Extract questions, true answers, model generations
                questions = batch_info.get('questions', [])
                true_answers = batch_info.get('true_answers', [])
                model_outputs = batch_info.get('model_outputs', [])

                # Process each example in the batch and log using new system
                for i in range(len(questions)):
                    if i < len(questions) and i < len(true_answers) and i < len(model_outputs):
                        question = questions[i]
                        true_answer = true_answers[i]
                        model_output = model_outputs[i]

                        # Extract reasoning and answer from model output
                        llm_reasoning, llm_answer = extract_reasoning_and_answer(model_output)

                        # Log using the new system
                        log_model_output(
                            question=question,
                            true_answer=true_answer,
                            model_output=model_output,
                            reasoning=llm_reasoning
                        )
            except Exception as e:
                logger.warning(f"Error capturing training data: {str(e)}")

        # Log rewards if available
        if logs:
            # Extract all reward-related metrics
            reward_metrics = {
                k.replace('rewards/', ''): v
                for k, v in logs.items()
                if k.startswith('rewards/')
            }

            # Convert scalar values to lists for the log_reward_metrics function
            rewards_dict = {
                k: [v] for k, v in reward_metrics.items()
            }

            # Log using the new system
            if rewards_dict:
                log_reward_metrics(state.global_step, rewards_dict)

        return control

    def on_train_end(self, args, state, control, **kwargs):
        # Log final statistics
        accuracy = 0.0
        if self.total_answers > 0:
            accuracy = (self.correct_answers / self.total_answers) * 100

        log_training_progress(
            step=state.global_step,
            metrics={
                "final_accuracy": accuracy,
                "correct_answers": self.correct_answers,
                "total_answers": self.total_answers,
                "training_complete": True
            }
        )

        logger.info("Training completed")
        return control
"""

GENERATION = """\
# Inside the callback's on_step_end method:

# Collect all model outputs for the batch
if hasattr(trainer, 'current_batch_info') and trainer.current_batch_info:
    model_outputs = trainer.current_batch_info.get('model_outputs', [])

    # Log generation metrics every 5 steps
    if self.log_counter % 5 == 0 and model_outputs:
        log_generation_metrics(
            step=state.global_step,
            generations=model_outputs
        )
"""

REWARD = '''\
def wrapped_correctness_reward(prompts, completions, answer, **kwargs):
    """Wrapper around correctness_reward to log detailed metrics"""
    rewards = correctness_reward_func(prompts, completions, answer, **kwargs)

    # Log individual rewards
    reward_logger = get_reward_logger()
    for i, reward in enumerate(rewards):
        if i < len(completions) and i < len(answer):
            response = completions[i][0]['content'] if i < len(completions) else "N/A"
            expected = answer[i] if i < len(answer) else "N/A"
            extracted = extract_xml_answer(response)

            # Log via the reward system
            log_reward(
                reward_name="correctness",
                values=[reward],
                samples=[f"sample_{i}"]
            )

    return rewards
'''

MEMORY = """\
# Add memory usage tracking
if is_mps_available:
    initial_memory = torch.mps.current_allocated_memory() / (1024 * 1024)
    log_memory_usage()  # Use the new system for consistent reporting
"""

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
    assert found["progress_percent"] == pytest.approx({1: 100 / 12, 5: 500 / 12, 10: 1000 / 12}, rel=1e-6)
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
