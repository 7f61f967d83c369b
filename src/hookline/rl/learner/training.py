"""`train`: runs reinforcement learning from settings, in this process or on Ray."""

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
    """Generate, score and learn in turns, for the number of steps in the settings.

    Args:
        config: The settings, or the path of a file with them.
        model: The model to train, with its ``tokenizer``; by default that of the settings.
        hooks: Run after each rollout step; by default the evaluation hooks of the curriculum.
        callbacks: Callbacks in addition to those of the settings.
        overrides: Settings that override those of the file, such as ``"train.max_steps=100"``.
    """
    config = _load_config(config, overrides)
    hooks = None if hooks is None else as_hook_list(hooks)
    model, tokenizer = resolve_model(config, model, tokenizer)
    options = {"callbacks": callbacks, "custom_logger_fns": custom_logger_fns, "hook_fns": hook_fns}
    if config.executor == "ray":
        from hookline.rl.learner.ray import train_on_ray

        return train_on_ray(config, model, tokenizer, hooks=hooks, **options)
    return make_learner(config, model, tokenizer, hooks=hooks, **options).fit()


def make_learner(
    config: RLConfig, model: Any, tokenizer: Any, *, hooks: Iterable[Hook] | None = None, **options: Any
) -> GRPOLearner:
    """Build a learner and its rollout worker, both in this process.

    Args:
        options: Further arguments of `GRPOLearner`: callbacks, logger functions, hook functions.
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
        **options,
    )
    learner.recorded_config = config
    return learner


def _load_config(config: Any, overrides: Sequence[str]) -> RLConfig:
    if isinstance(overrides, str):
        raise OptionError(f"overrides={overrides!r}: give a list, [{overrides!r}].")
    if isinstance(config, str | Path):
        from hookline.config.structs import load_config

        return load_config(config, RLConfig, overrides)
    if not isinstance(config, RLConfig):
        raise OptionError(f"config={config!r}: give an RLConfig, or the path of a file with one.")
    if overrides:
        raise OptionError("overrides= requires a configuration file.")
    return config


def resolve_model(config: RLConfig, model: Any, tokenizer: Any) -> tuple[Any, Any]:
    """Return the given model and tokenizer, or load those of the settings."""
    if (model is None) != (tokenizer is None):
        raise OptionError("model= and tokenizer= belong together: give both, or neither.")
    if model is not None:
        return model, tokenizer
    if config.model is None:
        raise OptionError("There is no model: give train(model=, tokenizer=), or a model in the settings.")
    from hookline.loops.worker import model_and_tokenizer

    return model_and_tokenizer(config.model)
