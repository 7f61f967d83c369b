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
BEGIN, END = "<!-- made by scripts/moments_reference.py -->", "<!-- to here -->"
HOSTS = {
    "trainer": "`hl.Trainer`",
    "bare_loop": "`hl.run`",
    "torch": "torch",
    "jax": "JAX",
    "accelerate": "Accelerate",
    "huggingface": "Hugging Face",
    "trl_sft": "TRL SFT",
    "trl_grpo": "TRL GRPO",
    "learner": "`rl.train`",
    "lightning": "Lightning",
    "keras": "Keras",
    "ray": "Ray Train",
}
STEERING = {
    "stop": "`loop.request_stop()`",
    "checkpoint": "`loop.request_checkpoint()`",
    "metric": "metrics that `on_step_end` returns",
    "error": "an error of a critical callback",
    "resume": "states of callbacks on resume",
}


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


def matrix_section(matrix: Mapping[str, Any]) -> str:
    """What each host tells and does, as tables with footnotes."""
    notes, found = Footnotes(), matrix["moments"]
    moments = [name for name in MOMENTS if any(name in host["told"] for host in found.values())]
    steering, builtins, predictions = matrix["steering"], matrix["builtins"], matrix["predictions"]
    callbacks = sorted({name for host in builtins.values() for name in (*host["works"], *host["idle"])})
    return "\n".join(
        [
            *_table(
                "moment",
                {f"`{name}`": [_told(found[host], name, notes) for host in HOSTS] for name in moments}
                | {
                    "predictions in the outputs of validations": [
                        ("–" if predictions[host] else "✓") + notes.mark(predictions[host])  # noqa: RUF001
                        for host in HOSTS
                    ]
                },
            ),
            "",
            *_table(
                "steered by",
                {title: ["✓" + notes.mark(steering[host][name]) for host in HOSTS] for name, title in STEERING.items()},
            ),
            "",
            *_table(
                "built-in callback",
                {f"`{name}`": [_works(builtins[host], name, notes) for host in HOSTS] for name in callbacks},
            ),
            "",
            *notes.lines(),
        ]
    )


def with_matrix(page: str, matrix: Mapping[str, Any]) -> str:
    """A page with the matrix between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, behind = rest.partition(END)
    return f"{before}{BEGIN}\n\n{matrix_section(matrix)}\n\n{END}{behind}"


def _table(corner: str, rows: Mapping[str, list[str]]) -> list[str]:
    lines = [
        [corner, *HOSTS.values()],
        ["---", *["---"] * len(HOSTS)],
        *([name, *cells] for name, cells in rows.items()),
    ]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def _told(host: Mapping[str, Any], moment: str, notes: Footnotes) -> str:
    reasons = host["notes"].get(moment, [])
    sign = "✓" if moment in host["told"] else "–" if reasons else ""  # noqa: RUF001 - a dash is meant
    return sign + notes.mark(reasons)


def _works(host: Mapping[str, Any], callback: str, notes: Footnotes) -> str:
    if reason := host["idle"].get(callback):
        return "–" + notes.mark([reason])  # noqa: RUF001 - a dash is meant
    return "✓" + notes.mark([host["notes"][callback]] if callback in host["notes"] else [])


def main() -> None:
    """Write all of them."""
    (DOCS / "moments.md").write_text(moments_page(), encoding="utf-8")
    page, matrix = DOCS / "integrations.md", json.loads(MATRIX.read_text(encoding="utf-8"))
    page.write_text(with_matrix(page.read_text(encoding="utf-8"), matrix), encoding="utf-8")


if __name__ == "__main__":
    main()
