"""The systems that `media` compares, as in `recorders`: one run each, in a process and a directory of its own.

Where a peer has no such value, what its users do instead is taken: TensorBoard gets a table as Markdown text, MLflow a
histogram as a file of counts. A case that a peer does not have at all is left out.
"""

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

from recording_child import obey

IMAGE, HISTOGRAM, TABLE, ARTIFACT, COPY = "image", "histogram", "table", "artifact", "copy"
SIDE, VALUES, ROWS, FILES, FILE_BYTES = 256, 1_000_000, 100, 100, 10_000
COLUMNS = ["step", "prompt", "score", "is_right"]


class System:
    """A run that is recorded; the constructor opens it."""

    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def image(self, array: Any, step: int) -> None:
        """Record an image of (height, width, 3) bytes."""
        raise NotImplementedError

    def histogram(self, values: Any, step: int) -> None:
        """Record the distribution of values."""
        raise NotImplementedError

    def table(self, rows: list[list[Any]], step: int) -> None:
        """Add rows to a table."""
        raise NotImplementedError

    def artifact(self, folder: Path, step: int) -> None:
        """Record a folder of files as a version."""
        raise NotImplementedError

    def close(self) -> None:
        """End the run."""

    def readable_images(self) -> int:
        """How many images can be read back now."""
        return len(list(self.directory.rglob("*.png")))

    @classmethod
    def is_installed(cls) -> bool:
        """Whether it can be measured here."""
        return all(find_spec(package) is not None for package in cls.packages)


class Hookline(System):
    """A run with its defaults."""

    packages = ("hookline",)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._hl: Any = import_module("hookline")
        self._run = self._hl.run("media", root=directory, project="benchmark", summary=False)
        self._run.__enter__()
        self._table = self._hl.Table(COLUMNS)
        self._run.log({"table": self._table}, step=0)

    def image(self, array: Any, step: int) -> None:
        self._run.log({"image": self._hl.Image(array)}, step=step)

    def histogram(self, values: Any, step: int) -> None:
        self._run.log({"histogram": self._hl.Histogram(values)}, step=step)

    def table(self, rows: list[list[Any]], step: int) -> None:
        self._table.extend(rows)

    def artifact(self, folder: Path, step: int) -> None:
        self._run.save_artifact("files", folder, kind="files")

    def close(self) -> None:
        self._run.finish()

    def readable_images(self) -> int:
        read_blob = import_module("hookline._record.blobs").read_blob
        records = (record for record in self._hl.read(self._run.dir) if getattr(record, "name", "") == "image")
        return len([read_blob(self._run.dir, record.blob) for record in records])


class Wandb(System):
    """An offline run, without the statistics of the machine that it collects by itself."""

    packages = ("wandb",)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._wandb: Any = import_module("wandb")
        off = dict.fromkeys(("x_disable_stats", "x_disable_meta", "disable_git", "disable_code"), True)
        settings = self._wandb.Settings(silent=True, console="off", **off)
        self._run = self._wandb.init(project="benchmark", mode="offline", dir=str(directory), settings=settings)
        self._table = self._wandb.Table(columns=COLUMNS, log_mode="INCREMENTAL")

    def image(self, array: Any, step: int) -> None:
        self._run.log({"image": self._wandb.Image(array)}, step=step)

    def histogram(self, values: Any, step: int) -> None:
        self._run.log({"histogram": self._wandb.Histogram(values)}, step=step)

    def table(self, rows: list[list[Any]], step: int) -> None:
        for row in rows:
            self._table.add_data(*row)
        self._run.log({"table": self._table}, step=step)

    def artifact(self, folder: Path, step: int) -> None:
        artifact = self._wandb.Artifact("files", type="files")
        artifact.add_dir(str(folder))
        self._run.log_artifact(artifact)

    def close(self) -> None:
        self._run.finish()
        self._wandb.teardown()


