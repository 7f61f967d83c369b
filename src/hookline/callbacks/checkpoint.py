"""Saves checkpoints while training, and keeps the best and the latest of them.

A checkpoint is made at the end of a step or of an epoch, once its row of metrics is written and the other
callbacks have seen it. Nothing is deleted before the new one is complete, nor what somebody else made. One that
cannot be written ends the training. Several callbacks of this kind that save at the same steps share the
checkpoints of those, and the last that keeps one deletes it. A training that begins at its first step begins with
none, also where the same callback was part of another one before.

The checkpoints that a `CheckpointCallback` made and keeps: which are the best, and which may go.

Only what the callback made itself, and what lies inside of the loop's output directory, is ever deleted, and the
newest only where a better one is kept; not what another such callback keeps. A checkpoint that goes is renamed first:
one that is half deleted never looks like one.
"""

import logging
import math
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hookline._engine.errors import OptionError
from hookline._engine.metrics import find_metric
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState, ManifestRow
from hookline._engine.subscriber import WRITER_PRIORITY
from hookline._engine.subscriber_list import SubscriberList
from hookline.callbacks.monitoring import FreshStart, MonitorCheck, direction, is_nth, require_cadence

logger = logging.getLogger("hookline")

TRASH = ".deleted"
_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """One checkpoint; its path is relative where it lies in the output directory, so that a run can be moved."""

    step: int
    path: str = ""
    value: float | None = None
    own: bool = True


