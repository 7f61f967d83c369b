"""What a report is made of, whichever way it is written: plain text everywhere, no markup in it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Heading:
    """A title: of the report (1), a section (2) or a part of one (3)."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Some sentences."""

    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list; what stands before a colon in ``(head, rest)`` is set off."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        numbers: The columns that are aligned to the right, by their places.
        strong: The row that stands out, by its place.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[int] = ()
    strong: int | None = None


@dataclass(frozen=True, slots=True)
class Code:
    """Lines as a computer wrote them, with a line that says what they are."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG: its bytes, the file beside the report that holds them, and what it shows."""

    png: bytes
    file: str
    shows: str


Block: TypeAlias = Heading | Paragraph | Items | Table | Code | Picture
