"""Runs Hugging Face callbacks, which use ``args``, ``state`` and ``control``, in hookline's loops.

- ``args`` offers the loop's length, data, optimizer and plan under the names of `TrainingArguments`. Settings that only
  Hugging Face has can be given to `wrap`; the rest raises `NotOfferedError`.
- ``state`` is a real `TrainerState`, kept up to date. ``log_history`` holds the latest 10,000 rows; there is a row for
  every step, not every ``logging_steps``. ``best_metric`` follows ``args.metric_for_best_model``: by default the metric
  that the Trainer's checkpoints monitor, or the validation loss.
- ``control`` is a real `TrainerControl`. ``should_training_stop``, ``should_save`` and ``should_evaluate`` become
  requests to the loop, unless it has just done that; ``should_log`` has no effect. An epoch cannot be cut short, so
  ``should_epoch_stop`` is an error.
- Validation metrics have Hugging Face's names: ``val/loss`` and ``val_loss`` become ``eval_loss``.
- `on_pre_optimizer_step` comes before the gradients are clipped. `on_optimizer_step` is called by the optimizer, while
  the gradients still exist; an exception in it is raised at the end of the step.
- The state of an `ExportableState` is saved in the loop's checkpoints.
"""

import dataclasses
import logging
import math
import sys
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

from transformers.trainer_callback import ExportableState, TrainerControl, TrainerState
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from transformers.training_args import TrainingArguments

from hookline._engine.errors import OptionError, closest
from hookline._engine.metrics import MetricsRow, plain
from hookline._engine.state import LoopArtifacts, ManifestRow
from hookline.compat.base import CallbackAdapter, LoopFacade, LoopInfo, not_offered

logger = logging.getLogger("hookline")

ROWS_KEPT = 10_000
LOOP_SETTINGS = frozenset(
    {
        *("output_dir", "run_name", "num_train_epochs", "max_steps", "learning_rate", "weight_decay", "max_grad_norm"),
        *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "seed"),
    }
)
"""Settings that always come from the loop."""


