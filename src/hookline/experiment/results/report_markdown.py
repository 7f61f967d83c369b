"""A report in Markdown, as GitHub and editors show it. Names are shown as they are: their signs are no markup."""

import re
from collections.abc import Iterable, Sequence

from hookline.experiment.results.report_blocks import Block, Code, Heading, Items, Paragraph, Picture, Table

_SIGNS = re.compile(r"[\\`*|<>\[\]~$]|(?<!\w)_|_(?!\w)")
_BEGINNING = re.compile(r"^(?=[#+=-])")
_SPACE = re.compile(r"\s+")
_FENCES = re.compile(r"`{3,}")


def markdown(blocks: Iterable[Block]) -> str:
    """The blocks as one text, which ends with a newline."""
    return "\n\n".join(map(_written, blocks)) + "\n"


def _written(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_literal(text)}"
        case Paragraph(text):
            return _opening(text)
        case Items(items):
            return "\n".join(
                f"- **{_literal(head)}**: {_literal(rest)}" if head else f"- {_opening(rest)}" for head, rest in items
            )
        case Table():
            return _table(block)
        case Code(title, text):
            fence = "`" * max(3, 1 + max(map(len, _FENCES.findall(text)), default=0))
            return f"{_opening(title)}\n\n{fence}text\n{text.rstrip()}\n{fence}"
        case Picture(_, file, shows):
            return f"![{_literal(shows)}]({file})"


def _table(table: Table) -> str:
    rules = ["---:" if index in table.numbers else "---" for index in range(len(table.columns))]
    rows = [
        [f"**{_literal(cell)}**" if index == table.strong and cell else _literal(cell) for cell in row]
        for index, row in enumerate(table.rows)
    ]
    return "\n".join(map(_row, ([*map(_literal, table.columns)], rules, *rows)))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _opening(text: str) -> str:
    """The text where a line begins: a sign there is no heading and no list either."""
    return _BEGINNING.sub(r"\\", _literal(text))


def _literal(text: str) -> str:
    """The text on one line, without a meaning for its signs."""
    line = _SPACE.sub(" ", text).strip().replace("&", "&amp;")
    return _SIGNS.sub(lambda sign: "\\" + sign.group(), line)
