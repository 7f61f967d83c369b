"""Seed 004 in a real training: a `GRPOTrainer` of TRL with a tiny model, and the plan's files, rewards and callbacks.

The blocks of the plan are executed as they stand. Two arguments are called otherwise by the TRL of today:
``tokenizer=`` is ``processing_class=``, and ``reward_functions=`` is ``reward_funcs=``.
"""

import csv
import importlib
import inspect
import json
import sys
import textwrap
import types
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("datasets")
pytest.importorskip("trl")

from datasets import Dataset
from gemma_plan import CALLBACK, CONFIG, GENERATION, IMPORTS, OPTIMIZED, REWARD, REWARD_FUNCTIONS, SETUP, TRAINER
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import hookline as hl
import hookline.logging as hookline_logging
from hookline import rewards
from hookline._record.records import Sample
from hookline.integrations.transformers import EnhancedLoggingCallback, OptimizedLoggingCallback, attach
from hookline.rewards import library
from hookline.testing import character_tokenizer, tiny_causal_lm

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
TOKENIZER = character_tokenizer(chat_template=TEMPLATE)
STEPS = 5
LIBRARY = [
    library.xmlcount_reward_func,
    library.soft_format_reward_func,
    library.strict_format_reward_func,
    library.int_reward_func,
    library.correctness_reward_func,
    library.anti_repetition_reward_func,
    library.topic_relevance_reward_func,
]
WRAPPED = {
    f"wrapped_{function.__name__}": logged  # type: ignore[attr-defined]
    for function, logged in zip(LIBRARY, rewards.wrap(LIBRARY), strict=True)
}


def right_digit(prompts, completions, answer, **kwargs):
    """2 for a completion that has the right digit in it, which a model that has learnt nothing writes now and then."""
    return [2.0 if right in text[0]["content"] else 0.0 for right, text in zip(answer, completions, strict=True)]


class Script:
    """The plan's training script: names, and blocks of it that are executed one after the other."""

    def __init__(self, torch, tmp_path):
        path = Path("src/logging/config/gemma_logging_config.yaml")
        path.parent.mkdir(parents=True)
        path.write_text(CONFIG.replace("sampling_ratio: 0.1", "sampling_ratio: 1.0"))
        torch.manual_seed(0)
        self.names = {
            "TrainerCallback": TrainerCallback,
            "GRPOTrainer": GRPOTrainer,
            "extract_reasoning_and_answer": rewards.extract_reasoning_and_answer,
            "extract_xml_answer": rewards.extract_xml_answer,
            "correctness_reward_func": right_digit,
            "model": tiny_causal_lm(TOKENIZER, hidden_size=16, heads=2),
            "tokenizer": TOKENIZER,
            "dataset": questions(),
            "training_args": arguments(tmp_path / "out"),
        }
        self.run(IMPORTS + SETUP)

    def __getitem__(self, name):
        return self.names[name]

    def run(self, code):
        exec(compile(code, "gemma_plan", "exec"), self.names)

    def make_trainer(self, functions, callback=None):
        """The trainer, made as the plan does it; with the callback of the plan where none is given."""
        self.names["REWARD_FUNCTIONS"] = functions
        if callback is not None:
            self.names["EnhancedLoggingCallback"] = lambda: callback
        self.run(TRAINER.replace("tokenizer=", "processing_class=").replace("reward_functions=", "reward_funcs="))
        return self["trainer"]

    def train(self, functions, callback=None):
        trainer = self.make_trainer(functions, callback)
        trainer.train()
        hookline_logging.shutdown()
        return trainer


def questions():
    """A small data set with the structure of the original one."""
    asked = [[{"role": "user", "content": f"apples: {i}+1="}] for i in range(8)]
    return Dataset.from_list([{"prompt": prompt, "answer": str(i + 1)} for i, prompt in enumerate(asked)])


def arguments(directory):
    return GRPOConfig(
        str(directory),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=12,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )


@pytest.fixture
def script(torch, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "reward_config", types.SimpleNamespace(CORRECTNESS_REWARD=2.0))
    yield Script(torch, tmp_path)
    hookline_logging.shutdown()


