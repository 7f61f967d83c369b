"""The kinds of records by name, for sinks that take only some of them."""

from collections.abc import Iterable
from typing import get_args

from hookline.core.errors import OptionError, closest
from hookline.record.records import AnyRecord

KINDS = tuple(str(kind.__struct_config__.tag) for kind in get_args(AnyRecord))


def require_kinds(given: Iterable[str] | str) -> tuple[str, ...]:
    """The kinds that were given, each of which must be one."""
    kinds = (given,) if isinstance(given, str) else tuple(given)
    for kind in kinds:
        if kind not in KINDS:
            raise OptionError(f"{kind!r} is not a kind of record. {closest(kind, KINDS)}")
    return kinds
