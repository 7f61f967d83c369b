"""The record types, and their encoding as lines of a journal.

A record is one JSON object with a ``kind``. JSON has no NaN: floats that are not finite are written as the strings
``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, and every reader returns them as floats. So does a metric whose value was
one of these strings.

A journal adds two fields to the end of each line, which stays one JSON object:
``{"kind":"metrics",...,"#":12,"crc":"3a20035f"}``. ``#`` numbers the lines of a writer from zero, through all of its
files. ``crc`` is the CRC-32 of the line without the two fields, seeded with the number, so it covers both. `decode`
checks it. Lines of version 0.1 have neither field and are read without a check.
"""

import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec


class Record(msgspec.Struct, tag_field="kind", omit_defaults=True, kw_only=True):
    """The fields of all records: when it was written, in seconds since 1970."""

    time: float = 0.0


class Metrics(Record, tag="metrics"):
    """Values recorded together at a step of an axis (``train``, ``eval``, ``rollout``)."""

    step: int
    values: dict[str, Any]
    axis: str = "train"


class Sample(Record, tag="sample"):
    """One completion of a model: the prompt, the output and its rewards.

    Attributes:
        prompt_messages: The messages of a prompt that is a chat; ``prompt`` is their text.
        completion_messages: The messages of a completion that is a chat, with tool calls and their results.
        finish: Why the completion ended: ``stop``, ``length``, ...
        version: The version of the weights that generated it; the oldest of several.
        length: The number of its tokens.
        tokens: The blob with what is known about each token, see `hookline.Tokens`: ``blob``, ``size``, ``data``.
        rollout: Its name in the run, which `SampleUse` refers to.
        parent: The name of the sample that it was forked from.
        prompt_length: The number of tokens of the prompt.
        last_version: The newest version of the weights that generated it, if there were several.
        timings: Seconds by what they were spent on: ``generate``, ``score``, ...
    """

    step: int
    prompt: str = ""
    completion: str = ""
    expected: str | None = None
    reasoning: str | None = None
    answer: str | None = None
    rewards: dict[str, Any] = {}
    total: Any = None
    advantage: Any = None
    group: str | None = None
    lesson: str | None = None
    axis: str = "train"
    extra: dict[str, Any] = {}
    truncated: dict[str, int] = {}
    prompt_messages: list[Any] | None = None
    completion_messages: list[Any] | None = None
    finish: str | None = None
    version: int | None = None
    length: int | None = None
    tokens: dict[str, Any] | None = None
    rollout: str | None = None
    parent: str | None = None
    prompt_length: int | None = None
    last_version: int | None = None
    timings: dict[str, float] = {}


class SampleUse(Record, tag="sample_use"):
    """How a training step used samples, which were recorded before it.

    Attributes:
        rollouts: The names of the samples: their ``rollout``.
        outcome: ``learnt``, or why nothing was learnt from them: ``stale`` (their weights were too old),
            ``equal_rewards`` (so had their group) or ``surplus`` (the batch was full).
        tokens: The blobs with what the step computed for each token, by the name of the sample.
    """

    step: int
    rollouts: list[str]
    outcome: str = "learnt"
    axis: str = "train"
    tokens: dict[str, dict[str, Any]] = {}


class Rewards(Record, tag="rewards"):
    """The values of one reward function for a batch."""

    step: int
    name: str
    values: list[Any]
    samples: list[str] = []


class Status(Record, tag="status"):
    """The status of a run (``running``, ``finished``, ``failed``, ...) with a message and data."""

    status: str
    message: str = ""
    step: int | None = None
    data: dict[str, Any] = {}


class Event(Record, tag="event"):
    """Something that happened: ``checkpoint``, ``eval``, ``hook_error``, ``resume``, ``stop``, ``hooks_plan``, ..."""

    name: str
    step: int | None = None
    data: dict[str, Any] = {}


class LogLine(Record, tag="log"):
    """A line of the standard library's logging."""

    level: str
    logger: str
    message: str
    step: int | None = None


class ConsoleLine(Record, tag="console"):
    """A line that the process, its C code or its children printed.

    Attributes:
        stream: ``stdout`` or ``stderr``; ``note`` for what hookline says about the recording.
        partial: Whether the line had no end yet. A later line of its stream replaces it.
        end: The offset after the line in what its stream printed; 0 if it is not known.
    """

    text: str
    stream: str = "stdout"
    step: int | None = None
    partial: bool = False
    end: int = 0


