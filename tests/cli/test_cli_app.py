"""The program itself: version, help, and how errors end it."""

import hookline


def test_version_option_prints_the_version_only(program):
    result = program("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"hookline {hookline.__version__}\n", "")


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
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "Error: Nothing is registered as 'erly_stopping'. Did you mean 'early_stopping'?\n"


def test_usage_error_unknown_command_exits_with_two(cli):
    result = cli("hooks", "shw")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "No such command 'shw'" in result.stderr
