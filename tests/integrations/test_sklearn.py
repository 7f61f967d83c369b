"""scikit-learn's ``fit`` with its own callbacks, beyond what the contract suite compares."""

import pickle
import signal
import warnings

import pytest

pytest.importorskip("sklearn")

import joblib
import numpy as np
from host_runs import At, end_of
from sklearn.base import BaseEstimator
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._record.records import TableRows
from hookline.integrations.sklearn import HooklineCallback
from hookline.testing import RecordingCallback

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

FEATURES = np.random.default_rng(0).normal(size=(60, 3))
LABELS = FEATURES.sum(axis=1) + np.random.default_rng(1).normal(size=60) > 0
TRAIN, TEST = (FEATURES[:40], LABELS[:40]), (FEATURES[40:], LABELS[40:])


@pytest.fixture
def hooks_with(tmp_path):
    def make(*callbacks, **options):
        return HooklineCallback(callbacks, root=tmp_path / "runs", summary=False, strict=True, **options)

    return make


def logistic(iterations=3, **settings):
    return LogisticRegression(max_iter=iterations, tol=1e-12, C=100.0, **settings)


def rows(loop):
    return [(row.step, row.metrics) for row in loop.history]


def test_fit_without_scoring_has_the_numbers_of_its_tasks_and_fits_the_same(hooks_with):
    hooks = hooks_with(RecordingCallback())
    model = logistic().set_callbacks(hooks).fit(*TRAIN)
    assert rows(hooks.loop) == [(step, {"lbfgs-iter": step - 1}) for step in (1, 2, 3)]
    assert (model.coef_ == logistic().fit(*TRAIN).coef_).all()
    assert (hooks.loop.num_steps, end_of(hooks.loop)[0]) == (3, "finished")


@pytest.mark.parametrize(
    ("scoring", "named"),
    [
        (None, {"score"}),
        ("accuracy", {"accuracy"}),
        (["neg_log_loss", "accuracy"], {"neg_log_loss", "accuracy", "loss"}),
    ],
)
def test_scores_are_named_by_data_and_a_negated_one_is_the_loss(scoring, named, hooks_with):
    hooks = hooks_with(scoring=scoring, validation=TEST)
    model = logistic().set_callbacks(hooks).fit(*TRAIN)
    of_training, of_validation = (set().union(*(row for _, row in rows(hooks.loop)[start::2])) for start in (0, 1))
    assert of_validation == {f"val/{name}" for name in named}
    trained = set() if scoring is None else {"loss" if name == "loss" else f"train/{name}" for name in named}
    assert of_training == {"lbfgs-iter"} | trained
    score = "score" if scoring is None else "accuracy"
    assert hooks.loop.get_metric(f"val/{score}") == model.score(*TEST)
    if scoring == ["neg_log_loss", "accuracy"]:
        assert hooks.loop.get_metric("val/loss") == -hooks.loop.get_metric("val/neg_log_loss") > 0


def test_pipeline_has_the_iterations_of_its_last_estimator(hooks_with):
    hooks = hooks_with(scoring="accuracy", validation=TEST)
    pipeline = make_pipeline(StandardScaler(), logistic(2)).set_callbacks(hooks).fit(*TRAIN)
    assert [sorted(row) for _, row in rows(hooks.loop)] == [
        ["fit-transform-standardscaler"],
        ["fit-final-estimator", "lbfgs-iter", "train/accuracy"],
        ["fit-final-estimator", "lbfgs-iter", "train/accuracy"],
        ["val/accuracy"],  # of the whole pipeline: its last estimator does not get the data as they are
    ]
    assert hooks.loop.get_metric("val/accuracy") == pipeline.score(*TEST)
    assert hooks.loop.get_metric("train/accuracy") == pipeline.score(*TRAIN)


def test_search_records_its_fits_its_results_as_a_table_and_its_best_score(hooks_with):
    hooks = hooks_with()
    search = GridSearchCV(logistic(2), {"C": [0.1, 10.0]}, cv=2).set_callbacks(hooks).fit(*TRAIN)
    fits = [row for _, row in rows(hooks.loop) if "lbfgs-iter" in row]
    assert len(fits) == 2 * (2 * 2 + 1)  # two iterations of each candidate and split, and of the best once more
    assert hooks.loop.get_metric("cv/score") == search.best_score_
    table = [record for record in hl.read(hooks.loop.dir) if isinstance(record, TableRows)]
    assert [record.name for record in table] == ["cv_results"]
    assert [len(each.rows) for each in table] == [2]


def test_solver_without_iterations_for_callbacks_is_one_step(hooks_with):
    hooks = hooks_with(validation=TEST)
    with pytest.warns(UserWarning, match="Callbacks are only supported"):
        model = logistic(20, solver="newton-cholesky").set_callbacks(hooks)
    model.fit(*TRAIN)
    assert (hooks.loop.step, hooks.loop.get_metric("val/score")) == (1, model.score(*TEST))


