"""``hookline demo``: SFT, then GRPO, on sums, as an experiment of two arms; and ``--quick``, a bare loop without torch.

Exit status 0: everything completed; 1: a run failed, or a package is missing; 2: what was given is wrong, such as a
directory that cannot be written; 128 and a signal's number: that signal stopped it, and the same command goes on.
"""

import contextlib
import importlib.util
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from hookline.cli.demo_view import introduce, print_summary
from hookline.cli.output import AsJson, console, print_json
from hookline.cli.quick_demo import quick_demo
from hookline.cli.ui import PORT, Port
from hookline.cli.wrong_input import wrong_input
from hookline.core.errors import MissingExtraError
from hookline.demo.size import STANDARD, Size
from hookline.record.terminal import terminal_console

if TYPE_CHECKING:
    from hookline.experiment import Experiment, ExperimentResult

RUN_FAILED = 1
PACKAGES = ("torch", "transformers", "duckdb", "starlette", "uvicorn", "cloudpickle")

Root = Annotated[Path, typer.Option(help="Where it is recorded.")]
Serve = Annotated[bool, typer.Option("--serve", help="Serve the page from the start, and until Ctrl-C.")]
Quick = Annotated[bool, typer.Option("--quick", help="A bare loop instead, in seconds and without torch.")]
Repeats = Annotated[int, typer.Option(min=1, help="How often each arm is trained.")]
SFTSteps = Annotated[int, typer.Option(min=1, help="Steps of SFT.")]
GRPOSteps = Annotated[int, typer.Option(min=1, help="Steps of GRPO.")]
Processes = Annotated[int, typer.Option(min=1, help="How many runs are made at a time, each in a process.")]


def demo(
    *,
    root: Root = Path("runs"),
    serve: Serve = False,
    port: Port = PORT,
    quick: Quick = False,
    repeats: Repeats = STANDARD.repeats,
    sft_steps: SFTSteps = STANDARD.sft_steps,
    grpo_steps: GRPOSteps = STANDARD.grpo_steps,
    processes: Processes = STANDARD.processes,
    as_json: AsJson = False,
) -> None:
    """Train a tiny model on sums by SFT, then GRPO: two arms, two repeats, two minutes. Interrupted, run it again."""
    if quick:
        with wrong_input(as_json=as_json):
            quick_demo(root, as_json=as_json)
        return
    _require_packages()
    from hookline.demo.study import next_experiment

    out = terminal_console(stderr=True) if as_json else console()
    with contextlib.ExitStack() as around:
        around.enter_context(_interrupts(out))
        with wrong_input(as_json=as_json):
            size = Size(repeats=repeats, sft_steps=sft_steps, grpo_steps=grpo_steps, processes=processes)
            experiment = next_experiment(root, size)
            experiment.check().close()
            url = around.enter_context(_served(root, port)) if serve else None
        introduce(out, experiment, url or f"http://127.0.0.1:{PORT}/", is_served=serve)
        with wrong_input(as_json=as_json):
            result = _made(experiment)
        _tell(out, experiment, result, as_json=as_json)
        if serve:
            out.print(f"\nThe page stays at {url} until Ctrl-C.", soft_wrap=True)
            _wait_for_interrupt()


def _require_packages() -> None:
    if any(importlib.util.find_spec(package) is None for package in PACKAGES):
        raise MissingExtraError("hookline demo (unlike hookline demo --quick)", "hf,experiment,ui")


@contextlib.contextmanager
def _served(root: Path, port: int) -> Any:
    from hookline.server import WebServer

    with WebServer(root, port=port) as server:
        yield server.url


def _made(experiment: "Experiment") -> "ExperimentResult":
    from hookline.experiment import ProgressView

    with ProgressView(experiment) as view:
        return experiment.run(watch=view)


def _tell(out: Console, experiment: "Experiment", result: "ExperimentResult", *, as_json: bool) -> None:
    """Say what came of it, or how to go on where a signal stopped it."""
    from hookline.demo.study import complete_runs
    from hookline.demo.summary import Summary

    if experiment.stop_reason is not None:
        complete, runs = complete_runs(experiment), len(experiment.plan())
        if as_json:
            facts = {"output_dir": str(experiment.store.directory), "complete": complete, "runs": runs}
            print_json({"status": result.status, **facts})
        _stopped(out, experiment.stop_reason.partition(" ")[0], f"{complete} of {runs} runs are complete and kept. ")
    summary = Summary.of(result)
    if as_json:
        print_json(summary.to_dict())
    else:
        print_summary(out, summary)
    if result.status != "completed":
        raise typer.Exit(RUN_FAILED)


@contextlib.contextmanager
def _interrupts(out: Console) -> Any:
    """End as programs do that Ctrl-C ended, also where nothing runs yet or it is pressed twice."""
    try:
        yield
    except KeyboardInterrupt:
        _stopped(out, "SIGINT", "")


def _stopped(out: Console, name: str, kept: str) -> None:
    out.print(f"Stopped by {name}. {kept}Run the same command again to resume.", soft_wrap=True)
    raise typer.Exit(128 + signal.Signals[name].value)


def _wait_for_interrupt() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
