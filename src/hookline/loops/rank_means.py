"""Metrics of several processes made one: means of what each logs, and reductions that a call asks for.

The numbers of a step are exchanged when it ends, before `on_step_end`, with one all-reduce over the CPU group of the
processes. Every process sends its numbers in an order that all know; a name that is new to one of them costs a second
message once. A name is averaged over the processes that logged it. Values that are still on their way from a device are
not waited for: they are exchanged at the end of a later step, when they have arrived on all processes, and the row is
written then. A subscriber that reads such a value earlier gets this process's own.

Rows that belong to no step, such as evaluations, and ``log(reduce=...)`` are kept until the next step boundary. The
processes need not log the same names, nor at the same steps. Of values that are no numbers rank zero's is recorded.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hookline._engine.errors import OptionError
from hookline._engine.metrics import Deferred, MetricsRow, plain
from hookline.loops.distributed import ProcessGroup

REDUCTIONS: Mapping[str, Callable[[list[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
    "min": min,
    "max": max,
}
NOT_REDUCED = "none"
"""As ``log(reduce="none")``: each process records its own value."""
READY = 4
"""How many steps whose device values have arrived are exchanged at once; one would let them pile up."""


class LooseRow(NamedTuple):
    """A row that belongs to no step in progress."""

    step: int
    axis: str
    metrics: dict[str, Any]


class SharedNumber:
    """A number from a device, whose mean over the processes is not known yet; until then this process's own."""

    __slots__ = ("_own", "mean")
    arrives = True

    def __init__(self, own: Deferred) -> None:
        self._own = own
        self.mean: float | None = None

    def number(self, index: int) -> Any:
        """Return the mean, or this process's number while the mean is unknown."""
        return self._own.get() if self.mean is None else self.mean

    def ready(self) -> bool:
        """Whether the mean is known."""
        return self.mean is not None

    def own_is_ready(self) -> bool:
        """Whether this process's number has arrived."""
        return self._own.source.ready() or not self._own.source.arrives


class WaitingStep(NamedTuple):
    """The device values of a step that are not exchanged yet."""

    step: int
    numbers: dict[str, SharedNumber]