class Rounds(CallbackSupportMixin, BaseEstimator):
    """An estimator as others write it: it ends when a callback says so."""

    def __init__(self, max_iter=5):
        self.max_iter = max_iter

    @with_callbacks
    def fit(self, X, y=None):
        whole = self._init_callback_context(max_subtasks=self.max_iter)
        whole.call_on_fit_task_begin(estimator=self, X=X, y=y)
        for made in range(1, self.max_iter + 1):
            self.rounds_ = made
            task = whole.subcontext(task_name="round").call_on_fit_task_begin(estimator=self, X=X, y=y)
            if task.call_on_fit_task_end(estimator=self, X=X, y=y):
                break
        whole.call_on_fit_task_end(estimator=self, X=X, y=y)
        return self


def test_stop_is_an_answer_to_estimators_that_listen(hooks_with, caplog):
    def leave(loop):
        loop.request_checkpoint()
        loop.request_stop("enough")

    hooks = hooks_with(At(3, leave))
    assert Rounds().set_callbacks(hooks).fit(*TRAIN).rounds_ == 3
    assert rows(hooks.loop) == [(1, {"round": 0}), (2, {"round": 1}), (3, {"round": 2})]
    assert (hooks.loop.num_steps, end_of(hooks.loop)) == (5, ["stopped", "enough"])
    assert hooks.loop.checkpoints == []  # the estimator shows none that is fitted so far
    assert [record.getMessage() for record in caplog.records if record.name == "hookline"] == [
        "No checkpoint is saved at step 3. This task of scikit-learn shows its callbacks no fitted estimator."
    ]


def test_stop_ends_the_solver_with_what_it_has(hooks_with):
    hooks = hooks_with(At(2, lambda loop: loop.request_stop("enough")))
    model = logistic(50).set_callbacks(hooks).fit(*TRAIN)
    assert (model.coef_ == logistic(2).fit(*TRAIN).coef_).all()
    assert (hooks.loop.step, end_of(hooks.loop)) == (2, ["stopped", "enough"])


def test_interrupted_fit_stops_after_the_iteration(hooks_with):
    hooks = hooks_with(At(2, lambda loop: signal.raise_signal(signal.SIGINT)))
    logistic(50).set_callbacks(hooks).fit(*TRAIN)
    assert (hooks.loop.step, end_of(hooks.loop)) == (2, ["stopped", "SIGINT"])


def test_checkpoint_is_an_estimator_without_callbacks_that_predicts(hooks_with):
    hooks = hooks_with(At(2, lambda loop: loop.request_checkpoint()))
    logistic(4).set_callbacks(hooks).fit(*TRAIN)
    (saved,) = hooks.loop.checkpoints
    loaded = joblib.load(saved.path / "estimator.joblib")
    assert not {"_skl_callbacks", "_callback_fit_ctx"} & set(vars(loaded))
    assert (loaded.predict_proba(TEST[0]) == logistic(2).fit(*TRAIN).predict_proba(TEST[0])).all()


@pytest.mark.parametrize("inside_of_another_error", [False, True])
def test_error_ends_the_run_as_failed_and_only_its_own(inside_of_another_error, hooks_with):
    hooks = hooks_with(At(2, lambda loop: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        logistic().set_callbacks(hooks).fit(*TRAIN)
    assert end_of(hooks.loop) == ["failed", "ZeroDivisionError: division by zero"]
    hooks = hooks_with()
    try:
        raise KeyError(inside_of_another_error)
    except KeyError:
        if inside_of_another_error:
            logistic().set_callbacks(hooks).fit(*TRAIN)
    if not inside_of_another_error:
        logistic().set_callbacks(hooks).fit(*TRAIN)
    assert end_of(hooks.loop)[0] == "finished"


def test_estimator_with_the_callback_is_pickled_and_its_copy_records_nothing(hooks_with):
    hooks = hooks_with()
    model = logistic().set_callbacks(hooks).fit(*TRAIN)
    run = hooks.loop.dir
    copy = pickle.loads(pickle.dumps(model))
    copy.fit(*TRAIN)
    assert (copy.coef_ == model.coef_).all()
    assert hooks.loop.dir == run
    assert len(list(run.parent.iterdir())) == 1


def test_search_in_threads_records_the_fits_of_its_own_thread(hooks_with):
    hooks = hooks_with()
    with joblib.parallel_backend("threading"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # filters are not those of other threads
        GridSearchCV(logistic(2), {"C": [0.1, 10.0]}, cv=2, n_jobs=2).set_callbacks(hooks).fit(*TRAIN)
    iterations = [row for _, row in rows(hooks.loop) if "lbfgs-iter" in row]
    assert [list(row) for row in iterations] == 2 * [["refit-with-best-params", "lbfgs-iter"]]
    assert end_of(hooks.loop)[0] == "finished"


def test_validation_that_is_no_pair_is_refused():
    with pytest.raises(OptionError, match=r"a pair \(X, y\)"):
        HooklineCallback(validation=FEATURES)
