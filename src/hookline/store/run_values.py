"""`RunValues`: the values of a run by name, for filters, sorting and tables of runs.

Attributes, settings and the summary come from the listing. The last value of a metric comes from the end of the
journal, if it was recorded there; everything else about metrics is computed from all their values (see `run_columns`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hookline.store.filters import ATTRIBUTES, PREFIXES, Field, Filter, flattened
from hookline.store.run_info import RunInfo
from hookline.store.store import Store


class RunValues:
    """The values of one run."""

    def __init__(self, store: Store, info: RunInfo) -> None:
        self._store, self._info = store, info

    def get(self, field: Field) -> list[Any]:
        """The values of a field: none, one, or several for ``tag``."""
        kind, name = _split(field.name)
        if field.function or kind == "metric.":
            return self._metric(name, field)
        if kind == "config.":
            return self._setting(name)
        if kind == "summary.":
            return _present(self._info.summary.get(name))
        # If the attribute has no value, its name may be that of a setting, as is common for seed.
        found = self._attribute(name) or self._setting(name) or _present(self._info.summary.get(name))
        return found if found or name in ATTRIBUTES else self._metric(name, field)

    def first(self, field: Field) -> Any:
        """The value of a field; None if there is none."""
        return next(iter(self.get(field)), None)

    def _attribute(self, name: str) -> list[Any]:
        info = self._info
        if name == "tag":
            return list(info.tags)
        if name == "duration":
            end = info.ended if info.ended is not None else info.last_seen
            return [] if info.started is None or end is None else [end - info.started]
        if name == "git":
            git = info.facts.get("git")
            return _present(git.get("commit") if isinstance(git, dict) else git)
        return _present(getattr(info, name)) if name in _PLAIN_ATTRIBUTES else []

    def _setting(self, name: str) -> list[Any]:
        return _present(_setting(self._info.config, name))

    def _metric(self, name: str, field: Field) -> list[Any]:
        if field.function in ("", "last") and field.latest is None and name in self._info.metrics:
            return _present(self._info.metrics[name])
        if not self._info.is_over:
            return self._from_columns(name, field)
        # Ten thousand runs are sorted again for each part of a table: opening all their columns would take seconds.
        key = (name, field.function, field.latest)
        kept = self._store.statistics(self._info)
        if key not in kept:
            found = self._from_statistics(name, field)
            kept[key] = self._from_columns(name, field) if found is None else found
        return kept[key]

    def _from_statistics(self, name: str, field: Field) -> list[Any] | None:
        """The value, if it was computed when the run's metrics were read; None if it was not."""
        known = None if field.latest is not None else self._store.known_statistics(self._info, name)
        if known is None or field.function == "mean":
            return None
        found = known.get("train", next((known[axis] for axis in sorted(known)), None))
        if found is None:
            return []
        value = {"first": found.first, "min": found.least, "max": found.largest}.get(field.function, found.last)
        return [math.nan if value is None else value]

    def _from_columns(self, name: str, field: Field) -> list[Any]:
        [columns] = self._store.columns([self._info])
        keys = columns.keys([name])
        if not keys:
            return []
        # On several axes, the value of the training counts.
        axis = next((axis for _, axis in keys if axis == "train"), keys[0][1])
        found = columns.column(name, axis)
        values = found.value if field.latest is None else found.value[-field.latest :]
        return [] if not len(values) else [_statistic(field.function, values)]


_PLAIN_ATTRIBUTES = frozenset(ATTRIBUTES) - {"tag", "duration", "git"}


def _split(name: str) -> tuple[str, str]:
    """The prefix of a field's name, if it has one, and the rest."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def _setting(settings: Any, name: str) -> Any:
    """A setting by its dotted name, as `flattened` names it; None if there is none."""
    if not isinstance(settings, Mapping):
        return None
    if name in settings and not isinstance(settings[name], Mapping):
        return settings[name]
    if "." not in name:
        return None
    # The key of a section may have dots itself, so the name cannot simply be split.
    for key, section in settings.items():
        if isinstance(section, Mapping) and name.startswith(f"{key}."):
            found = _setting(section, name[len(str(key)) + 1 :])
            if found is not None:
                return found
    return None


def _present(value: Any) -> list[Any]:
    return [] if value is None or value == "" else [value]


def _statistic(function: str, values: Any) -> float:
    """A statistic of a metric's values; minimum, maximum and mean are over the finite ones."""
    import numpy as np

    if function in ("", "last", "first"):
        return float(values[0] if function == "first" else values[-1])
    finite = values[np.isfinite(values)]
    if not len(finite):
        return math.nan
    return float(finite.min() if function == "min" else finite.max() if function == "max" else finite.mean())


def check_fields(store: Store, infos: Sequence[RunInfo], wanted: Filter) -> None:
    """Check that the fields of a filter exist.

    Raises:
        FilterError: No run has one of them.
    """
    # A filter over no runs must not fail for the names that they do not have.
    if not infos:
        return
    # Most fields are found in one of the first runs; all names are gathered only to suggest one.
    missing = {field.name for field in wanted.fields if field.name not in ATTRIBUTES}
    missing -= {name for name in missing if any(_is_listed(info, name) for info in infos)}
    if not missing:
        return
    known = {name for info in infos for name in _listed_names(info)}
    # Only if necessary: the names of all metrics are known only after reading all runs.
    for columns in store.columns(infos):
        known.update(each for name, _ in columns.keys() for each in (name, f"metric.{name}"))  # noqa: SIM118
        if missing <= known:
            return
    wanted.check_names(known)


def _is_listed(info: RunInfo, name: str) -> bool:
    """Whether a listing has a value of this name for a run."""
    kind, own = _split(name)
    return (
        (kind in ("", "config.") and _setting(info.config, own) is not None)
        or (kind in ("", "summary.") and own in info.summary)
        or (kind in ("", "metric.") and own in info.metrics)
    )


def _listed_names(info: RunInfo) -> Iterator[str]:
    """The names of the values that a listing has, with and without their prefixes."""
    for prefix, names in zip(PREFIXES, (dict(flattened(info.config)), info.summary, info.metrics), strict=True):
        yield from names
        yield from (prefix + name for name in names)


def sort_key(value: Any) -> tuple[int, Any]:
    """A key that sorts values of any type: numbers, then texts."""
    if isinstance(value, bool):
        return 0, float(value)
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def is_missing(value: Any) -> bool:
    """Whether a value comes last in either direction: there is none, or it is NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))
