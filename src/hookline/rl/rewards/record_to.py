"""`record_to`: says where all reward functions record to that were not told."""

from types import TracebackType
from typing import Any

from hookline.rl.rewards import destination
from hookline.rl.rewards.join import flush


class RecordTo:
    """Names the destination until its ``with`` block ends, or for good where it is not used as one."""

    def __init__(self, run: Any) -> None:
        target = destination.checked(run)
        flush()
        self._before = destination.present()
        destination.replace(target)

    def __enter__(self) -> Any:
        return destination.present()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        flush()
        destination.replace(self._before)


def record_to(run: Any) -> RecordTo:
    """Record the rows of all reward functions in this process that were not given a recorder to a run.

        with hl.run("grpo") as run, rewards.record_to(run):
            trainer.train()

    What waits for more functions is written to the destination before, and at the end of a ``with`` block.

    Args:
        run: A run, a loop, a `Recorder`, or anything with ``log_samples(rows)``; None for none.
    """
    return RecordTo(run)
