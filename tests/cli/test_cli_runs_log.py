"""``hookline runs log``: what a run printed; and the traceback in ``hookline runs show``."""

import json
import subprocess

import pytest
from conftest import SCRIPT  # type: ignore[attr-defined]
from printing import run_directory, run_script, script
from waiting import wait_until

import hookline as hl
from hookline._record.console import ConsoleWriter


@pytest.fixture
def printed(tmp_path):
    """A run of two processes that has printed a few lines."""
    run_script(tmp_path, 'with begin(): print("first \\x1b[31mred\\x1b[0m")')
    directory = run_directory(tmp_path)
    # Not by the program: the order of what it writes to two pipes is not known.
    first = ConsoleWriter(directory)
    first.line("bad", "stderr", 1.9e9)
    first.close()
    second = ConsoleWriter(directory, rank=1)
    second.line("of rank one \x1b]0;title\x07\x1b[2J", "stdout", 2e9)
    second.log("ERROR", "worker", "it failed", 2e9)
    second.close()
    return directory


CHOICES = {
    "all": ([], ["[rank 0] first red", "[rank 0] bad", "[rank 1] of rank one \\x1b]0;title\\x07\\x1b[2J"]),
    "the last": (["-n", "1"], ["of rank one \\x1b]0;title\\x07\\x1b[2J"]),
    "search": (["--search", "RED"], ["first red"]),
    "stderr": (["--stderr"], ["bad"]),
    "rank": (["--rank", "1"], ["of rank one \\x1b]0;title\\x07\\x1b[2J"]),
    "records": (["--records"], ["ERROR worker: it failed"]),
    "a run that has ended is not followed": (["--follow", "--stderr"], ["bad"]),
}


@pytest.mark.parametrize("name", CHOICES)
def test_log_prints_the_lines_that_are_asked_for(printed, cli, name):
    arguments, expected = CHOICES[name]
    done = cli("runs", "log", printed, *arguments)
    assert (done.exit_code, done.stdout.splitlines()) == (0, expected), done.stderr


def test_log_as_json_has_all_facts(printed, cli):
    [line] = cli("runs", "log", printed, "--json", "--records").stdout.splitlines()
    facts = {"rank": 1, "stream": "log", "text": "it failed", "level": "ERROR", "logger": "worker", "time": 2e9}
    assert json.loads(line).items() >= facts.items()


def test_log_keeps_colours_on_a_terminal_and_nothing_else(printed, terminal):
    assert (
        terminal("runs", "log", printed, "-n", "0", "--rank", "1", columns=80)
        == "of rank one \\x1b]0;title\\x07\\x1b[2J\n"
    )


def test_log_without_lines_says_so(printed, cli, tmp_path):
    done = cli("runs", "log", printed, "--search", "nowhere")
    assert (done.stdout, done.stderr) == ("", "No recorded lines match.\n")
    with hl.run("silent", root=tmp_path / "silent", console=False, summary=False):
        pass
    done = cli("runs", "log", "--root", tmp_path / "silent")
    assert (done.stdout, done.stderr) == ("", "No lines were recorded.\n")


def test_log_follows_until_the_run_ends(tmp_path):
    body = """
    with begin():
        for line in sys.stdin: print("got", line.strip(), flush=True)
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(script(tmp_path, body), cwd=tmp_path, **pipes) as program:
        program.stdin.write("one\n")
        program.stdin.flush()
        wait_until(lambda: list(tmp_path.glob("runs/*/*/console/*.jsonl")))
        command = [SCRIPT, "runs", "log", "--follow", run_directory(tmp_path)]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as followed:
            assert followed.stdout.readline() == "got one\n"
            program.stdin.write("two\n")
            program.stdin.flush()
            assert followed.stdout.readline() == "got two\n"
            program.stdin.close()
            assert followed.stdout.read() == ""
            assert followed.wait() == 0


def test_show_prints_the_traceback_and_the_last_lines_of_a_failed_run(tmp_path, cli):
    run_script(tmp_path, 'with begin():\n    print("last words")\n    raise ValueError("out of luck")')
    shown = cli("runs", "show", run_directory(tmp_path)).stdout
    assert "Traceback (most recent call last):" in shown
    assert 'raise ValueError("out of luck")' in shown
    assert "The last line before it\n  last words" in shown
    [failure] = json.loads(cli("runs", "show", run_directory(tmp_path), "--json").stdout)["failures"]
    assert (failure["type"], failure["message"], failure["console"]) == ("ValueError", "out of luck", ["last words"])


def test_show_of_an_interrupted_run_says_where(tmp_path, cli):
    run_script(tmp_path, "with begin():\n    raise KeyboardInterrupt")
    shown = cli("runs", "show", run_directory(tmp_path)).stdout
    assert "interrupted by KeyboardInterrupt at " in shown
    assert "Traceback" not in shown


def test_sql_and_runs_see_console_lines(printed, cli):
    import hookline as hl

    runs = hl.runs(printed.parents[1])
    assert [row["text"] for row in runs.console(stream="stderr")] == ["bad"]
    assert [row["rank"] for row in runs.console(text="RANK", rank=1, limit=5, offset=0)] == [1]
    query = "SELECT stream, count(*) AS n FROM console GROUP BY stream ORDER BY stream"
    assert [(row["stream"], row["n"]) for row in runs.sql(query)] == [("log", 1), ("stderr", 1), ("stdout", 2)]
