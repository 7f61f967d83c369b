"""Writes the reference in ``cli.md`` from the commands themselves: ``python scripts/cli_reference.py``."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from hookline.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
BEGIN, END = "<!-- made by scripts/cli_reference.py -->", "<!-- to here -->"


def with_reference(page: str) -> str:
    """A page with the reference between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, behind = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{behind}"


def reference() -> str:
    """What each command does, with its arguments and options."""
    return "\n".join(_group("hookline", typer.main.get_command(app))).rstrip()


def _group(path: str, command: Any) -> Iterator[str]:
    if not hasattr(command, "commands"):
        yield from _command(path, command)
        return
    for name, sub in sorted(command.commands.items()):
        yield from _group(f"{path} {name}", sub)


def _command(path: str, command: Any) -> Iterator[str]:
    arguments = [_metavar(param) for param in command.params if param.param_type_name == "argument"]
    yield f"### `{' '.join([path, *arguments])}`"
    yield ""
    yield " ".join(inspect.cleandoc(command.help or "").split())
    yield ""
    rows = [_row(param) for param in command.params if param.name != "help"]
    if rows:
        yield from ["| | |", "|---|---|", *rows, ""]


def _row(param: Any) -> str:
    is_argument = param.param_type_name == "argument"
    name = _metavar(param) if is_argument else ", ".join([*param.opts, *param.secondary_opts])
    shows_default = isinstance(param.default, str | int | float | Path) and not isinstance(param.default, bool)
    default = f" Default: `{param.default}`." if shows_default else ""
    return f"| `{name}` | {' '.join((param.help or '').split())}{default} |"


def _metavar(param: Any) -> str:
    name = str(param.metavar or param.name.upper())
    return name if param.required or name.startswith("[") else f"[{name}]"


def main() -> None:
    """Write it."""
    PAGE.write_text(with_reference(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
