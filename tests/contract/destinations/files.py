"""Destinations that are files; a full disk is a small file system of its own."""

import contextlib
import csv
import json
import math
import re
import subprocess
from pathlib import Path

import pytest

from destinations.base import LEFT_OUT, Destination
from hookline.sinks import CsvSink, FileSink, JsonlSink

csv.field_size_limit(1 << 30)
FIXED = ("step", "axis", "time", "writer", "kind")


class FileDestination(Destination):
    """A file on a small file system of its own, which can be full."""

    faults = ("disk_full",)
    file_name = ""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.path = directory / "place" / self.file_name
        self.path.parent.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(self.path.parent)]
        self.mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0

    def fail(self, fault: str) -> None:
        if not self.mounted:
            pytest.skip("a small file system cannot be mounted: not root")
        with (self.path.parent / "ballast").open("wb", buffering=0) as ballast:
            for size in (65536, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        ballast.write(b"x" * size)

    def heal(self) -> None:
        (self.path.parent / "ballast").unlink()

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", self.path.parent], check=True)


class CsvDestination(FileDestination):
    name = "csv"
    file_name = "metrics.csv"

    def sink(self):
        return CsvSink(self.path)

    def rows(self):
        with self.path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file, strict=True))

    def metrics(self):
        found = []
        for row in self.rows():
            assert None not in row, "a cell under no name"
            values = {key: value for key, value in row.items() if key not in FIXED and value != ""}
            found += [(int(row["step"]), key, value) for key, value in values.items()]
        return found

    def shown(self, value):
        if value is None:
            return LEFT_OUT
        if isinstance(value, float) and not math.isfinite(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        return repr(value) if isinstance(value, float) else str(value)


class JsonlDestination(FileDestination):
    name = "jsonl"
    file_name = "records.jsonl"
    keeps_samples = True

    def sink(self):
        return JsonlSink(self.path)

    def records(self):
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]

    def metrics(self):
        rows = [record for record in self.records() if record["kind"] == "metrics"]
        return [(row["step"], key, value) for row in rows for key, value in row["values"].items()]

    def texts(self):
        return [record["completion"] for record in self.records() if record["kind"] == "sample"]

    def media(self):
        found = [record for record in self.records() if record["kind"] in ("media", "table")]
        return {record["name"]: record.get("blob") or record.get("rows") or record["data"] for record in found}

    def shown(self, value):
        if isinstance(value, float) and not math.isfinite(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        return value


class RunLogDestination(FileDestination):
    """A log of lines in several files: the older they are, the lower their number."""

    name = "file"
    file_name = "run.log"
    keeps_samples = True

    def sink(self):
        return FileSink(self.path, max_bytes=4000, backups=100)

    def records(self):
        older = sorted(self.path.parent.glob("run.log.*"), key=lambda path: int(path.suffix[1:]))
        return [
            (line.split()[2], dict(self._words(line.split(maxsplit=3)[3])))
            for path in [*older, self.path]
            for line in path.read_text(encoding="utf-8").splitlines()
        ]

    @staticmethod
    def _words(text):
        word = re.compile(r'("(?:[^"\\]|\\.)*"|[^\s="]+)=("(?:[^"\\]|\\.)*"|\S+)')
        return [(found[1], found[2]) for found in word.finditer(text)]

    def metrics(self):
        rows = [words for kind, words in self.records() if kind == "metrics"]
        return [(int(row["step"]), key, row[key]) for row in rows for key in row if key not in FIXED]

    def texts(self):
        return [json.loads(words["completion"]) for kind, words in self.records() if kind == "sample"]

    def media(self):
        found = [words for kind, words in self.records() if kind in ("media", "table")]
        return {json.loads(words["name"]): json.loads(words.get("blob", '""')) for words in found}

    def shown(self, value):
        if isinstance(value, float) and not math.isfinite(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        return json.dumps(value)
