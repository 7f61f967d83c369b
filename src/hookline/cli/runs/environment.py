"""The environment of runs as text, and ``hookline runs code``: show or restore the code that a run was started with."""

import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hookline._engine.errors import OptionError
from hookline._record.environment import Environment, RankEnvironment, read_environments
from hookline._record.run_directory import read_metadata
from hookline._record.source_code import Restored, read_diff, restore_code
from hookline._record.terminal import one_line, plural, printable
from hookline.cli.output import AsJson, console, print_facts, print_json, wrong_input
from hookline.cli.runs.reference import Root, RunArgument, locate
from hookline.cli.runs.text import bytes_text, clock_text

_SHOWN = 20

Target = Annotated[
    Path | None,
    typer.Argument(
        metavar="[DIR]",
        help="Where to restore the code: a clean checkout of its commit, or a new directory.",
        show_default=False,
    ),
]
Session = Annotated[int, typer.Option(help="The session of a resumed run: 1 is the first, -1 the latest.")]


def environment_rows(environment: Environment) -> dict[str, str]:
    """The hardware, the container and the job of a session, as short texts; empty where unknown."""
    hardware = environment.hardware
    gpus = hardware.get("gpus")
    names = Counter(str(gpu.get("name")) for gpu in gpus if isinstance(gpu, dict)) if isinstance(gpus, list) else {}
    memory = hardware.get("memory_bytes")
    parts = [
        str(hardware.get("cpu") or ""),
        f"{hardware['cores']} cores" if hardware.get("cores") else "",
        bytes_text(memory) if isinstance(memory, int) else "",
        *(name if count == 1 else f"{count} x {name}" for name, count in names.items()),
    ]
    container = environment.container
    return {
        "os": str(environment.host.get("os") or environment.host.get("platform") or ""),
        "hardware": ", ".join(filter(None, parts)),
        "container": " ".join(str(container[key]) for key in ("kind", "id", "namespace") if container.get(key)),
        "job": ", ".join(f"{name}={value}" for name, value in environment.variables.items()),
    }


def rank_rows(ranks: list[RankEnvironment]) -> dict[str, str]:
    """The differences on ranks other than zero, as a short text for each host."""
    hosts: dict[str, list[RankEnvironment]] = {}
    for each in ranks:
        hosts.setdefault(each.host, []).append(each)
    rows = {}
    for host, own in hosts.items():
        hardware = next((each.hardware for each in own if each.hardware), {})
        python = next((f"Python {each.python}" for each in own if each.python), "")
        others = ", ".join(str(each.rank) for each in own if each.packages)
        parts = [
            ", ".join(str(each.rank) for each in own),
            environment_rows(Environment(hardware=hardware))["hardware"],
            python,
            f"other packages on {others}" if others else "",
        ]
        rows[f"ranks on {host or 'an unknown host'}"] = "; ".join(filter(None, parts))
    return rows


def code_command(
    run: RunArgument,
    target: Target = None,
    *,
    diff: Annotated[bool, typer.Option("--diff", help="Print the changes against the commit.")] = False,
    session: Session = -1,
    root: Root = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Show the code of a run: its commit, changes and untracked files; with a directory, restore them there.

    In a clean checkout of the run's commit the changes are applied. In a new directory they are written to git.diff.
    Untracked files are there if the run was started with code="all". No existing file is replaced. Code of a run that
    somebody else recorded is theirs: read it before you run it.
    """
    with wrong_input(as_json=as_json):
        directory = locate(root, run).directory
        environment, count = _chosen(directory, session)
        git = environment.git
        if diff:
            typer.echo(printable(read_diff(directory, git).decode("utf-8", "replace")), nl=False)
            return
        restored = None if target is None else restore_code(directory, git, target)
    if as_json:
        document: dict[str, Any] = {"run": directory.name, "sessions": count, "git": git}
        print_json(document | ({} if restored is None else {"restored": msgspec.to_builtins(restored)}))
    elif restored is None:
        _print_code(environment)
    else:
        _print_restored(restored, git, target)


def _chosen(directory: Path, number: int) -> tuple[Environment, int]:
    sessions = read_environments(directory)
    if not sessions:  # recorded by version 0.1, or ended at once
        facts = read_metadata(directory)
        git = facts.get("git")
        sessions = [Environment(git=git if isinstance(git, dict) else {})]
    index = number - 1 if number > 0 else number
    if number == 0 or not -len(sessions) <= index < len(sessions):
        raise OptionError(f"--session {number}: the run has {len(sessions)}; give 1 to {len(sessions)}, or -1.")
    return sessions[index], len(sessions)


def _print_code(environment: Environment) -> None:
    git, out = environment.git, console()
    if not git.get("commit"):
        out.print("The run was not started in a git repository with a commit.")
    diff, files = git.get("diff"), git.get("files")
    rows = {
        "commit": str(git.get("commit") or ""),
        "branch": str(git.get("branch") or ""),
        "remote": str(git.get("remote") or ""),
        "started": clock_text(environment.time) if 0 < environment.time < time.time() + 1e9 else "",
        "in": environment.directory,
        "changes": _diff_text(diff) if isinstance(diff, dict) else "none" if git.get("changed") is False else "",
        "untracked": _untracked_text(git),
        "problem": str(git.get("problem") or ""),
    }
    print_facts(out, rows.items())
    for file in files[:_SHOWN] if isinstance(files, list) else ():
        if isinstance(file, dict):
            out.print(f"    {one_line(str(file.get('path')))}", soft_wrap=True)
    if isinstance(files, list) and len(files) > _SHOWN:
        out.print(f"    and {len(files) - _SHOWN} more: use --json")


def _diff_text(diff: dict[str, Any]) -> str:
    size = diff.get("size")
    parts = [bytes_text(size)] if isinstance(size, int) else []
    if diff.get("redacted"):
        parts.append("with redacted parts")
    if diff.get("left_out"):
        parts.append(f"without those of {', '.join(map(str, diff['left_out']))}: too large")
    if diff.get("is_cut"):
        parts.append("and of files after these")
    return ", ".join(parts) or "left out"


def _untracked_text(git: dict[str, Any]) -> str:
    count, files, left_out = git.get("untracked"), git.get("files"), git.get("files_left_out_count")
    if not count:
        return ""
    if not isinstance(files, list):
        return f'{plural(count, "file")}, not kept (code="all" keeps them)'
    return f"{len(files)} of {count} files kept{f', {left_out} left out' if left_out else ''}"


def _print_restored(restored: Restored, git: dict[str, Any], target: Path | None) -> None:
    out = console()
    if restored.is_applied:
        out.print(f"The changes are applied to {target}.", soft_wrap=True)
    shown = [one_line(name) for name in restored.written]
    if shown:
        names = ", ".join(shown[:_SHOWN]) + (", ..." if len(shown) > _SHOWN else "")
        out.print(f"Written to {target}: {names}", soft_wrap=True)
    for name in restored.left_out:
        out.print(f"Left out: {one_line(name)}", soft_wrap=True, style="yellow")
    if not restored.is_applied and git.get("commit"):
        out.print(f"The commit: git checkout {one_line(str(git['commit']))}", soft_wrap=True)
    if not shown and not restored.is_applied and not restored.left_out:
        out.print("The run had no changes against its commit.")
