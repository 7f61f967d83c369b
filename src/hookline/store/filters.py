"""The filter language for runs, shared by Python, the command line and the page.

    lr > 1e-4 and val/loss < 1.5 and tag = "ablation"
    status = failed or min(val/loss) is nan
    duration > 2h and not (name ~ "debug.*" or project in (scratch, tmp))

A comparison has a field on its left: an attribute of the run (``status``, ``name``, ``project``, ``step``,
``duration``, ``started``, ``tag``, ``host``, ``git``, ...), a setting of its configuration (``lr`` or
``config.optimizer.lr``), a value of its summary (``summary.best``), or a metric, which stands for its last value
(``val/loss`` or ``metric.lr``). ``min``, ``max``, ``mean``, ``first`` and ``last`` take a metric, and
``mean(loss, 100)`` is over its last 100 values. A name with other characters is written in backticks.

A quoted text alone, ``"nightly"``, is searched for in a run's id, name, tags, experiment, group, arm, stage and status.

Attributes come first, then settings, the summary and metrics: with the prefixes, any of them can be meant. A field that
a run does not have makes a comparison false; ``is missing`` tests for it. NaN compares false as well; ``is nan`` tests
for it.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

from hookline._engine.errors import HooklineError, closest
from hookline.store.columns import as_float
from hookline.store.run_summary import STATUSES

ATTRIBUTES: Final = (
    "id",
    "name",
    "project",
    "status",
    "message",
    "experiment",
    "group",
    "arm",
    "repeat",
    "stage",
    "seed",
    "started",
    "ended",
    "duration",
    "step",
    "num_steps",
    "last_seen",
    "host",
    "tag",
    "notes",
    "archived",
    "git",
)
"""The attributes of a run that a filter can name. ``tag`` has several values: one of them has to fit."""
FUNCTIONS: Final = ("last", "first", "min", "max", "mean")
PREFIXES: Final = ("config.", "summary.", "metric.")
MAX_LENGTH = 10_000
_MAX_DEPTH = 100
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?P<unit>[smhd])?(?![\w/]))
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<quoted>`[^`]+`)
    |(?P<name>[A-Za-z_][\w./:@-]*)
    |(?P<symbol><=|>=|!=|==|!~|[=<>~(),])
    )""",
    re.VERBOSE,
)
WORDS: Final = frozenset({"and", "or", "not", "in", "is", "contains", "true", "false", "none", "nan", "missing"})
_TIMES = ("started", "ended", "last_seen")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Duration(float):
    """A number that was written with a unit, in seconds."""


class FilterError(HooklineError, ValueError):
    """A filter that cannot be understood.

    Attributes:
        text: The filter.
        position: Where in the text the problem is.
        problem: The problem, without the text.
    """

    def __init__(self, text: str, position: int, problem: str) -> None:
        self.text, self.position, self.problem = text, position, problem
        start = max(0, position - 60)
        shown = text[start : position + 40].replace("\n", " ")
        super().__init__(f"{problem}\n  {shown}\n  {' ' * (position - start)}^")


class Field(NamedTuple):
    """The left side of a comparison.

    Attributes:
        function: The function of a metric; empty for the field itself.
        latest: How many of a metric's last values are used; None for all.
    """

    name: str
    position: int = 0
    function: str = ""
    latest: int | None = None


class Values(Protocol):
    """Gives the values of one run."""

    def get(self, field: Field) -> list[Any]:
        """The values of a field: none, one, or several for ``tag``."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A field compared with values."""

    field: Field
    test: Callable[[Any], bool]

    def matches(self, values: Values) -> bool:
        return any(self.test(value) for value in values.get(self.field))


_SEARCHED = ("id", "name", "tag", "experiment", "group", "arm", "stage", "status")


@dataclass(frozen=True, slots=True)
class Search:
    """A text that occurs in one of the names of a run."""

    text: str

    def matches(self, values: Values) -> bool:
        return any(self.text in str(value).lower() for name in _SEARCHED for value in values.get(Field(name)))


