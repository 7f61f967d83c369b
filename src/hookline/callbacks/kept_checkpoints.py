"""The checkpoints that a `CheckpointCallback` made and keeps: which are the best, and which may go.

Only what the callback made itself, and what lies inside of the loop's output directory, is ever deleted, and the
newest only where a better one is kept; not what another such callback keeps. A checkpoint that goes is renamed first:
one that is half deleted never looks like one.
"""

import logging
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

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
