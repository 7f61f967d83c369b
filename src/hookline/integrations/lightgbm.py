"""LightGBM: hookline's callbacks observe and control ``lgb.train``, ``lgb.cv`` and the estimators.

    from hookline.integrations.lightgbm import HooklineCallback

    with HooklineCallback(["early_stopping"], name="leaves") as hooks:
        lgb.train(params, train, 100, valid_sets=[train, test], callbacks=[*hooks])

How LightGBM's events become moments is described in `hookline.integrations.boosting`. In addition:

- LightGBM calls a function either before or after each round, so the callback is two functions: ``[*hooks]``.
- A stop ends the training after the round, as LightGBM's ``early_stopping`` does: ``best_iteration`` is the last round.
- A checkpoint is a directory with ``model.txt`` and the callbacks' states: ``lgb.train(..., init_model=
  "<directory>/model.txt")`` continues from it.
- ``loop.model`` is the `lightgbm.Booster`, and ``loop.optimizer`` offers its learning rate.
- ``lgb.cv`` is recorded with the means over the folds, and their standard deviations as ``<metric>_std``. Its models
  are many, so there is no checkpoint, and their learning rate is not offered.

What LightGBM does not report: predictions, gradients, errors, and the end of a training that another callback stopped
early. As a context manager, the callback learns of the last two.
"""

from hookline._engine.optional import require

require("lightgbm", ">=4.5", extra="lightgbm", what=__name__)

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Unpack

from lightgbm import Booster
from lightgbm.callback import CallbackEnv, EarlyStopException

from hookline._engine.defaults import NAME
from hookline._engine.errors import OptionError
from hookline.integrations.boosting import BoostingCallback, Score
from hookline.integrations.host_callback import LearningRateView
from hookline.loops.options import RunOptions

__all__ = ["HooklineCallback"]

MODEL = "model.txt"
BEFORE_EARLY_STOPPING = 25
"""The place among LightGBM's callbacks: after those that log (10, 20), before ``early_stopping`` (30), which keeps the
last round from all that follow it."""
DEFAULT_RATE = 0.1
RATE_NAMES = ("learning_rate", "shrinkage_rate", "eta")


class HooklineCallback(BoostingCallback):
    """Fires hookline's moments in a training of LightGBM: ``callbacks=[*hooks]``.

    Args:
        callbacks, name, options: As for every run of hookline.
        resume: The directory of a checkpoint that a callback saved. The next training continues its run with the
            callbacks' states. Pass its model to LightGBM: ``init_model="<directory>/model.txt"``.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
    """

    host = "LightGBM"
    package = "lightgbm"

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        name: str = NAME,
        resume: str | Path | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__(callbacks, name=name, resume=resume, **options)
        self._functions = (
            _Function(self._before_round, before_iteration=True),
            _Function(self._after_round, before_iteration=False),
        )

    def __iter__(self) -> Iterator["_Function"]:
        return iter(self._functions)

    def __call__(self, env: CallbackEnv) -> None:
        raise OptionError(
            "LightGBM takes this callback as two functions, one before and one after each round: write "
            "callbacks=[*hooks], not callbacks=[hooks]."
        )

    def _before_round(self, env: CallbackEnv) -> None:
        if env.iteration == env.begin_iteration:
            self._use_rate(env)
            self._begin(env.model, step=env.begin_iteration, num_steps=env.end_iteration)
        self.loop.step_start()

    def _after_round(self, env: CallbackEnv) -> None:
        results = env.evaluation_result_list or []
        # LightGBM calls the training data "training", unless valid_names gives it another name.
        own_name = getattr(env.model, "_train_data_name", "training")
        stop = self._end_round(_score(result, own_name) for result in results)
        if stop is not None or env.iteration + 1 == env.end_iteration:
            self._end()
        if stop is not None:
            raise EarlyStopException(env.iteration, list(results))  # LightGBM's own way to stop

    def _use_rate(self, env: CallbackEnv) -> None:
        booster: Any = env.model
        # LightGBM has no way to read the rate of a booster. Its own callbacks keep the parameters up to date.
        parameters = env.params
        name = next((each for each in RATE_NAMES if each in parameters), RATE_NAMES[0])

        def write(rate: float) -> None:
            booster.reset_parameter({"learning_rate": float(rate)})
            parameters[name] = float(rate)

        is_booster = isinstance(booster, Booster)
        read = lambda: float(parameters.get(name, DEFAULT_RATE))  # noqa: E731
        self.loop.optimizer = LearningRateView(read, write) if is_booster else None

    def _fail_if_running(self, error: BaseException | None) -> None:
        # A training that early_stopping ended has a best iteration; one that raised has none yet.
        if error is None and getattr(self.loop.model, "best_iteration", 0) > 0:
            self._end()
        else:
            super()._fail_if_running(error)

    def _cannot(self, command: str) -> str | None:
        if command == "checkpoint" and not isinstance(self.loop.model, Booster):
            return "lgb.cv trains a model for each fold, and saves none."
        return super()._cannot(command)

    def _write_model(self, directory: Path) -> None:
        self.loop.model.save_model(directory / MODEL, num_iteration=-1)


class _Function:
    """One of the two functions; LightGBM sorts them by their attributes."""

    def __init__(self, call: Callable[[CallbackEnv], None], *, before_iteration: bool) -> None:
        self._call = call
        self.before_iteration, self.order = before_iteration, BEFORE_EARLY_STOPPING

    def __call__(self, env: CallbackEnv) -> None:
        self._call(env)


def _score(result: Any, training_data: str) -> Score:
    data, metric, value, is_higher_better, *rest = result
    std = rest[0] if rest else None
    if data == "cv_agg":  # of lgb.cv before 4.7, where the data set is a part of the metric's name
        data, _, metric = metric.rpartition(" ")
    name = "train" if data == training_data else data
    return Score(name or "valid", metric, float(value), None if std is None else float(std), not is_higher_better)
