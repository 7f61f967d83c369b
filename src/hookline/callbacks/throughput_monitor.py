"""Logs how fast training is: steps, samples and tokens per second, and the share of the device's peak that it uses.

The rates are those of this process over the last steps, by the wall clock: loading of data counts,
validations do not, and the first step, in which things are compiled, is left out. Nothing waits for a
device; a device that lags makes the loop wait sooner or later, so the rates are right over a window.

How many samples and tokens a batch has, as far as it shows without waiting for a device.

A batch of a mapping may bring its counts along, as those of `hookline.loops.sft` do: ``batch["counts"]`` with
``examples`` and ``tokens``.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any, NamedTuple

from hookline._engine.errors import OptionError
from hookline._engine.moments import Callback
from hookline._engine.registry import register
from hookline._engine.state import LoopState, TrainingBatch


def samples_of(batch: Any) -> int | None:
    """What a `TrainingBatch` says, the first dimension of the first tensor, or the length; None where nothing tells."""
    if isinstance(batch, TrainingBatch):
        return samples_of(batch.data) if batch.size is None else batch.size
    if isinstance(batch, Mapping):
        brought = _brought(batch, "examples")
        return brought if brought is not None else samples_of(next(iter(batch.values()), None))
    if getattr(batch, "shape", None):
        return int(batch.shape[0])
    if isinstance(batch, list | tuple) and batch and _is_column(batch):
        return samples_of(batch[0])
    return len(batch) if isinstance(batch, Sized) and not isinstance(batch, str) and not _is_scalar(batch) else None


def _brought(batch: Any, name: str) -> int | None:
    count = getattr(batch.get("counts"), name, None) if isinstance(batch, Mapping) else None
    return count if isinstance(count, int) else None


def _is_scalar(value: Any) -> bool:
    return getattr(value, "ndim", 1) == 0


def _is_column(batch: list[Any] | tuple[Any, ...]) -> bool:
    """Whether the items are the parts of all samples, as in ``(inputs, targets)``, rather than samples."""
    return bool(getattr(batch[0], "shape", None)) or (isinstance(batch, tuple) and isinstance(batch[0], Mapping))


def tokens_of(batch: Any) -> int | None:
    """What a `TrainingBatch` says, what it brings, or the elements of ``input_ids``: then padding counts."""
    if isinstance(batch, TrainingBatch):
        return tokens_of(batch.data) if batch.tokens is None else batch.tokens
    if (brought := _brought(batch, "tokens")) is not None:
        return brought
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if ids is not None and callable(getattr(ids, "numel", None)):
        return int(ids.numel())
    return sum(map(len, ids)) if isinstance(ids, list) and all(isinstance(row, Sized) for row in ids) else None


Count = int | Callable[[Any], int | None] | None
"""A number for every batch, a function of the batch, or None to look at the batch itself."""

FLOPS_PER_PARAMETER = 6.0
"""What a token costs for each parameter by convention: two forward, four backward."""


class _Mark(NamedTuple):
    """Where things stood at the end of a step; the counts are those of this step alone."""

    step: int
    seconds: float
    samples: int | None
    tokens: int | None


@register("throughput_monitor")
class ThroughputMonitor(Callback):
    """Logs ``throughput/steps_per_second``, ``samples_per_second``, ``tokens_per_second`` and ``mfu``.

    Each is logged where it is known. Sizes are those of a `TrainingBatch` where the loop gives one;
    otherwise samples are the first dimension of the first tensor, or the length of the batch, and
    tokens the elements of ``input_ids``.

    Args:
        window: Over how many steps to take the rates.
        batch_size: The samples of a batch: a number, or a function of the batch.
        tokens: The tokens of a batch: a number, or a function of the batch.
        flops_per_step: What a step costs this process's device.
        flops_per_token: What a token costs, where ``flops_per_step`` is not given; by default six for each
            parameter of the loop's model.
        peak_flops: What the device can do in a second; without it there is no ``mfu``.
        clock: Seconds, for tests.
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
        _require_count("window", window)
        for name, count in (("batch_size", batch_size), ("tokens", tokens)):
            if count is not None and not callable(count):
                _require_count(name, count)
        flops = {"flops_per_step": flops_per_step, "flops_per_token": flops_per_token, "peak_flops": peak_flops}
        for name, value in flops.items():
            _require_positive(name, value)
        self.window = window
        self.batch_size = batch_size
        self.tokens = tokens
        self.flops_per_step = flops_per_step
        self.flops_per_token = flops_per_token
        self.peak_flops = peak_flops
        self.clock = clock
        self._forget()

    def _forget(self) -> None:
        self._marks: deque[_Mark] = deque(maxlen=self.window + 1)
        self._samples: int | None = None
        self._tokens: int | None = None
        self._left: float | None = None
        self._away = 0.0
        self._model_flops: float | None = None

    def on_train_start(self, loop: LoopState, /) -> None:
        self._forget()
        self._model_flops = _flops_per_token(loop.model)

    def on_train_batch_end(self, loop: LoopState, outputs: Any, batch: Any, batch_idx: int, /) -> None:
        self._samples = _sum(self._samples, _ask(self.batch_size, batch, otherwise=samples_of))
        self._tokens = _sum(self._tokens, _ask(self.tokens, batch, otherwise=tokens_of))

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        if self._marks and step_idx < self._marks[-1].step:  # back at an earlier checkpoint
            self._marks.clear()
        self._marks.append(_Mark(step_idx + 1, self.clock() - self._away, self._samples, self._tokens))
        self._samples = self._tokens = None
        rates = self._rates()
        if rates:
            loop.log(rates)

    def on_validation_start(self, loop: LoopState, /) -> None:
        self._left = self.clock()

    def on_validation_end(self, loop: LoopState, /) -> None:
        if self._left is not None:
            self._away += self.clock() - self._left
            self._left = None

    def _rates(self) -> dict[str, float]:
        first, *marks = self._marks
        seconds = marks[-1].seconds - first.seconds if marks else 0.0
        if seconds <= 0:
            return {}
        steps = (marks[-1].step - first.step) / seconds
        samples, tokens = _mean(mark.samples for mark in marks), _mean(mark.tokens for mark in marks)
        per_step = {"steps": 1.0, "samples": samples, "tokens": tokens}
        rates = {f"throughput/{what}_per_second": n * steps for what, n in per_step.items() if n is not None}
        flops = self._flops_per_step(tokens)
        if flops is not None and self.peak_flops is not None:
            rates["throughput/mfu"] = flops * steps / self.peak_flops
        return rates

    def _flops_per_step(self, tokens: float | None) -> float | None:
        per_token = self.flops_per_token or self._model_flops
        if self.flops_per_step is not None or tokens is None or per_token is None:
            return self.flops_per_step
        return per_token * tokens


def _ask(count: Count, batch: Any, *, otherwise: Callable[[Any], int | None]) -> int | None:
    if count is None:
        return otherwise(batch)
    return count(batch) if callable(count) else count


def _sum(so_far: int | None, more: int | None) -> int | None:
    return so_far if more is None else (so_far or 0) + more


def _mean(counts: Iterable[int | None]) -> float | None:
    known = [count for count in counts if count is not None]
    return sum(known) / len(known) if known else None


def _flops_per_token(model: Any) -> float | None:
    parameters = getattr(model, "parameters", None)
    size = sum(p.numel() for p in parameters() if hasattr(p, "numel")) if callable(parameters) else 0
    return FLOPS_PER_PARAMETER * size if size else None


def _require_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        more = "" if name == "window" else ", or a function of the batch"
        raise OptionError(f"{name}={value!r}: give a whole number of at least 1{more}.")


def _require_positive(name: str, value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
        raise OptionError(f"{name}={value!r}: give a number above 0.")
