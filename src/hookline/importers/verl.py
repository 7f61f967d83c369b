"""What verl writes: rollouts as ``<step>.jsonl``, and the metrics of its file logger.

A rollout has ``input``, ``output``, ``score`` and ``step``, ``gts`` since ground truths are dumped, and one key for
whatever the reward function returned besides: its numbers are rewards here, the rest is kept in
``extra``. Rollouts in a directory named for validation are on the axis ``eval``. A line of metrics is
``{"step": 1, "data": {...}}``. Neither has times: those of the files stand in.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hookline.importers.source import EVAL_WORDS, Item, Reading, SampleRow, Source, flat, is_scalar, rows, written

_TAKEN = frozenset({"input", "output", "gts", "step", "uid"})
_EVALUATION = re.compile(rf"(^|[_.-])({'|'.join(EVAL_WORDS)})($|[_.-])", re.IGNORECASE)


class Rollouts(Source):
    """The rollouts of a training, one file for each step."""

    format = "verl"
    has_metrics = False

    def __init__(self, files: list[Path]) -> None:
        super().__init__(sorted(files, key=lambda file: (_step(file), file)))

    def items(self, reading: Reading) -> Iterator[Item]:
        for file in self.files:
            axis, time = "eval" if is_evaluation(file.parent) else "train", written(file)
            for place, line in json_lines(file, reading):
                step = line.get("step", _step(file))
                if type(step) is not int:
                    reading.skip(place, f"step={step!r} is no whole number")
                elif not isinstance(line.get("output"), str):
                    reading.skip(place, f"output={line.get('output')!r:.80} is no text")
                else:
                    yield SampleRow(step, time, _fields(line), axis)


class MetricLines(Source):
    """What verl's logger ``file`` wrote."""

    format = "verl"

    def __init__(self, file: Path) -> None:
        super().__init__([file])

    def items(self, reading: Reading) -> Iterator[Item]:
        time = written(self.files[0])
        for place, line in json_lines(self.files[0], reading):
            step, data = line.get("step"), line.get("data")
            if type(step) is not int or not isinstance(data, dict):
                reading.skip(place, "it is no line with a whole number 'step' and a mapping 'data'")
                continue
            besides = {name: value for name, value in line.items() if name not in ("step", "data")}
            values = dict(flat(besides | data))
            for name in [name for name, value in values.items() if not is_scalar(value)]:
                reading.skip(f"{place}, {name!r}", f"a {type(values.pop(name)).__name__} is no metric")
            yield from rows(step, time, values)


def is_rollout(line: Any) -> bool:
    """Whether a line is a rollout."""
    return isinstance(line, dict) and {"input", "output"} <= line.keys()


def is_metrics(line: Any) -> bool:
    """Whether a line is one of the file logger."""
    return isinstance(line, dict) and type(line.get("step")) is int and isinstance(line.get("data"), dict)


def is_evaluation(directory: Path) -> bool:
    """Whether a directory is named for rollouts of a validation."""
    return _EVALUATION.search(directory.name) is not None


def json_lines(file: Path, reading: Reading) -> Iterator[tuple[str, dict[str, Any]]]:
    """The mappings in a file of JSON lines, each with its place."""
    try:
        with file.open("rb") as opened:
            for number, content in enumerate(opened, 1):
                reading.advance(len(content))
                place = f"{file}, line {number}"
                try:
                    line = json.loads(content)
                except (ValueError, RecursionError) as error:
                    torn = not content.endswith(b"\n")
                    reading.skip(place, "the last line is cut off" if torn else f"it is no JSON: {error}")
                    continue
                if isinstance(line, dict):
                    yield place, line
                else:
                    reading.skip(place, f"a {type(line).__name__} is no record")
    except OSError as error:
        reading.skip(str(file), error)


def _step(file: Path) -> int:
    return int(file.stem) if file.stem.isdigit() else 0


def _fields(line: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: value for name, value in line.items() if name not in _TAKEN and _is_number(value)}
    extra = {name: value for name, value in line.items() if name not in _TAKEN and name not in numbers}
    truth = line.get("gts")
    fields = {
        "prompt": _text(line.get("input")),
        "completion": line["output"],
        "expected": None if truth is None else _text(truth),
        "group": line.get("uid"),
        "rewards": numbers,
        "total": line.get("score"),
        "extra": extra,
    }
    return {name: value for name, value in fields.items() if value is not None and value != {}}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
