"""`TensorboardSink`: metrics, rewards, samples and media as TensorBoard's event files (``tensorboard --logdir runs``).

Each event is in the files once: before a file is continued, it is truncated to its delivered size, so it never has a
partial event or a duplicate. TensorBoard shows a directory as a run. Training rows are in the log directory itself;
rows of another axis, which may count other steps, are in a subdirectory, and those of another process in one named
after it. After a resume, the files have TensorBoard's own restart marks, and its readers drop the repeated steps.

TensorBoard's page keeps ten texts and images per tag unless it is started with, for example,
``--samples_per_plugin text=1000,images=1000``. Of two values with the same tag and step, it shows the later one.
"""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline._engine.checks import require_integer
from hookline._engine.errors import MissingExtraError, RefusedError
from hookline._record.reader import JournalEntry, is_resume
from hookline._record.sink import Sink, register_sink
from hookline.sinks.artifacts import leave_out_artifacts
from hookline.sinks.media import RunMedia
from hookline.sinks.output_files import file_loss
from hookline.sinks.run_progress import read_metadata

if TYPE_CHECKING:
    from hookline.sinks.tensorboard_events import EventFiles


@register_sink("tensorboard")
@dataclass(eq=False)
class TensorboardSink(Sink):
    """Writes scalars, distributions of rewards, samples as texts, media, and the configuration.

    Args:
        log_dir: The directory of the event files; ``tensorboard`` in the run's directory by default.
        samples_per_step: How many samples of a step and lesson are shown; 0 for none.
        name: The sink's name in its run.
    """

    log_dir: Path | None = None
    samples_per_step: int = 8
    name: str | None = None

    def __post_init__(self) -> None:
        require_integer("samples_per_step", self.samples_per_step, minimum=0)
        self.log_dir = Path(self.log_dir).absolute() if self.log_dir is not None else None
        self._files: EventFiles | None = None
        self._media = RunMedia("TensorBoard")

    def check(self) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise MissingExtraError("The sink 'tensorboard'", "tensorboard")

    def find_loss(self, run_dir: Path, state: Any) -> str:
        losses = (file_loss(path, known["bytes"], known) for path, known in self._written(run_dir, state))
        return next(filter(None, losses), "")

    def set_aside(self, run_dir: Path, state: Any) -> None:
        for path, _ in self._written(run_dir, state):  # not renamed: TensorBoard would read it all the same
            path.unlink(missing_ok=True)

    def is_intact(self) -> bool:
        return self._files is None or self._files.is_intact()

    def _written(self, run_dir: Path, state: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
        for folder, known in state.items():
            if not isinstance(known, dict):  # the number of values that were left out
                continue
            if Path(folder).is_absolute() or ".." in Path(folder).parts:
                raise RefusedError(f"{folder!r} in the sink's state is not one of its folders.")
            yield self._root(run_dir) / folder / self._file_name(run_dir), known

    def _root(self, run_dir: Path) -> Path:
        return self.log_dir or run_dir / "tensorboard"

    def _file_name(self, run_dir: Path) -> str:
        return f"events.out.tfevents.hookline.{run_dir.name}"

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return []

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        self.check()
        from hookline.sinks.tensorboard_events import EventFiles

        self._media.open(run_dir, state)
        self._files = EventFiles(
            self._root(run_dir), self._file_name(run_dir), self.samples_per_step, self._media, read_metadata(run_dir)
        )
        return self._files.open(state or {})

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._files is not None
        if is_resume(entries[0].record):
            return self._files.restart(entries[0])
        leave_out_artifacts(self._media, entries)
        return self._files.append(entries)

    def close(self) -> None:
        if self._files is not None:
            self._files.close()
