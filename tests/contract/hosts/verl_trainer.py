"""A PPO trainer of verl, by a stand-in."""

from pathlib import Path
from typing import Any

from hookline.integrations.verl import attach
from hosts.base import Host
from hosts.stand_ins.verl import PPOTrainer, settings


class Verl(Host):
    """`verl.trainer.ppo.v1.PPOTrainer`."""

    name = "verl"
    monitor = "val/sums/loss/mean@1"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        trainer = PPOTrainer(settings(self.directory / "out"))
        self.loop = attach(trainer, callbacks, name=self.name, **self.options).loop
        trainer.init()
        trainer.fit()
