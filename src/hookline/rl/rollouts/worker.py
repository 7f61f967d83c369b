"""`RolloutWorker`: samples a lesson, lets a policy generate completions of its tasks, scores them and runs its hooks.

A rollout step counts even if it produces no rollouts. In order::

    on_rollout_start; sample tasks, generate completions, score them, compute advantages
    count the step, update the curriculum; on_rollout_end
    record the metrics and samples; run the hooks

Tasks, lessons and sampling depend only on the seed and the number of the step, and hooks have a generator of their
own: a worker with other hooks, or a resumed one, makes the same rollouts.
"""

import logging
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hookline._engine.errors import OptionError
from hookline._engine.hook_manager import RUN_HOOK, HookManager, HookValue
from hookline._engine.hooks import Hook, HookContext, as_hook_list, make_generator
from hookline._engine.metrics import CapturedMedia, MetricsRow, collect, copied
from hookline._engine.state import LoopArtifacts, ManifestRow
from hookline._engine.subscriber_list import SubscriberList
from hookline._record.device import defer
from hookline._record.tokens import Tokens
from hookline.loops.loop import EVALUATIONS
from hookline.loops.options import options_of
from hookline.loops.session import Session
from hookline.rl.environments.base import Faults, describe_error, evaluation_tasks, faults_of, training_tasks
from hookline.rl.hooks import create_default_evaluation_hooks
from hookline.rl.policies.base import AsyncPolicy, Policy, PolicyError
from hookline.rl.rollouts.config import Lesson, RolloutConfig, RolloutWorkerConfig
from hookline.rl.rollouts.curriculum import Curriculum
from hookline.rl.rollouts.rollout_maker import Made, RolloutMaker, Unscored
from hookline.rl.rollouts.scoring import (
    AdvantageOptions,
    RewardWeights,
    lesson_metrics,
    one_per_episode,
    rollout_metrics,
    set_advantages,
    zero_variance_groups,
)
from hookline.rl.types import Rollout, Sampling, Task

logger = logging.getLogger("hookline")


@dataclass(frozen=True, slots=True)
class DrawnEvaluation:
    """The tasks of an evaluation of a lesson; ``name`` begins the names of its rollouts."""

    lesson_id: str
    tasks: Sequence[Task]
    sampling: Sampling
    name: str


