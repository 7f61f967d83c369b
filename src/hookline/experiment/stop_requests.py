"""`StopRequests`: stops a run's training when it is asked to, whether that comes before or after its beginning."""

from dataclasses import replace
from typing import Any

from hookline.core.callback import Callback
from hookline.experiment.job import Assignment


class StopRequests(Callback):
    """Stops a run's training when it is asked to."""

    name = "stop_requests"

    def __init__(self) -> None:
        self.reason: str | None = None
        self._loop: Any = None

    def __deepcopy__(self, memo: Any) -> "StopRequests":
        return self  # it belongs to one run

    def on_train_start(self, loop: Any) -> None:
        """Take note of the loop."""
        self._loop = loop
        if self.reason is not None:
            loop.request_stop(self.reason)

    def ask(self, reason: str) -> None:
        """Ask for a stop, from any thread."""
        self.reason = reason
        if self._loop is not None:
            self._loop.request_stop(reason)

    def added_to(self, assignment: Assignment) -> Assignment:
        """The run with this among those who listen to it."""
        subscribers = replace(assignment.subscribers, instances=[*assignment.subscribers.instances, self])
        return replace(assignment, subscribers=subscribers)
