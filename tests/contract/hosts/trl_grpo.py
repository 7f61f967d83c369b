"""The `GRPOTrainer` of TRL."""

from pathlib import Path
from typing import Any

from trl import GRPOConfig, GRPOTrainer

from hookline.integrations.transformers import attach
from hosts.accelerate_state import fresh_state
from hosts.base import Host
from hosts.language_model import SETTINGS, TOKENIZER, evenness, sums, tiny


class TrlGRPO(Host):
    """`trl.GRPOTrainer`, which generates a group of two for each of four prompts an epoch."""

    name = "trl_grpo"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        fresh_state()
        trainer = GRPOTrainer(
            tiny(),
            args=GRPOConfig(str(self.directory / "out"), num_generations=2, max_completion_length=4, **SETTINGS),
            reward_funcs=[evenness],
            train_dataset=sums(4),
            eval_dataset=sums(2),
            processing_class=TOKENIZER,
        )
        self.loop = attach(trainer, callbacks, name=self.name, **self.options).loop
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
