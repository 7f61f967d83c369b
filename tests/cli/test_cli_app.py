"""The program itself: version, help, and how errors end it."""

import subprocess
import sys

import pytest
import typer.main

import hookline
from hookline.cli import app


def test_version_option_prints_the_version_only(program):
    result = program("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"hookline {hookline.__version__}\n", "")


IMPORTED = """
import sys
from hookline.cli import app
sys.argv = ["hookline", "hooks", "list"]
app(standalone_mode=False)
print(*{name.split(".")[1] for name in sys.modules if name.startswith("hookline.")})
"""


def test_command_imports_only_what_it_needs():
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    imported = set(done.stdout.splitlines()[-1].split())
    assert imported & {"callbacks", "cli", "experiment", "server", "store"} == {"callbacks", "cli"}


def test_help_option_names_every_command(cli):
    result = cli("--help")
    assert result.exit_code == 0
    assert "Hooks, callbacks and logging for every training loop." in result.stdout
    assert all(command in result.stdout for command in ("demo", "hooks", "--version"))


def test_hooks_help_names_every_command(cli):
    result = cli("hooks", "--help")
    assert all(f" {command} " in result.stdout for command in ("list", "show", "check", "plan", "new"))


def test_hookline_error_any_command_is_one_message_on_stderr(program):
    result = program("hooks", "show", "erly_stopping")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "Error: Nothing is registered as 'erly_stopping'. Did you mean 'early_stopping'?\n"


def test_usage_error_unknown_command_exits_with_two(cli):
    result = cli("hooks", "shw")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "No such command 'shw'" in result.stderr


def commands(command, path=()):
    """Every command and group below one, with the words that start it."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


def test_help_of_every_command_shows_flags_without_values_and_arguments_in_capitals(cli):
    for path, _ in commands(typer.main.get_command(app)):
        shown = cli(*path, "--help").stdout
        usage = next(line for line in shown.splitlines() if "Usage:" in line)
        arguments = usage.partition("[OPTIONS]")[2].strip()
        assert ("<bool>" in shown, "{" in usage) == (False, False), path
        assert arguments == arguments.upper(), path


def test_help_paragraphs_are_wrapped_by_the_terminal_alone(program):
    lines = [line.rstrip() for line in program("serve", "--help", columns=80).stdout.splitlines()]
    first = next(place for place, line in enumerate(lines) if line.startswith(" Sending needs"))
    paragraph = lines[first : lines.index("", first)]
    assert len(paragraph) > 3
    assert min(map(len, paragraph[:-1])) > 60


@pytest.mark.parametrize(
    ("path", "usage"),
    [
        ("runs show", "RUN"),
        ("runs verify", "[RUN]..."),
        ("runs sync", "[RUN]"),
        ("runs compare", "A B [C]..."),
        ("runs importance", "METRIC"),
        ("hooks check", "FILE"),
        ("run", "FILE [PATH=VALUE]..."),
        ("serve", "[ROOT]"),
        ("runs", "COMMAND [ARGS]..."),
    ],
)
def test_help_usage_line_of(path, usage, cli):
    shown = cli(*path.split(), "--help").stdout
    line = next(line for line in shown.splitlines() if "Usage:" in line)
    assert line.rstrip().endswith(f" {path} [OPTIONS] {usage}")


def test_usage_error_missing_argument_is_named_as_in_the_help(cli):
    assert "Missing argument 'FILE'" in cli("hooks", "check").stderr


@pytest.mark.parametrize(
    "command",
    [
        "runs list --root nowhere",
        "runs show nobody",
        "runs compare one other",
        "runs importance nothing",
        "runs importance loss --mode down",
        "runs tail nobody",
        "runs verify nobody",
        "runs sync nobody",
        "runs export nobody -o x.csv",
        "runs delete nobody",
        "runs import nowhere.csv",
        "sql nonsense",
        "run nowhere.yaml",
        "hooks show nobody",
        "hooks check nowhere.yaml",
        "hooks plan nowhere.yaml",
        "hooks new 9lives",
        "bench nobody",
        "demo --quick --root /proc/hookline --json",
        "serve --host 192.0.2.1",
        "ui --host 192.0.2.1 --no-open",
        "runs list --no-such-option",
    ],
)
def test_wrong_input_exits_with_two_and_a_message_from_every_command(command, cli, tmp_path):
    if "nowhere" not in command:
        with hookline.run("there", root=tmp_path / "runs", summary=False):
            pass
    result = cli(*command.split())
    assert (result.exit_code, "Traceback" in result.stderr, result.stderr != "") == (2, False, True)


def test_missing_package_exits_with_one_from_every_command(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with hookline.run("there", summary=False):
        pass
    results = [cli("runs", "list"), cli("sql", "select 1"), cli("runs", "export", "latest", "-o", "x.csv"), cli("demo")]
    assert [(result.exit_code, "pip install 'hookline[" in result.stderr) for result in results] == [(1, True)] * 4


def test_serve_on_an_address_of_another_machine_says_that_it_is_not_ours(cli):
    result = cli("serve", "--host", "192.0.2.1")
    assert result.exit_code == 2
    assert "host='192.0.2.1': this machine does not have that address." in result.stderr
    assert "another port" not in result.stderr
