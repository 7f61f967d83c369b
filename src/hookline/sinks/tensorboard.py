"""Metrics, rewards and samples as TensorBoard's event files: ``tensorboard --logdir runs``.

Every event is in the files once: a file is cut back to what counts as delivered before it is gone on
with, so that it never holds a torn event or one twice. TensorBoard shows a directory as a run. The
training's own rows lie in the directory itself; those of another axis, which may count other steps,
in a directory below it, and those of another process in one named after that. Where a run was resumed
the files say so in TensorBoard's own way, and its readers drop what was done again.

TensorBoard itself keeps ten texts of a tag for its page unless it is started with, say,
``--samples_per_plugin text=1000``; of two values of one tag and step it shows the later one.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.core.errors import MissingExtraError, OptionError
from hookline.record.reader import Parcel, is_resume
from hookline.record.sink import Sink, register_sink

if TYPE_CHECKING:
    from hookline.sinks.tensorboard_files import EventFiles


@register_sink("tensorboard")
@dataclass(eq=False)
class TensorboardSink(Sink):
    """Writes scalars, distributions of rewards, and samples as texts.

    Args:
        log_dir: Where the event files go; ``tensorboard`` in the run's directory where none is given.
        samples_per_step: How many samples of a step and lesson are shown; 0 for none.
        name: What the sink is called in its run.
    """

    log_dir: Path | None = None
    samples_per_step: int = 8
    name: str | None = None

    def __post_init__(self) -> None:
        if self.samples_per_step < 0:
            raise OptionError(f"samples_per_step={self.samples_per_step!r}: give a number from 0 up.")
        self.log_dir = Path(self.log_dir).absolute() if self.log_dir is not None else None
        self._files: EventFiles | None = None

    def check(self) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise MissingExtraError("The sink 'tensorboard'", "tensorboard")

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return []

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        self.check()
        from hookline.sinks.tensorboard_files import EventFiles

        root = self.log_dir or run_dir / "tensorboard"
        self._files = EventFiles(root, f"events.out.tfevents.hookline.{run_dir.name}", self.samples_per_step)
        return self._files.open(state or {})

    def write(self, parcels: Sequence[Parcel]) -> dict[str, Any]:
        assert self._files is not None
        if is_resume(parcels[0].record):
            return self._files.restart(parcels[0])
        return self._files.append(parcels)

    def close(self) -> None:
        if self._files is not None:
            self._files.close()
