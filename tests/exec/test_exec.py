"""`hookline exec`: a script runs as it would without, and has one run."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hookline as hl
from hookline._record.console_reader import read_console
from hookline._record.records import Metrics
from hookline._record.run_directory import read_metadata

HOOKLINE = [sys.executable, "-m", "hookline", "exec"]
PYTHON = sys.executable


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("HOOKLINE_", "WANDB_")) or name in ("RANK", "WORLD_SIZE", "PYTHONPATH"):
            monkeypatch.delenv(name)
    return tmp_path


def script(code, name="train.py"):
    Path(name).write_text(code)
    return name


def execute(*command, options=(), **settings):
    return subprocess.run(
        [*HOOKLINE, *options, "--", *command], capture_output=True, text=True, check=False, timeout=120, **settings
    )


def runs(root="runs"):
    return sorted(hl.runs(root), key=lambda run: run.started)


def printed(run):
    return [row.text for row in read_console(run.directory)]


@pytest.mark.parametrize(
    ("code", "status", "ending"),
    [
        ("", 0, "finished"),
        ("import sys; sys.exit(3)", 3, "failed"),
        ("raise SystemExit(4)", 4, "failed"),
        ("import os; os._exit(5)", 5, "failed"),
        ("raise ValueError('no')", 1, "failed"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "stopped"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, "failed"),
    ],
)
def test_exec_ends_as_the_script_and_records_how(code, status, ending):
    assert execute(PYTHON, script(code)).returncode == status

    [run] = runs()
    assert (run.name, run.status) == ("train", ending)
    assert read_metadata(run.directory)["exit"] == (
        {"exit_code": status} if status >= 0 else {"signal": signal.Signals(-status).name}
    )


def test_exec_of_a_script_without_anything_records_console_and_environment():
    code = "import sys\nprint('to', 'out')\nprint('to err', file=sys.stderr)"

    done = execute(PYTHON, script(code), options=["--quiet"])

    assert (done.stdout, done.stderr) == ("to out\n", "to err\n")
    [run] = runs()
    assert sorted(printed(run)) == ["to err", "to out"]
    assert json.loads((run.directory / "environment.json").read_text())


def test_exec_changes_nothing_that_the_script_sees():
    code = """
import json, os, random, sys
import __main__
print(json.dumps([sys.argv, __name__, __file__, __main__.__file__, sys.path[0], os.getcwd(), sys.stdin.read()]))
print(sys.stdout.isatty(), sys.flags.optimize, hash("a"), os.environ["PYTHONHASHSEED"])
random.seed(1)
print(random.random())
"""
    name = script(code)
    arguments = [PYTHON, "-O", name, "--lr", "1", "--", "--root", "x"]
    settings = {"input": "typed", "env": {**os.environ, "PYTHONHASHSEED": "0"}}

    plain = subprocess.run(arguments, capture_output=True, text=True, check=True, **settings)

    assert execute(*arguments, **settings).stdout == plain.stdout


def test_exec_imports_no_library_that_the_script_does_not():
    code = "import sys; print(sorted({name.partition('.')[0] for name in sys.modules}))"

    done = execute(PYTHON, script(code))

    heavy = {"torch", "numpy", "wandb", "mlflow", "tensorboard", "transformers", "lightning", "keras", "xgboost", "ray"}
    assert not heavy & set(done.stdout.split("'"))


def test_exec_runs_a_file_and_a_module_and_code(folder):
    script("print('file')")
    (folder / "package").mkdir()
    script("print('module', __name__)", "package/train.py")

    outputs = [
        execute("train.py").stdout,
        execute(PYTHON, "-m", "package.train").stdout,
        execute(PYTHON, "-c", "print('code')").stdout,
    ]

    assert outputs == ["file\n", "module __main__\n", "code\n"]
    assert [run.name for run in runs()] == ["train", "package.train", "python"]


def test_exec_imports_a_sitecustomize_that_it_hides(folder, monkeypatch):
    script("import os; os.environ['SEEN'] = __name__", "sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", str(folder))

    done = execute(PYTHON, script("import os; print(os.environ['SEEN'])"))

    assert done.stdout == "sitecustomize\n"
    assert len(runs()) == 1


def test_exec_takes_settings_as_options():
    options = ["--root", "there", "--project", "digits", "--name", "night", "--tags", "a,b", "--sinks", "csv"]

    execute(PYTHON, script(""), options=options)

    [run] = runs("there")
    assert (run.directory.parent.name, run.name, run.tags) == ("digits", "night", ("a", "b"))
    assert [state.name for state in run.sinks()] == ["csv"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sinks", "cvs"], "Did you mean 'csv'?"),
        (["--callbacks", "gone.py"], "gone.py: there is no such file"),
        (["--tags", "x" * 2000], "is not a tag"),
    ],
)
def test_exec_refuses_wrong_settings_before_the_script_starts(options, message, folder):
    done = execute(PYTHON, script("open('started', 'w')"), options=options)

    assert (done.returncode, message in done.stderr) == (2, True)
    assert not (folder / "started").exists()


@pytest.mark.parametrize(("program", "status"), [("nowhere", 127), ("./train.txt", 126)])
def test_exec_of_a_program_that_cannot_start_ends_as_a_shell_does(program, status):
    script("", "train.txt")

    done = execute(program)

    assert (done.returncode, "hookline exec -- python train.py" in done.stderr) == (status, True)


def test_exec_with_mode_disabled_records_nothing(folder, monkeypatch):
    monkeypatch.setenv("HOOKLINE_MODE", "disabled")

    assert execute(PYTHON, script("print(1)"), options=["--quiet"]).stdout == "1\n"
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_exec_of_a_script_with_child_processes_has_one_run():
    code = """
