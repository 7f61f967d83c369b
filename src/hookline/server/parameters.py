"""Query parameters: declared once, checked on each request, and documented in the OpenAPI document.

Undeclared parameters are refused, so a misspelled name is never silently ignored.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from hookline._engine.errors import OptionError, closest

Values: TypeAlias = dict[str, Any]
"""The values of a request by parameter name."""

MAX_TEXT = 4000
MAX_REPEATS = 500
MAX_INTEGER = 1 << 53
"""Larger integers are not exact in a browser."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter.

    Args:
        description: For the OpenAPI document and for errors.
        repeated: May be given several times; its value is a list.
        choices: The accepted texts; anything by default.
        pattern: A regular expression that a text has to match.
        low: The smallest accepted number.
        high: The largest accepted number.
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
        """Parse the given texts.

        Raises:
            OptionError: They are not accepted.
        """
        if not given:
            if self.required:
                raise OptionError(f"The parameter {self.name!r} is missing: {self.description}")
            return [] if self.repeated else self.default
        parse = self._text if self.kind == "string" else self._number
        if self.repeated:
            if len(given) > MAX_REPEATS:
                raise OptionError(f"{self.name} is given {len(given)} times; at most {MAX_REPEATS} are accepted.")
            return [parse(text) for text in given]
        if len(given) > 1:
            raise OptionError(f"{self.name} is given {len(given)} times; give it once.")
        return parse(given[0])

    def document(self) -> dict[str, Any]:
        """The OpenAPI description."""
        schema: dict[str, Any] = {"type": self.kind}
        if self.kind == "string":
            schema |= {"pattern": f"^{self.pattern}$"} if self.pattern else {}
            schema |= {"enum": list(self.choices)} if self.choices else {"maxLength": MAX_TEXT}
        else:
            low, high = self._limits()
            schema |= ({} if low is None else {"minimum": low}) | ({} if high is None else {"maximum": high})
        if self.repeated:
            schema = {"type": "array", "items": schema, "maxItems": MAX_REPEATS}
            schema |= {"minItems": 1} if self.required else {}
        elif self.default is not None:
            schema["default"] = self.default
        own: dict[str, Any] = {"name": self.name, "in": "query", "required": self.required}
        return own | {"description": self.description, "schema": schema}

    def _limits(self) -> tuple[float | None, float | None]:
        if self.kind == "number":
            return self.low, self.high
        return (-MAX_INTEGER if self.low is None else self.low, MAX_INTEGER if self.high is None else self.high)

    def _text(self, text: str) -> str:
        if self.choices and text not in self.choices:
            raise OptionError(f"{self.name}={text!r:.80} is not accepted. {closest(text, self.choices)}")
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise OptionError(f"{self.name}={text!r:.80} is not accepted: {self.description}")
        if len(text) > MAX_TEXT or "\0" in text:
            raise OptionError(f"{self.name}={text!r:.80}: give a text of at most {MAX_TEXT:,} characters without NUL.")
        return text

    def _number(self, text: str) -> float | int:
        is_integer = self.kind == "integer"
        try:
            value: float | int = int(text) if is_integer else float(text)
        except ValueError:
            kind = "whole number" if is_integer else "number"
            raise OptionError(f"{self.name}={text!r:.80}: give a {kind}.") from None
        low, high = self._limits()
        if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
            limits = ("" if low is None else f" from {low:,}") + ("" if high is None else f" up to {high:,}")
            raise OptionError(f"{self.name}={text!r:.80}: give a number{limits}.")
        return value


def read_parameters(declared: Sequence[Parameter], given: Iterable[tuple[str, str]]) -> Values:
    """Parse the parameters of a query.

    Raises:
        OptionError: One is unknown or not accepted.
    """
    texts: dict[str, list[str]] = {parameter.name: [] for parameter in declared}
    for name, text in given:
        if name not in texts:
            raise OptionError(f"There is no parameter {name!r:.80}. {closest(name[:80], texts)}")
        texts[name].append(text)
    return {parameter.name: parameter.read(texts[parameter.name]) for parameter in declared}
