"""Lines and bands of charts: thinned out here, with their peaks kept, so that a browser draws what it can show."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec

from hookline.server.endpoint import FIRST_STEP, LAST_STEP, METRIC, RUN, Endpoint
from hookline.server.listing import Listing
from hookline.server.parameters import Parameter, Values
from hookline.store.series import thinned

_POINTS = Parameter("max_points", "integer", "How many points a line has at most.", default=1000, low=4, high=20_000)
_AXIS = Parameter("axis", "string", "Only what was recorded on this axis: train, eval, rollout, ...")
_X = Parameter("x", "string", "step, time, or a metric that was recorded at the same steps.", default="step")
BY = ("arm", "group", "experiment", "stage", "name", "project", "repeat", "seed", "status", "id")
_BY = Parameter("by", "string", "What runs are grouped by; several make finer groups.", repeated=True, choices=BY)


class Line(msgspec.Struct):
    """A metric of a run. Values that are not finite cannot be drawn; they are left out and counted."""

    run: str
    name: str
    axis: str
    points: int
    not_finite: int
    x: list[float]
    y: list[float]


class Lines(msgspec.Struct):
    """A metric as lines."""

    lines: list[Line]


class Band(msgspec.Struct):
    """Mean, standard deviation and range of a metric over the runs of a group, step by step."""

    key: list[str | None]
    axis: str
    x: list[int]
    mean: list[float | None]
    std: list[float | None]
    min: list[float | None]
    max: list[float | None]
    n: list[int]


class Bands(msgspec.Struct):
    """A metric as bands."""

    bands: list[Band]


def _series(listing: Listing, values: Values) -> Lines:
    runs = listing.some(values["run"])
    found = runs.series([values["name"]], x=values["x"], axis=values["axis"], max_points=values["max_points"])
    return Lines([Line(s.run, s.name, s.axis, s.points, s.not_finite, s.x, s.y) for s in found])


def _bands(listing: Listing, values: Values) -> Bands:
    by = list(dict.fromkeys(values["by"])) or ["arm"]
    steps = values["first_step"], values["last_step"]
    found = listing.some(values["run"]).aggregate(values["name"], by, axis=values["axis"], steps=steps)
    return Bands(list(_groups(found.rows(), by, values["max_points"])))


def _groups(rows: list[dict[str, Any]], by: list[str], max_points: int) -> Iterator[Band]:
    for (*key, axis), of_group in groupby(rows, lambda row: (*(row[name] for name in by), row["axis"])):
        yield _band([None if part is None else str(part) for part in key], axis, list(of_group), max_points)


def _band(key: list[str | None], axis: str, rows: list[dict[str, Any]], max_points: int) -> Band:
    import numpy as np

    xs = np.array([row["step"] for row in rows], dtype=np.float64)
    means = np.array([row["mean"] for row in rows], dtype=np.float64)
    kept = [rows[place] for place in thinned(xs, np.nan_to_num(means), max_points).tolist()]
    columns: dict[str, list[Any]] = {name: [row[name] for row in kept] for name in ("mean", "std", "min", "max", "n")}
    return Band(key, axis, [row["step"] for row in kept], **columns)


ENDPOINTS = (
    Endpoint("/api/series", "A metric of some runs as lines.", Lines, _series, (RUN, METRIC, _X, _AXIS, _POINTS)),
    Endpoint(
        "/api/bands",
        "A metric over the repeats of groups of runs.",
        Bands,
        _bands,
        (RUN, METRIC, _BY, _AXIS, _POINTS, FIRST_STEP, LAST_STEP),
    ),
)
