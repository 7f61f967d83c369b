"""``hookline run``: runs the experiment, or the single SFT or RL training, of a file.

Exit status 0: everything completed; 1: a run failed; 2: wrong input, nothing was run; 128 plus a signal's number: that
signal stopped it, and the same command resumes it.
"""

import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from hookline._engine.errors import ConfigError, HooklineError, UnknownNameError
from hookline.cli.output import AsJson, console, end_with, foreign_code, print_json, relative_path
from hookline.cli.plan import dry_run_document, print_dry_run, print_moments
from hookline.config.sources import overridden, read_config
from hookline.loops.signals import is_signal

RUN_FAILED = 1
EXPERIMENT_KEYS = ("arms", "base", "grid")
KINDS = "An experiment has arms, base or grid; a configuration of RL has curriculum; one of SFT has data."

File = Annotated[Path, typer.Argument(help="A YAML, TOML or JSON file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Overrides of the file: repeats=3 arms.low.train.learning_rate=1e-5.",
        metavar="[PATH=VALUE]...",
    ),
]
Processes = Annotated[int | None, typer.Option(min=1, help="How many runs at a time, each in its own process.")]
ExecutorName = Annotated[str | None, typer.Option("--executor", help="Where runs execute: local or ray.")]
OutputDir = Annotated[Path | None, typer.Option(help="The experiment's directory, instead of the file's.")]


def run(
    file: File,
    overrides: Overrides = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be run without running it.")] = False,
    processes: Processes = None,
    executor: ExecutorName = None,
    output_dir: OutputDir = None,
    progress: Annotated[bool, typer.Option("--progress/--no-progress", help="Show the progress of the runs.")] = True,
    as_json: AsJson = False,
) -> None:
    """Run the experiment or the single training of a file. If it is interrupted, run it again to resume."""
    from hookline.experiment.file import make_importable  # here, to keep other commands fast

    make_importable(Path.cwd())  # as ``python -m`` does
    given = list(overrides or ())
    with _wrong_input(as_json=as_json):
        kind, values = _recognize(file, given)
        given += _option_overrides(kind, values, processes, executor, output_dir)
    if kind == "experiment":
        _run_experiment(file, given, dry_run=dry_run, progress=progress, as_json=as_json)
    else:
        _run_single(kind, file, given, dry_run=dry_run, as_json=as_json)


