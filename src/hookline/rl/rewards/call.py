"""`Call`: what a reward function was asked, read from the arguments that TRL, or anybody else, calls it with.

The step is found where it is: in TRL's ``trainer_state``, whose ``global_step`` counts completed steps, so that what
is generated for training belongs to the step after it; in an argument or column ``step``; otherwise nowhere. That
an evaluation calls is seen by the model of TRL's trainer, whose method ``log_metric`` is: it is not in training mode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookline.core.values import plain
from hookline.logging.completions import completion_text, prompt_text

EXPECTED_COLUMNS = ("expected", "answer", "solution", "ground_truth", "target")
"""Where the right answer is looked for, in this order."""


@dataclass(frozen=True, slots=True)
class Call:
    """The samples that a reward function is to score; what nobody said is None.

    Attributes:
        steps: The number of completed steps that each sample's row belongs to.
        axis: "train" or "eval".
    """

    completions: list[str]
    prompts: list[str] | None = None
    expected: list[str | None] | None = None
    ids: list[str] | None = None
    steps: list[int] | None = None
    axis: str = "train"

    @classmethod
    def of(cls, arguments: Mapping[str, Any], expected: str | None = None) -> "Call | None":
        """The call with these arguments by name; None for one without completions.

        Args:
            expected: The column that holds the right answers; looked for in `EXPECTED_COLUMNS` where None.
        """
        if "completions" not in arguments:
            return None
        completions = [completion_text(each) for each in arguments["completions"]]
        count = len(completions)
        prompts = _column(arguments, "prompts", count)
        ids = _column(arguments, "id", count)
        axis, steps = _steps(arguments, count)
        return cls(
            completions,
            None if prompts is None else [prompt_text(each) for each in prompts],
            _answers(arguments, expected, count),
            None if ids is None else [str(plain(each)) for each in ids],
            steps,
            axis,
        )


def expected_column(arguments: Mapping[str, Any], wanted: str | None = None) -> str | None:
    """The name of the column that holds the right answers; None where there is none."""
    return next((name for name in ((wanted,) if wanted else EXPECTED_COLUMNS) if name in arguments), None)


def _answers(arguments: Mapping[str, Any], wanted: str | None, count: int) -> list[str | None] | None:
    name = expected_column(arguments, wanted)
    answers = None if name is None else _column(arguments, name, count)
    return None if answers is None else [None if each is None else prompt_text(each) for each in answers]


def _column(arguments: Mapping[str, Any], name: str, count: int) -> Sequence[Any] | None:
    values: Any = arguments.get(name)
    values = values.tolist() if hasattr(values, "tolist") else values
    return values if isinstance(values, list | tuple) and len(values) == count else None


def _steps(arguments: Mapping[str, Any], count: int) -> tuple[str, list[int] | None]:
    completed = _whole(getattr(arguments.get("trainer_state"), "global_step", None))
    if completed is not None:
        evaluating = _is_evaluating(arguments.get("log_metric"))
        return "eval" if evaluating else "train", [completed + (not evaluating)] * count
    step = _whole(arguments.get("step"))
    column = _column(arguments, "step", count) if step is None else [step] * count
    steps = [each for value in column or () if (each := _whole(value)) is not None]
    return "train", steps if column is not None and len(steps) == count else None


def _is_evaluating(log_metric: Any) -> bool:
    model = getattr(getattr(log_metric, "__self__", None), "model", None)
    return getattr(model, "training", True) is False


def _whole(value: Any) -> int | None:
    number = plain(value)
    return number if isinstance(number, int) and not isinstance(number, bool) else None
