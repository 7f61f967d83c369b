"""The parts of HTML displays in notebooks: tables, small charts and notes.

Displays have no scripts and load nothing. Every text is escaped, and colours follow those of the notebook, so they are
readable in light and dark themes. Charts are SVG with as many points as they are given; callers bound them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

MAX_TEXT = 200
"""Longer texts are cut: names and messages may come from anywhere."""
_WIDTH, _HEIGHT, _MARGIN = 180, 40, 2


def text(value: object) -> str:
    """A value as escaped text of limited length."""
    shown = str(value)
    return escape(shown if len(shown) <= MAX_TEXT else shown[: MAX_TEXT - 1] + "…")


def note(value: object, *, is_problem: bool = False) -> str:
    """A line below a display."""
    colour = "color:#c0392b" if is_problem else "opacity:.7"
    return f'<div style="{colour};margin:2px 0">{text(value)}</div>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int] = ()) -> str:
    """A table of cells that are HTML already.

    Args:
        numbers: The indexes of right-aligned columns.
    """
    right = set(numbers)
    style = [f"text-align:{'right' if index in right else 'left'};padding:2px 8px" for index in range(len(columns))]
    head = "".join(f'<th style="{each}">{text(name)}</th>' for each, name in zip(style, columns, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td style="{each}">{cell}</td>' for each, cell in zip(style, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def line_chart(xs: Sequence[float], ys: Sequence[float], label: str) -> str:
    """A small line of finite points, with its label as a tooltip; empty if there are fewer than two."""
    points = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and math.isfinite(y)]
    if len(points) < 2:
        return ""
    (left, right), (low, high) = ((min(each), max(each)) for each in zip(*points, strict=True))
    # Divided first: the difference of extreme values is infinite.
    width, height = (right / 2 - left / 2) or 1.0, (high / 2 - low / 2) or 1.0
    drawn = " ".join(
        f"{_MARGIN + (x / 2 - left / 2) / width * (_WIDTH - 2 * _MARGIN):.1f},"
        f"{_HEIGHT - _MARGIN - (y / 2 - low / 2) / height * (_HEIGHT - 2 * _MARGIN):.1f}"
        for x, y in points
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
        f"<title>{text(label)}: {low:.4g} to {high:.4g}</title>"
        f'<polyline points="{drawn}" fill="none" stroke="#3b82c4" stroke-width="1.5"/></svg>'
    )


def share_bar(share: float) -> str:
    """A horizontal bar for a share from 0 to 1."""
    width = 100 * min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
    return (
        '<svg width="100" height="10" role="img">'
        f'<rect width="100" height="10" fill="#8884"/><rect width="{width:.1f}" height="10" fill="#3b82c4"/></svg>'
    )


def display(make: Callable[[], str]) -> str:
    """The HTML of a display, or what is wrong where it cannot be made: a display never raises."""
    try:
        return f"<div>{make()}</div>"
    except Exception as error:
        return f"<div>{note(f'This cannot be displayed: {type(error).__name__}: {error}', is_problem=True)}</div>"
