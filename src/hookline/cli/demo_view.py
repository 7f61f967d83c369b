"""What ``hookline demo`` prints: what is about to happen, and what came of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from hookline.cli.output import indented
from hookline.cli.sparkline import marks_for, sparkline
from hookline.loops.summary import cost_table

if TYPE_CHECKING:
    from hookline.demo.summary import ArmSummary, Gap, Summary
    from hookline.experiment import Experiment


def introduce(out: Console, experiment: "Experiment", url: str, *, is_served: bool) -> None:
    """Say what is trained, where it is recorded, and where it can be watched."""
    from hookline.demo.study import complete_runs

    complete = complete_runs(experiment)
    out.print("A tiny model learns to add: from examples (SFT), then from rewards (GRPO).", style="bold")
    for line in (
        "exact   is rewarded for the right sum",
        "close   is rewarded for any answer that is at most 2 off",
    ):
        out.print(indented(line))
    where = _shown(experiment.store.directory)
    taken_up = f", taken up with {complete} of {len(experiment.plan())} runs complete" if complete else ""
    out.print(f"Recorded in {where}{taken_up}.", soft_wrap=True)
    page = f"{url}#/experiment?project={experiment.store.directory.name}"
    command = "" if is_served else f"hookline ui --root {where.parent}, then "
    out.print(f"To watch: {command}{page}\n", soft_wrap=True)


def print_summary(out: Console, summary: "Summary") -> None:
    """Print the table of arms, how rewards rose, what hooks cost, and where the record lies."""
    out.print()
    summary.result.print(out)
    if summary.gap is not None:
        out.print(indented(_gap_text(summary.gap)))
    out.print("\nSampled answers over the steps of GRPO: the reward, and how many are right", style="bold")
    for line in _curve_lines(summary.arms):
        out.print(line, soft_wrap=True)
    out.print("\nGreedy answers to sums that none was trained on: how many are right", style="bold")
    for arm in summary.arms:
        out.print(f"  {arm.arm}  {_stages_text(arm)}", soft_wrap=True)
    out.print("\nWhat hooks cost, all runs together", style="bold")
    out.print(cost_table(summary.costs))
    out.print(f"  together {summary.hook_share:.1%} of the runs' time\n")
    _print_places(out, summary)


def _gap_text(gap: "Gap") -> str:
    repeats = ", ".join(f"{difference:+.2f}" for difference in gap.by_repeat)
    low, high = gap.interval
    return (
        f"{gap.better} less {gap.worse}, repeat by repeat: {repeats}. Over {gap.tasks} sums that none was trained on: "
        f"{gap.difference:+.2f}, 95% bootstrap interval {low:+.2f} to {high:+.2f}."
    )


def _curve_lines(arms: "Sequence[ArmSummary]") -> list[str]:
    """For each arm both curves, all of them on one scale, with where each began and ended."""
    curves = [curve for arm in arms for curve in (arm.reward, arm.right)]
    drawn, marks = [], sparkline([value for curve in curves for value in curve], marks_for())
    for curve in curves:
        shape, marks = marks[: len(curve)], marks[len(curve) :]
        drawn.append(f"{shape}  {curve[0]:.2f} to {curve[-1]:.2f}" if curve else "-")
    pairs = zip(arms, drawn[::2], drawn[1::2], strict=True)
    return [f"  {arm.arm}  reward {reward}    right {right}" for arm, reward, right in pairs]


def _stages_text(arm: "ArmSummary") -> str:
    return ", ".join(f"{value:.2f} after {stage}" for stage, value in arm.after_stages.items())


def _print_places(out: Console, summary: "Summary") -> None:
    directory = _shown(Path(summary.result.output_dir or "."))
    for name, what in (
        ("Record", f"{directory}, a directory for each run"),
        ("Report", f"{directory / 'report.html'}"),
        ("Page", f"hookline ui --root {directory.parent}"),
        ("Runs", f"hookline runs list --root {directory.parent}"),
    ):
        out.print(f"{name:<7} {what}", soft_wrap=True)


def _shown(path: Path) -> Path:
    """A path as somebody in the current directory would write it."""
    path = path.resolve()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
