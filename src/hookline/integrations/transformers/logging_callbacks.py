"""`EnhancedLoggingCallback` and `OptimizedLoggingCallback`: a GRPO training told to the topics of `hookline.logging`.

    trainer = GRPOTrainer(
        model, reward_funcs=rewards.wrap(REWARD_FUNCTIONS), args=args, train_dataset=data, processing_class=tokenizer,
        callbacks=[EnhancedLoggingCallback()],
    )

Completions and their rewards come from the wrapped reward functions, which is where they are: Hugging Face gives
callbacks neither. An answer is right when the function for correctness gave it more than nothing, and it is counted
answer by answer; what no function scored is neither right nor wrong. What evaluations generate is counted apart.

Completions and rewards are logged when they have been scored, and everything else when Hugging Face reports it, on the
training thread: nothing waits in memory, so what was logged survives ``kill -9`` (see `hookline._record.outbox`).

They are callbacks of Hugging Face and need no run of hookline; `attach` may be used beside them.
"""

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from hookline._engine.errors import OptionError, closest
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
MOST_WAITING = 10_000
"""How many samples are kept that no step has taken: more come only from functions that are called outside of one."""
ANSWERS_FILE = "answers.json"


class EnhancedLoggingCallback(TrainerCallback):  # type: ignore[misc]
    """Logs progress and accuracy at each step, outputs and rewards of the model, and metrics of what it generates.

    Args:
        correctness: The reward function that tells right from wrong, by the name that its rewards are recorded under;
            where it is left out, the one that has "correct", "accuracy" or "exact" in its name.

    Raises:
        OptionError: When a training begins whose trainer has two of these callbacks.

    Attributes:
        log_counter: Steps seen.
        total_answers: Answers that were scored.
        correct_answers: Those of them that were right.
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
        self._waiting: deque[Row] = deque(maxlen=MOST_WAITING)
        self._destination: RecordTo | None = None
        self._beyond: Any = None
        self._training: Any = None  # the state of the trainer, which is another one in each training
        self._has_samples = False
        self._has_warned = False

    @property
    def accuracy(self) -> float:
        """The share of right answers among those that were scored, in percent; 0 before there is one."""
        return 100 * self.correct_answers / self.total_answers if self.total_answers else 0.0

    def log_samples(self, rows: Iterable[Row]) -> None:
        """Log samples with their rewards, and pass them on to where they went before the training began."""
        taken = list(rows)
        self._waiting.extend(taken)
        if self._training is not None and self._training.is_world_process_zero:
            self._do(self._log_outputs, taken)
            self._do(self._log_rewards, [row for row in taken if row.get("axis", "train") == "train"])
        if self._beyond is not None:
            self._beyond.log_samples(taken) if hasattr(self._beyond, "log_samples") else self._beyond.samples(taken)

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        get_training_logger().info("Training initialization completed")
        return control

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        _require_the_only_one(self, state)
        self._stop_listening()
        _end_failed_trainings(state)
        self._begin(state)
        self._beyond = recording.current_destination()
        self._destination, self._training = RecordTo(self), state
        if state.is_world_process_zero:
            self._do(log_memory_usage)
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self.log_counter += 1
        rows = self._take("train")
        self._count(rows)
        if state.is_world_process_zero:
            self._warn_of_unknown_accuracy(rows)
            if self._is_due(self.progress_every) or state.global_step == state.max_steps:
                self._do(log_training_progress, state.global_step, self._progress(state))
            if rows:
                self._do(self._log_statistics, state.global_step, rows)
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> Any:
        told_elsewhere = ("eval_", "rewards/")
        numbers = {name: value for name, value in recordable(logs or {}).items() if not name.startswith(told_elsewhere)}
        if numbers and state.is_world_process_zero and self._is_due(self.metrics_every):
            self._do(log_training_progress, state.global_step, numbers)
        return control

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> Any:
        rows = self._take("eval")
        found = recordable(metrics or {})
        right = self._accuracy(rows)
        if right.total:
            found |= {"eval_accuracy": 100 * right.right / right.total, "eval_total_answers": right.total}
        if state.is_world_process_zero:
            self._do(log_validation_metrics, state.global_step, found)
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self._stop_listening()
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

    def _stop_listening(self) -> None:
        if self._destination is not None:
            self._destination.__exit__(None, None, None)
            self._destination = self._beyond = self._training = None

    def _begin(self, state: Any) -> None:
        """Get ready for a training."""

    def _take(self, axis: str) -> list[Row]:
        """The samples of an axis that have come since the last time; those of others stay."""
        flush()  # a function that was decorated on its own does not know that it was the last
        rows, self._waiting = list(self._waiting), deque(maxlen=MOST_WAITING)
        self._waiting.extend(row for row in rows if row.get("axis", "train") != axis)
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
        """The accuracy under a name; nothing before an answer was scored, when it is not known."""
        return {name: self.accuracy} if self.total_answers else {}

    def _warn_of_unknown_accuracy(self, rows: list[Row]) -> None:
        """Say once that no reward tells right from wrong, where that is so."""
        names = list(dict.fromkeys(name for row in rows for name in row["rewards"]))
        is_known = self.correctness in names if self.correctness else correctness_name(names) is not None
        if not names or is_known or self.total_answers or self._has_warned:
            return
        self._has_warned = True
        if self.correctness:
            known = closest(self.correctness, names)
            said = f"correctness={self.correctness!r}: nothing was rewarded under that name so far. {known}"
        else:
            words = " or ".join(map(repr, CORRECTNESS))
            said = f"no reward so far is by a function with {words} in its name. Give correctness=: {', '.join(names)}."
        logger.warning("%s does not know the accuracy: %s", type(self).__name__, said)

    def _is_due(self, every: int) -> bool:
        return self.log_counter % every == 0

    def _log_statistics(self, step: int, rows: list[Row]) -> None:
        """Log the statistics of what was generated at a step."""
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
        """Log; what goes wrong with it is said, and never stops training."""
        try:
            function(*args)
        except Exception:
            logger.exception("%s could not log.", type(self).__name__)


class OptimizedLoggingCallback(EnhancedLoggingCallback):
    """The same at a lower rate: progress every 5 steps, metrics every 20; every completion is still logged.

    CSV and TensorBoard are written off the training thread, by their handlers, from the handlers' journals.

    Args:
        checkpoint_dir: Where the counts of answers are kept for each checkpoint, so that a training that is resumed
            goes on counting; None to count from nothing.
        correctness: As for `EnhancedLoggingCallback`.
    """

    progress_every = 5
    metrics_every = 20
    generation_every = 20

    def __init__(self, checkpoint_dir: str | Path | None = None, *, correctness: str | None = None) -> None:
        super().__init__(correctness=correctness)
        self.checkpoint_dir = checkpoint_dir

    def _begin(self, state: Any) -> None:
        if state.global_step and self.checkpoint_dir is not None:
            self.correct_answers, self.total_answers = self._saved().get(str(state.global_step), (0, 0))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if self.checkpoint_dir is not None and state.is_world_process_zero:
            self._do(self._write, str(state.global_step), (self.correct_answers, self.total_answers))
        return control

    @property
    def _file(self) -> Path:
        return Path(self.checkpoint_dir or ".") / ANSWERS_FILE

    def _saved(self) -> dict[str, Any]:
        """The counts of right and of all answers at the step of each checkpoint."""
        try:
            counts: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return counts

    def _write(self, step: str, counts: tuple[int, int]) -> None:
        """Add the counts of a checkpoint."""
        saved = self._saved() | {step: counts}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        aside = self._file.with_suffix(".partial")
        aside.write_text(json.dumps(saved), encoding="utf-8")
        aside.replace(self._file)


def _by_function(rows: list[Row]) -> dict[str, list[Any]]:
    """The rewards of some samples by reward function; None where one did not score a sample."""
    names = dict.fromkeys(name for row in rows for name in row["rewards"])
    return {name: [row["rewards"].get(name) for row in rows] for name in names}


def _end_failed_trainings(state: Any) -> None:
    """End what the callbacks of a training left behind that failed, which Hugging Face does not tell them.

    A process has one training at a time: whoever still listens for another one is of one that failed.
    """
    while isinstance(left := recording.current_destination(), EnhancedLoggingCallback) and left._training is not state:
        left._stop_listening()
        if recording.current_destination() is left:  # put back by somebody who did not know that it had ended
            recording.set_destination(None)


def _require_the_only_one(callback: EnhancedLoggingCallback, state: Any) -> None:
    """Refuse a second callback of a trainer: all that it logs would be logged twice."""
    other = recording.current_destination()
    if isinstance(other, EnhancedLoggingCallback) and other._training is state:
        _end_failed_trainings(None)
        raise OptionError(
            f"{type(other).__name__} and {type(callback).__name__} would both log this training: give the trainer one "
            "of them, e.g. callbacks=[OptimizedLoggingCallback()]."
        )
