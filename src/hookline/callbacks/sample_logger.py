"""Records a few samples of a model's inputs and outputs from rollouts or validations.

The samples go through `loop.log_samples` to the record and its sinks. They are extracted from lists of mappings or
objects and from mappings of lists, else from arrays with few numbers per sample. For other data, pass ``make``.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, Literal

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState
from hookline.callbacks.monitoring import StatefulCallback

logger = logging.getLogger("hookline")

Row = Mapping[str, Any]
MOST_NUMBERS = 32
"""Arrays with more numbers per sample, such as images or logits over a vocabulary, are skipped."""


@register("sample_logger")
class SampleLogger(StatefulCallback):
    """Records the first ``n`` samples of every Nth rollout step or validation.

    Runs on rank zero unless configured with ``ranks="all"``.

    Args:
        n: How many samples to record at a time.
        every: Record from every Nth rollout step, or from the first validation and every Nth after it.
        source: "rollouts" or "validation".
        make: Called with the rollouts, or with the outputs and the batch of a validation batch; returns a mapping
            for each sample, with ``prompt``, ``completion``, ``expected``, ``rewards`` or any other names.
    """

    ranks = "zero"

    def __init__(
        self,
        n: int = 4,
        every: int = 1,
        source: Literal["rollouts", "validation"] = "rollouts",
        make: Callable[..., Iterable[Row]] | None = None,
    ) -> None:
        if source not in ("rollouts", "validation"):
            raise OptionError(f"source={source!r}: give 'rollouts' or 'validation'.")
        if make is not None and not callable(make):
            raise OptionError(f"make={make!r}: give a function that returns a list of dicts.")
        self.n = require_integer("n", n)
        self.source = source
        self._every = require_integer("every", every)
        self._make = make
        self._reset()

    def _reset(self) -> None:
        self._validations = 0
        self._wanted = 0
        self._found: bool | None = None

    def on_train_start(self, loop: LoopState, /) -> None:
        super().on_train_start(loop)
        if self.source == "validation" and (reason := getattr(loop, "no_validation_batches", None)):
            logger.warning("%s records nothing: %s.", self.name, reason)

    def on_rollout_end(self, loop: LoopState, step_idx: int, rollouts: Any, /) -> None:
        if self.source == "rollouts" and (step_idx + 1) % self._every == 0:
            self._log(loop, self.n, rollouts)

    def on_validation_start(self, loop: LoopState, /) -> None:
        self._wanted = self.n if self._validations % self._every == 0 else 0
        self._validations += 1

    def on_validation_batch_end(self, loop: LoopState, outputs: Any, batch: Any, batch_idx: int, /) -> None:
        if self.source == "validation" and self._wanted:
            self._wanted -= self._log(loop, self._wanted, outputs, batch)

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        super().on_train_end(loop, artifacts)
        if self._found is False:
            logger.warning("%s found no samples in the %s. Pass make= to extract them.", self.name, self.source)

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self._validations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._validations = int(state["validations"])

    def _log(self, loop: LoopState, most: int, *given: Any) -> int:
        rows = samples_in(*given, most=most) if self._make is None else list(islice(self._make(*given), most))
        self._found = bool(rows) or bool(self._found)
        if rows:
            loop.log_samples(rows)
        return len(rows)


def samples_in(*given: Any, most: int | None = None) -> list[Row]:
    """Extracts samples from lists of mappings or objects, or from mappings of lists, one list per field.

    If there are none, the arrays in mappings are the fields, and a pair of arrays is ``input`` and ``target``.

    Args:
        most: The maximum number of samples.

    >>> samples_in({"loss": 0.5}, {"prompt": ["1+1", "2+2"], "expected": ["2", "4"]})
    [{'prompt': '1+1', 'expected': '2'}, {'prompt': '2+2', 'expected': '4'}]
    """
    columns: dict[str, Iterable[Any]] = {}
    arrays: dict[str, Any] = {}
    rows: list[Row] = []
    for each in given:
        if isinstance(each, Mapping):
            columns |= {name: values for name, values in each.items() if isinstance(values, list | tuple)}
            arrays |= {name: values for name, values in each.items() if _has_short_rows(values)}
        elif isinstance(each, list | tuple) and len(each) == 2 and all(hasattr(part, "shape") for part in each):
            pair = zip(("input", "target"), each, strict=True)
            arrays = {name: values for name, values in pair if _has_short_rows(values)} | arrays
        elif isinstance(each, list | tuple):
            rows += filter(None, map(_fields_of, each))
    if rows:
        return rows[:most]
    if not columns:  # slices before it fetches: the arrays may be on a device
        columns = {name: values[:most].tolist() for name, values in arrays.items()}
    return [dict(zip(columns, values, strict=False)) for values in islice(zip(*columns.values(), strict=False), most)]


def _has_short_rows(values: Any) -> bool:
    shape: Any = getattr(values, "shape", ())
    return bool(shape) and callable(getattr(values, "tolist", None)) and math.prod(shape[1:]) <= MOST_NUMBERS


def _fields_of(sample: Any) -> Row:
    if isinstance(sample, Mapping):
        return sample
    if hasattr(sample, "as_sample"):  # a rollout
        row: Row = sample.as_sample()
        return row
    if is_dataclass(sample):
        return {field.name: getattr(sample, field.name) for field in fields(sample)}
    return {name: value for name, value in getattr(sample, "__dict__", {}).items() if not name.startswith("_")}
