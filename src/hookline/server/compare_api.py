"""Endpoints that compare runs: settings, environment, packages and metrics of several runs, and the code of two.

Replies are bounded: a comparison names at most `MAX_RUNS` runs, and long values and lists are cut.
"""

import json
from typing import Any

import msgspec

from hookline._engine.errors import OptionError
from hookline._record.records import clean
from hookline.server.endpoint import RUN, Endpoint, Parameter, Values
from hookline.server.listing import Listing
from hookline.store.code_comparison import CodeComparison
from hookline.store.comparison import Comparison, Difference

MAX_RUNS = 50
MAX_ROWS = 3000
"""How many settings, facts, packages and metrics are sent of each."""
MAX_CELL = 1000
_MAX_NAME = 500

_BASE = Parameter("base", "string", "The id of the run that the others are compared with; by default the first.")
_ALL = Parameter(
    "all",
    "string",
    "Include the settings, facts and packages that all runs share.",
    default="no",
    choices=("no", "yes"),
)
_BEFORE = Parameter("before", "string", "The id of a run, as returned by /api/runs.", required=True)
_AFTER = Parameter("after", "string", "The id of the run that is compared with it.", required=True)


def _compare(listing: Listing, values: Values) -> Comparison:
    ids = values["run"]
    if len(ids) > MAX_RUNS:
        raise OptionError(f"run is given {len(ids)} times; at most {MAX_RUNS} runs are compared.")
    found = listing.some(ids).compare(*ids, baseline=values["base"], everything=values["all"] == "yes")
    metrics = [msgspec.convert(clean(msgspec.to_builtins(each)), type(each)) for each in found.metrics[:MAX_ROWS]]
    return msgspec.structs.replace(
        found,
        runs=[msgspec.structs.replace(run, name=run.name[:_MAX_NAME]) for run in found.runs],
        config=_rows(found.config),
        environment=_rows(found.environment),
        packages=_rows(found.packages),
        metrics=metrics,
    )


def _rows(found: list[Difference]) -> list[Difference]:
    return [
        Difference(each.name[:_MAX_NAME], [_cell(value) for value in each.values], each.missing, each.differs)
        for each in found[:MAX_ROWS]
    ]


def _cell(value: Any) -> Any:
    held = clean(value)
    text = held if isinstance(held, str) else json.dumps(held, ensure_ascii=False)
    return held if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"


def _code(listing: Listing, values: Values) -> CodeComparison:
    return listing.some([values["before"], values["after"]]).compare_code(values["before"], values["after"])


ENDPOINTS = (
    Endpoint(
        "/api/compare",
        "What differs between runs, and their metrics with the mean and spread of repeats.",
        Comparison,
        _compare,
        (RUN, _BASE, _ALL),
        is_slow=True,
    ),
    Endpoint(
        "/api/compare/code", "What differs between the code of two runs.", CodeComparison, _code, (_BEFORE, _AFTER)
    ),
)
