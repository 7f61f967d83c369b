"""Logs throughput: steps, samples and tokens per second, and the model FLOPs utilization (MFU).

The rates are those of this process over the last steps in wall-clock time. Data loading counts, validations do not, and
the first step, which may compile, is left out. Nothing waits for a device: a device that lags makes the loop wait
sooner or later, so the rates are right over a window.

`samples_of` and `tokens_of` determine the size of a batch without waiting for a device. A batch that is a mapping may
carry its sizes in ``batch["counts"]``, with the attributes ``examples`` and ``tokens``, as those of supervised
fine-tuning do.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any, NamedTuple

from hookline._engine.checks import require_integer, require_number
from hookline._engine.errors import OptionError
from hookline._engine.moments import Callback
from hookline._engine.registry import register
from hookline._engine.state import LoopState, TrainingBatch


def samples_of(batch: Any) -> int | None:
    """The size of a `TrainingBatch`, else the first dimension of the first tensor, else the length; None if unknown."""
    if isinstance(batch, TrainingBatch):
        return samples_of(batch.data) if batch.size is None else batch.size
    if isinstance(batch, Mapping):
        count = _carried_count(batch, "examples")
        return count if count is not None else samples_of(next(iter(batch.values()), None))
    if getattr(batch, "shape", None):
        return int(batch.shape[0])
    if isinstance(batch, list | tuple) and batch:
        # The parts of all samples, as in ``(inputs, targets)``, rather than samples.
        has_parts = getattr(batch[0], "shape", None) or (isinstance(batch, tuple) and isinstance(batch[0], Mapping))
        return samples_of(batch[0]) if has_parts else len(batch)
    is_scalar = isinstance(batch, str) or getattr(batch, "ndim", 1) == 0
    return len(batch) if isinstance(batch, Sized) and not is_scalar else None


def _carried_count(batch: Any, name: str) -> int | None:
    count = getattr(batch.get("counts"), name, None) if isinstance(batch, Mapping) else None
    return count if isinstance(count, int) else None


def tokens_of(batch: Any) -> int | None:
    """The tokens of a `TrainingBatch`, else the count it carries, else the size of ``input_ids``, with padding."""
    if isinstance(batch, TrainingBatch):
        return tokens_of(batch.data) if batch.tokens is None else batch.tokens
    if (count := _carried_count(batch, "tokens")) is not None:
        return count
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if ids is not None and callable(getattr(ids, "numel", None)):
        return int(ids.numel())
    return sum(map(len, ids)) if isinstance(ids, list) and all(isinstance(row, Sized) for row in ids) else None


Count = int | Callable[[Any], int | None] | None
"""A number for every batch, a function of the batch, or None to inspect the batch."""

FLOPS_PER_PARAMETER = 6.0
"""The FLOPs per token and parameter by convention: two forward, four backward."""


class _Mark(NamedTuple):
    """The end of a step; the counts are those of this step alone."""

    step: int
    seconds: float
    samples: int | None
    tokens: int | None


@register("throughput_monitor")
class ThroughputMonitor(Callback):
    """Logs ``throughput/steps_per_second``, ``samples_per_second``, ``tokens_per_second`` and ``mfu``.

    Each is logged if it is known. Sizes come from the `TrainingBatch` if the loop passes one; otherwise samples are the
    first dimension of the first tensor, or the length of the batch, and tokens the number of ``input_ids``.

    Args:
        window: The number of steps to average over.
        batch_size: The samples of a batch: a number, or a function of the batch.
        tokens: The tokens of a batch: a number, or a function of the batch.
        flops_per_step: The FLOPs of a step on this process's device.
        flops_per_token: The FLOPs of a token, if ``flops_per_step`` is not given; by default six per parameter of the
            loop's model.
        peak_flops: The peak FLOPs per second of the device; without it there is no ``mfu``.
        clock: Returns seconds, for tests.
    """

    def __init__(
        self,
        window: int = 20,
        batch_size: Count = None,
        *,
        tokens: Count = None,
        flops_per_step: float | None = None,
        flops_per_token: float | None = None,
        peak_flops: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.window = require_integer("window", window)
        self.batch_size = batch_size if callable(batch_size) else _require_size("batch_size", batch_size)
        self.tokens = tokens if callable(tokens) else _require_size("tokens", tokens)
        self.flops_per_step = require_number("flops_per_step", flops_per_step, above=0, optional=True)
        self.flops_per_token = require_number("flops_per_token", flops_per_token, above=0, optional=True)
        self.peak_flops = require_number("peak_flops", peak_flops, above=0, optional=True)
        self.clock = clock
        self._reset()

    def _reset(self) -> None:
        self._marks: deque[_Mark] = deque(maxlen=self.window + 1)
        self._samples: int | None = None
        self._tokens: int | None = None
        self._validation_began: float | None = None
        self._validation_seconds = 0.0
        self._model_flops: float | None = None

    def on_train_start(self, loop: LoopState, /) -> None:
        self._reset()
        parameters = getattr(loop.model, "parameters", None)
        size = sum(p.numel() for p in parameters() if hasattr(p, "numel")) if callable(parameters) else 0
        self._model_flops = FLOPS_PER_PARAMETER * size if size else None

    def on_train_batch_end(self, loop: LoopState, outputs: Any, batch: Any, batch_idx: int, /) -> None:
        self._samples = _sum(self._samples, _size(self.batch_size, batch, default=samples_of))
        self._tokens = _sum(self._tokens, _size(self.tokens, batch, default=tokens_of))

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        if self._marks and step_idx < self._marks[-1].step:  # an earlier checkpoint was loaded
            self._marks.clear()
        seconds = self.clock() - self._validation_seconds
        self._marks.append(_Mark(step_idx + 1, seconds, self._samples, self._tokens))
        self._samples = self._tokens = None
        rates = self._rates()
        if rates:
            loop.log(rates)

    def on_validation_start(self, loop: LoopState, /) -> None:
        self._validation_began = self.clock()

    def on_validation_end(self, loop: LoopState, /) -> None:
        if self._validation_began is not None:
            self._validation_seconds += self.clock() - self._validation_began
            self._validation_began = None

    def _rates(self) -> dict[str, float]:
        first, *marks = self._marks
        seconds = marks[-1].seconds - first.seconds if marks else 0.0
        if seconds <= 0:
            return {}
        steps = (marks[-1].step - first.step) / seconds
        samples, tokens = _mean(mark.samples for mark in marks), _mean(mark.tokens for mark in marks)
        per_step = {"steps": 1.0, "samples": samples, "tokens": tokens}
        rates = {f"throughput/{what}_per_second": n * steps for what, n in per_step.items() if n is not None}
        flops, flops_per_token = self.flops_per_step, self.flops_per_token or self._model_flops
        if flops is None and tokens is not None and flops_per_token is not None:
            flops = flops_per_token * tokens
        if flops is not None and self.peak_flops is not None:
            rates["throughput/mfu"] = flops * steps / self.peak_flops
        return rates


def _size(given: Count, batch: Any, *, default: Callable[[Any], int | None]) -> int | None:
    if given is None:
        return default(batch)
    return given(batch) if callable(given) else given


def _sum(so_far: int | None, more: int | None) -> int | None:
    return so_far if more is None else (so_far or 0) + more


def _mean(counts: Iterable[int | None]) -> float | None:
    known = [count for count in counts if count is not None]
    return sum(known) / len(known) if known else None


def _require_size(name: str, value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise OptionError(f"{name}={value!r}: give a whole number of at least 1, or a function of the batch.")
