"""The systems that `recording` compares: each a small adapter, quiet, in a directory of its own, without a network.

An adapter opens one run, and a process opens one at most, since some peers keep theirs in globals and
read their environment when they are imported. Packages are looked up by name, when a run is opened:
nobody pays for a peer that is not measured. Where a peer has no samples, what its users do instead is
taken: a table in W&B and Trackio, texts in TensorBoard, a text file per step in MLflow.
"""

import csv
import json
import logging
import os
import sqlite3
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, TextIO

Values = dict[str, float]
Samples = list[dict[str, str]]


def names(count: int) -> list[str]:
    """What the scalars of a row are called."""
    return [f"train/metric_{i:02d}" for i in range(count)]


LAST_OF_TEN = names(10)[-1]
"""A row of ten scalars is there when this one is."""


class System(ABC):
    """A run that is recorded; the constructor opens it in an empty directory."""

    packages: ClassVar[tuple[str, ...]] = ()
    """What must be installed; the first one's version is reported."""
    is_timed: ClassVar[bool] = True
    """Whether it takes part in more than the question of what is lost."""
    takes_arrays: ClassVar[bool] = False
    """Whether it accepts tensors and NumPy's numbers; otherwise its user converts them, and that is timed too."""

    @abstractmethod
    def __init__(self, directory: Path) -> None: ...

    @abstractmethod
    def log(self, values: Values, step: int) -> None:
        """Record a row of scalars."""

    @abstractmethod
    def samples(self, samples: Samples, step: int) -> None:
        """Record prompts with their completions."""

    @abstractmethod
    def close(self) -> None:
        """End the run: everything is in its file or database afterwards."""

    @staticmethod
    @abstractmethod
    def recorded(directory: Path) -> Iterable[int]:
        """The steps of the rows of ten scalars that are there whole."""

    @classmethod
    def is_installed(cls) -> bool:
        """Whether it can be measured here."""
        return all(find_spec(package) is not None for package in cls.packages)


class Nothing(System):
    """Records nothing: what it seems to cost is the noise of the measurement."""

    takes_arrays = True

    def __init__(self, directory: Path) -> None:
        pass

    def log(self, values: Values, step: int) -> None:
        pass

    def samples(self, samples: Samples, step: int) -> None:
        pass

    def close(self) -> None:
        pass

    @staticmethod
    def recorded(directory: Path) -> Iterable[int]:
        return ()


class Hookline(System):
    """A `Recorder` with its defaults."""

    packages = ("hookline",)
    takes_arrays = True

    def __init__(self, directory: Path) -> None:
        self._recorder: Any = import_module("hookline").Recorder(directory)

    def log(self, values: Values, step: int) -> None:
        self._recorder.log(values, step=step)

    def samples(self, samples: Samples, step: int) -> None:
        self._recorder.samples(samples, step=step)

    def close(self) -> None:
        self._recorder.close()

    @staticmethod
    def recorded(directory: Path) -> Iterable[int]:
        return [record.step for record in import_module("hookline").read(directory) if LAST_OF_TEN in record.values]


class HooklineRun(System):
    """``run.log()`` in ``run.steps()`` without subscribers: each call completes a step, which writes its row."""

    packages = ("hookline",)
    takes_arrays = True

    def __init__(self, directory: Path) -> None:
        off: dict[str, Any] = {"console": False, "code": False, "summary": False}
        self._run: Any = import_module("hookline").run("benchmark", root=directory, **off).open()
        self._steps = self._run.steps(10**9)
        next(self._steps)

    def log(self, values: Values, step: int) -> None:
        self._run.log(values)
        next(self._steps)

    def samples(self, samples: Samples, step: int) -> None:
        self._run.log_samples(samples)
        next(self._steps)

    def close(self) -> None:
        self._steps.close()
        self._run.finish()

    @staticmethod
    def recorded(directory: Path) -> Iterable[int]:
        # The row of the first step has the number 1: one step is complete.
        read = import_module("hookline").read
        found = (record for run in directory.glob("*/*/run.json") for record in read(run.parent))
        return [record.step - 1 for record in found if LAST_OF_TEN in getattr(record, "values", ())]


