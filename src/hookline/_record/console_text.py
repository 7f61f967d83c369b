"""`LineAssembler`: turns the text that a program prints into the lines that a terminal would show in the end.

- A carriage return starts the line again: a progress bar that redraws a thousand times is one line, its last state.
- Displays of several rows move the cursor up and draw again. Rows that are redrawn replace each other, so such a
  display is recorded when it first appears and when it is left.
- Colours stay in the text. Other control sequences (cursor, title, links) are dropped.
- Everything is bounded: the length of a line, and the rows that wait.
"""

import re

MAX_LINE = 16 << 10
"""How many characters of a line are kept."""
_MAX_ROWS = 64
_TOKEN = re.compile(
    r"\n|\r"
    r"|\x1b\[(?P<numbers>[0-9;:<=>?]*)[ -/]*(?P<final>[@-~])"  # a control sequence
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # a title or a link
    r"|\x1b[@-Z\\^_78=>c]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:<=>?]*[ -/]*|\][^\x07\x1b]{0,1000})?\Z")
"""A control sequence whose end comes with the next text."""
_DRAWS = re.compile(r"\x1b\[[0-9;:<=>?]*[ -/]*[@-ln-~]")
"""A control sequence that is not a colour."""


def draws(text: str) -> bool:
    """Return whether text moves the cursor, erases or hides something, as displays do and printed lines do not."""
    return "\x1b[" in text and _DRAWS.search(text) is not None


class LineAssembler:
    """Collects the text of one stream, and returns its lines as they are complete.

    Attributes:
        is_live: Whether the cursor was moved up, so that rows wait for being drawn again.
    """

    def __init__(self) -> None:
        self._rows = [_Row()]
        self._at = 0
        self._rest = ""
        self.is_live = False

    @property
    def pending(self) -> str:
        """The text of the line that has no end yet."""
        return self._rows[self._at].text

    def feed(self, text: str) -> list[str]:
        """Add text, and return the lines that are complete now."""
        done: list[str] = []
        # The usual case: whole lines of plain text.
        if not self._rest and not self.is_live and "\r" not in text and "\x1b" not in text and "\b" not in text:
            *whole, last = text.split("\n")
            for line in whole:
                self._rows[0].add(line)
                done.append(self._rows[0].take())
            self._rows[0].add(last)
            return done
        text, self._rest = self._rest + text, ""
        if (cut := _UNFINISHED.search(text)) is not None:
            text, self._rest = text[: cut.start()], text[cut.start() :]
        position = 0
        for token in _TOKEN.finditer(text):
            self._rows[self._at].add(text[position : token.start()])
            position = token.end()
            self._control(token, done)
        self._rows[self._at].add(text[position:])
        return done

    def finish(self) -> list[str]:
        """Return everything that waits: the rows of a display, and a line without an end."""
        rows, self._rows, self._at, self.is_live = self._rows, [_Row()], 0, False
        lines = [row.take() for row in rows]
        while lines and not lines[-1]:  # rows that were only made for the cursor
            lines.pop()
        return lines

    def _control(self, token: "re.Match[str]", done: list[str]) -> None:
        final, numbers = token["final"], token["numbers"] or ""
        if token[0] == "\n":
            self._down(done)
        elif token[0] == "\r":
            self._rows[self._at].restart()
        elif final == "m":
            self._rows[self._at].add(token[0])
        elif final in ("A", "F"):
            self._up(_count(numbers))
        elif final in ("B", "E"):
            self._at = min(self._at + _count(numbers), len(self._rows) - 1)
        elif final == "K" and numbers != "1":
            self._rows[self._at].clear(whole=numbers == "2")
        elif final == "J" and numbers in ("", "0"):
            for row in self._rows[self._at + 1 :]:
                row.clear(whole=True)
            self._rows[self._at].clear(whole=False)

    def _down(self, done: list[str]) -> None:
        if not self.is_live:
            done.append(self._rows[0].take())
            return
        self._at += 1
        if self._at < len(self._rows):
            self._rows[self._at].restart()
        else:
            # Below the display: its first row can no longer be reached, as if it had scrolled away.
            done.append(self._rows.pop(0).take())
            self._rows.append(_Row())
            self._at -= 1

    def _up(self, count: int) -> None:
        self.is_live = True
        missing = min(count - self._at, _MAX_ROWS - len(self._rows))
        if missing > 0:
            # Those rows are recorded already. They are drawn again, so they get a place here.
            self._rows[:0] = [_Row() for _ in range(missing)]
            self._at += missing
        self._at = max(0, self._at - count)
        self._rows[self._at].restart()


class _Row:
    """One row: its text, and whether the cursor is back at its start."""

    def __init__(self) -> None:
        self.text = ""
        self._cut = 0
        self._restarts = False

    def add(self, text: str) -> None:
        if not text:
            return
        if self._restarts and text.strip():
            # What is drawn replaces what was there. Programs that draw less clear the row, or add spaces.
            self.text, self._cut, self._restarts = "", 0, False
        room = MAX_LINE - len(self.text)
        self.text += text[: max(room, 0)]
        self._cut += max(len(text) - max(room, 0), 0)

    def restart(self) -> None:
        self._restarts = True

    def clear(self, *, whole: bool) -> None:
        if whole or self._restarts:
            self.text, self._cut, self._restarts = "", 0, False

    def take(self) -> str:
        text = self.text.rstrip() + (f" ... ({self._cut:,} more characters)" if self._cut else "")
        self.text, self._cut, self._restarts = "", 0, False
        return text


def _count(numbers: str) -> int:
    first = numbers.partition(";")[0]
    return max(1, int(first)) if first.isdigit() and len(first) < 6 else 1
