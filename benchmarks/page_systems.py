"""The pages that ``page.py`` measures: how each system gets its data, is served, and shows that its picture is there.

Every system gets the same runs: steps of some metrics with the same names. Writing them is not measured, so a few
runs are copied, as rows of a database or as files.
"""

import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from journals import metric_journal, sample_journal, write_runs
from measure import quiet

METRICS = ("loss", "reward", "grad_norm")
BODIES = 4
START_SECONDS = 90.0
"""A server that does not say where it listens by then is given up."""
_URL = re.compile(r"http://[\w.:\[\]-]+/?")


@dataclass(frozen=True, slots=True)
class View:
    """A view of a page.

    Attributes:
        path: Its address below the server's.
        ready: A JavaScript expression that is true when there is something to see; ``COUNT`` is the number of runs.
    """

    path: str
    ready: str


@dataclass(frozen=True, slots=True)
class System:
    """A page to measure.

    Attributes:
        plot: A selector of what is pointed at and dragged over.
        smoothing: A selector of the slider.
        environment: With ROOT for the directory of the data.
    """

    name: str
    command: tuple[str, ...]
    charts: View
    plot: str
    smoothing: str
    runs: View | None = None
    samples: View | None = None
    environment: dict[str, str] = field(default_factory=dict)


_PAINTED = """[...document.querySelectorAll(%r)].some((canvas) => {
    const scratch = new OffscreenCanvas(64, 64).getContext("2d");
    scratch.drawImage(canvas, 0, 0, 64, 64);
    const pixels = scratch.getImageData(0, 0, 64, 64).data;
    for (let at = 0; at < pixels.length; at += 4)
        if (pixels[at + 3] > 40 && Math.max(...pixels.slice(at, at + 3)) - Math.min(...pixels.slice(at, at + 3)) > 40)
            return true;
    return false;
})"""
HOOKLINE = System(
    "hookline",
    (sys.executable, "-m", "hookline", "ui", "--no-open", "--port", "0", "--root", "ROOT"),
    View("#/charts?project=many", "document.querySelector('.panel[data-lines]')?.dataset.lines == COUNT"),
    plot=".panel[data-lines] .u-over",
    smoothing='input[aria-label="Smoothing"]',
    runs=View("#/runs", "document.querySelectorAll('[data-run]').length > 10"),
    samples=View(
        "#/rollouts?project=many", "document.querySelector('[data-view=rollouts]')?.innerText.includes('lesson')"
    ),
)
TENSORBOARD = System(
    "TensorBoard",
    (sys.executable, "-m", "tensorboard.main", "--logdir", "ROOT", "--port", "0", "--host", "127.0.0.1"),
    View("#timeseries", _PAINTED % "line-chart canvas"),
    plot="line-chart .series-view",
    smoothing='mat-slider[aria-labelledby="scalars-smoothing-label"] input',
    runs=View("#timeseries", "document.querySelectorAll('runs-data-table tb-data-table-content-row').length > 10"),
)
TRACKIO = System(
    "trackio",
    (sys.executable, "-c", "import trackio; trackio.show(project='many', open_browser=False)"),
    View("?project=many", _PAINTED % ".plot canvas"),
    plot=".plot canvas",
    smoothing='input[type="range"]',
    runs=View("runs?project=many", "document.querySelectorAll('.runs-table tbody tr').length > 10"),
    environment={"TRACKIO_DIR": "ROOT", "GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"},
)


def write_hookline(root: Path, runs: int, steps: int) -> None:
    """Runs as hookline records them."""
    bodies = [metric_journal(steps, seed=seed, names=METRICS) for seed in range(min(BODIES, runs))]
    write_runs(root, "many", runs, bodies)


def write_samples(root: Path, runs: int, each: int) -> None:
    """Runs with samples of rollouts, as hookline records them."""
    write_runs(root, "many", runs, [sample_journal(each, seed=seed) for seed in range(2)])


def write_tensorboard(root: Path, runs: int, steps: int) -> bool:
    """Event files; False where TensorBoard is not installed."""
    try:
        with quiet():
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        return False
    for number in range(runs):
        directory = root / f"run-{number:05d}"
        directory.mkdir(parents=True)
        file = directory / "events.out.tfevents.1700000000.host"
        if number >= BODIES:
            shutil.copy(root / f"run-{number % BODIES:05d}" / file.name, file)
            continue
        noise = random.Random(number)
        with file.open("wb") as opened:
            writer = RecordWriter(opened)
            writer.write(event_pb2.Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())
            for step in range(1, steps + 1):
                values = [summary_pb2.Summary.Value(tag=name, simple_value=noise.random()) for name in METRICS]
                event = event_pb2.Event(
                    wall_time=1.7e9 + step / 10, step=step, summary=summary_pb2.Summary(value=values)
                )
                writer.write(event.SerializeToString())
            writer.flush()
    return True


_STORE_TRACKIO = """
import random, sys
from trackio.sqlite_storage import SQLiteStorage
steps, names = int(sys.argv[1]), sys.argv[2].split(",")
noise = random.Random(0)
rows = [{name: noise.random() for name in names} for _ in range(steps)]
SQLiteStorage.bulk_log("many", "run-00000", rows, list(range(1, steps + 1)), config={"lr": 0.1}, run_id="run-00000")
print("PATH", SQLiteStorage.get_project_db_path("many"))
"""


def write_trackio(root: Path, runs: int, steps: int) -> bool:
    """One run as trackio stores it, and its rows again for the others; False where trackio is not installed."""
    root.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", _STORE_TRACKIO, str(steps), ",".join(METRICS)]
    done = subprocess.run(command, env=_environment(TRACKIO, root), capture_output=True, text=True, check=False)  # noqa: S603
    path = re.search(r"^PATH (.+)$", done.stdout, re.MULTILINE)
    if done.returncode or path is None:
        return False
    with sqlite3.connect(path[1]) as database:
        for table, columns in (("metrics", "timestamp, step, metrics"), ("configs", "config, created_at")):
            copy = (
                f"INSERT INTO {table} (run_id, run_name, {columns}) "  # noqa: S608 - constants only
                f"SELECT ?, ?, {columns} FROM {table} WHERE run_id = 'run-00000'"
            )
            names = (f"run-{number:05d}" for number in range(1, runs))
            database.executemany(copy, ((name, name) for name in names))
    database.close()
    return True


def _environment(system: System, root: Path) -> dict[str, str]:
    own = {name: value.replace("ROOT", str(root)) for name, value in system.environment.items()}
    return os.environ | own


@contextmanager
def served(system: System, root: Path) -> Iterator[tuple[str, float]]:
    """A page's server in a process of its own: its address, and the seconds until it listened."""
    command: Sequence[str] = [part.replace("ROOT", str(root)) for part in system.command]
    with tempfile.TemporaryFile("w+") as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=output, text=True, env=_environment(system, root))  # noqa: S603
        try:
            yield _address(system, process, output.fileno()), time.perf_counter() - start
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(system: System, process: subprocess.Popen[str], output: int) -> str:
    deadline = time.perf_counter() + START_SECONDS
    while time.perf_counter() < deadline and process.poll() is None:
        said = os.pread(output, 100_000, 0).decode(errors="replace")
        found = _URL.search(said)
        if found and "\n" in said[found.start() :]:
            return found[0].rstrip("/") + "/"
        time.sleep(0.02)
    raise SystemExit(
        f"The server of {system.name} does not say where it listens:\n{os.pread(output, 4000, 0).decode()}"
    )