class TransformersAdapter(CallbackAdapter):
    """Runs a Hugging Face callback.

    Args:
        args: Settings of `TrainingArguments` that the loop does not know.
    """

    framework = "Hugging Face"
    methods_by_moment: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "on_train_start": ("on_init_end", "on_train_begin"),
        "on_train_epoch_start": ("on_epoch_begin",),
        "on_step_start": ("on_step_begin",),
        "on_train_batch_start": ("on_substep_end",),
        "on_train_batch_end": ("on_substep_end",),
        "on_before_optimizer_step": ("on_pre_optimizer_step",),
        "on_step_end": ("on_step_end", "on_optimizer_step", "on_substep_end"),
        "on_log": ("on_log",),
        "on_validation_batch_end": ("on_prediction_step",),
        "on_eval": ("on_evaluate",),
        "on_checkpoint": ("on_save",),
        "on_train_epoch_end": ("on_epoch_end",),
        "on_train_end": ("on_train_end",),
    }
    required_moments = frozenset({"on_train_start", "on_log", "on_eval", "on_checkpoint"})
    setup_methods = frozenset({"on_init_end", "on_train_begin"})

    def __init__(self, foreign: Any, base: type, args: Mapping[str, Any] | None = None) -> None:
        known = {field.name for field in dataclasses.fields(TrainingArguments)}
        for name in args or ():
            if name not in known:
                raise OptionError(f"wrap(args=...): TrainingArguments has no {name!r}. {closest(name, known)}")
            if name in LOOP_SETTINGS:
                raise OptionError(f"wrap(args=...): {name!r} comes from the loop: set it there.")
        self._given = dict(args or {})
        super().__init__(foreign, base)
        self.args: Any = None
        self.state, self.control = TrainerState(), TrainerControl()
        self._inside_step = self._is_stopping = False
        self._evaluated_at = self._saved_at = -1
        self._hook: Any = None
        self._late_error: Exception | None = None

    def _attach(self, loop: Any) -> None:
        self.args = Arguments(self, loop, self._given)
        if loop.step == 0:
            self.state, self._evaluated_at, self._saved_at = TrainerState(), -1, -1
        self._is_stopping = False
        self.state.is_world_process_zero = self.state.is_local_process_zero = loop.rank == 0
        steps = {name: getattr(self.args, name, None) for name in ("logging_steps", "eval_steps", "save_steps")}
        self.state.compute_steps(SimpleNamespace(**steps), loop.num_steps or sys.maxsize)
        self.state.train_batch_size = LoopInfo(loop).train_batch_size

    def _on_train_start(self, loop: Any) -> None:
        self._loop = None  # attach again: a resumed training has another plan
        self._ensure_attached(loop)
        history = [] if loop.step == 0 else list(loop.history)[-ROWS_KEPT:]
        self.state.log_history = [_logged(loop, row.step, row.metrics) for row in history]
        if "on_optimizer_step" in self._methods:
            self._hook_optimizer(loop)
        self._call(loop, "on_init_end")
        self.control.should_training_stop = False
        self._call(loop, "on_train_begin")

    def _on_train_epoch_start(self, loop: Any) -> None:
        self.control.should_epoch_stop = False
        self._call(loop, "on_epoch_begin")

    def _on_step_start(self, loop: Any, step_idx: int) -> None:
        self._call(loop, "on_step_begin")

    def _on_train_batch_start(self, loop: Any, batch: Any, batch_idx: int) -> None:
        if self._inside_step:  # the previous batch did not complete the step
            self._call(loop, "on_substep_end")

    def _on_train_batch_end(self, loop: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._inside_step = True

    def _on_before_optimizer_step(self, loop: Any, optimizer: Any) -> None:
        self._call(loop, "on_pre_optimizer_step")

    def _on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: dict[str, Any]) -> None:
        self._inside_step = False
        late, self._late_error = self._late_error, None
        self._call(loop, "on_step_end")
        if late is not None:
            raise late

    def _on_log(self, loop: Any, step: int, metrics: dict[str, Any]) -> None:
        self._ensure_attached(loop)
        row = _logged(loop, step, metrics)
        self.state.log_history.append(row)
        del self.state.log_history[:-ROWS_KEPT]
        if "on_log" in self._methods:
            self._call(loop, "on_log", logs={name: value for name, value in row.items() if name != "step"})

    def _on_validation_batch_end(self, loop: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._call(loop, "on_prediction_step")

    def _on_eval(self, loop: Any, step_idx: int, eval_name: str, metrics: dict[str, Any]) -> None:
        self._ensure_attached(loop)
        self._evaluated_at = loop.step
        named = {**_eval_metrics(metrics, eval_name), "epoch": LoopInfo(loop).epochs_done}
        self._call(loop, "on_evaluate", metrics=named)
        # Hugging Face updates the best metric after its callbacks have seen the evaluation.
        wanted, best = getattr(self.args, "metric_for_best_model", None), self.state.best_metric
        value = None if wanted is None else named.get(f"eval_{wanted.removeprefix('eval_')}")
        if isinstance(value, int | float) and (
            best is None or (value > best if self.args.greater_is_better else value < best)
        ):
            self.state.best_metric, self.state.best_global_step = value, loop.step

    def _on_checkpoint(self, loop: Any, row: ManifestRow) -> None:
        self._ensure_attached(loop)
        self._saved_at = row.step
        if row.step == self.state.best_global_step:
            self.state.best_model_checkpoint = str(row.path)
        self._call(loop, "on_save")

    def _on_train_epoch_end(self, loop: Any) -> None:
        self._call(loop, "on_epoch_end")

    def _on_train_end(self, loop: Any, artifacts: LoopArtifacts) -> None:
        self._call(loop, "on_train_end")

    def state_dict(self) -> dict[str, Any]:
        best = {name: getattr(self.state, name) for name in ("best_metric", "best_global_step")}
        own = self.foreign.state() if isinstance(self.foreign, ExportableState) else {}
        state = {"callback": own, "best": best if best["best_metric"] is not None else {}}
        return {name: part for name, part in state.items() if part}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self.state).update(state.get("best", {}))
        own = state.get("callback")
        if not own:
            return
        kind = type(self.foreign)
        if kind.from_state.__func__ is ExportableState.from_state.__func__:
            vars(self.foreign).update(own["attributes"])  # its settings stay as constructed
        else:
            vars(self.foreign).update(vars(kind.from_state(own)))

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _call(self, loop: Any, event: str, **more: Any) -> None:
        """Call the callback with up-to-date objects, and forward its requests to the loop."""
        self._ensure_attached(loop)
        if event not in self._methods or not self._is_set_up:
            return
        state, info = self.state, LoopInfo(loop)
        state.global_step, state.epoch = loop.step, info.epochs_done
        state.max_steps, state.num_train_epochs = loop.num_steps or sys.maxsize, loop.num_epochs or sys.maxsize
        owners: tuple[Any, ...] = (loop, getattr(loop, "worker", None))
        parts = {
            "model": loop.model,
            "processing_class": next((owner.tokenizer for owner in owners if hasattr(owner, "tokenizer")), None),
            "optimizer": loop.optimizer,
            "lr_scheduler": loop.scheduler,
            "train_dataloader": info.train_data,
            "eval_dataloader": info.val_data,
        }
        returned = self._invoke(event, self.args, state, self.control, **parts, **more)
        if returned is not None:
            self.control = returned
        self._forward_requests(loop, event)

    def _forward_requests(self, loop: Any, event: str) -> None:
        control = self.control
        if control.should_training_stop and not self._is_stopping and loop.step != loop.num_steps:
            self._is_stopping = True
            loop.request_stop(f"{self.name} set control.should_training_stop")
        if control.should_save and self._saved_at != loop.step:
            loop.request_checkpoint()
        if control.should_evaluate and self._evaluated_at != loop.step:
            loop.request_validation()
        control.should_save = control.should_evaluate = control.should_log = False
        if control.should_epoch_stop:
            control.should_epoch_stop = False
            instead, why = (
                "control.should_training_stop ends the training.",
                "hookline's loops do not cut an epoch short",
            )
            raise not_offered(self, f"in {event}() to end the epoch", instead, why=why)

    def _hook_optimizer(self, loop: Any) -> None:
        """Register a hook that runs after the weights have changed and before the gradients are cleared."""
        optimizer = getattr(loop.optimizer, "optimizer", loop.optimizer)  # Accelerate wraps it
        register = getattr(optimizer, "register_step_post_hook", None)
        self.close()
        if register is None:
            logger.warning(
                "%s: on_optimizer_step is never called, because this loop has no torch optimizer. "
                "Set run.optimizer before the first step.",
                self.label,
            )
        else:
            self._hook = register(lambda *_: self._optimizer_stepped(loop))

    def _optimizer_stepped(self, loop: Any) -> None:
        if self._late_error is None:  # otherwise this callback was disabled before the last one was raised
            try:
                self._call(loop, "on_optimizer_step")
            except Exception as error:  # here it would end the training, outside the engine's isolation
                self._late_error = error


