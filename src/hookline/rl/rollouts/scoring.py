"""Scoring a batch so that nothing an environment does stops training.

An environment that raises, gives something other than rewards, or takes too long costs the rewards concerned: they
are missing, the failure is counted under the environment's or the reward's name, and the first one of each is logged.

With a time limit the scores are computed on a thread, which is left behind once a call has taken too long. A thread
cannot be ended: it is a daemon, so that it never keeps the program from exiting, and at most `MOST_LEFT_BEHIND` of
them are made before nothing more is asked under a time limit until one of them comes back. One that waits costs
nothing; one that computes goes on doing so.
"""

import reprlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookline._engine.errors import OptionError
from hookline.rl.environments.base import Environment, Faults, described, finite
from hookline.rl.types import Task

MOST_LEFT_BEHIND = 32
IN_A_ROW = 3
"""After so many calls in a row that took too long, the rest of a batch is given up as well."""

Call = Callable[[], Any]
Outcome = tuple[Any, str]
"""What a call gave, and what went wrong with it."""

_left_behind: list[threading.Thread] = []


def score_batch(
    environment: Environment,
    tasks: Sequence[Task],
    completions: Sequence[str],
    *,
    timeout_seconds: float | None = None,
    faults: Faults | None = None,
) -> list[dict[str, float]]:
    """The rewards of each completion; empty where the environment failed.

    Args:
        timeout_seconds: The longest a call of ``score`` may take, or of ``score_many`` where the environment has that;
            None waits.
        faults: Where failures are counted; the environment's own ``faults`` by default.
    """
    if len(tasks) != len(completions):
        raise OptionError(f"{len(tasks)} tasks and {len(completions)} completions: give a task for each completion.")
    if timeout_seconds is not None and not 0 < timeout_seconds <= threading.TIMEOUT_MAX:
        raise OptionError(f"timeout_seconds={timeout_seconds!r}: give a number above 0, or None to wait.")
    if faults is None:
        own = getattr(environment, "faults", None)
        faults = own if isinstance(own, Faults) else Faults()
    calls = _calls(environment, tasks, completions)
    outcomes = [_outcome(call) for call in calls] if timeout_seconds is None else _limited(calls, timeout_seconds)
    given = _one_each(environment, outcomes, len(tasks), faults)
    return [_rewards(environment, each, faults) for each in given]


def _calls(environment: Environment, tasks: Sequence[Task], completions: Sequence[str]) -> list[Call]:
    many = getattr(environment, "score_many", None)
    if callable(many):
        return [lambda: many(tasks, completions)] if tasks else []
    return [
        lambda task=task, completion=completion: environment.score(task, completion)  # type: ignore[misc]
        for task, completion in zip(tasks, completions, strict=True)
    ]


def _outcome(call: Call) -> Outcome:
    try:
        return call(), ""
    except Exception as error:  # whatever an environment does, training goes on
        return None, described(error)


def _limited(calls: Sequence[Call], timeout_seconds: float) -> list[Outcome]:
    """What the calls give, one after the other, each within the time limit."""
    outcomes: list[Outcome] = []
    late = 0
    while len(outcomes) < len(calls):
        if refusal := _refusal(late, timeout_seconds):
            return outcomes + [(None, refusal)] * (len(calls) - len(outcomes))
        on_time = _Scorer(calls[len(outcomes) :]).outcomes(timeout_seconds)
        late = 1 if on_time else late + 1
        outcomes += on_time
        if len(outcomes) < len(calls):
            outcomes.append((None, f"took longer than {timeout_seconds:g} s"))
    return outcomes


def _refusal(late: int, timeout_seconds: float) -> str:
    """Why no more calls are made, or nothing."""
    _left_behind[:] = [thread for thread in _left_behind if thread.is_alive()]
    if len(_left_behind) >= MOST_LEFT_BEHIND:
        return f"was not asked, since {len(_left_behind)} calls that took too long are still not back"
    if late >= IN_A_ROW:
        return f"was not asked, since {late} calls in a row took longer than {timeout_seconds:g} s"
    return ""


class _Scorer:
    """A thread that makes calls in turn until it is done, or until it is left behind.

    The thread that waits is woken once, not for each call: a hand-over costs more than most scores.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._outcomes: list[Outcome] = []
        self._began = time.monotonic()
        self._moving_on = threading.Lock()
        self._is_left_behind = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hookline-scorer", daemon=True)

    def outcomes(self, timeout_seconds: float) -> list[Outcome]:
        """What the calls gave, up to the first that takes too long."""
        self._thread.start()
        while not self._done.wait(self._began + timeout_seconds - time.monotonic()):
            with self._moving_on:
                if time.monotonic() >= self._began + timeout_seconds:
                    self._is_left_behind = True
                    _left_behind.append(self._thread)
                    break
        return self._outcomes

    def _run(self) -> None:
        for call in self._calls:
            try:
                outcome = _outcome(call)
            except BaseException as error:  # e.g. sys.exit() in a scorer: nobody would see it here
                outcome = (None, described(error))
            with self._moving_on:
                if self._is_left_behind:
                    return
                self._outcomes.append(outcome)
                self._began = time.monotonic()
        self._done.set()


def _one_each(environment: Environment, outcomes: Sequence[Outcome], n: int, faults: Faults) -> list[Any]:
    """What was given for each completion; None where nothing was, which is a fault of the environment."""
    for _, problem in outcomes:
        if problem:
            faults.note(environment.name, problem)
    if not callable(getattr(environment, "score_many", None)) or not outcomes:
        return [given for given, _ in outcomes]
    ((given, problem),) = outcomes
    if isinstance(given, list | tuple) and len(given) == n:
        return list(given)
    if not problem:
        faults.note(environment.name, f"score_many() gave {reprlib.repr(given)}, where a list of {n} is accepted")
    return [None] * n


def _rewards(environment: Environment, given: Any, faults: Faults) -> dict[str, float]:
    """Rewards that are finite numbers under names."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        faults.note(environment.name, f"gave {reprlib.repr(given)}, where a dict of rewards is accepted")
        return {}
    values = {name: None if value is None else finite(value, str(name), faults) for name, value in given.items()}
    return {str(name): value for name, value in values.items() if value is not None}
