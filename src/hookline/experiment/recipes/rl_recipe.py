"""`RLRecipe`: an arm that is an `RLConfig`: rollouts and GRPO, in the run's own process."""

import copy

import msgspec

from hookline.core.errors import OptionError
from hookline.experiment.job import Job
from hookline.experiment.recipes.recipe import Recipe
from hookline.experiment.recipes.trainer_recipe import copied, settings
from hookline.loops.training_state import load_weights
from hookline.rl.hf_policy import HFPolicy
from hookline.rl.rl_config import RLConfig
from hookline.rl.training import make_learner, model_of


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

    def train(self, job: Job) -> None:
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