class Arguments(LoopFacade):
    """The settings of a loop under the names of `TrainingArguments`.

    Args:
        given: Settings that the loop does not know.
    """

    def __init__(self, adapter: CallbackAdapter, loop: Any, given: Mapping[str, Any]) -> None:
        super().__init__(adapter, loop, "args")
        known = {**_defaults(loop), **_plan(loop), **given, **_loop_settings(loop)}
        metric = known["metric_for_best_model"]
        known.setdefault("greater_is_better", metric is not None and not metric.endswith("loss"))
        vars(self).update({name: value for name, value in known.items() if value is not None or name in given})
        vars(self)["_names"] = frozenset(vars(self)) - {"_adapter", "_loop", "_path"}

    def to_dict(self) -> dict[str, Any]:
        """Return all known settings."""
        return {name: getattr(value, "value", value) for name, value in vars(self).items() if name in self._names}

    def _offered(self) -> list[str]:
        return [*self._names, "to_dict"]


def _defaults(loop: Any) -> dict[str, Any]:
    """Return Hugging Face's defaults, and what is true of every hookline loop."""
    return {
        "metric_for_best_model": "loss",
        "load_best_model_at_end": False,
        "eval_delay": 0,
        "logging_strategy": IntervalStrategy.STEPS,
        "logging_steps": 1,
        "logging_first_step": False,
        "report_to": [],
        "push_to_hub": False,
        "world_size": loop.world_size,
        "process_index": loop.rank,
        "should_log": loop.rank == 0,
        "should_save": loop.rank == 0,
    }


