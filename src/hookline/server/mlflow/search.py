"""Searches of MLflow's clients: filters like ``metrics.loss < 1 and params.lr = '0.1'``, orders, and pages.

The comparisons are those of MLflow: numbers with ``= != < <= > >=``, texts with ``= != LIKE ILIKE``, lists with ``IN``
and ``NOT IN``, and ``IS NULL`` and ``IS NOT NULL``, joined by ``and``. A missing value matches ``IS NULL`` only.
The parts of a pattern are searched one after the other: a single regular expression could take forever on hostile
input.
"""

import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from hookline.server.mlflow.messages import INVALID, MlflowError

MAX_FILTER = 10_000
MAX_PAGE = 1000
"""The most results of one page."""
_KINDS = {
    **dict.fromkeys(("metric", "metrics"), "metric"),
    **dict.fromkeys(("param", "params", "parameter", "parameters"), "param"),
    **dict.fromkeys(("tag", "tags"), "tag"),
    **dict.fromkeys(("attribute", "attributes", "attr", "run"), "attribute"),
    **dict.fromkeys(("dataset", "datasets"), "dataset"),
}
_ALIASES = {"created": "start_time", "Created": "start_time", **dict.fromkeys(("run name", "Run name"), "run_name")}
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'[^']*'|"[^"]*")|(?P<sign>!=|<=|>=|[=<>(),])"""
    r"""|(?P<word>(?:[^\s'"`=!<>(),]|`[^`]*`|(?<=\.)"[^"]*"|(?<=\.)'[^']*')+))"""
)
_ORDERED: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

T = TypeVar("T")


@dataclass(slots=True)
class Entity:
    """A run, an experiment or a model, as seen by a search.

    Attributes:
        attributes: Its own values, by name; None for one that it does not have.
        datasets: The names, the digests and the contexts of its data sets.
    """

    attributes: Mapping[str, Any]
    metrics: Mapping[str, float] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    datasets: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def value(self, kind: str, key: str) -> Any:
        """A value by its kind and name; None if there is none."""
        held: Mapping[str, Mapping[str, Any]] = {
            "metric": self.metrics,
            "param": self.params,
            "tag": self.tags,
            "attribute": self.attributes,
            "dataset": self.datasets,
        }
        return held[kind].get(key)


class Comparison(NamedTuple):
    """A part of a filter."""

    kind: str
    key: str
    sign: str
    value: Any

    def holds(self, entity: Entity) -> bool:
        """Whether an entity matches."""
        found = entity.value(self.kind, self.key)
        if self.sign in ("IS NULL", "IS NOT NULL"):
            return (found is None) == (self.sign == "IS NULL")
        if self.kind == "dataset":
            return any(self._compare(each) for each in found or ())
        return found is not None and self._compare(found)

    def _compare(self, found: Any) -> bool:
        if self.sign in ("IN", "NOT IN"):
            return (str(found) in self.value) == (self.sign == "IN")
        if self.sign in ("LIKE", "ILIKE"):
            return is_like(str(found), str(self.value), ignore_case=self.sign == "ILIKE")
        return _ORDERED[self.sign](found, self.value)


def parse_filter(text: str, attributes: Iterable[str], numbers: Iterable[str] = ()) -> list[Comparison]:
    """Parse a filter.

    Args:
        attributes: The names of attributes, which may also be given without a kind.
        numbers: Those of them that are numbers.

    Raises:
        MlflowError: It is not one.
    """
    if len(text) > MAX_FILTER:
        raise MlflowError(INVALID, f"The filter has {len(text):,} characters; at most {MAX_FILTER:,} are accepted.")
    tokens = _tokens(text)
    found: list[Comparison] = []
    while tokens:
        kind, key = _name(_next(tokens, text), set(attributes), text)
        sign = _sign(tokens, text)
        value: Any = None
        if sign in ("IN", "NOT IN"):
            value = _list(tokens, text)
        elif sign not in ("IS NULL", "IS NOT NULL"):
            is_number = kind == "metric" or (kind == "attribute" and key in set(numbers))
            value = _value(_next(tokens, text), sign, text, is_number=is_number)
        found.append(Comparison(kind, key, sign, value))
        if tokens and (_next(tokens, text).upper() != "AND" or not tokens):
            raise _error(text, "comparisons are joined by 'and'")
    return found


class Order(NamedTuple):
    """A part of an order."""

    kind: str
    key: str
    is_descending: bool


def parse_order(given: Sequence[Any], attributes: Iterable[str]) -> list[Order]:
    """Parse an order: texts like ``metrics.loss DESC``, or objects with ``field_name`` and ``ascending``.

    Raises:
        MlflowError: It is not one.
    """
    orders = []
    for each in given[:100]:
        if isinstance(each, dict):
            text, is_descending = str(each.get("field_name", "")), not each.get("ascending", True)
        else:
            text, is_descending = str(each).strip(), False
            head, _, last = text.rpartition(" ")
            if last.upper() in ("ASC", "DESC") and head:
                text, is_descending = head.strip(), last.upper() == "DESC"
        tokens = _tokens(text)
        kind, key = _name(_next(tokens, text), set(attributes), text)
        if tokens:
            raise _error(text, "give a name, and ASC or DESC")
        orders.append(Order(kind, key, is_descending))
    return orders