class RankMeans:
    """Exchanges what the processes of a run log.

    `share`, `settle`, `shared_rows` and `reduced_row` are collectives: all processes have to call them.

    Args:
        processes: The processes.
        record: Writes a row that all processes have, at a step.
    """

    def __init__(self, processes: ProcessGroup, record: Callable[[int, dict[str, Any]], None]) -> None:
        self._processes, self._record = processes, record
        self._names: list[str] = []
        self._known: set[str] = set()
        self._waiting: deque[WaitingStep] = deque()
        self._rows: list[LooseRow] = []
        self._reductions: dict[str, tuple[str, Any]] = {}  # by name: the reduction, and this process's value

    def share(self, row: MetricsRow, step: int) -> dict[str, Any]:
        """Replace the numbers of a step by their means over the processes; returns those to record."""
        own: dict[str, Any] = {}
        late: dict[str, SharedNumber] = {}
        for name, value in dict.items(row):
            # Exact types: a bool is an int, and no number to average. dict's own items(), because a row's would wait
            # for the device.
            if type(value) is float or type(value) is int:
                own[name] = value
            elif type(value) is Deferred:
                late[name] = SharedNumber(value)
        # A rank knows only its own device, and all have to enter the exchange of device values or none. So each says in
        # this message how many steps have arrived here, and all see the same counts.
        ready = self._ready()
        flags = [bool(late), *(ready > place for place in range(READY))]
        (any_late, *arrived), (means,) = self._reduced(flags, [own])
        found: dict[str, Any] = {**means, **{name: Deferred(number) for name, number in late.items()}}
        dict.update(row, found)
        shared = {name: found[name] for name in dict.keys(row) if name in found}  # in this process's order
        size = self._processes.size()
        everywhere = next((place for place, count in enumerate(arrived) if count < size), READY)
        if everywhere:
            self._exchange_waiting(everywhere)
        # Also on a rank that has no late value in this step: all queues hold the same steps, so a number of steps means
        # the same.
        if any_late:
            self._waiting.append(WaitingStep(step, late))
        return shared

    def settle(self) -> None:
        """Exchange the device values of all steps so far, waiting for them."""
        if self._waiting:
            self._exchange_waiting(len(self._waiting))

    def keep(self, row: LooseRow) -> None:
        """Keep a row until the next step boundary."""
        self._rows.append(row)

    @property
    def has_rows(self) -> bool:
        """Whether this process keeps rows."""
        return bool(self._rows)

    def take_rows(self) -> list[LooseRow]:
        """Remove and return the kept rows as this process logged them."""
        rows, self._rows = self._rows, []
        return rows

    def shared_rows(self) -> list[LooseRow]:
        """Return the kept rows of all processes, those of one step and axis merged into one row of means."""
        own = [row._replace(metrics=plain(dict(row.metrics))) for row in self.take_rows()]
        merged: dict[tuple[int, str, int], list[dict[str, Any]]] = {}
        for rows in self._processes.gather(own):
            seen: dict[tuple[int, str], int] = {}
            for row in rows:
                # Several rows of one step: the first ones of all ranks make one row, the second ones another.
                place = seen[row.step, row.axis] = seen.get((row.step, row.axis), -1) + 1
                merged.setdefault((row.step, row.axis, place), []).append(row.metrics)
        return [LooseRow(step, axis, _mean_row(rows)) for (step, axis, _), rows in merged.items()]

    def reduce_later(self, metrics: Mapping[str, Any], reduce: str) -> None:
        """Keep values until the next step boundary; of several under one name the last counts."""
        items = dict.items(metrics) if isinstance(metrics, dict) else metrics.items()
        self._reductions.update({name: (reduce, value) for name, value in items})

    @property
    def has_reductions(self) -> bool:
        """Whether this process keeps values to reduce."""
        return bool(self._reductions)

    def reduced_row(self) -> dict[str, Any]:
        """Return each kept name reduced over the processes that have it; of anything but numbers the first."""
        own, self._reductions = self._reductions, {}
        gathered: dict[str, tuple[str, list[Any]]] = {}
        for given in self._processes.gather({name: (reduce, plain(value)) for name, (reduce, value) in own.items()}):
            for name, (reduce, value) in given.items():
                gathered.setdefault(name, (reduce, []))[1].append(value)
        return {
            name: REDUCTIONS[reduce](values) if all(isinstance(value, int | float) for value in values) else values[0]
            for name, (reduce, values) in gathered.items()
        }

    def _ready(self) -> int:
        """How many of the oldest steps have all their device values here."""
        ready = 0
        for waiting in self._waiting:
            if ready == READY or not all(number.own_is_ready() for number in waiting.numbers.values()):
                break
            ready += 1
        return ready

    def _exchange_waiting(self, count: int) -> None:
        steps = [self._waiting.popleft() for _ in range(count)]
        own = [{name: number.number(0) for name, number in step.numbers.items()} for step in steps]
        _, means = self._reduced([], [{n: v for n, v in row.items() if isinstance(v, int | float)} for row in own])
        for step, found in zip(steps, means, strict=True):
            for name, number in step.numbers.items():
                # A value that turned out to be no number: without a mean it would count as on its way forever.
                number.mean = found.get(name, math.nan)
            others = {name: mean for name, mean in found.items() if name not in step.numbers}
            if others:  # names that this process did not log
                self._record(step.step, others)

    def _reduced(
        self, flags: Sequence[bool], rows: Sequence[Mapping[str, Any]]
    ) -> tuple[list[int], list[dict[str, Any]]]:
        """Return how many processes have each flag, and the means of each row; all pass as many of both."""
        # Only numbers are sent, in an order that all know. A rank with a new name says so in the first number; all see
        # the sum, agree on the names and send again. So there are at most two rounds.
        while True:
            unknown = [name for row in rows for name in row if name not in self._known]
            numbers = [float(bool(unknown)), *map(float, flags)]
            for row in rows:
                numbers += [row.get(name, 0.0) for name in self._names]
                numbers += [1.0 if name in row else 0.0 for name in self._names]
            sums = self._processes.add_up(numbers)
            if not sums[0]:
                break
            new = {name for names in self._processes.gather(unknown) for name in names}
            # Sorted: the order of a set of texts differs between processes.
            self._names += sorted(new - self._known)
            self._known |= new
        found, start, width = [], 1 + len(flags), len(self._names)
        for row in rows:
            values, counts = sums[start : start + width], sums[start + width : start + 2 * width]
            found.append(
                {
                    name: _mean(value, count, row.get(name))
                    for name, value, count in zip(self._names, values, counts, strict=True)
                    if count
                }
            )
            start += 2 * width
        return [round(count) for count in sums[1 : 1 + len(flags)]], found


def _mean(total: float, count: float, own: Any) -> Any:
    """Return the mean; where all have the same value, that very value, without a rounding error."""
    mean = total / count
    return own if own is not None and math.isclose(mean, own, rel_tol=1e-15) else mean


def _mean_row(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge rows of several processes: means of numbers, and the first of anything else."""
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    return {
        name: _mean(sum(several), len(several), several[0])
        if all(type(value) in (int, float) for value in several)
        else several[0]
        for name, several in values.items()
    }


def is_number(value: Any) -> bool:
    """Whether a logged value is a number, or will be one."""
    return type(value) in (int, float, Deferred)


def is_waiting(metrics: dict[str, Any]) -> bool:
    """Whether a value is still on its way from a device."""
    return any(type(value) is Deferred for value in dict.values(metrics))


def is_reduction(reduce: Any) -> bool:
    """Whether there is such a reduction.

    Raises:
        OptionError: There is not.
    """
    if reduce not in REDUCTIONS:
        known = ", ".join(map(repr, (*REDUCTIONS, NOT_REDUCED)))
        raise OptionError(f"log(reduce={reduce!r}): give {known}, or leave it out.")
    return True