class Media(Record, tag="media"):
    """An image, a histogram, a file, ...: what it is, and the blob that holds it.

    Attributes:
        type: ``image``, ``audio``, ``video``, ``histogram``, ``plot``, ``figure``, ``html``, ``markdown``, ``text`` or
            ``file``.
        index: The position in a list that was logged under one name.
        blob: The SHA-256 of the content; empty where ``data`` holds all of it, as for a histogram.
        size: The size of the blob in bytes.
        format: How the blob is encoded, as a file's suffix: ``png``, ``wav``, ...
        data: Facts of this type: width and height, the counts of a histogram, ...
    """

    step: int
    name: str
    type: str
    axis: str = "train"
    index: int = 0
    blob: str = ""
    size: int = 0
    format: str = ""
    caption: str = ""
    data: dict[str, Any] = {}


class TableRows(Record, tag="table"):
    """Rows of a table, in the order in which they were added.

    A cell is a plain value, or ``{"media": {...}}`` with the fields of `Media` from ``type`` on.

    Attributes:
        table: The id of the table: one name may have several, logged at different steps.
        start: The number of the first of these rows in the table.
    """

    step: int
    name: str
    table: str
    columns: list[str]
    rows: list[list[Any]]
    start: int = 0
    axis: str = "train"


AnyRecord: TypeAlias = (
    Metrics | Sample | SampleUse | Rewards | Status | Event | LogLine | ConsoleLine | Media | TableRows
)

HOOKS_PLAN, HOOKS_COST = "hooks_plan", "hooks_cost"
"""Events with the order of subscribers, and with the cost of each at the end of the run."""
RUN_RESULT = "run_result"
"""The event with the result of an experiment's run, recorded before its final status."""
HYPERPARAMETERS = "hyperparameters"
"""The event with settings that were added to a run's configuration after it started."""
SUMMARY = "summary"
"""The event with values that the user put into a run's summary."""
NOTES = "notes"
"""The event for a change of a run's notes."""
DESCRIPTION = frozenset({HYPERPARAMETERS, SUMMARY, NOTES})
"""Events that mean that ``run.json`` was changed."""
MEDIA_ERROR, MEDIA_LOST = "media_error", "media_lost"
"""Events for media that could not be recorded: one that was not valid, and how many had no room in all."""
FAILURE, INTERRUPT = "failure", "interrupt"
"""Events with the traceback and the last console lines of a failed run, and with where a run was interrupted."""
ARTIFACT_TAGGED, RANK_ENVIRONMENT = "artifact_tagged", "environment"
MLFLOW = "mlflow"
"""The event for what a client of MLflow has changed about a run that a server records for it."""
BOOKKEEPING = frozenset(
    {HOOKS_PLAN, HOOKS_COST, RUN_RESULT, SUMMARY, NOTES, FAILURE, INTERRUPT, ARTIFACT_TAGGED, RANK_ENVIRONMENT, MLFLOW}
)
"""Events for the store and the page; sinks that report progress to people leave them out."""

MAX_DEPTH = 100
"""How deeply a record may be nested: deeper ones could exhaust the stack of a program that walks them."""
_MAX_VALUE_DEPTH = 90
_MAX_INTEGER_BITS = 10_000
"""Python refuses to parse integers with more digits than about this."""

SEAL = b',"#":%d,"crc":"%x"}'
"""Replaces the closing brace of a journal's line: its number, its checksum, the closing brace."""
_SEAL = re.compile(rb',"#":(\d{1,20}),"crc":"([0-9a-f]{1,8})"\}\Z')
_DAMAGED_SEAL = re.compile(rb',"#":\d{1,20}.{1,18}\Z|,"crc":"[0-9a-f]{1,8}"\}\Z', re.DOTALL)
"""A seal with a changed byte. Without this pattern, such a line would count as one of version 0.1."""
_MAX_SEAL_BYTES = 45

_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NEED_NO_PARSING = frozenset({str, dict, list}).isdisjoint
"""Whether values of these types neither are nor contain a non-finite name: nearly always, and cheap to check."""

_decoder = msgspec.json.Decoder(AnyRecord)
encode: Callable[[Record], bytes] = msgspec.json.Encoder().encode
"""Encode a record as one line of JSON without the newline. Never fails on values that went through `clean`."""


class DamagedLineError(msgspec.DecodeError):
    """A line does not have the bytes that were written."""


def seal_line(line: bytes, number: int) -> bytes:
    """Add the number and the checksum to a line; `Journal.append` does the same without a call."""
    return line[:-1] + SEAL % (number, zlib.crc32(line, number))


