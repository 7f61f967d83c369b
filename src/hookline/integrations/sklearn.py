"""scikit-learn: hookline's callbacks observe and control ``fit`` through the callbacks of scikit-learn 1.9.

    from hookline.integrations.sklearn import HooklineCallback

    model = LogisticRegression(max_iter=200)
    model.set_callbacks(HooklineCallback(["early_stopping"], name="logistic", validation=(held_out, labels)))
    model.fit(features, target)

How scikit-learn's events become moments:

- A ``fit`` is a run. scikit-learn calls its parts tasks: a step is a task without subtasks, such as an iteration of
  L-BFGS or one step of a pipeline. There is one epoch, and there are no batches.
- The callback is passed on to the estimators inside of pipelines and searches, so their iterations are steps as well. A
  row has the number of the task and of those that it is a part of, by their names: ``{"lbfgs-iter": 3}``.
- With ``scoring`` a row has the scores on the training data of the task (``train/<score>``), and those on
  ``validation`` are the evaluation ``val``. A score that scikit-learn negates is the loss: a ``neg_log_loss`` of -0.5
  is a ``loss`` of 0.5. The best score of a search is ``cv/score``, and its ``cv_results_`` are a table.
- A stop ends the present level of tasks. L-BFGS of scikit-learn 1.9 ignores the answer of callbacks, but ends when one
  raises `StopIteration`, so that is what happens there. Estimators warn that they have not converged.
- A checkpoint is a directory with ``estimator.joblib``, fitted so far, and the callbacks' states. ``joblib.load()`` it,
  with ``warm_start=True``, to continue.

What is fitted by other threads and processes (``n_jobs``) is not recorded. scikit-learn tears its callbacks down also
after an error, which ends the run as failed.
"""

from hookline._engine.optional import require

require("sklearn", ">=1.9", extra="sklearn", what=__name__, distribution="scikit-learn")

import copy
import logging
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack

import joblib
from sklearn.metrics import check_scoring

from hookline._engine.defaults import NAME
from hookline._engine.errors import CheckpointError, OptionError
from hookline._record.media_table import Table
from hookline.integrations.host_callback import HostCallback
from hookline.loops.options import RunOptions

__all__ = ["HooklineCallback"]

logger = logging.getLogger("hookline")

ESTIMATOR = "estimator.joblib"
NEGATED = "neg_"
"""How scikit-learn's names of scores begin where less of the metric is better."""
STOPPED_BY_STOP_ITERATION = ("lbfgs-iter",)
"""The tasks whose estimator ignores the answer of callbacks, and whose solver ends when a callback raises that."""


