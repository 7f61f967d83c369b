"""`Validation`: averages the metrics of validation batches, and fires the moments of a validation around them.

Values may still be on their way from a device; then the mean is, too.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hookline._engine.errors import OptionError
from hookline._engine.metrics import Deferred, MetricsRow, collect, plain
from hookline._record.device import defer

if TYPE_CHECKING:
    from hookline.loops.session import Session


def mean(values: list[Any], weights: Sequence[float] | None = None) -> Any:
    """Return the mean of numbers, deferred while some are on their way; of anything else the last."""
    if any(isinstance(value, Deferred) for value in values):
        return Deferred(_MeanLater(values, weights))
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return values[-1]
    if weights is None or len(set(weights)) == 1:
        return sum(values) / len(values)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


class _MeanLater:
    """The mean of values of which some are still on their way from a device."""

    def __init__(self, values: list[Any], weights: Sequence[float] | None) -> None:
        self._values, self._weights = values, weights
        self._sources = {value.source for value in values if isinstance(value, Deferred)}
        self.arrives = all(source.arrives for source in self._sources)

    def ready(self) -> bool:
        """Whether all have arrived."""
        return all(source.ready() for source in self._sources)

    def number(self, index: int) -> Any:
        """Return the mean, waiting if necessary."""
        return mean(plain(self._values), self._weights)


B = TypeVar("B")


class Validation:
    """One validation of a run: averages what is logged for each batch and fires the validation moments.

    Args:
        name: The prefix of its metrics.
        counts: Metrics that are added up instead.
        everywhere: Average over all processes, which then have to validate together.
        before_update: Whether the update of the step in progress is still to come, where the loop cannot tell.
    """

    def __init__(
        self,
        run: "Session",
        name: str,
        *,
        counts: Iterable[str] = (),
        everywhere: bool = False,
        before_update: bool | None = None,
    ) -> None:
        self.run = run
        self._before_update = before_update
        self._step = 0
        self._is_repeated = False  # recorded already, before the resumed checkpoint
        self.name = name
        self.metrics = MetricsRow()
        self._counts = frozenset(counts)
        self._everywhere = everywhere
        self._batch = MetricsRow()
        self._media: dict[str, list[Any]] = {}
        self._outputs: Any = None  # what the Trainer's validation step returned
        self._in_batch = False
        self._values: defaultdict[str, list[Any]] = defaultdict(list)
        self._weights: defaultdict[str, list[float]] = defaultdict(list)

    def __enter__(self) -> Self:
        self.run.start()
        # At the start: a request that is made during this validation is another one.
        self.run.validation_requested = False
        # Now, not at the end: these are the weights that are measured.
        self._step = self.run.evaluated_step(before_update=self._before_update)
        self._is_repeated = self.run.is_repeated_evaluation(self.name)
        # A resume repeats the body of the step, with the same draws. Callbacks have seen this evaluation already.
        if self._is_repeated:
            return self
        self.run.callbacks.on_validation_start(self.run)
        self.run.callbacks.on_validation_epoch_start(self.run)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The mean of a part of the data would look like that of all of it: nothing is recorded.
        if error is not None:
            return
        run = self.run
        if self._everywhere:
            self._gather()
        self.metrics = MetricsRow({f"{self.name}/{key}": self._result(key) for key in self._values})
        self.metrics.media, self._media = self._media or None, {}
        if self._is_repeated:
            return
        run.validation_metrics = self.metrics
        run.record_evaluation(self.name, self.metrics, step=self._step, common=self._everywhere, ends_validation=True)
        # A rule may have asked for these weights in on_eval: save them before they change.
        run.answer_requests()

    def batches(self, batches: Iterable[B]) -> Iterator[B]:
        """Yield validation batches, firing the moments around each."""
        if self._is_repeated:
            yield from batches
            return
        for batch_idx, batch in enumerate(batches):
            self._batch, self._outputs, self._in_batch = MetricsRow(), None, True
            self.run.callbacks.on_validation_batch_start(self.run, batch, batch_idx)
            try:
                yield batch
            finally:
                self._in_batch = False
            outputs = self._batch if self._outputs is None else self._outputs
            self.run.callbacks.on_validation_batch_end(self.run, outputs, batch, batch_idx)

    def outputs(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Pass the predictions of this batch, or anything else, to the subscribers of `on_validation_batch_end`.

        They get it in ``outputs``, together with the metrics of the batch. Tensors are neither copied nor waited for,
        and nothing is recorded::

            for inputs, targets in val.batches(loader):
                predictions = model(inputs)
                val.log(loss=loss(predictions, targets))
                val.outputs(predictions=predictions, targets=targets)
        """
        if values is not None and not isinstance(values, Mapping):
            raise OptionError(
                f"val.outputs({values!r:.200}): give names, as in val.outputs(predictions=...), or a dict."
            )
        if not self._in_batch:
            raise OptionError(
                "val.outputs() belongs to a batch: call it in the body of `for batch in val.batches(loader):`."
            )
        self._batch.update({} if values is None else values, **more)

    def log(self, *args: Any, **values: Any) -> None:
        """Record metrics of a batch, or of the whole validation; numbers are averaged over the calls."""
        self.add(collect(args, values, defer))

    def add(self, metrics: dict[str, Any], weight: float = 1.0, *, outputs: Any = None) -> None:
        """Record metrics of a batch with its weight in the average; one without weight is only shown.

        Args:
            outputs: All that the validation step returned, for `on_validation_batch_end`; the metrics by default.
        """
        for key, captured in metrics.take_media().items() if isinstance(metrics, MetricsRow) else ():
            self._media.setdefault(f"{self.name}/{key}", []).extend(captured)
        self._batch.update(metrics)
        self._outputs = outputs
        for key, value in dict.items(metrics) if weight else ():  # values on their way from a device stay deferred
            self._values[key].append(value)
            self._weights[key].append(weight)

    def _result(self, key: str) -> Any:
        values = self._values[key]
        return sum(plain(values)) if key in self._counts else mean(values, self._weights[key])

    def _gather(self) -> None:
        """Collect the values of all processes; some may have names that others lack."""
        own = {key: (plain(values), self._weights[key]) for key, values in self._values.items()}
        self._values.clear()
        self._weights.clear()
        # Each batch with its weight, not each rank's mean: the ranks may have different numbers of samples.
        for of_rank in self.run.processes.gather(own):
            for key, (values, weights) in of_rank.items():
                self._values[key] += values
                self._weights[key] += weights
