"""XGBoost, LightGBM and CatBoost with their own trainings, beyond what the contract suite compares."""

import logging
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("xgboost")
pytest.importorskip("lightgbm")
pytest.importorskip("catboost")

import catboost
import lightgbm as lgb
import numpy as np
import xgboost as xgb
from host_runs import At, end_of
from sklearn.base import clone

import hookline as hl
from hookline._engine.errors import CheckpointError, OptionError
from hookline._record.records import Status
from hookline.integrations.boosting import Score, sorted_scores
from hookline.integrations.catboost import attach
from hookline.integrations.lightgbm import HooklineCallback as LightGBMCallback
from hookline.integrations.xgboost import HooklineCallback as XGBoostCallback
from hookline.testing import RecordingCallback

FEATURES = np.random.default_rng(0).normal(size=(60, 3))
TARGET = FEATURES.sum(axis=1)
TRAIN, TEST = (FEATURES[:40], TARGET[:40]), (FEATURES[40:], TARGET[40:])
OF_LIGHTGBM = {"objective": "regression", "num_leaves": 4, "min_data_in_leaf": 2, "num_threads": 1, "verbosity": -1}
OF_XGBOOST = {"max_depth": 2, "nthread": 1, "eta": 0.3}


def train_xgboost(*callbacks, rounds=4, **arguments):
    train, test = xgb.DMatrix(*TRAIN), xgb.DMatrix(*TEST)
    evals = arguments.pop("evals", ("train", "test"))
    data = [({"train": train}.get(name, test), name) for name in evals]
    return xgb.train(OF_XGBOOST, train, rounds, evals=data, verbose_eval=False, callbacks=callbacks, **arguments)


def train_lightgbm(*callbacks, rounds=4, **arguments):
    train = lgb.Dataset(*TRAIN)
    data = [train, lgb.Dataset(*TEST, reference=train)]
    return lgb.train(OF_LIGHTGBM, train, rounds, data, callbacks=callbacks, **arguments)


def cat(directory, rounds=4, **settings):
    quiet = {"depth": 2, "thread_count": 1, "verbose": False, "train_dir": str(directory / "catboost")}
    return catboost.CatBoostRegressor(iterations=rounds, **quiet, **settings)


def rows(loop, name):
    return [(row.step, row.metrics[name]) for row in loop.history if name in row.metrics]


def interrupt(loop):
    signal.raise_signal(signal.SIGINT)


def test_scores_of_several_data_sets_have_one_spelling_and_the_hosts_own():
    scores = [
        Score("training", "auc", 0.5, is_loss=False),
        Score("training", "logloss", 0.25),
        Score("old", "auc", 0.75, 0.125, is_loss=False),
        Score("new", "logloss", 1.0),
    ]
    assert sorted_scores(scores) == (
        {"train/auc": 0.5, "loss": 0.25, "train/logloss": 0.25},
        {
            "old": {"old/auc": 0.75, "old/auc_std": 0.125},
            "val": {"val/loss": 1.0, "val/logloss": 1.0, "new/logloss": 1.0},
        },
    )


def test_xgboost_records_what_it_reports_and_trains_the_same_model(options):
    plain, result = train_xgboost(), {}
    with XGBoostCallback([RecordingCallback()], **options) as hooks:
        model = train_xgboost(hooks, evals=("train", "valid", "test"), evals_result=result)
    assert [value for _, value in rows(hooks.loop, "loss")] == result["train"]["rmse"]
    assert rows(hooks.loop, "val/rmse") == [*enumerate(result["test"]["rmse"], 1)]
    assert rows(hooks.loop, "valid/rmse") == [*enumerate(result["valid"]["rmse"], 1)]
    assert model.save_raw() == plain.save_raw()
    assert (hooks.loop.step, end_of(hooks.loop)[0]) == (4, "finished")


def test_xgboost_stopped_by_a_callback_before_it_keeps_the_last_round(options):
    with XGBoostCallback(**options) as hooks:
        train_xgboost(xgb.callback.EarlyStopping(rounds=1, metric_name="rmse", min_delta=100.0), hooks, rounds=9)
    assert [step for step, _ in rows(hooks.loop, "val/rmse")] == [1, 2]
    assert end_of(hooks.loop)[0] == "finished"


