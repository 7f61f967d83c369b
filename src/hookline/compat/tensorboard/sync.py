"""`sync`: records the events of all TensorBoard writers of this process in a run.

All of them (torch's and tensorboardX's ``SummaryWriter``, ``tensorboard.summary.Writer``) hand each event to the method
``add_event`` of a class ``EventFileWriter``, of which TensorBoard and tensorboardX have one each. While a `Sync` is
active, these two methods also record the event (see `hookline.compat.patches`); nothing else is patched, and the event
files are written as before. Events are recorded when they are added, so files need not be followed.
"""

from typing import Any

from hookline.compat.patches import Patch, Sync
from hookline.compat.tensorboard.events import EventRecorder
from hookline.compat.tensorboard.runs import OPEN_RUNS, Homes
from hookline.loops.session import Session

_EVENTS = Patch(
    ("tensorboard.summary.writer.event_file_writer", "tensorboardX.event_file_writer"),
    "EventFileWriter",
    ("add_event",),
)


def sync(run: Session) -> Sync:
    """Record the events of all TensorBoard writers of this process in a run, until the result is stopped.

    Values keep their steps and times; the callbacks of the run are not called for them. Where programs write to several
    directories, the names begin with those below the first one: ``val/loss``.

        synced = sync(run)
        ...
        synced.stop()

    The result is also a context manager. Writers of `hookline.compat.tensorboard` opened in the meantime record in
    this run instead of one of their own.

    Args:
        run: A run that has begun.
    """
    return EventSync(run)


class EventSync(Sync):
    """Records the events of TensorBoard writers in a run."""

    def __init__(self, run: Session) -> None:
        self._events, self._synced = EventRecorder(run), (run, Homes())
        super().__init__(run, _EVENTS)
        OPEN_RUNS.synced.append(self._synced)

    def stop(self) -> None:
        with self._lock:
            if self._is_active:
                OPEN_RUNS.synced.remove(self._synced)
            super().stop()

    def record_call(self, method: str, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._events.add(owner.get_logdir(), *args, **kwargs)