def ordered(found: Sequence[tuple[Entity, T]], orders: Sequence[Order]) -> list[T]:
    """Sort entities; those without a value come last, after those with NaN."""
    results = list(found)
    for order in reversed(orders):  # sorting is stable
        by_rank: list[list[tuple[Any, tuple[Entity, T]]]] = [[], [], []]
        for pair in results:
            value = pair[0].value(order.kind, order.key)
            rank = 2 if value is None else 1 if isinstance(value, float) and math.isnan(value) else 0
            by_rank[rank].append((value, pair))
        by_rank[0].sort(key=lambda each: each[0], reverse=order.is_descending)
        results = [pair for group in by_rank for _, pair in group]
    return [item for _, item in results]


def page_of(items: Sequence[T], max_results: int, token: str) -> tuple[Sequence[T], str]:
    """A page of results, and the token of the next one, if there is one.

    Raises:
        MlflowError: There is no such page.
    """
    if token and not (token.isascii() and token.isdigit() and len(token) < 16):
        raise MlflowError(INVALID, f"page_token={token!r:.80}: give the one of the page before.")
    first = int(token or 0)
    last = first + min(max_results or MAX_PAGE, MAX_PAGE)
    return items[first:last], str(last) if last < len(items) else ""


def is_like(text: str, pattern: str, *, ignore_case: bool = False) -> bool:
    """Whether a text matches a pattern of SQL: ``%`` is anything, ``_`` any one character.

    >>> is_like("resnet50", "res%_0"), is_like("ResNet", "res%"), is_like("ResNet", "res%", ignore_case=True)
    (True, False, True)
    """
    if ignore_case:
        text, pattern = text.lower(), pattern.lower()
    first, *others = pattern.split("%")
    if not others:
        return _fixed(first).fullmatch(text) is not None
    *middle, last = others
    at, end = len(first), len(text) - len(last)
    if end < at or _fixed(first).match(text) is None or _fixed(last).match(text, end) is None:
        return False
    for part in middle:  # each at its first position: a later one leaves less text for the others
        found = _fixed(part).search(text, at, end)
        if found is None:
            return False
        at = found.end()
    return True


@functools.lru_cache(maxsize=1024)
def _fixed(part: str) -> re.Pattern[str]:
    """Return a regular expression for a part of a pattern; its length is fixed, so it cannot backtrack."""
    return re.compile("".join("." if each == "_" else re.escape(each) for each in part), re.DOTALL)


def _tokens(text: str) -> list[str]:
    text = text.rstrip()
    if len(text) > MAX_FILTER:
        raise MlflowError(INVALID, f"The order has {len(text):,} characters; at most {MAX_FILTER:,} are accepted.")
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _error(text, f"{text[at : at + 20]!r} is not understood")
        tokens.append(match[0].strip())
        at = match.end()
    return tokens[::-1]  # taken from the end


def _next(tokens: list[str], text: str) -> str:
    if not tokens:
        raise _error(text, "it is not complete")
    return tokens.pop()


def _name(token: str, attributes: set[str], text: str) -> tuple[str, str]:
    plain = _unquoted(token)
    kind, _, key = token.partition(".")
    if plain in attributes or plain in _ALIASES:
        return "attribute", _ALIASES.get(plain, plain)
    known = _KINDS.get(_unquoted(kind))
    key = _unquoted(key)
    if known is None or not key:
        raise _error(
            text, f"{token!r:.80} is not a name: give metrics.<name>, params.<name>, tags.<name> or an attribute"
        )
    if known == "attribute":
        key = _ALIASES.get(key, key)
        if key not in attributes:
            raise _error(text, f"there is no attribute {key!r:.80}; there are {', '.join(sorted(attributes))}")
    return known, key


def _sign(tokens: list[str], text: str) -> str:
    sign = _next(tokens, text).upper()
    if sign in _ORDERED or sign in ("LIKE", "ILIKE", "IN"):
        return sign
    if sign == "NOT" and _next(tokens, text).upper() == "IN":
        return "NOT IN"
    if sign == "IS":
        following = _next(tokens, text).upper()
        if following == "NOT":
            sign, following = "IS NOT", _next(tokens, text).upper()
        if following == "NULL":
            return f"{sign} NULL"
    raise _error(text, f"{sign!r:.80} is not a comparison")


def _value(token: str, sign: str, text: str, *, is_number: bool) -> Any:
    if is_number:
        try:
            return float(_unquoted(token))
        except ValueError:
            raise _error(text, f"{token!r:.80} is not a number") from None
    if sign not in ("=", "!=", "LIKE", "ILIKE"):
        raise _error(text, f"{sign} compares numbers only")
    if token[0] not in "'\"":
        raise _error(text, f"{token!r:.80} is a text: put it in quotes")
    return _unquoted(token)


def _list(tokens: list[str], text: str) -> set[str]:
    if _next(tokens, text) != "(":
        raise _error(text, "give a list in parentheses")
    values: set[str] = set()
    while True:
        values.add(_unquoted(_next(tokens, text)))
        following = _next(tokens, text)
        if following == ")":
            return values
        if following != ",":
            raise _error(text, "separate the values of a list by commas")


def _unquoted(token: str) -> str:
    return token[1:-1] if len(token) > 1 and token[0] == token[-1] and token[0] in "`'\"" else token


def _error(text: str, problem: str) -> MlflowError:
    return MlflowError(INVALID, f"The filter or order {text!r:.300} is not valid: {problem}.")
