"""`train`: reinforcement learning from settings, in this process or on Ray."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hookline._engine.errors import OptionError
from hookline._engine.hooks import Hook, as_hook_list
from hookline._engine.state import LoopArtifacts
from hookline.loops import distributed
from hookline.rl.learner.config import RLConfig, worker_config
from hookline.rl.learner.learner import GRPOLearner
from hookline.rl.policies.hf import HFPolicy
from hookline.rl.rollouts.worker import RolloutWorker


def train(
    config: RLConfig | str | Path,
    *,
    model: Any = None,
    tokenizer: Any = None,
    hooks: Iterable[Hook] | None = None,
    callbacks: Any = None,
    custom_logger_fns: Iterable[Callable[..., Any]] | None = None,
    hook_fns: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> LoopArtifacts:
    """Generate, score and learn, in turns, until as many steps are done as the settings say.

    Args:
        config: The settings, or a file with them.
        model: The model to train, with its ``tokenizer``; otherwise that of the settings.
        hooks: Asked after each rollout step; by default those that evaluate the curriculum.
        callbacks: Callbacks besides those of the settings.
        overrides: Settings on top of those of the file, such as ``"train.max_steps=100"``.
    """
    config = _checked(config, overrides)
    hooks = None if hooks is None else as_hook_list(hooks)
    model, tokenizer = model_of(config, model, tokenizer)
    given = {"callbacks": callbacks, "custom_logger_fns": custom_logger_fns, "hook_fns": hook_fns}
    if config.executor == "ray":
        from hookline.rl.learner.ray import train_on_ray

        return train_on_ray(config, model, tokenizer, hooks=hooks, **given)
    return make_learner(config, model, tokenizer, hooks=hooks, **given).fit()


def make_learner(
    config: RLConfig, model: Any, tokenizer: Any, *, hooks: Iterable[Hook] | None = None, **given: Any
) -> GRPOLearner:
    """A learner with the worker whose rollouts it learns from, both in this process.

    Args:
        given: What a `GRPOLearner` is given besides: callbacks, logger functions, hook functions.
    """
    if distributed.world_size() > 1:
        raise OptionError("rl.train() runs in one process; for several give RLConfig(executor='ray').")
    worker = RolloutWorker(worker_config(config), policy=HFPolicy(model, tokenizer), hooks=hooks)
    learner = GRPOLearner(
        model,
        worker,
        pad_id=tokenizer.pad_token_id or 0,
        config=config.train,
        grpo=config.grpo,
        temperature=config.rollout.temperature,
        top_p=config.rollout.top_p,
        **given,
    )
    learner.recorded_config = config
    return learner


def _checked(config: Any, overrides: Sequence[str]) -> RLConfig:
    if isinstance(overrides, str):
        raise OptionError(f"overrides={overrides!r}: give a list, [{overrides!r}].")
    if isinstance(config, str | Path):
        from hookline.config.structs import load_config

        return load_config(config, RLConfig, overrides)
    if not isinstance(config, RLConfig):
        raise OptionError(f"config={config!r}: give an RLConfig, or the path of a file with one.")
    if overrides:
        raise OptionError("overrides= are for a configuration that is read from a file.")
    return config


def model_of(config: RLConfig, model: Any, tokenizer: Any) -> tuple[Any, Any]:
    """The model and tokenizer that were given, or those of the settings."""
    if (model is None) != (tokenizer is None):
        raise OptionError("model= and tokenizer= belong together: give both, or neither.")
    if model is not None:
        return model, tokenizer
    if config.model is None:
        raise OptionError("Which model? Give train(model=, tokenizer=), or the settings a model.")
    from hookline.loops.worker import model_and_tokenizer

    return model_and_tokenizer(config.model)
