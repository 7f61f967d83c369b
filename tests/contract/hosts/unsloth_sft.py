"""The trainer of Unsloth, by a stand-in."""

from pathlib import Path
from typing import Any

from trl import SFTConfig

from hookline.integrations.transformers import attach
from hosts.accelerate_state import fresh_state
from hosts.base import Host
from hosts.language_model import SETTINGS, TOKENIZER, sums, tiny
from hosts.stand_ins.unsloth import UnslothTrainer


class Unsloth(Host):
    """`unsloth.UnslothTrainer`."""

    name = "unsloth"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        fresh_state()
        trainer = UnslothTrainer(
            tiny(),
            args=SFTConfig(str(self.directory / "out"), **SETTINGS),
            train_dataset=sums(8).select_columns(["text"]),
            eval_dataset=sums(4).select_columns(["text"]),
            processing_class=TOKENIZER,
        )
        self.loop = attach(trainer, callbacks, name=self.name, **self.options).loop
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
