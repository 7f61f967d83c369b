"""Saves checkpoints while training, and keeps the best and the latest of them.

A checkpoint is made at the end of a step or of an epoch, once its row of metrics is written and the other
callbacks have seen it. Nothing is deleted before the new one is complete, nor what somebody else made. One that
cannot be written ends the training. Several callbacks of this kind that save at the same steps share the
checkpoints of those, and then none of them deletes those.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from hookline.callbacks.cadence import is_nth, require_cadence
from hookline.callbacks.kept_checkpoints import KeptCheckpoint, KeptCheckpoints
from hookline.core.callback import Callback
from hookline.core.errors import OptionError
from hookline.core.registry import register
from hookline.core.state import LoopArtifacts, LoopState, ManifestRow
from hookline.core.subscriber import WRITER_PRIORITY
from hookline.core.values import find_metric

logger = logging.getLogger("hookline")


@register("checkpoint")
class CheckpointCallback(Callback):
    """Saves a checkpoint every so often, keeps the best ``save_top_k`` and the latest, and deletes its others.

    With neither cadence given, it saves after each epoch and after each evaluation that has the monitored metric.

    Args:
        monitor: The metric that decides what is best; ``val_loss`` and ``val/loss`` are the same. A value counts
            for the first checkpoint after it, and one that is not finite for none. Without it, newer is better.
        mode: Whether smaller ("min") or larger ("max") is better.
        save_top_k: How many of the best to keep; 0 for none, -1 for all.
        save_last: Keep the latest, whatever its metric, and save one when training ends in an orderly way.
        every_n_epochs: Save after every so many epochs.
        every_n_steps: Save after every so many steps.
    """

    priority = WRITER_PRIORITY - 1  # the last to act, so that a checkpoint holds what the others made of the step
    critical = True

    def __init__(
        self,
        monitor: str | None = None,
        mode: Literal["min", "max"] = "min",
        save_top_k: int = 1,
        save_last: bool = True,
        every_n_epochs: int | None = None,
        every_n_steps: int | None = None,
    ) -> None:
        _check(monitor, mode, save_top_k, save_last)
        require_cadence("every_n_epochs", every_n_epochs)
        require_cadence("every_n_steps", every_n_steps)
        self.monitor = monitor
        self.mode = mode
        self.save_top_k = save_top_k
        self.save_last = save_last
        self.every_n_epochs = every_n_epochs
        self.every_n_steps = every_n_steps
        sign = -1 if mode == "min" else 1
        self._kept = KeptCheckpoints(ranked_by_value=monitor is not None, sign=sign, top_k=save_top_k, last=save_last)
        self._saving: KeptCheckpoint | None = None
        self._elsewhere: set[Path] = set()  # what others saved
        self._fresh: bool | None = None  # whether a value came since the last checkpoint; None before the first one
        self._evaluated = self._due = False

    @property
    def best_value(self) -> float | None:
        """The monitored metric of the best checkpoint that is kept."""
        return None if self._kept.best is None else self._kept.best.value

    @property
    def best_path(self) -> Path | None:
        """Where the best checkpoint lies; without a ``monitor``, the latest."""
        return None if self._kept.best is None else self._kept.place(self._kept.best)

    @property
    def last_path(self) -> Path | None:
        """Where the latest checkpoint that is kept lies."""
        return None if self._kept.newest is None else self._kept.place(self._kept.newest)

    def on_train_start(self, loop: LoopState, /) -> None:
        self._kept.root = loop.output_dir
        if loop.output_dir is None and loop.rank == 0:
            logger.warning("checkpoint: this loop has no output_dir to save in: give root= or output_dir=.")

    def on_checkpoint_load(self, loop: LoopState, row: ManifestRow, /) -> None:
        self._kept.root = loop.output_dir
        if self._saving is not None and self._kept.is_inside(row.path):  # the loaded one, as its own state has it
            self._kept.add(self._saving, row.path)
        self._saving = None
        self._kept.forget_missing()

    def on_checkpoint(self, loop: LoopState, row: ManifestRow, /) -> None:
        if self._saving is None:
            self._elsewhere.add(row.path)
            self._kept.disown(row.path)

    def on_eval(self, loop: LoopState, step_idx: int, eval_name: str, metrics: dict[str, Any], /) -> None:
        by_itself = self.every_n_steps is None and self.every_n_epochs is None
        if by_itself and self.monitor is not None and _has(metrics, self.monitor):
            self._evaluated = True  # saved when the step is complete, which it may be part of

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        if self._due:  # the loop writes no row for each step
            self._save(loop)
        self._due = self._evaluated or is_nth(step_idx + 1, self.every_n_steps)

    def on_log(self, loop: LoopState, step: int, metrics: dict[str, Any], /) -> None:
        if self.monitor is not None and _has(metrics, self.monitor):
            self._fresh = True
        if self._due:
            self._save(loop)

    def on_train_epoch_end(self, loop: LoopState, /) -> None:
        every = self.every_n_epochs or (1 if self.every_n_steps is None else None)
        if self._due or self._evaluated or is_nth(loop.epoch + 1, every):
            self._save(loop)

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        if loop.step and (self._due or self._evaluated or self.save_last):
            self._save(loop)
        if self.monitor is not None and self._fresh is None and loop.get_metric(self.monitor) is None:
            seen = ", ".join(sorted(loop.metrics)) or "none"
            logger.warning(
                "checkpoint never saw %r: no checkpoint counts as the best. Metrics seen: %s.", self.monitor, seen
            )

    def state_dict(self) -> dict[str, Any]:
        saving = None if self._saving is None else asdict(self._saving)
        return {"kept": self._kept.state(), "saving": saving, "fresh": self._fresh}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._kept.restore(state["kept"])
        self._saving = None if state["saving"] is None else KeptCheckpoint(**state["saving"])
        self._fresh = state["fresh"]

    def _save(self, loop: LoopState) -> None:
        self._due = self._evaluated = False
        newest, candidate = self._kept.newest, KeptCheckpoint(loop.step, value=self._take_value(loop))
        if newest is not None and newest.step == loop.step and candidate.value is None:
            return
        if loop.world_size == 1 and not self._kept.would_keep(candidate):
            return  # several processes may differ in the metric, and have to save together
        self._saving = candidate
        try:
            row = loop.save_checkpoint()
        finally:
            self._saving = None
        self._kept.add(candidate, row.path)
        if row.path in self._elsewhere:
            self._kept.disown(row.path)
        self._kept.prune(delete=loop.rank == 0)

    def _take_value(self, loop: LoopState) -> float | None:
        """The monitored metric, if it came since the last checkpoint and is a finite number."""
        if self.monitor is None or self._fresh is False:
            return None
        self._fresh = False if self._fresh else None
        value = loop.get_metric(self.monitor)
        if value is None or isinstance(value, int | float):
            return None if value is None or not math.isfinite(value) else float(value)
        raise OptionError(f"monitor={self.monitor!r} is {value!r}: give the name of a metric that is a number.")


def _has(metrics: Mapping[str, Any], name: str) -> bool:
    """Whether a metric is among these, without waiting for its value."""
    return bool(find_metric(dict.fromkeys(metrics, True), name))


def _check(monitor: object, mode: object, save_top_k: object, save_last: object) -> None:
    if monitor is not None and (not isinstance(monitor, str) or not monitor):
        raise OptionError(f"monitor={monitor!r}: give the name of a metric, such as 'val/loss', or None.")
    if mode not in ("min", "max"):
        raise OptionError(f"mode={mode!r}: give 'min' or 'max'.")
    if isinstance(save_top_k, bool) or not isinstance(save_top_k, int) or save_top_k < -1:
        raise OptionError(f"save_top_k={save_top_k!r}: give how many of the best to keep, 0 for none, -1 for all.")
    if save_top_k == 0 and not save_last:
        raise OptionError("save_top_k=0 with save_last=False keeps no checkpoint at all. Set one of them.")
