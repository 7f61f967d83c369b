"""Endpoints for the rollout browser: samples, filter choices, reward histograms, and one prompt over time."""

import contextlib
from collections.abc import Hashable, Sequence
from typing import Any

import msgspec

from hookline._engine.errors import UnknownNameError
from hookline._record.blobs import BlobError, is_digest, read_blob
from hookline._record.records import clean
from hookline._record.tokens import MAX_CONTENT_BYTES, TokensError, TokenTable, read_tokens
from hookline.server.endpoint import (
    FIRST_STEP,
    LAST_STEP,
    RUN,
    Endpoint,
    Parameter,
    Values,
    records_endpoint,
    version_of_runs,
)
from hookline.server.listing import Listing, Number, json_object
from hookline.store import Runs
from hookline.store.annotations import ANNOTATIONS_FILE, LABELS
from hookline.store.query import CHATS, reward_column
from hookline.store.runs import SAMPLE_ORDERS
from hookline.store.sample_export import FORMATS
from hookline.store.search import MIN_CHARACTERS

ORDERS = ("-step", *(order for order in SAMPLE_ORDERS if order != "-step"))
MAX_CHOICES = 200
MAX_EXPORTED = 10_000

_TEXT = Parameter("text", "string", "A text in the prompt, the completion or its messages, ignoring case.")
_LESSON = Parameter("lesson", "string", "The lesson or benchmark; * matches anything.")
_GROUP = Parameter("group", "string", "The group: the completions of one prompt.")
_AXIS = Parameter("axis", "string", "The axis: train, eval, rollout, final, ...")
_REWARD = Parameter("reward", "string", "Limits and order apply to this reward function, not to the total.")
_LOW = Parameter("min_reward", "number", "The smallest reward.")
_HIGH = Parameter("max_reward", "number", "The largest reward.")
_ROLE = Parameter("role", "string", "The role of at least one message, such as tool.")
_FINISH = Parameter("finish", "string", "Why the completion ended: stop, length, ...")
_LABEL = Parameter("label", "string", "Its annotation.", choices=(*LABELS, "any"))
_RANGES = tuple(
    Parameter(f"{end}_{name}", "integer", f"The {word} {meaning}.")
    for name, meaning in (("version", "version of the weights"), ("length", "length of the completion"))
    for end, word in (("min", "smallest"), ("max", "largest"))
)
_MORE = (_ROLE, _FINISH, _LABEL, *_RANGES)
_FILTERS = (RUN, _TEXT, _LESSON, _GROUP, _AXIS, _REWARD, _LOW, _HIGH, FIRST_STEP, LAST_STEP, *_MORE)
_SAMPLE = Parameter("sample", "string", "The id of a sample.", required=True)
_ROLLOUT = Parameter("rollout", "string", "The name of a sample in its run: its rollout.", required=True)
_FORMAT = Parameter("format", "string", "The format of the rows.", default="sft", choices=FORMATS)
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
    prompt_messages: list[Any] | None
    completion_messages: list[Any] | None
    finish: str | None
    version: int | None
    length: int | None
    tokens: dict[str, Any] | None
    rollout: str | None
    parent: str | None
    prompt_length: int | None
    last_version: int | None
    timings: dict[str, Number]


class SampleUse(msgspec.Struct):
    """What a step of the training did with a sample: ``learnt``, ``stale``, ..."""

    step: int
    outcome: str


class SampleUses(msgspec.Struct):
    """The steps of the training that learnt from a sample, or left it out."""

    uses: list[SampleUse]


class Samples(msgspec.Struct):
    """A page of samples, and their total number."""

    total: int
    samples: list[SampleRow]
    note: str = ""


class LatestSamples(msgspec.Struct):
    """The latest samples of runs that take long to read; empty if `/api/samples` has them at once."""

    samples: list[SampleRow]


class FoundSample(msgspec.Struct):
    """A sample; None if it does not exist any more."""

    sample: SampleRow | None


class TokenColumns(msgspec.Struct):
    """What is known about each token of a sample: a number for each token by the name of the column."""

    count: int
    texts: list[str] | None
    ids: list[int] | None
    columns: dict[str, list[Number]]


class AnnotationRow(msgspec.Struct):
    """What somebody says about a sample."""

    run: str
    sample: str
    label: str
    note: str
    time: float


class Annotations(msgspec.Struct):
    """The annotations of some runs."""

    annotations: list[AnnotationRow]


class ExportedSamples(msgspec.Struct):
    """Samples as training data; ``left_out`` counts matching samples over the limit."""

    rows: list[dict[str, Any]]
    left_out: int