def test_xgboost_cross_validation_has_deviations_and_no_checkpoint(options):
    refused = []

    def save(loop):
        with pytest.raises(CheckpointError, match="a model for each fold"):
            loop.save_checkpoint()
        refused.append(loop.step)

    with XGBoostCallback([At(1, save)], **options) as hooks:
        result = xgb.cv(OF_XGBOOST, xgb.DMatrix(*TRAIN), 2, nfold=2, callbacks=[hooks], as_pandas=False)
    assert [value for _, value in rows(hooks.loop, "val/rmse")] == pytest.approx(result["test-rmse-mean"])
    assert [value for _, value in rows(hooks.loop, "test/rmse_std")] == pytest.approx(result["test-rmse-std"])
    assert refused == [1]


def test_xgboost_estimator_with_the_callback_is_cloned_and_pickled(options):
    hooks = XGBoostCallback(**options)
    estimator = clone(xgb.XGBRegressor(n_estimators=2, max_depth=2, n_jobs=1, callbacks=[hooks]))
    assert estimator.callbacks == [hooks]
    first = estimator.fit(*TRAIN, eval_set=[TRAIN, TEST], verbose=False) and hooks.loop.dir
    again = pickle.loads(pickle.dumps(estimator))
    assert (again.predict(TEST[0]) == estimator.predict(TEST[0])).all()
    again.fit(*TRAIN)  # the copy records nothing
    assert hooks.loop.dir == first
    assert rows(hooks.loop, "validation_1/rmse") == rows(hooks.loop, "val/rmse")
    estimator.fit(*TRAIN, verbose=False)
    assert hooks.loop.dir != first


