"""Endpoints for the table of runs: filters, sorts, groups and pages on the server, so a table may have any length.

A part of the table is answered from the listing and from statistics that the store keeps for ended runs. Answers are
kept until something about a run changes. A column that no run has is empty: an address that names one still works.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import msgspec

from hookline._engine.errors import OptionError
from hookline._record.records import clean
from hookline.server.endpoint import MAX_TEXT, Endpoint, Parameter, Values
from hookline.server.listing import HIDDEN_PREFIXES, PREFERRED, Listing, Number, number
from hookline.store import RunInfo, Runs
from hookline.store.columns import as_float
from hookline.store.filters import (
    ATTRIBUTES,
    FUNCTIONS,
    WORDS,
    Field,
    FilterError,
    flattened,
    parse_field,
    parse_filter,
)
from hookline.store.outcomes import Mode, better_mode
from hookline.store.run_values import RunValues, is_missing, sort_key

MAX_COLUMNS = 60
MAX_CELL = 200
"""How many characters of a text a cell shows."""
MAX_VALUES = 20
"""How many tags a cell shows."""
MAX_FIELDS = 2000
_MAX_DEFAULT = 4
_NAME = re.compile(r"[A-Za-z_][\w./:@-]*")

_WHERE = Parameter("where", "string", "A filter: lr > 1e-4 and val/loss < 1.5.")
_SORT = Parameter("sort", "string", "A field to sort by; - before it sorts descending. By default the latest first.")
_COLUMN = Parameter("column", "string", "The fields to show: lr, min(val/loss), duration.", repeated=True)
_GROUP = Parameter("group", "string", "A field to group by: the rows are groups, with aggregates of the columns.")
_FIELD = Parameter("field", "string", "A field: lr, tag, min(val/loss).", required=True)
_FIND = Parameter("find", "string", "Only values that contain this.", default="")
_LIMIT = Parameter("limit", "integer", "The maximum number of rows.", default=100, low=1, high=1000)
_OFFSET = Parameter("offset", "integer", "How many rows to skip.", default=0, low=0)

Cell = float | bool | str | list[str] | None
"""A value; texts are cut, and non-finite numbers are texts, as everywhere."""


class TableRow(msgspec.Struct):
    """A run with a cell for each column."""

    id: str
    name: str
    project: str
    status: str
    message: str
    problems: int
    cells: list[Cell]


class Aggregate(msgspec.Struct):
    """A column over the runs of a group: its finite numbers, and how many others there are."""

    mean: Number
    min: Number
    max: Number
    n: int
    not_finite: int


class TableGroup(msgspec.Struct):
    """The runs with one value of the field that they are grouped by.

    Attributes:
        where: A filter for these runs; empty if there is none.
        ids: The ids of these runs, the latest first.
        cells: An aggregate per column; null if no run of the group has a number there.
    """

    value: Cell
    where: str
    runs: int
    ids: list[str]
    statuses: dict[str, int]
    cells: list[Aggregate | None]


class RunTable(msgspec.Struct):
    """A part of the table: rows, or groups if the runs are grouped.

    Attributes:
        runs: The number of all runs.
        matching: The number of runs that match the filter.
        total: The number of rows of the whole table: matching runs, or groups.
    """

    runs: int
    matching: int
    total: int
    rows: list[TableRow]
    groups: list[TableGroup]


class MatchingRuns(msgspec.Struct):
    """The ids of the runs that match a filter, the latest first."""

    ids: list[str]


class FilterCheck(msgspec.Struct):
    """What is wrong with a filter, and where; None if nothing is."""

    problem: str | None
    position: int = 0


class FieldValues(msgspec.Struct):
    """The values of a field, the most common first, with the number of runs that have them."""

    values: list[tuple[Cell, int]]


class TableField(msgspec.Struct):
    """A field that filters, columns and groups can name.

    Attributes:
        field: As it is written in a filter.
        kind: ``attribute``, ``config``, ``summary`` or ``metric``.
        runs: How many runs have it.
        varies: Whether runs have different values of a setting.
        better: Whether smaller (``min``) or larger (``max``) values of a metric are better; null if unknown.
    """

    field: str
    name: str
    kind: str
    runs: int
    varies: bool
    better: Mode | None = None


class TableFields(msgspec.Struct):
    """The fields of all runs, and the columns of a table for which none are chosen."""

    fields: list[TableField]
    functions: list[str]
    columns: list[str]


def _version(listing: Listing, values: Values) -> Hashable:
    return listing.now().version


def _matching(listing: Listing, values: Values) -> Runs:
    runs = listing.now().runs
    wanted = None if values["where"] is None else parse_filter(values["where"])
    # Archived runs are hidden unless the filter asks for them: archived = true.
    if wanted is None or all(field.name != "archived" for field in wanted.fields):
        runs = runs.filter(lambda info: not info.archived)
    return runs if wanted is None else runs.filter(values["where"])


def _run_table(listing: Listing, values: Values) -> RunTable:
    if len(values["column"]) > MAX_COLUMNS:
        raise OptionError(f"column is given {len(values['column'])} times; at most {MAX_COLUMNS} are accepted.")
    columns = [parse_field(text) for text in values["column"]]
    group = None if values["group"] is None else parse_field(values["group"])
    whole, runs = len(listing.now().runs), _matching(listing, values)
    page = slice(values["offset"], values["offset"] + values["limit"])
    if group is None:
        ordered = runs if values["sort"] is None else runs.sort(values["sort"])
        rows = [_row(runs.values_of(info), info, columns) for info in ordered[page]]
        return RunTable(whole, len(ordered), len(ordered), rows, [])
    members = _members(runs, group)
    keys = _ordered_groups(runs, members, group, values["sort"])
    groups = [_group(runs, members[key], key, values["group"], columns) for key in keys[page]]
    return RunTable(whole, len(runs), len(keys), [], groups)


def _row(values: RunValues, info: RunInfo, columns: Sequence[Field]) -> TableRow:
    cells = [cell(values.get(field)) for field in columns]
    name, message = clean(info.name)[:MAX_CELL], clean(info.message)[:MAX_CELL]
    return TableRow(info.id, name, info.project, info.status, message, len(info.problems), cells)


def cell(found: list[Any]) -> Cell:
    """The values of a field as a cell."""
    if len(found) > 1:
        return [_text(each) for each in found[:MAX_VALUES]]
    value = found[0] if found else None
    if value is None or isinstance(value, bool):
        return value
    return number(value) if isinstance(value, int | float) else _text(value)


def _text(value: Any) -> str:
    held = clean(value)
    text = held if isinstance(held, str) else json.dumps(held, ensure_ascii=False)
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"


_Key = tuple[int, Any]
_NONE: _Key = (3, "")
_NAN: _Key = (2, "")


def _members(runs: Runs, group: Field) -> dict[_Key, list[RunInfo]]:
    """The runs by the value of a field; one with several tags is in several groups."""
    found: dict[_Key, list[RunInfo]] = {}
    for info in runs:
        for value in runs.values_of(info).get(group) or [None]:
            found.setdefault(_group_key(value), []).append(info)
    return found


def _group_key(value: Any) -> _Key:
    """A key that is equal for equal values, and sorts: numbers, texts, NaN, none."""
    if value is None:
        return _NONE
    if isinstance(value, bool):
        return 1, str(value).lower()  # as filters compare them
    if is_missing(value):
        return _NAN
    held = as_float(value)
    return (1, str(value)) if held is None else (0, held)


def _ordered_groups(runs: Runs, members: dict[_Key, list[RunInfo]], group: Field, sort: str | None) -> list[_Key]:
    """The groups by their value or, if the runs are sorted by another field, by its mean."""
    keys = sorted(members)
    if sort is None:
        return keys
    runs.sort(sort)  # refuses a field that no run has
    field, is_descending = parse_field(sort.removeprefix("-")), sort.startswith("-")
    if field[:1] + field[2:] == group[:1] + group[2:]:  # but for the position
        known = [key for key in keys if key < _NAN]
        return (known[::-1] if is_descending else known) + [key for key in keys if key >= _NAN]
    means = {key: _aggregate([runs.values_of(info).get(field) for info in members[key]]) for key in keys}
    numbers = [(found.mean, key) for key, found in means.items() if found is not None and found.n]
    numbers.sort(key=lambda pair: sort_key(pair[0]), reverse=is_descending)
    sorted_keys = [key for _, key in numbers]
    placed = set(sorted_keys)
    return sorted_keys + [key for key in keys if key not in placed]


def _group(runs: Runs, infos: list[RunInfo], key: _Key, group: str, columns: Sequence[Field]) -> TableGroup:
    values = [runs.values_of(info) for info in infos]
    cells = [_aggregate([each.get(field) for each in values]) for field in columns]
    value: Cell = None if key == _NONE else "NaN" if key == _NAN else cell([key[1]])
    statuses = dict(Counter(info.status for info in infos))
    return TableGroup(value, _group_filter(group, key), len(infos), [info.id for info in infos], statuses, cells)


def _group_filter(group: str, key: _Key) -> str:
    """A filter for the runs of a group."""
    if key in (_NONE, _NAN):
        return f"{group} is {'missing' if key == _NONE else 'nan'}"
    if key[0] == 0:
        return f"{group} = {key[1]!r}"
    text = re.sub(r'(["\\])', r"\\\1", key[1])
    return f'{group} = "{text}"' if len(group) + len(text) < MAX_TEXT else ""


def _aggregate(found: Sequence[list[Any]]) -> Aggregate | None:
    numbers = [value for values in found for value in values[:1] if isinstance(value, int | float)]
    held = [float(as_float(value) or 0.0) for value in numbers if not isinstance(value, bool)]
    if not held:
        return None
    finite = [value for value in held if math.isfinite(value)]
    if not finite:
        return Aggregate("NaN", "NaN", "NaN", 0, len(held))
    mean = math.fsum(value / len(finite) for value in finite)  # a sum of large ones would overflow
    return Aggregate(number(mean), min(finite), max(finite), len(finite), len(held) - len(finite))


def _matching_runs(listing: Listing, values: Values) -> MatchingRuns:
    return MatchingRuns([info.id for info in _matching(listing, values)])


def _check_filter(listing: Listing, values: Values) -> FilterCheck:
    try:
        if values["where"] is not None:
            _matching(listing, values)
    except FilterError as error:
        return FilterCheck(error.problem, error.position)
    return FilterCheck(None)


def _field_values(listing: Listing, values: Values) -> FieldValues:
    runs, field = listing.now().runs, parse_field(values["field"])
    known: Counter[Any] = Counter()
    for info in runs:
        known.update(cell([each]) for each in runs.values_of(info).get(field))
    found = values["find"].lower()
    shown = [(value, count) for value, count in known.most_common() if found in str(value).lower()]
    return FieldValues(shown[:MAX_VALUES])


def _run_fields(listing: Listing, values: Values) -> TableFields:
    runs = listing.now().runs
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in ("config", "summary", "metric")}
    first: dict[str, str] = {}
    varying: set[str] = set()
    for info in runs:
        settings = dict(flattened(info.config))
        counts["config"].update(settings.keys())
        counts["summary"].update(info.summary.keys())
        counts["metric"].update(name for name, value in info.metrics.items() if isinstance(value, int | float))
        for name, value in settings.items():
            if name not in varying and first.setdefault(name, text := str(value)) != text:
                varying.add(name)
    varying |= {name for name, count in counts["config"].items() if count < len(runs)}
    fields = [TableField(name, name, "attribute", len(runs), varies=True) for name in ATTRIBUTES]
    fields += _named_fields(counts, varying)
    return TableFields(fields, list(FUNCTIONS), _default_columns(fields))


def _named_fields(counts: dict[str, Counter[str]], varying: set[str]) -> Iterator[TableField]:
    taken = set(ATTRIBUTES)
    for kind, names in counts.items():
        for name, runs in sorted(names.most_common(MAX_FIELDS)):
            # A name that means something else by itself needs its prefix.
            meant = f"{kind}.{name}" if name in taken else name
            if "`" in name or len(name) > MAX_CELL:
                continue  # no filter can name it
            is_plain = _NAME.fullmatch(meant) and meant.lower() not in WORDS
            better = better_mode(name) if kind in ("metric", "summary") else None
            written = meant if is_plain else f"`{meant}`"
            yield TableField(written, name, kind, runs, kind != "config" or name in varying, better)
        taken |= names.keys()


def _default_columns(fields: Sequence[TableField]) -> list[str]:
    """Metrics and settings that tell runs apart: the most common ones."""

    def most_common(kind: str) -> list[TableField]:
        found = [each for each in fields if each.kind == kind and each.varies]
        found = [each for each in found if not each.name.startswith(HIDDEN_PREFIXES)]
        return sorted(found, key=lambda each: (-each.runs, each.name not in PREFERRED))[:_MAX_DEFAULT]

    metrics = [each.field for each in most_common("metric")]
    return [*metrics, *(each.field for each in most_common("config")), "step", "duration", "started", "tag"]


ENDPOINTS = (
    Endpoint(
        "/api/run_table",
        "A part of the table of runs, filtered, sorted and grouped.",
        RunTable,
        _run_table,
        (_WHERE, _SORT, _COLUMN, _GROUP, _LIMIT, _OFFSET),
        _version,
        is_slow=True,
    ),
    Endpoint(
        "/api/matching_runs",
        "The ids of the runs that match a filter.",
        MatchingRuns,
        _matching_runs,
        (_WHERE,),
        _version,
        is_slow=True,
    ),
    Endpoint(
        "/api/filter_check",
        "Check a filter while it is being typed.",
        FilterCheck,
        _check_filter,
        (_WHERE,),
        _version,
        is_slow=True,
    ),
    Endpoint(
        "/api/field_values",
        "The values of a field, to complete a filter.",
        FieldValues,
        _field_values,
        (_FIELD, _FIND),
        _version,
        is_slow=True,
    ),
    Endpoint("/api/run_fields", "The fields that a table can show.", TableFields, _run_fields, (), _version),
)
