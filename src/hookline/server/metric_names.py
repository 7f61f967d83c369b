"""How many names metrics may have that others send: in one row, and in one run.

Everybody who looks at a run pays for its names, in lists, charts and queries. Which names a run has is kept in a file
beside its journal, so that any server on the same root knows. Memory for the check is bounded: a row is decoded only
once it is known to have few enough names.
"""

import io
from collections.abc import Iterable
from typing import Any

import msgspec

from hookline.core.errors import HooklineError

ROW_NAMES = 10_000
RUN_NAMES = 20_000
RUN_NAMES_BYTES = 2 << 20
"""How long the names of a run are, in all."""
NAMES_FILE = ".metric-names.json"
_OTHER_TEXTS = 16
"""More than a row has besides its metrics: names of fields, its kind and its axis."""


class NamesError(HooklineError, ValueError):
    """Rows have more metrics than are taken; ``facts`` says which are, for programs."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = {"names_per_row": ROW_NAMES} | facts


class _Kind(msgspec.Struct):
    kind: str = ""


class _Row(msgspec.Struct):
    kind: str = ""
    values: dict[str, msgspec.Raw] = {}


_kind = msgspec.json.Decoder(_Kind)
_row = msgspec.json.Decoder(_Row)


def names_of(lines: bytes) -> dict[str, None]:
    """The names of the metrics in lines of a journal, in their order; no more than a run may have, and one.

    Raises:
        NamesError: A row has too many.
    """
    names: dict[str, None] = {}
    for line in io.BytesIO(lines):
        try:
            if line.count(b'"') > 4 * ROW_NAMES:
                _check_texts(line)
            row = _row.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # readers pass over it
            continue
        if row.kind != "metrics" or row.values.keys() <= names.keys():
            continue
        if len(row.values) > ROW_NAMES:
            raise _too_many_in_a_row(f"{len(row.values):,}")
        names |= dict.fromkeys(row.values)
        if len(names) > RUN_NAMES:
            break
    return names


def _check_texts(line: bytes) -> None:
    """Refuse a row with so many texts in it that it has too many metrics, before it is decoded."""
    texts = line.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"') // 2
    if texts > 2 * ROW_NAMES + _OTHER_TEXTS and _kind.decode(line).kind == "metrics":  # a metric has two at most
        raise _too_many_in_a_row(f"more than {ROW_NAMES:,}")


def _too_many_in_a_row(count: str) -> NamesError:
    return NamesError(f"A row has {count} metrics: no more than {ROW_NAMES:,} are taken.")


def joined(known: list[str], names: Iterable[str]) -> tuple[list[str], bool]:
    """The names of a run with those of new rows, as many as it may have, and whether those are all."""
    own, size = dict.fromkeys(known), sum(map(len, known))
    for name in names:
        if name in own:
            continue
        size += len(name)
        if len(own) >= RUN_NAMES or size > RUN_NAMES_BYTES:
            return list(own), False
        own[name] = None
    return list(own), True


def too_many_in_a_run(names: list[str]) -> NamesError:
    """What is said where a run has all the names that it may have."""
    return NamesError(f"The run has {len(names):,} names of metrics: no others are taken.", names=names)
