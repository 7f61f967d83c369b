"""Recipes for configurations: `TrainerRecipe`, `SFTRecipe` and `RLRecipe`.

A part given as a function is called for each run, after the run is seeded. A model given as an object is copied for
each run, so all runs begin with the same weights; data sets are shared, and loaders are copied without their data.
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
from hookline.rl.learner.training import make_learner, resolve_model
from hookline.rl.policies.hf import HFPolicy

if TYPE_CHECKING:
    from hookline.experiment.job import Job


class TrainerRecipe(Recipe):
    """Trains a `TrainerConfig` with a `Trainer`; its parts are the Trainer's arguments."""

    LABEL = "an arm that is a TrainerConfig"
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

    @property
    def seed(self) -> int:
        """The seed of the settings."""
        return self.config.seed or 0

    def check(self, *, benchmarked: bool) -> None:
        """Check the model and data, and that something answers benchmarks."""
        for name in ("model", "train_data"):
            if self.parts.get(name) is None:
                raise OptionError(f"{name}= is missing: give Arm(name, config, {name}=...).")
        for name in ("train_data", "val_data"):
            data = self.parts.get(name)
            for each in data.values() if isinstance(data, Mapping) else [data]:
                if hasattr(each, "__next__"):
                    raise OptionError(f"{name}={each!r:.80} can be iterated only once: give a function that makes it.")
        for name in ("optimizer", "scheduler"):
            if not callable(self.parts.get(name) or callable):
                raise OptionError(f"{name}= belongs to one model: give a function that makes one for each run.")
        checked_config(self.config, has_val_data=self.parts.get("val_data") is not None)
        step_function(self.parts.get("loss"), self.parts.get("training_step"))
        if benchmarked and self.answers is None:
            raise OptionError(
                "Nothing answers its benchmarks: give Arm(..., answers=lambda trainer: prompts -> outputs)."
            )

    def train(self, job: "Job") -> None:
        """Make a Trainer from fresh parts, and fit."""
        parts = {name: value for name, value in self.parts.items() if value is not None}
        callbacks = job.callbacks(parts.pop("callbacks", ()))
        model = _make(parts.pop("model"))
        if job.start_from is not None:
            load_weights(model, job.start_from)
        data = {name: _make(parts.pop(name)) for name in ("train_data", "val_data") if name in parts}
        trainer = Trainer(
            model, **data, **copy.deepcopy(parts), config=_run_settings(self.config, job), callbacks=callbacks
        )
        job.attach(trainer, lambda: None if self.answers is None else self.answers(trainer))
        trainer.fit()


def _run_settings(config: TrainerConfig, job: "Job") -> TrainerConfig:
    return msgspec.structs.replace(
        config,
        name=job.run_key,
        project=job.directory.parent.name,
        output_dir=str(job.directory.parent.parent),
        resume=str(job.directory),
        seed=job.seed,
        callbacks=copy.deepcopy(config.callbacks),
        sinks=[*config.sinks, *job.sinks],
        strict=config.strict or job.strict,
        summary=False,
    )


def _make(given: Any) -> Any:
    if isinstance(given, torch.nn.Module):
        return copy.deepcopy(given)
    if isinstance(given, DataLoader):
        return copy.deepcopy(given, {id(given.dataset): given.dataset})
    if isinstance(given, IterableDataset):  # it may keep its position
        return copy.deepcopy(given)
    if isinstance(given, dict):  # several validation sets by name
        return {name: _make(each) for name, each in given.items()}
    if isinstance(given, Mapping) or hasattr(given, "__getitem__") or hasattr(given, "__iter__"):
        return given
    return given() if callable(given) else given


class SFTRecipe(Recipe):
    """Fine-tunes with a `WorkerConfig`; the trained model answers benchmarks."""

    LABEL = "an arm that is a WorkerConfig"
    PARTS = ("custom_logger_fns", "hook_fns", "callbacks")
    config: WorkerConfig

    @property
    def seed(self) -> int:
        """The seed of the training settings."""
        return self.config.train.seed or 0

    def check(self, *, benchmarked: bool) -> None:
        """Check that the settings limit the training."""
        checked_config(self.config.train, has_val_data=self.config.data.validation is not None)

    def train(self, job: "Job") -> None:
        """Make a worker, and run it."""
        parts = {name: value for name, value in self.parts.items() if value is not None}
        train = _run_settings(self.config.train, job)
        train.callbacks = list(train.callbacks)  # an empty list means none: one progress view shows all runs
        worker = SFTPolicyWorker(
            msgspec.structs.replace(self.config, train=train),
            callbacks=job.callbacks(parts.pop("callbacks", ())),
            **copy.deepcopy(parts),
        )
        if job.start_from is not None:
            load_weights(worker.model, job.start_from)
        policy = HFPolicy(worker.model, worker.tokenizer)
        job.attach(worker.trainer, lambda: policy if self.answers is None else self.answers(worker))
        worker.run()


class RLRecipe(Recipe):
    """Trains an `RLConfig` in the run's own process; the trained policy answers benchmarks."""

    LABEL = "an arm that is an RLConfig"
    PARTS = ("model", "tokenizer", "hooks", "custom_logger_fns", "hook_fns", "callbacks")
    config: RLConfig

    @property
    def seed(self) -> int:
        """The seed of the training settings."""
        return self.config.train.seed or 0

    def check(self, *, benchmarked: bool) -> None:
        """Check the model, the number of steps and the executor."""
        if self.config.executor != "local":
            raise OptionError(
                f"RLConfig(executor={self.config.executor!r}): a run of an experiment rolls out in its own process. "
                "Leave it 'local', and give the Experiment executor='ray' to execute its runs on Ray."
            )
        if self.config.train.max_steps is None:
            raise OptionError("Rollouts never end: give the RLConfig's train max_steps.")
        if self.config.model is None and self.parts.get("model") is None:
            raise OptionError("The model is missing: give the RLConfig one, or Arm(..., model=..., tokenizer=...).")

    def train(self, job: "Job") -> None:
        """Make a learner, and fit."""
        parts = {name: value for name, value in self.parts.items() if value is not None}
        given, tokenizer = parts.pop("model", None), parts.pop("tokenizer", None)
        callbacks = job.callbacks(parts.pop("callbacks", ()))
        model, tokenizer = resolve_model(self.config, copy.deepcopy(given), tokenizer)
        if job.start_from is not None:
            load_weights(model, job.start_from)
        # A copy: a curriculum keeps its state in the settings.
        config = msgspec.structs.replace(copy.deepcopy(self.config), train=_run_settings(self.config.train, job))
        learner = make_learner(config, model, tokenizer, callbacks=callbacks, **copy.deepcopy(parts))
        policy = HFPolicy(model, tokenizer)
        job.attach(learner, lambda: policy if self.answers is None else self.answers(learner))
        learner.fit()
