"""W&B runs on disk, as wandb's own process writes them without a network; it can be killed."""

import contextlib
import gc
import json
import os
import signal
import subprocess
import threading
import warnings
from pathlib import Path

import pytest

from destinations import media_values
from destinations.base import LEFT_OUT
from destinations.files import FileDestination
from hookline.sinks import WandbSink


class WandbDestination(FileDestination):
    name = "wandb"
    file_name = "wandb"
    keeps_samples = True
    faults = ("killed", "disk_full")  # type: ignore[assignment]

    def __init__(self, directory):
        super().__init__(directory)
        self.patch = pytest.MonkeyPatch()
        self.patch.setenv("WANDB_ERROR_REPORTING", "false")
        self.patch.setenv("WANDB_DATA_DIR", str(directory / "wandb-data"))
        self.patch.setattr(subprocess.Popen, "__del__", _forgotten)
        self.healed = threading.Event()

    def sink(self):
        return WandbSink(mode="offline", directory=self.path.parent)

    def metrics(self):
        rows = [(row.pop("train/step"), row) for row in read_rows(self.path.parent)]
        shown = [
            (step, name, value) for step, row in rows for name, value in row.items() if not isinstance(value, dict)
        ]
        return [(step, name, value) for step, name, value in shown if not name.startswith(("_", "rewards/"))]

    def texts(self):
        tables = [row["samples/train"]["path"] for row in read_rows(self.path.parent) if "samples/train" in row]
        found = []
        for path in tables:
            *_, file = sorted(self.path.parent.glob(f"wandb/*run-*/files/{path}"))  # each session has its own folder
            table = json.loads(file.read_text(encoding="utf-8"))
            found += [row[table["columns"].index("completion")] for row in table["data"]]
        return found

    def media(self):
        rows = read_rows(self.path.parent)
        values = {name: value for row in rows for name, value in row.items() if not name.startswith(("_", "train/"))}
        return {name: self._value(value) for name, value in values.items() if name != "loss"}

    def _value(self, value):
        if isinstance(value, str):
            return self._file(value).read_bytes()
        match value["_type"]:
            case "image-file" if "boxes" in value:
                boxes = json.loads(self._file(value["boxes"]["boxes"]["path"]).read_text())
                mask = media_values.image(self._file(value["masks"]["truth"]["path"]).read_bytes())
                return {"boxes": boxes["box_data"], "labels": boxes["class_labels"], "mask": mask}
            case "images/separated":
                return [media_values.image(self._file(path).read_bytes()) for path in value["filenames"]]
            case "image-file" | "video-file":
                return media_values.image(self._file(value["path"]).read_bytes())
            case "audio-file":
                return media_values.audio(self._file(value["path"]).read_bytes())
            case "histogram":
                return media_values.bins(value["values"], value["bins"])
            case "table-file":
                table = self._table(value)
                cells = [[cell["_type"] if isinstance(cell, dict) else cell for cell in row] for row in table["data"]]
                return {"columns": table["columns"], "rows": cells}
            case "plotly-file":
                return json.loads(self._file(value["path"]).read_text())["data"]
        return self._file(value["path"]).read_text()

    def _table(self, value):
        """A table of an artifact, which also has the media in its cells."""
        artifacts = [record.artifact for record in read_records(self.path.parent) if record.HasField("artifact")]
        files = {entry.path: entry.local_path for each in artifacts for entry in each.manifest.contents}
        return json.loads(Path(files[value["artifact_path"].rpartition("/")[2]]).read_text(encoding="utf-8"))

    def artifacts(self):
        """By name and digest, as a server keeps them: the same content is one version."""
        found = {}
        for record in read_records(self.path.parent):
            if record.HasField("artifact"):
                made = record.artifact
                entries = list(made.manifest.contents)
                found[made.name, made.digest] = {
                    "name": made.name,
                    "kind": made.type,
                    "metadata": json.loads(made.metadata),
                    "aliases": list(made.aliases),
                    "files": {each.path: Path(each.local_path).read_bytes() for each in entries if not each.ref},
                    "references": {each.path: each.ref for each in entries if each.ref},
                    "is_used": made.use_after_commit,
                }
        return list(found.values())

    def _file(self, path):
        *_, file = sorted(self.path.parent.glob(f"wandb/*run-*/files/{path}"))  # each session has its own folder
        return file

    def shown(self, value):
        return LEFT_OUT if value is None else value

    def fail(self, fault):
        if fault == "killed":
            threading.Thread(target=self._keep_killing, daemon=True).start()
        else:
            super().fail(fault)

    def heal(self):
        self.healed.set()
        with contextlib.suppress(FileNotFoundError):
            super().heal()

    def close(self):
        self.healed.set()
        end_wandb()
        self.patch.undo()
        super().close()

    def _keep_killing(self):
        while not self.healed.wait(0.02):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                for pid in wandb_processes():
                    os.kill(pid, signal.SIGKILL)


_forget = subprocess.Popen.__del__


def _forgotten(process):
    """Wandb waits for none of its processes; when Python finds that out is chance, and no fault of a test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        _forget(process)


def end_wandb():
    """End wandb's own process, and the object by which wandb started it, for which nobody waits."""
    import wandb

    wandb.teardown()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def wandb_processes():
    """The processes that wandb started for this one."""
    pids = [int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]
    return [pid for pid in pids if b"wandb-core" in (Path("/proc") / str(pid) / "cmdline").read_bytes()]


def read_records(directory):
    """All that wandb wrote down below a directory, in the order in which it was."""
    from hookline.sinks.wandb_run import WandbFile

    files = sorted(directory.glob("wandb/*run-*/*.wandb"), key=lambda file: file.stat().st_ctime_ns)
    return [record for file in files for record in WandbFile(file).new()]


def read_rows(directory):
    """The rows by number, as a server has them after ``wandb sync``: of two with one number the later."""
    rows = {}
    for record in read_records(directory):
        if record.HasField("history"):
            rows[record.history.step.num] = _values(record.history.item)
    return [rows[number] for number in sorted(rows)]


def _values(items):
    row = {}
    for item in items:
        *outer, last = item.nested_key or [item.key]
        place = row
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = json.loads(item.value_json)
    return row
