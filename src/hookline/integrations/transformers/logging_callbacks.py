"""`EnhancedLoggingCallback` and `OptimizedLoggingCallback`: log a GRPO training to the topics of `hookline.logging`.

    trainer = GRPOTrainer(
        model, reward_funcs=rewards.wrap(REWARD_FUNCTIONS), args=args, train_dataset=data, processing_class=tokenizer,
        callbacks=[EnhancedLoggingCallback()],
    )

Hugging Face gives callbacks neither completions nor rewards: they come from the wrapped reward functions. An answer is
correct if the correctness function gave it a positive reward. Answers are counted one by one; an answer that no
function scored is not counted. What evaluations generate is counted separately.

Completions and rewards are logged when they have been scored, everything else when Hugging Face reports it, on the
training thread. Nothing waits in memory, so logged rows survive ``kill -9`` (see `hookline._record.outbox`).

These are Hugging Face callbacks and need no hookline run; `attach` may be used beside them.
"""

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from hookline._engine.errors import OptionError, closest
from hookline._record.files import write_atomically
from hookline.integrations.transformers.callback import recordable
from hookline.integrations.trl import CORRECTNESS, correctness_name
from hookline.logging import (
    get_training_logger,
    log_generation_metrics,
    log_memory_usage,
    log_model_output,
    log_reward,
    log_reward_metrics,
    log_training_progress,
    log_validation_metrics,
)
from hookline.rl.rewards import recording
from hookline.rl.rewards.recording import RecordTo, flush
from hookline.rl.rewards.statistics import Accuracy, accuracy

logger = logging.getLogger("hookline")

Row = Mapping[str, Any]
MAX_PENDING = 10_000
"""How many samples wait for the end of a step; more come only from functions that are called outside of steps."""
ANSWERS_FILE = "answers.json"


