"""``hookline demo``: SFT, then GRPO, on sums, as an experiment of two arms; ``--quick`` is a bare loop without torch.

Exit status 0: everything completed; 1: a run failed, or a package is missing; 2: wrong input, such as a directory that
cannot be written; 128 plus a signal's number: that signal stopped it, and the same command resumes it.
"""

import contextlib
import importlib.util
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

from hookline._engine.defaults import ROOT_VARIABLE
from hookline._engine.errors import MissingExtraError
from hookline._record.terminal import terminal_console
from hookline.cli.demo.quick import quick_demo
from hookline.cli.demo.study import STANDARD, Size
from hookline.cli.output import AsJson, console, indented, print_json, relative_path, wrong_input
from hookline.cli.runs.text import marks_for, sparkline
from hookline.cli.serve import PORT, UiPort
from hookline.loops.summary import cost_table

if TYPE_CHECKING:
    from hookline.cli.demo.study import ArmSummary, Gap, Summary
    from hookline.experiment import Experiment, ExperimentResult


def introduce(out: Console, experiment: "Experiment", url: str, *, is_served: bool) -> None:
    """Print the training's description, where it is recorded, and how to watch it."""
    from hookline.cli.demo.study import complete_runs

    complete = complete_runs(experiment)
    out.print("A tiny model learns to add: from examples (SFT), then from rewards (GRPO).", style="bold")
    for line in (
        "exact   is rewarded for the correct sum",
        "close   is rewarded for any answer within 2 of it",
    ):
        out.print(indented(line))
    where = relative_path(experiment.store.directory)
    resumed = f", resumed with {complete} of {len(experiment.plan())} runs complete" if complete else ""
    out.print(f"Recorded in {where}{resumed}.", soft_wrap=True)
    page = f"{url}#/experiment?experiment={experiment.store.directory.name}"
    command = "" if is_served else f"hookline ui --root {where.parent}, then "
    out.print(f"To watch: {command}{page}\n", soft_wrap=True)


def print_summary(out: Console, summary: "Summary") -> None:
    """Print the table of arms, the curves of rewards, the costs of hooks, and where the record is."""
    out.print()
    summary.result.print(out)
    if summary.gap is not None:
        out.print(indented(_gap_text(summary.gap)))
    out.print("\nSampled answers over the steps of GRPO: the reward, and the share that is correct", style="bold")
    for line in _curve_lines(summary.arms):
        out.print(line, soft_wrap=True)
    out.print("\nGreedy answers to held-out sums: the share that is correct", style="bold")
    for arm in summary.arms:
        stages = ", ".join(f"{value:.2f} after {stage}" for stage, value in arm.after_stages.items())
        out.print(f"  {arm.arm}  {stages}", soft_wrap=True)
    out.print("\nCosts of hooks, all runs together", style="bold")
    out.print(cost_table(summary.costs))
    out.print(f"  together {summary.hook_share:.1%} of the runs' time\n")
    directory = relative_path(Path(summary.result.output_dir or "."))
    for name, what in (
        ("Record", f"{directory}, a directory for each run"),
        ("Report", f"{directory / 'report.html'}"),
        ("Page", f"hookline ui --root {directory.parent}"),
        ("Runs", f"hookline runs list --root {directory.parent}"),
    ):
        out.print(f"{name:<7} {what}", soft_wrap=True)


def _gap_text(gap: "Gap") -> str:
    repeats = ", ".join(f"{difference:+.2f}" for difference in gap.by_repeat)
    low, high = gap.interval
    return (
        f"{gap.better} minus {gap.worse}, repeat by repeat: {repeats}. Over {gap.tasks} held-out sums: "
        f"{gap.difference:+.2f}, 95% bootstrap interval {low:+.2f} to {high:+.2f}."
    )


def _curve_lines(arms: "Sequence[ArmSummary]") -> list[str]:
    """Both curves of each arm, all on one scale, with their first and last values."""
    curves = [curve for arm in arms for curve in (arm.reward, arm.right)]
    drawn, marks = [], sparkline([value for curve in curves for value in curve], marks_for())
    for curve in curves:
        shape, marks = marks[: len(curve)], marks[len(curve) :]
        drawn.append(f"{shape}  {curve[0]:.2f} to {curve[-1]:.2f}" if curve else "-")
    pairs = zip(arms, drawn[::2], drawn[1::2], strict=True)
    return [f"  {arm.arm}  reward {reward}    right {right}" for arm, reward, right in pairs]


