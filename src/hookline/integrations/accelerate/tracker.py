"""`HooklineTracker`: what ``accelerator.log()`` is given reaches the record, as one of the accelerator's trackers.

The main process records. Values on a device are fetched without the training waiting for them. What is no number, text
or truth value (an image, a histogram) is not recorded, and said once by name.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from accelerate.state import PartialState
from accelerate.tracking import GeneralTracker

from hookline.core.errors import OptionError
from hookline.integrations.told_run import ToldRun
from hookline.loops.options import RunOptions


class HooklineTracker(GeneralTracker):  # type: ignore[misc]
    """A tracker of Accelerate that writes hookline's record: ``Accelerator(log_with=HooklineTracker("warmup"))``.

    The run begins with the first thing to record, so that what ``init_trackers(config=...)`` is given is its
    configuration, and ends with ``accelerator.end_training()``.

    Args:
        run_name: What the run is called.
        callbacks: They are notified of the start and the end of the training and of what is logged: a tracker knows
            no more.
        options: As for every run of hookline.
    """

    name = "hookline"
    requires_logging_directory = False
    main_process_only = True

    def __init__(
        self,
        run_name: str = "run",
        *,
        callbacks: Iterable[Any] = (),
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__()
        self._run = ToldRun(run_name, callbacks=callbacks, **options)
        self._last_given: int | None = None

    @property
    def tracker(self) -> ToldRun | None:
        """The run, e.g. for ``log_samples()``; None on processes that do not record."""
        if not _is_main():
            return None
        self._begin()
        return self._run

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Add to the run's configuration; once it has begun, an event says so too."""
        if _is_main():
            self._run.update_config(values)

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record metrics; without a step, at the last one that was given or, where none ever was, at the next."""
        if not _is_main():
            return
        self._begin()
        self._run.tell(values, self._place(step))

    def log_table(
        self,
        table_name: str,
        columns: Sequence[str] | None = None,
        data: Iterable[Sequence[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Record the rows of a table as samples; columns such as ``prompt`` and ``completion`` are those of samples."""
        if not _is_main():
            return
        if dataframe is not None:
            columns, data = [str(name) for name in dataframe.columns], dataframe.to_numpy().tolist()
        if columns is None or data is None:
            raise OptionError(f"log_table({table_name!r}): give columns= and data=, or dataframe=.")
        self._begin()
        at = self._place(step)
        rows = [dict(zip(columns, row, strict=True)) for row in data]
        self._run.log_samples([{**row, "table": table_name, "step": at} for row in rows])

    def finish(self) -> None:
        """End the run."""
        if _is_main() and self._run.is_running:
            self._run.train_end()

    def _begin(self) -> None:
        if self._run.is_running:
            return
        if self._run.dir is not None:  # it was finished, and goes on
            self._run.begin(state=self._run.state_dict())
        else:
            self._run.begin()
        self._run.train_start(step=self._run.step)

    def _place(self, step: int | None) -> int:
        if step is not None:
            self._last_given = step
        return self._run.step + 1 if self._last_given is None else self._last_given


def _is_main() -> bool:
    return bool(PartialState().is_main_process)