def table():
    with Path("logs/model_outputs.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def scalars():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator("logs/tensorboard", size_guidance={"scalars": 0})
    found.Reload()
    return {tag: {event.step: event.value for event in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def lines():
    return [line.partition(" - INFO - ")[2] for line in Path("logs/training.log").read_text().splitlines()]


GENERATION_CALLBACK = """
class GenerationCallback(TrainerCallback):
    log_counter = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.log_counter += 1
"""


# Phase 2: the callback that takes its data from where they are


def test_plan_in_a_training_fills_the_table_tensorboard_and_the_log_file(script):
    callback = EnhancedLoggingCallback(correctness="right_digit")
    script.train(rewards.wrap([right_digit]), callback)
    outputs, found = table(), scalars()
    assert len(outputs) == callback.total_answers == 4 * STEPS
    assert {(row["question"], row["answer"]) for row in outputs} <= {(f"apples: {i}+1=", str(i + 1)) for i in range(8)}
    right = [row["answer"] in json.loads(row["extra"])["model_output"] for row in outputs]
    assert 0 < sum(right) == callback.correct_answers
    assert found["progress_percent"] == {1: 20.0, STEPS: 100.0}
    assert found["final_accuracy"] == {STEPS: pytest.approx(100 * sum(right) / len(right))}
    assert found["training_complete"] == {STEPS: 1.0}
    assert found["rewards/right_digit/mean"][STEPS] == pytest.approx(2 * sum(right[-4:]) / 4)
    assert found["generation/count"] == {STEPS: 4.0}
    assert {"loss", "completions/mean_length"} <= set(found)
    assert [line for line in lines() if line.startswith("step 0: memory/rss_mib=")]


# The plan's own callback, word for word


def test_callback_as_it_stands_trains_under_trl_and_logs_its_progress(script):
    script.run(CALLBACK)
    script.train([right_digit])
    said = lines()
    assert said[0] == "Training initialization completed"
    assert said[-1] == "Training completed"
    assert scalars()["progress_percent"] == pytest.approx({1: 20.0, 5: 100.0})


def test_callback_as_it_stands_counts_no_answers_where_ours_counts_them_all(script):
    script.run(CALLBACK)
    theirs, ours = script["EnhancedLoggingCallback"](), EnhancedLoggingCallback(correctness="right_digit")
    script.make_trainer(rewards.wrap([right_digit]), theirs).add_callback(ours)
    script["trainer"].train()
    assert (theirs.log_counter, theirs.total_answers) == (STEPS, 0)  # Hugging Face gives on_step_end no logs
    assert (ours.log_counter, ours.total_answers) == (STEPS, 4 * STEPS)


# Phase 3


def test_optimized_callback_has_the_signature_and_the_counters_of_the_plan():
    names = {"TrainerCallback": TrainerCallback}
    exec(OPTIMIZED, names)
    plan, ours = (
        names["OptimizedLoggingCallback"](checkpoint_dir="kept"),
        OptimizedLoggingCallback(checkpoint_dir="kept"),
    )
    assert {name: getattr(ours, name) for name in vars(plan)} == vars(plan)
    assert next(iter(inspect.signature(OptimizedLoggingCallback).parameters)) == "checkpoint_dir"
    assert OptimizedLoggingCallback().checkpoint_dir is None
    assert issubclass(OptimizedLoggingCallback, TrainerCallback)


def test_optimized_callback_has_the_frequencies_of_the_optimized_script():
    # Progress every 5 steps instead of every step, metrics every 20; the file is written in between, by its buffer.
    assert (OptimizedLoggingCallback.progress_every, OptimizedLoggingCallback.metrics_every) == (5, 20)
    assert EnhancedLoggingCallback.progress_every == 1


def test_optimized_callback_in_a_training_keeps_every_output(script):
    script.train(rewards.wrap([right_digit]), OptimizedLoggingCallback())
    assert len(table()) == 4 * STEPS
    assert scalars()["progress_percent"] == {STEPS: 100.0}


# Special cases: rewards and generations


def test_reward_wrapper_as_it_stands_is_a_reward_function_of_trl(script):
    script.run(REWARD)
    trainer = script.train([script["wrapped_correctness_reward"]], EnhancedLoggingCallback())
    rewarded = [line for line in lines() if "reward correctness=" in line]
    assert len(rewarded) == 4 * STEPS
    values = [float(line.partition("[")[2].rstrip("]")) for line in rewarded]
    means = [row["rewards/wrapped_correctness_reward/mean"] for row in trainer.state.log_history if "loss" in row]
    assert means == [pytest.approx(sum(values[4 * step : 4 * step + 4]) / 4) for step in range(STEPS)]


def test_reward_functions_of_the_plan_score_together_and_stand_in_one_row(script):
    script.names |= WRAPPED
    script.run(REWARD_FUNCTIONS)
    functions = script["REWARD_FUNCTIONS"]
    assert [function.__name__ for function in functions] == [each.__name__ for each in LIBRARY]  # type: ignore[attr-defined]
    with hl.run("rewards", summary=False) as run, rewards.record_to(run):
        script.train(functions, EnhancedLoggingCallback())
    samples = [record for record in hl.read(run.dir) if isinstance(record, Sample)]
    names = {"xmlcount", "soft_format", "strict_format", "integer", "correctness", "anti_repetition", "topic_relevance"}
    assert len(samples) == 4 * STEPS
    assert {frozenset(sample.rewards) for sample in samples} == {frozenset(names)}
    assert {f"rewards/{name}/mean" for name in names} <= set(scalars())


def test_generation_metrics_block_inside_of_a_callback_logs_every_five_steps(script):
    script.run(GENERATION_CALLBACK + textwrap.indent(GENERATION, 8 * " "))
    trainer = script.make_trainer([right_digit], script["GenerationCallback"]())
    trainer.current_batch_info = {"model_outputs": ["<reasoning>a</reasoning><answer>1</answer>", "1"]}
    trainer.train()
    hookline_logging.shutdown()
    assert scalars()["generation/format_adherence"] == {STEPS: 0.5}


# Phase 4: what is logged is beside the training


def test_training_with_the_plan_in_force_is_the_same_training(script, torch, tmp_path):
    logged = script.train(rewards.wrap([right_digit]), OptimizedLoggingCallback())
    torch.manual_seed(0)
    model = tiny_causal_lm(TOKENIZER, hidden_size=16, heads=2)
    plain = GRPOTrainer(
        model,
        args=arguments(tmp_path / "plain"),
        reward_funcs=[right_digit],
        train_dataset=questions(),
        processing_class=TOKENIZER,
    )
    plain.train()
    of = lambda trainer: [row["loss"] for row in trainer.state.log_history if "loss" in row]  # noqa: E731
    assert of(logged) == of(plain)


@pytest.fixture
def benchmark(torch, monkeypatch):
    """The benchmark's module; only here does it find what lies beside it."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("logging_plan")


def test_throughput_benchmark_compares_both_callbacks_with_a_training_that_logs_nothing(benchmark, capsys):
    benchmark.main(["--rounds=1", "--steps=3", "--batch-sizes", "4", "--json"])
    lines = json.loads(capsys.readouterr().out)["cases"]
    assert [(line["case"], line["batch_size"]) for line in lines] == [("plain", 4), ("enhanced", 4), ("optimized", 4)]
    assert all(line["samples_per_second"] > 0 and 0 <= line["beside"] < 1 for line in lines)


def test_throughput_benchmark_of_another_training_or_a_lost_output_is_an_error(benchmark, tmp_path):
    took = {"seconds": 1.0, "cpu_seconds": 1.0, "beside_seconds": 0.0, "grown_mib": 0.0}
    base, other = benchmark.Measured(**took, losses=(1.0, 0.5)), benchmark.Measured(**took, losses=(1.0, 0.4))
    with pytest.raises(benchmark.CheckError, match="enhanced with batches of 4 has other losses"):
        benchmark.line("enhanced", 4, [other], [base], 4)
    (tmp_path / "outputs.csv").write_text("question\n1+1=\n")
    with pytest.raises(benchmark.CheckError, match="1 of 2 outputs"):
        benchmark.check_table(tmp_path / "outputs.csv", 2)


def test_plan_beside_an_attached_run_has_both_records_and_gradients_now_and_then(script):
    callback = EnhancedLoggingCallback(correctness="right_digit")
    trainer = script.make_trainer(rewards.wrap([right_digit]), callback)
    loop = attach(trainer, [hl.callbacks.GradientMonitor(every=2)], name="gemma", summary=False).loop
    trainer.train()
    hookline_logging.shutdown()
    samples = [record for record in hl.read(loop.dir) if isinstance(record, Sample)]
    assert len(samples) == len(table()) == callback.total_answers == 4 * STEPS
    by_layer = [row.step for row in loop.history if any(name.startswith("grad_norm/") for name in row.metrics)]
    assert by_layer == [2, 4]
