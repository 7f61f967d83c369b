"""What went wrong in an experiment: runs that did not complete, and benchmarks that gave nothing."""

from collections.abc import Iterable, Iterator

from hookline.core.state import ArmResult, RunResult


def unfinished_runs(arms: Iterable[ArmResult]) -> list[RunResult]:
    """The runs that began and did not complete."""
    return [run for arm in arms for run in arm.runs if run.status not in ("completed", "waiting")]


def what_is_missing(arms: Iterable[ArmResult]) -> str | None:
    """What an experiment that was stopped lacks, in a sentence; None where it was brought to its end."""
    runs = [run for arm in arms for run in arm.runs]
    stopped, waiting = (sum(run.status == status for run in runs) for status in ("stopped", "waiting"))
    if not stopped and not waiting:
        return None
    done = sum(run.status == "completed" for run in runs)
    parts = [f"{number:,} {words}" for number, words in ((stopped, "stopped"), (waiting, "not begun")) if number]
    return f"NOT COMPLETE: {done:,} of {len(runs):,} runs; {', '.join(parts)}. Run it again to go on."


def failed_benchmarks(arms: Iterable[ArmResult]) -> Iterator[tuple[str, str, str]]:
    """Each benchmark that gave nothing: of which run, its name, and why."""
    for arm in arms:
        for run in arm.runs:
            for name, why in run.failed_evals.items():
                yield run.run_key, name, why


def last_line(error: str | None) -> str:
    """The line of a traceback that says what was wrong; nothing where nothing was said."""
    lines = [line.strip() for line in (error or "").splitlines() if line.strip()]
    return lines[-1] if lines else ""
