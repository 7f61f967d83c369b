"""CatBoost: hookline's callbacks observe and control ``model.fit``.

    from hookline.integrations.catboost import attach

    hooks = attach(model, ["early_stopping"], name="cats")
    model.fit(features, target, eval_set=(held_out, target_of_held_out))

How CatBoost's events become moments is described in `hookline.integrations.boosting`. In addition:

- CatBoost calls back only after each round, and with its metrics only. So `attach` wraps ``fit``: it knows the model,
  the number of rounds, the beginning, the end and errors. ``detach()`` restores it.
- A stop ends the training after the round.
- With ``snapshots=True`` CatBoost writes its snapshot after each round, and a checkpoint is a copy of it beside the
  callbacks' states. ``attach(model, resume=..., snapshots=True)`` continues from it with the next ``fit``, exactly.
  Without snapshots there are no checkpoints, since CatBoost shows its callbacks no model.

With ``metric_period`` only the rounds for which CatBoost computes metrics have them.
"""

from hookline._engine.optional import require

require("catboost", ">=1.2", extra="catboost", what=__name__)

import functools
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Unpack

from catboost import CatBoost, CatBoostError, metrics

from hookline._engine.defaults import NAME
from hookline._engine.errors import CheckpointError, OptionError
from hookline.integrations.boosting import BoostingCallback, Score
from hookline.integrations.host_callback import WrappedMethods
from hookline.loops.options import RunOptions

__all__ = ["AttachedModel", "attach"]

SNAPSHOT = "snapshot"
ROUNDS = ("iterations", "n_estimators", "num_boost_round", "num_trees")
DEFAULT_ROUNDS = 1000


def attach(
    model: Any,
    callbacks: Iterable[Any] = (),
    *,
    name: str = NAME,
    resume: str | Path | None = None,
    snapshots: bool = False,
    **options: Unpack[RunOptions],
) -> "AttachedModel":
    """Have callbacks run in every ``model.fit`` that follows, each of which is a run.

    Args:
        model: A `catboost.CatBoost`, also a classifier, a regressor or a ranker.
        callbacks, name, options: As for every run of hookline.
        resume: The directory of a checkpoint that a callback saved. The next ``fit`` continues its run and its
            training; the model needs the same settings and ``fit`` the same data.
        snapshots: Have CatBoost write its snapshot after each round, which checkpoints are copied from. It takes time
            that grows with the model.
    """
    if not isinstance(model, CatBoost):
        raise OptionError(f"attach({type(model).__name__}): give a model of CatBoost, such as CatBoostClassifier().")
    if resume is not None and not snapshots:
        raise OptionError("resume= continues from a snapshot of CatBoost: pass snapshots=True as well.")
    return AttachedModel(model, callbacks, name=name, resume=resume, snapshots=snapshots, **options)


class AttachedModel(BoostingCallback):
    """What `attach` returns.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
    """

    host = "CatBoost"

    def __init__(
        self,
        model: Any,
        callbacks: Iterable[Any],
        *,
        name: str,
        resume: str | Path | None,
        snapshots: bool,
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__(callbacks, name=name, resume=resume, **options)
        self._model, self._snapshots = model, snapshots
        self._methods = WrappedMethods(model)
        self._methods.wrap("fit", self._fit_observed)
        self._snapshot: Path | None = None
        self._error: BaseException | None = None
        self._offset = 0
        self._lengths: dict[tuple[str, str], int] = {}

    def detach(self) -> None:
        """Restore ``model.fit``."""
        self._methods.restore()

    def after_iteration(self, info: Any) -> bool:
        """Handle the end of a round; returns whether to continue. CatBoost calls it."""
        # CatBoost replaces every error of a callback by its own, without the original, which is kept here until fit
        # ends.
        try:
            return self._after_round(info)
        except BaseException as error:
            self._error = error
            return False

    def _after_round(self, info: Any) -> bool:
        loop = self.loop
        if self._offset + info.iteration <= loop.step:
            self._note_lengths(info)
            return True  # of a snapshot, whose last round CatBoost reports once more
        if self._end_round(self._new_scores(info)) is not None:
            return False
        if loop.num_steps is None or loop.step < loop.num_steps:
            loop.step_start()
        return True

    def _fit_observed(self, fit: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = self._model.get_params()
        rounds = next((given[name] for name in ROUNDS if name in given), DEFAULT_ROUNDS)
        self._offset = self._rounds_in(kwargs.get("init_model"))
        self._error, self._lengths = None, {}
        source = self._resume
        # The rounds of a snapshot are among those of the settings, those of another model are not.
        self._begin(self._model, step=self._offset, num_steps=self._offset + rounds)
        try:
            kwargs["callbacks"] = [self, *(kwargs.get("callbacks") or ())]
            kwargs |= self._snapshot_options(source)
            self.loop.step_start()
            fitted = fit(*args, **kwargs)
        except BaseException as error:
            self._fail_if_running(error)
            raise
        if self._error is not None:
            self._fail_if_running(self._error)
            raise self._error
        self._end()
        return fitted

    def _snapshot_options(self, source: Path | None) -> dict[str, Any]:
        if not self._snapshots:
            return {}
        if self.loop.output_dir is None:
            raise CheckpointError("Nothing is recorded (root=None), so there is no directory for snapshots.")
        self._snapshot = self.loop.output_dir / "catboost" / SNAPSHOT
        self._snapshot.parent.mkdir(parents=True, exist_ok=True)
        self._snapshot.unlink(missing_ok=True)  # of an earlier session: CatBoost would continue from it
        if source is not None:
            shutil.copyfile(source / SNAPSHOT, self._snapshot)
        # Absolute: CatBoost takes other paths to be in its own directory. 0 seconds: after each round.
        return {"save_snapshot": True, "snapshot_file": str(self._snapshot.absolute()), "snapshot_interval": 0}

    def _new_scores(self, info: Any) -> Iterator[Score]:
        """Yield the scores that were computed for this round."""
        before = self._lengths
        self._note_lengths(info)
        for (data, metric), length in self._lengths.items():
            if length > before.get((data, metric), 0):
                yield Score(data, metric, float(info.metrics[data][metric][-1]), is_loss=_is_loss(metric))

    def _note_lengths(self, info: Any) -> None:
        metrics = info.metrics or {}
        self._lengths = {(data, name): len(values) for data, each in metrics.items() for name, values in each.items()}

    def _rounds_in(self, init_model: Any) -> int:
        if init_model is None:
            return 0
        model = init_model if isinstance(init_model, CatBoost) else CatBoost().load_model(str(init_model))
        return int(model.tree_count_ or 0)

    def _cannot(self, command: str) -> str | None:
        if command == "checkpoint" and not self._snapshots:
            return "CatBoost shows its callbacks no model: attach(model, snapshots=True) makes checkpoints possible."
        return super()._cannot(command)

    def _write_model(self, directory: Path) -> None:
        if self._snapshot is None or not self._snapshot.exists():
            raise CheckpointError("CatBoost writes its first snapshot after the first round.")
        shutil.copyfile(self._snapshot, directory / SNAPSHOT)


@functools.cache
def _is_loss(metric: str) -> bool:
    """Whether less of a metric is better, which is assumed of one that CatBoost does not describe."""
    name, _, given = metric.partition(":")
    parameters = dict(each.split("=", 1) for each in given.split(";") if "=" in each)
    try:
        return bool(getattr(metrics, name)(**parameters).is_min_optimal())
    except (AttributeError, CatBoostError, TypeError, ValueError):
        return True
