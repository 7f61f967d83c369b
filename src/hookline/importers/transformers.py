"""Reads Hugging Face's ``trainer_state.json`` and TRL's ``completions_*.parquet``.

The trainer's history keeps its names (``loss``, ``eval_loss``); rows of evaluations go to the axis ``eval``. The file
has no timestamps: event files of the same training supply them, or else the file's modification time is used. Of
several states, in checkpoints and in the output directory, the latest readable one counts.

In TRL's tables a float column is the reward of one function, unless the training's metrics list the functions. Other
columns go to ``extra``. A chat becomes the sample's text and stays in ``extra`` in its original form. TRL writes
evaluations to the same files without marking their rows, so all samples are on the axis ``train``.
"""

import itertools
import json
import math
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from hookline._record.chats import as_chat, completion_text, prompt_text
from hookline.importers.csv import parse_step
from hookline.importers.sources import (
    EventRow,
    Item,
    ReadReport,
    Row,
    SampleRow,
    Source,
    flatten,
    modification_time,
    split_by_axis,
)

STATE = "trainer_state.json"
COMPLETIONS = re.compile(r"completions_(\d+)\.parquet")
_SETTINGS = (
    "max_steps",
    "num_train_epochs",
    "train_batch_size",
    "logging_steps",
    "eval_steps",
    "save_steps",
    "trial_name",
    "trial_params",
)
_FACTS = ("global_step", "epoch", "best_metric", "best_global_step", "best_model_checkpoint", "total_flos")
_STANDARD_COLUMNS = ("step", "prompt", "completion", "advantage")
_REWARD = re.compile(r"(?:train/)?rewards/(.+)/mean")
_BATCH_ROWS = 256


class TrainerState(Source):
    """The states that a trainer saved; only the latest is imported."""

    format = "transformers"

    def __init__(self, files: list[Path]) -> None:
        super().__init__(sorted(files, key=_checkpoint_step, reverse=True))

    def items(self, report: ReadReport) -> Iterator[Item]:
        # The state in the output directory comes first, but a checkpoint of a later start may be newer.
        latest: Path | None = None
        state: dict[str, Any] = {}
        for file in self.files:
            if latest is not None and _checkpoint_step(file) <= _global_step(state):
                break  # the remaining ones are older
            loaded = _load_state(file, report)
            if loaded is not None and (latest is None or _global_step(loaded) > _global_step(state)):
                latest, state = file, loaded
        if latest is None:
            return
        self.unused = [file for file in self.files if file != latest]
        if self.unused:
            report.leave("states of other checkpoints", f"{latest} is the latest", len(self.unused))
        report.config |= {name: state[name] for name in _SETTINGS if state.get(name) is not None}
        report.facts |= {name: state[name] for name in _FACTS if state.get(name) is not None}
        yield from _history(latest, state, report)

    def rename(self, name: str) -> str:
        """Translate a tag of the trainer's TensorBoard callback to the name in the history."""
        part, _, rest = name.partition("/")
        return rest if part == "train" and rest else f"{part}_{rest}" if part in ("eval", "test") and rest else name


def _checkpoint_step(file: Path) -> float:
    found = re.fullmatch(r"checkpoint-(\d+)", file.parent.name)
    return int(found[1]) if found else float("inf")


def _global_step(state: dict[str, Any]) -> float:
    step = state.get("global_step")
    return step if isinstance(step, int | float) else 0


def _load_state(file: Path, report: ReadReport) -> dict[str, Any] | None:
    try:
        content = file.read_bytes()
        report.advance(len(content))
        state = json.loads(content)
    except json.JSONDecodeError as error:
        report.skip(f"{file}, line {error.lineno}", error.msg)
        return None
    except (OSError, ValueError, RecursionError) as error:
        report.skip(str(file), error)
        return None
    if isinstance(state, dict) and isinstance(state.get("log_history"), list):
        return state
    report.skip(str(file), "there is no list 'log_history'")
    return None


def _history(file: Path, state: dict[str, Any], report: ReadReport) -> Iterator[Item]:
    time = modification_time(file)
    for index, logged in enumerate(state["log_history"]):
        place = f"{file}, log_history[{index}]"
        if not isinstance(logged, dict) or type(logged.get("step")) is not int:
            report.skip(place, "the row has no whole number 'step'")
            continue
        values = dict(flatten({name: value for name, value in logged.items() if name != "step"}))
        report.leave_non_metrics(place, values)
        # Rows of an evaluation with a custom prefix are recognised by the runtime that evaluations report.
        prefixes = (name.removesuffix("_runtime") for name in values if name.endswith("_runtime"))
        if any(prefix != "train" and f"{prefix}_samples_per_second" in values for prefix in prefixes):
            yield Row(logged["step"], time, values, "eval")
        else:
            yield from split_by_axis(logged["step"], time, values)
    best = state.get("best_global_step")
    if state.get("best_metric") is not None:
        data = {"metric": state["best_metric"], "checkpoint": state.get("best_model_checkpoint")}
        last = state.get("global_step")
        yield EventRow(next((each for each in (best, last) if type(each) is int), 0), time, "best", data)


class Completions(Source):
    """TRL's tables of completions, one for each logged step."""

    format = "trl"
    has_metrics = False
    wants_metric_names = True
    package = "pyarrow"
    package_use = ("Reading TRL's completions", "hf")

    def __init__(self, files: list[Path]) -> None:
        super().__init__(sorted(files, key=_completions_step))
        self.reward_names: set[str] | None = None

    def use_metric_names(self, names: set[str]) -> None:
        self.reward_names = {match[1] for name in names if (match := _REWARD.fullmatch(name))} or None

    def items(self, report: ReadReport) -> Iterator[Item]:
        self.check()
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        for file in self.files:
            try:
                with parquet.ParquetFile(file) as table:
                    floats = {field.name for field in table.schema_arrow if pyarrow.types.is_floating(field.type)}
                    rewards = floats if self.reward_names is None else floats & self.reward_names
                    rows = itertools.chain.from_iterable(each.to_pylist() for each in table.iter_batches(_BATCH_ROWS))
                    time = modification_time(file)
                    for number, row in enumerate(rows):
                        step = parse_step(str(row.get("step", _completions_step(file))))
                        if step is None:
                            report.skip(f"{file}, row {number}", f"step={row['step']!r} is not a whole number")
                        else:
                            yield SampleRow(step, time, _fields(row, rewards.difference(_STANDARD_COLUMNS)))
            except (OSError, pyarrow.ArrowException) as error:
                report.skip(str(file), error)
            report.advance(file.stat().st_size)


def _completions_step(file: Path) -> int:
    found = COMPLETIONS.fullmatch(file.name)
    return int(found[1]) if found else 0


def _fields(row: dict[str, Any], rewards: set[str]) -> dict[str, Any]:
    extra = {name: value for name, value in row.items() if name not in rewards and name not in _STANDARD_COLUMNS}
    chats: dict[str, Any] = {}
    for name in ("prompt", "completion"):
        if (chat := as_chat(row.get(name))) is not None:
            chats[f"{name}_messages"] = chat
        elif not isinstance(row.get(name), str | None):
            extra[name] = row[name]
    return {
        **chats,
        "prompt": prompt_text(row.get("prompt")),
        "completion": completion_text(row.get("completion")),
        "rewards": {name: math.nan if row[name] is None else row[name] for name in row if name in rewards},
        **({"advantage": row["advantage"]} if row.get("advantage") is not None else {}),
        "extra": extra,
    }
