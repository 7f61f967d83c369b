"""`FrameworkRun`: a run over objects that a framework prepared; the framework saves its own part of each checkpoint.

A checkpoint is an ordinary one of hookline's, with a folder in it that the framework saves and loads on all processes
together, whatever the sharding. The random states and the position in the data are hookline's.
"""

from pathlib import Path
from typing import ClassVar

from hookline._engine.errors import CheckpointError
from hookline.loops.run import Run


class FrameworkRun(Run):
    """Drives your own loop over objects that a framework has prepared."""

    restores_itself = True
    saves_together = True
    framework: ClassVar[str]
    folder: ClassVar[str]
    """The name of the framework, for messages, and that of its folder in checkpoints."""

    def _write_folder(self, folder: Path) -> None:
        """Have the framework save its state; all processes call this."""
        raise NotImplementedError

    def _read_folder(self, folder: Path) -> None:
        """Have the framework load its state."""
        raise NotImplementedError

    def _save_rank_files(self, directory: Path, *, before_step: bool = False) -> None:
        self._write_folder(directory / self.folder)
        super()._save_rank_files(directory, before_step=before_step)

    def _load_files(self, directory: Path) -> None:
        folder = directory / self.folder
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is missing: that checkpoint was saved by another kind of run.")
        try:
            self._read_folder(folder)
        except Exception as error:
            why = str(error).partition("\n")[0]
            raise CheckpointError(f"{self.framework} cannot load {folder}: {why}") from error
        super()._load_files(directory)
