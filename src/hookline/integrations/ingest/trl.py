"""TRL's ``completions_*.parquet`` as samples.

A column of floats is a reward function's, unless the training's own metrics say which functions there
are; what else there is, also what a function logged of its own, is kept in ``extra``. A chat becomes the
sample's text and stays in ``extra`` as it is. TRL writes evaluations into the same files without saying
which rows they are, so that all samples are on the axis ``train``.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from hookline.core.errors import MissingExtraError
from hookline.integrations.ingest.csv import whole
from hookline.integrations.ingest.items import Item, SampleRow
from hookline.integrations.ingest.source import Reading, Source, written
from hookline.logging.completions import completion_text, prompt_text

COMPLETIONS = re.compile(r"completions_(\d+)\.parquet")
_KNOWN = ("step", "prompt", "completion", "advantage")
_REWARD = re.compile(r"(?:train/)?rewards/(.+)/mean")
_BATCH_ROWS = 256


class Completions(Source):
    """The tables of a run's completions, one for each logged step."""

    format = "trl"
    has_metrics = False

    def __init__(self, files: list[Path]) -> None:
        super().__init__(sorted(files, key=_step))
        self.reward_names: set[str] | None = None

    def know(self, metrics: set[str]) -> None:
        """Take the names of the reward functions from those of the training's metrics."""
        found = {match[1] for name in metrics if (match := _REWARD.fullmatch(name))}
        self.reward_names = found or None

    def check(self) -> None:
        try:
            import_module("pyarrow")
        except ImportError:
            raise MissingExtraError("Reading TRL's completions", "hf") from None

    def items(self, reading: Reading) -> Iterator[Item]:
        self.check()
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        for file in self.files:
            try:
                with parquet.ParquetFile(file) as table:
                    floats = {field.name for field in table.schema_arrow if pyarrow.types.is_floating(field.type)}
                    rows = itertools.chain.from_iterable(each.to_pylist() for each in table.iter_batches(_BATCH_ROWS))
                    yield from self._samples(file, rows, floats, reading)
            except (OSError, pyarrow.ArrowException) as error:
                reading.skip(str(file), error)
            reading.advance(file.stat().st_size)

    def _samples(
        self, file: Path, rows: Iterable[dict[str, Any]], floats: set[str], reading: Reading
    ) -> Iterator[SampleRow]:
        rewards = {name for name in floats if self.reward_names is None or name in self.reward_names} - {*_KNOWN}
        time = written(file)
        for number, row in enumerate(rows):
            step = whole(str(row.get("step", _step(file))))
            if step is None:
                reading.skip(f"{file}, row {number}", f"step={row['step']!r} is no whole number")
                continue
            yield SampleRow(step, time, _fields(row, rewards))


def _step(file: Path) -> int:
    found = COMPLETIONS.fullmatch(file.name)
    return int(found[1]) if found else 0


def _fields(row: dict[str, Any], rewards: set[str]) -> dict[str, Any]:
    extra = {name: value for name, value in row.items() if name not in rewards and name not in _KNOWN}
    for name in ("prompt", "completion"):
        if not isinstance(row.get(name), str | None):
            extra[name] = row[name]
    return {
        "prompt": prompt_text(row.get("prompt")),
        "completion": completion_text(row.get("completion")),
        "rewards": {name: math.nan if row[name] is None else row[name] for name in row if name in rewards},
        **({"advantage": row["advantage"]} if row.get("advantage") is not None else {}),
        "extra": extra,
    }
