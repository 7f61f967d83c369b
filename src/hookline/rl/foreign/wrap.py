"""`wrap_environment`: wraps an environment of another project, which is recognized by its methods.

No package is imported to recognize it.
"""

import inspect
from collections.abc import Sequence
from typing import Any

from hookline._engine.errors import OptionError
from hookline._engine.factories import Source, checked_arguments
from hookline.rl.environments.base import is_environment
from hookline.rl.environments.dataset import rows_of
from hookline.rl.foreign.stepwise import GymnasiumEnvironment, OpenEnvEnvironment
from hookline.rl.foreign.tinker import TinkerEnvironment
from hookline.rl.foreign.trl import ToolEnvironment, reward_dataset
from hookline.rl.foreign.verifiers import VerifiersEnvironment

ACCEPTED = """\
Accepted are:
- verifiers: an environment with rollout(), get_dataset() and a rubric;
- OpenEnv: a function or class that makes a client, with reset(), step() and state;
- TRL: an environment_factory (a function or class; reset() and methods that are tools), or reward functions with
  dataset=;
- tinker-cookbook: an EnvGroupBuilder, a list or an RLDataset of them, or a function that makes an Env;
- Gymnasium: an environment with a spec, or a function that makes one."""


def wrap_environment(env: Any, **options: Any) -> Any:
    """Wrap an environment of another project for hookline's rollout worker.

    Environments of verifiers, OpenEnv, TRL, tinker-cookbook and Gymnasium are accepted and recognized by their methods.
    Every episode gets its own environment, so most are given as a function or class that creates one.

    Args:
        env: The environment, or a function or class that creates it.
        options: ``name``, ``success_total``, ``held_out_share``; ``dataset`` with the rows of the tasks (TRL, OpenEnv,
            Gymnasium); ``seeds``, how many tasks there are without a dataset; ``parse`` and ``render``, functions from
            a text to an action and from an observation to a text (Gymnasium, OpenEnv); ``instructions``, a text before
            the first observation (Gymnasium, OpenEnv, TRL); ``rewards``, reward functions (TRL).

    Returns:
        An object with ``name`` and ``sample``, to use in a `Lesson`.

    Raises:
        OptionError: It is none of those, or an option is not accepted.
    """
    if is_environment(env) and not isinstance(env, type):
        return env
    if _has(env, "rollout", "get_dataset", "rubric"):
        return _made(VerifiersEnvironment, options, env)
    if (builders := _builders(env)) is not None:
        return _made(TinkerEnvironment, {"name": _name(builders[0])} | options, builders)
    if (functions := _reward_functions(env, options)) is not None:
        return _made(reward_dataset, options, functions)
    if isinstance(env, type) or (callable(env) and not _has(env, "step")):
        return _wrap_factory(env, options)
    return _wrap_one(env, options)


_STEPPED: list[tuple[tuple[str, ...], Any]] = [
    (("reset", "step", "action_space"), GymnasiumEnvironment),
    (("reset", "step"), OpenEnvEnvironment),
    (("reset",), ToolEnvironment),
]
"""The methods by which an environment is recognized, most specific first."""


def _wrap_factory(factory: Any, options: dict[str, Any]) -> Any:
    """Wrap a factory of environments; the project is recognized by a first environment."""
    needs_row = _needs_arguments(factory)
    if needs_row and "dataset" not in options:
        raise OptionError(
            f"{_name(factory)} cannot be called without arguments: give a function without any, such as "
            f"lambda: {_name(factory)}(...). A function that makes an Env of tinker-cookbook of a row takes dataset=."
        )
    probe = factory(**rows_of(options["dataset"])[0]) if needs_row else factory()
    if inspect.isawaitable(probe):
        raise OptionError(
            "An async function cannot be called to recognize its environment: give a function that is not async and "
            "returns the client."
        )
    if _has(probe, "initial_observation", "step"):
        return _made(TinkerEnvironment, {"name": _name(probe)} | options, None, factory)
    for names, kind in _STEPPED:
        if _has(probe, *names) and not needs_row:
            return _made(kind, options, factory, probe)
    if callable(probe) or needs_row:
        raise _unknown(factory)
    return wrap_environment(probe, **options)


def _wrap_one(env: Any, options: dict[str, Any]) -> Any:
    """Wrap a single environment, if more like it can be created."""
    if _has(env, "run_episode", "taskset"):
        raise OptionError(
            f"{type(env).__name__} is an environment of verifiers' version 1 (releases from 0.2), whose agents are "
            "programs that call a model's server. Use an environment of releases 0.1.11 to 0.1.14, or write a function "
            "async rollout(task, policy) for it."
        )
    make = getattr(getattr(env, "spec", None), "make", None)
    if _has(env, "reset", "step", "action_space") and callable(make):
        return _made(GymnasiumEnvironment, options, make, env)
    if _has(env, "reset") or _has(env, "initial_observation"):
        raise OptionError(
            f"{type(env).__name__} is one environment, and each episode needs its own. Give a function that makes one: "
            "wrap_environment(lambda: ...)."
        )
    raise _unknown(env)


def _unknown(env: Any) -> OptionError:
    return OptionError(f"{env!r:.200} is no environment of a known project.\n{ACCEPTED}")


def _needs_arguments(factory: Any) -> bool:
    try:
        inspect.signature(factory).bind()
    except TypeError:
        return True
    except ValueError:  # the signature is unknown: a class written in C
        return False
    return False


def _made(kind: Any, options: dict[str, Any], *given: Any) -> Any:
    """Check the options and build a wrapper."""
    named = dict(zip(inspect.signature(kind).parameters, given, strict=False))
    return kind(**checked_arguments(kind, named | options, Source(options), "wrap_environment"))


def _builders(env: Any) -> Sequence[Any] | None:
    """Return tinker-cookbook's group builders; None if the argument is anything else."""
    if _has(env, "make_envs"):
        return [env]
    if isinstance(env, list | tuple) and env and all(_has(each, "make_envs") for each in env):
        return env
    if _has(env, "get_batch") and hasattr(env, "__len__"):
        return [builder for index in range(len(env)) for builder in env.get_batch(index)]
    return None


def _reward_functions(env: Any, options: dict[str, Any]) -> list[Any] | None:
    """Return TRL's reward functions; None if the argument is anything else."""
    functions = list(env) if isinstance(env, list | tuple) else [env]
    if not functions or not all(map(_is_reward_function, functions)):
        return None
    if "dataset" not in options:
        raise OptionError(
            "wrap_environment() needs the prompts of reward functions: give dataset=, rows with 'prompt'."
        )
    return functions


def _is_reward_function(function: Any) -> bool:
    if isinstance(function, type) or not callable(function):
        return False
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return "completions" in parameters


def _has(value: Any, *names: str) -> bool:
    return all(hasattr(value, name) for name in names)


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", None) or type(value).__name__)
