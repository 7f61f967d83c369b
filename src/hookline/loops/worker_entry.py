"""`main`: the entry of a training script. It reads the command line, trains, and returns the result.

    python train.py --config sft.yaml train.epochs=3 --train.learning_rate 1e-4

Under ``torchrun`` or ``accelerate launch`` it runs on every rank; logger functions run on the main one only.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hookline.core.errors import ConfigError, HooklineError, MissingExtraError, UnknownNameError
from hookline.core.state import LoopArtifacts
from hookline.loops.config_file import load_config
from hookline.loops.signals import exit_status

USAGE_ERROR = 2


def main(
    custom_logger_fns: Iterable[Callable[..., Any]] | None = None,
    hook_fns: Mapping[str, Any] | None = None,
    *,
    callbacks: Any = None,
    argv: Sequence[str] | None = None,
) -> LoopArtifacts:
    """Train as a configuration file says, with loggers and hooks of your own.

    What is wrong with the configuration is printed, and ends the program with code 2. A training that a signal
    stopped is saved, and ends the program with 128 and the signal's number, as other programs do.

    Args:
        custom_logger_fns: Functions ``(report_data, step)`` called after each step and validation, on rank zero.
        hook_fns: Functions ``(worker, report_data)`` by the name of a hook.
        callbacks: Callbacks besides those of the configuration.
        argv: The arguments; those of the program by default.
    """
    arguments, overrides = _parser().parse_known_args(sys.argv[1:] if argv is None else list(argv))
    try:
        worker = _worker(arguments.config, overrides, custom_logger_fns, hook_fns, callbacks)
    except HooklineError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the program's own words
        raise SystemExit(USAGE_ERROR) from error
    try:
        result: LoopArtifacts = worker.run()
    except (UnknownNameError, ConfigError) as error:  # of what is to be resumed
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the program's own words
        raise SystemExit(USAGE_ERROR) from error
    finally:
        leave_process_group()
    status = exit_status(result.stop_reason)
    if status is not None:
        raise SystemExit(status)
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Fine-tune a causal language model.",
        epilog="Settings of the file are overridden by their path: train.epochs=3 or --train.epochs 3.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="a YAML, TOML or JSON file with the settings")
    return parser


def _worker(path: str, overrides: Sequence[str], logger_fns: Any, hook_fns: Any, callbacks: Any) -> Any:
    try:
        import torch  # noqa: F401 - so that what is missing is named
    except ImportError as error:
        raise MissingExtraError("hookline.main", "hf") from error
    from hookline.loops.worker import SFTPolicyWorker
    from hookline.loops.worker_config import WorkerConfig

    config = load_config(path, WorkerConfig, overrides)
    return SFTPolicyWorker(config, custom_logger_fns=logger_fns, hook_fns=hook_fns, callbacks=callbacks)


def leave_process_group() -> None:
    """End what ranks have in common, where there are several."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
