"""XGBoost: hookline's callbacks observe and control ``xgb.train``, ``xgb.cv`` and the estimators.

    from hookline.integrations.xgboost import HooklineCallback

    with HooklineCallback(["early_stopping"], name="trees", rounds=100) as hooks:
        xgb.train(params, train, 100, evals=[(train, "train"), (test, "test")], callbacks=[hooks])

How XGBoost's events become moments is described in `hookline.integrations.boosting`. In addition:

- A stop ends the training after the round. A checkpoint is a directory with ``model.ubj`` and the callbacks' states:
  ``xgb.train(..., xgb_model="<directory>/model.ubj")`` continues from it.
- ``loop.model`` is the `xgboost.Booster`, and ``loop.optimizer`` offers its learning rate.
- ``xgb.cv`` is recorded with the means over the folds, and their standard deviations as ``<metric>_std``. Its models
  are many, so there is no checkpoint.

What XGBoost does not report: the number of rounds (``rounds=``), predictions, gradients, and errors. As a context
manager, the callback learns at once that the training raised.
"""

from hookline._engine.optional import require

require("xgboost", ">=3.0", extra="xgboost", what=__name__, distribution="xgboost-cpu")

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack

from xgboost import Booster
from xgboost.callback import TrainingCallback

from hookline._engine.checks import require_integer
from hookline._engine.defaults import NAME
from hookline.integrations.boosting import BoostingCallback, Score
from hookline.integrations.host_callback import LearningRateView
from hookline.loops.options import RunOptions

__all__ = ["HooklineCallback"]

MODEL = "model.ubj"
MAXIMIZED = ("auc", "aucpr", "map", "ndcg", "pre")
"""The metrics of XGBoost of which more is better, also with a suffix such as ``@5``."""


class HooklineCallback(BoostingCallback, TrainingCallback):
    """Fires hookline's moments in a training of XGBoost.

    Args:
        callbacks, name, options: As for every run of hookline.
        resume: The directory of a checkpoint that a callback saved. The next training continues its run with the
            callbacks' states. Pass its model to XGBoost: ``xgb_model="<directory>/model.ubj"``.
        rounds: How many rounds are trained. XGBoost does not report it; progress bars and schedules need it.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
    """

    host = "XGBoost"
    package = "xgboost"

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        name: str = NAME,
        resume: str | Path | None = None,
        rounds: int | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__(callbacks, name=name, resume=resume, **options)
        self._rounds = require_integer("rounds", rounds, optional=True)
        self._seen: Mapping[str, Any] = {}
        self._ends_at: int | None = None

    def before_training(self, model: Any) -> Any:
        booster = model if isinstance(model, Booster) else None
        done = 0 if booster is None else booster.num_boosted_rounds()
        self.loop.optimizer = None if booster is None else _rate_of(booster)
        self._seen = {}
        self._begin(model, step=done, further_steps=self._rounds)
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Any]) -> bool:
        self._seen = evals_log
        self.loop.step_start()
        return False

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Any]) -> bool:
        return self._end_round(_last_scores(evals_log)) is not None

    def after_training(self, model: Any) -> Any:
        # A callback before this one that stops the training keeps the round's end from this one.
        if self.loop.in_step:
            self._end_round(_last_scores(self._seen))
        self._end()
        return model

    def _cannot(self, command: str) -> str | None:
        if command == "checkpoint" and not isinstance(self.loop.model, Booster):
            return "xgb.cv trains a model for each fold, and saves none."
        return super()._cannot(command)

    def _write_model(self, directory: Path) -> None:
        self.loop.model.save_model(directory / MODEL)


def _last_scores(evals_log: Mapping[str, Any]) -> Iterator[Score]:
    """Yield the scores of the last round."""
    for data, metrics in evals_log.items():
        for metric, history in metrics.items():
            last = history[-1]
            value, std = last if isinstance(last, tuple) else (last, None)
            yield Score(data, metric, value, std, is_loss=metric.partition("@")[0] not in MAXIMIZED)


def _rate_of(booster: Booster) -> LearningRateView | None:
    """Return the learning rate of a booster; None if its configuration shows none."""

    def read() -> float:
        trained = json.loads(booster.save_config())["learner"]["gradient_booster"]
        of_trees = trained.get("gbtree", trained).get("tree_train_param")  # DART contains a gbtree
        parameters = of_trees or trained["updater"]["linear_train_param"]
        return float(f"{float(parameters['learning_rate']):.7g}")  # written with the digits of a float32

    try:
        return LearningRateView(read, lambda rate: booster.set_param("learning_rate", str(rate)))
    except (KeyError, TypeError, ValueError):
        return None
