"""Trains a little with each library that logs to wandb, unmodified, and prints what the drop-in recorded.

It runs with the import path of the drop-in: `import wandb` in here and in the libraries is hookline's.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update({"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_DISABLE_GIT": "true"})
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import wandb
from datasets import Dataset

import hookline as hl

torch.set_num_threads(1)
COMMON = {"report_to": "wandb", "logging_steps": 1, "use_cpu": True, "save_strategy": "no", "disable_tqdm": True}


def transformers():
    from transformers import Trainer, TrainingArguments

    os.environ.update({"WANDB_LOG_MODEL": "end", "WANDB_WATCH": "gradients", "WANDB_PROJECT": "transformers"})
    tokenizer = hl.testing.character_tokenizer()
    data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(8)]
    arguments = TrainingArguments("out", max_steps=2, per_device_train_batch_size=4, run_name="hf", **COMMON)
    trainer = Trainer(hl.testing.tiny_causal_lm(tokenizer), arguments, train_dataset=data, eval_dataset=data)
    trainer.train()
    trainer.evaluate()
    del os.environ["WANDB_LOG_MODEL"], os.environ["WANDB_WATCH"]


def trl():
    from trl import GRPOConfig, GRPOTrainer

    os.environ["WANDB_PROJECT"] = "trl"
    tokenizer = hl.testing.character_tokenizer()
    sizes = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 4}
    arguments = GRPOConfig(output_dir="trl", max_steps=1, log_completions=True, run_name="grpo", **sizes, **COMMON)
    GRPOTrainer(
        hl.testing.tiny_causal_lm(tokenizer),
        reward_funcs=lambda completions, **_: [float(len(each)) for each in completions],
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["ab", "cd"] * 2}),
        processing_class=tokenizer,
    ).train()


def sentence_transformers():
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, losses
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    os.environ["WANDB_PROJECT"] = "sentence-transformers"
    words = {word: number for number, word in enumerate(["[UNK]", "a", "b", "c"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu")
    data = Dataset.from_dict({"anchor": ["a b", "c"] * 2, "positive": ["a", "c b"] * 2})
    arguments = Arguments("st", max_steps=1, per_device_train_batch_size=2, run_name="st", **COMMON)
    loss = losses.MultipleNegativesRankingLoss(model)
    SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss).train()


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(log_with="wandb", cpu=True)
    accelerator.init_trackers("accelerate", config={"lr": 0.1}, init_kwargs={"wandb": {"name": "acc", "tags": ["t"]}})
    accelerator.log({"loss": 0.5}, step=3)
    tracker = accelerator.get_tracker("wandb")
    tracker.log_table("table", columns=["a"], data=[[1]], step=4)
    tracker.log_images({"image": [np.zeros((4, 4, 3), dtype=np.uint8)]}, step=4)
    accelerator.end_training()


def lightning():
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import WandbLogger

    class Model(LightningModule):
        def __init__(self, lr=0.1):
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, index):
            loss = self.layer(batch).pow(2).mean()
            self.log("train/loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), self.hparams.lr)

    logger = WandbLogger(project="lightning", name="pl", log_model=True)
    model = Model()
    logger.watch(model, log_freq=1)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = Trainer(max_steps=2, logger=logger, log_every_n_steps=1, default_root_dir="pl", **quiet)
    trainer.fit(model, torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4))
    logger.log_text("texts", columns=["a"], data=[["x"]])
    logger.log_image("image", [np.zeros((4, 4, 3), dtype=np.uint8)])


def recorded(project):
    [run] = wandb.Api().runs(project)
    rows = list(run.scan_history())
    return {
        "name": run.name,
        "state": run.state,
        "tags": run.tags,
        "config": {name: run.config.get(name) for name in ("lr", "max_steps", "model/num_parameters")},
        "names": sorted({name for row in rows for name in row}),
        "kinds": {name: value["_type"] for row in rows for name, value in row.items() if isinstance(value, dict)},
        "steps": [row["_step"] for row in rows],
        "artifacts": [artifact.type for artifact in run.logged_artifacts()],
        "summary": sorted(run.summary),
    }


if __name__ == "__main__":
    results = {"package": wandb.__name__}
    for function in (transformers, trl, sentence_transformers, accelerate, lightning):
        function()
        wandb.finish()
        os.environ.pop("WANDB_PROJECT", None)
        results[function.__name__] = recorded(function.__name__.replace("_", "-"))
    Path(sys.argv[1]).write_text(json.dumps(results))
