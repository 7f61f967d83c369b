"""`Environment`: provides tasks and scores completions; also how environments are named, built and implemented.

An environment needs a ``name``, `sample` and `score`. Optional parts are used if present:

- ``held_out(n, rng)``: tasks that `sample` never returns, see `evaluation_tasks`;
- ``succeeded(task, rewards)``: whether a task counts as solved, see `succeeded`;
- ``score_many(tasks, completions)``: scores a whole batch at once, see `hookline.rl.rollouts.scoring`;
- ``faults``: a `Faults` with the number of failures of each reward function.

All randomness comes from the generator passed in: the same state gives the same tasks.

`TaskSpace` is the base of environments with numbered tasks, and `NumberedTasks` that of those which score episodes
themselves. Whether a task is held out depends on its id alone, so it
is the same in every process and run, and stays the same when a dataset grows. A space that would have no tasks to
train on, or none held out, is rejected when it is built (up to 1,000 tasks) or when it is drawn from.
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

from hookline._engine.checks import require_integer
from hookline._engine.errors import ConfigError, OptionError, UnknownNameError
from hookline._engine.factories import Source, checked_arguments, import_object, split_entry
from hookline._engine.registry import Registry
from hookline.rl.environments.episodes import check_episodes
from hookline.rl.types import Task

logger = logging.getLogger("hookline")

ENVIRONMENTS = Registry(builtin_modules=("hookline.rl.environments",), group="hookline.environments")
register_environment = ENVIRONMENTS.register

SOLVED = 1.0
"""The total reward from which a task counts as solved, unless the environment decides."""
CORRECT = "correct"
HELD_OUT_SHARE = 0.1
MAX_REWARD = 1e30
"""Larger rewards would overflow in a learner's 32-bit arithmetic."""
MAX_LISTED = 10_000
"""Spaces up to this size are enumerated once, and then drawn from a list."""
MAX_CHECKED = 1_000
"""Spaces up to this size are enumerated when they are built."""

_FAULTS_LOCK = threading.Lock()  # not an attribute of Faults: environments are copied and pickled


@runtime_checkable
class Environment(Protocol):
    """Provides tasks, and rewards for completions of them."""

    name: str
    """The environment's name in records and messages."""

    def sample(self, n: int, rng: random.Random) -> list[Task]:
        """Return ``n`` tasks to train on."""

    def score(self, task: Task, completion: str) -> dict[str, float]:
        """Return rewards by the name of the reward function; a function without a reward is missing."""


def succeeded(environment: Environment, task: Task, rewards: Mapping[str, float]) -> bool:
    """Return whether a task is solved: as the environment decides, or with a total reward of at least 1."""
    decide = getattr(environment, "succeeded", None)
    return bool(decide(task, rewards)) if callable(decide) else sum(rewards.values()) >= SOLVED


def training_tasks(environment: Environment, n: int, rng: random.Random) -> list[Task]:
    """Return about ``n`` tasks to train on."""
    return _checked_tasks(environment.sample(n, rng), f"{environment.name}.sample()")


def evaluation_tasks(environment: Environment, n: int, rng: random.Random) -> list[Task]:
    """Return at most ``n`` tasks to evaluate on: held-out tasks, or sampled ones if the environment has none."""
    held_out = getattr(environment, "held_out", None)
    if not callable(held_out) or getattr(environment, "held_out_share", None) == 0:
        return training_tasks(environment, n, rng)
    return _checked_tasks(held_out(n, rng), f"{environment.name}.held_out()")


def _checked_tasks(returned: Any, method: str) -> list[Task]:
    tasks = list(returned) if isinstance(returned, Iterable) and not isinstance(returned, str | Mapping) else None
    wrong = [returned] if tasks is None else [task for task in tasks if not hasattr(task, "prompt")]
    if tasks is None or wrong:
        raise OptionError(f"{method} gave {reprlib.repr(wrong[0])}: give a list of rl.Task(prompt, expected).")
    return tasks


def make_environment(given: Any) -> Any:
    """Build an environment from a name (``"sorting"``) or a mapping of a name to settings; an instance is returned.

    >>> make_environment({"sorting": {"length": 3}}).name
    'sorting'
    """
    if is_environment(given) and not isinstance(given, type | str | Mapping):
        check_episodes(given)
        return given
    if not isinstance(given, str | Mapping):
        raise OptionError(
            f"{given!r:.200} is not an environment: give a name such as 'sorting', a mapping such as "
            "{'arithmetic': {'difficulty': 'easy'}}, or an object with name, sample(), and score(), episode() or "
            "rollout(). Environments of other projects become one with rl.wrap_environment()."
        )
    name, arguments = split_entry(given, "an environment")
    try:
        factory = import_object(name) if ":" in name else ENVIRONMENTS.find(name)
    except UnknownNameError as error:
        raise ConfigError(f"environment: {error}") from error
    if ":" in name and not (isinstance(factory, type) and callable(getattr(factory, "sample", None))):
        return _wrapped(factory, arguments, name)
    built = factory(**checked_arguments(factory, arguments, Source(arguments), f"environment.{name}"))
    if not is_environment(built):
        raise ConfigError(
            f"environment: {name!r} gives {built!r}, which has no name, sample(), and score(), episode() or rollout()."
        )
    check_episodes(built)
    return built


def _wrapped(imported: Any, arguments: Mapping[str, Any], name: str) -> Any:
    """Return another project's environment, or what makes it, as one of ours."""
    wrap = import_object("hookline.rl.foreign.wrap:wrap_environment")  # by name: it builds on this module
    try:
        return wrap(imported, **arguments)
    except OptionError as error:
        raise ConfigError(f"environment: {name!r}: {error}") from error


