"""Scores completions with an environment, so that nothing an environment does stops training.

If an environment raises, returns anything but rewards or takes too long, the affected rewards are missing. The failure
is counted under the name of the environment or the reward, and the first failure of each name is logged.

With a time limit, scoring runs on a thread that is abandoned when a call takes too long. Threads cannot be killed:
they are daemons, so they never keep the program from exiting, and at most `MAX_ABANDONED_THREADS` may be running
before time-limited calls are skipped. An abandoned thread that computes keeps using its CPU.
"""

import logging
import reprlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hookline._engine.errors import OptionError, closest
from hookline.rl.environments.base import Environment, Faults, describe_error, finite_reward
from hookline.rl.types import Task

logger = logging.getLogger("hookline")

MAX_ABANDONED_THREADS = 32
MAX_CONSECUTIVE_TIMEOUTS = 3
"""After this many timeouts in a row, the rest of a batch is skipped."""

Call = Callable[[], Any]
Outcome = tuple[Any, str]
"""The result of a call, and a description of its failure (empty if it succeeded)."""

_abandoned: list[threading.Thread] = []


class RewardWeights:
    """Weighted totals of rewards; a reward without a weight counts once.

    The names of an environment's rewards are unknown until it returns some. A weight without a reward is reported once,
    as soon as every lesson has returned rewards, or at the end.

    Args:
        weights: Weights by the name of the reward.
        lessons: The ids of all lessons.
    """

    def __init__(self, weights: Mapping[str, float], lessons: Iterable[str]) -> None:
        self._weights = weights
        self._unused = set(weights)
        self._unseen_lessons = set(lessons)
        self._known: set[str] = set()

    def total(self, rewards: Mapping[str, float]) -> float:
        """Return the weighted sum."""
        return sum(self._weights.get(name, 1.0) * value for name, value in rewards.items())

    def register_names(self, lesson: str, rewards: Iterable[Mapping[str, float]]) -> None:
        """Register the names of the rewards that a lesson returned."""
        names = {name for each in rewards for name in each} if self._unused else None
        if names:
            self._known |= names
            self._unused -= names
            self._unseen_lessons.discard(lesson)
            if not self._unseen_lessons:
                self.warn_unused()

    def warn_unused(self) -> None:
        """Warn about weights that had no effect, unless there were no rewards at all."""
        for name in sorted(self._unused) if self._known else ():
            logger.warning(
                "reward_weights: no rollout so far has a reward called %r. %s", name, closest(name, self._known)
            )
        self._unused = set()


def score_batch(
    environment: Environment,
    tasks: Sequence[Task],
    completions: Sequence[str],
    *,
    timeout_seconds: float | None = None,
    faults: Faults | None = None,
) -> list[dict[str, float]]:
    """Return the rewards of each completion; empty where the environment failed.

    Args:
        timeout_seconds: The time limit of one call of ``score``, or of ``score_many`` if the environment has that; None
            waits indefinitely.
        faults: Counts failures; the environment's own ``faults`` by default.
    """
    if len(tasks) != len(completions):
        raise OptionError(f"{len(tasks)} tasks and {len(completions)} completions: give a task for each completion.")
    if timeout_seconds is not None and not 0 < timeout_seconds <= threading.TIMEOUT_MAX:
        raise OptionError(f"timeout_seconds={timeout_seconds!r}: give a number above 0, or None to wait.")
    if faults is None:
        own = getattr(environment, "faults", None)
        faults = own if isinstance(own, Faults) else Faults()
    score_many: Any = getattr(environment, "score_many", None)
    is_batched = callable(score_many)
    calls: list[Call]
    if is_batched:
        calls = [lambda: score_many(tasks, completions)] if tasks else []
    else:
        calls = [
            lambda task=task, completion=completion: environment.score(task, completion)  # type: ignore[misc]
            for task, completion in zip(tasks, completions, strict=True)
        ]
    outcomes = [_outcome(call) for call in calls] if timeout_seconds is None else _run_limited(calls, timeout_seconds)
    for _, problem in outcomes:
        if problem:
            faults.note(environment.name, problem)
    results = [result for result, _ in outcomes]
    if is_batched and tasks:
        ((batch, problem),) = outcomes
        is_complete = isinstance(batch, list | tuple) and len(batch) == len(tasks)
        results = list(batch) if is_complete else [None] * len(tasks)
        if not is_complete and not problem:
            shown = reprlib.repr(batch)
            faults.note(environment.name, f"score_many() gave {shown}, where a list of {len(tasks)} is accepted")
    return [_checked_rewards(environment, each, faults) for each in results]


def _outcome(call: Call) -> Outcome:
    try:
        return call(), ""
    except Exception as error:  # user code: training continues whatever it raises
        return None, describe_error(error)


def _run_limited(calls: Sequence[Call], timeout_seconds: float) -> list[Outcome]:
    """Run the calls in turn, each within the time limit."""
    outcomes: list[Outcome] = []
    timeouts = 0
    while len(outcomes) < len(calls):
        _abandoned[:] = [thread for thread in _abandoned if thread.is_alive()]
        skipped = ""
        if len(_abandoned) >= MAX_ABANDONED_THREADS:
            skipped = f"was not called, since {len(_abandoned)} calls that timed out are still running"
        elif timeouts >= MAX_CONSECUTIVE_TIMEOUTS:
            skipped = f"was not called, since {timeouts} calls in a row took longer than {timeout_seconds:g} s"
        if skipped:
            return outcomes + [(None, skipped)] * (len(calls) - len(outcomes))
        completed = _ScoringThread(calls[len(outcomes) :]).run(timeout_seconds)
        timeouts = 1 if completed else timeouts + 1
        outcomes += completed
        if len(outcomes) < len(calls):
            outcomes.append((None, f"took longer than {timeout_seconds:g} s"))
    return outcomes


class _ScoringThread:
    """Runs calls in turn on one thread until all are done or one times out.

    The waiting thread is woken once, not per call: a switch between threads costs more than most scores.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._outcomes: list[Outcome] = []
        self._started_at = time.monotonic()
        # Held to append an outcome and to abandon the thread, so that no outcome is appended after a timeout.
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hookline-scorer", daemon=True)

    def run(self, timeout_seconds: float) -> list[Outcome]:
        """Return the outcomes of the calls before the first that times out."""
        self._thread.start()
        while not self._done.wait(self._started_at + timeout_seconds - time.monotonic()):
            with self._lock:
                if time.monotonic() >= self._started_at + timeout_seconds:
                    self._is_abandoned = True
                    _abandoned.append(self._thread)
                    break
        return self._outcomes

    def _run(self) -> None:
        for call in self._calls:
            try:
                outcome = _outcome(call)
            except BaseException as error:  # e.g. sys.exit() in a reward function, which is silent on a thread
                outcome = (None, describe_error(error))
            with self._lock:
                if self._is_abandoned:
                    return
                self._outcomes.append(outcome)
                self._started_at = time.monotonic()
        self._done.set()


def _checked_rewards(environment: Environment, result: Any, faults: Faults) -> dict[str, float]:
    if result is None:
        return {}
    if not isinstance(result, Mapping):
        faults.note(environment.name, f"gave {reprlib.repr(result)}, where a dict of rewards is accepted")
        return {}
    values = {
        name: None if value is None else finite_reward(value, str(name), faults) for name, value in result.items()
    }
    return {str(name): value for name, value in values.items() if value is not None}