class TensorBoard(System):
    """PyTorch's `SummaryWriter` with its defaults."""

    packages = ("tensorboard", "torch")

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(directory))

    def image(self, array: Any, step: int) -> None:
        self._writer.add_image("image", array, step, dataformats="HWC")

    def histogram(self, values: Any, step: int) -> None:
        self._writer.add_histogram("histogram", values, step)

    def table(self, rows: list[list[Any]], step: int) -> None:
        lines = ["|".join(COLUMNS), "|".join("-" * len(COLUMNS)), *("|".join(map(str, row)) for row in rows)]
        self._writer.add_text("table", "\n".join(lines), step)

    def close(self) -> None:
        self._writer.close()

    def readable_images(self) -> int:
        module = import_module("tensorboard.backend.event_processing.event_accumulator")
        events = module.EventAccumulator(str(self.directory), size_guidance={module.IMAGES: 0})
        events.Reload()
        return len(events.Images("image")) if "image" in events.Tags()["images"] else 0


class Mlflow(System):
    """A run in an SQLite database with its files in a directory; images are written by MLflow's own threads."""

    packages = ("mlflow",)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._mlflow: Any = import_module("mlflow")
        self._mlflow.set_tracking_uri(f"sqlite:///{directory}/mlflow.db")
        artifacts = (directory / "artifacts").as_uri()
        self._mlflow.start_run(experiment_id=self._mlflow.create_experiment("benchmark", artifact_location=artifacts))

    def image(self, array: Any, step: int) -> None:
        self._mlflow.log_image(array, key="image", step=step)

    def histogram(self, values: Any, step: int) -> None:
        counts, edges = import_module("numpy").histogram(values, 64)
        self._mlflow.log_dict({"counts": counts.tolist(), "edges": edges.tolist()}, f"histogram/{step}.json")

    def table(self, rows: list[list[Any]], step: int) -> None:
        columns = zip(COLUMNS, zip(*rows, strict=True), strict=True)
        self._mlflow.log_table({name: list(cells) for name, cells in columns}, "table.json")

    def artifact(self, folder: Path, step: int) -> None:
        self._mlflow.log_artifacts(str(folder), f"files/{step}")

    def close(self) -> None:
        self._mlflow.flush_artifact_async_logging()
        self._mlflow.end_run()


class Trackio(System):
    """A local run; its directory is in the environment, where it looks for it when it is imported."""

    packages = ("trackio",)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._trackio: Any = import_module("trackio")
        self._run = self._trackio.init("benchmark", embed=False, auto_log_gpu=False, auto_log_cpu=False)

    def image(self, array: Any, step: int) -> None:
        self._run.log({"image": self._trackio.Image(array)}, step=step)

    def histogram(self, values: Any, step: int) -> None:
        self._run.log({"histogram": self._trackio.Histogram(values)}, step=step)

    def table(self, rows: list[list[Any]], step: int) -> None:
        self._run.log({"table": self._trackio.Table(columns=COLUMNS, data=rows)}, step=step)

    def artifact(self, folder: Path, step: int) -> None:
        artifact = self._trackio.Artifact("files", type="files")
        artifact.add_dir(str(folder))
        self._run.log_artifact(artifact)

    def close(self) -> None:
        self._run.finish()


SYSTEMS: dict[str, type[System]] = {
    "hookline": Hookline,
    "wandb": Wandb,
    "tensorboard": TensorBoard,
    "mlflow": Mlflow,
    "trackio": Trackio,
}


