"""Scores completions with an environment, and computes the metrics and advantages of scored rollouts.

Nothing that an environment does stops training.

If an environment raises, returns anything but rewards or takes too long, the affected rewards are missing. The failure
is counted under the name of the environment or the reward, and the first failure of each name is logged.

With a time limit, scoring runs on a thread that is abandoned when a call takes too long. Threads cannot be killed:
they are daemons, so they never keep the program from exiting, and at most `MAX_ABANDONED_THREADS` may be running
before time-limited calls are skipped. An abandoned thread that computes keeps using its CPU.
"""

import itertools
import logging
import math
import reprlib
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from hookline._engine.errors import OptionError, closest
from hookline.rl.environments.base import Environment, Faults, describe_error, faults_of, finite_reward
from hookline.rl.types import Rollout, Task

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
    completions: Sequence[Any],
    *,
    timeout_seconds: float | None = None,
    faults: Faults | None = None,
) -> list[dict[str, float]]:
    """Return the rewards of each completion; empty where the environment failed.

    Args:
        completions: Texts, or lists of messages for an environment with ``scores_messages``.
        timeout_seconds: The time limit of one call of ``score``, or of ``score_many`` if the environment has that; None
            waits indefinitely.
        faults: Counts failures; the environment's own ``faults`` by default.
    """
    if len(tasks) != len(completions):
        raise OptionError(f"{len(tasks)} tasks and {len(completions)} completions: give a task for each completion.")
    if timeout_seconds is not None and not 0 < timeout_seconds <= threading.TIMEOUT_MAX:
        raise OptionError(f"timeout_seconds={timeout_seconds!r}: give a number above 0, or None to wait.")
    if faults is None:
        own = faults_of(environment)
        faults = Faults() if own is None else own
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
    return [checked_rewards(environment.name, each, faults) for each in results]


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


def checked_rewards(name: str, result: Any, faults: Faults) -> dict[str, float]:
    """Return the usable rewards of a result, and count the others as faults of the environment ``name``."""
    if result is None:
        return {}
    if not isinstance(result, Mapping):
        faults.note(name, f"gave {reprlib.repr(result)}, where a dict of rewards is accepted")
        return {}
    values = {
        reward: None if value is None else finite_reward(value, str(reward), faults) for reward, value in result.items()
    }
    return {str(reward): value for reward, value in values.items() if value is not None}


EPSILON = 1e-4
"""Added to a standard deviation, as in TRL, so that nearly equal rewards do not get huge advantages."""
RewardScale = Literal["group", "batch", "none"]
Gather = Callable[[list[float]], list[list[float]]]
"""Returns the numbers of all processes, in the order of the processes."""


@dataclass(frozen=True, slots=True)
class AdvantageOptions:
    """How advantages are computed; the learner's settings, which also apply to the samples that a worker records.

    Attributes:
        scale: Divide by the standard deviation of the "group", of the "batch", or by "none".
        normalizes_first: Normalize each reward function within its groups before the rewards are summed.
        clip: The largest distance from 0.
        reward_weights: The weights of the reward functions, where they are normalized first.
    """

    scale: RewardScale = "group"
    normalizes_first: bool = False
    clip: float | None = None
    reward_weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def spans_batch(self) -> bool:
        """Whether the advantages of a group depend on the other groups of the batch."""
        return self.normalizes_first or self.scale == "batch"


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Summarize rewards, success and lengths; without rollouts, only their count is returned.

    Rewards and success are those of episodes, however many branches they have; lengths are sampled tokens of branches.
    """
    metrics: dict[str, float] = {"rollouts": len(rollouts)}
    if not rollouts:
        return metrics
    episodes = one_per_episode(rollouts)
    made = [each.completion for each in rollouts]
    lengths = [each.length for each in made]
    mean, std = _mean_and_spread([each.total for each in episodes])
    metrics |= {"reward/mean": mean, "reward/std": std}
    for name in dict.fromkeys(itertools.chain.from_iterable(each.rewards for each in episodes)):
        mean, std = _mean_and_spread([each.rewards[name] for each in episodes if name in each.rewards])
        metrics |= {f"rewards/{name}/mean": mean, f"rewards/{name}/std": std}
    metrics["success_rate"] = sum([each.success for each in episodes]) / len(episodes)
    metrics |= {"completions/length_mean": fmean(lengths), "completions/length_max": max(lengths)}
    metrics["completions/truncated"] = [each.finish for each in made].count("length") / len(made)
    metrics["tokens"] = sum(lengths)
    return metrics


def _mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation of a whole population."""
    mean = fmean(values)
    if min(values) == max(values):  # exactly 0: the mean may be off by a rounding error
        return mean, 0.0
    # Not `statistics.pstdev`, which computes with fractions and takes many times as long.
    return mean, math.dist(values, [mean] * len(values)) / math.sqrt(len(values))