class HooklineCallback(HostCallback):
    """Fires hookline's moments in ``fit``: ``estimator.set_callbacks(HooklineCallback(...))``.

    Args:
        callbacks, name, options: As for every run of hookline.
        resume: The directory of a checkpoint that a callback saved. The next ``fit`` continues its run with the
            callbacks' states. Load the estimator yourself, from ``estimator.joblib`` in the directory.
        scoring: What is measured, as for `sklearn.metrics.check_scoring`: a name, a list of names, a scorer. By default
            only ``validation`` is scored, with the estimator's own ``score``.
        validation: Held-out data ``(X, y)``, which is scored after each step, or at the end of the fit where the steps
            are those of other estimators inside of it: they do not get data as they are given here.
    """

    host = "scikit-learn"
    no_gradients = "scikit-learn shows no gradients"
    no_validation_batches = "scikit-learn scores all rows at once, and shows no predictions"
    max_propagation_depth = None
    """scikit-learn passes this callback on to the estimators inside of others, however deep."""

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        name: str = NAME,
        resume: str | Path | None = None,
        scoring: Any = None,
        validation: tuple[Any, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        if validation is not None and (not isinstance(validation, tuple | list) or len(validation) != 2):
            raise OptionError(f"validation={type(validation).__name__}: give a pair (X, y).")
        super().__init__(callbacks, name=name, resume=resume, **options)
        self._scoring, self._validation = scoring, validation
        self._root: Any = None  # the identity of the fit that is recorded
        self._thread = 0
        self._error_before: BaseException | None = None
        self._with_subtasks: set[int] = set()
        self._ended: set[int] = set()
        self._fitted: Any = None
        self._outermost: Any = None
        self._validated = False

    def setup(self, estimator: Any, context: Any) -> None:
        """Begin a run for the fit of an estimator; scikit-learn calls this and the following methods."""
        if self.loop.is_running and threading.get_ident() != self._thread:
            logger.warning("%s is not recorded: a fit in another thread uses the same callback.", context)
            return
        self._root, self._thread = context.root_uuid, threading.get_ident()
        self._error_before = sys.exception()
        self._with_subtasks, self._ended, self._fitted = set(), set(), None
        self._outermost, self._validated = estimator, False
        limit = getattr(estimator, "max_iter", None)
        self._begin(estimator, further_steps=limit if isinstance(limit, int) else None)

    def teardown(self, estimator: Any, context: Any) -> None:
        """End the run of the fit, as failed if it raised."""
        if not self._is_recorded(context):
            return
        self._root = None
        error = sys.exception()  # scikit-learn tears down in a `finally` clause
        if error is not None and error is not self._error_before:
            self._fail_if_running(error)
            return
        try:
            if not self._validated:
                self._validate(estimator)
            self._record_search(estimator)
        except BaseException as error:
            self._fail_if_running(error)
            raise
        self._end()

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        """Begin a step with a task that has no subtasks."""
        if not self._is_recorded(context):
            return
        if context.parent is not None:
            self._with_subtasks.add(id(context.parent))
        if context.max_subtasks == 0:
            self.loop.step_start()

    def on_fit_task_end(
        self,
        estimator: Any,
        context: Any,
        *,
        X: Any = None,  # noqa: N803 - scikit-learn's names
        y: Any = None,
        metadata: Mapping[str, Any] | None = None,
        fitted_estimator: Any = None,
    ) -> bool:
        """Complete the step of a task that had no subtasks; returns whether to stop."""
        if not self._is_recorded(context) or id(context) in self._with_subtasks or id(context) in self._ended:
            return self.loop.stop_requested
        if X is None and context.task_name in STOPPED_BY_STOP_ITERATION:
            return False  # the last iteration is begun, and never made
        self._ended.add(id(context))
        self._fitted = fitted_estimator
        row: dict[str, Any] = {each.source_task_name or each.task_name: each.task_id for each in _path_to(context)}
        if self._scoring is not None and X is not None and hasattr(fitted_estimator, "predict"):
            row |= _named("train", self._score(fitted_estimator, X, y, **(metadata or {})), loss="loss")
        self.loop.step_end(None, row)
        if estimator is self._outermost and fitted_estimator is not None:
            self._validate(fitted_estimator)
        stops = self._boundary() is not None
        if stops and context.task_name in STOPPED_BY_STOP_ITERATION:
            raise StopIteration
        return stops

    def _is_recorded(self, context: Any) -> bool:
        return self._root is not None and context.root_uuid == self._root and threading.get_ident() == self._thread

    def _score(self, estimator: Any, *data: Any, **metadata: Any) -> Any:
        scoring = [self._scoring] if isinstance(self._scoring, str) else self._scoring
        return check_scoring(estimator, scoring)(estimator, *data, **metadata)

    def _validate(self, estimator: Any) -> None:
        if self._validation is None:
            return
        self._validated = True
        self.loop.validation_start()
        scores = self._score(estimator, *self._validation)
        self.loop.validation_end("val", _named("val", scores, loss="val/loss"))

    def _record_search(self, estimator: Any) -> None:
        results = getattr(estimator, "cv_results_", None)
        if not isinstance(results, dict):
            return
        columns = list(results)
        rows = [[_plain(results[name][index]) for name in columns] for index in range(len(results["params"]))]
        self.loop.host_log({"cv_results": Table(columns, rows)})
        if hasattr(estimator, "best_score_"):
            self.loop.validation_start()
            self.loop.validation_end("cv", {"cv/score": float(estimator.best_score_)})

    def _cannot(self, command: str) -> str | None:
        # Before the first step, it is unknown whether there will be one.
        if command == "checkpoint" and self._fitted is None and self._ended:
            return "This task of scikit-learn shows its callbacks no fitted estimator."
        if command == "validate":
            return "scikit-learn is evaluated on validation= after each step, and not on request."
        return None

    def _write_model(self, directory: Path) -> None:
        if self._fitted is None:
            raise CheckpointError("This task of scikit-learn shows its callbacks no fitted estimator.")
        fitted = copy.copy(self._fitted)
        # What scikit-learn adds for the time of the fit: contexts and callbacks are not a part of the model.
        for name in [
            name for name in vars(fitted) if name.startswith(("_skl_callbacks", "_callback_", "_parent_call"))
        ]:
            del fitted.__dict__[name]
        joblib.dump(fitted, directory / ESTIMATOR)


def _path_to(context: Any) -> Iterator[Any]:
    """Yield the tasks from below the whole fit down to this one."""
    if context.parent is not None:
        yield from _path_to(context.parent)
        yield context


def _named(prefix: str, scores: Any, *, loss: str) -> dict[str, float]:
    """Return scores by their full names, with the loss if one of them is negated."""
    given = scores if isinstance(scores, dict) else {"score": scores}
    named = {f"{prefix}/{name}": float(score) for name, score in given.items()}
    negated = next((float(score) for name, score in given.items() if name.startswith(NEGATED)), None)
    return named if negated is None else {loss: -negated, **named}


def _plain(value: Any) -> Any:
    """Return a cell of ``cv_results_`` as a number or a text."""
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, int | float | str) else str(value)