class Logging(System):
    """The standard library's logging: a line of JSON a row, which its handler flushes."""

    def __init__(self, directory: Path) -> None:
        self._handler = logging.FileHandler(directory / "run.log")
        self._logger = logging.Logger("benchmark", logging.INFO)
        self._logger.addHandler(self._handler)

    def log(self, values: Values, step: int) -> None:
        self._logger.info(json.dumps({"step": step, **values}))

    def samples(self, samples: Samples, step: int) -> None:
        for sample in samples:
            self._logger.info(json.dumps({"step": step, **sample}))

    def close(self) -> None:
        self._handler.close()

    @staticmethod
    def recorded(directory: Path) -> Iterable[int]:
        return _steps_in_lines(directory / "run.log")


class Jsonl(System):
    """Lines of JSON through Python's file buffer, never flushed."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / "run.jsonl").open("w")

    def log(self, values: Values, step: int) -> None:
        self._file.write(json.dumps({"step": step, **values}) + "\n")

    def samples(self, samples: Samples, step: int) -> None:
        for sample in samples:
            self._file.write(json.dumps({"step": step, **sample}) + "\n")

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def recorded(directory: Path) -> Iterable[int]:
        return _steps_in_lines(directory / "run.jsonl")


class Csv(System):
    """A `DictWriter` for each set of columns, flushed after every row."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tables: dict[str, tuple[TextIO, csv.DictWriter[str]]] = {}

    def log(self, values: Values, step: int) -> None:
        self._write(f"metrics_{len(values)}", {"step": step, **values})

    def samples(self, samples: Samples, step: int) -> None:
        for sample in samples:
            self._write("samples", {"step": step, **sample})

    def close(self) -> None:
        for file, _ in self._tables.values():
            file.close()

    @staticmethod
    def recorded(directory: Path) -> Iterable[int]:
        return [int(row["step"]) for row in csv.DictReader(_whole_lines(directory / "metrics_10.csv"))]

    def _write(self, name: str, row: dict[str, Any]) -> None:
        if name not in self._tables:
            file = (self._directory / f"{name}.csv").open("w", newline="")
            self._tables[name] = file, csv.DictWriter(file, list(row))
            self._tables[name][1].writeheader()
        opened, table = self._tables[name]
        table.writerow(row)
        opened.flush()


