"""All records as lines of JSON in one file, for other programs to read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline.record.reader import Parcel
from hookline.record.recorder import cleaned
from hookline.record.records import encode
from hookline.record.sink import Sink, register_sink
from hookline.sinks.appended_file import AppendedFile, has_zeros, set_aside
from hookline.sinks.kinds import require_kinds


@register_sink("jsonl")
@dataclass(eq=False)
class JsonlSink(Sink):
    """Writes a line of JSON for each record, as in the journal, from all writers of the run.

    Args:
        path: The file; ``records.jsonl`` in the run's directory where none is given.
        kinds: Which records: ``metrics``, ``sample``, ``rewards``, ``status``, ``event``, ``log``; all of them
            where none are given.
        name: What the sink is called in its run.
    """

    path: Path | None = None
    kinds: tuple[str, ...] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        self.kinds = require_kinds(self.kinds)
        self.path = Path(self.path).absolute() if self.path is not None else None
        self._file: AppendedFile | None = None

    def has_lost(self, run_dir: Path, state: Any) -> bool:
        path = self.path or run_dir / "records.jsonl"
        if not has_zeros(path, state):
            return False
        set_aside(path)
        return True

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return []

    def open(self, run_dir: Path, state: Any) -> Any:
        begins = 0 if state is None and self.path is None else state  # ours alone: anew, where the settings changed
        self._file = AppendedFile(self.path or run_dir / "records.jsonl", begins)
        return self._file.size

    def write(self, parcels: Sequence[Parcel]) -> int:
        assert self._file is not None
        wanted = [parcel.record for parcel in parcels if not self.kinds or parcel.kind in self.kinds]
        return self._file.append(b"".join(encode(cleaned(record)) + b"\n" for record in wanted))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
