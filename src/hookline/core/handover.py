"""Hands a subscriber's call over to its lane instead of making it on the training thread."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hookline.core.background import Lane, snapshot, snapshot_subject
from hookline.core.binding import Binding
from hookline.core.entry import Entry
from hookline.core.moment import Moment
from hookline.core.timing import Meter


@dataclass(slots=True)
class HandOver:
    """The callable that stands in for a background or async subscriber at one moment.

    The work is counted and timed where it is done. The exception of a subscriber whose errors
    propagate waits in the lane and is raised by the next hand-over, or at the end.
    """

    lane: Lane
    binding: Binding
    moment: Moment
    meter: Meter
    clock: Callable[[], int]
    propagates: bool
    entry: Entry
    fail: Callable[[Any, BaseException, int | None], None]
    give: Callable[[Any, Any], None]

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        self.lane.raise_waiting()
        subject = snapshot_subject(arguments[0])
        named = dict(zip(self.moment.arguments, [subject, *map(snapshot, arguments[1:])], strict=True)) | keywords
        taken = [named[name] for name in self.binding.arguments if "=" not in name]
        by_keyword = {name: value for name, value in named.items() if f"{name}={name}" in self.binding.arguments}

        def work() -> None:
            if self.entry.disabled:  # since this call was handed over
                return
            start = self.clock()
            try:
                self._finish(subject, self.binding.function(*taken, **by_keyword), start)
            except BaseException as error:
                self._fail(subject, error, start)

        async def work_async() -> None:
            if self.entry.disabled:
                return
            start = self.clock()
            try:
                self._finish(subject, await self.binding.function(*taken, **by_keyword), start)
            except BaseException as error:
                if self.lane.stopping:  # cancelled at the end of the run
                    raise
                self._fail(subject, error, start)

        self.lane.submit(work_async if self.binding.is_async else work, droppable=self.moment.repeating)

    def _finish(self, subject: Any, value: Any, start: int) -> None:
        self.meter.count(self.clock() - start)
        if value is not None:
            self.give(subject, value)

    def _fail(self, subject: Any, error: BaseException, start: int) -> None:
        """Under the policy of errors; an exit or an interrupt always reaches the training thread."""
        try:
            self.fail(subject, error, self.clock() - start)
        finally:
            if self.propagates or isinstance(error, SystemExit | KeyboardInterrupt):
                self.lane.error = error