class RolloutWorker(Session):
    """Makes rollouts, on its own with `run()`, or for a learner that calls `roll_out()`.

    Args:
        config: The settings.
        policy: Generates the completions, unless the settings have a policy.
        hooks: Run after each rollout step; by default the evaluation hooks of the curriculum's settings.
        callbacks: Callbacks in addition to those of the settings.
        index: The number of this worker among several: each draws its own tasks.
    """

    axis = "rollout"
    config: RolloutWorkerConfig

    def __init__(
        self,
        config: RolloutWorkerConfig,
        *,
        policy: Policy | AsyncPolicy | None = None,
        hooks: Iterable[Hook] | None = None,
        callbacks: Iterable[Any] = (),
        index: int = 0,
    ) -> None:
        if not isinstance(config, RolloutWorkerConfig):
            raise OptionError(f"config={config!r}: give a RolloutWorkerConfig.")
        super().__init__(config.name, callbacks=[*config.callbacks, *callbacks], **options_of(config))
        policy = config.policy if policy is None else policy
        if not isinstance(policy, Policy | AsyncPolicy):
            raise OptionError(
                f"policy={policy!r}: give an object with generate() or sample(), load_weights() and a version."
            )
        self.policy: Policy | AsyncPolicy = policy
        self.rollout: RolloutConfig = config.rollout
        self.curriculum = Curriculum(config.curriculum_config, config.seed)
        self.hooks = HookManager(strict=self.callbacks.strict)
        self.hooks.subscribers.accept = _accepted
        for hook in create_default_evaluation_hooks(config.curriculum_config) if hooks is None else as_hook_list(hooks):
            self.hooks.register_hook(hook)
        self.index = index
        self.num_steps = config.max_steps
        self.faults = Faults()
        self.latest_version = self.policy.version
        self.lesson_id: str | None = None
        self.loop: Session = self
        self.advantages = AdvantageOptions()
        """How advantages are computed; set by the learner that it makes rollouts for."""
        self.step_seconds: dict[str, float] = {}
        """The seconds of the latest step by activity, without its hooks."""
        self._results: list[tuple[str, list[bool]]] = []
        self._consecutive_failures = 0
        self._tokens_due = 0.0
        self._logged = _LoggedValues()
        self._weights = RewardWeights(config.rollout.reward_weights, [each.id for each in self.curriculum.lessons])
        self._maker = RolloutMaker(policy, config.rollout, self._weights, faults=self.faults)
        self._hooks_are_closed = False
        self.owns_policy = False
        """Whether to close the policy at the end."""

    @property
    def tracker(self) -> "RolloutWorker":
        """The worker itself, for hooks: ``context.worker.tracker.log(metrics, step=context.step)``."""
        return self

    @property
    def exact_logprobs(self) -> bool:
        """Whether a learner with the policy's weights computes the same log-probabilities as the policy."""
        return bool(getattr(self.policy, "exact_logprobs", False))

    @property
    def weights_format(self) -> str:
        """The form in which the policy takes weights."""
        return str(getattr(self.policy, "weights_format", "model"))

    @property
    def needs_initial_weights(self) -> bool:
        """Whether the policy has to get the learner's weights before the first rollout."""
        return bool(getattr(self.policy, "needs_initial_weights", False))

    def register_hook(self, hook: Hook, **options: Any) -> None:
        """Add a hook, at any time; the options are those of any subscriber."""
        self.hooks.register_hook(hook, **options)

    def unregister_hook(self, hook: Hook) -> bool:
        """Remove this hook instance; returns whether it was registered."""
        return self.hooks.unregister_hook(hook)

    def clear_hooks(self) -> None:
        """Remove all hooks."""
        self.hooks.clear_hooks()

    def get_hooks(self) -> list[Hook]:
        """Return the hooks in the order in which they run."""
        return self.hooks.get_hooks()

    def run(self, max_steps: int | None = None) -> LoopArtifacts:
        """Make rollouts until the number of steps is reached or a stop is requested."""
        if self.state != "created":
            raise OptionError(f"This worker is {self.state}: make another RolloutWorker.")
        self.num_steps = self.num_steps if max_steps is None else max_steps
        self.begin()
        try:
            self.start()
            while not self._must_stop() and (self.num_steps is None or self.step < self.num_steps):
                self.roll_out()
                (has_commands,) = self._agree(self.command_flag[0] != 0)
                if has_commands:
                    self.control.receive()
                self.answer_requests()
        except BaseException as error:
            self.finish(error)
            raise
        self.finish(None)
        return self.artifacts()

    def begin(self) -> None:
        """Begin to record, including failures of hooks."""
        super().begin()
        self._open_hooks()

    def attach_to(self, loop: Session) -> None:
        """Make rollouts for a learner: use its callbacks and its record, and pass requests on to it."""
        self.loop, self.callbacks = loop, loop.callbacks
        self.advantages = getattr(loop, "advantages", self.advantages)
        self.recorder, self.output_dir, self.state = loop.recorder, loop.output_dir, "running"
        self._thread, self.has_started = threading.get_ident(), True
        self._open_hooks()

    def close_hooks(self) -> None:
        """Wait for hooks on other threads, close all hooks, and record their last results and their costs.

        Further calls do nothing.
        """
        if self._hooks_are_closed:
            return
        self._hooks_are_closed = True
        self._weights.warn_unused()
        try:
            self.hooks.subscribers.close()
        finally:
            self._maker.close()
            if self.owns_policy and hasattr(self.policy, "close"):
                self.policy.close()
            self._record_hook_results()
            self.commit_held_back()
        if costs := self.hooks.costs().as_metrics():
            self._write(self.step, costs)

    def command_refusal(self, name: str) -> str | None:
        """Return why a worker cannot apply a command; None if it can."""
        return "A rollout worker has no validation: its hooks evaluate lessons." if name == "validate" else None

    def subscriber_lists(self) -> list[SubscriberList]:
        """Return the callbacks, and the hooks."""
        return [self.callbacks, self.hooks.subscribers]

    def request_stop(self, reason: str = "requested") -> None:
        """Request a stop at the next step boundary, of the learner if the worker is attached to one."""
        if self.loop is self:
            super().request_stop(reason)
        else:
            self.loop.request_stop(reason)

    def request_checkpoint(self) -> None:
        """Request a checkpoint at the next step boundary, of the learner if the worker is attached to one."""
        if self.loop is self:
            super().request_checkpoint()
        else:
            self.loop.request_checkpoint()

    def save_checkpoint(self, path: str | Path | None = None, *, kind: str = "step") -> ManifestRow:
        """Save a checkpoint now; an attached worker saves the learner's, which includes the rollouts' state."""
        if self.loop is self:
            return super().save_checkpoint(path, kind=kind)
        return self.loop.save_checkpoint(path, kind=kind)

    def roll_out(self) -> list[Rollout]:
        """Make one rollout step and return its rollouts: none if the policy or the scoring failed.

        If a stop is requested meanwhile, the open episodes are ended. The step does not count then, and returns none:
        those that were finished are recorded, and a resumed worker makes all of them again. They would be the short
        ones, which are not a fair sample of the step.
        """
        step_idx, lesson = self.step, self._next_lesson()
        self.lesson_id = lesson.id
        self.callbacks.on_rollout_start(self.loop, step_idx, lesson.id)
        made = self._make_rollouts(lesson)
        if made.aborted:
            self._record_aborted(made)
            return []
        rollouts = made.rollouts
        self.step_seconds = {"generate": made.generate_seconds, "score": made.score_seconds}
        set_advantages(rollouts, self.advantages)
        self.step += 1
        metrics: dict[str, Any] = rollout_metrics(rollouts) | made.metrics
        metrics |= {
            "lesson": self.lesson_id,
            "policy/version": self.policy.version,
            "policy/staleness": self.latest_version - self.policy.version,
            **{f"seconds/{name}": seconds for name, seconds in self.step_seconds.items()},
        }
        if rollouts:
            equal = zero_variance_groups(rollouts).values()
            metrics["groups/zero_variance"] = sum(equal) / max(1, len(equal))
            self._update_curriculum(lesson, one_per_episode(rollouts))
        metrics |= self._curriculum_metrics(lesson, rollouts)
        self.callbacks.on_rollout_end(self.loop, step_idx, rollouts)
        self._record_step(metrics)
        self._record_samples(made)
        self._run_hooks(metrics)
        self.commit_held_back()
        return rollouts

    def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Load new weights into the policy."""
        self.policy.load_weights(version, weights)
        self.latest_version = max(self.latest_version, version)
        self.callbacks.on_weights_update(self.loop, version)

    def evaluate_lesson(
        self, lesson_id: str, n_examples: int = 16, eval_type: str = "eval", *, rng: random.Random | None = None
    ) -> dict[str, Any]:
        """Evaluate the policy on held-out tasks of a lesson, with greedy sampling, and return the metrics."""
        made = self._make_evaluation(self._drawn_evaluation(lesson_id, n_examples, eval_type, rng))
        rollouts = made.rollouts
        values = rollout_metrics(rollouts)
        shown = [name for name in ("reward/mean", "success_rate", "completions/length_mean") if name in values]
        metrics: dict[str, Any] = {f"{eval_type}/{lesson_id}/{name}": values[name] for name in shown}
        metrics[f"{eval_type}/{lesson_id}/examples"] = len(rollouts)
        self._record_evaluation(f"{eval_type}/{lesson_id}", metrics, made)
        return metrics

    def evaluate_curriculum(
        self, n_examples: int = 64, eval_type: str = "eval", *, rng: random.Random | None = None
    ) -> dict[str, Any]:
        """Evaluate every lesson, locked ones included, and the mean of all."""
        metrics: dict[str, Any] = {}
        rates = []
        for lesson in self.curriculum.lessons:
            own = self._evaluate_lesson(lesson.id, n_examples, eval_type=eval_type, rng=rng)
            metrics |= own
            rates += [value for name, value in own.items() if name.endswith("/success_rate")]
        if rates:
            overall = {f"{eval_type}/success_rate": sum(rates) / len(rates)}
            self._record_evaluation(eval_type, overall, Made())
            metrics |= overall
        return metrics

    def _drawn_evaluation(
        self, lesson_id: str, n_examples: int, eval_type: str, rng: random.Random | None
    ) -> "DrawnEvaluation":
        rng = rng or self._rng(f"{eval_type}/{lesson_id}")
        tasks = evaluation_tasks(self.curriculum.lesson(lesson_id).environment, n_examples, rng)
        sampling = self.rollout.sampling(seed=rng.getrandbits(31), greedy=True)
        return DrawnEvaluation(lesson_id, tasks, sampling, f"{eval_type}/{lesson_id}-{self.index}-{self.step}")

    def _make_evaluation(self, drawn: "DrawnEvaluation") -> Made:
        reason = self.loop.stop_reason  # one that was there before does not end the evaluation
        return self._maker.make(
            self.curriculum.lesson(drawn.lesson_id),
            drawn.tasks,
            1,
            drawn.sampling,
            name=drawn.name,
            should_stop=lambda: self.loop.stop_reason != reason,
        )

    # Hooks call these two rather than the public methods, so that tests can replace them on an instance.

    def _evaluate_lesson(
        self, lesson_id: str, n_examples: int, *, eval_type: str = "eval", rng: random.Random | None = None
    ) -> dict[str, Any]:
        return self.evaluate_lesson(lesson_id, n_examples, eval_type, rng=rng)

    def _evaluate_curriculum(
        self, n_examples: int, *, eval_type: str = "eval", rng: random.Random | None = None
    ) -> dict[str, Any]:
        return self.evaluate_curriculum(n_examples, eval_type, rng=rng)

    def _next_lesson(self) -> Lesson:
        return self.curriculum.sample_lesson(self._rng("lesson"))

    def _update_curriculum(self, lesson: Lesson, rollouts: list[Rollout]) -> None:
        successes = [each.success for each in rollouts]
        if self.loop.world_size == 1:
            self.curriculum.record(lesson.id, successes, self.step)
        else:
            self._results.append((lesson.id, successes))

    def _curriculum_metrics(self, lesson: Lesson, rollouts: list[Rollout]) -> dict[str, float]:
        return lesson_metrics(lesson.id, rollouts) | self.curriculum.metrics()

    def share_results(self, gather: Callable[[Any], list[Any]]) -> None:
        """Count the results of the learner's processes in the curriculum, which stays the same in all of them.

        Args:
            gather: A collective that returns the argument of every process, in rank order.
        """
        results, self._results = self._results, []
        for own in gather(results):
            for lesson_id, successes in own:
                self.curriculum.record(lesson_id, successes, self.step)

    def _make_rollouts(self, lesson: Lesson) -> Made:
        """Sample tasks of a lesson and make rollouts of them; there are none after a failure."""
        try:
            tasks = training_tasks(lesson.environment, self.rollout.prompts, self._rng("tasks"))
        except OptionError:
            raise
        except Exception as error:  # user code: training continues whatever it raises
            self._count_failure(f"{lesson.environment.name}.sample", error)
            return Made()
        sampling = self.rollout.sampling(seed=self._rng("sampling").getrandbits(31))
        try:
            made = self._maker.make(
                lesson,
                tasks,
                self.rollout.group_size,
                sampling,
                name=f"{self.index}-{self.step}",
                should_stop=lambda: self.loop.stop_requested,
            )
        except PolicyError as error:
            self._count_failure("policy", error)
            return Made()
        self._consecutive_failures = 0
        return made

    def _count_failure(self, source: str, error: Exception) -> None:
        """Log the first failure of a source and record each; raise the error after too many in a row."""
        self._consecutive_failures += 1
        self.faults[source] += 1
        if self.faults[source] == 1:
            logger.warning(
                "The %s failed, so this rollout step is empty; it is tried again in the next step: %s", source, error
            )
        if self.recorder is not None:
            self.recorder.event("rollout_failed", step=self.step + 1, what=source, error=str(error))
        if self._consecutive_failures >= self.rollout.failures:
            raise error

    def _record_step(self, metrics: dict[str, Any]) -> None:
        for event in self.curriculum.take_events():
            if self.recorder is not None and self.loop.rank == 0:  # the curriculum is the same in all processes
                self.recorder.event(
                    f"lesson_{event.kind}", step=event.step, lesson=event.lesson, success_rate=event.success_rate
                )
        own = [faults_of(lesson.environment) for lesson in self.curriculum.lessons]
        faults = Counter(self.faults)
        for counted in {id(each): each for each in own if each is not None}.values():  # lessons may share one
            faults.update(counted)
        metrics |= {f"faults/{name}": count for name, count in faults.items()}
        with self._logged.paused():
            if self.loop is self:
                self.commit(self.step, metrics)
            else:  # without on_log: the learner fires it for its own row, which summarizes the rollouts
                self._write(self.step, metrics)

    def _record_aborted(self, made: Made) -> None:
        """Record the episodes of a step that a stop request ended, as a part of the next step."""
        if self.recorder is not None:
            self.recorder.event(
                "rollouts_aborted", step=self.step + 1, finished=len(made.rollouts), aborted=made.aborted
            )
        self._record_samples(made, step=self.step + 1)

    def _record_samples(self, made: Made, axis: str | None = None, *, step: int | None = None) -> None:
        at, shown = self.step if step is None else step, made.shown(self.rollout.samples)
        rows = [each.as_sample() for each in shown]
        if self.recorder is not None:
            for each in shown:
                own = each.rollout if isinstance(each, Unscored) else each
                own.recorded = "sample"
            if self.rollout.tokens:
                self._add_tokens(rows, shown)
            self.recorder.samples(rows, at, axis or self.axis)
        else:
            self.loop.samples += [{"step": at, **row} for row in rows]

    def _add_tokens(self, rows: list[dict[str, Any]], rollouts: Sequence[Rollout | Unscored]) -> None:
        """Add the tokens, with their values, to a share of the samples."""
        for row, each in zip(rows, rollouts, strict=True):
            rollout = each.rollout if isinstance(each, Unscored) else each
            self._tokens_due += self.rollout.tokens
            if self._tokens_due >= 1:
                self._tokens_due -= 1
                tokens = rollout_tokens(rollout, self.policy)
                if tokens is not None:
                    row["tokens"], rollout.recorded = tokens, "tokens"

    def _record_evaluation(self, name: str, metrics: dict[str, Any], made: Made) -> None:
        if self.loop.has_ended:
            logger.warning("%s has ended: the evaluation %s is not recorded.", self.loop.name, name)
            return
        self._record_samples(made, EVALUATIONS)
        self.record_evaluation(name, metrics)

    def record_evaluation(self, name: str, metrics: dict[str, Any], *, step: int | None = None, **options: Any) -> None:
        """Record an evaluation at a rollout step, in the learner's record if the worker is attached to one."""
        at = self.step if step is None else step
        if self.loop is self or threading.get_ident() != self._thread:
            super().record_evaluation(name, metrics, step=at, **options)
        else:
            self._logged.add(at, metrics, EVALUATIONS)
            self.metrics.update(metrics)
            self.loop.record_evaluation(name, metrics, step=at, **options)

    def _run_hooks(self, metrics: dict[str, Any]) -> None:
        """Run the hooks that are due, and record their results."""
        defaults = {"success_rate": 0.0, "completions/length_mean": 0.0, "completions/length_max": 0}
        metadata = {
            **metrics,
            **{name: value for name, value in defaults.items() if name not in metrics},
            "reward": metrics.get("reward/mean", 0.0),
            "reward_mean": metrics.get("reward/mean", 0.0),
            "reward_std": metrics.get("reward/std", 0.0),
            "performance": metrics.get("success_rate", 0.0),
        }
        rng = make_generator(self.rollout.hook_rng, self._seed("hooks"))
        context = HookContext(self, self.step, rng, self.lesson_id, metadata)
        self._logged.next_step()
        self.hooks.subscribers.fire(RUN_HOOK)(context)
        self._record_hook_results()

    def _record_hook_results(self) -> None:
        """Record the results of hooks, each at its own step, except values that the hooks logged themselves."""
        values = self.hooks.subscribers.results.take()
        self.commit_held_back()  # first, because a hook on another thread logs before it returns
        rows: dict[int, dict[str, Any]] = {}
        for each in values:
            if each not in self._logged:
                rows.setdefault(each.step, {})[each.name] = each.value
        with self._logged.paused():
            for step in sorted(rows):
                self._record_hook_row(step, rows[step])

    def _record_hook_row(self, step: int, values: dict[str, Any]) -> None:
        self.log(values, step=step)

    def _open_hooks(self) -> None:
        self._hooks_are_closed = False
        self.hooks.subscribers.health.on_failure = self.callbacks.health.on_failure
        if self.loop.hook_record is not None and self.loop.rank == 0:
            self.loop.hook_record.follow(self.hooks.subscribers, moments=(RUN_HOOK,))

    def _write(self, step: int, metrics: dict[str, Any], axis: str | None = None, *, common: bool = False) -> None:
        self._logged.add(step, metrics, axis)
        if self.loop is self:
            super()._write(step, metrics, axis, common=common)
        else:
            self.metrics.update(metrics)
            self.loop._write(step, metrics, axis or self.axis, common=common)

    def _notify_log(self, step: int, metrics: dict[str, Any]) -> None:
        if self.loop is self:
            super()._notify_log(step, metrics)
        else:
            self.loop._notify_log(step, metrics)

    def _finish_open_work(self) -> None:
        self.close_hooks()

    def _fail(self, error: BaseException) -> None:
        try:
            self.close_hooks()
        finally:
            super()._fail(error)

    def _rng(self, purpose: str) -> random.Random:
        """Return a generator for one purpose at this step; it does not depend on other draws."""
        return random.Random(self._seed(purpose))  # noqa: S311 - no secret

    def _seed(self, purpose: str) -> str:
        return f"{self.config.seed}/{self.index}/{purpose}/{self.step}"

    def _checkpoint_state(self, step: int) -> dict[str, Any]:
        return super()._checkpoint_state(step) | self.state_dict()

    def _restore_position(self, state: dict[str, Any]) -> None:
        self.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps and the states of the curriculum and the hooks."""
        return {"step": self.step, "curriculum": self.curriculum.state_dict(), "hooks": self.hooks.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.step = state["step"]
        self.curriculum.load_state_dict(state["curriculum"])
        self.hooks.load_state_dict(state["hooks"])


def rollout_tokens(rollout: Rollout, policy: Policy | AsyncPolicy) -> Tokens | None:
    """Return the values that a policy reported for the tokens of a rollout; None without tokens or their texts."""
    made = rollout.completion
    count, name_tokens = len(made.token_ids), getattr(policy, "token_texts", None)
    given = {"logprobs": made.logprobs, "sampled_logprobs": made.sampled_logprobs}
    columns: dict[str, Any] = {name: list(values) for name, values in given.items() if len(values) == count}
    mask = list(made.mask) or [1] * count
    if made.mask:
        columns["mask"] = mask
    if rollout.advantage is not None:
        columns["advantage"] = [rollout.advantage * each for each in mask]
    if not count:
        return None
    try:
        texts = None if name_tokens is None else name_tokens(made.token_ids)
    except Exception as error:  # code of a policy or a tokenizer: the ids are recorded without their texts
        logger.warning("The texts of tokens cannot be recorded: %s", describe_error(error))
        texts = None
    return Tokens(texts, ids=list(made.token_ids), **columns)


def _accepted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a hook's result, without waiting for a device; media are captured now and recorded with the rest."""
    row = copied(collect((values,), {}, defer))
    if isinstance(row, MetricsRow):
        dict.update(row, {name: list(map(CapturedMedia, captured)) for name, captured in row.take_media().items()})
    return row


