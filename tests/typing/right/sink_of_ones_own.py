"""A sink: a data class whose fields are its settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hookline as hl
from hookline.sinks import Sink, register_sink


@register_sink("typed_count")
@dataclass(eq=False)
class CountSink(Sink):
    path: Path = Path("count.txt")
    name: str | None = None

    def check(self) -> None:
        if self.path.is_dir():
            raise hl.RefusedError(f"{self.path} is a directory: give a file.")

    def open(self, run_dir: Path, state: Any) -> int:
        self.count = 0 if state is None else int(state)
        return self.count

    def write(self, entries: Sequence[Any]) -> int:
        self.count += sum(entry.kind == "metrics" for entry in entries)
        self.path.write_text(str(self.count))
        return self.count

    def close(self) -> None:
        print(self.count)


def use() -> None:
    with hl.run("sunk", sinks=[CountSink(Path("here.txt")), hl.sinks.CsvSink(columns=("step", "loss"))]) as run:
        run.log(loss=1.0)
