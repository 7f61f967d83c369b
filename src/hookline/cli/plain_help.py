"""How the commands show themselves in their help: flags take no value, and arguments are written in capitals.

Typer may show a flag as ``--json <bool>`` and an argument as ``{run}``. Here it is ``--json`` and ``RUN``, or ``[RUN]``
where it may be left off, in the usage line, in the list below it and in messages.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

Function = TypeVar("Function", bound=Callable[..., Any])


class _PlainHelp:
    """What a command and a group do alike; what typer itself adds, as ``--help``, is among the parameters here."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            elif param.param_type_name == "argument" and param.metavar is None:
                param.metavar = _spelling(param)
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [param.metavar for param in self.get_params(ctx) if param.param_type_name == "argument"]
        others = [] if arguments else super().collect_usage_pieces(ctx)[1:]  # type: ignore[misc]
        return ["[OPTIONS]", *arguments, *others]


def _spelling(argument: Any) -> str:
    name = argument.name.upper()
    return name if argument.required else f"[{name}]"


class PlainCommand(_PlainHelp, TyperCommand):
    """A command with plain help."""


class PlainGroup(_PlainHelp, TyperGroup):
    """A group of commands with plain help."""


class CommandGroup(typer.Typer):
    """A group whose commands have plain help, as it has itself; without a command it shows that."""

    def __init__(self, *, cls: type[PlainGroup] = PlainGroup, **options: Any) -> None:
        super().__init__(cls=cls, no_args_is_help=True, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """As typer's."""
        return super().command(name, cls=PlainCommand, **options)
