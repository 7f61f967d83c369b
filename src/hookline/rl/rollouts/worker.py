"""`RolloutWorker`: draws a lesson, has a policy write completions of its tasks, scores them, and asks its hooks.

A rollout step goes like this, and its number counts whether or not anything came of it::

    on_rollout_start, tasks, completions, rewards, advantages
    the step counts, the curriculum takes note, on_rollout_end
    the row of metrics and the samples are written, the hooks are asked

Tasks, lessons and sampling are drawn from the seed and the number of the step, and hooks from a generator of
their own: a worker with other hooks, or one that was resumed, makes the same rollouts.

`Told`: what hooks have logged themselves lately, so that one that logs and returns the same is recorded once.

What is known of the rollouts of a step, as numbers.

Groups of completions: those of one prompt, and how much better each is than the others.

`RewardWeights`: the weights of rewards, and a word about those that no reward goes by.
"""

import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any, NamedTuple

from hookline._engine.errors import OptionError, closest
from hookline._engine.hooks import ASKED, Hook, HookContext, HookManager, HookValue, hooks_in
from hookline._engine.metrics import collect, copied
from hookline._engine.rng import make as make_generator
from hookline._engine.state import LoopArtifacts, ManifestRow
from hookline._record.device import defer
from hookline.loops.loop import EVALUATIONS
from hookline.loops.session import Session
from hookline.rl.environments.base import (
    Environment,
    Faults,
    described,
    evaluation_tasks,
    finite,
    succeeded,
    training_tasks,
)
from hookline.rl.hooks import create_default_evaluation_hooks
from hookline.rl.policies.base import Policy, PolicyError
from hookline.rl.rollouts.config import Lesson, RolloutConfig, RolloutWorkerConfig
from hookline.rl.rollouts.curriculum import Curriculum
from hookline.rl.rollouts.scoring import score_batch
from hookline.rl.types import Completion, Rollout, Task

STEPS = 32
"""For so many steps it is known what was logged: a hook on another thread may return later than it logs."""


class LoggedEntry(NamedTuple):
    """A value that was logged."""

    step: int
    axis: str | None
    value: Any

    def covers(self, step: int) -> bool:
        """Whether it was logged for this step; an evaluation on another thread is, at the step that is current then."""
        return self.step == step or (self.axis == "eval" and self.step > step)


class LoggedByHooks:
    """The values that were logged in the last steps, by name."""

    def __init__(self) -> None:
        self._steps: deque[dict[str, list[LoggedEntry]]] = deque([{}], maxlen=STEPS)
        self._paused_on: int | None = None

    def next_step(self) -> None:
        """Begin a step, and forget the oldest one."""
        self._steps.append({})

    def note(self, step: int, metrics: dict[str, Any], axis: str | None) -> None:
        """Keep what is logged."""
        if threading.get_ident() != self._paused_on:
            for name, value in dict.items(metrics):  # without waiting for those on a device
                self._steps[-1].setdefault(name, []).append(LoggedEntry(step, axis, value))

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What this thread logs meanwhile is no hook's."""
        self._paused_on = threading.get_ident()
        try:
            yield
        finally:
            self._paused_on = None

    def has(self, given: HookValue) -> bool:
        """Whether a value was logged under one of its names."""
        entries = [entry for told in self._steps for name in (given.key, given.name) for entry in told.get(name, ())]
        return any(entry.covers(given.step) and _same(entry.value, given.value) for entry in entries)


