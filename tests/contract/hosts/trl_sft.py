"""The `SFTTrainer` of TRL."""

from pathlib import Path
from typing import Any

from trl import SFTConfig, SFTTrainer

from hookline.integrations.transformers import attach
from hosts.accelerate_state import fresh_state
from hosts.base import Host
from hosts.language_model import SETTINGS, TOKENIZER, sums, tiny


class TrlSFT(Host):
    """`trl.SFTTrainer`."""

    name = "trl_sft"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        fresh_state()
        trainer = SFTTrainer(
            tiny(),
            args=SFTConfig(str(self.directory / "out"), **SETTINGS),
            train_dataset=sums(8).select_columns(["text"]),
            eval_dataset=sums(4).select_columns(["text"]),
            processing_class=TOKENIZER,
        )
        self.loop = attach(trainer, callbacks, name=self.name, **self.options).loop
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
