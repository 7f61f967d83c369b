"""What a step computed, as metrics: the numbers among its outputs, those of several batches combined, their weight."""

from typing import Any

from hookline.callbacks.batch_counts import samples_of
from hookline.core.errors import OptionError
from hookline.core.metrics import MetricsRow, collect
from hookline.core.values import plain
from hookline.loops.mean import mean
from hookline.loops.training_step import COUNTS
from hookline.record.device import defer


def scalars(outputs: dict[str, Any]) -> dict[str, Any]:
    """Those of a step's outputs that can be recorded; the others are for the callbacks only."""
    loss: Any = outputs.get("loss")
    is_there = getattr(loss, "is_cpu", False)
    values = outputs | {"loss": loss.item()} if is_there else outputs  # plain numbers need no second look
    if len(values) > 1:  # arrays are no metrics, even those with one element: such are the predictions of one sample
        values = {name: value for name, value in values.items() if not getattr(value, "ndim", 0)}
    try:
        return collect((values,), {}, defer)
    except OptionError:
        return collect(({name: value for name, value in values.items() if _is_scalar(value)},), {}, defer)


def _is_scalar(value: Any) -> bool:
    try:
        collect(({"value": value},), {}, lambda on_device: None)
    except OptionError:
        return False
    return True


def shares_of(batches: list[Any]) -> list[float]:
    """The share of each batch in a step: that of its tokens that are trained on where it brings their number."""
    counts = tokens_of(batches)
    total = sum(counts or ())
    if counts is None or not total:
        return [1 / len(batches)] * len(batches)
    return [count / total for count in counts]


def tokens_of(batches: list[Any]) -> list[int] | None:
    """How many tokens each batch is trained on; None where one of them does not bring the number."""
    held = [batch.get("counts") if isinstance(batch, dict) else None for batch in batches]
    counts = [getattr(each, "trained", None) for each in held]
    known = [count for count in counts if count is not None]
    return known if len(known) == len(counts) else None


def combined(parts: list[dict[str, Any]], shares: list[float]) -> MetricsRow:
    """What the batches of a step gave, averaged by their shares; counts are added up."""
    names = dict.fromkeys(name for part in parts for name in part)
    row = MetricsRow()
    for name in names:
        values = [
            (dict.__getitem__(part, name), share) for part, share in zip(parts, shares, strict=True) if name in part
        ]
        given = [value for value, _ in values]
        row[name] = sum(plain(given)) if name in COUNTS else mean(given, [share for _, share in values])
    return row


def weight_of(metrics: dict[str, Any], batch: Any) -> float:
    """How much a batch weighs in a validation: its tokens or samples, as far as it tells."""
    for name in ("tokens", "samples"):
        count = plain(dict.get(metrics, name))
        if isinstance(count, int | float):
            return float(count)
    return float(samples_of(batch) or 1)