def lesson_metrics(lesson_id: str, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the rewards and the success of a lesson's rollouts under the lesson's name, for a curve per lesson."""
    values = rollout_metrics(rollouts)
    shown = (name for name in ("reward/mean", "success_rate", "completions/length_mean") if name in values)
    return {f"lessons/{lesson_id}/{name}": values[name] for name in shown}


def one_per_episode(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return one branch of each episode: all have the same rewards."""
    return list({_episode_key(each): each for each in rollouts}.values())


def _episode_key(rollout: Rollout) -> Hashable:
    return rollout.episode or id(rollout)


def set_advantages(
    rollouts: Sequence[Rollout],
    options: AdvantageOptions | None = None,
    *,
    gather: Gather = lambda own: [own],
) -> None:
    """Set the advantage of each rollout relative to the others of its group: those of the same task.

    A rollout without a reward does not count in its group and gets 0. The branches of an episode count once, and all
    of them get its advantage.

    Args:
        gather: Collects the numbers of all processes, where advantages depend on the whole batch.
    """
    options = options or AdvantageOptions()
    scored = [each for each in one_per_episode(rollouts) if each.rewards]
    groups = [each.task.id for each in scored]
    if options.normalizes_first:
        totals = _normalized_totals([each.rewards for each in scored], groups, options.reward_weights)
        mean, std = mean_and_std([total for own in gather(totals) for total in own])
        advantages = [(total - mean) / (std + EPSILON) for total in totals]
    else:
        totals, std = [each.total for each in scored], None
        if options.scale == "batch":
            _, std = mean_and_std([total for own in gather(totals) for total in own])
        advantages = group_advantages(totals, groups, scale=options.scale != "none", std=std)
    if options.clip is not None:
        advantages = [max(-options.clip, min(options.clip, advantage)) for advantage in advantages]
    of_episode = {_episode_key(each): advantage for each, advantage in zip(scored, advantages, strict=True)}
    for each in rollouts:
        each.advantage = of_episode.get(_episode_key(each), 0.0)


def group_advantages(
    totals: Sequence[float], groups: Sequence[Hashable], *, scale: bool = True, std: float | None = None
) -> list[float]:
    """Return the advantage of each completion in its group.

    Args:
        totals: The total reward of each completion.
        groups: The group of each completion: the completions of one prompt form a group.
        scale: Divide by the group's sample standard deviation, as TRL does, so that easy and hard prompts have equal
            weight.
        std: Divide by this one instead, that of the whole batch.

    >>> group_advantages([1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b"], scale=False)
    [0.5, -0.5, 0.0, 0.0]
    """
    members = _by_group(totals, groups)
    facts = {group: mean_and_std(own) for group, own in members.items()}
    equal = {group for group, own in members.items() if max(own) == min(own)}
    advantages = []
    for total, group in zip(totals, groups, strict=True):
        mean, own_std = facts[group]
        divisor = (own_std if std is None else std) + EPSILON if scale else 1.0
        # Exactly 0 in a group of equal totals: the mean may be off by a rounding error.
        advantages.append(0.0 if group in equal else (total - mean) / divisor)
    return advantages


def zero_variance_groups(rollouts: Iterable[Rollout]) -> dict[str, bool]:
    """Return for each group whether all its rewards are equal; rollouts without a reward do not count."""
    scored = [each for each in rollouts if each.rewards]
    members = _by_group([each.total for each in scored], [each.task.id for each in scored])
    return {group: max(own) == min(own) for group, own in members.items()}


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation; the latter is 0 for fewer than two values."""
    # Not `statistics`, which computes with fractions and takes many times as long.
    if not values:
        return 0.0, 0.0
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    return mean, math.sqrt(variance)


def _normalized_totals(
    rewards: Sequence[Mapping[str, float]], groups: Sequence[Hashable], weights: Mapping[str, float]
) -> list[float]:
    """Return weighted sums of rewards, each normalized within its group; one that is missing adds nothing."""
    totals = [0.0] * len(rewards)
    for name in dict.fromkeys(name for own in rewards for name in own):
        places = [index for index, own in enumerate(rewards) if name in own]
        own = group_advantages([rewards[index][name] for index in places], [groups[index] for index in places])
        for index, advantage in zip(places, own, strict=True):
            totals[index] += weights.get(name, 1.0) * advantage
    return totals


def _by_group(totals: Sequence[float], groups: Sequence[Any]) -> dict[Any, list[float]]:
    members: dict[Any, list[float]] = {}
    for total, group in zip(totals, groups, strict=True):
        members.setdefault(group, []).append(total)
    return members
