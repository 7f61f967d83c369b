"""Endpoints for the rollout browser: samples, filter choices, reward histograms, and one prompt over time."""

from collections.abc import Sequence
from typing import Any

import msgspec

from hookline._record.records import clean
from hookline.server.endpoint import FIRST_STEP, LAST_STEP, RUN, Endpoint
from hookline.server.listing import Listing, Number, json_object
from hookline.server.parameters import Parameter, Values
from hookline.store import Runs
from hookline.store.query import reward_column, sample_conditions

ORDERS = ("-step", "step", "-reward", "reward", "-advantage", "advantage")
MAX_CHOICES = 200

_TEXT = Parameter("text", "string", "A text in the prompt or the completion, ignoring case.")
_LESSON = Parameter("lesson", "string", "The lesson or benchmark; * matches anything.")
_GROUP = Parameter("group", "string", "The group: the completions of one prompt.")
_AXIS = Parameter("axis", "string", "The axis: train, eval, rollout, final, ...")
_REWARD = Parameter("reward", "string", "Apply the limits to this reward function instead of the total.")
_LOW = Parameter("min_reward", "number", "The smallest reward.")
_HIGH = Parameter("max_reward", "number", "The largest reward.")
_FILTERS = (RUN, _TEXT, _LESSON, _GROUP, _AXIS, _REWARD, _LOW, _HIGH, FIRST_STEP, LAST_STEP)
_ORDER = Parameter(
    "order",
    "string",
    "The sort order; - sorts descending. NaN comes last.",
    default="-step",
    choices=ORDERS,
)
_LIMIT = Parameter("limit", "integer", "The maximum number of samples.", default=50, low=1, high=500)
_OFFSET = Parameter("offset", "integer", "How many samples to skip.", default=0, low=0)
_PROMPT = Parameter("prompt", "string", "The whole prompt.", required=True)
_BINS = Parameter("bins", "integer", "The maximum number of bars.", default=24, low=1, high=200)


class SampleRow(msgspec.Struct):
    """A sample; its reward is the total, or the sum of all rewards if no total was recorded."""

    id: str
    run: str
    axis: str
    step: int
    time: float
    prompt: str
    completion: str
    expected: str | None
    reasoning: str | None
    answer: str | None
    rewards: dict[str, Number]
    reward: Number
    advantage: Number
    group: str | None
    lesson: str | None
    extra: dict[str, Any]
    truncated: dict[str, Any]


class Samples(msgspec.Struct):
    """A page of samples, and their total number."""

    total: int
    samples: list[SampleRow]


class Choices(msgspec.Struct):
    """The values that samples can be filtered by."""

    lessons: list[str]
    axes: list[str]
    rewards: list[str]
    first_step: int | None
    last_step: int | None
    total: int


class Histogram(msgspec.Struct):
    """The number of samples per reward range; ``without`` counts those without a finite reward."""

    edges: list[float]
    counts: list[int]
    without: int


def _samples(listing: Listing, values: Values) -> Samples:
    page = {name: values[name] for name in ("order", "limit", "offset")}
    found = listing.some(values["run"]).samples(**_filters(values), **page)
    return Samples(found.total(), [_row(row) for row in found])


def _same_prompt(listing: Listing, values: Values) -> Samples:
    query = "SELECT * FROM samples WHERE prompt = ? ORDER BY step, time"
    found = listing.some(values["run"]).sql(query, [values["prompt"]])
    rows = found.rows()
    step = max(1, -(-len(rows) // values["limit"]))  # evenly over the training, including the last one
    kept = rows[::-1][::step][::-1]
    return Samples(len(rows), [_row(row) for row in kept])


def _choices(listing: Listing, values: Values) -> Choices:
    runs = listing.some(values["run"])
    [span] = runs.sql("SELECT min(step) AS low, max(step) AS high, count(*) AS total FROM samples").rows()
    rewards = "SELECT DISTINCT unnest(map_keys(rewards)) AS name FROM samples ORDER BY name"
    named = [row["name"] for row in runs.sql(rewards, limit=MAX_CHOICES)]
    return Choices(_distinct(runs, "lesson"), _distinct(runs, "axis"), named, span["low"], span["high"], span["total"])


def _distinct(runs: Runs, column: str) -> list[str]:
    query = f"SELECT DISTINCT {column} AS name FROM samples WHERE {column} IS NOT NULL ORDER BY name"  # noqa: S608
    return [row["name"] for row in runs.sql(query, limit=MAX_CHOICES)]


def _histogram(listing: Listing, values: Values) -> Histogram:
    column, conditions = reward_column(values["reward"]), sample_conditions(**_filters(values))
    runs = listing.some(values["run"])
    inner = f"SELECT CAST({column} AS DOUBLE) AS r FROM samples {conditions}"  # noqa: S608 - constants only
    [span] = runs.sql(
        f"SELECT min(r) FILTER (isfinite(r)) AS low, max(r) FILTER (isfinite(r)) AS high, "  # noqa: S608
        f"count(*) FILTER (r IS NULL OR NOT isfinite(r)) AS without FROM ({inner})",
        conditions.parameters,
    ).rows()
    edges = _edges(span["low"], span["high"], values["bins"])
    if len(edges) < 2:
        return Histogram([], [], span["without"])
    width = edges[1] - edges[0]
    bar = f"least({len(edges) - 2}, greatest(0, CAST(floor((r - ?) / ?) AS BIGINT)))"
    bars = runs.sql(
        f"SELECT {bar} AS bar, count(*) AS n FROM ({inner}) WHERE isfinite(r) GROUP BY bar",  # noqa: S608
        [edges[0], width, *conditions.parameters],
    )
    counts = {row["bar"]: row["n"] for row in bars}
    return Histogram(edges, [counts.get(bar, 0) for bar in range(len(edges) - 1)], span["without"])


def _filters(values: Values) -> dict[str, Any]:
    same = ("text", "lesson", "group", "axis", "reward", "min_reward", "max_reward")
    return {name: values[name] for name in same} | {"steps": (values["first_step"], values["last_step"])}


def _edges(low: float | None, high: float | None, bins: int) -> list[float]:
    """The edges of equal ranges; a single value gets one range around it."""
    if low is None or high is None:
        return []
    if not high - low > abs(high) * 1e-12:
        half = max(0.5, abs(low) * 1e-3)
        return [low - half, low + half]
    # not low + width * i: the difference of two large numbers may be infinite
    return [low * (1 - i / bins) + high * (i / bins) for i in range(bins)] + [high]


def _row(row: dict[str, Any]) -> SampleRow:
    fields: dict[str, Any] = {name: row[name] for name in _PLAIN}
    numbers = {name: clean(row[name]) for name in ("reward", "advantage", "rewards")}
    return SampleRow(**fields, **numbers, extra=json_object(row["extra"]), truncated=json_object(row["truncated"]))


_PLAIN: Sequence[str] = (
    *("id", "run", "axis", "step", "time", "prompt", "completion"),
    *("expected", "reasoning", "answer", "group", "lesson"),
)

ENDPOINTS = (
    Endpoint("/api/samples", "Samples, page by page.", Samples, _samples, (*_FILTERS, _ORDER, _LIMIT, _OFFSET)),
    Endpoint("/api/samples/choices", "The values that samples can be filtered by.", Choices, _choices, (RUN,)),
    Endpoint("/api/samples/histogram", "The distribution of rewards.", Histogram, _histogram, (*_FILTERS, _BINS)),
    Endpoint("/api/samples/prompt", "One prompt over the training.", Samples, _same_prompt, (RUN, _PROMPT, _LIMIT)),
)
