"""Text from a record on a terminal: control characters are shown, not obeyed.

Names, messages and samples may come from anywhere: a model writes them, or they are in a directory that was received.
A terminal would take what they hold for commands (move the cursor, set the title, write to the clipboard). `one_line`
is for pieces of a line, `printable` for texts of several lines, `printable_json` for documents, and `terminal_console`
makes a console that does so with everything that is printed on it.
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
    """A text without line breaks, and without anything that a terminal would obey."""
    text = str(value)
    return text if text.isprintable() else "".join(map(_shown, text))


def printable(text: str) -> str:
    """A text with its line breaks, and without anything else that a terminal would obey."""
    return text if text.isprintable() else "\n".join(map(one_line, text.split("\n")))


def printable_json(document: str) -> str:
    """A JSON document with escape sequences of JSON for what a terminal would obey: it means the same."""
    return _NOT_IN_JSON.sub(lambda found: found[0] if found[0].isprintable() else _escaped(found[0]), document)


def terminal_console(**options: Any) -> "Console":
    """A console on which nothing that is printed is obeyed by the terminal, but for the console's own styles.

    Args:
        options: Those of `rich.console.Console`.
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


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _escaped(character: str) -> str:
    pair = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{pair[at : at + 2].hex()}" for at in range(0, len(pair), 2))