@dataclass(frozen=True, slots=True)
class Missing:
    """Whether a run has no value for a field."""

    field: Field

    def matches(self, values: Values) -> bool:
        return not values.get(self.field)


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite of an expression."""

    expression: "Expression"

    def matches(self, values: Values) -> bool:
        return not self.expression.matches(values)


@dataclass(frozen=True, slots=True)
class Combined:
    """Several expressions of which all, or one, must match."""

    expressions: "tuple[Expression, ...]"
    is_all: bool

    def matches(self, values: Values) -> bool:
        combine = all if self.is_all else any
        return combine(each.matches(values) for each in self.expressions)


Expression = Comparison | Search | Missing | Not | Combined


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter; create it with `parse_filter`."""

    text: str
    expression: Expression
    fields: tuple[Field, ...]

    def matches(self, values: Values) -> bool:
        """Whether a run with these values matches."""
        return self.expression.matches(values)

    def check_names(self, known: Iterable[str]) -> None:
        """Compare the fields with the names that exist.

        Args:
            known: The names of settings, summary values and metrics, with and without their prefixes.

        Raises:
            FilterError: No run has one of the fields.
        """
        names = {*ATTRIBUTES, *known}
        for field in self.fields:
            if field.name not in names:
                problem = f"No run has {field.name!r}. {closest(field.name, names, listed=sorted(ATTRIBUTES))}"
                raise FilterError(self.text, field.position, problem)


def parse_filter(text: str) -> Filter:
    """Parse a filter.

    Raises:
        FilterError: It cannot be understood; the message points to the position.
    """
    if not text.strip():
        raise FilterError(text, 0, "The filter is empty.")
    if len(text) > MAX_LENGTH:
        raise FilterError(
            text[:MAX_LENGTH], 0, f"The filter has {len(text):,} characters; give {MAX_LENGTH:,} at most."
        )
    return _Parser(text).parse()


def parse_field(text: str) -> Field:
    """Parse a field alone, as sorting and columns use it: ``val/loss``, ``min(val/loss)``, ``config.lr``.

    Raises:
        FilterError: It is not a field.
    """
    if not text.strip():
        raise FilterError(text, 0, "The field is empty.")
    return _Parser(text).parse_field()


class _Token(NamedTuple):
    kind: str
    text: str
    value: Any
    position: int


