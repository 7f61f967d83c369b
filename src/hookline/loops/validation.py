"""A validation of a bare loop's run, as a context."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hookline.core.metrics import MetricsRow, collect
from hookline.core.values import Deferred, plain
from hookline.record.device import defer

if TYPE_CHECKING:
    from hookline.loops.run import Run

B = TypeVar("B")


class Validation:
    """One validation of a run: averages what is logged for each batch and fires the validation moments."""

    def __init__(self, run: "Run", name: str) -> None:
        self.run = run
        self.name = name
        self.metrics = MetricsRow()
        self._batch = MetricsRow()
        self._values: defaultdict[str, list[Any]] = defaultdict(list)

    def __enter__(self) -> Self:
        self.run.start()
        self.run.validation_requested = False
        self.run.callbacks.on_validation_start(self.run)
        self.run.callbacks.on_validation_epoch_start(self.run)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            return
        run = self.run
        self.metrics = MetricsRow({f"{self.name}/{key}": _mean(values) for key, values in self._values.items()})
        run.validation_metrics = self.metrics
        run.commit(run.step + run.in_step, self.metrics, axis="eval")
        if run.recorder is not None:
            run.recorder.event("eval", step=run.step + run.in_step, evaluator=self.name)
        run.callbacks.on_validation_epoch_end(run)
        run.callbacks.on_validation_end(run)
        run.callbacks.on_eval(run, run.step if run.in_step else run.step - 1, self.name, self.metrics)
        run.answer_requests()

    def batches(self, batches: Iterable[B]) -> Iterator[B]:
        """Yield validation batches, firing the moments around each."""
        for batch_idx, batch in enumerate(batches):
            self._batch = MetricsRow()
            self.run.callbacks.on_validation_batch_start(self.run, batch, batch_idx)
            yield batch
            self.run.callbacks.on_validation_batch_end(self.run, self._batch, batch, batch_idx)

    def log(self, *args: Any, **values: Any) -> None:
        """Record metrics of a batch, or of the whole validation; numbers are averaged over the calls."""
        metrics = collect(args, values, defer)
        self._batch.update(metrics)
        for key, value in dict.items(metrics):
            self._values[key].append(value)


def _mean(values: list[Any]) -> Any:
    """The mean of numbers, once all of them are there; of anything else the last."""
    if any(isinstance(value, Deferred) for value in values):
        return Deferred(_MeanLater(values))
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return sum(values) / len(values)
    return values[-1]


class _MeanLater:
    """The mean of values of which some are still on their way from a device."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values
        self._sources = {value.source for value in values if isinstance(value, Deferred)}
        self.arrives = all(source.arrives for source in self._sources)

    def ready(self) -> bool:
        """Whether all are there."""
        return all(source.ready() for source in self._sources)

    def number(self, index: int) -> Any:
        """The mean, waiting if need be."""
        return _mean(plain(self._values))
