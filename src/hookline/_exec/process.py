"""Decides which processes of a script record, and attaches them.

A script has one run, regardless of the processes it starts:

- The first process that is not a launcher takes the command's lock and records. Its children find the lock taken.
- With a launcher such as torchrun, which assigns ranks, rank zero records. The other ranks attach the same trainers,
  because a trainer's processes agree on stops and checkpoints.
- A process that starts after the recording one has ended begins a new run, e.g. the next line of a shell script. A
  restart by torchrun continues the run.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hookline._engine.defaults import mode
from hookline._exec.command import RUNS, VARIABLE, Plan
from hookline._record import files

LAUNCHERS = ("accelerate", "accelerate-launch", "deepspeed", "ray", "torchrun", "uv", "pip", "pip3", "lightning")
LAUNCHER_MODULES = (
    *("accelerate.commands.launch", "deepspeed.launcher.runner", "lightning.fabric.cli", "pip"),
    *("torch.distributed.launch", "torch.distributed.run", "ray.scripts.scripts"),
)
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
LOCK = "recording"
"""The file in the plan's folder that the recording process locks."""
_VALUED = ("-W", "-X", "--check-hash-based-pycs")
"""Python's options that take a value."""


def attach() -> None:
    """Attach to the starting process, if it should record."""
    given = os.environ.get(VARIABLE)
    if given is None or mode() == "disabled":
        return
    program = program_of(sys.orig_argv)
    if program is None or is_launcher(program):
        return
    plan = Plan(**json.loads(given))
    rank = rank_of(os.environ)
    records = rank == 0 and files.acquire_lock(Path(plan.folder, LOCK))
    if not records and int(os.environ.get("WORLD_SIZE") or 1) == 1:
        return
    from hookline._exec import hosts
    from hookline._exec.script_run import record_script

    # With several ranks, all attach or none: a single one would wait for the others forever.
    record_script(plan, program, continues=_run_to_continue(plan) if records else None, records=records)
    hosts.watch()


def program_of(arguments: Sequence[str]) -> str | None:
    """Return the script or ``-m module`` that Python runs; None if it is neither, as in a helper process.

    >>> program_of(["python", "-X", "utf8", "-u", "train.py", "--lr", "1"])
    'train.py'
    >>> program_of(["python", "-m", "package.train"])
    '-m package.train'
    >>> program_of(["python", "-c", "from multiprocessing.spawn import spawn_main"])
    """
    rest = iter(arguments[1:])
    for argument in rest:
        if argument == "-m":
            return f"-m {next(rest, '')}"
        if argument.startswith("-m"):
            return f"-m {argument[2:]}"
        if argument.startswith("-c"):
            code = next(rest, "") if argument == "-c" else argument[2:]
            return None if "multiprocessing" in code else "-c"
        if argument in _VALUED:
            next(rest, None)
        elif argument == "-" or not argument.startswith("-"):
            return argument
    return None


def is_launcher(program: str) -> bool:
    """Return whether a program is a launcher, which starts the training processes.

    >>> [is_launcher(each) for each in ("/env/bin/torchrun", "-m torch.distributed.run", "train.py")]
    [True, True, False]
    """
    if program.startswith("-m "):
        return program.removeprefix("-m ") in LAUNCHER_MODULES
    return Path(program).name in LAUNCHERS


def rank_of(environment: Mapping[str, str]) -> int:
    """Return the rank that a launcher assigned; 0 without a launcher.

    >>> rank_of({"SLURM_PROCID": "3"}), rank_of({"RANK": "0", "SLURM_PROCID": "3"}), rank_of({})
    (3, 0, 0)
    """
    given = next((environment[name] for name in RANKS if environment.get(name)), "0")
    return int(given) if given.isdecimal() else 0


def _run_to_continue(plan: Plan) -> Path | None:
    """Return the run of this command that a restart by torchrun continues; None for a first start."""
    listed = Path(plan.folder, RUNS)
    if int(os.environ.get(RESTARTS) or 0) == 0 or not listed.is_file():
        return None
    return Path(listed.read_text(encoding="utf-8").splitlines()[-1])