def test_xgboost_learning_rate_set_by_a_callback_holds_for_later_rounds(options):
    def lower(loop):
        loop.optimizer.param_groups[0]["lr"] = 0.0

    with XGBoostCallback([At(2, lower), "learning_rate_monitor"], **options) as hooks:
        train_xgboost(hooks)
    losses = [value for _, value in rows(hooks.loop, "loss")]
    assert losses[0] > losses[1] == losses[2] == losses[3]
    assert [rate for _, rate in rows(hooks.loop, "lr")] == [0.3, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("host", ["xgboost", "lightgbm", "catboost"])
def test_booster_interrupted_stops_after_the_round(host, options, tmp_path):
    hooks: Any
    if host == "catboost":
        hooks = attach(model := cat(tmp_path), [At(2, interrupt)], **options)
        model.fit(*TRAIN)
    elif host == "lightgbm":
        with LightGBMCallback([At(2, interrupt)], **options) as hooks:
            train_lightgbm(*hooks)
    else:
        with XGBoostCallback([At(2, interrupt)], **options) as hooks:
            train_xgboost(hooks)
    assert (hooks.loop.step, end_of(hooks.loop)) == (2, ["stopped", "SIGINT"])


def test_xgboost_signal_outside_of_a_training_that_raised_is_not_for_it(options):
    hooks = XGBoostCallback([At(2, lambda loop: 1 / 0)], **options)
    with pytest.raises(ZeroDivisionError):
        train_xgboost(hooks)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    failed = hooks.loop.dir
    train_xgboost(hooks, rounds=1)
    assert [record.status for record in hl.read(failed) if isinstance(record, Status)][-1] == "failed"
    assert end_of(hooks.loop)[0] == "finished"


def test_lightgbm_records_what_it_reports_and_trains_the_same_model(options):
    plain, result = train_lightgbm(), {}
    with LightGBMCallback([RecordingCallback()], **options) as hooks:
        model = train_lightgbm(*hooks, lgb.record_evaluation(result))
    assert [value for _, value in rows(hooks.loop, "loss")] == pytest.approx(result["training"]["l2"])
    assert [value for _, value in rows(hooks.loop, "val/l2")] == pytest.approx(result["valid_1"]["l2"])
    assert model.model_to_string() == plain.model_to_string()
    assert (hooks.loop.num_steps, end_of(hooks.loop)[0]) == (4, "finished")


def test_lightgbm_stopped_early_by_its_own_callback_is_finished(options):
    stopper = lgb.early_stopping(1, min_delta=100.0, verbose=False)
    with LightGBMCallback(**options) as hooks:
        train_lightgbm(*hooks, stopper, rounds=9)
    assert (rows(hooks.loop, "val/l2")[-1][0], end_of(hooks.loop)[0]) == (2, "finished")


def test_lightgbm_stop_of_a_callback_leaves_the_last_round_as_the_best(options):
    with LightGBMCallback([At(3, lambda loop: loop.request_stop("enough"))], **options) as hooks:
        model = train_lightgbm(*hooks, rounds=9)
    assert (model.best_iteration, model.current_iteration(), hooks.loop.step) == (3, 3, 3)
    assert end_of(hooks.loop) == ["stopped", "enough"]


def test_lightgbm_learning_rate_is_that_of_its_own_schedule_and_can_be_set(options):
    def lower(loop):
        loop.optimizer.param_groups[0]["lr"] = 1e-9

    with LightGBMCallback([At(3, lower), "learning_rate_monitor"], **options) as hooks:
        train_lightgbm(*hooks, lgb.reset_parameter(learning_rate=lambda step: 0.5 if step < 2 else 0.25), rounds=3)
        rates = [rate for _, rate in rows(hooks.loop, "lr")]
        train_lightgbm(*hooks)
    assert rates == [0.5, 0.5, 1e-9]
    losses = [value for _, value in rows(hooks.loop, "loss")]
    assert losses[0] > losses[1] > losses[2] == pytest.approx(losses[3])


@pytest.mark.filterwarnings("ignore:The argument 'eval_set' is deprecated")
def test_lightgbm_estimator_takes_the_two_functions(options):
    with LightGBMCallback(**options) as hooks:
        estimator = lgb.LGBMRegressor(n_estimators=3, num_leaves=4, min_child_samples=2, n_jobs=1, verbosity=-1)
        estimator.fit(*TRAIN, eval_set=[TRAIN, TEST], callbacks=[*hooks])
    assert [value for _, value in rows(hooks.loop, "val/l2")] == pytest.approx(estimator.evals_result_["valid_1"]["l2"])
    assert [value for _, value in rows(hooks.loop, "loss")] == pytest.approx(estimator.evals_result_["training"]["l2"])


def test_requested_validation_has_no_effect_and_one_warning(options, caplog):
    with XGBoostCallback([At(step, lambda loop: loop.request_validation()) for step in (1, 2)], **options) as hooks:
        train_xgboost(hooks)
    messages = [record.getMessage() for record in caplog.records if "validation" in record.getMessage()]
    assert messages == ["A validation was requested. XGBoost evaluates after each round, and not on request."]
    assert [step for step, _ in rows(hooks.loop, "val/loss")] == [1, 2, 3, 4]


def test_lightgbm_cross_validation_has_deviations(options):
    with LightGBMCallback(**options) as hooks:
        result = lgb.cv(OF_LIGHTGBM, lgb.Dataset(*TRAIN), 2, nfold=2, stratified=False, callbacks=[*hooks])
    assert [value for _, value in rows(hooks.loop, "val/l2_std")] == pytest.approx(result["valid l2-stdv"])


def test_lightgbm_before_4_7_named_the_data_set_in_the_metric():
    from hookline.integrations.lightgbm import _score

    assert _score(("cv_agg", "train l2", 0.5, False, 0.25), "training") == Score("train", "l2", 0.5, 0.25)
    assert _score(("cv_agg", "auc", 0.5, True, 0.25), "training") == Score("valid", "auc", 0.5, 0.25, is_loss=False)


def test_lightgbm_given_the_callback_as_one_function_says_how_to_write_it(options):
    with LightGBMCallback(**options) as hooks, pytest.raises(OptionError, match=r"callbacks=\[\*hooks\]"):
        train_lightgbm(hooks)


def test_catboost_records_what_it_reports_and_trains_the_same_model(options, tmp_path):
    plain, model = cat(tmp_path), cat(tmp_path)
    hooks = attach(model, [RecordingCallback()], **options)
    for each in (plain, model):
        each.fit(*TRAIN, eval_set=[TRAIN, TEST])
    result = model.get_evals_result()
    assert [value for _, value in rows(hooks.loop, "loss")] == result["learn"]["RMSE"]
    assert [value for _, value in rows(hooks.loop, "val/RMSE")] == result["validation_1"]["RMSE"]
    assert [value for _, value in rows(hooks.loop, "validation_0/RMSE")] == result["validation_0"]["RMSE"]
    assert (model.predict(TEST[0]) == plain.predict(TEST[0])).all()
    hooks.detach()
    run = hooks.loop.dir
    model.fit(*TRAIN)
    assert hooks.loop.dir == run


def test_catboost_with_a_metric_period_has_metrics_where_they_are_computed(options, tmp_path):
    hooks = attach(model := cat(tmp_path, rounds=8, eval_metric="R2", loss_function="RMSE"), **options)
    model.fit(*TRAIN, eval_set=TEST, metric_period=3)
    assert [step for step, _ in rows(hooks.loop, "val/RMSE")] == [1, 4, 7, 8]
    assert rows(hooks.loop, "val/loss") == rows(hooks.loop, "val/RMSE")  # and not R2, of which more is better
    assert hooks.loop.step == 8


def test_catboost_stopped_by_its_own_detector_is_finished(options, tmp_path):
    hooks = attach(model := cat(tmp_path, rounds=50, learning_rate=1.0), **options)
    model.fit(*TRAIN, eval_set=TEST, early_stopping_rounds=2, use_best_model=False)
    assert hooks.loop.step == model.tree_count_ < 50
    assert end_of(hooks.loop)[0] == "finished"


def test_catboost_resumed_from_a_snapshot_trains_the_same_model(options, tmp_path):
    whole = cat(tmp_path, rounds=6).fit(*TRAIN)
    stop = At(3, lambda loop: (loop.request_checkpoint(), loop.request_stop("later")))
    hooks = attach(model := cat(tmp_path, rounds=6), [stop], snapshots=True, **options)
    model.fit(*TRAIN)
    (saved,) = hooks.loop.checkpoints
    again = attach(model := cat(tmp_path, rounds=6), resume=saved.path, snapshots=True, **options)
    model.fit(*TRAIN)
    assert (model.predict(TEST[0]) == whole.predict(TEST[0])).all()
    assert again.loop.dir == hooks.loop.dir
    assert [step for step, _ in rows(again.loop, "loss")] == [1, 2, 3, 4, 5, 6]


def test_catboost_continues_the_rounds_of_another_model(options, tmp_path):
    hooks = attach(model := cat(tmp_path, rounds=2), **options)
    model.fit(*TRAIN, init_model=cat(tmp_path, rounds=3).fit(*TRAIN))
    assert [step for step, _ in rows(hooks.loop, "loss")] == [4, 5]
    assert hooks.loop.num_steps == 5


def test_catboost_without_snapshots_says_why_there_is_no_checkpoint(options, tmp_path):
    hooks = attach(model := cat(tmp_path), [At(2, lambda loop: loop.save_checkpoint())], **options)
    with pytest.raises(CheckpointError, match=r"attach\(model, snapshots=True\)"):
        model.fit(*TRAIN)
    assert end_of(hooks.loop)[0] == "failed"
    with pytest.raises(OptionError, match="snapshots=True"):
        attach(model, resume="somewhere")
    with pytest.raises(OptionError, match="CatBoostClassifier"):
        attach("a model")


def test_catboost_given_a_callback_without_attach_says_what_to_use(tmp_path):
    # On a thread of its own: CatBoost leaves the error of a callback behind as the one that is being handled.
    with (
        ThreadPoolExecutor(1) as thread,
        pytest.raises(catboost.CatBoostError, match="hookline.integrations.catboost"),
    ):
        thread.submit(cat(tmp_path).fit, *TRAIN, callbacks=[hl.Callback()]).result()


def test_catboost_error_of_its_own_ends_the_run_as_failed(options, tmp_path):
    hooks = attach(model := cat(tmp_path), **options)
    with pytest.raises(catboost.CatBoostError):
        model.fit(TRAIN[0], TARGET)
    assert end_of(hooks.loop)[0] == "failed"


def test_requested_checkpoint_that_the_host_cannot_save_is_refused_with_one_warning(options, tmp_path, caplog):
    hooks = attach(model := cat(tmp_path), [At(2, lambda loop: loop.request_checkpoint())], **options)
    with caplog.at_level(logging.WARNING, "hookline"):
        model.fit(*TRAIN)
    assert hooks.loop.checkpoints == []
    messages = [record.getMessage() for record in caplog.records if "No checkpoint" in record.getMessage()]
    assert [message.partition(":")[0] for message in messages] == [
        "No checkpoint is saved at step 2. CatBoost shows its callbacks no model"
    ]