class TensorBoard(System):
    """PyTorch's `SummaryWriter` with its defaults."""

    packages = ("tensorboard", "torch")
    takes_arrays = True

    def __init__(self, directory: Path) -> None:
        self._writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(directory))

    def log(self, values: Values, step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def samples(self, samples: Samples, step: int) -> None:
        for i, sample in enumerate(samples):
            self._writer.add_text(f"sample/{i}", f"{sample['prompt']}\n\n{sample['completion']}", step)

    def close(self) -> None:
        self._writer.close()

    @staticmethod
    def recorded(directory: Path) -> Iterable[int]:
        module = import_module("tensorboard.backend.event_processing.event_accumulator")
        events = module.EventAccumulator(str(directory), size_guidance={module.SCALARS: 0})
        events.Reload()
        return [event.step for event in events.Scalars(LAST_OF_TEN)] if LAST_OF_TEN in events.Tags()["scalars"] else []


class Wandb(System):
    """An offline run, without the statistics of the machine that it collects by itself."""

    packages = ("wandb",)
    takes_arrays = True

    def __init__(self, directory: Path) -> None:
        self._wandb: Any = import_module("wandb")
        off = dict.fromkeys(("x_disable_stats", "x_disable_meta", "disable_git", "disable_code"), True)
        settings = self._wandb.Settings(silent=True, console="off", **off)
        self._run = self._wandb.init(project="benchmark", mode="offline", dir=str(directory), settings=settings)

    def log(self, values: Values, step: int) -> None:
        self._run.log(values, step=step)

    def samples(self, samples: Samples, step: int) -> None:
        rows = [[sample["prompt"], sample["completion"]] for sample in samples]
        self._run.log({"samples": self._wandb.Table(columns=["prompt", "completion"], data=rows)}, step=step)

    def close(self) -> None:
        self._run.finish()
        self._wandb.teardown()

    @staticmethod
    def recorded(directory: Path) -> Iterable[int]:
        message: Any = import_module("wandb.proto.wandb_internal_pb2").Record()
        for path in directory.glob("wandb/offline-run-*/*.wandb"):
            for record in _log_records(path.read_bytes()):
                message.ParseFromString(record)
                if any(LAST_OF_TEN in (item.key, *item.nested_key) for item in message.history.item):
                    yield message.history.step.num


class Mlflow(System):
    """A run in an SQLite database, each row waited for."""

    packages = ("mlflow",)
    takes_arrays = True

    def __init__(self, directory: Path) -> None:
        self._mlflow: Any = import_module("mlflow")
        self._mlflow.set_tracking_uri(_database(directory))
        artifacts = (directory / "artifacts").as_uri()
        experiment = self._mlflow.create_experiment("benchmark", artifact_location=artifacts)
        self._mlflow.start_run(experiment_id=experiment)

    def log(self, values: Values, step: int) -> None:
        self._mlflow.log_metrics(values, step=step)

    def samples(self, samples: Samples, step: int) -> None:
        text = "\n\n".join(f"{sample['prompt']}\n{sample['completion']}" for sample in samples)
        self._mlflow.log_text(text, f"samples/{step}.txt")

    def close(self) -> None:
        self._mlflow.end_run()

    @staticmethod
    def recorded(directory: Path) -> Iterable[int]:
        client = import_module("mlflow").MlflowClient(_database(directory))
        experiment = client.get_experiment_by_name("benchmark")
        for run in client.search_runs([experiment.experiment_id]):
            for metric in client.get_metric_history(run.info.run_id, LAST_OF_TEN):
                yield metric.step


class MlflowAsync(Mlflow):
    """The same with rows that nobody waits for: they pile up, so that it cannot be timed fairly among others."""

    is_timed = False

    def log(self, values: Values, step: int) -> None:
        self._mlflow.log_metrics(values, step=step, synchronous=False)

    def close(self) -> None:
        self._mlflow.flush_async_logging()
        super().close()


class Trackio(System):
    """A local run; its directory is in the environment, where it looks for it when it is imported."""

    packages = ("trackio",)

    def __init__(self, directory: Path) -> None:
        self._trackio: Any = import_module("trackio")
        self._run = self._trackio.init("benchmark", embed=False, auto_log_gpu=False, auto_log_cpu=False)

    def log(self, values: Values, step: int) -> None:
        self._run.log(values, step=step)

    def samples(self, samples: Samples, step: int) -> None:
        self._run.log({"samples": self._trackio.Table(data=samples)}, step=step)

    def close(self) -> None:
        self._run.finish()

    @staticmethod
    def recorded(directory: Path) -> Iterable[int]:
        path = directory / "benchmark.db"
        if not path.exists():
            return []
        with sqlite3.connect(path) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'metrics'").fetchone():
                return []  # killed before it made the table
            query = "SELECT step FROM metrics WHERE CAST(metrics AS TEXT) LIKE ?"
            return [step for (step,) in database.execute(query, [f"%{LAST_OF_TEN}%"])]


SYSTEMS: dict[str, type[System]] = {
    "hookline": Hookline,
    "hookline-run": HooklineRun,
    "logging": Logging,
    "csv": Csv,
    "jsonl": Jsonl,
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
    "mlflow-async": MlflowAsync,
    "trackio": Trackio,
}


def environment(directory: Path) -> dict[str, str]:
    """The environment in which a process records to a directory: no telemetry, no network."""
    folders = ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "TRACKIO_DIR", "HF_HOME", "TMPDIR")
    yes = ("DO_NOT_TRACK", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "WANDB_SILENT")
    no = {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false", "GRADIO_ANALYTICS_ENABLED": "False"}
    return os.environ | dict.fromkeys(folders, str(directory)) | dict.fromkeys(yes, "1") | no


def _database(directory: Path) -> str:
    return f"sqlite:///{directory}/mlflow.db"


def _whole_lines(path: Path) -> list[str]:
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


def _steps_in_lines(path: Path) -> list[int]:
    rows = map(json.loads, _whole_lines(path))
    return [row["step"] for row in rows if LAST_OF_TEN in row]


_BLOCK, _HEADER = 32 << 10, struct.Struct("<IHB")
_FULL, _LAST = 1, 4


def _log_records(data: bytes) -> Iterator[bytes]:
    """The records of a W&B file: LevelDB's log format after seven bytes; what a kill cut off is left out."""
    position, pieces = 7, b""
    while position + _HEADER.size <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER.size:
            position += left
            continue
        _, length, kind = _HEADER.unpack_from(data, position)
        position += _HEADER.size + length
        if kind == 0 or position > len(data):
            return
        pieces += data[position - length : position]
        if kind in (_FULL, _LAST):
            yield pieces
            pieces = b""
