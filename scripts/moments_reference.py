"""Writes the pages that are made from the code: ``python scripts/moments_reference.py``."""

import inspect
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hookline import MOMENTS, Callback

DOCS = Path(__file__).parents[1] / "docs"
MATRIX = DOCS.parent / "tests" / "contract" / "hosts" / "matrix.json"
"""What the tests found out about each host."""
STEERING = {
    "stop": "`loop.request_stop()`",
    "checkpoint": "`loop.request_checkpoint()`",
    "metric": "metrics that `on_step_end` returns",
    "error": "an error of a critical callback",
    "resume": "states of callbacks on resume",
}
COMMANDS = {
    **dict.fromkeys(("stop", "checkpoint", "validate", "pause", "continue", "set"), "`{}`"),
    **dict.fromkeys(("hooks.enable", "hooks.disable", "hooks.schedule", "hooks.add", "hooks.remove"), "`{}`"),
    "tell": "a command of a callback",
}
"""Commands from outside that the tests send in every host, with their names on the page."""


def moments_page() -> str:
    """The catalogue of moments as a page."""
    rows = [
        f"| `{moment.signature()}` | {_axis(moment.axis)} | {_first_line(moment.doc)} |" for moment in MOMENTS.values()
    ]
    return "\n".join(
        [
            "# Moments",
            "",
            "This page is generated from the class `Callback` by `scripts/moments_reference.py`. `loop` is a",
            "`LoopState`, `ctx` a `LogContext`.",
            "`step_idx` counts from 0; `loop.step` is the number of completed steps, so in `on_step_end` it is",
            "`step_idx + 1`. A cadence (`every=`) governs the moments that have an axis.",
            "",
            "| moment | axis | when |",
            "|---|---|---|",
            *rows,
            "",
            "## The loop",
            "",
            "```text",
            inspect.cleandoc(Callback.__doc__ or "").partition("::\n\n")[2].rstrip(),
            "```",
            "",
        ]
    )


def _axis(axis: str | None) -> str:
    return axis or ""


def _first_line(doc: str) -> str:
    return " ".join(inspect.cleandoc(doc).split())


class Footnotes:
    """Reasons, each with a number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, reasons: Iterable[str]) -> str:
        """The numbers of reasons, for a cell."""
        numbers = [self._numbers.setdefault(reason, len(self._numbers) + 1) for reason in reasons]
        return "".join(f" ({number})" for number in numbers)

    def lines(self) -> list[str]:
        """All reasons, as a list."""
        return [f"{number}. {reason}" for reason, number in self._numbers.items()]


def matrix_page(matrix: Mapping[str, Any]) -> str:
    """What each host reports and applies as a page: tables for each group of hosts, and footnotes."""
    notes = Footnotes()
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for host in matrix["hosts"]:
        groups.setdefault(host["group"], []).append(host)
    tables = [line for group, hosts in groups.items() for line in _group(matrix, group, hosts, notes)]
    stand_ins = [host["title"] for host in matrix["hosts"] if host["stand_in"]]
    return "\n".join(
        [
            "# Moments by host",
            "",
            "This page is generated from test results by `scripts/moments_reference.py`. The tests run one recording",
            "callback through every host. A host with epochs trains two of four steps and validates at the end of",
            "each; one without makes eight steps and evaluates after each. The tests compare the whole list of",
            "moments with that of `hl.Trainer`, which trains alike.",
            "",
            "✓ works, – does not; a number refers to a difference or a reason; an empty cell does not apply.",  # noqa: RUF001
            *(
                [
                    "",
                    "The frameworks marked *stand-in* do not install beside the tests: what is tested is hookline's",
                    "side, with a small trainer that calls the same methods with the same arguments in the same order:",
                    f"{', '.join(stand_ins)}.",
                ]
                if stand_ins
                else []
            ),
            *tables,
            "",
            "## Notes",
            "",
            *notes.lines(),
            "",
        ]
    )


def _group(matrix: Mapping[str, Any], group: str, hosts: list[Mapping[str, Any]], notes: Footnotes) -> list[str]:
    """The tables of a group of hosts."""
    names = [host["name"] for host in hosts]
    titles = [f"{host['title']} (stand-in)" if host["stand_in"] else host["title"] for host in hosts]
    found, commands = matrix["moments"], matrix["commands"]
    steering, builtins, predictions = matrix["steering"], matrix["builtins"], matrix["predictions"]
    moments = [name for name in MOMENTS if any(_fired(found[host], name, Footnotes()) for host in names)]
    callbacks = sorted({name for host in names for name in (*builtins[host]["works"], *builtins[host]["idle"])})
    rows = {
        "moment": {f"`{name}`": [_fired(found[host], name, notes) for host in names] for name in moments}
        | {
            "predictions in the outputs of validations": [
                ("–" if predictions[host] else "✓") + notes.mark(predictions[host])  # noqa: RUF001
                for host in names
            ]
        },
        "steered by": {
            title: [_steered(steering[host][name], notes) for host in names] for name, title in STEERING.items()
        },
        "command from outside": {
            title.format(name): [
                "–" + notes.mark([commands[host][name]])  # noqa: RUF001
                if name in commands.get(host, {})
                else "✓"
                for host in names
            ]
            for name, title in COMMANDS.items()
        },
        "built-in callback": {
            f"`{name}`": [_works(builtins[host], name, notes) for host in names] for name in callbacks
        },
    }
    tables = [line for corner, cells in rows.items() for line in ("", *_table(corner, titles, cells))]
    return ["", f"## {group}", *tables]


def _steered(request: Mapping[str, Any], notes: Footnotes) -> str:
    return ("✓" if request["works"] else "–") + notes.mark(request["notes"])  # noqa: RUF001 - a dash is meant


def _table(corner: str, titles: list[str], rows: Mapping[str, list[str]]) -> list[str]:
    lines = [
        [corner, *titles],
        ["---", *["---"] * len(titles)],
        *([name, *cells] for name, cells in rows.items()),
    ]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def _fired(host: Mapping[str, Any], moment: str, notes: Footnotes) -> str:
    reasons = host["notes"].get(moment, [])
    sign = "✓" if moment in host["fired"] else "–" if reasons else ""  # noqa: RUF001 - a dash is meant
    return sign + notes.mark(reasons)


def _works(host: Mapping[str, Any], callback: str, notes: Footnotes) -> str:
    if reason := host["idle"].get(callback):
        return "–" + notes.mark([reason])  # noqa: RUF001 - a dash is meant
    return "✓" + notes.mark([host["notes"][callback]] if callback in host["notes"] else [])


def main() -> None:
    """Write all of them."""
    (DOCS / "moments.md").write_text(moments_page(), encoding="utf-8")
    matrix = json.loads(MATRIX.read_text(encoding="utf-8"))
    (DOCS / "hosts" / "matrix.md").write_text(matrix_page(matrix), encoding="utf-8")


if __name__ == "__main__":
    main()