class Choices(msgspec.Struct):
    """The values that samples can be filtered by."""

    lessons: list[str]
    axes: list[str]
    rewards: list[str]
    roles: list[str]
    finishes: list[str]
    has_versions: bool
    has_lengths: bool
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
    runs = listing.some(values["run"])
    total, rows = runs.sample_page(**_filters(values), **page)
    note = runs.search_note if values["text"] and len(values["text"]) >= MIN_CHARACTERS else ""
    return Samples(total, [_row(row) for row in rows], note)


def _latest(listing: Listing, values: Values) -> LatestSamples:
    return LatestSamples([_row(row) for row in listing.some(values["run"]).unread_samples(values["limit"])])


def _sample(listing: Listing, values: Values) -> FoundSample:
    query = "SELECT * FROM samples WHERE id = ? LIMIT 1"
    rows = listing.some(values["run"]).sql(query, [values["sample"]]).rows()
    return FoundSample(_row(rows[0]) if rows else None)


def _uses(listing: Listing, values: Values) -> SampleUses:
    query = "SELECT step, outcome FROM sample_uses WHERE rollout = ? ORDER BY step, time"
    rows = listing.some(values["run"]).sql(query, [values["rollout"]], limit=MAX_CHOICES)
    return SampleUses([SampleUse(row["step"], row["outcome"]) for row in rows])


def _tokens(listing: Listing, values: Values) -> TokenColumns:
    runs = listing.some(values["run"])
    rows = runs.sql("SELECT run, tokens, rollout FROM samples WHERE id = ? LIMIT 1", [values["sample"]]).rows()
    facts = json_object(rows[0]["tokens"] or "{}") if rows else {}
    if not is_digest(str(facts.get("blob"))):
        raise UnknownNameError("No tokens were recorded for this sample.")
    run, rollout = rows[0]["run"], rows[0]["rollout"]
    try:
        found = _read_tokens(runs, run, facts["blob"])
    except BlobError:
        raise UnknownNameError("The tokens of this sample are missing or damaged.") from None
    if rollout is not None:
        query = (
            "SELECT tokens FROM sample_uses WHERE run = ? AND rollout = ? AND tokens IS NOT NULL "
            "ORDER BY step DESC, time DESC LIMIT 1"
        )
        for row in runs.sql(query, [run, rollout]):
            own = str(json_object(row["tokens"]).get("blob"))
            with contextlib.suppress(BlobError, TokensError):  # the sample's own columns are shown without them
                learnt = _read_tokens(runs, run, own) if is_digest(own) else found
                found.columns.update(learnt.columns if learnt.count == found.count else {})
    columns = {clean(name): [clean(value) for value in column] for name, column in found.columns.items()}
    return TokenColumns(found.count, found.texts, found.ids, columns)


def _read_tokens(runs: Runs, run: str, digest: str) -> TokenTable:
    return read_tokens(read_blob(runs[run].directory, digest, max_bytes=MAX_CONTENT_BYTES))


def _annotations(listing: Listing, values: Values) -> Annotations:
    found = listing.some(values["run"]).annotations()
    return Annotations([AnnotationRow(run, key, own.label, own.note, own.time) for (run, key), own in found.items()])


def _export(listing: Listing, values: Values) -> ExportedSamples:
    runs, filters = listing.some(values["run"]), _filters(values)
    total = runs.samples(**filters).total()
    rows = runs.export_samples(values["format"], limit=MAX_EXPORTED, order=values["order"], **filters)
    return ExportedSamples(clean(rows), max(0, total - MAX_EXPORTED))


def _version(listing: Listing, values: Values) -> Hashable:
    """Like `version_of_runs`, with the annotations if the answer depends on them."""
    marks: list[tuple[int, int]] = []
    if values["label"] is not None:
        for info in listing.some(values["run"]):
            with contextlib.suppress(OSError):
                found = (info.directory / ANNOTATIONS_FILE).lstat()
                marks.append((found.st_ino, found.st_mtime_ns))
    return version_of_runs(listing, values), tuple(marks)


