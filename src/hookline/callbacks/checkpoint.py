"""Saves checkpoints while training, and keeps the best and the latest of them.

A checkpoint is saved at the end of a step or an epoch, after its metrics are recorded and the other callbacks have
seen them. A checkpoint that cannot be written ends the training.

An old checkpoint is deleted only when the new one is complete, only if this callback saved it, and only inside the
loop's output directory. Several callbacks that save at the same steps share those checkpoints; the last one that keeps
a checkpoint deletes it. A training that starts at step zero starts with no kept checkpoints.

With ``artifact=``, each checkpoint that is kept is also a version of an artifact. Files of hookline's own checkpoints
are hard-linked, since they are never changed in place; those of other trainers are copied. A version stays when its
checkpoint is deleted.
"""

import logging
import math
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError
from hookline._engine.metrics import plain
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState, ManifestRow
from hookline._engine.subscriber import WRITER_PRIORITY
from hookline._engine.subscriber_list import SubscriberList
from hookline._record.artifact_versions import checked_name
from hookline.callbacks.monitoring import (
    MonitorCheck,
    StatefulCallback,
    direction,
    has_metric,
    is_nth,
    monitored_number,
    require_metric_name,
)

logger = logging.getLogger("hookline")

TRASH = ".deleted"
_MANIFEST, _STATE = "manifest.json", "state.json"


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A checkpoint; its path is relative inside the output directory, so that a run can be moved."""

    step: int
    path: str = ""
    value: float | None = None
    own: bool = True


class KeptCheckpoints:
    """The checkpoints of a callback, and the rule for which of them to keep.

    Args:
        ranked_by_value: Rank by value; otherwise newer is better.
        sign: -1 where smaller values are better, otherwise 1.
        top_k: How many of the best to keep; -1 for all.
        last: Keep the newest, whatever its value.
    """

    def __init__(self, *, ranked_by_value: bool, sign: int, top_k: int, last: bool) -> None:
        self._ranked_by_value, self._sign = ranked_by_value, sign
        self._top_k, self._last = top_k, last
        self.checkpoints: list[KeptCheckpoint] = []
        self.root: Path | None = None

    @property
    def best(self) -> KeptCheckpoint | None:
        """The best checkpoint that has a value."""
        return next(iter(self._ranked(self.checkpoints)), None)

    @property
    def newest(self) -> KeptCheckpoint | None:
        """The checkpoint of the latest step."""
        return max(self.checkpoints, key=lambda checkpoint: checkpoint.step, default=None)

    def path(self, checkpoint: KeptCheckpoint) -> Path:
        """The full path of a checkpoint."""
        return Path(checkpoint.path) if self.root is None else self.root / checkpoint.path

    def is_inside(self, path: Path) -> bool:
        """Whether a path is inside the output directory."""
        return self.root is not None and self.root.resolve() in path.resolve().parents

    def would_keep(self, candidate: KeptCheckpoint) -> bool:
        """Whether a checkpoint would be kept if it were saved now."""
        return candidate in self._selected([*self.checkpoints, candidate])

    def add(self, candidate: KeptCheckpoint, path: Path) -> None:
        """Add a saved checkpoint, replacing an earlier one at the same path."""
        added = replace(candidate, path=self.relative(path))
        self.checkpoints = [*(kept for kept in self.checkpoints if kept.path != added.path), added]

    def set_value(self, step: int, value: float | None) -> bool:
        """Set the value of a step that was saved before it was evaluated; whether that step has a checkpoint."""
        has_step = any(kept.step == step for kept in self.checkpoints)
        self.checkpoints = [replace(kept, value=value) if kept.step == step else kept for kept in self.checkpoints]
        return has_step

    def disown(self, path: Path) -> None:
        """Never delete the checkpoint at this path: something else saved it too."""
        relative = self.relative(path)
        self.checkpoints = [replace(kept, own=False) if kept.path == relative else kept for kept in self.checkpoints]

    def prune(self, *, spared: Collection[Path] = (), delete: bool) -> None:
        """Drop the checkpoints that the rule does not keep.

        Args:
            spared: Paths that are not deleted.
            delete: Whether this process deletes files.
        """
        selected = self._selected(self.checkpoints)
        for checkpoint in self.checkpoints:
            path = self.path(checkpoint)
            if checkpoint not in selected and checkpoint.own and delete and path not in spared:
                self._delete(path)
        self.checkpoints = [checkpoint for checkpoint in self.checkpoints if checkpoint in selected]

    def is_selected(self, relative: str) -> bool:
        """Whether the rule keeps the checkpoint at a path."""
        return any(checkpoint.path == relative for checkpoint in self._selected(self.checkpoints))

    def relative(self, path: Path) -> str:
        """A path relative to the output directory, if it is inside."""
        return str(path.resolve().relative_to(self.root.resolve()) if self.root and self.is_inside(path) else path)

    def _ranked(self, checkpoints: list[KeptCheckpoint]) -> list[KeptCheckpoint]:
        if not self._ranked_by_value:
            return sorted(checkpoints, key=lambda checkpoint: -checkpoint.step)
        valued = [(-self._sign * c.value, c.step, c) for c in checkpoints if c.value is not None]
        return [checkpoint for _, _, checkpoint in sorted(valued, key=lambda entry: entry[:2])]

    def _selected(self, checkpoints: list[KeptCheckpoint]) -> list[KeptCheckpoint]:
        if self._top_k == -1 or not checkpoints:
            return checkpoints
        selected = self._ranked(checkpoints)[: self._top_k]
        if self._last or not selected:
            selected.append(max(checkpoints, key=lambda checkpoint: checkpoint.step))
        return selected

    def _delete(self, path: Path) -> None:
        if path.is_symlink() or not self.is_inside(path):
            return
        if path.name.startswith("step-") and path.is_dir() and not (path / _MANIFEST).is_file():
            logger.warning("%s has no %s, so it is not a hookline checkpoint; not deleting it.", path, _MANIFEST)
            return
        # Renamed first: a half-deleted directory must not look like a checkpoint.
        trash = path.with_name(TRASH)
        try:
            _remove(trash)  # left by an interrupted deletion
            path.rename(trash)
            _remove(trash)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("Cannot delete the checkpoint %s: %s", path, error)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@register("checkpoint")
class CheckpointCallback(StatefulCallback):
    """Saves checkpoints at a given frequency, keeps the best ``save_top_k`` and the latest, and deletes its others.

    With neither frequency given, it saves after each epoch and after each evaluation that has the monitored metric.

    Args:
        monitor: The metric that decides which checkpoint is best; ``val_loss`` and ``val/loss`` are the same. A value
            counts for the checkpoint of its step; values that are not finite are ignored. Without it, newer is better.
        mode: Whether smaller ("min") or larger ("max") is better; by default guessed from the metric's name.
        save_top_k: How many of the best to keep; 0 for none, -1 for all.
        save_last: Keep the latest, whatever its metric, and save one when training ends normally.
        every_n_epochs: Save every N epochs.
        every_n_steps: Save every N steps.
        artifact: The name of an artifact. Each checkpoint that is kept becomes a version of it, without being copied;
            with a ``monitor``, the alias ``best`` names the version of the best one.
    """

    priority = WRITER_PRIORITY - 1  # runs last, so that a checkpoint contains the state of the other callbacks
    critical = True

    def __init__(
        self,
        monitor: str | None = None,
        mode: Literal["min", "max"] | None = None,
        save_top_k: int = 1,
        save_last: bool = True,
        every_n_epochs: int | None = None,
        every_n_steps: int | None = None,
        artifact: str | None = None,
    ) -> None:
        require_metric_name("monitor", monitor, optional=True)
        if isinstance(save_top_k, bool) or not isinstance(save_top_k, int) or save_top_k < -1:
            raise OptionError(f"save_top_k={save_top_k!r}: give how many of the best to keep, 0 for none, -1 for all.")
        if save_top_k == 0 and not save_last:
            raise OptionError("save_top_k=0 with save_last=False keeps no checkpoint at all. Set one of them.")
        self.monitor = monitor
        self.mode = direction(monitor, mode)
        self.save_top_k = save_top_k
        self.save_last = save_last
        self.every_n_epochs = require_integer("every_n_epochs", every_n_epochs, optional=True)
        self.every_n_steps = require_integer("every_n_steps", every_n_steps, optional=True)
        self.artifact = None if artifact is None else checked_name(artifact)
        sign = -1 if self.mode == "min" else 1
        self._kept = KeptCheckpoints(ranked_by_value=monitor is not None, sign=sign, top_k=save_top_k, last=save_last)
        self._check = MonitorCheck(monitor or "", consequence=": no checkpoint counts as the best")
        self._reset()

    def _reset(self) -> None:
        self._kept.checkpoints = []
        self._check.reset()
        self._due = self._cannot_save = False
        self._saving: KeptCheckpoint | None = None  # while this callback saves
        self._requested: KeptCheckpoint | None = None  # requested from the loop, not saved yet
        self._requested_at: int | None = None
        self._value_step: int | None = None  # the step of the latest value
        self._saved_at: int | None = None  # the step of this callback's latest checkpoint
        self._saved_by_others: set[Path] = set()
        self._versions: dict[str, Any] = {}  # the artifact's versions, by the path of the checkpoint
        self._tagged: Any = None  # the version that is called best

    @property
    def best_value(self) -> float | None:
        """The monitored metric of the best checkpoint."""
        return None if self._kept.best is None else self._kept.best.value

    @property
    def best_path(self) -> Path | None:
        """The path of the best checkpoint; without a ``monitor``, of the latest."""
        return None if self._kept.best is None else self._kept.path(self._kept.best)

    @property
    def last_path(self) -> Path | None:
        """The path of the latest checkpoint."""
        return None if self._kept.newest is None else self._kept.path(self._kept.newest)

    def on_train_start(self, loop: LoopState, /) -> None:
        super().on_train_start(loop)
        self._kept.root = loop.output_dir
        self._cannot_save = bool(reason := getattr(loop, "no_checkpoints", None))
        if reason:
            logger.warning("checkpoint saves nothing: %s.", reason)
        elif loop.output_dir is None and loop.rank == 0:
            logger.warning("checkpoint: the loop has no output_dir to save in. Pass root= or output_dir= to it.")

    def on_checkpoint_load(self, loop: LoopState, row: ManifestRow, /) -> None:
        self._kept.root = loop.output_dir
        # The state in a checkpoint was written while that checkpoint was being saved: it does not list itself yet.
        if self._saving is not None and self._kept.is_inside(row.path):
            self._kept.add(self._saving, row.path)
            self._saved_at = row.step
        self._saving = None
        self._kept.checkpoints = [kept for kept in self._kept.checkpoints if self._kept.path(kept).exists()]

    def on_checkpoint(self, loop: LoopState, row: ManifestRow, /) -> None:
        requested = self._requested
        self._save_version(loop, row)
        if requested is not None and requested.step == row.step:
            self._requested = None
            self._keep(loop, requested, row)
        elif self._saving is None and not any(other._is_saving(row) for other in self._others(loop)):
            self._saved_by_others.add(row.path)
            self._kept.disown(row.path)

    def on_eval(self, loop: LoopState, step_idx: int, eval_name: str, metrics: dict[str, Any], /) -> None:
        if self.monitor is None:
            return
        self._check.evaluated(step_idx + 1)
        if not has_metric(metrics, self.monitor):
            return
        self._value_step = step_idx + 1
        candidate = KeptCheckpoint(step_idx + 1, value=self._local_value(loop, step_idx + 1))
        if self._kept.set_value(candidate.step, candidate.value):  # saved before the validation of the same step
            self._prune(loop)
            return
        # An evaluation inside a step measures the weights that the step started with.
        in_step = bool(getattr(loop, "in_step", False))
        before_update = in_step and candidate.step == loop.step
        is_due = self.every_n_steps is None and self.every_n_epochs is None
        if is_nth(candidate.step, self.every_n_steps) and (before_update or not in_step):
            is_due = True  # otherwise the end of the step saves it
        if is_due and (loop.world_size > 1 or self._kept.would_keep(candidate)):
            self._requested, self._requested_at = candidate, candidate.step
            save_evaluated = getattr(loop, "save_evaluated", None)
            if before_update and save_evaluated is not None:
                save_evaluated()  # now, because the step is about to change the weights that were measured
            else:
                loop.request_checkpoint()  # saved once the step is complete

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        if self._due:  # from the step before, if the loop does not log a row for each step
            self._save(loop)
        self._due = is_nth(step_idx + 1, self.every_n_steps)

    def on_log(self, loop: LoopState, step: int, metrics: dict[str, Any], /) -> None:
        if self.monitor is not None:
            self._check.after_row(loop, step, who=self.name)
            if has_metric(metrics, self.monitor):
                self._value_step = step
        if self._due:
            self._save(loop)

    def on_train_epoch_end(self, loop: LoopState, /) -> None:
        every = self.every_n_epochs or (1 if self.every_n_steps is None else None)
        if self._due or is_nth(loop.epoch + 1, every):
            self._save(loop)

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        super().on_train_end(loop, artifacts)
        self.save_at_end(loop)  # for loops that did not call it before they fired this moment
        if self.monitor is not None:
            self._check.at_end(loop, who=self.name)

    def save_at_end(self, loop: LoopState) -> None:
        """Save the last checkpoint of a training, if one is due."""
        if loop.step and (self._due or self.save_last):
            self._save(loop)

    def checkpoint_request(self) -> tuple[KeptCheckpoint | None, dict[int, float | None]]:
        """The checkpoint that this process requested, and the values of its kept checkpoints by step."""
        return self._requested, {kept.step: kept.value for kept in self._kept.checkpoints}

    def agree_on_checkpoint(
        self, step: int, requests: list[tuple[KeptCheckpoint | None, dict[int, float | None]]], /
    ) -> None:
        """Adopt the requested checkpoint and the values of the process that saw the metric."""
        requested = [request for request, _ in requests if request is not None and request.step == step]
        self._requested = requested[0] if requested else None
        self._requested_at = requested[0].step if requested else self._requested_at
        for _, values in requests:
            for step, value in values.items():
                if value is not None:
                    self._kept.set_value(step, value)

    def state_dict(self) -> dict[str, Any]:
        saving = self._saving or self._requested
        return {
            "kept": [asdict(kept) for kept in self._kept.checkpoints],
            "saving": None if saving is None else asdict(saving),
            "at": self._value_step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._kept.checkpoints = [KeptCheckpoint(**kept) for kept in state["kept"]]
        self._saving = None if state["saving"] is None else KeptCheckpoint(**state["saving"])
        self._requested, self._value_step = None, state["at"]

    def _save(self, loop: LoopState) -> None:
        self._due = False
        if self._cannot_save:
            return
        # Processes have to save together but may have seen different metrics. So they share the value, and decide by
        # what is the same on all of them: only a single process may skip a checkpoint that it would not keep.
        candidate = KeptCheckpoint(loop.step, value=self._shared_value(loop))
        if self._saved_at == loop.step:
            if candidate.value is not None and self._kept.set_value(candidate.step, candidate.value):
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
        if row.path in self._saved_by_others:
            self._kept.disown(row.path)
        self._save_version(loop, row)  # before pruning, which may delete the files of others
        self._prune(loop)

    def _save_version(self, loop: LoopState, row: ManifestRow) -> None:
        """Make a kept checkpoint a version of the artifact; where that fails, training continues."""
        key = self._kept.relative(row.path)
        # A host may save it later, and reports it again then.
        is_due = self.artifact is not None and loop.rank == 0 and key not in self._versions and row.path.exists()
        if self.artifact is None or not is_due or not self._kept.is_selected(key):
            return
        is_ours = all((row.path / name).is_file() for name in (_MANIFEST, _STATE))
        metadata = {"step": row.step, "metrics": plain(dict(row.metrics))}
        try:
            save = loop.save_artifact(self.artifact, row.path, kind="model", metadata=metadata, link=is_ours)
        except OptionError as error:
            logger.warning("%s: the checkpoint %s is not saved as an artifact: %s", self.name, row.path, error)
        else:
            self._versions[key] = save

    def _prune(self, loop: LoopState) -> None:
        others = [other._kept for other in self._others(loop)]
        kept_by_others = {kept.path(checkpoint) for kept in others for checkpoint in kept.checkpoints}
        self._tag_best()
        self._kept.prune(spared=kept_by_others, delete=loop.rank == 0)

    def _tag_best(self) -> None:
        """Let the artifact's alias follow the best checkpoint, which an evaluation after its saving may change."""
        best = self._kept.best
        version = None if self.monitor is None or best is None else self._versions.get(best.path)
        if version is not None and version is not self._tagged:
            self._tagged = version
            version.tag("best")

    def _others(self, loop: LoopState) -> "list[CheckpointCallback]":
        """The loop's other checkpoint callbacks, which may keep the same checkpoints."""
        callbacks = getattr(loop, "callbacks", None)
        every = (
            [flat.registration.subscriber for flat in callbacks.flatten()]
            if isinstance(callbacks, SubscriberList)
            else []
        )
        return [each for each in every if isinstance(each, CheckpointCallback) and each is not self]

    def _is_saving(self, row: ManifestRow) -> bool:
        return self._saving is not None or self._requested_at == row.step

    def _shared_value(self, loop: LoopState) -> float | None:
        """The monitored metric of this step, from whichever process has it."""
        value = self._local_value(loop, loop.step)
        processes = getattr(loop, "processes", None)
        if self.monitor is None or loop.world_size == 1 or processes is None:
            return value
        return next((each for each in processes.gather(value) if each is not None), None)

    def _local_value(self, loop: LoopState, step: int) -> float | None:
        """The monitored metric, if it was logged at this step and is finite."""
        value = None if self.monitor is None or self._value_step != step else loop.get_metric(self.monitor)
        if value is None or self.monitor is None:
            return None
        number = monitored_number(self.monitor, value)
        return number if math.isfinite(number) else None
