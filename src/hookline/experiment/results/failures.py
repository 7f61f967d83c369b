"""What went wrong in an experiment: runs that did not complete, and benchmarks that gave nothing."""

import re
from collections.abc import Iterable, Iterator

from hookline.core.state import ArmResult, RunResult

_FRAME = re.compile(r'\s+File "')
"""The beginning of a frame in a traceback."""


def unfinished_runs(arms: Iterable[ArmResult]) -> list[RunResult]:
    """The runs that began and whose training did not complete."""
    return [run for arm in arms for run in arm.runs if not run.is_trained and run.status != "waiting"]


def what_is_missing(arms: Iterable[ArmResult]) -> str | None:
    """What an experiment that was stopped lacks, in a sentence; None where it was brought to its end."""
    runs = [run for arm in arms for run in arm.runs]
    stopped, waiting = (sum(run.status == status for run in runs) for status in ("stopped", "waiting"))
    if not stopped and not waiting:
        return None
    done = sum(run.is_trained for run in runs)
    parts = [f"{number:,} {words}" for number, words in ((stopped, "stopped"), (waiting, "not begun")) if number]
    return f"NOT COMPLETE: {done:,} of {len(runs):,} runs; {', '.join(parts)}. Run it again to go on."


def failed_benchmarks(arms: Iterable[ArmResult]) -> Iterator[tuple[str, str, str]]:
    """Each benchmark that gave nothing: of which run, its name, and why."""
    for arm in arms:
        for run in arm.runs:
            for name, why in run.failed_evals.items():
                yield run.run_key, name, why


def error_line(error: str | None) -> str:
    """What a traceback says was wrong, in a line; nothing where nothing was said.

    That is the exception with the first line of its message, and our note of who raised it. A traceback may end with
    more of the message, and with notes.
    """
    lines = [line for line in (error or "").splitlines() if line.strip()]
    frames = [index for index, line in enumerate(lines) if _FRAME.match(line)]
    if not frames:
        return lines[-1].strip() if lines else ""
    ending = [line for line in lines[frames[-1] :] if not line[0].isspace()] or lines[-1:]
    notes = [f"({line})" for line in ending[1:] if line.startswith("hookline: ")]
    return " ".join([ending[0].strip(), *notes])