def _recognize(file: Path, overrides: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """The kind of a file, by its keys, and its values."""
    values = overridden(read_config(file), overrides)
    if any(key in values for key in EXPERIMENT_KEYS):
        return "experiment", values
    kind = "rl" if "curriculum" in values else "sft" if "data" in values else None
    if kind is None:
        keys = ", ".join(map(str, values)) or "nothing"
        raise ConfigError(f"{file}: nothing to run was recognized in its keys: {keys}. {KINDS}")
    return kind, values


def _option_overrides(
    kind: str, values: Mapping[str, Any], processes: int | None, executor: str | None, output_dir: Path | None
) -> list[str]:
    """The command's options as overrides of the file."""
    made: list[str] = []
    if output_dir is not None:
        made.append(f"{'' if kind == 'experiment' else 'train.'}output_dir={json.dumps(str(output_dir))}")
    if processes is not None and (kind != "experiment" or executor not in (None, "local")):
        what = "runs on Ray" if kind == "experiment" else "a single training"
        raise ConfigError(f"--processes {processes} is for experiments with the local executor, not for {what}.")
    if processes is not None:
        made.append(f"executor={{local: {{processes: {processes}}}}}")
    elif executor is not None and kind == "sft":
        raise ConfigError(f"--executor {executor} is for experiments and RL, not for a single SFT.")
    elif executor is not None:
        given = values.get("executor")
        if given != executor and not (isinstance(given, Mapping) and list(given) == [executor]):  # keep its options
            made.append(f"executor={executor}")
    return made


def _run_experiment(file: Path, overrides: list[str], *, dry_run: bool, progress: bool, as_json: bool) -> None:
    from hookline.experiment.experiment import Experiment
    from hookline.experiment.experiment import dry_run as list_runs
    from hookline.experiment.progress import ProgressView

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # one for each saved model is noise
    with _wrong_input(as_json=as_json):
        with foreign_code():
            experiment = Experiment.from_file(file, overrides)
            planned = list_runs(experiment) if dry_run else None
            if planned is None:
                experiment.check().close()  # before the progress view appears
        if planned is not None:
            print_json(dry_run_document(planned)) if as_json else print_dry_run(planned)
            return
        try:
            with contextlib.ExitStack() as stack:
                if as_json:
                    stack.enter_context(_stdout_to_stderr())
                view = stack.enter_context(ProgressView(experiment)) if progress else None
                result = experiment.run(watch=view)
        except KeyboardInterrupt:
            _exit_stopped("SIGINT", "At once; complete runs are kept.")
    if as_json:
        print_json(result.to_dict())
    else:
        result.print()
        console().print(f"Report: {relative_path(experiment.store.directory / 'report.md')}", soft_wrap=True)
    if experiment.stop_reason is not None and is_signal(experiment.stop_reason):
        _exit_stopped(experiment.stop_reason, "Complete runs are kept.")
    if any(run.status not in ("completed", "pruned") for run in result.runs):
        raise typer.Exit(RUN_FAILED)


def _run_single(kind: str, file: Path, overrides: list[str], *, dry_run: bool, as_json: bool) -> None:
    """Run a single training, like `hookline.main` or `rl.train`."""
    from hookline.config.loading import load_config
    from hookline.config.sources import read_config_source, with_overrides
    from hookline.experiment.file import make_importable
    from hookline.experiment.file_arms import check_callbacks, config_type

    make_importable(file.resolve().parent)
    with _wrong_input(as_json=as_json):
        config = load_config(file, config_type(kind), overrides)
        if isinstance(config.train.callbacks, list | tuple):
            check_callbacks(
                config.train.callbacks, with_overrides(read_config_source(file), overrides), "train.callbacks"
            )
    if dry_run:
        _print_single(kind, config, as_json=as_json)
        return
    with _stdout_to_stderr() if as_json else contextlib.nullcontext():
        artifacts = _train(kind, config)
    if as_json:
        print_json(_artifacts_document(config, artifacts))
    reason = artifacts.stop_reason
    if reason is not None and is_signal(reason):
        _exit_stopped(reason, f"At step {artifacts.step}.", f"train.resume={artifacts.output_dir}")


def _train(kind: str, config: Any) -> Any:
    if kind == "rl":
        from hookline.rl.learner.training import train

        with _wrong_input(UnknownNameError, ConfigError):  # about the checkpoint to resume
            return train(config)
    from hookline.loops.worker import SFTPolicyWorker, leave_process_group

    with _wrong_input():
        worker = SFTPolicyWorker(config)
    try:
        with _wrong_input(UnknownNameError, ConfigError):
            return worker.run()
    finally:
        leave_process_group()


def _print_single(kind: str, config: Any, *, as_json: bool) -> None:
    from hookline._engine.collection import CallbackCollection
    from hookline.loops.worker import DEFAULT_CALLBACKS

    default = DEFAULT_CALLBACKS if kind == "sft" and config.train.callbacks == () else ()
    collection = CallbackCollection([*default, *config.train.callbacks])
    train = config.train
    facts = {"kind": kind, "name": train.name, "project": train.project, "output_dir": train.output_dir}
    facts |= {"max_steps": train.max_steps, "epochs": train.epochs, "seed": train.seed, "resume": train.resume}
    if as_json:
        print_json({**facts, "moments": collection.plan()})
        return
    for name, value in facts.items():
        console().print(f"{name:<11} {'-' if value is None else value}", soft_wrap=True)
    print_moments(collection)


def _artifacts_document(config: Any, artifacts: Any) -> dict[str, Any]:
    from hookline._record.records import clean

    document: dict[str, Any] = clean(
        {
            "name": config.train.name,
            "step": artifacts.step,
            "metrics": dict(artifacts.metrics),
            "output_dir": None if artifacts.output_dir is None else str(artifacts.output_dir),
            "stop_reason": artifacts.stop_reason,
        }
    )
    return document


@contextlib.contextmanager
def _wrong_input(*kinds: type[HooklineError], as_json: bool = False) -> Iterator[None]:
    """End the program on a `HooklineError`: wrong input, or with ``kinds``, a failed run for any other kind."""
    try:
        yield
    except HooklineError as error:
        is_wrong_input = not kinds or isinstance(error, kinds)
        end_with(error, as_json=as_json, status=None if is_wrong_input else RUN_FAILED)


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect standard output to standard error, also of child processes."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # closed
        kept = -1
    try:
        if kept >= 0:
            os.dup2(2, 1)
        with foreign_code():
            yield
    finally:
        if kept >= 0:
            os.dup2(kept, 1)
            os.close(kept)


def _exit_stopped(reason: str, state: str, *more: str) -> NoReturn:
    """Print how to resume, and exit with the signal's status."""
    name = reason.partition(" ")[0]
    command = shlex.join(["hookline", *sys.argv[1:], *more])
    typer.echo(f"Stopped by {name}. {state} Resume with: {command}", err=True)
    raise typer.Exit(128 + signal.Signals[name].value)