def _plan(loop: Any) -> dict[str, Any]:
    """Return when the loop validates and saves; in a bare loop its body decides."""
    settings = LoopInfo(loop).settings
    if settings is None:
        return {"eval_strategy": IntervalStrategy.EPOCH, "save_strategy": SaveStrategy.NO}
    rules = settings.checkpoint
    saves_steps = None if rules is None else rules.every_n_steps
    plan: dict[str, Any] = {"eval_strategy": IntervalStrategy.NO, "save_strategy": SaveStrategy.NO}
    if LoopInfo(loop).val_data is not None:
        plan["eval_strategy"] = IntervalStrategy.STEPS if settings.validate_every_steps else IntervalStrategy.EPOCH
    if rules is not None:
        plan["save_strategy"] = SaveStrategy.STEPS if saves_steps else SaveStrategy.EPOCH
    if rules is not None and rules.monitor is not None:
        plan["metric_for_best_model"] = eval_name(rules.monitor, LoopInfo(loop).val_sets)
        plan["greater_is_better"] = None if rules.mode is None else rules.mode == "max"
        plan = {name: value for name, value in plan.items() if value is not None}
    return {**plan, "eval_steps": settings.validate_every_steps, "save_steps": saves_steps}


def _loop_settings(loop: Any) -> dict[str, Any]:
    info = LoopInfo(loop)
    settings = info.settings
    return {
        "output_dir": None if loop.output_dir is None else str(loop.output_dir),
        "run_name": getattr(loop, "name", None),
        "num_train_epochs": None if loop.num_epochs is None else float(loop.num_epochs),
        "max_steps": -1 if loop.num_steps is None else loop.num_steps,
        "learning_rate": info.optimizer_default("lr"),
        "weight_decay": info.optimizer_default("weight_decay"),
        "max_grad_norm": None if settings is None else settings.gradient_clip_norm or math.inf,
        "per_device_train_batch_size": info.train_batch_size,
        "per_device_eval_batch_size": info.val_batch_size,
        "train_batch_size": info.train_batch_size,
        "eval_batch_size": info.val_batch_size,
        "gradient_accumulation_steps": info.accumulation,
        "seed": getattr(settings, "seed", None),
    }


def eval_name(name: str, sets: Collection[str] = ()) -> str:
    """Return Hugging Face's name of a validation metric.

    Args:
        sets: The names of the validation sets, if there are several.

    >>> eval_name("val/loss"), eval_name("val_loss"), eval_name("loss")
    ('eval_loss', 'eval_loss', 'loss')
    >>> eval_name("val/easy/loss", ["easy", "hard"])
    'eval_easy_loss'
    """
    if not name.startswith(("val/", "val_")):
        return name
    first, slash, rest = name[4:].partition("/")
    return f"eval_{first}_{rest}" if first in sets else f"eval_{first}{slash}{rest}"


def _eval_metrics(metrics: Mapping[str, Any], evaluation: str) -> dict[str, Any]:
    """Return the metrics of an evaluation under Hugging Face's names."""
    own = evaluation.removeprefix("val").lstrip("/")  # a validation set, or another evaluation
    start = "eval_" if own in ("", "eval") else f"eval_{own}_"
    named = {name: eval_name(name) for name in metrics if not name.startswith(f"{evaluation}/")}
    named |= {name: start + name.removeprefix(f"{evaluation}/") for name in metrics if name not in named}
    return {name if name.startswith("eval_") else start + name: plain(metrics[given]) for given, name in named.items()}


def _logged(loop: Any, step: int, metrics: dict[str, Any]) -> dict[str, Any]:
    """Return a row as Hugging Face logs it; values on a device stay there until they are read."""
    info = LoopInfo(loop)
    row = MetricsRow({eval_name(name, info.val_sets): value for name, value in dict.items(metrics)})
    steps = info.steps_per_epoch
    row.update({"epoch": float(loop.epoch) if steps is None else step / steps, "step": step})
    return row