def _same_prompt(listing: Listing, values: Values) -> Samples:
    query = "SELECT * FROM samples WHERE prompt = ? ORDER BY step, time"
    found = listing.some(values["run"]).sql(query, [values["prompt"]])
    rows = found.rows()
    step = max(1, -(-len(rows) // values["limit"]))  # evenly over the training, including the last one
    kept = rows[::-1][::step][::-1]
    return Samples(len(rows), [_row(row) for row in kept])


def _choices(listing: Listing, values: Values) -> Choices:
    runs = listing.some(values["run"])
    [span] = runs.sql(
        "SELECT min(step) AS low, max(step) AS high, count(*) AS total, count(version) AS versions FROM samples"
    ).rows()
    rewards = "SELECT DISTINCT unnest(map_keys(rewards)) AS name FROM samples ORDER BY name"
    named = [row["name"] for row in runs.sql(rewards, limit=MAX_CHOICES)]
    roles = " UNION ".join(
        f"SELECT unnest(json_extract_string({name}, '$[*].role')) AS name FROM samples"  # noqa: S608 - constants only
        for name in CHATS
    )
    distinct = f"SELECT DISTINCT name FROM ({roles}) WHERE name IS NOT NULL ORDER BY name"  # noqa: S608
    listed = runs.sql(distinct, limit=MAX_CHOICES)
    return Choices(
        _distinct(runs, "lesson"),
        _distinct(runs, "axis"),
        named,
        [row["name"] for row in listed],
        _distinct(runs, "finish"),
        span["versions"] > 0,
        span["total"] > 0,
        span["low"],
        span["high"],
        span["total"],
    )


def _distinct(runs: Runs, column: str) -> list[str]:
    query = f"SELECT DISTINCT {column} AS name FROM samples WHERE {column} IS NOT NULL ORDER BY name"  # noqa: S608
    return [row["name"] for row in runs.sql(query, limit=MAX_CHOICES)]


def _histogram(listing: Listing, values: Values) -> Histogram:
    runs = listing.some(values["run"])
    column, conditions = reward_column(values["reward"]), runs.sample_conditions(**_filters(values))
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
    same = ("text", "lesson", "group", "axis", "reward", "min_reward", "max_reward", "role", "finish", "label")
    ranges = {f"{name}s": (values[f"min_{name}"], values[f"max_{name}"]) for name in ("version", "length")}
    return {name: values[name] for name in same} | ranges | {"steps": (values["first_step"], values["last_step"])}


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
    numbers = {name: clean(row[name]) for name in ("reward", "advantage", "rewards", "timings")}
    fields |= {name: _messages(row[name]) for name in CHATS}
    tokens = None if row["tokens"] is None else json_object(row["tokens"])
    extra, truncated = json_object(row["extra"]), json_object(row["truncated"])
    return SampleRow(**fields, **numbers, tokens=tokens, extra=extra, truncated=truncated)


def _messages(text: str | None) -> list[Any] | None:
    found = None if text is None else json_object(f'{{"messages":{text}}}').get("messages")
    return found if isinstance(found, list) else None


_PLAIN: Sequence[str] = (
    *("id", "run", "axis", "step", "time", "prompt", "completion"),
    *("expected", "reasoning", "answer", "group", "lesson", "finish", "version", "length"),
    *("rollout", "parent", "prompt_length", "last_version"),
)


def _filtered(path: str, summary: str, reply: Any, answer: Any, parameters: Sequence[Parameter]) -> Endpoint:
    """An endpoint whose replies may depend on annotations."""
    return Endpoint(path, summary, reply, answer, parameters, _version, is_slow=True)


ENDPOINTS = (
    _filtered("/api/samples", "Samples, page by page.", Samples, _samples, (*_FILTERS, _ORDER, _LIMIT, _OFFSET)),
    Endpoint(
        "/api/samples/latest",
        "The latest samples, while all of them are still read.",
        LatestSamples,
        _latest,
        (RUN, _LIMIT),
    ),
    records_endpoint("/api/samples/sample", "One sample.", FoundSample, _sample, (RUN, _SAMPLE)),
    records_endpoint("/api/samples/tokens", "The tokens of a sample.", TokenColumns, _tokens, (RUN, _SAMPLE)),
    records_endpoint(
        "/api/samples/uses", "The steps of the training that used a sample.", SampleUses, _uses, (RUN, _ROLLOUT)
    ),
    Endpoint("/api/samples/annotations", "What people say about samples.", Annotations, _annotations, (RUN,)),
    Endpoint(
        "/api/samples/export",
        "Samples as training data.",
        ExportedSamples,
        _export,
        (*_FILTERS, _ORDER, _FORMAT),
        is_slow=True,
    ),
    records_endpoint("/api/samples/choices", "The values that samples can be filtered by.", Choices, _choices, (RUN,)),
    _filtered("/api/samples/histogram", "The distribution of rewards.", Histogram, _histogram, (*_FILTERS, _BINS)),
    records_endpoint(
        "/api/samples/prompt", "One prompt over the training.", Samples, _same_prompt, (RUN, _PROMPT, _LIMIT)
    ),
)
