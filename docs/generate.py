"""Writes the pages that are made from the code: ``python docs/generate.py``."""

import inspect
from pathlib import Path

from hookline import MOMENTS, Callback


def moments_page() -> str:
    """The catalogue of moments as a page."""
    rows = [
        f"| `{moment.signature()}` | {_axis(moment.axis)} | {_first_line(moment.doc)} |" for moment in MOMENTS.values()
    ]
    return "\n".join(
        [
            "# Moments",
            "",
            "Made from the class `Callback` by `docs/generate.py`. `loop` is a `LoopState`, `ctx` a `LogContext`.",
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


if __name__ == "__main__":
    Path(__file__).with_name("moments.md").write_text(moments_page(), encoding="utf-8")
