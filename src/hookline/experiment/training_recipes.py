"""`TrainerRecipe`: an arm that is a `TrainerConfig`, with the model and the data to train.

What is given as a function is called anew for each run, after its seed is set. A model that is given as such is copied
for each run, so that all begin with the same weights; data sets are shared, and loaders copied without their data.

`SFTRecipe`: an arm that is the configuration of an `SFTPolicyWorker`: a model, data, how to train.

`RLRecipe`: an arm that is an `RLConfig`: rollouts and GRPO, in the run's own process.
"""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.utils.data import DataLoader, IterableDataset

from hookline._engine.errors import OptionError
from hookline.experiment.recipes import Recipe
from hookline.loops.trainer import Trainer
from hookline.loops.trainer_config import TrainerConfig
from hookline.loops.trainer_setup import checked_config, step_function
from hookline.loops.training_state import load_weights
from hookline.loops.worker import SFTPolicyWorker
from hookline.loops.worker_config import WorkerConfig
from hookline.rl.learner.config import RLConfig
from hookline.rl.learner.training import make_learner, model_of
from hookline.rl.policies.hf import HFPolicy

if TYPE_CHECKING:
    from hookline.experiment.job import Job


class TrainerRecipe(Recipe):
    """A `Trainer`: its parts are the Trainer's arguments."""

    PARTS = (
        "model",
        "train_data",
        "val_data",
        "loss",
        "training_step",
        "optimizer",
        "scheduler",
        "custom_logger_fns",
        "hook_fns",
        "callbacks",
    )
    config: TrainerConfig

    @classmethod
    def what(cls) -> str:
        """What such an arm is called in messages."""
        return "an arm that is a TrainerConfig"

    @property
    def seed(self) -> int:
        """That of the settings."""
        return self.config.seed or 0

    def check(self, *, benchmarked: bool) -> None:
        """It needs a model and data, and for benchmarks somebody who answers."""
        for name in ("model", "train_data"):
            if self.parts.get(name) is None:
                raise OptionError(f"There is nothing to train without {name}=: give Arm(name, config, {name}=...).")
        for name in ("train_data", "val_data"):
            data = self.parts.get(name)
            for each in data.values() if isinstance(data, Mapping) else [data]:
                if hasattr(each, "__next__"):
                    raise OptionError(f"{name}={each!r:.80} can be gone through once: give a function that makes it.")
        for name in ("optimizer", "scheduler"):
            if not callable(self.parts.get(name) or callable):
                raise OptionError(f"{name}= is one of a certain model: give a function that makes one.")
        checked_config(self.config, has_val_data=self.parts.get("val_data") is not None)
        step_function(self.parts.get("loss"), self.parts.get("training_step"))
        if benchmarked and self.answers is None:
            raise OptionError("Who answers its benchmarks? Give Arm(..., answers=lambda trainer: prompts -> outputs).")

    def train(self, job: "Job") -> None:
        """Make everything anew, and fit."""
        parts = {name: value for name, value in self.parts.items() if value is not None}
        callbacks = job.callbacks(parts.pop("callbacks", ()))
        model = _made(parts.pop("model"))
        if job.start_from is not None:
            load_weights(model, job.start_from)
        data = {name: _made(parts.pop(name)) for name in ("train_data", "val_data") if name in parts}
        trainer = Trainer(model, **data, **copied(parts), config=settings(self.config, job), callbacks=callbacks)
        job.follow(trainer, lambda: None if self.answers is None else self.answers(trainer))
        trainer.fit()


def settings(config: TrainerConfig, job: "Job") -> TrainerConfig:
    """The settings of one run of an arm."""
    return msgspec.structs.replace(
        config,
        name=job.run_key,
        project=job.directory.parent.name,
        output_dir=str(job.directory.parent.parent),
        resume=str(job.directory),
        seed=job.seed,
        callbacks=copied(config.callbacks),
        sinks=[*config.sinks, *job.sinks],
        strict=config.strict or job.strict,
        summary=False,
    )


def copied(value: Any) -> Any:
    """A copy of its own for a run, of callbacks and the like."""
    return copy.deepcopy(value)


def _made(given: Any) -> Any:
    """What a part stands for in this run."""
    if isinstance(given, torch.nn.Module):
        return copy.deepcopy(given)
    if isinstance(given, DataLoader):
        return copy.deepcopy(given, {id(given.dataset): given.dataset})
    if isinstance(given, IterableDataset):  # it may keep its place
        return copy.deepcopy(given)
    if isinstance(given, dict):  # several validation sets by name
        return {name: _made(each) for name, each in given.items()}
    if isinstance(given, Mapping) or hasattr(given, "__getitem__") or hasattr(given, "__iter__"):
        return given
    return given() if callable(given) else given


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

    def train(self, job: "Job") -> None:
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


class RLRecipe(Recipe):
    """Reinforcement learning; its policy answers the benchmarks."""

    PARTS = ("model", "tokenizer", "hooks", "custom_logger_fns", "hook_fns", "callbacks")
    config: RLConfig

    @classmethod
    def what(cls) -> str:
        """What such an arm is called in messages."""
        return "an arm that is an RLConfig"

    @property
    def seed(self) -> int:
        """That of the training's settings."""
        return self.config.train.seed or 0

    def check(self, *, benchmarked: bool) -> None:
        """It needs a model, and rolls out in its own process."""
        if self.config.executor != "local":
            raise OptionError(
                f"RLConfig(executor={self.config.executor!r}): a run of an experiment rolls out in its own process. "
                "Leave it 'local', and give the Experiment executor='ray' to have the runs on Ray."
            )
        if self.config.train.max_steps is None:
            raise OptionError("Rollouts never end: give the RLConfig's train max_steps.")
        if self.config.model is None and self.parts.get("model") is None:
            raise OptionError("There is no model: give the RLConfig one, or Arm(..., model=..., tokenizer=...).")

    def train(self, job: "Job") -> None:
        """Make a worker and a learner, and let them take turns."""
        parts = {name: value for name, value in self.parts.items() if value is not None}
        given, tokenizer = parts.pop("model", None), parts.pop("tokenizer", None)
        callbacks = job.callbacks(parts.pop("callbacks", ()))
        model, tokenizer = model_of(self.config, copy.deepcopy(given), tokenizer)
        if job.start_from is not None:
            load_weights(model, job.start_from)
        # a curriculum keeps what it learns of its lessons in them
        config = msgspec.structs.replace(copied(self.config), train=settings(self.config.train, job))
        learner = make_learner(config, model, tokenizer, callbacks=callbacks, **copied(parts))
        policy = HFPolicy(model, tokenizer)
        job.follow(learner, lambda: policy if self.answers is None else self.answers(learner))
        learner.fit()