class EnhancedLoggingCallback(TrainerCallback):  # type: ignore[misc]
    """Logs progress and accuracy at each step, the model's outputs and rewards, and metrics of its generations.

    Args:
        correctness: The name under which the rewards of the correctness function are recorded; by default the
            function with "correct", "accuracy" or "exact" in its name.

    Raises:
        OptionError: When a training starts whose trainer has two of these callbacks.

    Attributes:
        log_counter: The number of steps.
        total_answers: The number of scored answers.
        correct_answers: The number of correct answers.
    """

    progress_every = 1
    """In steps."""
    metrics_every = 1
    generation_every = 5

    def __init__(self, *, correctness: str | None = None) -> None:
        if correctness is not None and (not isinstance(correctness, str) or not correctness):
            raise OptionError(f"correctness={correctness!r}: give the name of a reward function, or None.")
        self.correctness = correctness
        self.log_counter = 0
        self.total_answers = 0
        self.correct_answers = 0
        self._pending: deque[Row] = deque(maxlen=MAX_PENDING)
        self._destination: RecordTo | None = None
        self._previous: Any = None  # the destination of samples before the training
        self._training: Any = None  # the trainer's state, a new object in each training
        self._has_samples = False
        self._has_warned = False

    @property
    def accuracy(self) -> float:
        """The percentage of correct answers among the scored ones; 0 before the first."""
        return 100 * self.correct_answers / self.total_answers if self.total_answers else 0.0

    def log_samples(self, rows: Iterable[Row]) -> None:
        """Log samples with their rewards, and forward them to their previous destination."""
        samples = list(rows)
        self._pending.extend(samples)
        if self._training is not None and self._training.is_world_process_zero:
            self._do(self._log_outputs, samples)
            self._do(self._log_rewards, [row for row in samples if row.get("axis", "train") == "train"])
        if self._previous is not None:
            forward = getattr(self._previous, "log_samples", None) or self._previous.samples
            forward(samples)

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        get_training_logger().info("Training initialization completed")
        return control

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        _refuse_second_callback(self, state)
        self._stop_recording()
        _end_failed_trainings(state)
        self._restore_counts(state)
        self._previous = recording.current_destination()
        self._destination, self._training = RecordTo(self), state
        if state.is_world_process_zero:
            self._do(log_memory_usage)
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self.log_counter += 1
        rows = self._take("train")
        self._count(rows)
        if state.is_world_process_zero:
            self._warn_if_accuracy_is_unknown(rows)
            if self._is_due(self.progress_every) or state.global_step == state.max_steps:
                self._do(log_training_progress, state.global_step, self._progress(state))
            if rows:
                self._do(self._log_statistics, state.global_step, rows)
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> Any:
        logged_elsewhere = ("eval_", "rewards/")
        metrics = recordable(logs or {})
        numbers = {name: value for name, value in metrics.items() if not name.startswith(logged_elsewhere)}
        if numbers and state.is_world_process_zero and self._is_due(self.metrics_every):
            self._do(log_training_progress, state.global_step, numbers)
        return control

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> Any:
        rows = self._take("eval")
        found = recordable(metrics or {})
        scored = self._accuracy(rows)
        if scored.total:
            found |= {"eval_accuracy": 100 * scored.right / scored.total, "eval_total_answers": scored.total}
        if state.is_world_process_zero:
            self._do(log_validation_metrics, state.global_step, found)
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self._stop_recording()
        if state.is_world_process_zero:
            final = {**self._answers(), **self._accuracy_so_far("final_accuracy"), "training_complete": True}
            self._do(log_training_progress, state.global_step, final)
            get_training_logger().info("Training completed")
        if not self._has_samples:
            logger.warning(
                "%s saw no completions: give the trainer reward_funcs=hookline.rewards.wrap([...]).",
                type(self).__name__,
            )
        return control

    def _stop_recording(self) -> None:
        if self._destination is not None:
            self._destination.__exit__(None, None, None)
            self._destination = self._previous = self._training = None

    def _restore_counts(self, state: Any) -> None:
        """Restore the counts of answers of a resumed training."""

    def _take(self, axis: str) -> list[Row]:
        """Remove and return the pending samples of an axis."""
        flush()  # functions that were decorated one by one do not know which is the last
        rows, self._pending = list(self._pending), deque(maxlen=MAX_PENDING)
        self._pending.extend(row for row in rows if row.get("axis", "train") != axis)
        return [row for row in rows if row.get("axis", "train") == axis]

    def _count(self, rows: list[Row]) -> None:
        found = self._accuracy(rows)
        self._has_samples |= bool(rows)
        self.total_answers += found.total
        self.correct_answers += found.right

    def _accuracy(self, rows: list[Row]) -> Accuracy:
        name = self.correctness or correctness_name(dict.fromkeys(name for row in rows for name in row["rewards"]))
        return Accuracy() if name is None else accuracy(rows, function=name)

    def _answers(self) -> dict[str, Any]:
        return {"correct_answers": self.correct_answers, "total_answers": self.total_answers}

    def _progress(self, state: Any) -> dict[str, Any]:
        percent = 100 * state.global_step / state.max_steps if state.max_steps else 0.0
        return {"progress_percent": percent, **self._answers(), **self._accuracy_so_far("accuracy")}

    def _accuracy_so_far(self, name: str) -> dict[str, float]:
        return {name: self.accuracy} if self.total_answers else {}

    def _warn_if_accuracy_is_unknown(self, rows: list[Row]) -> None:
        names = list(dict.fromkeys(name for row in rows for name in row["rewards"]))
        is_known = self.correctness in names if self.correctness else correctness_name(names) is not None
        if not names or is_known or self.total_answers or self._has_warned:
            return
        self._has_warned = True
        if self.correctness:
            reason = f"correctness={self.correctness!r} has no rewards so far. {closest(self.correctness, names)}"
        else:
            words = " or ".join(map(repr, CORRECTNESS))
            reason = f"no reward function has {words} in its name so far. Give correctness=: {', '.join(names)}."
        logger.warning("%s cannot compute the accuracy: %s", type(self).__name__, reason)

    def _is_due(self, every: int) -> bool:
        return self.log_counter % every == 0

    def _log_statistics(self, step: int, rows: list[Row]) -> None:
        rewards = _by_function(rows)
        if rewards and self._is_due(self.metrics_every):
            log_reward_metrics(step, rewards, groups=[row.get("group") for row in rows])
        if self._is_due(self.generation_every):
            log_generation_metrics(step, [row["completion"] for row in rows])

    def _log_rewards(self, rows: list[Row]) -> None:
        groups = [str(row.get("group")) for row in rows]
        for name, values in _by_function(rows).items():
            log_reward(name, values, groups, step=rows[0].get("step"))

    def _log_outputs(self, rows: list[Row]) -> None:
        for row in rows:
            log_model_output(
                row.get("prompt"),
                row.get("expected"),
                row["completion"],
                row.get("reasoning"),
                answer=row.get("answer"),
                step=row.get("step"),
                rewards=row["rewards"],
                group=row.get("group"),
                axis=row.get("axis", "train"),
            )

    def _do(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a logging function; an error in it is logged and never stops training."""
        try:
            function(*args)
        except Exception:
            logger.exception("%s could not log.", type(self).__name__)


class OptimizedLoggingCallback(EnhancedLoggingCallback):
    """Logs progress every 5 steps and metrics every 20; every completion is still logged.

    The handlers of CSV and TensorBoard write from their journals, off the training thread.

    Args:
        checkpoint_dir: Where the counts of answers are saved for each checkpoint, so that a resumed training continues
            them; None to start from zero.
        correctness: As for `EnhancedLoggingCallback`.
    """

    progress_every = 5
    metrics_every = 20
    generation_every = 20

    def __init__(self, checkpoint_dir: str | Path | None = None, *, correctness: str | None = None) -> None:
        super().__init__(correctness=correctness)
        self.checkpoint_dir = checkpoint_dir

    def _restore_counts(self, state: Any) -> None:
        if state.global_step and self.checkpoint_dir is not None:
            self.correct_answers, self.total_answers = self._saved().get(str(state.global_step), (0, 0))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if self.checkpoint_dir is not None and state.is_world_process_zero:
            self._do(self._save_counts, str(state.global_step))
        return control

    @property
    def _file(self) -> Path:
        return Path(self.checkpoint_dir or ".") / ANSWERS_FILE

    def _saved(self) -> dict[str, Any]:
        """Load the counts of correct and of all answers by the step of each checkpoint."""
        try:
            counts: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return counts

    def _save_counts(self, step: str) -> None:
        counts = self._saved() | {step: (self.correct_answers, self.total_answers)}
        write_atomically(self._file, json.dumps(counts).encode(), sync=False, parents=True)


def _by_function(rows: list[Row]) -> dict[str, list[Any]]:
    """Return the rewards of samples by reward function; None if it did not score a sample."""
    names = dict.fromkeys(name for row in rows for name in row["rewards"])
    return {name: [row["rewards"].get(name) for row in rows] for name in names}


def _end_failed_trainings(state: Any) -> None:
    """Stop the callbacks of trainings that failed, which Hugging Face does not report to them.

    A process has one training at a time, so a callback that still records another one belongs to a failed training.
    """
    while isinstance(left := recording.current_destination(), EnhancedLoggingCallback) and left._training is not state:
        left._stop_recording()
        if recording.current_destination() is left:  # restored by a callback that did not know it had ended
            recording.set_destination(None)


def _refuse_second_callback(callback: EnhancedLoggingCallback, state: Any) -> None:
    """Refuse a second callback of one trainer, which would log everything twice."""
    other = recording.current_destination()
    if isinstance(other, EnhancedLoggingCallback) and other._training is state:
        _end_failed_trainings(None)
        raise OptionError(
            f"{type(other).__name__} and {type(callback).__name__} would both log this training: give the trainer one "
            "of them, e.g. callbacks=[OptimizedLoggingCallback()]."
        )