def line_number(line: bytes) -> int | None:
    """Check a journal's line and return its number; None for a line of version 0.1.

    Raises:
        DamagedLineError: Bytes of the line changed since it was written.
    """
    start = max(0, len(line) - _MAX_SEAL_BYTES)
    seal = _SEAL.search(line, start)
    if seal is None:
        if _DAMAGED_SEAL.search(line, start):
            raise DamagedLineError("its checksum is malformed")
        return None
    number = int(seal[1])
    # The checksum is that of the line as it was encoded, with its closing brace, whose place the seal has taken.
    if zlib.crc32(b"}", zlib.crc32(line[: seal.start()], number)) != int(seal[2], 16):
        raise DamagedLineError("its checksum is wrong")
    return number


def decode(line: bytes) -> AnyRecord:
    """Return the record in a line.

    Raises:
        msgspec.DecodeError: The line is not a record: damaged, not JSON, not UTF-8, nested too deeply, or of another
            shape.
    """
    return decode_numbered(line)[1]


def decode_numbered(line: bytes) -> tuple[int | None, AnyRecord]:
    """Return the number of a journal's line, as `line_number` does, and the record in it."""
    number = line_number(line)
    try:
        record: AnyRecord = _decoder.decode(line)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
    # Brackets in texts count as well: the exact check is slow, and this rules it out for nearly every line.
    if line.count(b"{") + line.count(b"[") > MAX_DEPTH and is_too_deep(msgspec.json.decode(line)):
        raise msgspec.DecodeError(f"It is nested more than {MAX_DEPTH} levels deep.")
    match record:
        case Metrics():
            _parse_items(record.values)
        case Sample():
            _parse_items(record.rewards)
            _parse_items(record.extra)
            record.total, record.advantage = parse_nonfinite(record.total), parse_nonfinite(record.advantage)
        case Rewards():
            _parse_items(record.values)
        case Status() | Event() | Media():
            _parse_items(record.data)
        case TableRows():
            _parse_items(record.rows)
    return number, record


def is_too_deep(value: Any) -> bool:
    """Return whether a JSON value is nested more than `MAX_DEPTH` levels deep."""
    level = [value]
    for _ in range(MAX_DEPTH):  # level by level: recursion is what this protects from
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [item for items in inner for item in items]
        if not level:
            return False
    return True


def parse_nonfinite(value: Any) -> Any:
    """Return the float that ``"NaN"``, ``"Infinity"`` or ``"-Infinity"`` stands for; any other value unchanged."""
    return _NONFINITE.get(value, value) if isinstance(value, str) else value


def _parse_items(values: dict[str, Any] | list[Any]) -> None:
    """Parse non-finite names in place, at any depth."""
    is_dict = isinstance(values, dict)
    if _NEED_NO_PARSING(map(type, values.values() if is_dict else values)):  # type: ignore[union-attr]
        return
    items: Iterable[tuple[Any, Any]] = values.items() if is_dict else enumerate(values)  # type: ignore[union-attr]
    for key, value in items:
        if isinstance(value, str):
            values[key] = _NONFINITE.get(value, value)
        elif isinstance(value, dict | list):
            _parse_items(value)


def clean(value: Any, room: int = _MAX_VALUE_DEPTH) -> Any:
    """Convert a value to one that JSON and UTF-8 can represent.

    Floats that are not finite become their names, lone surrogates a replacement character, tuples and sets lists.
    Integers of thousands of digits become infinite. Other objects become their `repr`.

    Args:
        room: How many levels of nesting are kept; deeper values are replaced by a note.
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _nonfinite_name(value)
    if isinstance(value, str):
        return valid_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_INTEGER_BITS else _nonfinite_name(value)
    if room <= 0 and isinstance(value, Mapping | list | tuple | set | frozenset):
        return "(nested too deeply)"
    if isinstance(value, Mapping):
        return {valid_text(str(key)): clean(item, room - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [clean(item, room - 1) for item in value]
    if callable(getattr(value, "tolist", None)):
        return clean(value.tolist(), room)
    return valid_text(repr(value))


def valid_text(value: str) -> str:
    """Replace characters that UTF-8 cannot encode (lone surrogates)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace").decode()
    return str(value)  # a plain str, also for a subclass


def _nonfinite_name(value: float) -> str:
    # By comparison, not math.isnan: a large int cannot be converted to a float.
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
