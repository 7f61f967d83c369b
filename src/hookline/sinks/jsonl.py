"""`JsonlSink`: all records as JSON lines in one file, for other programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline._record.reader import JournalEntry
from hookline._record.recorder import cleaned
from hookline._record.records import encode
from hookline._record.sink import Sink, register_sink
from hookline.sinks.output_files import AppendedFile, file_loss, has_zeros, set_aside
from hookline.sinks.rows import require_kinds


@register_sink("jsonl")
@dataclass(eq=False)
class JsonlSink(Sink):
    """Writes each record as a line of JSON, in the journal's format, from all writers of the run.

    Args:
        path: The file; ``records.jsonl`` in the run's directory by default.
        kinds: Which records: ``metrics``, ``sample``, ``rewards``, ``status``, ``event``, ``log``; by default all.
        name: The sink's name in its run.
    """

    path: Path | None = None
    kinds: tuple[str, ...] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        self.kinds = require_kinds(self.kinds)
        self.path = Path(self.path).absolute() if self.path is not None else None
        self._file: AppendedFile | None = None
        self._begin = 0

    def find_loss(self, run_dir: Path, state: Any) -> str:
        known = _known(state)
        return file_loss(self._path(run_dir), known["bytes"], known)

    def set_aside(self, run_dir: Path, state: Any) -> None:
        known = _known(state)
        set_aside(self._path(run_dir), known["begin"], known.get("inode"))

    def is_intact(self) -> bool:
        return self._file is None or self._file.is_intact()

    def has_lost(self, run_dir: Path, state: Any) -> bool:
        if not has_zeros(self._path(run_dir), _known(state)["bytes"]):
            return False
        set_aside(self._path(run_dir))
        return True

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return []

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        known = None if state is None else _known(state)
        size: int | None = known["bytes"] if known is not None else None
        if known is None and self.path is None:  # any content is from a sink with other settings
            size = 0
        self._file = AppendedFile(self._path(run_dir), size, known)
        self._begin = self._file.size if known is None else known["begin"]
        return self._state(self._file)

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._file is not None
        wanted = [entry.record for entry in entries if not self.kinds or entry.kind in self.kinds]
        self._file.append(b"".join(encode(cleaned(record)) + b"\n" for record in wanted))
        return self._state(self._file)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _path(self, run_dir: Path) -> Path:
        return self.path or run_dir / "records.jsonl"

    def _state(self, file: AppendedFile) -> dict[str, Any]:
        return {"bytes": file.size, "begin": self._begin} | file.mark()


def _known(state: Any) -> dict[str, Any]:
    """A saved state; that of version 0.1 was only the size."""
    return state if isinstance(state, dict) else {"bytes": state, "begin": 0}