class _LoggedValue(NamedTuple):
    step: int
    axis: str | None
    value: Any


class _LoggedValues:
    """The values that hooks logged lately: a hook that logs a value and returns it too is recorded once.

    Values are kept for a number of steps, because a hook on another thread returns later than it logs.
    """

    STEPS = 32

    def __init__(self) -> None:
        self._steps: deque[dict[str, list[_LoggedValue]]] = deque([{}], maxlen=self.STEPS)
        self._paused_thread: int | None = None

    def next_step(self) -> None:
        """Begin a step, and forget the oldest."""
        self._steps.append({})

    def add(self, step: int, metrics: dict[str, Any], axis: str | None) -> None:
        """Keep values that are being logged."""
        if threading.get_ident() != self._paused_thread:
            for name, value in dict.items(metrics):  # a row's own items() would wait for values on a device
                self._steps[-1].setdefault(name, []).append(_LoggedValue(step, axis, value))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore values that the current thread logs: the worker logs them, not a hook."""
        self._paused_thread = threading.get_ident()
        try:
            yield
        finally:
            self._paused_thread = None

    def __contains__(self, result: HookValue) -> bool:
        """Whether a result of a hook was logged under its key or its name."""
        names = (result.key, result.name)
        entries = [entry for step in self._steps for name in names for entry in step.get(name, ())]
        return any(
            # An evaluation on another thread is logged at the step that is current when it ends.
            (entry.step == result.step or (entry.axis == EVALUATIONS and entry.step > result.step))
            and _is_same(entry.value, result.value)
            for entry in entries
        )


def _is_same(logged: Any, value: Any) -> bool:
    return logged is value or (isinstance(value, str | int | float) and type(logged) is type(value) and logged == value)
