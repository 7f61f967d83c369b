"""`Checkpoints`: those of a Hugging Face trainer, as callbacks of hookline ask for them and hear of them.

A trainer saves at the boundaries between its steps, after the evaluation that belongs there, and says so afterwards.
What is asked for at a boundary is saved there; what is asked for in a step, at its end. A step that is saved is not
saved again. The callbacks' states lie in each checkpoint, beside what Hugging Face puts there.
"""

import logging
import shutil
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hookline._engine.errors import CheckpointError
from hookline._engine.state import ManifestRow
from hookline.integrations import host_loop
from hookline.integrations.host_loop import HostLoop

logger = logging.getLogger("hookline")


class Checkpoints:
    """The checkpoints of one training.

    Args:
        loop: What is told about them.
        trainer: The trainer, where it is known.
        output_dir: Where the trainer saves.

    Attributes:
        at_boundary: Whether a step has ended and the next has not begun.
        is_over: Whether the last boundary is behind.
        is_due: Whether the trainer is to save at the next boundary that it can.
    """

    def __init__(self, loop: HostLoop, trainer: Any, output_dir: str) -> None:
        self._loop, self._trainer = loop, trainer
        self._folder = Path(output_dir).absolute()
        self._copies: list[Path] = []
        self.at_boundary = self.is_over = self.is_due = False

    def place(self, step: int) -> Path:
        """Where the trainer saves after so many steps."""
        usual = self._folder / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        trials = self._folder.glob(f"*/{usual.name}")  # of a search, each in a folder of its own
        return usual if usual.exists() else max(trials, key=lambda found: found.stat().st_mtime, default=usual)

    def ask(self) -> None:
        """Have one saved, unless there is one of this very step."""
        self.is_due = self.is_due or not (self.at_boundary and self._is_saved())

    def save(self, path: Path | None) -> ManifestRow:
        """Save one, at this boundary or the next, with a copy at a path; the row that it has or will have."""
        self._copies += [] if path is None else [path]
        step = self._loop.step + (not self.at_boundary)
        place = self.place(step)
        if self.at_boundary and self._is_saved():
            self._keep_state(place)
            return self._tell_copies(place) or self._loop.checkpoint_row(place)
        if self.is_over:
            self._save_behind_the_end()
            return self.saved(place)
        self._loop.request_checkpoint()
        return self._loop.checkpoint_row(path or place, step=step)

    def saved(self, place: Path) -> ManifestRow:
        """The trainer saved one: put the states beside it, and tell about it and its copies."""
        self.is_due = False
        self._keep_state(place)
        row = self._loop.checkpoint_saved(place)
        return self._tell_copies(place) or row

    def _is_saved(self) -> bool:
        step = self._loop.step
        return any((row.step, row.path) == (step, self.place(step)) for row in self._loop.checkpoints)

    def _save_behind_the_end(self) -> None:
        """Save where Hugging Face has no public way for it: ask its own method."""
        save = getattr(self._trainer, "_save_checkpoint", None)
        if not callable(save):
            raise CheckpointError(
                "A checkpoint after the last step takes a trainer: attach(trainer, ...) instead of callbacks=[...]."
                if self._trainer is None
                else f"{type(self._trainer).__name__} saves no checkpoint after its last step: ask for it earlier."
            )
        save(self._trainer.model_wrapped, trial=None)

    def _keep_state(self, place: Path) -> None:
        try:
            host_loop.save(place, self._loop)
        except CheckpointError as error:
            logger.error("%s is saved without the states of callbacks. %s", place, error)  # noqa: TRY400 - it says why

    def _tell_copies(self, place: Path) -> ManifestRow | None:
        """Make the copies that were asked for; the row of the last one."""
        copies, self._copies = self._copies, []
        row = None
        for copy in copies:
            if self._loop.rank == 0:
                shutil.copytree(place, copy, dirs_exist_ok=True)
            row = self._loop.checkpoint_saved(copy)
        return row
