"""``Trainer.train`` of Levanter, by a stand-in."""

from itertools import islice
from pathlib import Path
from typing import Any

from hookline.integrations.levanter import attach
from hosts.base import STEPS, Host
from hosts.stand_ins.levanter import Trainer, TrainerConfig, held_out, installed, training_data


class Levanter(Host):
    """`levanter.trainer.Trainer`."""

    name = "levanter"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        with installed():
            trainer = Trainer(TrainerConfig(num_train_steps=STEPS))
            trainer.add_eval_hook(held_out())
            self.loop = attach(trainer, callbacks, resume=resume, name=self.name, **self.options).loop
            with trainer:
                state = trainer.initial_state(initialize_from=None if resume is None else str(resume / "levanter"))
                trainer.train(state, islice(training_data(), int(state.step), None))
