"""`TaskSpace`: an environment whose tasks are numbered, so that they can be drawn, counted and held out.

- Whether a task is held out depends on its id alone: it is so in every process and every run, and stays so when
  a data set grows.
- `sample` gives no held-out task, `held_out` gives only such.
- `sample` gives different tasks within a call. Where there are fewer than asked for, it gives each of them before
  any comes again. `held_out` never repeats: it gives all there are, where there are fewer.
- Neither can go on forever: a space in which nothing is held out, or everything, is refused when it is made (where
  it has at most 1,000 tasks), or when it is drawn from.
"""

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from hookline.core.errors import OptionError
from hookline.core.values import whole
from hookline.rl.faults import Faults
from hookline.rl.types import Task

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
