"""Everything that a process prints is recorded, and is shown as if nothing recorded it."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from printing import recorded, run_directory, run_in_terminal, run_script, texts
from typer.testing import CliRunner
from waiting import wait_until

import hookline as hl
from hookline._record.console import FILE_BYTES, HEAD_FILES, TAIL_FILES, ConsoleWriter
from hookline._record.console_reader import console_page, crash_reports, read_console
from hookline._record.console_rest import redact_leftovers
from hookline._record.console_text import MAX_LINE, LineAssembler
from hookline.cli import app


def test_console_records_python_c_code_and_children(tmp_path):
    done = run_script(
        tmp_path,
        """
        with begin() as run:
            print("python", flush=True)
            libc.puts(b"C code"); libc.fflush(None)
            subprocess.run(["echo", "child"])
            print("error", file=sys.stderr)
            logging.warning("logged %d", 3)
            warnings.warn("careful")
        print("after")
        """,
    )
    assert done.stdout.splitlines() == ["python", "C code", "child", "after"]
    assert texts(tmp_path) == ["python", "C code", "child"]
    assert texts(tmp_path, "stderr") == done.stderr.splitlines()
    assert done.stderr.splitlines()[:2] == ["error", "WARNING:root:logged 3"]
    logged = [(row.level, row.logger, row.text.rpartition(": ")[2]) for row in recorded(tmp_path, streams=("log",))]
    assert logged == [("WARNING", "root", "logged 3"), ("WARNING", "py.warnings", "careful")]


def test_console_lines_have_time_step_and_rank(tmp_path):
    done = run_script(
        tmp_path,
        """
        with begin(console="python") as run:
            for step in run.steps(range(3)):
                print("in", step)
        """,
        env=os.environ | {"RANK": "0"},
    )
    assert done.returncode == 0, done.stderr
    rows = recorded(tmp_path, streams=("stdout",))
    assert [(row.text, row.step, row.rank) for row in rows] == [("in 0", 0, 0), ("in 1", 1, 0), ("in 2", 2, 0)]
    assert all(row.time > 1e9 for row in rows)


ENDINGS = {
    "return": ("pass", 0),
    "exit": ("sys.exit(3)", 3),
    "exception": ("raise ValueError('broken')", 1),
    "os._exit": ("os._exit(4)", 4),
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "crash in C": ("ctypes.string_at(0)", -signal.SIGSEGV),
    "abort": ("os.abort()", -signal.SIGABRT),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_console_is_shown_and_recorded_up_to_the_end_of_the_process(tmp_path, ending):
    statement, code = ENDINGS[ending]
    done = run_script(
        tmp_path,
        f"""
        with begin() as run:
            for number in range(1000):
                print("line", number, flush=True)
            {statement}
        """,
    )
    assert done.returncode == code
    assert done.stdout.splitlines() == [f"line {number}" for number in range(1000)]
    wait_until(lambda: texts(tmp_path) == done.stdout.splitlines())  # what a dead process left is saved by the pump


@pytest.mark.parametrize("level", ["fd", "python"])
def test_console_with_32_threads_loses_no_line(tmp_path, level):
    done = run_script(
        tmp_path,
        f"""
        def work(thread):
            for number in range(200):
                sys.stdout.write(f"{{thread}} {{number}} {{'x' * 50}}\\n")
        with begin(console={level!r}) as run:
            threads = [threading.Thread(target=work, args=(thread,)) for thread in range(32)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        """,
    )
    assert len(done.stdout.splitlines()) == 32 * 200
    assert sorted(texts(tmp_path)) == sorted(done.stdout.splitlines())


@pytest.mark.parametrize("level", ["fd", "python"])
@pytest.mark.parametrize("ending", ["pass", "raise ValueError('broken')"])
def test_console_restores_everything_exactly(tmp_path, level, ending):
    done = run_script(
        tmp_path,
        f"""
        def state():
            files = [os.fstat(number)[:3] + (os.get_inheritable(number),) for number in (1, 2)]
            patched = [vars(sys.stdout).get("write"), vars(sys.stderr).get("write")]
            functions = [logging.Logger.callHandlers, warnings.showwarning]
            return files, patched, functions, sorted(os.listdir("/proc/self/fd"))
        with begin(console=False): pass  # opens what every run keeps open
        before = state()
        try:
            with begin(console={level!r}):
                print("within")
                {ending}
        except ValueError:
            pass
        assert state() == before, (before, state())
        assert not [each for each in threading.enumerate() if each.name == "hookline-console"]
        """,
    )
    assert done.returncode == 0, done.stderr


def test_console_after_fork_is_the_parent_s_and_the_child_has_no_reader(tmp_path):
    done = run_script(
        tmp_path,
        """
        with begin() as run:
            print("parent", flush=True)
            child = os.fork()
            if child == 0:
                print("child", threading.active_count(), flush=True)
                with hl.run("inner", root=None) as inner:
                    print("still here", flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            print("done", flush=True)
        """,
    )
    assert done.stdout.splitlines() == ["parent", "child 1", "still here", "done"]
    assert texts(tmp_path) == done.stdout.splitlines()


def test_console_of_a_child_that_outlives_the_process_still_arrives(tmp_path):
    child = "import time; time.sleep(0.3); print('late'); print('later')"
    done = run_script(
        tmp_path,
        f"""
        begin().__enter__()
        subprocess.Popen([sys.executable, "-c", {child!r}])
        print("early", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert done.stdout.splitlines() == ["early", "late", "later"]
    wait_until(lambda: texts(tmp_path) == ["early", "late", "later"])


def test_console_with_a_full_disk_still_prints_and_ends(tmp_path):
    done = run_script(
        tmp_path,
        """
        import resource
        with begin() as run:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            for number in range(20000):
                print("line", number)
            sys.stdout.flush()
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"line {number}" for number in range(20000)]


def test_console_without_its_pump_still_prints_and_says_so(tmp_path):
    done = run_script(
        tmp_path,
        """
        with begin() as run:
            [pump] = open(f"/proc/self/task/{os.getpid()}/children").read().split()
            os.kill(int(pump), signal.SIGKILL)
            # A dying pump may take with it what it has read and not yet written: print after its death.
            os.waitid(os.P_PID, int(pump), os.WEXITED | os.WNOWAIT)
            for number in range(5000):
                print("line", number, flush=True)
            subprocess.run(["echo", "child"])
        print("after")
        """,
    )
    assert done.returncode == 0, done.stderr
    lines = [f"line {number}" for number in range(5000)]
    assert sorted(done.stdout.splitlines()) == sorted([*lines, "child", "after"])
    assert "died" in done.stderr


def test_console_does_not_deadlock_with_code_that_holds_the_interpreter_lock(tmp_path):
    done = run_script(
        tmp_path,
        """
        with begin() as run:
            text = b"x" * 79 + b"\\n"
            holding = ctypes.PyDLL(None)  # keeps the lock during the call, as many extensions do
            for _ in range(5000):
                holding.write(1, text, len(text))
        """,
    )
    assert done.stdout == ("x" * 79 + "\n") * 5000
    assert len(texts(tmp_path)) == 5000


def test_console_of_both_streams_in_one_file_keeps_their_order(tmp_path):
    done = run_script(
        tmp_path,
        """
        with begin() as run:
            for number in range(300):
                print("out", number, flush=True)
                print("err", number, file=sys.stderr, flush=True)
        """,
        capture_output=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    expected = [f"{stream} {number}" for number in range(300) for stream in ("out", "err")]
    assert done.stdout.splitlines() == expected
    assert texts(tmp_path) == expected


def test_console_without_room_for_a_thread_still_prints(tmp_path):
    done = run_script(
        tmp_path,
        """
        start = threading.Thread.start
        def refuse(thread):
            if thread.name == "hookline-console": raise RuntimeError("can't start new thread")
            start(thread)
        threading.Thread.start = refuse
        with begin() as run: print("shown", flush=True)
        """,
    )
    assert (done.returncode, done.stdout) == (0, "shown\n")
    assert "Console output of this run is not recorded: can't start new thread" in done.stderr


def test_console_false_records_nothing(tmp_path):
    done = run_script(tmp_path, 'with begin(console=False): print("shown")')
    assert done.stdout == "shown\n"
    assert not (run_directory(tmp_path) / "console").exists()


def test_console_of_another_value_is_refused():
    with pytest.raises(hl.OptionError, match="console='tty': give True, False, 'auto', 'fd' or 'python'"):
        hl.run("train", root=None, console="tty")


def test_console_of_nested_runs_is_recorded_in_both(tmp_path):
    run_script(
        tmp_path,
        """
        with begin() as outer:
            print("one", flush=True)
            with hl.run("inner", root=sys.argv[1] + "-inner", summary=False):
                print("two", flush=True)
            print("three", flush=True)
        """,
    )
    assert texts(tmp_path) == ["one", "two", "three"]
    [inner] = tmp_path.glob("runs-inner/*/*/run.json")
    assert [row.text for row in read_console(inner.parent)][-1] == "two"


def test_console_leaves_redirections_of_the_program_alone(tmp_path):
    done = run_script(
        tmp_path,
        """
        import contextlib, io
        with begin() as run:
            with contextlib.redirect_stdout(io.StringIO()) as text:
                print("caught")
            assert text.getvalue() == "caught\\n"
            other = os.open("other.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(other, 1)
        print("to the file", flush=True)
        """,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "other.txt").read_text() == "to the file\n"


# Pytest, notebooks, terminals, displays and debuggers.


def test_console_stays_out_of_pytest_s_capture(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import hookline as hl\n"
        "def test_one(capfd, tmp_path):\n"
        "    with hl.run('x', root=tmp_path, summary=False) as run:\n"
        "        print('seen by pytest')\n"
        "    assert capfd.readouterr().out == 'seen by pytest\\n'\n"
        "    assert not (run.dir / 'console').exists()\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    assert "1 passed" in done.stdout, done.stdout


def test_console_in_a_notebook_is_shown_there_and_recorded(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    code = (
        "import sys, hookline as hl\n"
        "with hl.run('cell', root='runs', summary=False):\n"
        "    print('in the notebook')\n"
        "    print('an error', file=sys.stderr)\n"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = {output.name: output.text for output in notebook.cells[0].outputs}
    assert shown == {"stdout": "in the notebook\n", "stderr": "an error\n"}
    assert (texts(tmp_path), texts(tmp_path, "stderr")) == (["in the notebook"], ["an error"])
    [note] = texts(tmp_path, "note")
    assert "at Python level" in note


def test_console_on_a_terminal_leaves_the_terminal_to_the_program(tmp_path):
    shown = run_in_terminal(
        tmp_path,
        """
        with begin() as run:
            print("terminal:", sys.stdout.isatty(), os.isatty(1), os.ttyname(1) == os.ttyname(0))
            print("\\x1b[31mred\\x1b[0m")
        """,
    )
    assert "terminal: True True True" in shown
    assert texts(tmp_path) == ["terminal: True True True", "\x1b[31mred\x1b[0m"]
    assert ["at Python level" in note for note in texts(tmp_path, "note")] == [True]


def test_console_fd_on_a_terminal_uses_a_pseudo_terminal_of_the_same_size(tmp_path):
    shown = run_in_terminal(
        tmp_path,
        """
        size = os.get_terminal_size(0)
        with begin(console="fd") as run:
            print("terminal:", sys.stdout.isatty(), os.get_terminal_size(1) == size, flush=True)
            libc.puts(b"C code"); libc.fflush(None)
        print("after", os.ttyname(1) == os.ttyname(0))
        """,
    )
    assert shown.replace("\r", "").splitlines() == ["terminal: True True", "C code", "after True"]
    assert texts(tmp_path) == ["terminal: True True", "C code"]


def test_console_of_rich_s_live_display_is_its_first_and_last_state(tmp_path):
    run_in_terminal(
        tmp_path,
        """
        from rich.console import Console
        from rich.live import Live
        from rich.table import Table
        def table(number):
            rows = Table("name", "value")
            rows.add_row("loss", str(number))
            return rows
        with begin() as run:
            with Live(table(0), console=Console(), auto_refresh=False) as live:
                for number in range(200):
                    live.update(table(number), refresh=True)
                    if number == 100: print("printed meanwhile")
            print("done")
        """,
    )
    lines = texts(tmp_path)
    assert lines[-1] == "done"
    assert sum("loss" in line for line in lines) <= 4
    assert any("199" in line for line in lines)
    assert any("printed meanwhile" in line for line in lines)
    assert len(lines) < 40


def test_console_of_a_display_that_a_thread_refreshes_is_recorded_before_what_follows(tmp_path):
    run_in_terminal(
        tmp_path,
        """
        from rich.console import Console
        from rich.live import Live
        with begin() as run:
            for rows in (3, 1):
                with Live("", console=Console(highlight=False), auto_refresh=False) as live:
                    for number in range(20):
                        live.update("\\n".join(f"row {row} of {rows}: {number}" for row in range(rows)))
                        thread = threading.Thread(target=live.refresh)
                        thread.start()
                        thread.join()
                print("after", rows)
        """,
    )
    lines = [line for line in texts(tmp_path) if line]
    first, second = lines.index("after 3"), lines.index("after 1")
    assert lines[first - 3 : first] == ["row 0 of 3: 19", "row 1 of 3: 19", "row 2 of 3: 19"]
    assert lines[first + 1 : second + 1] == ["row 0 of 1: 19", "after 1"]
    assert second == len(lines) - 1


def test_console_leaves_the_terminal_to_a_debugger(tmp_path):
    shown = run_in_terminal(
        tmp_path,
        """
        with begin() as run:
            value = 41
            breakpoint()
            print("continued")
        """,
        typed=b"p value + 1\nc\n",
        until=b"(Pdb)",
    )
    assert "42" in shown
    assert "continued" in shown
    assert "continued" in texts(tmp_path)


def test_console_of_tqdm_is_one_line_per_bar(tmp_path):
    pytest.importorskip("tqdm")
    run_script(
        tmp_path,
        """
        import tqdm
        with begin() as run:
            for _ in tqdm.tqdm(range(500), desc="outer", mininterval=0): pass
            for _ in tqdm.tqdm(range(500), desc="second", mininterval=0): pass
        """,
    )
    lines = texts(tmp_path, "stderr")
    assert [line.partition("|")[0] for line in lines] == ["outer: 100%", "second: 100%"]


# Lines.

ASSEMBLED = {
    "plain": (["one\ntw", "o\n"], ["one", "two"]),
    "a bar": (["\r 1%", "\r 50%", "\r100%\n"], ["100%"]),
    "a bar that ends cleared": (["\rbar 100%", "\r        \r", "text\n"], ["text"]),
    "windows line ends": (["one\r\ntwo\r\n"], ["one", "two"]),
    "colours stay": (["\x1b[1;31mred\x1b[0m\n"], ["\x1b[1;31mred\x1b[0m"]),
    "others are dropped": (["\x1b[?25l\x1b]0;title\x07text\x1b[?25h\n"], ["text"]),
    "a sequence in two pieces": (["a\x1b[", "2Kb\rc\n"], ["c"]),
    "two rows redrawn": (
        ["a 1\nb 1", "\r\x1b[2K\x1b[1A\x1b[2Ka 2\nb 2", "\x1b[1A\ra 3\nb 3\n", "end\n"],
        ["a 1", "a 3", "b 3", "end"],
    ),
    "nested bars": (
        ["\router 0%", "\n\rinner 0%\x1b[A", "\n\rinner 50%\x1b[A", "\router 100%\n\n"],
        ["outer 0%", "outer 100%", "inner 50%"],
    ),
    "no end": (["never ended"], ["never ended"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ASSEMBLED)
def test_lines_are_what_a_terminal_shows_in_the_end(name):
    pieces, expected = ASSEMBLED[name]
    assembler = LineAssembler()
    lines = [line for piece in pieces for line in assembler.feed(piece)]
    assert [*lines, *assembler.finish()] == expected


def test_lines_are_bounded():
    assembler = LineAssembler()
    [line] = [line for _ in range(100) for line in assembler.feed("x" * 1000)] + assembler.feed("\n")
    assert line == "x" * MAX_LINE + f" ... ({100_000 - MAX_LINE:,} more characters)"


@pytest.mark.parametrize("has_threads", [True, False])
def test_console_keeps_the_beginning_and_the_end_and_says_what_was_removed(tmp_path, monkeypatch, has_threads):
    if not has_threads:  # then nothing closes complete files in the background

        def refuse(thread):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
    writer = ConsoleWriter(tmp_path, file_bytes=4096)
    for number in range(3000):
        writer.line(f"line {number:05d}", "stdout", float(number))
    writer.close()
    kept = list((tmp_path / "console").glob("*.jsonl"))
    assert HEAD_FILES + TAIL_FILES <= len(kept) <= HEAD_FILES + TAIL_FILES + 1
    rows = list(read_console(tmp_path))
    [note] = [row for row in rows if row.stream == "note"]
    lines = [row.text for row in rows if row.stream == "stdout"]
    assert (lines[0], lines[-1]) == ("line 00000", "line 02999")
    assert note.text == f"({3000 - len(lines):,} lines were removed here to bound the size of the record)"


def test_console_redacts_each_line_before_it_is_recorded(tmp_path):
    def redact(line):
        if "broken" in line:
            raise ValueError(line)
        return line.replace("hunter2", "***")

    writer = ConsoleWriter(tmp_path, redact=redact)
    writer.line("password hunter2", "stdout", 1.0)
    writer.log("INFO", "auth", "hunter2", 2.0)
    writer.line("broken hunter2", "stdout", 3.0)
    writer.close()
    found = [row.text for row in read_console(tmp_path, streams=("stdout", "log"))]
    assert found == ["password ***", "***", "(this line could not be redacted)"]
    assert writer.tail() == ["password ***", "(this line could not be redacted)"]


def test_reports_of_crashes_and_rests_are_redacted_when_they_are_read(tmp_path):
    (tmp_path / "console").mkdir()
    rest = {"channel": 1, "time": 1.0, "text": "password=hunter2hunter2\nhttps://me:pass@host/"}
    (tmp_path / "console" / "console-1.rest").write_text(json.dumps(rest) + "\n")
    (tmp_path / "console" / "console-1.faults").write_text("Fatal: api_key=hunter2hunter2\n")
    lines = ["password=[redacted]", "https://me:[redacted]@host/"]
    assert [row.text for row in read_console(tmp_path)] == lines
    [report] = crash_reports(tmp_path)
    assert (report.message, report.console) == ("Fatal: api_key=[redacted]", lines)
    assert "hunter2" not in report.traceback


TOKEN = "hf_" + "abcdefghij" * 3


def test_rest_of_a_killed_process_is_redacted_on_the_disk_by_the_next_session(tmp_path):
    # Printed in two pieces, without an end of the line: the process does not record it.
    body = f"""
        is_first = not os.path.exists(sys.argv[1])
        with begin(resume=None if is_first else "auto", save=print, load=print) as run:
            if is_first:
                print("whole", flush=True)
                run.save_checkpoint()
                os.write(1, b"my token is {TOKEN[:9]}"); os.write(1, b"{TOKEN[9:]}")
                os.kill(os.getpid(), signal.SIGKILL)
        """
    run_script(tmp_path, body)
    assert texts(tmp_path)[-1] == "my token is [redacted]"
    [rest] = run_directory(tmp_path).glob("console/*.rest")
    before = rest.read_text()
    done = run_script(tmp_path, body)
    assert done.returncode == 0, done.stderr
    assert (TOKEN[9:] in before, TOKEN[9:] in rest.read_text()) == (True, False)
    assert [text for text in texts(tmp_path) if "whole" in text or "token" in text] == [
        "whole",
        "my token is [redacted]",
    ]


@pytest.mark.parametrize("command", ["verify", "sync"])
def test_leftovers_of_a_killed_process_are_redacted_on_the_disk_by_a_command(tmp_path, command):
    with hl.run("one", root=tmp_path, console=False, summary=False) as run:
        pass
    directory = run.output_dir
    (directory / "console").mkdir()
    pieces = [{"channel": 1, "time": 1.0, "text": "password=hunter2hun"}, {"channel": 1, "time": 2.0, "text": "ter2\n"}]
    rest, faults = (directory / "console" / f"console-1{suffix}" for suffix in (".rest", ".faults"))
    rest.write_text("".join(json.dumps(piece) + "\n" for piece in pieces))
    faults.write_text("Fatal: api_key=hunter2hunter2\n")
    before = list(read_console(directory))
    arguments = ["runs", command, directory.name, "--root", str(tmp_path)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert ["hunter2" in path.read_text() for path in (rest, faults)] == [False, False]
    assert list(read_console(directory)) == before
    written = rest.stat().st_ino
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert rest.stat().st_ino == written


def test_rest_that_its_pump_still_writes_to_is_left_alone(tmp_path):
    (tmp_path / "console").mkdir()
    rest = tmp_path / "console" / "console-1-abcdef.rest"
    rest.write_text(json.dumps({"channel": 0, "time": 1.0, "text": "password=hunter2hunter2\n"}) + "\n")
    with rest.open() as pump:
        fcntl.flock(pump, fcntl.LOCK_EX)
        assert (redact_leftovers(tmp_path), "hunter2" in rest.read_text()) == (0, True)
    assert (redact_leftovers(tmp_path), "hunter2" in rest.read_text()) == (1, False)


def test_rest_repeats_no_line_that_was_recorded_and_not_confirmed(tmp_path):
    writer = ConsoleWriter(tmp_path)
    for number in range(3):
        writer.line("same", "stdout", float(number), end=5 * (number + 1))
    writer.close()
    rest = tmp_path / "console" / f"console-{os.getpid()}-{writer.token}.rest"
    pieces = [{"channel": 0, "time": 3.0, "offset": 5, "text": "same\nsame\nsa"}]
    pieces += [{"channel": 0, "time": 3.0, "offset": 17, "text": "me\nlast"}]
    rest.write_text("".join(json.dumps(piece) + "\n" for piece in pieces))
    assert [row.text for row in read_console(tmp_path)] == ["same"] * 4 + ["last"]


def test_rest_continues_the_line_that_had_no_end_when_its_process_was_killed(tmp_path):
    writer = ConsoleWriter(tmp_path)
    writer.line("first", "stdout", 1.0, end=6)
    writer.line("sec", "stdout", 2.0, partial=True)
    writer.line("bar 50%", "stderr", 3.0, partial=True)
    writer.close()
    rest = tmp_path / "console" / f"console-{os.getpid()}-{writer.token}.rest"
    rest.write_text(json.dumps({"channel": 0, "time": 4.0, "offset": 6, "text": "second\nthird"}))
    assert [row.text for row in read_console(tmp_path)] == ["first", "bar 50%", "second", "third"]
    assert redact_leftovers(tmp_path, lambda text: text.replace("third", "[redacted]")) == 1
    assert [row.text for row in read_console(tmp_path)] == ["first", "bar 50%", "second", "[redacted]"]


def test_console_of_a_small_run_takes_one_file_on_the_disk(tmp_path):
    writer = ConsoleWriter(tmp_path)
    writer.line("one", "stdout", 1.0)
    assert sum(file.stat().st_size for file in (tmp_path / "console").iterdir()) == FILE_BYTES
    writer.close()


def test_console_of_an_actor_has_its_name_and_no_rank(tmp_path):
    with hl.run("r", root=tmp_path, console=False, summary=False) as run:
        pass
    for number, which in enumerate(({"rank": 0}, {"rank": 2}, {"actor": "rollout0"})):
        writer = ConsoleWriter(run.dir, **which)
        writer.line(f"line {number}", "stdout", float(number))
        writer.close()
    rows = [(row.text, row.rank, row.actor) for row in read_console(run.dir)]
    assert rows == [("line 0", 0, ""), ("line 1", 2, ""), ("line 2", 0, "rollout0")]
    assert [row.text for row in read_console(run.dir, rank=0)] == ["line 0"]
    assert console_page(run.dir, limit=10).ranks == [0, 2]
    shown = CliRunner().invoke(app, ["runs", "log", run.dir.name, "--root", str(tmp_path)]).output
    assert [line.partition("] ")[0][-9:].strip(" [") for line in shown.splitlines()] == ["rank 0", "rank 2", "rollout0"]


def test_console_state_of_a_bar_in_progress_is_recorded_once_and_replaced(tmp_path):
    writer = ConsoleWriter(tmp_path)
    writer.line("10%", "stderr", 1.0, partial=True)
    writer.line("printed", "stdout", 2.0)
    writer.line("60%", "stderr", 3.0, partial=True)
    assert [row.text for row in read_console(tmp_path)] == ["printed", "60%"]
    writer.line("100%", "stderr", 4.0)
    writer.close()
    assert [row.text for row in read_console(tmp_path)] == ["printed", "100%"]


def test_console_is_read_by_hl_read(tmp_path):
    run_script(tmp_path, 'with begin() as run: print("one")')
    assert [record.text for record in hl.read(run_directory(tmp_path), writer="console")] == ["one"]