def _same(told: Any, value: Any) -> bool:
    return told is value or (isinstance(value, str | int | float) and type(told) is type(value) and told == value)


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Rewards by function and in total, success, lengths; only how many there are, where there are none."""
    metrics: dict[str, float] = {"rollouts": len(rollouts)}
    if not rollouts:
        return metrics
    totals, lengths = [each.total for each in rollouts], [len(each.completion.token_ids) for each in rollouts]
    metrics |= {"reward/mean": fmean(totals), "reward/std": pstdev(totals)}
    for name in dict.fromkeys(name for each in rollouts for name in each.rewards):
        given = [each.rewards[name] for each in rollouts if name in each.rewards]
        metrics |= {f"rewards/{name}/mean": fmean(given), f"rewards/{name}/std": pstdev(given)}
    metrics["success_rate"] = fmean(each.success for each in rollouts)
    metrics |= {"completions/length_mean": fmean(lengths), "completions/length_max": max(lengths)}
    metrics["completions/truncated"] = fmean(each.completion.finish == "length" for each in rollouts)
    metrics["tokens"] = sum(lengths)
    return metrics


EPSILON = 1e-4
"""Added to a standard deviation, as TRL does, so that a group in which rewards hardly differ is not blown up."""


def group_advantages(
    totals: Sequence[float], groups: Sequence[Hashable], *, scale: bool = True
) -> tuple[list[float], float]:
    """The advantage of each completion in its group, and the share of groups in which all did equally well.

    Args:
        totals: The reward of each completion.
        groups: What each was written for: those of one prompt are a group.
        scale: Divide by the group's standard deviation (the sample's, as TRL does), so that easy and hard prompts
            weigh alike.

    >>> group_advantages([1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b"], scale=False)
    ([0.5, -0.5, 0.0, 0.0], 0.5)
    """
    members: dict[Hashable, list[float]] = {}
    for total, group in zip(totals, groups, strict=True):
        members.setdefault(group, []).append(total)
    means = {group: fmean(own) for group, own in members.items()}
    equal = {group for group, own in members.items() if max(own) == min(own)}
    unequal = members.keys() - equal  # which have at least two members, as the deviation of a sample needs
    divisors = {group: stdev(members[group]) + EPSILON if scale else 1.0 for group in unequal}
    advantages = [
        0.0 if group in equal else (total - means[group]) / divisors[group]  # a mean may be off by a rounding
        for total, group in zip(totals, groups, strict=True)
    ]
    return advantages, len(equal) / len(members) if members else 0.0


logger = logging.getLogger("hookline")


class RewardWeights:
    """Weighs rewards; one without a weight counts as it is.

    What an environment's rewards are called shows when it gives some. A weight that has no reward once every lesson
    gave some, or at the end, is named in a warning, once.

    Args:
        weights: By the name of the reward.
        lessons: The ids of all lessons.
    """

    def __init__(self, weights: Mapping[str, float], lessons: Iterable[str]) -> None:
        self._weights = weights
        self._unused = set(weights)
        self._silent = set(lessons)
        self._known: set[str] = set()

    def total(self, rewards: Mapping[str, float]) -> float:
        """The weighted sum."""
        return sum(self._weights.get(name, 1.0) * value for name, value in rewards.items())

    def note(self, lesson: str, rewards: Iterable[Mapping[str, float]]) -> None:
        """Take note of what the rewards of a lesson are called."""
        names = {name for each in rewards for name in each} if self._unused else None
        if names:
            self._known |= names
            self._unused -= names
            self._silent.discard(lesson)
            if not self._silent:
                self.tell_unused()

    def tell_unused(self) -> None:
        """Warn of weights that had no effect, if any reward was given at all."""
        for name in sorted(self._unused) if self._known else ():
            logger.warning(
                "reward_weights: no rollout so far has a reward called %r. %s", name, closest(name, self._known)
            )
        self._unused = set()


class RolloutWorker(Session):
    """Makes rollouts, on its own with `run()`, or for a learner that asks for them with `roll_out()`.

    Args:
        config: The settings.
        policy: What writes the completions, where the settings do not have it.
        hooks: Asked after each rollout step; by default those that evaluate, as the curriculum's settings say.
        callbacks: Callbacks besides those of the settings.
        index: Which of several workers this is: each draws tasks of its own.
    """

    axis = "rollout"
    config: RolloutWorkerConfig

    def __init__(
        self,
        config: RolloutWorkerConfig,
        *,
        policy: Policy | None = None,
        hooks: Iterable[Hook] | None = None,
        callbacks: Iterable[Any] = (),
        index: int = 0,
    ) -> None:
        if not isinstance(config, RolloutWorkerConfig):
            raise OptionError(f"config={config!r}: give a RolloutWorkerConfig.")
        super().__init__(
            config.name,
            project=config.project,
            root=config.output_dir,
            callbacks=[*config.callbacks, *callbacks],
            sinks=config.sinks,
            config=config,
            tags=config.tags,
            notes=config.notes,
            resume=config.resume,
            strict=config.strict,
            summary=config.summary,
            delivery=config.delivery,
            drain_seconds=config.drain_seconds,
            durability=config.durability,
        )
        self.policy = _checked_policy(policy if policy is not None else config.policy)
        self.rollout: RolloutConfig = config.rollout
        self.curriculum = Curriculum(config.curriculum_config, config.seed)
        self.hooks = HookManager(strict=self.callbacks.strict)
        self.hooks.roster.accept = _recordable
        for hook in create_default_evaluation_hooks(config.curriculum_config) if hooks is None else hooks_in(hooks):
            self.hooks.register_hook(hook)
        self.index = index
        self.num_steps = config.max_steps
        self.faults = Faults()
        self.latest_version = self.policy.version
        self.lesson_id: str | None = None
        self.loop: Session = self
        self.rollout_seconds = 0.0
        self._failed_in_a_row = 0
        self._told = LoggedByHooks()
        self._weights = RewardWeights(config.rollout.reward_weights, [each.id for each in self.curriculum.lessons])
        self._hooks_are_closed = False

    @property
    def tracker(self) -> "RolloutWorker":
        """What hooks log to: ``context.worker.tracker.log(metrics, step=context.step)``."""
        return self

    @property
    def exact_logprobs(self) -> bool:
        """Whether a learner with the policy's weights computes the log-probabilities of rollouts itself."""
        return bool(getattr(self.policy, "exact_logprobs", False))

    def register_hook(self, hook: Hook, **options: Any) -> None:
        """Add a hook, at any time; options are those of any subscriber."""
        self.hooks.register_hook(hook, **options)

    def unregister_hook(self, hook: Hook) -> bool:
        """Take out this very hook; whether it was there."""
        return self.hooks.unregister_hook(hook)

    def clear_hooks(self) -> None:
        """Take out all hooks."""
        self.hooks.clear_hooks()

    def get_hooks(self) -> list[Hook]:
        """The hooks, in the order in which they are asked."""
        return self.hooks.get_hooks()

    def run(self, max_steps: int | None = None) -> LoopArtifacts:
        """Make rollouts until as many steps are done as were asked for, or a stop is."""
        if self.state != "created":
            raise OptionError(f"This worker is {self.state}: make another RolloutWorker.")
        self.num_steps = self.num_steps if max_steps is None else max_steps
        self.begin()
        try:
            self.start()
            while not self._must_stop() and (self.num_steps is None or self.step < self.num_steps):
                self.roll_out()
                self.answer_requests()
        except BaseException as error:
            self.finish(error)
            raise
        self.finish(None)
        return self.artifacts()

    def begin(self) -> None:
        """Begin to record, failures of hooks too."""
        super().begin()
        self._open_hooks()

    def work_for(self, loop: Session) -> None:
        """Make rollouts for a learner from now on: its callbacks, its record and its requests are the worker's."""
        self.loop, self.callbacks = loop, loop.callbacks
        self.recorder, self.output_dir, self.state = loop.recorder, loop.output_dir, "running"
        self._thread, self._train_started = threading.get_ident(), True
        self._open_hooks()

    def close_hooks(self) -> None:
        """Let hooks on other threads finish, close all, and record what they still gave and what each has cost.

        May be called again.
        """
        if not self._hooks_are_closed:
            self._hooks_are_closed = True
            self._weights.tell_unused()
            try:
                self.hooks.roster.close()
            finally:
                self._record_results()
                self.commit_held_back()
            if costs := self.hooks.costs().as_metrics():
                self._write(self.step, costs)

    def request_stop(self, reason: str = "requested") -> None:
        """Ask for a stop at the next step boundary, of the learner where it makes rollouts for one."""
        if self.loop is self:
            super().request_stop(reason)
        else:
            self.loop.request_stop(reason)

    def request_checkpoint(self) -> None:
        """Ask for a checkpoint at the next step boundary, of the learner where it makes rollouts for one."""
        if self.loop is self:
            super().request_checkpoint()
        else:
            self.loop.request_checkpoint()

    def save_checkpoint(self, path: str | Path | None = None, *, kind: str = "step") -> ManifestRow:
        """Save a checkpoint, of the learner where it makes rollouts for one: that has the rollouts in it."""
        if self.loop is self:
            return super().save_checkpoint(path, kind=kind)
        return self.loop.save_checkpoint(path, kind=kind)

    def roll_out(self) -> list[Rollout]:
        """Make one rollout step, and return what came of it: nothing, where the policy or the scoring failed."""
        step_idx, lesson = self.step, self._next_lesson()
        self.lesson_id = lesson.id
        self.callbacks.on_rollout_start(self.loop, step_idx, lesson.id)
        began = time.perf_counter()
        tasks, written = self._written(lesson)
        generated = time.perf_counter()
        rollouts = self._score(lesson, tasks, written)
        scored = time.perf_counter()
        advantages, equal = group_advantages(
            [each.total for each in rollouts], [each.task.id for each in rollouts], scale=self.rollout.scale_advantages
        )
        for each, advantage in zip(rollouts, advantages, strict=True):
            each.advantage = advantage
        self.step += 1
        metrics = rollout_metrics(rollouts) | self._facts(generated - began, scored - generated)
        if rollouts:
            metrics["groups/zero_variance"] = equal
            self._count_results(lesson, rollouts)
        self.callbacks.on_rollout_end(self.loop, step_idx, rollouts)
        self._tell_row(metrics)
        self._record_samples(rollouts)
        self._ask_hooks(metrics)
        self.commit_held_back()
        return rollouts

    def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Let the policy write with new weights."""
        self.policy.load_weights(version, weights)
        self.note_version(version)

    def note_version(self, version: int) -> None:
        """Say that the policy writes with a version now."""
        self.latest_version = max(self.latest_version, version)
        self.callbacks.on_weights_update(self.loop, version)

    def evaluate_lesson(
        self, lesson_id: str, n_examples: int = 16, eval_type: str = "eval", *, rng: random.Random | None = None
    ) -> dict[str, Any]:
        """Have the policy answer held-out tasks of a lesson, as well as it can, and return how it did."""
        lesson = self.curriculum.lesson(lesson_id)
        rng = rng or self._generator(f"{eval_type}/{lesson_id}")
        tasks = evaluation_tasks(lesson.environment, n_examples, rng)
        written = self.policy.generate([task.prompt for task in tasks], 1, self.rollout.sampling(greedy=True))
        rollouts = self._score(lesson, tasks, written)
        known = rollout_metrics(rollouts)
        shown = [name for name in ("reward/mean", "success_rate", "completions/length_mean") if name in known]
        metrics: dict[str, Any] = {f"{eval_type}/{lesson_id}/{name}": known[name] for name in shown}
        metrics[f"{eval_type}/{lesson_id}/examples"] = len(rollouts)
        self._tell_evaluation(f"{eval_type}/{lesson_id}", metrics, rollouts)
        return metrics

    def evaluate_curriculum(
        self, n_examples: int = 64, eval_type: str = "eval", *, rng: random.Random | None = None
    ) -> dict[str, Any]:
        """Evaluate every lesson, those that are locked too, and the mean of all."""
        metrics: dict[str, Any] = {}
        rates = []
        for lesson in self.curriculum.lessons:
            own = self._evaluate_lesson(lesson.id, n_examples, eval_type=eval_type, rng=rng)
            metrics |= own
            rates += [value for name, value in own.items() if name.endswith("/success_rate")]
        if rates:
            overall = {f"{eval_type}/success_rate": sum(rates) / len(rates)}
            self._tell_evaluation(eval_type, overall, [])
            metrics |= overall
        return metrics

    def _evaluate_lesson(
        self, lesson_id: str, n_examples: int, *, eval_type: str = "eval", rng: random.Random | None = None
    ) -> dict[str, Any]:
        """What hooks and `evaluate_curriculum` call to evaluate one lesson; a test may replace it on an instance."""
        return self.evaluate_lesson(lesson_id, n_examples, eval_type, rng=rng)

    def _evaluate_curriculum(
        self, n_examples: int, *, eval_type: str = "eval", rng: random.Random | None = None
    ) -> dict[str, Any]:
        """What hooks call to evaluate all lessons; a test may replace it on an instance."""
        return self.evaluate_curriculum(n_examples, eval_type, rng=rng)

    def _next_lesson(self) -> Lesson:
        """The lesson of the step that begins."""
        return self.curriculum.sample_lesson(self._generator("lesson"))

    def _count_results(self, lesson: Lesson, rollouts: list[Rollout]) -> None:
        """Let the curriculum know how the lesson went."""
        self.curriculum.record(lesson.id, [each.success for each in rollouts], self.step)

    def _written(self, lesson: Lesson) -> tuple[list[Task], list[list[Completion]]]:
        """Tasks of a lesson and what the policy made of them; nothing where it could not."""
        try:
            tasks = training_tasks(lesson.environment, self.rollout.prompts, self._generator("tasks"))
        except OptionError:
            raise
        except Exception as error:  # whatever an environment does, training goes on
            self._note_failure(f"{lesson.environment.name}.sample", error)
            return [], []
        sampling = self.rollout.sampling(seed=self._generator("sampling").getrandbits(31))
        try:
            prompts = [task.prompt for task in tasks]
            written = self.policy.generate(prompts, self.rollout.group_size, sampling) if tasks else []
        except PolicyError as error:
            self._note_failure("policy", error)
            return [], []
        self._failed_in_a_row = 0
        return tasks, written

    def _note_failure(self, what: str, error: Exception) -> None:
        self._failed_in_a_row += 1
        self.faults[what] += 1
        if self.faults[what] == 1:
            logger.warning(
                "The %s failed, so this rollout step is empty; it is asked again in the next: %s", what, error
            )
        if self.recorder is not None:
            self.recorder.event("rollout_failed", step=self.step + 1, what=what, error=str(error))
        if self._failed_in_a_row >= self.rollout.failures:
            raise error

    def _score(self, lesson: Lesson, tasks: list[Task], written: list[list[Completion]]) -> list[Rollout]:
        """Each completion with its rewards; those for which there are none are left out."""
        environment: Environment = lesson.environment
        own = getattr(environment, "faults", None)
        faults = own if isinstance(own, Faults) else self.faults
        pairs = [(task, completion) for task, group in zip(tasks, written, strict=True) for completion in group]
        rewards = score_batch(
            environment,
            [task for task, _ in pairs],
            [completion.text for _, completion in pairs],
            timeout_seconds=self.rollout.scoring_seconds,
            faults=faults,
        )
        self._weights.note(lesson.id, rewards)
        totals = [self._total(given, faults) for given in rewards]
        return [
            Rollout(
                task,
                completion,
                given,
                total=total,
                success=self._is_solved(environment, task, given),
                lesson=lesson.id,
                version=self.policy.version,
            )
            for (task, completion), given, total in zip(pairs, rewards, totals, strict=True)
            if total is not None
        ]

    def _total(self, given: dict[str, float], faults: Faults) -> float | None:
        """The weighted sum of rewards; None where there are none, or where it is too large for a number."""
        if not given:
            return None
        return finite(self._weights.total(given), "total", faults)

    def _is_solved(self, environment: Environment, task: Task, given: dict[str, float]) -> bool:
        try:
            return succeeded(environment, task, given)
        except Exception as error:  # whatever an environment does, training goes on
            self.faults.note(f"{environment.name}.succeeded", described(error))
            return False

    def _facts(self, generating: float, scoring: float) -> dict[str, Any]:
        self.rollout_seconds = generating + scoring
        version = self.policy.version
        return {
            "lesson": self.lesson_id,
            "policy/version": version,
            "policy/staleness": self.latest_version - version,
            "seconds/generate": generating,
            "seconds/score": scoring,
        }

    def _tell_row(self, metrics: dict[str, Any]) -> None:
        for event in self.curriculum.take_events():
            if self.recorder is not None:
                facts = {"lesson": event.lesson, "success_rate": event.success_rate}
                self.recorder.event(f"lesson_{event.kind}", step=event.step, **facts)
        own = [getattr(lesson.environment, "faults", None) for lesson in self.curriculum.lessons]
        faults = Counter(self.faults)
        for counted in {id(each): each for each in own if isinstance(each, Faults)}.values():  # lessons may share one
            faults.update(counted)
        metrics |= {f"faults/{name}": count for name, count in faults.items()}
        with self._told.pause():
            if self.loop is self:
                self.commit(self.step, metrics)
            else:  # the learner's own row has what is worth being told to all
                self._write(self.step, metrics)

    def _record_samples(self, rollouts: list[Rollout], axis: str | None = None) -> None:
        shown = rollouts if self.rollout.samples is None else rollouts[: self.rollout.samples]
        rows = [{"step": self.step, **each.as_sample()} for each in shown]
        if self.recorder is not None:
            self.recorder.samples(rows, self.step, axis or self.axis)
        else:
            self.loop.samples += rows

    def _tell_evaluation(self, name: str, metrics: dict[str, Any], rollouts: list[Rollout]) -> None:
        if self.loop._ended:
            logger.warning("%s has ended: the evaluation %s is not recorded.", self.loop.name, name)
            return
        self._record_samples(rollouts, EVALUATIONS)
        self.record_evaluation(name, metrics)

    def record_evaluation(self, name: str, metrics: dict[str, Any], *, step: int | None = None, **options: Any) -> None:
        """Record an evaluation at a rollout step, in the learner's record where it makes rollouts for one."""
        at = self.step if step is None else step
        if self.loop is self or threading.get_ident() != self._thread:
            super().record_evaluation(name, metrics, step=at, **options)
        else:
            self._told.note(at, metrics, EVALUATIONS)
            self.metrics.update(metrics)
            self.loop.record_evaluation(name, metrics, step=at, **options)

    def _ask_hooks(self, metrics: dict[str, Any]) -> None:
        """Ask the hooks once, and record what they give that is not recorded yet."""
        empty = {"success_rate": 0.0, "completions/length_mean": 0.0, "completions/length_max": 0}
        known = metrics | {name: value for name, value in empty.items() if name not in metrics}
        metadata = known | {
            "reward": metrics.get("reward/mean", 0.0),
            "reward_mean": metrics.get("reward/mean", 0.0),
            "reward_std": metrics.get("reward/std", 0.0),
            "performance": metrics.get("success_rate", 0.0),
        }
        rng = make_generator(self.rollout.hook_rng, self._seed("hooks"))
        context = HookContext(self, self.step, rng, self.lesson_id, metadata)
        self._told.next_step()
        self.hooks.roster.fire(ASKED)(context)
        self._record_results()

    def _record_results(self) -> None:
        """Record what hooks gave, each at its own step, but for what they logged themselves."""
        values = self.hooks.roster.results.take()
        self.commit_held_back()  # a hook on another thread logged it before it returned
        rows: dict[int, dict[str, Any]] = {}
        for each in values:
            if not self._told.has(each):
                rows.setdefault(each.step, {})[each.name] = each.value
        with self._told.pause():
            for step in sorted(rows):
                self._record_row(step, rows[step])

    def _record_row(self, step: int, values: dict[str, Any]) -> None:
        """Record what hooks returned at a step."""
        self.log(values, step=step)

    def _open_hooks(self) -> None:
        self._hooks_are_closed = False
        self.hooks.roster.health.on_failure = self.callbacks.health.on_failure
        if self.loop.hook_record is not None and self.loop.rank == 0:
            self.loop.hook_record.follow(self.hooks.roster, moments=(ASKED,))

    def _write(self, step: int, metrics: dict[str, Any], axis: str | None = None, *, common: bool = False) -> None:
        self._told.note(step, metrics, axis)
        if self.loop is self:
            super()._write(step, metrics, axis, common=common)
        else:
            self.metrics.update(metrics)
            self.loop._write(step, metrics, axis or self.axis, common=common)

    def _tell(self, step: int, metrics: dict[str, Any]) -> None:
        if self.loop is self:
            super()._tell(step, metrics)
        else:
            self.loop._tell(step, metrics)

    def _settle(self) -> None:
        self.close_hooks()

    def _fail(self, error: BaseException) -> None:
        try:
            self.close_hooks()
        finally:
            super()._fail(error)

    def _generator(self, purpose: str) -> random.Random:
        """A generator for one purpose at this step: the same whatever else was drawn."""
        return random.Random(self._seed(purpose))  # noqa: S311 - no secret

    def _seed(self, purpose: str) -> str:
        return f"{self.config.seed}/{self.index}/{purpose}/{self.step}"

    def _state(self, step: int) -> dict[str, Any]:
        return super()._state(step) | self.state_dict()

    def _place_at(self, state: dict[str, Any]) -> None:
        self.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Where the rollouts stand."""
        return {"step": self.step, "curriculum": self.curriculum.state_dict(), "hooks": self.hooks.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.step = state["step"]
        self.curriculum.load_state_dict(state["curriculum"])
        self.hooks.load_state_dict(state["hooks"])


def _recordable(values: Mapping[str, Any]) -> dict[str, Any]:
    return copied(collect((values,), {}, defer))


def _checked_policy(policy: Any) -> Policy:
    if not isinstance(policy, Policy):
        raise OptionError(f"policy={policy!r}: give something with generate(), load_weights() and a version.")
    return policy
