"""Libraries that find hookline by name: `report_to`, `log_with`, and a logger of Fabric."""

import pytest

import hookline as hl

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_report_to_records_a_trainer():
    import hookline.integrations.transformers  # noqa: F401
    from hookline.testing import character_tokenizer, tiny_causal_lm

    tokenizer = character_tokenizer("abc")
    rows = [{"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor([1, 2, 3])}] * 8
    args = transformers.TrainingArguments(
        "checkpoints",
        max_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to="hookline",
        run_name="reported",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(tiny_causal_lm(tokenizer, hidden_size=16, heads=2), args, train_dataset=rows)

    trainer.train()

    [run] = hl.runs("runs")
    assert (run.name, run.status, run.step) == ("reported", "finished", 2)
    assert run.config["max_steps"] == 2
    assert run.metrics["loss"] == trainer.state.log_history[1]["loss"]


def test_log_with_records_an_accelerator():
    import hookline.integrations.accelerate  # noqa: F401

    accelerator = accelerate.Accelerator(cpu=True, log_with="hookline")
    accelerator.init_trackers("digits", config={"lr": 0.5}, init_kwargs={"hookline": {"tags": ["night"]}})
    accelerator.log({"loss": 0.25}, step=3)
    accelerator.end_training()

    [run] = hl.runs("runs")
    assert (run.name, run.status, run.tags, run.step) == ("digits", "finished", ("night",), 3)
    assert (run.config, run.metrics["loss"]) == ({"lr": 0.5}, 0.25)


def test_logger_records_what_fabric_logs():
    fabric = pytest.importorskip("lightning.fabric")
    from hookline.integrations.lightning import HooklineLogger

    logger = HooklineLogger("fabric", summary=False)
    made = fabric.Fabric(accelerator="cpu", devices=1, loggers=logger)
    made.log("loss", torch.tensor(0.5), step=1)
    made.log_dict({"loss": 0.25, "accuracy": 1.0}, step=2)
    logger.finalize("success")

    [run] = hl.runs("runs")
    assert (run.name, run.status, run.step) == ("fabric", "finished", 2)
    assert {name: run.metrics[name] for name in ("loss", "accuracy")} == {"loss": 0.25, "accuracy": 1.0}
