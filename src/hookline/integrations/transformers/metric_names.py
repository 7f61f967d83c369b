"""What the metrics of Hugging Face are called in the record.

They keep their names. Those of evaluations also stand under the names that hookline's own loops use, so that
``EarlyStopping("val/loss")`` means the same everywhere: ``eval_loss`` is ``val/loss``, and ``eval_short_loss``, of a
data set called "short" among several, ``val/short/loss``. With another prefix, that is the name of the evaluation:
``test_loss`` is ``test/loss``. How fast an evaluation was has one name only.

A ``loss`` that was logged for several steps at once is their mean, and called ``loss_mean``: ``loss`` is that of one
step.
"""

from collections.abc import Mapping
from typing import Any

from hookline.core.values import PLAIN, plain

PREFIX = "eval"
"""What the metrics of an evaluation begin with where nobody says another prefix."""
VALIDATION = "val"
"""What hookline calls it."""
_RUNTIME = "_runtime"
_SPEED = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


def recordable(logs: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics as they can be recorded: what is neither a number nor text is kept as text."""
    plain_logs = {str(name): plain(value) for name, value in logs.items()}
    return {name: value if type(value) in PLAIN else str(value) for name, value in plain_logs.items() if name}


def of_steps(metrics: dict[str, Any], *, several: bool) -> dict[str, Any]:
    """The metrics of a training's log.

    Args:
        several: Whether they stand for several steps, whose own losses are known.
    """
    return {"loss_mean" if several and name == "loss" else name: value for name, value in metrics.items()}


def of_evaluation(metrics: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of an evaluation, and its metrics under their own names and under those of hookline."""
    prefix = next((name.removesuffix(_RUNTIME) for name in metrics if name.endswith(_RUNTIME)), PREFIX)
    head, _, data_set = prefix.partition("_")
    evaluation = prefix if head != PREFIX else f"{VALIDATION}/{data_set}" if data_set else VALIDATION
    start = f"{prefix}_"
    ours = {name.removeprefix(start): value for name, value in metrics.items() if name.startswith(start)}
    named = {f"{evaluation}/{name}": value for name, value in ours.items() if name not in _SPEED}
    return evaluation, {**metrics, **named}
