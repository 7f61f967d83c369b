"""`Environment`: where tasks come from and how completions are scored, and how environments are named and built.

An environment needs a name, `sample` and `score`. What it may have besides is used where it is there:

- ``held_out(n, rng)``: tasks that `sample` never gives, see `evaluation_tasks`;
- ``succeeded(task, rewards)``: whether a task counts as solved, see `succeeded`;
- ``score_many(tasks, completions)``: the scores of a whole batch at once, see `hookline.rl.scoring`;
- ``faults``: how often each reward function failed, see `hookline.rl.faults`.

All randomness comes from the generator handed in: the same state of it gives the same tasks.
"""

import random
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from hookline.core.config import checked_arguments, import_class
from hookline.core.config_source import Source
from hookline.core.errors import ConfigError, OptionError, UnknownNameError
from hookline.core.registry import Registry
from hookline.rl.types import Task

ENVIRONMENTS = Registry(builtin_modules=("hookline.rl.environments",), group="hookline.environments")
register_environment = ENVIRONMENTS.register

SOLVED = 1.0
"""The total reward from which on a task counts as solved, where the environment does not say."""


@runtime_checkable
class Environment(Protocol):
    """Tasks, and rewards for what a policy makes of them."""

    name: str
    """What it is called in records and messages."""

    def sample(self, n: int, rng: random.Random) -> list[Task]:
        """``n`` tasks to train on."""

    def score(self, task: Task, completion: str) -> dict[str, float]:
        """A reward from each reward function, by its name; one that has nothing to say is missing."""


def succeeded(environment: Environment, task: Task, rewards: Mapping[str, float]) -> bool:
    """Whether the rewards mean that a task is solved: what the environment says, or a total of at least 1."""
    judge = getattr(environment, "succeeded", None)
    return bool(judge(task, rewards)) if callable(judge) else sum(rewards.values()) >= SOLVED


def training_tasks(environment: Environment, n: int, rng: random.Random) -> list[Task]:
    """About ``n`` tasks to train on."""
    return _checked_tasks(environment.sample(n, rng), f"{environment.name}.sample()")


def evaluation_tasks(environment: Environment, n: int, rng: random.Random) -> list[Task]:
    """At most ``n`` tasks to evaluate on: held-out ones; sampled ones where the environment holds nothing out."""
    held_out = getattr(environment, "held_out", None)
    if not callable(held_out) or getattr(environment, "held_out_share", None) == 0:
        return training_tasks(environment, n, rng)
    return _checked_tasks(held_out(n, rng), f"{environment.name}.held_out()")


def _checked_tasks(given: Any, method: str) -> list[Task]:
    tasks = list(given) if isinstance(given, Iterable) and not isinstance(given, str | Mapping) else None
    wrong = [given] if tasks is None else [task for task in tasks if not hasattr(task, "prompt")]
    if tasks is None or wrong:
        raise OptionError(f"{method} gave {reprlib.repr(wrong[0])}: give a list of rl.Task(prompt, expected).")
    return tasks


def make_environment(given: Any) -> Environment:
    """An environment from an instance, a name (``"sorting"``), or a mapping of a name to settings.

    >>> make_environment({"sorting": {"length": 3}}).name
    'sorting'
    """
    if isinstance(given, str):
        return _build(given, {})
    if isinstance(given, Mapping):
        return _build(*_parts(given))
    if isinstance(given, Environment) and not isinstance(given, type):
        return given
    raise OptionError(
        f"{given!r:.200} is not an environment: give a name such as 'sorting', a mapping such as "
        "{'arithmetic': {'difficulty': 'easy'}}, or an object with name, sample() and score()."
    )


def _parts(given: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if "use" in given and not set(given) - {"use", "with"}:
        name, arguments = given["use"], given.get("with") or {}
    elif len(given) == 1:
        ((name, arguments),) = given.items()
        arguments = {} if arguments is None else arguments
    else:
        name = arguments = None
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise OptionError(f"{dict(given)!r:.200} is not an environment: give {{name: {{setting: value}}}}.")
    return name, arguments


def _build(name: str, arguments: Mapping[str, Any]) -> Environment:
    try:
        factory = import_class(name, ("sample", "score")) if ":" in name else ENVIRONMENTS.find(name)
    except UnknownNameError as error:
        raise ConfigError(f"environment: {error}") from error
    built = factory(**checked_arguments(factory, arguments, Source(arguments), f"environment.{name}"))
    if not isinstance(built, Environment):
        raise ConfigError(f"environment: {name!r} gives {built!r}, which has no name, sample() and score().")
    return built
