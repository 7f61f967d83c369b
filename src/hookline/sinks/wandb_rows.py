"""Records as rows of a W&B run, and the numbers that the rows go by.

W&B takes rows with rising numbers only, and drops one with a number that it has. So a batch that
comes again has to give each record the number that it had: which ones a batch was begun with is noted
in a file before the first is sent.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from hookline.record.reader import MAIN, Parcel
from hookline.record.records import Metrics, Rewards, Sample
from hookline.sinks.histogram import finite, histogram, mean

STEP = "train/step"
_OWN_STEPS = ("train", "eval")
"""The axes whose steps are those of the training."""
_COLUMNS = ("step", "lesson", "group", "prompt", "reasoning", "completion", "answer", "expected")


class Numbers:
    """Gives rows their numbers, and a batch that comes again the same ones.

    Args:
        path: Where the numbers of the batch that was begun last are noted.
        following: The number behind the last row that counts as delivered.
    """

    def __init__(self, path: Path, following: int) -> None:
        self.path, self.following = path, following
        self._begun = {record: number for record, number in _noted(path).items() if number >= following}

    def give(self, parcels: Sequence[Parcel]) -> list[tuple[int, list[Parcel]]]:
        """The rows of a batch by number; the samples of a writer and axis share one."""
        rows: dict[int, list[Parcel]] = {}
        new: dict[Any, int] = {}
        first = max([self.following, *(number + 1 for number in self._begun.values())])
        for parcel in parcels:
            number = self._begun.get(parcel.id, -1)
            if number < self.following:
                number = new.setdefault(_row_of(parcel), first + len(new))
            rows.setdefault(number, []).append(parcel)
        self._note({parcel.id: number for number, row in rows.items() for parcel in row})
        return sorted(rows.items())

    def _note(self, numbers: Mapping[str, int]) -> None:
        aside = self.path.with_suffix(".partial")
        aside.write_text(json.dumps(numbers), encoding="utf-8")
        aside.replace(self.path)


def row(parcels: Sequence[Parcel], samples_per_step: int) -> tuple[str, dict[str, Any]]:
    """The name that a row's step goes by, and its values by name."""
    parcel = parcels[-1]
    record = parcel.record
    axis = getattr(record, "axis", "train")
    step = STEP if axis in _OWN_STEPS else f"{axis}/step"
    prefix = "" if parcel.file.name == MAIN else f"{parcel.file.name}/"
    values: dict[str, Any] = {}
    if isinstance(record, Metrics):
        own = "" if axis in _OWN_STEPS else f"{axis}/"
        values = {own * (not name.startswith(own)) + name: _plain(value) for name, value in record.values.items()}
    elif isinstance(record, Rewards):
        values = _rewards(record)
    elif isinstance(record, Sample):
        values = {f"samples/{axis}": _table([each.record for each in parcels], samples_per_step)}
    values = {prefix + name: value for name, value in values.items() if value is not None}
    return step, values | {step: record.step, "_timestamp": record.time} if values else {}


def _row_of(parcel: Parcel) -> Any:
    return (parcel.file.name, parcel.record.axis) if isinstance(parcel.record, Sample) else parcel.id


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | float):
        return value
    return int(value) if isinstance(value, int) else str(value)


def _rewards(record: Rewards) -> dict[str, Any]:
    values = finite(record.values)
    if not values:
        return {}
    shape: Any = histogram(values)
    return {
        f"rewards/{record.name}": mean(values),  # rewards/<name>/mean is a name of rows of metrics
        f"rewards/{record.name}/histogram": wandb.Histogram(np_histogram=shape),
    }


def _table(samples: Sequence[Any], samples_per_step: int) -> wandb.Table:
    """So many samples of each step, in columns; those that all of them leave empty are not there."""
    shown: dict[int, list[dict[str, Any]]] = {}
    for sample in samples:
        of_step = shown.setdefault(sample.step, [])
        if len(of_step) < samples_per_step:
            of_step.append(_cells(sample))
    cells = [cell for of_step in shown.values() for cell in of_step]
    columns: list[Any] = list(dict.fromkeys(name for cell in cells for name in cell))
    data = [[cell.get(column) for column in columns] for cell in cells]
    return wandb.Table(columns=columns, data=data, allow_mixed_types=True)


def _cells(sample: Sample) -> dict[str, Any]:
    cells = {name: getattr(sample, name) for name in _COLUMNS}
    cells |= {f"rewards/{name}": value for name, value in sample.rewards.items()}
    cells |= {"total": sample.total, "advantage": sample.advantage}
    return {name: value for name, value in cells.items() if value is not None}


def _noted(path: Path) -> dict[str, int]:
    try:
        numbers: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return numbers
