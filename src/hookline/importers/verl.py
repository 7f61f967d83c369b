"""Reads the files of verl: rollouts as ``<step>.jsonl``, and the metrics of its file logger.

A rollout has ``input``, ``output``, ``score``, ``step``, optionally ``gts`` (the ground truth), and the other values
that the reward function returned: numbers become rewards, the rest goes to ``extra``. Rollouts in a directory named
for validation are on the axis ``eval``. A metrics line is ``{"step": 1, "data": {...}}``. Neither has timestamps, so
the files' modification times are used.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hookline._engine.metrics import EVAL_WORDS
from hookline.importers.sources import (
    Item,
    ReadReport,
    SampleRow,
    Source,
    flatten,
    json_lines,
    modification_time,
    split_by_axis,
)

_STANDARD_KEYS = frozenset({"input", "output", "gts", "step", "uid"})
_EVALUATION = re.compile(rf"(^|[_.-])({'|'.join(EVAL_WORDS)})($|[_.-])", re.IGNORECASE)


class Rollouts(Source):
    """The rollouts of a training, one file for each step."""

    format = "verl"
    has_metrics = False

    def __init__(self, files: list[Path]) -> None:
        super().__init__(sorted(files, key=lambda file: (_step(file), file)))

    def items(self, report: ReadReport) -> Iterator[Item]:
        for file in self.files:
            axis, time = "eval" if is_evaluation(file.parent) else "train", modification_time(file)
            for place, line in json_lines(file, report):
                step = line.get("step", _step(file))
                if type(step) is not int:
                    report.skip(place, f"step={step!r} is not a whole number")
                elif not isinstance(line.get("output"), str):
                    report.skip(place, f"output={line.get('output')!r:.80} is not a string")
                else:
                    yield SampleRow(step, time, _fields(line), axis)


class MetricLines(Source):
    """The metrics that verl's logger ``file`` wrote."""

    format = "verl"

    def __init__(self, file: Path) -> None:
        super().__init__([file])

    def items(self, report: ReadReport) -> Iterator[Item]:
        time = modification_time(self.files[0])
        for place, line in json_lines(self.files[0], report):
            if not is_metrics(line):
                report.skip(place, "the line needs a whole number 'step' and a mapping 'data'")
                continue
            others = {name: value for name, value in line.items() if name not in ("step", "data")}
            values = dict(flatten(others | line["data"]))
            report.leave_non_metrics(place, values)
            yield from split_by_axis(line["step"], time, values)


def is_rollout(line: Any) -> bool:
    """Check whether a line is a rollout."""
    return isinstance(line, dict) and {"input", "output"} <= line.keys()


def is_metrics(line: Any) -> bool:
    """Check whether a line was written by the file logger."""
    return isinstance(line, dict) and type(line.get("step")) is int and isinstance(line.get("data"), dict)


def is_evaluation(directory: Path) -> bool:
    """Check whether a directory is named like one with rollouts of a validation."""
    return _EVALUATION.search(directory.name) is not None


def _step(file: Path) -> int:
    return int(file.stem) if file.stem.isdigit() else 0


def _fields(line: Mapping[str, Any]) -> dict[str, Any]:
    others = {name: value for name, value in line.items() if name not in _STANDARD_KEYS}
    rewards = {name: value for name, value in others.items() if isinstance(value, int | float)}
    truth = line.get("gts")
    fields = {
        "prompt": _text(line.get("input")),
        "completion": line["output"],
        "expected": None if truth is None else _text(truth),
        "group": line.get("uid"),
        "rewards": rewards,
        "total": line.get("score"),
        "extra": {name: value for name, value in others.items() if name not in rewards},
    }
    return {name: value for name, value in fields.items() if value is not None and value != {}}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
