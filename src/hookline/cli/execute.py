"""``hookline exec``: runs a script unedited and records it."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hookline._engine.defaults import (
    CALLBACKS_VARIABLE,
    NAME_VARIABLE,
    PROJECT_VARIABLE,
    ROOT_VARIABLE,
    SINKS_VARIABLE,
    TAGS_VARIABLE,
)

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""The statuses that a shell gives for such commands."""

Command = Annotated[
    list[str],
    typer.Argument(help="The command, e.g. python train.py; a file.py is run with this Python.", show_default=False),
]


def exec_command(
    command: Command,
    *,
    root: Annotated[Path | None, typer.Option(help="Where runs are recorded.")] = None,
    project: Annotated[str | None, typer.Option(help="The project of the run.")] = None,
    name: Annotated[str | None, typer.Option(help="The name of the run, instead of the script's.")] = None,
    tags: Annotated[str | None, typer.Option(help="Tags, separated by commas.")] = None,
    sinks: Annotated[str | None, typer.Option(help="Sinks, separated by commas, or a YAML list.")] = None,
    callbacks: Annotated[
        str | None, typer.Option(help="Callbacks for the trainers: hooks.py, hooks.py:Name, a file, or names.")
    ] = None,
    as_wandb: Annotated[
        bool, typer.Option("--as-wandb", help="Let `import wandb` give hookline's drop-in, also if wandb is installed.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print where the run was recorded.")] = False,
) -> None:
    """Run a script unedited and record it: console, exit code, environment, trackers and trainers."""
    from hookline._exec.command import execute
    from hookline.config.variables import choose

    given = {
        ROOT_VARIABLE: None if root is None else str(root),
        PROJECT_VARIABLE: project,
        NAME_VARIABLE: name,
        TAGS_VARIABLE: tags,
        SINKS_VARIABLE: sinks,
        CALLBACKS_VARIABLE: callbacks,
    }
    os.environ.update({variable: value for variable, value in given.items() if value is not None})
    chosen = choose(name="run")  # refuses wrong settings before the script starts
    if chosen.root is not None:
        os.environ[ROOT_VARIABLE] = str(Path(chosen.root).absolute())  # the script may change its directory
    program = [sys.executable, *command] if command[0].endswith(".py") else command
    try:
        raise typer.Exit(execute(program, as_wandb=as_wandb, quiet=quiet))
    except FileNotFoundError as error:
        raise _cannot_start(command[0], "there is no such program", NOT_FOUND) from error
    except PermissionError as error:
        raise _cannot_start(command[0], "it may not be executed", NOT_EXECUTABLE) from error


# What follows the program belongs to it: `hookline exec python train.py --name x`.
vars(exec_command)["context_settings"] = {"allow_interspersed_args": False}


def _cannot_start(program: str, why: str, status: int) -> typer.Exit:
    typer.echo(f"{program}: {why}. Give a command, e.g. hookline exec -- python train.py", err=True)
    return typer.Exit(status)
