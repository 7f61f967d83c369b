"""`Environment`: where tasks come from and how completions are scored, and how environments are named and built.

An environment needs a name, `sample` and `score`. What it may have besides is used where it is there:

- ``held_out(n, rng)``: tasks that `sample` never gives, see `evaluation_tasks`;
- ``succeeded(task, rewards)``: whether a task counts as solved, see `succeeded`;
- ``score_many(tasks, completions)``: the scores of a whole batch at once, see `hookline.rl.rollouts.scoring`;
- ``faults``: how often each reward function failed, see `hookline.rl.environments.base`.

All randomness comes from the generator handed in: the same state of it gives the same tasks.

`Faults`: rewards that could not be had, counted by the name of what failed; training goes on without them.

`TaskSpace`: an environment whose tasks are numbered, so that they can be drawn, counted and held out.

- Whether a task is held out depends on its id alone: it is so in every process and every run, and stays so when
  a data set grows.
- `sample` gives no held-out task, `held_out` gives only such.
- `sample` gives different tasks within a call. Where there are fewer than asked for, it gives each of them before
  any comes again. `held_out` never repeats: it gives all there are, where there are fewer.
- Neither can go on forever: a space in which nothing is held out, or everything, is refused when it is made (where
  it has at most 1,000 tasks), or when it is drawn from.
"""

import hashlib
import logging
import math
import random
import reprlib
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from hookline._engine.errors import ConfigError, OptionError, UnknownNameError
from hookline._engine.metrics import whole
from hookline._engine.registry import Registry
from hookline.config.factories import checked_arguments, import_class
from hookline.config.sources import Source
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


logger = logging.getLogger("hookline")

LARGEST = 1e30
"""The largest reward: with larger ones the arithmetic of a learner, in 32 bits, overflows."""

_LOCK = threading.Lock()  # not in the counter: environments are copied and sent to other processes


class Faults(Counter[str]):
    """How often each reward function, or environment, failed. The first failure of each is logged."""

    def note(self, name: str, problem: str) -> None:
        """Count a failure, e.g. ``note("correctness", "raised ValueError: no answer")``."""
        with _LOCK:
            self[name] += 1
            first = self[name] == 1
        if first:
            logger.warning(
                "Reward of %s: %s. Its reward is missing there, and training goes on; further failures of it are "
                "only counted.", name, problem,
            )  # fmt: skip


def described(error: BaseException) -> str:
    """An exception in a message: its type and the beginning of its text."""
    try:
        return f"raised {type(error).__name__}: {error!s:.300}"
    except Exception:  # one whose text cannot be had must not become another failure
        return f"raised {type(error).__name__}"


def finite(value: Any, name: str, faults: Faults) -> float | None:
    """A reward as a float; None, and a fault of ``name``, where it is no finite number, or too large to learn from."""
    try:
        reward = math.nan if isinstance(value, str | bytes) else float(value)
    except Exception:  # whatever stands there instead of a number
        reward = math.nan
    if abs(reward) <= LARGEST:  # neither NaN nor infinity is
        return reward
    faults.note(name, f"gave {reprlib.repr(value)}, where a finite number is accepted")
    return None


CORRECT = "correct"
HELD_OUT_SHARE = 0.1
LISTED = 10_000
"""Up to this size a space is gone through once, and drawn from a list after that."""
CHECKED = 1_000
"""Up to this size it is gone through when it is made."""


def is_held_out(task_id: str, share: float) -> bool:
    """Whether a task belongs to the share that is held out."""
    digest = hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=8, person=b"held out").digest()
    return int.from_bytes(digest) < share * 2**64