class KeptCheckpoints:
    """The checkpoints that are kept, and the rule for it.

    Args:
        ranked_by_value: Whether the value decides; otherwise newer is better.
        sign: -1 where smaller values are better, otherwise 1.
        top_k: How many of the best to keep; -1 for all.
        last: Whether the newest is kept whatever its value.
    """

    def __init__(self, *, ranked_by_value: bool, sign: int, top_k: int, last: bool) -> None:
        self._ranked_by_value, self._sign = ranked_by_value, sign
        self._top_k, self._last = top_k, last
        self._kept: list[KeptCheckpoint] = []
        self.root: Path | None = None

    @property
    def best(self) -> KeptCheckpoint | None:
        """The best of those that have a value."""
        return next(iter(self._ranked(self._kept)), None)

    @property
    def newest(self) -> KeptCheckpoint | None:
        """The one of the latest step."""
        return max(self._kept, key=lambda checkpoint: checkpoint.step, default=None)

    def values(self) -> dict[int, float | None]:
        """The value of each, by its step."""
        return {checkpoint.step: checkpoint.value for checkpoint in self._kept}

    def places(self) -> list[Path]:
        """Where all of them lie."""
        return [self.place(checkpoint) for checkpoint in self._kept]

    def place(self, checkpoint: KeptCheckpoint) -> Path:
        """Where a checkpoint lies."""
        return Path(checkpoint.path) if self.root is None else self.root / checkpoint.path

    def is_inside(self, path: Path) -> bool:
        """Whether a path lies in the output directory."""
        return self.root is not None and self.root.resolve() in path.resolve().parents

    def would_keep(self, candidate: KeptCheckpoint) -> bool:
        """Whether a checkpoint that is not made yet would stay."""
        return candidate in self._chosen([*self._kept, candidate])

    def add(self, candidate: KeptCheckpoint, path: Path) -> None:
        """Count a checkpoint that was made, in place of an earlier one at its path."""
        added = replace(candidate, path=self._relative(path))
        self._kept = [*(kept for kept in self._kept if kept.path != added.path), added]

    def set_value(self, candidate: KeptCheckpoint) -> bool:
        """Give a checkpoint of the same step the value that came after it was made; whether there is one."""
        same = [kept for kept in self._kept if kept.step == candidate.step]
        self._kept = [replace(kept, value=candidate.value) if kept in same else kept for kept in self._kept]
        return bool(same)

    def disown(self, path: Path) -> None:
        """Somebody else made a checkpoint at this path: it is not to be deleted."""
        there = self._relative(path)
        self._kept = [replace(kept, own=False) if kept.path == there else kept for kept in self._kept]

    def forget_missing(self) -> None:
        """Leave out those that are not on the disk: deleted since, or of another run."""
        self._kept = [kept for kept in self._kept if self.place(kept).exists()]

    def prune(self, *, spared: Collection[Path] = (), delete: bool) -> None:
        """Let go of those that the rule does not keep, from the disk too where this process is the one to do it.

        Args:
            spared: Paths that stay on the disk.
            delete: Whether this process deletes.
        """
        chosen = self._chosen(self._kept)
        for checkpoint in self._kept:
            if checkpoint not in chosen and checkpoint.own and delete and self.place(checkpoint) not in spared:
                self._delete(self.place(checkpoint))
        self._kept = [checkpoint for checkpoint in self._kept if checkpoint in chosen]

    def state(self) -> list[dict[str, Any]]:
        """What `restore` takes."""
        return [asdict(checkpoint) for checkpoint in self._kept]

    def restore(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Take back what `state` gave."""
        self._kept = [KeptCheckpoint(**checkpoint) for checkpoint in state]

    def _relative(self, path: Path) -> str:
        return str(path.resolve().relative_to(self.root.resolve()) if self.root and self.is_inside(path) else path)

    def _ranked(self, checkpoints: list[KeptCheckpoint]) -> list[KeptCheckpoint]:
        if not self._ranked_by_value:
            return sorted(checkpoints, key=lambda checkpoint: -checkpoint.step)
        valued = [(-self._sign * c.value, c.step, c) for c in checkpoints if c.value is not None]
        return [checkpoint for _, _, checkpoint in sorted(valued, key=lambda entry: entry[:2])]

    def _chosen(self, checkpoints: list[KeptCheckpoint]) -> list[KeptCheckpoint]:
        if self._top_k == -1 or not checkpoints:
            return checkpoints
        chosen = self._ranked(checkpoints)[: self._top_k]
        if self._last or not chosen:
            chosen.append(max(checkpoints, key=lambda checkpoint: checkpoint.step))
        return chosen

    def _delete(self, path: Path) -> None:
        if path.is_symlink() or not self.is_inside(path):
            return
        if path.name.startswith("step-") and path.is_dir() and not (path / _MANIFEST).is_file():
            logger.warning("%s has no %s: it is not a checkpoint of hookline, and is not deleted.", path, _MANIFEST)
            return
        trash = path.with_name(TRASH)
        try:
            _remove(trash)  # of a deletion that was cut short
            path.rename(trash)
            _remove(trash)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("The checkpoint %s cannot be deleted: %s", path, error)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@register("checkpoint")
class CheckpointCallback(FreshStart):
    """Saves a checkpoint every so often, keeps the best ``save_top_k`` and the latest, and deletes its others.

    With neither cadence given, it saves after each epoch and after each evaluation that has the monitored metric.

    Args:
        monitor: The metric that decides what is best; ``val_loss`` and ``val/loss`` are the same. A value counts
            for the checkpoint of its step, and one that is not finite for none. Without it, newer is better.
        mode: Whether smaller ("min") or larger ("max") is better; by default as the metric's name suggests.
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
        mode: Literal["min", "max"] | None = None,
        save_top_k: int = 1,
        save_last: bool = True,
        every_n_epochs: int | None = None,
        every_n_steps: int | None = None,
    ) -> None:
        _require(monitor, save_top_k, save_last)
        require_cadence("every_n_epochs", every_n_epochs)
        require_cadence("every_n_steps", every_n_steps)
        self.monitor = monitor
        self.mode = direction(monitor, mode)
        self.save_top_k = save_top_k
        self.save_last = save_last
        self.every_n_epochs = every_n_epochs
        self.every_n_steps = every_n_steps
        sign = -1 if self.mode == "min" else 1
        self._kept = KeptCheckpoints(ranked_by_value=monitor is not None, sign=sign, top_k=save_top_k, last=save_last)
        self._check = MonitorCheck(monitor or "", consequence=": no checkpoint counts as the best")
        self._forget()

    def _forget(self) -> None:
        self._kept.restore(())
        self._check.forget()
        self._saving: KeptCheckpoint | None = None
        self._elsewhere: set[Path] = set()  # what others saved
        self._requested: KeptCheckpoint | None = None  # what was asked for, and is not saved yet
        self._requested_at: int | None = None
        self._value_step: int | None = None  # that of the latest value
        self._saved_at: int | None = None  # the step of the latest checkpoint of its own
        self._due = False

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
        super().on_train_start(loop)
        self._kept.root = loop.output_dir
        if loop.output_dir is None and loop.rank == 0:
            logger.warning("checkpoint: this loop has no output_dir to save in: give root= or output_dir=.")

    def on_checkpoint_load(self, loop: LoopState, row: ManifestRow, /) -> None:
        self._kept.root = loop.output_dir
        if self._saving is not None and self._kept.is_inside(row.path):  # the loaded one, as its own state has it
            self._kept.add(self._saving, row.path)
            self._saved_at = row.step
        self._saving = None
        self._kept.forget_missing()

    def on_checkpoint(self, loop: LoopState, row: ManifestRow, /) -> None:
        requested = self._requested
        if requested is not None and requested.step == row.step:
            self._requested = None
            self._keep(loop, requested, row)
        elif self._saving is None and not any(other._saves(row) for other in self._others(loop)):
            self._elsewhere.add(row.path)
            self._kept.disown(row.path)

    def on_eval(self, loop: LoopState, step_idx: int, eval_name: str, metrics: dict[str, Any], /) -> None:
        if self.monitor is None:
            return
        self._check.evaluated(step_idx + 1)
        if not _has(metrics, self.monitor):
            return
        self._value_step = step_idx + 1
        candidate = KeptCheckpoint(step_idx + 1, value=self._take_value(loop, step_idx + 1))
        if self._kept.set_value(candidate):  # saved already, before the validation that followed the same step
            self._prune(loop)
        elif self._is_due_after(loop, candidate) and (loop.world_size > 1 or self._kept.would_keep(candidate)):
            self._requested, self._requested_at = candidate, candidate.step
            save_evaluated = getattr(loop, "save_evaluated", None)
            if self._is_before_update(loop, candidate) and save_evaluated is not None:
                save_evaluated()  # now: when the step is complete, the weights are others than those that were measured
            else:
                loop.request_checkpoint()  # saved when the step is complete, which it may be part of

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        if self._due:  # the loop writes no row for each step
            self._save(loop)
        self._due = is_nth(step_idx + 1, self.every_n_steps)

    def on_log(self, loop: LoopState, step: int, metrics: dict[str, Any], /) -> None:
        if self.monitor is not None:
            self._check.after_row(loop, step, who=self.name)
            if _has(metrics, self.monitor):
                self._value_step = step
        if self._due:
            self._save(loop)

    def on_train_epoch_end(self, loop: LoopState, /) -> None:
        every = self.every_n_epochs or (1 if self.every_n_steps is None else None)
        if self._due or is_nth(loop.epoch + 1, every):
            self._save(loop)

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        super().on_train_end(loop, artifacts)
        self.save_at_end(loop)  # unless the loop has done so, before it told others of the end
        if self.monitor is not None:
            self._check.at_end(loop, who=self.name)

    def save_at_end(self, loop: LoopState) -> None:
        """Save what is left to save when training ends."""
        if loop.step and (self._due or self.save_last):
            self._save(loop)

    def checkpoint_request(self) -> tuple[KeptCheckpoint | None, dict[int, float | None]]:
        """What this process requested, and the values of the checkpoints that are kept, by step."""
        return self._requested, self._kept.values()

    def agree_on_checkpoint(
        self, step: int, requests: list[tuple[KeptCheckpoint | None, dict[int, float | None]]], /
    ) -> None:
        """Count the next checkpoint, and those that are kept, as the process does that saw the metric."""
        requested = [request for request, _ in requests if request is not None and request.step == step]
        self._requested = requested[0] if requested else None
        self._requested_at = requested[0].step if requested else self._requested_at
        for _, values in requests:
            for step, value in values.items():
                if value is not None:
                    self._kept.set_value(KeptCheckpoint(step, value=value))

    def state_dict(self) -> dict[str, Any]:
        saving = self._saving or self._requested
        return {
            "kept": self._kept.state(),
            "saving": None if saving is None else asdict(saving),
            "at": self._value_step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._kept.restore(state["kept"])
        self._saving = None if state["saving"] is None else KeptCheckpoint(**state["saving"])
        self._requested, self._value_step = None, state["at"]

    def _is_due_after(self, loop: LoopState, candidate: KeptCheckpoint) -> bool:
        """Whether an evaluation is to be followed by a checkpoint; within a step that is due, its end saves it."""
        if self.every_n_steps is None and self.every_n_epochs is None:
            return True
        ends_step = getattr(loop, "in_step", False) and not self._is_before_update(loop, candidate)
        return is_nth(candidate.step, self.every_n_steps) and not ends_step

    @staticmethod
    def _is_before_update(loop: LoopState, candidate: KeptCheckpoint) -> bool:
        """Whether an evaluation was made in the body of a step, and measures the weights that the step began with."""
        return bool(getattr(loop, "in_step", False)) and candidate.step == loop.step

    def _save(self, loop: LoopState) -> None:
        self._due = False
        # Several processes have to save together, and may have seen different metrics: they share the value, and
        # whether they save depends on what is the same on all of them.
        candidate = KeptCheckpoint(loop.step, value=self._shared_value(loop))
        if self._saved_at == loop.step:
            if candidate.value is not None and self._kept.set_value(candidate):
                self._prune(loop)
            return
        if loop.world_size == 1 and not self._kept.would_keep(candidate):
            return
        self._saving = candidate
        try:
            row = loop.save_checkpoint()
        finally:
            self._saving = None
        self._keep(loop, candidate, row)

    def _keep(self, loop: LoopState, candidate: KeptCheckpoint, row: ManifestRow) -> None:
        self._kept.add(candidate, row.path)
        self._saved_at = candidate.step
        if row.path in self._elsewhere:
            self._kept.disown(row.path)
        self._prune(loop)

    def _prune(self, loop: LoopState) -> None:
        kept_by_others = {path for other in self._others(loop) for path in other._kept.places()}
        self._kept.prune(spared=kept_by_others, delete=loop.rank == 0)

    def _others(self, loop: LoopState) -> "list[CheckpointCallback]":
        """The other callbacks of this kind, in groups or not, which may keep the same checkpoints."""
        callbacks = getattr(loop, "callbacks", None)
        every = [leaf.entry.subscriber for leaf in callbacks.leaves()] if isinstance(callbacks, SubscriberList) else []
        return [each for each in every if isinstance(each, CheckpointCallback) and each is not self]

    def _saves(self, row: ManifestRow) -> bool:
        return self._saving is not None or self._requested_at == row.step

    def _shared_value(self, loop: LoopState) -> float | None:
        """The monitored metric of this step, whichever process has it."""
        value = self._take_value(loop, loop.step)
        processes = getattr(loop, "processes", None)
        if self.monitor is None or loop.world_size == 1 or processes is None:
            return value
        return next((each for each in processes.gather(value) if each is not None), None)

    def _take_value(self, loop: LoopState, step: int) -> float | None:
        """The monitored metric, if it is one of this step and a finite number."""
        if self.monitor is None or self._value_step != step:
            return None
        value = loop.get_metric(self.monitor)
        if value is None or isinstance(value, int | float):
            return None if value is None or not math.isfinite(value) else float(value)
        raise OptionError(f"monitor={self.monitor!r} is {value!r}: give the name of a metric that is a number.")


def _has(metrics: Mapping[str, Any], name: str) -> bool:
    """Whether a metric is among these, without waiting for its value."""
    return bool(find_metric(dict.fromkeys(metrics, True), name))


def _require(monitor: object, save_top_k: object, save_last: object) -> None:
    if monitor is not None and (not isinstance(monitor, str) or not monitor):
        raise OptionError(f"monitor={monitor!r}: give the name of a metric, such as 'val/loss', or None.")
    if isinstance(save_top_k, bool) or not isinstance(save_top_k, int) or save_top_k < -1:
        raise OptionError(f"save_top_k={save_top_k!r}: give how many of the best to keep, 0 for none, -1 for all.")
    if save_top_k == 0 and not save_last:
        raise OptionError("save_top_k=0 with save_last=False keeps no checkpoint at all. Set one of them.")
