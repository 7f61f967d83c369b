"""`BoostingCallback`: the common base of the bridges for XGBoost, LightGBM and CatBoost.

- A step is one round of boosting: one more tree, or one tree per class. Rounds that a continued model already has
  count.
- Scores of the training data belong to the step's row, as ``train/<metric>``. The first score that is minimized is
  ``loss`` as well, so a callback that reads it works in every host.
- Scores of the last other data set are the evaluation ``val``: ``val/<metric>``, ``val/loss``, and the host's own name
  of the data set (``test/rmse``). Others are evaluations by their own names. It is the last one as in XGBoost's early
  stopping: ``eval_set=[train, test]`` is how estimators are given both. A booster evaluates after each round.
- There is one epoch, and there are no batches: a round trains on all rows.
"""

from collections.abc import Iterable
from typing import NamedTuple

from hookline.integrations.host_callback import HostCallback

TRAINING_DATA = ("train", "training", "learn")
"""The names that the frameworks and their users give the training data."""
EVALUATION = "val"


class Score(NamedTuple):
    """One metric of one data set after a round.

    Attributes:
        std: The standard deviation over the folds of a cross-validation.
        is_loss: Whether less is better.
    """

    data: str
    metric: str
    value: float
    std: float | None = None
    is_loss: bool = True


class BoostingCallback(HostCallback):
    """The run of a booster's training."""

    no_gradients = "a booster fits trees, and has no parameters with gradients"
    no_validation_batches = "a booster evaluates a whole data set at once, and shows no predictions"

    def _cannot(self, command: str) -> str | None:
        return f"{self.host} evaluates after each round, and not on request." if command == "validate" else None

    def _end_round(self, scores: Iterable[Score]) -> str | None:
        """Complete a round, with its evaluations; returns the reason to stop, or None."""
        row, evaluations = sorted_scores(scores)
        if not self.loop.in_step:
            self.loop.step_start()
        self.loop.step_end(None, row)
        for name, metrics in evaluations.items():
            self.loop.validation_start()
            self.loop.validation_end(name, metrics)
        return self._boundary()


def sorted_scores(scores: Iterable[Score]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the row of the training data, and the metrics of each evaluation by its name.

    >>> sorted_scores([Score("train", "rmse", 0.5), Score("test", "rmse", 0.75)])
    ({'loss': 0.5, 'train/rmse': 0.5}, {'val': {'val/loss': 0.75, 'val/rmse': 0.75, 'test/rmse': 0.75}})
    """
    given = list(scores)
    row: dict[str, float] = {}
    evaluations: dict[str, dict[str, float]] = {}
    last = next((score.data for score in reversed(given) if score.data not in TRAINING_DATA), None)
    for score in given:
        values = {score.metric: score.value} | ({} if score.std is None else {f"{score.metric}_std": score.std})
        if score.data in TRAINING_DATA:
            if score.is_loss:
                row.setdefault("loss", score.value)
            row |= {f"train/{metric}": value for metric, value in values.items()}
            continue
        name = EVALUATION if score.data == last else score.data
        metrics = evaluations.setdefault(name, {})
        if score.is_loss:
            metrics.setdefault(f"{name}/loss", score.value)
        metrics |= {f"{name}/{metric}": value for metric, value in values.items()}
        metrics |= {f"{score.data}/{metric}": value for metric, value in values.items()}
    return row, evaluations