class TaskSpace(ABC):
    """The base of environments with numbered tasks; a subclass says how many there are and what each of them is.

    A subclass sets its options before it calls ``super().__init__``.

    Args:
        held_out_share: The share of tasks, by their ids, that is never trained on; 0 holds nothing out.
    """

    name: str
    faults: Faults

    def __init__(self, held_out_share: float = HELD_OUT_SHARE) -> None:
        if isinstance(held_out_share, bool) or not 0 <= held_out_share < 1:
            raise OptionError(f"held_out_share={held_out_share!r}: give a number of at least 0, and below 1.")
        self.held_out_share = held_out_share
        self.faults = Faults()
        self._indices: dict[bool, list[int]] | None = None
        if self.size <= CHECKED:
            self._require(held_out=False)
            if held_out_share:
                self._require(held_out=True)

    @property
    @abstractmethod
    def size(self) -> int:
        """How many tasks there are."""

    @abstractmethod
    def task(self, index: int) -> Task:
        """The task of a number from 0 to ``size - 1``; each number gives another one."""

    def score(self, task: Task, completion: str) -> dict[str, float]:
        """1 for the expected answer with nothing but white space around it, 0 for anything else."""
        return {CORRECT: float(completion.strip() == task.expected)}

    def succeeded(self, task: Task, rewards: Mapping[str, float]) -> bool:
        """Whether the answer was right."""
        return rewards.get(CORRECT, 0.0) >= 1.0

    def sample(self, n: int, rng: random.Random) -> list[Task]:
        """``n`` tasks that are not held out, different ones as far as there are enough."""
        tasks = self._draw(_count(n), rng, held_out=False)
        while len(tasks) < n:
            tasks += self._draw(n - len(tasks), rng, held_out=False)
        return tasks

    def held_out(self, n: int, rng: random.Random) -> list[Task]:
        """``n`` different tasks that are never trained on, or all of them where there are fewer."""
        return self._draw(_count(n), rng, held_out=True)

    def _draw(self, n: int, rng: random.Random, *, held_out: bool) -> list[Task]:
        share = self.held_out_share if held_out else 1 - self.held_out_share
        if share == 0:
            raise self._too_few(held_out)
        if self.size <= LISTED or self.size <= 4 * n / share:
            indices = self._require(held_out=held_out)
            return [self.task(index) for index in rng.sample(indices, min(n, len(indices)))]
        return self._try(n, rng, held_out=held_out, attempts=1000 + round(100 * n / share))

    def _try(self, n: int, rng: random.Random, *, held_out: bool, attempts: int) -> list[Task]:
        """Draw from a space with at least four times as many tasks of the wanted part."""
        found: dict[int, Task] = {}
        while len(found) < n:
            if not attempts:
                raise self._too_few(held_out)
            attempts -= 1
            index = rng.randrange(self.size)
            task = self.task(index)
            if is_held_out(task.id, self.held_out_share) == held_out:
                found.setdefault(index, task)
        return list(found.values())

    def _require(self, *, held_out: bool) -> list[int]:
        """The numbers of the tasks of a part, of which there is at least one."""
        if self._indices is None:
            self._indices = {True: [], False: []}
            for index in range(self.size):
                self._indices[is_held_out(self.task(index).id, self.held_out_share)].append(index)
        if not self._indices[held_out]:
            raise self._too_few(held_out)
        return self._indices[held_out]

    def _too_few(self, held_out: bool) -> OptionError:
        some = "held out" if held_out else "left to train on"
        return OptionError(
            f"{self.name}: of {self.size} different tasks, too few are {some} with "
            f"held_out_share={self.held_out_share!r}. Give settings with more tasks, another share, or "
            "held_out_share=0 to hold nothing out."
        )


def require_whole(what: str, value: Any, *, least: int, most: int) -> None:
    """Refuse what is not a whole number in a range."""
    number = whole(value)
    if number is None or not least <= number <= most:
        raise OptionError(f"{what}={value!r}: give a whole number from {least} to {most}.")


def _count(n: int) -> int:
    number = whole(n)
    if number is None or number < 0:
        raise OptionError(f"n={n!r}: give a whole number of tasks.")
    return number
