"""What `test_transformers_logging` kills: a GRPO training that is logged, until ``kill -9`` within its third step."""

import os
import signal

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import hookline as hl
import hookline.logging as hookline_logging
from hookline import rewards
from hookline.integrations.transformers import OptimizedLoggingCallback
from hookline.testing import character_tokenizer, tiny_causal_lm

torch.set_num_threads(1)
TOKENIZER = character_tokenizer()


class Killed(GRPOTrainer):
    """Dies when the completions of the third step have been scored, in the forward pass that learns from them."""

    def compute_loss(self, *args, **kwargs):
        if self.state.global_step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compute_loss(*args, **kwargs)


def correctness(completions, **columns):
    return [float("1" in text) for text in completions]


csv = {
    "class": "hookline.logging.CSVHandler",
    "filename": "logs/outputs.csv",
    "columns": ["step", "question"],
    "flush_interval": 3600.0,
}
model = {"level": "INFO", "handlers": ["csv"], "propagate": False}
with hl.run("killed", summary=False) as run:
    hookline_logging.initialize({"handlers": {"csv": csv}, "loggers": {"hookline.model": model}}, run=run)
    arguments = GRPOConfig(
        "out",
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=4,
        max_steps=5,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        bf16=False,
    )
    Killed(
        tiny_causal_lm(TOKENIZER, hidden_size=16, heads=2),
        args=arguments,
        reward_funcs=rewards.wrap([correctness]),
        train_dataset=Dataset.from_list([{"prompt": f"{i}+1="} for i in range(8)]),
        processing_class=TOKENIZER,
        callbacks=[OptimizedLoggingCallback()],
    ).train()