class _Parser:
    """A recursive-descent parser with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_tokens(text), _Token("end", "", None, len(text))]
        self._next = 0
        self._depth = 0
        self._fields: list[Field] = []

    def parse(self) -> Filter:
        expression = self._or()
        self._expect_end()
        return Filter(self._text, expression, tuple(self._fields))

    def parse_field(self) -> Field:
        field = self._field()
        if self._token.kind != "end":
            raise self._error("Give one field, e.g. min(loss).")
        return field

    def _or(self) -> Expression:
        parts = [self._and()]
        while self._accept("or"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else Combined(tuple(parts), is_all=False)

    def _and(self) -> Expression:
        parts = [self._not()]
        while self._accept("and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else Combined(tuple(parts), is_all=True)

    def _not(self) -> Expression:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error("The filter is nested too deeply.")
        try:
            if self._accept("not"):
                return Not(self._not())
            if self._accept("("):
                inner = self._or()
                self._expect(")")
                return inner
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Expression:
        token = self._token
        if token.kind == "text":
            following = self._tokens[self._next + 1]
            if following.kind == "end" or following.text in ("and", "or", ")"):
                self._next += 1
                return Search(str(token.value).lower())
        field = self._field()
        token = self._token
        if token.text in _COMPARE:
            self._next += 1
            return Comparison(field, self._compared(token.text, field))
        if token.text in ("~", "!~"):
            self._next += 1
            pattern = self._pattern()
            found = Comparison(field, lambda value: pattern.search(str(value)) is not None)
            return Not(found) if token.text == "!~" else found
        if self._accept("contains"):
            part = str(self._value()).lower()
            return Comparison(field, lambda value: part in str(value).lower())
        if self._accept("not"):
            self._expect("in")
            return Not(self._one_of(field))
        if self._accept("in"):
            return self._one_of(field)
        if self._accept("is"):
            is_not = self._accept("not")
            test = self._state(field)
            return Not(test) if is_not else test
        raise self._error(
            "Give a comparison: =, !=, <, <=, >, >=, ~ (pattern), contains, in (...), is nan, is missing."
        )

    def _state(self, field: Field) -> Expression:
        if self._accept("missing") or self._accept("none"):
            return Missing(field)
        if self._accept("nan"):
            return Comparison(field, lambda value: isinstance(value, float) and math.isnan(value))
        raise self._error("Expected nan or missing after is.")

    def _one_of(self, field: Field) -> Expression:
        self._expect("(")
        tests = [self._compared("=", field)]
        while self._accept(","):
            tests.append(self._compared("=", field))
        self._expect(")")
        return Comparison(field, lambda value: any(test(value) for test in tests))

    def _compared(self, symbol: str, field: Field) -> Callable[[Any], bool]:
        """A test against the next value, which has to fit an attribute of known type."""
        position, wanted = self._token.position, self._value()
        if field.name in _TIMES and not field.function:
            wanted = _timestamp(wanted)
            if wanted is None:
                raise FilterError(self._text, position, f'{field.name} is a time: give a date in quotes, "2026-11-01".')
        if field.name == "status" and wanted not in STATUSES:
            raise FilterError(self._text, position, f"{wanted!r} is not a status. {closest(str(wanted), STATUSES)}")
        return _comparing(symbol, wanted)

    def _field(self) -> Field:
        token = self._token
        if token.kind in ("number", "text"):
            raise self._error("Put the name on the left: lr > 1e-4.")
        if token.kind not in ("name", "quoted") or (token.kind == "name" and token.text in WORDS):
            raise self._error("Give the name of a setting, a metric or an attribute of runs.")
        self._next += 1
        if token.kind == "name" and self._token.text == "(":
            if token.text not in FUNCTIONS:
                problem = f"There is no function {token.text!r}: give {', '.join(FUNCTIONS)}."
                raise FilterError(self._text, token.position, problem)
            return self._function(token)
        field = Field(str(token.value), token.position)
        self._fields.append(field)
        return field

    def _function(self, function: _Token) -> Field:
        self._expect("(")
        token = self._token
        if token.kind not in ("name", "quoted"):
            raise self._error(f"Give a metric: {function.text}(loss).")
        self._next += 1
        latest = None
        if self._accept(","):
            number = self._token
            if number.kind != "number" or not 1 <= number.value < 1e15 or number.value % 1:
                raise self._error(f"Give how many of the last values count: {function.text}({token.text}, 100).")
            latest = int(number.value)
            self._next += 1
        self._expect(")")
        field = Field(str(token.value), token.position, function.text, latest)
        self._fields.append(field)
        return field

    def _value(self) -> Any:
        token = self._token
        if token.kind in ("number", "text", "quoted"):
            self._next += 1
            return token.value
        if token.kind == "name":  # a word without quotes: status = failed
            self._next += 1
            return {"true": True, "false": False, "nan": math.nan}.get(token.text, token.text)
        raise self._error('Give a value: a number, a word, or a quoted string, "like this".')

    def _pattern(self) -> re.Pattern[str]:
        position, value = self._token.position, self._value()
        try:
            return re.compile(str(value))
        except (re.error, OverflowError, RecursionError) as error:
            raise FilterError(self._text, position, f"{value!r} is not a regular expression: {error}.") from None

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _accept(self, text: str) -> bool:
        token = self._token
        if token.text == text and token.kind in ("name", "symbol"):
            self._next += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._error(f"Expected {text!r}.")

    def _expect_end(self) -> None:
        if self._token.kind != "end":
            raise self._error(f"Unexpected {self._token.text!r}: join comparisons with and, or.")

    def _error(self, problem: str) -> FilterError:
        return FilterError(self._text, self._token.position, problem)


def _tokens(text: str) -> Iterator[_Token]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            if text[start].isdigit():
                word = text[start:].split()[0]
                raise FilterError(text, start, f"{word!r:.40} is neither a number nor a duration: 30s, 5m, 2h, 7d.")
            raise FilterError(text, start, f"Unexpected character {text[start]!r}.")
        kind = match.lastgroup if match.lastgroup != "unit" else "number"
        content = match[kind or 0]
        value: Any = content
        if kind == "number":
            value = float(content.rstrip("smhd"))
            value = Duration(value * _UNITS[match["unit"]]) if match["unit"] else value
        elif kind == "text":
            value = re.sub(r"\\(.)", r"\1", content[1:-1])
        elif kind == "quoted":
            value = content[1:-1]
        elif kind == "name" and content.lower() in WORDS:
            content = value = content.lower()
        yield _Token(str(kind), content, value, match.start(kind or 0))
        position = match.end()


def _comparing(symbol: str, wanted: Any) -> Callable[[Any], bool]:
    """A test for values of any type: numbers compare with numbers, everything else as text.

    A number is neither less nor more than a text.
    """
    compare = _COMPARE[symbol]

    def test(value: Any) -> bool:
        if isinstance(value, bool) or isinstance(wanted, bool):
            return compare(str(value).lower(), str(wanted).lower())
        number = as_float(value)
        if number is not None and isinstance(wanted, float):
            return not math.isnan(number) and compare(number, wanted)
        if number is not None and symbol in ("<", "<=", ">", ">="):
            return False
        other = f"{wanted:g}" if isinstance(wanted, float) else str(wanted)
        return compare(str(value), other)

    return test


def _timestamp(value: Any) -> float | None:
    """A date as seconds since 1970, which may also be given; None if it is neither."""
    if isinstance(value, float):
        return None if isinstance(value, Duration) else value
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except (ValueError, OverflowError):
        return None


def flattened(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a configuration by their dotted names; lists stay values."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from flattened(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, settings