import multiprocessing, subprocess, sys

def double(x):
    print("child", x, flush=True)
    return 2 * x

if __name__ == "__main__":
    for kind in ("spawn", "fork", "forkserver"):
        with multiprocessing.get_context(kind).Pool(1) as pool:
            print(pool.map(double, [1]))
    subprocess.run([sys.executable, "-c", "print('sub')"], check=True)
"""
    done = execute(PYTHON, script(code), options=["--quiet"])

    assert (done.returncode, done.stderr, done.stdout.count("[2]")) == (0, "", 3)
    [run] = runs()
    assert {"child 1", "[2]", "sub"} <= set(printed(run))


def test_exec_of_a_shell_script_has_a_run_for_each_script():
    script("print(1)", "prepare.py")
    script("import sys; sys.exit(2)")

    done = execute("sh", "-c", f"{PYTHON} prepare.py && {PYTHON} train.py")

    assert done.returncode == 2
    assert [run.name for run in runs()] == ["prepare", "train"]


WAITS = """
import os, signal, sys, threading
def handle(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, handle)
signal.signal(signal.SIGUSR1, lambda *_: print("got SIGUSR1", flush=True))
print("ready", flush=True)
while True:  # a pause would miss a signal that comes just before it
    threading.Event().wait(0.01)
"""


@contextlib.contextmanager
def started(code):
    """Run a script that prints when it is ready; at the end it has ended by itself, or is killed."""
    command = [*HOOKLINE, "--quiet", "--", PYTHON, script(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
            process.wait(60)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def test_signals_are_passed_on_to_the_script():
    with started(WAITS) as process:
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "got SIGUSR1\n"
        process.terminate()
        assert process.stdout.readline() == "got SIGTERM\n"

    assert process.returncode == 7


def test_signal_without_a_handler_ends_script_and_command():
    with started("import signal\nprint('ready', flush=True)\nsignal.pause()") as process:
        process.terminate()

    assert process.returncode == -signal.SIGTERM
    [run] = runs()
    assert run.status == "stopped"


def test_script_keeps_its_terminal_and_gets_one_interrupt():
    code = """
import signal, sys
count = 0
def handle(number, frame):
    global count
    count += 1
signal.signal(signal.SIGINT, handle)
print("ready", sys.stdin.isatty(), sys.stdout.isatty(), flush=True)
sys.stdin.readline()
print("interrupts", count, flush=True)
"""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(PYTHON, [*HOOKLINE, "--quiet", "--", PYTHON, script(code)])
    with os.fdopen(terminal, "r+b", buffering=0) as shown:
        lines = iter(shown.readline, b"")
        assert next(lines).split() == [b"ready", b"True", b"True"]
        shown.write(b"\x03\n")
        assert next(line.split() for line in lines if b"interrupts" in line) == [b"interrupts", b"1"]
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_first_run_of_the_drop_in_joins_the_run_of_the_script():
    code = """
import wandb
for name in ("first", "second"):
    with wandb.init(project="p", name=name, tags=["t"], config={"lr": 0.1}) as run:
        run.log({"loss": 1.0})
"""
    execute(PYTHON, script(code), options=["--as-wandb"])

    one, other = runs()
    assert [(run.name, run.project, run.step) for run in (one, other)] == [("first", "default", 0), ("second", "p", 1)]
    assert (one.config, one.tags, one.metrics["loss"]) == ({"lr": 0.1}, ("t",), 1.0)
    assert read_metadata(one.directory)["exit"] == {"exit_code": 0}


def test_two_trainings_and_a_writer_of_one_script_are_one_run_with_the_given_callbacks(folder):
    pytest.importorskip("tensorboardX")
    pytest.importorskip("xgboost")
    code = """
import numpy, xgboost
from tensorboardX import SummaryWriter
data = xgboost.DMatrix(numpy.arange(8.0).reshape(8, 1), numpy.arange(8.0))
for _ in range(2):
    xgboost.train({"nthread": 1}, data, 5, evals=[(data, "train")], verbose_eval=False)
with SummaryWriter("logs") as writer:
    writer.add_scalar("loss", 9.0, 1)
"""
    hooks = """
import hookline as hl

class Stops(hl.Callback):
    def on_step_end(self, loop, step_idx, batch, metrics):
        if step_idx == 2:
            loop.request_stop("enough")
        return {"seen": step_idx}

callbacks = [Stops]
"""
    script(hooks, "hooks.py")

    done = execute(PYTHON, script(code), options=["--quiet", "--callbacks", "hooks.py"])

    assert (done.returncode, done.stderr) == (0, "")
    [run] = runs()
    rows = [record for record in hl.read(run.directory) if isinstance(record, Metrics)]
    assert [(row.step, row.values["stops/seen"]) for row in rows if "loss" in row.values] == [
        *((1, 0), (2, 1), (3, 2)),  # each training is stopped after three rounds
        *((4, 0), (5, 1), (6, 2)),
    ]
    assert [(row.step, row.values) for row in rows if "loss" not in row.values] == [(1, {"tensorboard/loss": 9.0})]
    assert run.step == 6