class Worker:
    """The commands of a process."""

    def __init__(self, name: str, directory: Path) -> None:
        self._system, self._directory = SYSTEMS[name], directory
        self._next_step = itertools.count(1).__next__
        self._numpy: Any = import_module("numpy")
        self._generator = self._numpy.random.default_rng(0)
        self._random = random.Random(0)
        self._copies: list[Any] = []
        self._to_read: SimpleQueue[Any] = SimpleQueue()

    def open(self) -> None:
        """Begin the run."""
        self._run = self._system(self._directory)

    def close(self) -> int:
        """End the run; the bytes in its directory."""
        self._run.close()
        return sum(path.lstat().st_size for path in self._directory.rglob("*") if path.is_file())

    def time_calls(self, kind: str, calls: int, pause_seconds: float, limit_seconds: float) -> list[list[int]] | None:
        """Nanoseconds of each call, and of the thread's CPU time, with a pause before each; None without such a case.

        Each call has values of its own, made before the pause.
        """
        taken: list[list[int]] = []
        deadline = time.monotonic() + limit_seconds
        for _ in range(calls):
            step = self._next_step()
            call, value = self._case(kind, step)
            time.sleep(pause_seconds)
            used, start = time.thread_time_ns(), time.perf_counter_ns()
            try:
                call(value, step)
            except NotImplementedError:
                return None
            taken.append([time.perf_counter_ns() - start, time.thread_time_ns() - used])
            if time.monotonic() > deadline:
                break
        return taken

    def grow_table(self, rows: int) -> list[list[float]]:
        """Add rows a hundred at a time; the rows so far and the median nanoseconds of an append, for each tenth."""
        made = self._rows(0)
        found: list[list[float]] = []
        calls = max(10, rows // ROWS // 10)
        for tenth in range(1, 11):
            taken = []
            for _ in range(calls):
                start = time.thread_time_ns()
                self._run.table(made, 0)
                taken.append(time.thread_time_ns() - start)
            found.append([tenth * calls * ROWS, sorted(taken)[len(taken) // 2]])
        return found

    def equal_images(self, count: int) -> None:
        """Log one image several times."""
        array = self._image()
        for _ in range(count):
            self._run.image(array, self._next_step())

    def readable_seconds(self, limit_seconds: float) -> float | None:
        """Log an image; the seconds until it can be read back, or None where that takes longer than the limit."""
        before = self._run.readable_images()
        start = time.perf_counter()
        self._run.image(self._image(), self._next_step())
        while (waited := time.perf_counter() - start) < limit_seconds:
            with contextlib.suppress(Exception):  # a file that is being written
                if self._run.readable_images() > before:
                    return time.perf_counter() - start
            time.sleep(0.002)
        return None if waited else 0.0

    def _case(self, kind: str, step: int) -> tuple[Callable[[Any, int], object], Any]:
        match kind:
            case "image":
                return self._run.image, self._image()
            case "histogram":
                return self._run.histogram, self._values()
            case "copy":
                return self._copy_for_a_thread, self._values()
            case "table":
                return self._run.table, self._rows(step)
            case _:
                return self._run.artifact, self._folder(step)

    def _image(self) -> Any:
        """An image with some structure, as photographs have: noise alone cannot be compressed."""
        ramp = self._numpy.linspace(0, 200, SIDE)[:, None, None]
        noise = self._generator.integers(0, 55, (SIDE, SIDE, 3))
        return (ramp + noise).astype("u1")

    def _values(self) -> Any:
        return self._generator.standard_normal(VALUES, dtype="f4")

    def _copy_for_a_thread(self, values: Any, step: int) -> None:
        """Do the least that a histogram off this thread needs: copy values that may change, and hand them over.

        The memory was used before, and is read by another thread, as it has to be: it is in that one's cache.
        """
        if not self._copies:
            self._copies.append(values.copy())
            threading.Thread(target=self._read_copies, daemon=True).start()
        self._numpy.copyto(self._copies[0], values)
        self._to_read.put(self._copies[0])

    def _read_copies(self) -> None:
        while True:
            self._numpy.histogram(self._to_read.get(), 64)

    def _rows(self, step: int) -> list[list[Any]]:
        return [[step, f"prompt {i} of step {step}", self._random.random(), i % 2 == 0] for i in range(ROWS)]

    def _folder(self, step: int) -> Path:
        folder = self._directory.parent / f"{self._directory.name}-files-{step}"
        folder.mkdir()
        for i in range(FILES):
            (folder / f"{i}.bin").write_bytes(self._generator.bytes(FILE_BYTES))
        return folder


if __name__ == "__main__":
    obey(Worker)
