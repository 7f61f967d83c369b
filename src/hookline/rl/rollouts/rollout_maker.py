"""`RolloutMaker`: makes scored rollouts of tasks, from single completions or from episodes.

A completion without any usable reward is not a rollout. Episodes without one are returned separately, with the reason:
they are recorded, but no learner sees them, and no baseline counts them as 0.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from statistics import fmean
from typing import Any

from hookline._engine.errors import OptionError
from hookline._record.chats import prompt_text
from hookline.rl.chat_format import ChatFormat
from hookline.rl.environments.base import Faults, describe_error, faults_of, finite_reward, succeeded
from hookline.rl.environments.episodes import REWARD, has_episodes
from hookline.rl.environments.tools import InThread
from hookline.rl.policies.base import AsyncPolicy, Policy, PolicyError, Prompt, SampleRequest, derived_seed
from hookline.rl.rollouts.config import Lesson, RolloutConfig
from hookline.rl.rollouts.episode import Branch, EpisodeLimits, EpisodePolicy
from hookline.rl.rollouts.episode_runner import EpisodeJob, EpisodeResult, EpisodeRunner
from hookline.rl.rollouts.scoring import RewardWeights, checked_rewards, score_batch
from hookline.rl.types import Completion, Rollout, Sampling, Task

logger = logging.getLogger("hookline")

Groups = Sequence[Sequence[Completion | PolicyError]]
"""The completions of each task, with errors in place of those that failed alone."""


@dataclass(frozen=True, slots=True)
class Unscored:
    """An episode without a reward.

    Attributes:
        rollout: Its last branch.
        problem: What went wrong; empty if nothing did, e.g. because the environment gave no reward.
    """

    rollout: Rollout
    problem: str

    def as_sample(self) -> dict[str, Any]:
        """Return a row for `Recorder.samples`."""
        return self.rollout.as_sample() | ({"error": self.problem} if self.problem else {})


@dataclass(slots=True)
class Made:
    """Rollouts, and what making them took.

    Attributes:
        metrics: Numbers about the episodes; empty for single completions.
        aborted: The number of episodes that a stop request ended.
    """

    rollouts: list[Rollout] = field(default_factory=list)
    unscored: list[Unscored] = field(default_factory=list)
    generate_seconds: float = 0.0
    score_seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    aborted: int = 0

    def add(self, other: "Made") -> None:
        """Add the rollouts of another part of the same evaluation, made at the same time elsewhere."""
        self.rollouts += other.rollouts
        self.unscored += other.unscored
        self.aborted += other.aborted

    def shown(self, count: int | None) -> list[Rollout | Unscored]:
        """Return at most ``count`` of them to record; up to a quarter are those without a reward."""
        unscored = self.unscored if count is None else self.unscored[: max(1, count // 4, count - len(self.rollouts))]
        rollouts = self.rollouts if count is None else self.rollouts[: max(0, count - len(unscored))]
        shown: list[Rollout | Unscored] = [*rollouts, *unscored]
        return shown[:count]


class RolloutMaker:
    """Makes rollouts with a policy.

    Args:
        faults: Counts failures of the policy, and of environments without their own ``faults``.
    """

    def __init__(
        self, policy: Policy | AsyncPolicy, config: RolloutConfig, weights: RewardWeights, *, faults: Faults
    ) -> None:
        self._policy, self._config, self._weights, self._faults = policy, config, weights, faults
        self._runner = EpisodeRunner(policy)
        self._format: ChatFormat | None = None

    def make(
        self,
        lesson: Lesson,
        tasks: Sequence[Task],
        n: int,
        sampling: Sampling,
        *,
        name: str,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Made:
        """Make ``n`` rollouts of each task.

        Args:
            name: Identifies the step in the run: the ids of the episodes begin with it.
            should_stop: Called often; as soon as it is true, open episodes are ended.

        Raises:
            PolicyError: The policy failed, and there are no rollouts.
            OptionError: The policy cannot be used with these tasks.
        """
        if not tasks:
            return Made()
        if has_episodes(lesson.environment):
            return self._make_episodes(lesson, tasks, n, sampling, name, should_stop)
        began = time.perf_counter()
        groups = self._generate(tasks, n, sampling, name)
        generate_seconds = time.perf_counter() - began
        rollouts = [
            Rollout(
                task,
                completion,
                lesson=lesson.id,
                version=min(completion.versions, default=self._policy.version),
                episode=f"{name}-{place}-{copy}",
            )
            for place, (task, group) in enumerate(zip(tasks, groups, strict=True))
            for copy, completion in enumerate(group)
            if isinstance(completion, Completion)
        ]
        failures = [each for group in groups for each in group if isinstance(each, PolicyError)]
        if failures and not rollouts:
            raise failures[0]
        for failure in failures:
            self._faults.note("policy", describe_error(failure))
        began = time.perf_counter()
        is_scored = self._score(lesson, rollouts)
        score_seconds = time.perf_counter() - began
        timings = {"generate": generate_seconds, "score": score_seconds / max(len(rollouts), 1)}
        for each in rollouts:
            each.id, each.timings = each.episode, timings
        return Made(list(compress(rollouts, is_scored)), [], generate_seconds, score_seconds)

    def close(self) -> None:
        """End the threads; `make` starts new ones."""
        self._runner.close()

    def _generate(self, tasks: Sequence[Task], n: int, sampling: Sampling, name: str) -> Groups:
        """Generate single completions; those of chats are messages too."""
        prompts: list[Prompt] = [
            task.prompt if task.messages is None else self._chat_format().prompt(task.messages).ids for task in tasks
        ]
        groups: Groups
        if isinstance(self._policy, Policy):
            groups = self._policy.generate(prompts, n, sampling)
        else:
            seeds = [
                None if sampling.seed is None else derived_seed(sampling.seed, index) for index in range(len(tasks))
            ]
            requests = [
                SampleRequest(
                    prompt,
                    replace(sampling, seed=None if seed is None else derived_seed(seed, copy)),
                    group=f"{name}-{place}",
                )
                for place, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
                for copy in range(n)
            ]
            sampled = self._runner.sample_all(requests)
            groups = [sampled[start : start + n] for start in range(0, len(sampled), n)]
        return [
            group
            if task.messages is None
            else [self._as_chat(each) if isinstance(each, Completion) else each for each in group]
            for task, group in zip(tasks, groups, strict=True)
        ]

    def _chat_format(self) -> ChatFormat:
        if self._format is None:
            given = getattr(self._policy, "chat_format", None)
            if not isinstance(given, ChatFormat):
                raise OptionError(
                    f"{type(self._policy).__name__} has no chat_format, so it cannot generate chats: use a policy with "
                    "a tokenizer that has a chat template, such as HFPolicy."
                )
            self._format = given.with_options(self._config.chat_template_kwargs)
        return self._format

    def _as_chat(self, completion: Completion) -> Completion:
        message = self._chat_format().message(completion.token_ids, prompt_ids=completion.prompt_ids)
        return replace(completion, text=str(message["content"]), messages=[message])

    def _make_episodes(
        self,
        lesson: Lesson,
        tasks: Sequence[Task],
        n: int,
        sampling: Sampling,
        name: str,
        should_stop: Callable[[], bool],
    ) -> Made:
        config, environment = self._config, lesson.environment
        limits = EpisodeLimits(config.max_turns, config.max_episode_tokens)
        chat_format = self._chat_format() if getattr(self._policy, "chat_format", None) is not None else None
        seed = 0 if sampling.seed is None else sampling.seed

        def job(place: int, copy: int) -> EpisodeJob:
            def make_policy(policy: AsyncPolicy, in_thread: InThread) -> EpisodePolicy:
                return EpisodePolicy(
                    policy,
                    tasks[place],
                    sampling=sampling,
                    limits=limits,
                    seed=derived_seed(seed, f"{place}/{copy}"),
                    chat_format=chat_format,
                    in_thread=in_thread,
                    group=f"{name}-{place}",
                )

            return EpisodeJob(environment, make_policy, config.episode_seconds, config.environment_seconds)

        began = time.perf_counter()
        jobs = [job(place, copy) for place in range(len(tasks)) for copy in range(n)]
        results = self._runner.run(jobs, concurrency=config.max_open_episodes, should_stop=should_stop)
        made = Made(generate_seconds=time.perf_counter() - began, metrics=_episode_metrics(results))
        made.aborted = sum(result.finish == "abort" for result in results)
        episodes = [
            _branches(result, tasks[index // n], lesson.id, f"{name}-{index // n}-{index % n}")
            for index, result in enumerate(results)
        ]
        faults = self._faults_of(environment)
        for result in results:
            if result.problem:
                faults.note("policy" if result.policy_error is not None else environment.name, result.problem)
        began = time.perf_counter()
        usable = [
            result.policy.last_branch is not None and result.finish not in ("error", "time", "abort")
            for result in results
        ]
        own = [
            _own_rewards(result, faults, environment.name) if each else {}
            for result, each in zip(results, usable, strict=True)
        ]
        answers = [branches[-1] for branches in compress(episodes, usable)]
        scored = iter(self._score(lesson, answers, list(compress(own, usable))))
        made.score_seconds = time.perf_counter() - began
        for result, branches, is_usable in zip(results, episodes, usable, strict=True):
            if not (is_usable and next(scored)):
                made.unscored.append(Unscored(branches[-1], result.problem))
                continue
            *others, answer = branches
            answer.timings = {**answer.timings, "score": made.score_seconds / len(answers)}
            for each in others:
                each.rewards, each.total, each.success = answer.rewards, answer.total, answer.success
                each.timings = answer.timings
            made.rollouts += branches
        failures = [result.policy_error for result in results if result.policy_error is not None]
        if failures and not made.rollouts:
            raise failures[0]
        return made

    def _faults_of(self, environment: Any) -> Faults:
        own = faults_of(environment)
        return self._faults if own is None else own

    def _score(
        self, lesson: Lesson, rollouts: Sequence[Rollout], own: Sequence[Mapping[str, float]] | None = None
    ) -> list[bool]:
        """Set the rewards of rollouts, and return for each whether it has any usable reward.

        Args:
            own: Rewards that each has already.
        """
        environment: Any = lesson.environment
        faults = self._faults_of(environment)
        scores: list[dict[str, float]] = [{} for _ in rollouts]
        if callable(getattr(environment, "score", None)) or callable(getattr(environment, "score_many", None)):
            with_messages = getattr(environment, "scores_messages", False)
            scores = score_batch(
                environment,
                [each.task for each in rollouts],
                [each.completion.messages if with_messages else each.completion.text for each in rollouts],
                timeout_seconds=self._config.scoring_seconds,
                faults=faults,
            )
        if own is not None:
            scores = [{**given, **score} for given, score in zip(own, scores, strict=True)]
        self._weights.register_names(lesson.id, scores)
        is_scored = []
        for each, rewards in zip(rollouts, scores, strict=True):
            # The weighted sum of finite rewards may still be too large for a number.
            total = finite_reward(self._weights.total(rewards), "total", faults) if rewards else None
            is_scored.append(total is not None)
            if total is None:
                continue
            each.rewards, each.total = rewards, total
            try:
                each.success = succeeded(environment, each.task, rewards)
            except Exception as error:  # user code: training continues, whatever it raises
                self._faults.note(f"{environment.name}.succeeded", describe_error(error))
        return is_scored


def _branches(result: EpisodeResult, task: Task, lesson: str, name: str) -> list[Rollout]:
    """Return the branches of an episode as rollouts without rewards, the one with the last turn at the end.

    An episode that failed before its first turn has one without tokens.
    """
    policy = result.policy
    branches = [branch for branch in policy.branches if branch.points] or [Branch()]
    ids = {id(branch): f"{name}.{number}" if number else name for number, branch in enumerate(branches)}
    answer = policy.last_branch or branches[-1]
    timings = {
        "generate": policy.generate_seconds,
        "environment": _environment_seconds(result),
    }
    rollouts = []
    for branch in sorted(branches, key=lambda each: each is answer):  # stable: the others keep their order
        finish = result.finish if branch is answer or not branch.points else branch.finish
        own = task
        if branch.prompt:
            own = replace(task, prompt=prompt_text(branch.prompt), messages=branch.prompt)
        rollouts.append(
            Rollout(
                own,
                branch.completion(finish),
                lesson=lesson,
                version=min(branch.versions, default=policy.version),
                episode=name,
                id=ids[id(branch)],
                parent=None if branch.parent is None else ids.get(id(branch.parent)),
                turns=len(branch.points),
                timings=timings,
                turn_rewards=[dict(rewards) for rewards in policy.rewards],
            )
        )
    return rollouts


def _environment_seconds(result: EpisodeResult) -> float:
    """Return how long an episode waited for anything but the policy; 0 if branches waited for that at the same time."""
    return max(0.0, result.seconds - result.policy.generate_seconds)


def _own_rewards(result: EpisodeResult, faults: Faults, name: str) -> dict[str, float]:
    """Return the rewards that an environment gave during an episode and at its end."""
    returned: Any = result.rewards
    if returned is not None and not isinstance(returned, Mapping):
        returned = {REWARD: returned}
    sums: dict[str, float] = {}
    for rewards in result.policy.rewards:
        for each, value in rewards.items():
            sums[each] = sums.get(each, 0.0) + value
    return checked_rewards(name, sums | dict(returned or {}), faults)


def _episode_metrics(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """Summarize episodes: turns, branches, seconds, reasons of their ends, tool calls, and metrics of their own."""
    policies = [result.policy for result in results]
    calls = [call for policy in policies for call in policy.tool_calls]
    metrics: dict[str, float] = {
        "episodes": len(results),
        "episodes/turns_mean": fmean(policy.turns for policy in policies),
        "episodes/branches_mean": fmean(sum(bool(branch.points) for branch in policy.branches) for policy in policies),
        "episodes/seconds_mean": fmean(result.seconds for result in results),
        "episodes/seconds_max": max(result.seconds for result in results),
        "episodes/environment_seconds_mean": fmean(_environment_seconds(result) for result in results),
    }
    ends = Counter(result.finish for result in results)
    metrics |= {f"episodes/finish/{reason}": count / len(results) for reason, count in sorted(ends.items())}
    if calls:
        metrics["tools/call_frequency"] = len(calls) / len(results)
        metrics["tools/failure_frequency"] = sum(call.is_error for call in calls) / len(calls)
    values: dict[str, list[float]] = {}
    for policy in policies:
        for name, value in policy.metrics.items():
            values.setdefault(name, []).append(value)
    return metrics | {f"environment/{name}": fmean(own) for name, own in values.items()}
