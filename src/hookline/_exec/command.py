"""The process that the user starts: runs the script as a child and returns its status.

The child is in the same process group and has the same standard streams, so it shares the terminal, and Ctrl-C reaches
it directly. Signals that are sent to this process alone are passed on. If a signal ends the child, this process ends by
the same signal, so the shell or scheduler sees the same status as without hookline.

This process also records what the child cannot record itself: its exit code, and that it was killed.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from hookline._record import run_directory
from hookline._record.delivery_manager import record_death
from hookline._record.reader import DELIVERY_WRITER, FINAL, last_status, last_step
from hookline._record.recorder import Recorder

VARIABLE = "_HOOKLINE_EXEC"
"""The environment variable that passes the `Plan` to the child."""
RUNS = "runs"
"""The file in the plan's folder that lists the directories of the runs, one per line."""
MAIN_WRITER = "main"
PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
FROM_TERMINAL = ("SIGINT", "SIGQUIT")
"""Signals that a terminal sends to every foreground process, so the child gets them as well."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of `hookline exec` that the child needs.

    Attributes:
        folder: A temporary folder shared by the processes of the script.
        as_wandb: Whether ``import wandb`` returns the drop-in.
    """

    folder: str
    as_wandb: bool = False


def note_run(plan: Plan, directory: Path) -> None:
    """Report to the command where a run is recorded."""
    with Path(plan.folder, RUNS).open("a", encoding="utf-8") as listed:
        listed.write(f"{directory}\n")


def start_directory() -> Path:
    """Return the directory that is put on ``PYTHONPATH``."""
    return Path(__file__).parent / "start"


def child_environment(environment: Mapping[str, str], plan: Plan) -> dict[str, str]:
    """Return the environment in which Python processes attach."""
    made = dict(environment) | {VARIABLE: json.dumps(asdict(plan))}
    if plan.as_wandb:
        from hookline.compat.wandb.install import child_environment as with_drop_in

        made = with_drop_in(made)
    # Libraries before the script's own: an installed package keeps its place, since none is called sitecustomize.
    paths = [str(start_directory()), *filter(None, made.get("PYTHONPATH", "").split(os.pathsep))]
    return made | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def execute(command: Sequence[str], *, as_wandb: bool = False, quiet: bool = False) -> int:
    """Run a command, record it, and return its exit status; a signal that ended it ends this process as well.

    Args:
        command: The program and its arguments.
        as_wandb: Let ``import wandb`` return the drop-in, also where wandb is installed.
        quiet: Do not print where the run was recorded.

    Raises:
        FileNotFoundError, PermissionError: The program cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="hookline-exec-") as folder:
        environment = child_environment(os.environ, Plan(folder, as_wandb))
        with _signals_passed_on() as children:
            # No shell and no new session, so the child runs as it would without this process.
            child = subprocess.Popen(list(command), env=environment)  # noqa: S603
            children.append(child)
            status = child.wait()
        recorded = _runs_in(Path(folder))
        for directory in recorded:
            record_exit(directory, status)
    if not quiet:
        _print_where(recorded)
    if status < 0:
        _end_by(-status)
    return status


def record_exit(directory: Path, status: int) -> None:
    """Record the exit code of a script, or the signal that ended it, if the script's process did not."""
    if run_directory.is_alive(directory):  # another run that continues in the same directory
        return
    facts = {"exit_code": status} if status >= 0 else {"signal": _name_of(-status)}
    run_directory.update(directory, "exit", facts)
    if status == 0:
        record_death(directory)
        return
    last = last_status(directory)
    if last is not None and last.status in FINAL and last.status != "finished":
        return
    message = f"The script ended with exit code {status}." if status > 0 else f"{_name_of(-status)} ended the script."
    ending = "stopped" if -status in (signal.SIGINT, signal.SIGTERM) else "failed"
    # A later session of the run's writer corrects its recorded end. A run without an end only gets a note.
    recorder = Recorder(directory, name=DELIVERY_WRITER if last is None or last.status not in FINAL else MAIN_WRITER)
    recorder.status(ending, message, step=last_step(directory))
    recorder.close()


def _runs_in(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [Path(line) for line in (folder / RUNS).read_text(encoding="utf-8").splitlines() if line]
    return []


def _print_where(recorded: Sequence[Path]) -> None:
    for directory in recorded:
        shown = directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
        root = shlex.quote(str(shown.parent.parent))
        print(f"hookline: recorded {shown}. View it with: hookline ui --root {root}", file=sys.stderr)  # noqa: T201
    if not recorded:
        print("hookline: no Python process of the command was recorded.", file=sys.stderr)  # noqa: T201


@contextlib.contextmanager
def _signals_passed_on() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Pass signals on to the children in the list, except those that a terminal sends them directly."""
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)

    def pass_on_unless_from_terminal(number: int, frame: FrameType | None) -> None:
        if not _is_foreground():
            pass_on(number, frame)

    before = {}
    for name in (*PASSED_ON, *FROM_TERMINAL):
        number = getattr(signal, name)
        # A signal that was ignored stays ignored, in the child too: nohup relies on it.
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, pass_on if name in PASSED_ON else pass_on_unless_from_terminal)
    try:
        yield children
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_foreground() -> bool:
    """Whether a terminal sends its signals to this process and its children."""
    try:
        with open("/dev/tty", "rb") as terminal:  # noqa: PTH123 - a device
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _name_of(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _end_by(number: int) -> None:
    """End this process by a signal, without a core dump of its own."""
    if number in (signal.SIGKILL, signal.SIGSTOP):
        os.kill(os.getpid(), number)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
