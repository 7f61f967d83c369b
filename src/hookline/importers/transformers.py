"""Hugging Face's ``trainer_state.json``: the trainer's own history of what it logged.

Names stay as they are (``loss``, ``eval_loss``); rows of evaluations are on the axis ``eval``. The file has no
times: they come from event files of the same training where there are some, and are otherwise that of
the file. Of several states, in checkpoints and in the output directory, the latest that can be read counts.

TRL's ``completions_*.parquet`` as samples.

A column of floats is a reward function's, unless the training's own metrics say which functions there
are; what else there is, also what a function logged of its own, is kept in ``extra``. A chat becomes the
sample's text and stays in ``extra`` as it is. TRL writes evaluations into the same files without saying
which rows they are, so that all samples are on the axis ``train``.
"""

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from hookline._engine.errors import MissingExtraError
from hookline.importers.csv import whole
from hookline.importers.source import Item, Occurrence, Reading, Row, SampleRow, Source, flat, is_scalar, rows, written
from hookline.logging.completions import completion_text, prompt_text

STATE = "trainer_state.json"
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


class TrainerState(Source):
    """The states that a trainer left; all but the latest are left aside."""

    format = "transformers"

    def __init__(self, files: list[Path]) -> None:
        super().__init__(sorted(files, key=_checkpoint_step, reverse=True))

    def items(self, reading: Reading) -> Iterator[Item]:
        file, state = self._latest(reading)
        if file is not None:
            self.unused = [other for other in self.files if other != file]
            if self.unused:
                reading.leave("states of other checkpoints", f"{file} is the latest", len(self.unused))
            reading.config |= {name: state[name] for name in _SETTINGS if state.get(name) is not None}
            reading.facts |= {name: state[name] for name in _FACTS if state.get(name) is not None}
            yield from _history(file, state, reading)

    def _latest(self, reading: Reading) -> tuple[Path | None, dict[str, Any]]:
        """The state that is furthest; that of the output directory may be older than a checkpoint of a later start."""
        best: tuple[Path | None, dict[str, Any]] = (None, {})
        for file in self.files:
            if best[0] is not None and _checkpoint_step(file) <= _global_step(best[1]):
                break  # and those behind it are older still
            state = _load(file, reading)
            if state is not None and (best[0] is None or _global_step(state) > _global_step(best[1])):
                best = file, state
        return best

    def renamed(self, name: str) -> str:
        """A tag of the trainer's TensorBoard callback as the history has it."""
        part, _, rest = name.partition("/")
        return rest if part == "train" and rest else f"{part}_{rest}" if part in ("eval", "test") and rest else name


def _checkpoint_step(file: Path) -> float:
    """The step of a checkpoint's state; the state in the output directory is looked at first."""
    found = re.fullmatch(r"checkpoint-(\d+)", file.parent.name)
    return int(found[1]) if found else float("inf")


def _global_step(state: dict[str, Any]) -> float:
    step = state.get("global_step")
    return step if isinstance(step, int | float) else 0


def _load(file: Path, reading: Reading) -> dict[str, Any] | None:
    try:
        content = file.read_bytes()
        reading.advance(len(content))
        state = json.loads(content)
    except json.JSONDecodeError as error:
        reading.skip(f"{file}, line {error.lineno}", error.msg)
        return None
    except (OSError, ValueError, RecursionError) as error:
        reading.skip(str(file), error)
        return None
    if isinstance(state, dict) and isinstance(state.get("log_history"), list):
        return state
    reading.skip(str(file), "it has no list 'log_history'")
    return None


def _history(file: Path, state: dict[str, Any], reading: Reading) -> Iterator[Item]:
    time = written(file)
    for index, logged in enumerate(state["log_history"]):
        place = f"{file}, log_history[{index}]"
        if not isinstance(logged, dict) or type(logged.get("step")) is not int:
            reading.skip(place, "it is no row with a whole number 'step'")
            continue
        values = dict(flat({name: value for name, value in logged.items() if name != "step"}))
        for name in [name for name, value in values.items() if not is_scalar(value)]:
            reading.skip(f"{place}, {name!r}", f"a {type(values.pop(name)).__name__} is no metric")
        if _is_evaluation(values):
            yield Row(logged["step"], time, values, "eval")
        else:
            yield from rows(logged["step"], time, values)
    best = state.get("best_global_step")
    if state.get("best_metric") is not None:
        data = {"metric": state["best_metric"], "checkpoint": state.get("best_model_checkpoint")}
        yield Occurrence(best if type(best) is int else int(state.get("global_step") or 0), time, "best", data)


def _is_evaluation(values: dict[str, Any]) -> bool:
    """Whether a row comes from an evaluation, also one with a prefix of its own: it says how long it took."""
    prefixes = (name.removesuffix("_runtime") for name in values if name.endswith("_runtime"))
    return any(prefix != "train" and f"{prefix}_samples_per_second" in values for prefix in prefixes)


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
