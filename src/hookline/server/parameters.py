"""Parameters of requests: declared once, checked when a request comes, and written down in the OpenAPI document.

Everything that is not declared is refused, so a misspelt name is no silent no-op.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from hookline._engine.errors import OptionError, closest

Values: TypeAlias = dict[str, Any]
"""What a request gave, by the names of parameters."""

MOST_TEXT = 4000
MOST_REPEATS = 500
LARGEST = 1 << 53
"""Whole numbers beyond it are not exact in a browser."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a query.

    Args:
        kind: What its text stands for.
        description: For people, in the OpenAPI document.
        repeated: May be given several times; its value is a list.
        choices: What a text may be; anything by default.
        pattern: What a text must look like, as a regular expression.
        low: The least number that is accepted.
        high: The largest number that is accepted.
    """

    name: str
    kind: Literal["string", "integer", "number"]
    description: str
    required: bool = False
    repeated: bool = False
    default: Any = None
    choices: Sequence[str] = ()
    pattern: str = ""
    low: float | None = None
    high: float | None = None

    def read(self, given: list[str]) -> Any:
        """The value that texts stand for.

        Raises:
            OptionError: They stand for none, or for one that is not accepted.
        """
        if not given:
            if self.required:
                raise OptionError(f"The parameter {self.name!r} is missing: {self.description}")
            return [] if self.repeated else self.default
        if self.repeated:
            if len(given) > MOST_REPEATS:
                raise OptionError(f"{self.name} is given {len(given)} times; at most {MOST_REPEATS} are accepted.")
            return [self._value(text) for text in given]
        if len(given) > 1:
            raise OptionError(f"{self.name} is given {len(given)} times; give it once.")
        return self._value(given[0])

    def document(self) -> dict[str, Any]:
        """The parameter as OpenAPI describes it."""
        schema = self._schema()
        if self.repeated:
            schema = {"type": "array", "items": schema, "maxItems": MOST_REPEATS}
            schema |= {"minItems": 1} if self.required else {}
        elif self.default is not None:
            schema["default"] = self.default
        own: dict[str, Any] = {"name": self.name, "in": "query", "required": self.required}
        return own | {"description": self.description, "schema": schema}

    def _schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": self.kind}
        if self.kind == "string":
            schema |= {"pattern": f"^{self.pattern}$"} if self.pattern else {}
            return schema | ({"enum": list(self.choices)} if self.choices else {"maxLength": MOST_TEXT})
        low = self.low if self.low is not None or self.kind == "number" else -LARGEST
        high = self.high if self.high is not None or self.kind == "number" else LARGEST
        schema |= {} if low is None else {"minimum": low}
        return schema | ({} if high is None else {"maximum": high})

    def _value(self, text: str) -> Any:
        return self._text(text) if self.kind == "string" else self._number(text)

    def _text(self, text: str) -> str:
        if self.choices and text not in self.choices:
            raise OptionError(f"{self.name}={text!r:.80} is not accepted. {closest(text, self.choices)}")
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise OptionError(f"{self.name}={text!r:.80} is not accepted: {self.description}")
        if len(text) > MOST_TEXT or "\0" in text:
            raise OptionError(f"{self.name}={text!r:.80}: give a text of at most {MOST_TEXT:,} characters without NUL.")
        return text

    def _number(self, text: str) -> float | int:
        whole = self.kind == "integer"
        try:
            value: float | int = int(text) if whole else float(text)
        except ValueError:
            raise OptionError(f"{self.name}={text!r:.80}: give a {'whole number' if whole else 'number'}.") from None
        low = -LARGEST if self.low is None and whole else self.low
        high = LARGEST if self.high is None and whole else self.high
        fits = (low is None or value >= low) and (high is None or value <= high)
        if not fits or not math.isfinite(value):
            raise OptionError(f"{self.name}={text!r:.80}: give a number{_range(low, high)}.")
        return value


def read_parameters(declared: Sequence[Parameter], given: Iterable[tuple[str, str]]) -> Values:
    """The values that a query gives.

    Raises:
        OptionError: Something in it is not accepted.
    """
    texts: dict[str, list[str]] = {parameter.name: [] for parameter in declared}
    for name, text in given:
        if name not in texts:
            raise OptionError(f"There is no parameter {name!r:.80}. {closest(name[:80], texts)}")
        texts[name].append(text)
    return {parameter.name: parameter.read(texts[parameter.name]) for parameter in declared}


def _range(low: float | None, high: float | None) -> str:
    below = "" if low is None else f" from {low:,}"
    return below + ("" if high is None else f" up to {high:,}")
