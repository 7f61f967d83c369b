"""A sink that writes metric rows as a Markdown table, for a README or a chat."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hookline as hl
from hookline.sinks import Sink

__all__ = ["MarkdownSink"]


@dataclass(eq=False)
class MarkdownSink(Sink):
    """Writes a table line for each metric row that has one of the columns.

    A batch is delivered twice if the process dies between writing it and saving the state. The state is the size of
    the file after the last delivered batch, and anything after it is cut off.

    Args:
        columns: The metrics to show.
        path: The file; ``metrics.md`` in the run's directory by default.
        name: The sink's name in its run.
    """

    columns: tuple[str, ...] = ("loss",)
    path: Path | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.columns, str) or not self.columns:
            raise hl.OptionError(f"columns={self.columns!r}: give a list of names of metrics.")
        self.columns = tuple(self.columns)
        self.path = None if self.path is None else Path(self.path).absolute()
        self._file: Path | None = None

    def open(self, run_dir: Path, state: Any) -> int:
        """Start the table, or truncate it to its saved size."""
        self._file = self.path or run_dir / "metrics.md"
        if state is None:
            head = f"| step | {' | '.join(self.columns)} |\n|{'---|' * (1 + len(self.columns))}\n"
            self._file.write_text(head, encoding="utf-8")
            return len(head.encode())
        with self._file.open("r+b") as file:
            file.truncate(state)
        return int(state)

    def write(self, entries: Sequence[Any]) -> int:
        """Append a batch, and return the size of the file."""
        assert self._file is not None
        records = [entry.record for entry in entries if entry.kind == "metrics"]
        lines = [self._line(record) for record in records if any(name in record.values for name in self.columns)]
        with self._file.open("a", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            return file.tell()

    def _line(self, record: Any) -> str:
        values = [record.values.get(name) for name in self.columns]
        shown = ["" if value is None else f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        return f"| {record.step} | {' | '.join(shown)} |\n"