def is_environment(value: Any) -> bool:
    """Return whether a value has a name and ``sample``, and one of ``score``, ``episode`` and ``rollout``."""
    has_tasks = hasattr(value, "name") and callable(getattr(value, "sample", None))
    return has_tasks and any(callable(getattr(value, name, None)) for name in ("score", "episode", "rollout"))


class Faults(Counter[str]):
    """Counts failures by the name of the reward function or environment. The first of each is logged."""

    def note(self, name: str, problem: str) -> None:
        """Count a failure, e.g. ``note("correctness", "raised ValueError: no answer")``."""
        with _FAULTS_LOCK:
            self[name] += 1
            is_first = self[name] == 1
        if is_first:
            logger.warning(
                "Reward of %s: %s. The reward is missing there, and training continues; further failures are only "
                "counted.", name, problem,
            )  # fmt: skip


def faults_of(environment: Any) -> Faults | None:
    """Return the environment's own counter of failures, if it has one."""
    faults = getattr(environment, "faults", None)
    return faults if isinstance(faults, Faults) else None


def describe_error(error: BaseException) -> str:
    """Return the type of an exception and the beginning of its text."""
    try:
        return f"raised {type(error).__name__}: {error!s:.300}"
    except Exception:  # str() of a user's exception may fail itself
        return f"raised {type(error).__name__}"


def finite_reward(value: Any, name: str, faults: Faults) -> float | None:
    """Return a reward as a float; None, with a fault of ``name``, if it is not a finite number of a usable size."""
    try:
        reward = math.nan if isinstance(value, str | bytes) else float(value)
    except Exception:  # float() of a user's object may raise anything
        reward = math.nan
    if abs(reward) <= MAX_REWARD:  # False for NaN and infinity
        return reward
    faults.note(name, f"gave {reprlib.repr(value)}, where a finite number is accepted")
    return None


def is_held_out(task_id: str, share: float) -> bool:
    """Return whether a task belongs to the held-out share."""
    digest = hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=8, person=b"held out").digest()
    return int.from_bytes(digest) < share * 2**64


class NumberedTasks(ABC):
    """Draws numbered tasks; a subclass defines `size` and `task`.

    A subclass sets its options before it calls ``super().__init__``.

    Args:
        held_out_share: The share of tasks, chosen by their ids, that is never trained on; 0 holds nothing out.
    """

    name: str
    faults: Faults

    def __init__(self, held_out_share: float = HELD_OUT_SHARE) -> None:
        if isinstance(held_out_share, bool) or not 0 <= held_out_share < 1:
            raise OptionError(f"held_out_share={held_out_share!r}: give a number of at least 0, and below 1.")
        self.held_out_share = held_out_share
        self.faults = Faults()
        self._indices: dict[bool, list[int]] | None = None
        if self.size <= MAX_CHECKED:
            self._part(held_out=False)
            if held_out_share:
                self._part(held_out=True)

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of tasks."""

    @abstractmethod
    def task(self, index: int) -> Task:
        """Return the task with a number from 0 to ``size - 1``; each number has a different task."""

    def sample(self, n: int, rng: random.Random) -> list[Task]:
        """Return ``n`` tasks that are not held out; a task repeats only after all others were drawn."""
        tasks = self._draw(n, rng, held_out=False)
        while len(tasks) < n:
            tasks += self._draw(n - len(tasks), rng, held_out=False)
        return tasks

    def held_out(self, n: int, rng: random.Random) -> list[Task]:
        """Return ``n`` different held-out tasks, or all of them if there are fewer."""
        return self._draw(n, rng, held_out=True)

    def _draw(self, n: int, rng: random.Random, *, held_out: bool) -> list[Task]:
        require_integer("n", n, minimum=0)
        share = self.held_out_share if held_out else 1 - self.held_out_share
        if share == 0:
            raise self._too_few(held_out)
        if self.size <= MAX_LISTED or self.size <= 4 * n / share:
            indices = self._part(held_out=held_out)
            return [self.task(index) for index in rng.sample(indices, min(n, len(indices)))]
        # A large space is not enumerated. Its part has at least four times as many tasks as are wanted, so few draws
        # repeat; the limit is for spaces whose ids all fall into the other part.
        found: dict[int, Task] = {}
        for _ in range(1000 + round(100 * n / share)):
            if len(found) == n:
                break
            index = rng.randrange(self.size)
            task = self.task(index)
            if is_held_out(task.id, self.held_out_share) == held_out:
                found.setdefault(index, task)
        if len(found) < n:
            raise self._too_few(held_out)
        return list(found.values())

    def _part(self, *, held_out: bool) -> list[int]:
        """Return the numbers of the tasks of one part, at least one."""
        if self._indices is None:
            self._indices = {True: [], False: []}
            for index in range(self.size):
                self._indices[is_held_out(self.task(index).id, self.held_out_share)].append(index)
        if not self._indices[held_out]:
            raise self._too_few(held_out)
        return self._indices[held_out]

    def _too_few(self, held_out: bool) -> OptionError:
        part = "held out" if held_out else "left to train on"
        return OptionError(
            f"{self.name}: of {self.size} different tasks, too few are {part} with "
            f"held_out_share={self.held_out_share!r}. Give settings with more tasks, another share, or "
            "held_out_share=0 to hold nothing out."
        )


class TaskSpace(NumberedTasks):
    """The base of environments with numbered tasks and exact answers; a subclass defines `size` and `task`."""

    def score(self, task: Task, completion: str) -> dict[str, float]:
        """Return 1 for the expected answer, ignoring surrounding white space, and 0 otherwise."""
        return {CORRECT: float(completion.strip() == task.expected)}

    def succeeded(self, task: Task, rewards: Mapping[str, float]) -> bool:
        """Return whether the answer is right."""
        return rewards.get(CORRECT, 0.0) >= 1.0
