"""Text from records on a terminal: control characters are shown, not interpreted.

Names, messages and samples may come from anywhere: a model writes them, or they are in a directory that was received.
A terminal would interpret what they contain as commands (move the cursor, set the title, write to the clipboard).
"""

import functools
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment


_NOT_IN_JSON = re.compile(r"[^\n\x20-\x7e]")


def one_line(value: object) -> str:
    """Escape line breaks and everything that a terminal would interpret."""
    text = str(value)
    return text if text.isprintable() else "".join(map(_escape, text))


def printable(text: str) -> str:
    """Escape everything that a terminal would interpret, except line breaks."""
    return text if text.isprintable() else "\n".join(map(one_line, text.split("\n")))


def plural(number: int, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "run"), plural(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def printable_json(document: str) -> str:
    """Replace what a terminal would interpret by JSON escapes; the document means the same."""
    return _NOT_IN_JSON.sub(lambda found: found[0] if found[0].isprintable() else _escape_json(found[0]), document)


def terminal_console(**options: Any) -> "Console":
    """Return a console that escapes control characters in everything printed on it, except its own styles.

    Args:
        options: Options of `rich.console.Console`.
    """
    console: Console = _console_class()(**{"highlight": False, "emoji": False, "markup": False} | options)
    return console


@functools.cache
def _console_class() -> type[Any]:
    from rich.console import Console
    from rich.segment import Segment

    class TerminalConsole(Console):
        def render(self, renderable: "RenderableType", options: "ConsoleOptions | None" = None) -> "Iterable[Segment]":
            for segment in super().render(renderable, options):
                is_plain = segment.control or segment.text.isprintable()
                yield segment if is_plain else Segment(printable(segment.text), segment.style)

    return TerminalConsole


def _escape(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _escape_json(character: str) -> str:
    pair = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{pair[at : at + 2].hex()}" for at in range(0, len(pair), 2))
