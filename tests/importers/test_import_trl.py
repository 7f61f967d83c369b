"""Importing TRL's completion tables, from a real training and written as TRL writes them."""

import json
import math
import shutil

import pytest

import hookline as hl
from hookline.importers import import_runs

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pandas = pytest.importorskip("pandas")


def samples(run):
    return [record for record in hl.read(run.directory) if record.__class__.__name__ == "Sample"]


def write(directory, step, columns):
    """A table as `GRPOTrainer.log` writes it."""
    directory.mkdir(parents=True, exist_ok=True)
    count = len(columns["prompt"])
    file = directory / f"completions_{step:05d}.parquet"
    pandas.DataFrame({"step": [step] * count, **columns}).to_parquet(file)
    return file


def simple(step):
    return {"prompt": ["2+2="], "completion": [str(step)], "exact": [0.5], "advantage": [-1.5]}


@pytest.fixture(scope="module")
def grpo(tmp_path_factory):
    """What three steps of GRPO leave, with two reward functions, one of which does not judge every completion."""
    pytest.importorskip("trl")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from hookline.testing import character_tokenizer, tiny_causal_lm

    torch.set_num_threads(1)

    def length(completions, log_extra, **kwargs):
        log_extra("share", [len(each) / 10 for each in completions])
        return [float(len(each)) for each in completions]

    def picky(completions, **kwargs):
        return [None if index % 2 else 1.0 for index, _ in enumerate(completions)]

    directory = tmp_path_factory.mktemp("trl") / "grpo"
    config = GRPOConfig(
        output_dir=str(directory),
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=6,
        logging_steps=1,
        save_steps=2,
        report_to=["tensorboard"],
        log_completions=True,
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    tokenizer = character_tokenizer()
    rows = Dataset.from_dict({"prompt": ["2+2=", "3+3=", "1+1=", "5+5="]})
    functions = {"reward_funcs": [length, picky], "processing_class": tokenizer}
    trainer = GRPOTrainer(tiny_causal_lm(tokenizer), args=config, train_dataset=rows, **functions)
    trainer.train()
    trainer.save_state()
    return directory


@pytest.mark.filterwarnings("ignore")
def test_grpo_training_becomes_one_run_of_state_events_and_completions(grpo):
    (run,) = import_runs(grpo)
    logged = json.loads((grpo / "trainer_state.json").read_text())["log_history"]
    metrics = [record for record in hl.read(run.directory) if record.__class__.__name__ == "Metrics"]
    tables = [pandas.read_parquet(file) for file in sorted((grpo / "completions").iterdir())]
    assert run.format == "transformers+tensorboard+trl"
    assert [{**row.values, "step": row.step} for row in metrics] == logged  # type: ignore[dict-item]
    written = [row for table in tables for row in table.to_dict("records")]
    assert (run.samples, len(written)) == (12, 12)
    for sample, row in zip(samples(run), written, strict=True):
        assert (sample.step, sample.prompt, sample.completion) == (row["step"], row["prompt"], row["completion"])
        assert (sample.advantage, sample.extra) == (row["advantage"], {"share": row["share"]})
        assert str(sample.rewards) == str({"length": row["length"], "picky": row["picky"]})
    assert any(math.isnan(sample.rewards["picky"]) for sample in samples(run))


@pytest.mark.filterwarnings("ignore")
def test_samples_are_merged_with_rows_by_step_with_their_times(grpo):
    (run,) = import_runs(grpo)
    kinds = [(r.__class__.__name__, r.step) for r in hl.read(run.directory) if hasattr(r, "axis")]
    assert kinds.index(("Sample", 1)) < kinds.index(("Metrics", 2)) < kinds.index(("Sample", 3))
    times = {(type(r).__name__, r.step): r.time for r in reversed(list(hl.read(run.directory)))}
    assert times["Sample", 2] == times["Metrics", 2]


def test_completions_alone_use_float_columns_as_rewards(tmp_path):
    file = write(tmp_path / "completions", 7, simple(7) | {"note": ["x"]})
    (run,) = import_runs(tmp_path / "completions")
    (sample,) = samples(run)
    assert (run.name, run.format, run.rows, run.samples) == ("completions", "trl", 0, 1)
    assert (sample.step, sample.rewards, sample.advantage, sample.extra) == (7, {"exact": 0.5}, -1.5, {"note": "x"})
    assert sample.time == file.stat().st_mtime


def test_chat_completions_are_imported_as_text_and_as_messages(tmp_path):
    prompt = [{"role": "system", "content": "Count."}, {"role": "user", "content": "2+2?"}]
    answer = [{"role": "assistant", "content": "4"}]
    write(tmp_path, 1, {"prompt": [prompt], "completion": [answer], "exact": [1.0], "advantage": [0.0]})
    (run,) = import_runs(tmp_path / "completions_00001.parquet")
    (sample,) = samples(run)
    assert (sample.prompt, sample.completion) == ("system: Count.\nuser: 2+2?", "4")
    assert (sample.prompt_messages, sample.completion_messages) == (prompt, answer)
    assert sample.extra == {}


def test_completions_are_read_in_step_order(tmp_path):
    for step in (99_999, 100_000, 3):
        write(tmp_path, step, simple(step))
    (run,) = import_runs(tmp_path)
    assert [sample.step for sample in samples(run)] == [3, 99_999, 100_000]


def test_long_completions_are_not_truncated(tmp_path):
    write(tmp_path, 1, simple(1) | {"completion": ["x" * 300_000]})
    (run,) = import_runs(tmp_path)
    (sample,) = samples(run)
    assert (len(sample.completion), sample.truncated) == (300_000, {})


def test_torn_table_is_reported_and_the_others_are_read(tmp_path):
    torn = write(tmp_path, 1, simple(1))
    shutil.copy(write(tmp_path, 2, simple(2)), tmp_path / "completions_00003.parquet")
    torn.write_bytes(torn.read_bytes()[:100])
    (run,) = import_runs(tmp_path)
    assert ([sample.step for sample in samples(run)], run.skipped[0].place) == ([2, 2], str(torn))


@pytest.mark.filterwarnings("ignore")
def test_training_without_checkpoints_becomes_one_run_of_events_and_completions(grpo, tmp_path):
    died = tmp_path / "died"
    for part in ("runs", "completions"):
        shutil.copytree(grpo / part, died / part)
    (run,) = import_runs(died)
    assert (run.name, run.format, run.samples) == ("died", "tensorboard+trl", 12)
    assert {name for sample in samples(run) for name in sample.rewards} == {"length", "picky"}
    losses = [r for r in hl.read(run.directory) if r.__class__.__name__ == "Metrics" and "train/loss" in r.values]
    assert [r.step for r in losses] == [1, 2, 3]
    assert {sample.step: sample.time for sample in samples(run)} == {r.step: r.time for r in losses}