RUN_FAILED = 1
PACKAGES = ("torch", "transformers", "duckdb", "starlette", "uvicorn", "cloudpickle")

Root = Annotated[Path, typer.Option(envvar=ROOT_VARIABLE, help="The directory of the runs.")]
Serve = Annotated[bool, typer.Option("--serve", help="Also serve the page, until Ctrl-C.")]
Quick = Annotated[bool, typer.Option("--quick", help="Run a bare loop instead, in seconds and without torch.")]
Repeats = Annotated[int, typer.Option(min=1, help="The number of repeats of each arm.")]
SFTSteps = Annotated[int, typer.Option(min=1, help="The number of SFT steps.")]
GRPOSteps = Annotated[int, typer.Option(min=1, help="The number of GRPO steps.")]
Processes = Annotated[int, typer.Option(min=1, help="How many runs at a time, each in its own process.")]


def demo(
    *,
    root: Root = Path("runs"),
    serve: Serve = False,
    port: UiPort = PORT,
    quick: Quick = False,
    repeats: Repeats = STANDARD.repeats,
    sft_steps: SFTSteps = STANDARD.sft_steps,
    grpo_steps: GRPOSteps = STANDARD.grpo_steps,
    processes: Processes = STANDARD.processes,
    as_json: AsJson = False,
) -> None:
    """Train a tiny model on sums with SFT, then GRPO, in about two minutes. If it is interrupted, run it again."""
    if quick:
        with wrong_input(as_json=as_json):
            quick_demo(root, as_json=as_json)
        return
    if any(importlib.util.find_spec(package) is None for package in PACKAGES):
        raise MissingExtraError("hookline demo (unlike hookline demo --quick)", "hf,experiment,ui")
    from hookline.cli.demo.study import next_experiment
    from hookline.experiment import ProgressView

    out = terminal_console(stderr=True) if as_json else console()
    with contextlib.ExitStack() as around:
        around.enter_context(_exit_on_interrupt(out))
        with wrong_input(as_json=as_json):
            size = Size(repeats=repeats, sft_steps=sft_steps, grpo_steps=grpo_steps, processes=processes)
            experiment = next_experiment(root, size)
            experiment.check().close()
            url = around.enter_context(_served(root, port)) if serve else None
        introduce(out, experiment, url or f"http://127.0.0.1:{PORT}/", is_served=serve)
        with wrong_input(as_json=as_json), ProgressView(experiment) as view:
            result = experiment.run(watch=view)
        _report(out, experiment, result, as_json=as_json)
        if serve:
            out.print(f"\nThe page stays at {url} until Ctrl-C.", soft_wrap=True)
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()


@contextlib.contextmanager
def _served(root: Path, port: int) -> Any:
    from hookline.server import WebServer

    with WebServer(root, port=port) as server:
        yield server.url


def _report(out: Console, experiment: "Experiment", result: "ExperimentResult", *, as_json: bool) -> None:
    """Print the summary, or how to resume after a signal."""
    from hookline.cli.demo.study import Summary, complete_runs

    if experiment.stop_reason is not None:
        complete, runs = complete_runs(experiment), len(experiment.plan())
        if as_json:
            facts = {"output_dir": str(experiment.store.directory), "complete": complete, "runs": runs}
            print_json({"status": result.status, **facts})
        _exit_stopped(
            out, experiment.stop_reason.partition(" ")[0], f"{complete} of {runs} runs are complete and kept. "
        )
    summary = Summary.of(result)
    if as_json:
        print_json(summary.to_dict())
    else:
        print_summary(out, summary)
    if result.status != "completed":
        raise typer.Exit(RUN_FAILED)


@contextlib.contextmanager
def _exit_on_interrupt(out: Console) -> Any:
    """Exit with SIGINT's status on Ctrl-C, also before anything runs or when it is pressed twice."""
    try:
        yield
    except KeyboardInterrupt:
        _exit_stopped(out, "SIGINT", "")


def _exit_stopped(out: Console, name: str, kept: str) -> NoReturn:
    out.print(f"Stopped by {name}. {kept}Run the same command again to resume.", soft_wrap=True)
    raise typer.Exit(128 + signal.Signals[name].value)
