"""`SFTRecipe`: an arm that is the configuration of an `SFTPolicyWorker`: a model, data, how to train."""

import msgspec

from hookline.experiment.job import Job
from hookline.experiment.recipes.recipe import Recipe
from hookline.experiment.recipes.trainer_recipe import copied, settings
from hookline.loops.trainer_parts import checked_config
from hookline.loops.training_state import load_weights
from hookline.loops.worker import SFTPolicyWorker
from hookline.loops.worker_config import WorkerConfig
from hookline.rl.hf_policy import HFPolicy


class SFTRecipe(Recipe):
    """Supervised fine-tuning; its model answers the benchmarks."""

    PARTS = ("custom_logger_fns", "hook_fns", "callbacks")
    config: WorkerConfig

    @classmethod
    def what(cls) -> str:
        """What such an arm is called in messages."""
        return "an arm that is a WorkerConfig"

    @property
    def seed(self) -> int:
        """That of the training's settings."""
        return self.config.train.seed or 0

    def check(self, *, benchmarked: bool) -> None:
        """The settings have to say how long to train."""
        checked_config(self.config.train, has_val_data=self.config.data.validation is not None)

    def train(self, job: Job) -> None:
        """Put a worker together, and let it train."""
        parts = {name: value for name, value in self.parts.items() if value is not None}
        train = settings(self.config.train, job)
        train.callbacks = list(train.callbacks)  # an empty list asks for none: one progress bar shows all runs
        worker = SFTPolicyWorker(
            msgspec.structs.replace(self.config, train=train),
            callbacks=job.callbacks(parts.pop("callbacks", ())),
            **copied(parts),
        )
        if job.start_from is not None:
            load_weights(worker.model, job.start_from)
        policy = HFPolicy(worker.model, worker.tokenizer)
        job.follow(worker.trainer, lambda: policy if self.answers is None else self.answers(worker))
        worker.run()
