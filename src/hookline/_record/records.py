"""The record types: what one line of a journal can be.

A record is one JSON object with a ``kind``. JSON has no NaN: floats that are not finite are written
as the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` and come back as floats from every
reader; a metric whose value is one of these three strings comes back as a float, too.

A journal puts two more fields at the end of each line, and the line stays one JSON object:
``{"kind":"metrics",...,"#":12,"crc":"3a20035f"}``. ``#`` is the number of the line among those of its writer, from zero
and through all its files; ``crc`` is the CRC-32 of the line without the two fields, begun with the number, so that it
covers both. `decode` checks it. Lines of version 0.1 have neither and are read as they are.
"""

import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec


class Record(msgspec.Struct, tag_field="kind", omit_defaults=True, kw_only=True):
    """What all records have: when it was written, in seconds since 1970."""

    time: float = 0.0


class Metrics(Record, tag="metrics"):
    """Values recorded together at a step of an axis (``train``, ``eval``, ``rollout``)."""

    step: int
    values: dict[str, Any]
    axis: str = "train"


class Sample(Record, tag="sample"):
    """One completion: what was asked, what came, how it was rewarded."""

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


class Rewards(Record, tag="rewards"):
    """The values that one reward function gave."""

    step: int
    name: str
    values: list[Any]
    samples: list[str] = []


class Status(Record, tag="status"):
    """Where a run is: a word (``running``, ``finished``, ``failed``, ...), and what goes with it."""

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


HOOKS_PLAN, HOOKS_COST = "hooks_plan", "hooks_cost"
"""The events that say in which order subscribers run, and what each has cost when the run ends."""
RUN_RESULT = "run_result"
"""The event that says what a run of an experiment came to, before it says how it ended."""
HYPERPARAMETERS = "hyperparameters"
"""The event that says which settings were added to the configuration of a run after it had begun."""
SUMMARY = "summary"
"""The event that says what a user put into the summary of a run."""
NOTES = "notes"
"""The event that says that the notes of a run were changed."""
DESCRIPTION = frozenset({HYPERPARAMETERS, SUMMARY, NOTES})
"""Events that say that ``run.json`` was changed."""
BOOKKEEPING = frozenset({HOOKS_PLAN, HOOKS_COST, RUN_RESULT, SUMMARY, NOTES})
"""Events for the store and the page: sinks that tell people what happens leave them out."""

AnyRecord: TypeAlias = Metrics | Sample | Rewards | Status | Event | LogLine

MAX_DEPTH = 100
"""How many levels deep a record may be nested: deeper than that it could end whoever works through it."""
_DEEPEST_VALUE = 90
_MOST_BITS = 10_000
"""Of a whole number: its digits could not be read back."""

_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_PLAIN = frozenset({str, dict, list}).isdisjoint
"""Whether values of some types can be neither a name nor hold one: nearly always, and it is quick to see."""
_decoder = msgspec.json.Decoder(AnyRecord)


SEAL = b',"#":%d,"crc":"%x"}'
"""What a line of a journal has in place of its closing brace: its number, the checksum, the closing brace."""
_SEAL = re.compile(rb',"#":(\d{1,20}),"crc":"([0-9a-f]{1,8})"\}\Z')
_SPOILED_SEAL = re.compile(rb',"#":\d{1,20}.{1,18}\Z|,"crc":"[0-9a-f]{1,8}"\}\Z', re.DOTALL)
"""A seal of which a byte changed: without this, such a line would be taken for one of version 0.1."""
_SEAL_BYTES = 45
"""More than the longest seal has."""

encode: Callable[[Record], bytes] = msgspec.json.Encoder().encode
"""A record as one line of JSON, without the newline. Never fails on a value that `clean` has seen."""


def seal_line(line: bytes, number: int) -> bytes:
    """A line with its number and its checksum; `Journal.append` does the same without a call."""
    return line[:-1] + SEAL % (number, zlib.crc32(line, number))


def line_number(line: bytes) -> int | None:
    """The number of a journal's line, once its checksum is known to be right; None for a line of version 0.1.

    Raises:
        DamagedLineError: Bytes of the line changed since it was written.
    """
    start = max(0, len(line) - _SEAL_BYTES)
    seal = _SEAL.search(line, start)
    if seal is None:
        if _SPOILED_SEAL.search(line, start):
            raise DamagedLineError("its checksum is spoiled")
        return None
    number = int(seal[1])
    if zlib.crc32(b"}", zlib.crc32(line[: seal.start()], number)) != int(seal[2], 16):
        raise DamagedLineError("its checksum is wrong")
    return number


class DamagedLineError(msgspec.DecodeError):
    """A line does not have the bytes that were written."""


def decode(line: bytes) -> AnyRecord:
    """The record in a line.

    Raises:
        msgspec.DecodeError: The line is no record: damaged, no JSON, not in UTF-8, nested too deeply, or of another
            shape.
    """
    return decode_numbered(line)[1]


def decode_numbered(line: bytes) -> tuple[int | None, AnyRecord]:
    """The number of a journal's line and the record in it, as `line_number` and `decode` give them."""
    number = line_number(line)
    try:
        record: AnyRecord = _decoder.decode(line)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
    if line.count(b"{") + line.count(b"[") > MAX_DEPTH and is_too_deep(msgspec.json.decode(line)):
        raise msgspec.DecodeError(f"It is nested more than {MAX_DEPTH} levels deep.")
    match record:
        case Metrics():
            _restore(record.values)
        case Sample():
            _restore(record.rewards)
            _restore(record.extra)
            record.total, record.advantage = parse_nonfinite(record.total), parse_nonfinite(record.advantage)
        case Rewards():
            _restore_list(record.values)
        case Status() | Event():
            _restore(record.data)
        case LogLine():
            pass
    return number, record


def is_too_deep(value: Any) -> bool:
    """Whether a value of JSON is nested more than `DEEPEST` levels deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [item for items in inner for item in items]
        if not level:
            return False
    return True


def parse_nonfinite(value: Any) -> Any:
    """The float that one of the three names stands for; anything else as it is."""
    return _NAMES.get(value, value) if isinstance(value, str) else value


def _restore(values: dict[str, Any]) -> None:
    if not _PLAIN(map(type, values.values())):
        _restore_items(values, values.items())


def _restore_list(values: list[Any]) -> None:
    if not _PLAIN(map(type, values)):
        _restore_items(values, enumerate(values))


def _restore_items(values: Any, items: Iterable[tuple[Any, Any]]) -> None:
    for key, value in items:
        if isinstance(value, str):
            values[key] = _NAMES.get(value, value)
        elif isinstance(value, dict):
            _restore(value)
        elif isinstance(value, list):
            _restore_list(value)


def clean(value: Any, room: int = _DEEPEST_VALUE) -> Any:
    """``value`` with everything in it that JSON or UTF-8 cannot hold put in a form that it can.

    Floats that are not finite become their names, lone surrogates a replacement character, tuples
    and sets lists; what is no value at all becomes its `repr`. Whole numbers of thousands of digits become infinite.

    Args:
        room: How many levels there may be; what lies below them is replaced by a text that says so.
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _name(value)
    if isinstance(value, str):
        return valid_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MOST_BITS else _name(value)
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
    """``value`` as UTF-8 can hold it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace").decode()
    return str(value)


def _name(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # a whole number may be no float
