"""Measures the cost of each subscriber at almost no cost.

Two clock readings around a call cost more than everything else the engine does, so most calls are only counted.
Generated code counts down to the next sample, about one call in 16 at first and one in 224 later, and times that one.
The distance varies, so that a subscriber with a rhythm of its own is not missed. A subscriber whose samples keep taking
more than `SLOW_NS` is timed at every call, where two clock readings no longer matter, until its recent calls are fast
again. Call counts are exact; totals of sampled subscribers are estimates.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, overload

from hookline._engine import notebook

SLOW_NS = 20_000
SLOW_SAMPLES = 3
"""How many more slow samples than fast ones make a subscriber slow: one preemption of the thread proves nothing."""
FAST_CALLS = 64
"""The window after which a subscriber returns to sampling if three quarters of its calls were fast."""
RECENT = 256
_SHOWN_COSTS = 50
"""How many subscribers a notebook shows, the most expensive first."""


class Tally:
    """Spaces the samples of one compiled moment, and derives from the spacing how often it fired."""

    __slots__ = ("credited", "issued", "left", "samples", "seed")

    def __init__(self) -> None:
        self.samples = 0
        self.issued = 0
        self.credited = 0
        self.seed = 1
        self.left: Callable[[], int] = int

    def interval(self) -> int:
        """Return the number of firings until the next sample: 8 to 23, later 192 to 255, pseudo-random."""
        self.samples += 1
        if self.samples == 1:  # sample the second call too: the first often pays for imports and caches
            self.issued += 1
            return 1
        # A generator of its own: drawing from `random` would change the training's seeded numbers. The low bits of such
        # a generator repeat quickly, hence the shift.
        self.seed = (self.seed * 1103515245 + 12345) & 0x7FFFFFFF
        distance = 8 + (self.seed >> 16 & 15) if self.samples < 32 else 192 + (self.seed >> 16 & 63)
        self.issued += distance
        return distance

    def take(self) -> int:
        """Return the firings since the last call."""
        # Derived from the countdown that the generated code keeps anyway; a second counter would cost each firing.
        fired = self.issued - self.left()
        new, self.credited = fired - self.credited, fired
        return new


class Meter:
    """The calls of one subscriber at one moment: how many, how long, how many failed.

    Calls that are only counted (``counted``, ``sampled_ns``) and calls that are each timed (``metered``,
    ``metered_ns``) are kept apart, so that estimates do not affect measurements.
    """

    __slots__ = (
        "_excess",
        "_slow_since",
        "counted",
        "errors",
        "first_ns",
        "max_ns",
        "metered",
        "metered_ns",
        "recent",
        "sampled_ns",
        "samples",
        "slow",
    )

    def __init__(self) -> None:
        self.counted = self.samples = self.sampled_ns = self.first_ns = 0
        self.metered = self.metered_ns = 0
        self.slow = False
        self._excess = self._slow_since = 0
        self.errors = 0
        self.max_ns = 0
        self.recent: deque[int] = deque(maxlen=RECENT)

    def sample(self, ns: int) -> None:
        """Add the time of a call that is counted elsewhere."""
        # The first sample is not judged: it often pays for imports.
        if not self.samples:
            self.first_ns = ns
        elif ns > SLOW_NS:
            self._excess += 1
        # Never below zero: a long fast past must not delay noticing that a subscriber became slow.
        elif self._excess:
            self._excess -= 1
        self.samples += 1
        self.sampled_ns += ns
        self.recent.append(ns)
        if ns > self.max_ns:
            self.max_ns = ns

    def count(self, ns: int) -> None:
        """Count and time one call."""
        self.metered += 1
        self.metered_ns += ns
        self.recent.append(ns)
        if ns > self.max_ns:
            self.max_ns = ns

    @property
    def calls(self) -> int:
        """The number of calls."""
        return self.counted + self.metered

    @property
    def usual_ns(self) -> float:
        """The mean of all samples except the first, which often pays for imports and caches."""
        if self.samples > 1:
            return (self.sampled_ns - self.first_ns) / (self.samples - 1)
        return float(self.first_ns)

    def review(self) -> bool:
        """Decide from recent calls whether each call is timed (``slow``), and return the decision.

        Returning to sampling takes more evidence than leaving it, so a subscriber between fast and slow does not make
        its moment recompile again and again.
        """
        if not self.slow:
            if self._excess >= SLOW_SAMPLES:
                # Only calls timed from now on are evidence for the way back; older entries of `recent` are samples.
                self.slow, self._slow_since = True, self.metered
        elif self.metered - self._slow_since >= FAST_CALLS:
            latest = islice(reversed(self.recent), FAST_CALLS)
            if sum(ns > SLOW_NS for ns in latest) <= FAST_CALLS // 4:
                self.slow, self._excess = False, 0
        return self.slow

    @property
    def total_ns(self) -> float:
        """The time of all calls: the timed ones, and the counted ones at the usual time each."""
        # Samples are added at once and counts are collected later, so for a while there may be more samples than
        # counts.
        return self.metered_ns + self.sampled_ns + max(self.counted - self.samples, 0) * self.usual_ns


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one subscriber so far."""

    name: str
    calls: int
    total_seconds: float
    mean_seconds: float
    p95_seconds: float
    max_seconds: float
    errors: int = 0
    disabled: bool = False
    background: bool = False
    dropped: int = 0

    @classmethod
    def of(cls, name: str, meters: Iterable[Meter], **facts: Any) -> "Cost":
        """Sum a subscriber's meters over all moments."""
        used = list(meters)
        calls = sum(meter.calls for meter in used)
        total = sum(meter.total_ns for meter in used) / 1e9
        # Recent calls only: a percentile over a whole run would need memory for each call.
        recent = sorted(chain.from_iterable(meter.recent for meter in used))
        return cls(
            name=name,
            calls=calls,
            total_seconds=total,
            mean_seconds=total / calls if calls else 0.0,
            p95_seconds=recent[-(-95 * len(recent) // 100) - 1] / 1e9 if recent else 0.0,  # nearest rank
            max_seconds=max((meter.max_ns for meter in used), default=0) / 1e9,
            errors=sum(meter.errors for meter in used),
            **facts,
        )

    def as_metrics(self) -> dict[str, float]:
        """Return the cost as metrics: ``hooks/<name>/calls`` and so on."""
        keys = ("calls", "errors", "total_seconds", "mean_seconds", "p95_seconds", "max_seconds")
        return {f"hooks/{self.name}/{key}": getattr(self, key) for key in keys}

    @property
    def note(self) -> str:
        """Remarks for the table: errors, disabled, background, dropped calls."""
        notes = [
            f"{self.errors} error{'s' if self.errors > 1 else ''}" if self.errors else "",
            "DISABLED" if self.disabled else "",
            "background" if self.background else "",
            f"{self.dropped} dropped" if self.dropped else "",
        ]
        return ", ".join(note for note in notes if note)


class Costs(Sequence[Cost]):
    """The costs of all subscribers, most expensive first; `str()` returns a table."""

    COLUMNS = ("subscriber", "calls", "total", "mean", "p95", "max", "")

    def __init__(self, costs: Iterable[Cost]) -> None:
        self._costs = sorted(costs, key=lambda cost: -cost.total_seconds)

    @overload
    def __getitem__(self, key: int) -> Cost: ...
    @overload
    def __getitem__(self, key: slice) -> list[Cost]: ...
    def __getitem__(self, key: int | slice) -> Cost | list[Cost]:
        return self._costs[key]

    def __len__(self) -> int:
        return len(self._costs)

    def __iter__(self) -> Iterator[Cost]:
        return iter(self._costs)

    def by_name(self) -> Mapping[str, Cost]:
        """Return the costs by the subscriber's name."""
        return {cost.name: cost for cost in self._costs}

    def as_metrics(self) -> dict[str, float]:
        """Return all costs as metrics under ``hooks/<name>/``."""
        return {key: value for cost in self._costs for key, value in cost.as_metrics().items()}

    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells of the table, without its header `COLUMNS`."""
        return [
            (
                cost.name,
                f"{cost.calls:,}",
                *map(duration, (cost.total_seconds, cost.mean_seconds, cost.p95_seconds, cost.max_seconds)),
                cost.note,
            )
            for cost in self._costs
        ]

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return notebook.display(self._html)

    def _html(self) -> str:
        total = sum(cost.total_seconds for cost in self._costs) or 1.0
        shown = self._costs[:_SHOWN_COSTS]
        rows = [
            (*map(notebook.text, cells), notebook.share_bar(cost.total_seconds / total))
            for cells, cost in zip(self.rows(), shown, strict=False)
        ]
        left = len(self._costs) - len(shown)
        more = notebook.note(f"{left:,} more are not shown.") if left else ""
        return notebook.table((*self.COLUMNS, "share"), rows, numbers=range(1, 6)) + more

    def __str__(self) -> str:
        lines = [self.COLUMNS, *self.rows()]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.COLUMNS))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if column in (0, 6) else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )


def duration(seconds: float) -> str:
    """Format a length of time.

    >>> duration(0.0000123), duration(0.25), duration(90)
    ('12.3 µs', '250.0 ms', '90.0 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.1f} {unit}"
    return f"{seconds / 1e-9:.0f} ns"
