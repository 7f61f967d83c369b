"""`Summary`: one value for each metric of a run, as ``wandb.summary``.

It is the last one, what `define_metric` asks for, or what the program sets. Rows count once they are complete. Values
that the program sets are recorded at once; the others follow from the history, so they survive the death of the process
as the history does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hookline._engine.metrics import Deferred
from hookline.compat.wandb.metrics import Definitions, Statistics
from hookline.compat.wandb.values import MOST_LISTED, WBValue, as_array, plain_value

Record = Callable[[Mapping[str, Any], tuple[str, ...]], None]
"""Called with the items that the program changed, and the names of those it removed."""


class SummaryValues:
    """The values of a summary, and how rows change them.

    Args:
        definitions: The definitions of `define_metric`.
    """

    def __init__(self, definitions: Definitions) -> None:
        self.values: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        """The last value of each metric in the history, by flat name, if it is not in `values`."""
        self._definitions = definitions
        self._statistics: dict[str, Statistics] = {}

    def add_row(self, row: Mapping[str, Any], nested: frozenset[str] = frozenset()) -> None:
        """Add a complete row.

        Args:
            row: The values by flat name.
            nested: The names of values that were logged in a dict.
        """
        if not nested and not self._definitions.have_summaries:
            dict.update(self.values, row)  # the usual case
            return
        self.last = self.last or dict(self.values)  # of the rows so far
        self.last.update(row)
        for name, value in row.items():
            metric = self._definitions.find(name)
            if metric is not None and metric.summary:
                self._statistics.setdefault(name, Statistics()).add(value)
                value = self._statistics[name].shown(metric)
            if value is None:
                if metric is not None and "none" in (metric.summary or ()):
                    self.values.pop(name, None)
                continue
            self._put(name.split(".") if name in nested else [name], value)

    def recount(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Compute the statistics again, of all rows so far, because a definition was added."""
        self._statistics = {}
        for row in rows:
            for name, value in row.items():
                metric = self._definitions.find(name)
                if metric is not None and metric.summary:
                    self._statistics.setdefault(name, Statistics()).add(value)

    def show_statistics(self, nested: frozenset[str] = frozenset(), *, leave: Iterable[str] = ()) -> None:
        """Set the values of all metrics whose definition asks for statistics.

        Args:
            nested: The names of metrics that were logged in a dict.
            leave: Names that keep their value.
        """
        for name, statistics in self._statistics.items():
            metric = self._definitions.find(name)
            if metric is None or name in set(leave):
                continue
            value = statistics.shown(metric)
            if value is None:
                self.values.pop(name, None)
            else:
                self._put(name.split(".") if name in nested else [name], value)

    def shown(self) -> dict[str, Any]:
        """Return the values as a program sees them: without None, and with values that were on a device."""
        return {key: _settled(value) for key, value in self.values.items() if value is not None}

    def by_definition(self) -> dict[str, Any]:
        """Return the values that definitions ask for, by flat name: ``loss.min``."""
        found: dict[str, Any] = {}
        for name, statistics in self._statistics.items():
            metric = self._definitions.find(name)
            shown = None if metric is None or not metric.summary else statistics.shown(metric)
            if isinstance(shown, dict):
                found |= {f"{name}.{kind}": value for kind, value in shown.items()}
        return found

    def _put(self, path: list[str], value: Any) -> None:
        place = self.values
        for name in path[:-1]:
            inner = place.get(name)
            if not isinstance(inner, dict):
                inner = place[name] = {}
            place = inner
        place[path[-1]] = value


def _settled(value: Any) -> Any:
    """Return a value with those from a device replaced by numbers."""
    if type(value) is dict:
        return {key: _settled(each) for key, each in value.items()}
    return value.get() if type(value) is Deferred else value


class SummaryDict:
    """A summary, or a dict in it; items are attributes too."""

    def _as_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def _change(self, path: tuple[str, ...], value: Any, *, remove: bool = False) -> None:
        raise NotImplementedError

    def keys(self) -> list[str]:
        """Return the names."""
        return [key for key in self._as_dict() if key != "_wandb"]

    def items(self) -> list[tuple[str, Any]]:
        """Return the names and values."""
        return [(key, self[key]) for key in self.keys()]

    def values(self) -> list[Any]:
        """Return the values."""
        return [self[key] for key in self.keys()]

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default; a nested dict is returned as a plain one."""
        return self._as_dict().get(key, default)

    def update(self, d: Mapping[str, Any]) -> None:
        """Set values."""
        for key, value in d.items():
            self._change((key,), value)

    def __getitem__(self, key: str) -> Any:
        value = self._as_dict()[key]
        return SummarySubDict(self, key) if isinstance(value, dict) else value

    def __setitem__(self, key: str, value: Any) -> None:
        self._change((key,), value)

    def __delitem__(self, key: str) -> None:
        self._change((key,), None, remove=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __contains__(self, key: object) -> bool:
        return key in self._as_dict()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __repr__(self) -> str:
        return str(self._as_dict())


class Summary(SummaryDict):
    """The summary of a run.

    Args:
        values: The values.
        read: Returns all of them, with what the run adds (``_step``, ``_runtime``, ``_timestamp``).
        record: Records what the program sets.
    """

    def __init__(self, values: SummaryValues, read: Callable[[], dict[str, Any]], record: Record) -> None:
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_read", read)
        object.__setattr__(self, "_record", record)

    def _as_dict(self) -> dict[str, Any]:
        return self._read()  # type: ignore[no-any-return]

    def _change(self, path: tuple[str, ...], value: Any, *, remove: bool = False) -> None:
        top, place = path[0], self._values.values
        for name in path[:-1]:
            inner = place.get(name)
            place[name] = place = dict(inner) if isinstance(inner, dict) else {}
        if remove:
            if path[-1] not in place:
                raise KeyError(path[-1])
            del place[path[-1]]
        else:
            place[path[-1]] = summary_value(value)
        values = self._values.values
        self._record({top: values[top]} if top in values else {}, () if top in values else (top,))


class SummarySubDict(SummaryDict):
    """A dict in a summary."""

    def __init__(self, parent: SummaryDict, key: str) -> None:
        object.__setattr__(self, "_parent", parent)
        object.__setattr__(self, "_key", key)

    def _as_dict(self) -> dict[str, Any]:
        found = self._parent._as_dict().get(self._key)
        return found if isinstance(found, dict) else {}

    def _change(self, path: tuple[str, ...], value: Any, *, remove: bool = False) -> None:
        self._parent._change((self._key, *path), value, remove=remove)


def summary_value(value: Any) -> Any:
    """Return a value as the summary stores it; for a large array, its statistics."""
    if isinstance(value, WBValue):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): summary_value(each) for key, each in value.items()}
    array = as_array(value)
    if array is None or array.size <= MOST_LISTED or array.dtype.kind not in "biuf":
        return plain_value(value)
    import numpy

    flat = array.astype(float).ravel()
    points = {f"{part}%": float(numpy.percentile(flat, part)) for part in (10, 25, 75, 90)}
    shape = {"var": flat.var(), "mean": flat.mean(), "min": flat.min(), "max": flat.max()}
    numbers = {name: float(number) for name, number in shape.items()}
    return {"_type": "numpy.ndarray", **numbers, **points, "size": int(array.size)}
