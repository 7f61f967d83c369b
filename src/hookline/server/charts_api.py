"""Lines and bands of charts: thinned out here, with their peaks kept, so that a browser draws what it can show."""

import msgspec

from hookline.server.endpoint import METRIC, RUN, Endpoint
from hookline.server.listing import Listing
from hookline.server.parameters import Parameter, Values
from hookline.store.aggregate import BY

_POINTS = Parameter("max_points", "integer", "How many points a line has at most.", default=1000, low=4, high=20_000)
_AXIS = Parameter("axis", "string", "Only what was recorded on this axis: train, eval, rollout, ...")
_X = Parameter(
    "x",
    "string",
    "step, time, elapsed (seconds since a run began), or a metric that was recorded at the same steps.",
    default="step",
)
_FIRST_X = Parameter("first_x", "number", "Where the part of x begins that is wanted, in what x is.")
_LAST_X = Parameter("last_x", "number", "Where it ends.")
_BY = Parameter("by", "string", "What runs are grouped by; several make finer groups.", repeated=True, choices=BY)
_SMOOTHING = Parameter(
    "smoothing",
    "number",
    "The weight of the past in an exponential moving average over all points; 0 is none.",
    default=0.0,
    low=0,
    high=0.9999,
)
_DRAWN = (RUN, METRIC, _X, _AXIS, _POINTS, _FIRST_X, _LAST_X, _SMOOTHING)


class Line(msgspec.Struct):
    """A metric of a run. Values that are not finite cannot be drawn; they are left out and counted.

    The smoothed line is there where smoothing was asked for; its points need not be those of the plain line.
    """

    run: str
    name: str
    axis: str
    points: int
    not_finite: int
    x: list[float]
    y: list[float]
    smoothed_x: list[float]
    smoothed_y: list[float]


class Lines(msgspec.Struct):
    """A metric as lines."""

    lines: list[Line]


class Band(msgspec.Struct):
    """Mean, standard deviation and range of a metric over the runs of a group along x; null where there is none.

    They are those of the finite values, which ``n`` runs have; the others are counted. With smoothing, each run is
    smoothed first.
    """

    key: list[str | None]
    axis: str
    points: int
    not_finite: int
    x: list[float]
    mean: list[float | None]
    std: list[float | None]
    min: list[float | None]
    max: list[float | None]
    n: list[int]


class Bands(msgspec.Struct):
    """A metric as bands; where that makes no sense there are none, and the problem says why."""

    bands: list[Band]
    problem: str


def _series(listing: Listing, values: Values) -> Lines:
    found = listing.some(values["run"]).series(
        [values["name"]],
        x=values["x"],
        axis=values["axis"],
        max_points=values["max_points"],
        between=(values["first_x"], values["last_x"]),
        smoothing=values["smoothing"],
    )
    columns = ("run", "name", "axis", "points", "not_finite", "x", "y", "smoothed_x", "smoothed_y")
    return Lines([Line(**{name: getattr(each, name) for name in columns}) for each in found])


def _bands(listing: Listing, values: Values) -> Bands:
    found = listing.some(values["run"]).bands(
        values["name"],
        values["by"] or "arm",
        x=values["x"],
        axis=values["axis"],
        max_points=values["max_points"],
        between=(values["first_x"], values["last_x"]),
        smoothing=values["smoothing"],
    )
    columns = ("axis", "points", "not_finite", "x", "mean", "std", "min", "max", "n")
    bands = [Band(key=list(band.key), **{name: getattr(band, name) for name in columns}) for band in found.bands]
    return Bands(bands, found.problem)


ENDPOINTS = (
    Endpoint("/api/series", "A metric of some runs as lines.", Lines, _series, _DRAWN),
    Endpoint("/api/bands", "A metric over the repeats of groups of runs.", Bands, _bands, (*_DRAWN, _BY)),
)
