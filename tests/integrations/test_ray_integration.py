"""Runs that report to Ray from its workers, and runs that record Tune and Train, with a real Ray on loopback.

Tests that need no cluster (Ray Train's local mode, the states of trials) start none.
"""

import importlib.util
import json
import logging
import pickle
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._record.reader import last_status, read
from hookline._record.records import Event, Metrics
from hookline.sinks.run_progress import read_metadata

if importlib.util.find_spec("ray") is None:  # not imported here: that is done with its settings
    pytest.skip("ray is not installed", allow_module_level=True)
for needed in ("pandas", "pyarrow", "fsspec", "pydantic", "torch"):
    pytest.importorskip(needed)

from hookline.rl.ray_cluster import RayCluster, import_ray  # noqa: E402

import_ray()

import ray.train  # noqa: E402
import ray.tune  # noqa: E402
from ray.train.torch import TorchTrainer  # noqa: E402
from ray.train.v2._internal.execution.train_fn_utils import set_train_fn_utils  # noqa: E402
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer  # noqa: E402

from hookline.integrations.ray import (  # noqa: E402
    FitCallback,
    HooklineTrainCallback,
    HooklineTuneCallback,
    ReportCallback,
    last_checkpoint,
)


def rows(directory):
    return [(row.step, row.values) for row in read(directory) if isinstance(row, Metrics)]


def events(directory, name):
    return [record for record in read(directory) if isinstance(record, Event) and record.name == name]


def fit_here(function, **config):
    """Ray Train's local mode: the function runs in this process."""
    return TorchTrainer(
        function,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(num_workers=0),
        run_config=ray.train.RunConfig(name="here", storage_path=str(Path.cwd() / "storage")),
    ).fit()


@pytest.fixture(autouse=True)
def _left_local_mode():
    """Undo that Ray's local mode turns its process into a worker."""
    set_train_fn_utils(None)
    yield
    set_train_fn_utils(None)


@pytest.fixture
def reported(monkeypatch):
    """Collects what is reported to Ray."""
    given, report = [], ray.train.report

    def listen(metrics, checkpoint=None):
        given.append((dict(metrics), None if checkpoint is None else Path(checkpoint.path).name))
        report(metrics, checkpoint=checkpoint)

    monkeypatch.setattr(ray.train, "report", listen)
    return given


def test_report_callback_reports_steps_validations_and_checkpoints_once_each(reported):
    def train(config):
        saves = hl.callbacks.CheckpointCallback(every_n_steps=4, save_last=False)
        with hl.run("worker", callbacks=[ReportCallback(2), saves], summary=False, strict=True) as run:
            for index in run.steps(7):
                run.log(loss=float(index))
                if index == 4:
                    with run.validate() as val:
                        val.log(loss=0.5)

    result = fit_here(train)
    losses = {step: {"step": step, "epoch": 0, "loss": step - 1.0} for step in range(1, 8)}
    validated = {"val/loss": 0.5}
    assert reported == [
        (losses[2], None),
        (losses[4], "step-00000004"),
        (losses[5] | validated, None),
        (losses[6] | validated, None),
        (losses[7] | validated, None),
    ]
    assert result.metrics["loss"] == 6.0


def test_report_callback_reports_only_the_given_metrics(reported):
    def train(config):
        callback = ReportCallback(None, metrics=["val/loss", "missing"], checkpoints=False)
        with hl.run("worker", callbacks=[callback], summary=False, strict=True) as run:
            for _ in run.steps(2):
                run.log(loss=1.0)
            with run.validate() as val:
                val.log(loss=0.5)
            run.save_checkpoint()

    fit_here(train)
    assert reported == [({"step": 2, "epoch": 0, "val/loss": 0.5}, None)]


def test_last_checkpoint_is_the_runs_own_or_else_rays_copy():
    found = []

    def train(config):
        found.append(last_checkpoint())
        with hl.run("worker", callbacks=[ReportCallback()], resume=last_checkpoint(), summary=False) as run:
            for _ in run.steps(2):
                pass
            own = run.save_checkpoint().path
        found.append(last_checkpoint() == own)
        copy = Path("copy")
        own.rename(copy)
        ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(str(copy)))
        found.append(last_checkpoint())

    fit_here(train)
    assert found == [None, True, Path("copy")]


@pytest.mark.parametrize(
    ("use", "what"),
    [(last_checkpoint, "last_checkpoint"), (lambda: ReportCallback().on_train_start(None), "ReportCallback")],
)
def test_reports_outside_of_a_worker_are_refused(use, what):
    with pytest.raises(OptionError, match=rf"{what}.* works only in a training function that Ray runs"):
        use()


def test_report_callback_with_a_cadence_of_zero_is_refused():
    with pytest.raises(OptionError, match="every_n_steps=0: give a whole number"):
        ReportCallback(0)


class Trial(SimpleNamespace):
    """The parts of a Tune trial that callbacks use."""

    def __init__(self, trial_id="t1", stop=None, **config):
        super().__init__(trial_id=trial_id, config=config, evaluated_params=config, stopping_criterion=stop or {})
        self.experiment_dir_name, self.pickled_error_file = "search", None

    def __str__(self):
        return f"train_{self.trial_id}"


def results(callback, trial, *iterations, done_at=None):
    for step in iterations:
        result = {"training_iteration": step, "loss": 1 / step, "done": step == done_at, "pid": 1, "config": {}}
        callback.on_trial_result(0, [], trial, result)


def test_tune_callback_trial_restarted_from_a_checkpoint_is_one_run_without_duplicates():
    callback, trial = HooklineTuneCallback(), Trial(lr=0.1)
    callback.on_trial_start(0, [], trial)
    results(callback, trial, 1, 2, 3)
    trial.pickled_error_file = Path("error.pkl")
    trial.pickled_error_file.write_bytes(ray.cloudpickle.dumps(OSError("the node is gone")))
    callback.on_trial_recover(0, [], trial)
    (directory,) = callback.directories.values()
    assert last_status(directory).message == "OSError: the node is gone"
    callback.on_trial_start(0, [], trial)
    results(callback, trial, 3, 4, 2)  # once more from the checkpoint at 2, and then another trial's at 1
    callback.on_trial_complete(0, [], trial)
    assert rows(directory) == [(1, {"loss": 1.0}), (2, {"loss": 0.5})]
    assert last_status(directory).status == "finished"


def test_tune_callback_restored_experiment_continues_its_runs():
    first, trial = HooklineTuneCallback(), Trial(lr=0.1)
    first.on_trial_start(0, [], trial)
    results(first, trial, 1, 2)
    state = json.loads(json.dumps(first.get_state()))
    first.on_experiment_end([trial])
    again = HooklineTuneCallback()
    again.set_state(state)
    assert again.get_state() == state
    again.on_trial_start(0, [], trial)
    results(again, trial, 3)
    again.on_trial_complete(0, [], trial)
    assert again.directories == first.directories
    assert [step for step, _ in rows(first.directories["t1"])] == [1, 2, 3]


def test_tune_callback_end_of_a_trial_determines_its_status():
    callback = HooklineTuneCallback(project="mine", root="trials")
    ended, reached, pruned, open_ = Trial("a"), Trial("b", stop={"training_iteration": 2}), Trial("c"), Trial("d")
    for trial in (ended, reached, pruned, open_):
        callback.on_trial_start(0, [], trial)
    results(callback, ended, 1)
    results(callback, reached, 1, 2, done_at=2)
    results(callback, pruned, 1, done_at=1)
    for trial in (ended, reached, pruned):
        callback.on_trial_complete(0, [], trial)
    callback.on_experiment_end([ended, reached, pruned, open_])
    said = {name: last_status(directory) for name, directory in callback.directories.items()}
    assert {name: (status.status, status.message) for name, status in said.items()} == {
        "a": ("finished", ""),
        "b": ("finished", ""),
        "c": ("stopped", "ended by Tune after 1 results"),
        "d": ("stopped", "the experiment ended"),
    }
    assert {directory.parent for directory in callback.directories.values()} == {Path("trials/mine").resolve()}


def test_tune_callback_skips_values_that_are_not_scalars_and_accepts_sink_names(caplog):
    callback = HooklineTuneCallback(sinks=["csv"])
    trial = Trial()
    callback.on_trial_start(0, [], trial)
    with caplog.at_level(logging.WARNING, "hookline"):
        callback.on_trial_result(0, [], trial, {"training_iteration": 1, "loss": 2, "curve": [1, 2], "a": {"b": 3}})
    callback.on_trial_complete(0, [], trial)
    (directory,) = callback.directories.values()
    assert rows(directory) == [(1, {"loss": 2, "a/b": 3})]
    assert "train_t1 does not record 'curve'" in caplog.text
    assert list(directory.rglob("*.csv"))
    with pytest.raises(OptionError, match="give names or mappings"):
        HooklineTuneCallback(sinks=[print])


@pytest.mark.parametrize("durability", ["process", "checkpoint"])
def test_tune_and_train_callbacks_sync_the_record_when_a_checkpoint_is_saved(monkeypatch, durability):
    synced = []
    monkeypatch.setattr("os.fdatasync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().suffix))
    callback, trial = HooklineTuneCallback(durability=durability), Trial(lr=0.1)
    callback.on_trial_start(0, [], trial)
    results(callback, trial, 1)
    synced.clear()
    callback.on_checkpoint(0, [], trial, SimpleNamespace(path="saved"))
    by_tune = ".jsonl" in synced
    callback.on_trial_complete(0, [], trial)
    with HooklineTrainCallback(durability=durability) as recorded:
        synced.clear()
        recorded.after_report(None, [{"loss": 0.5}], SimpleNamespace(path="saved"))
        by_train = ".jsonl" in synced
    assert (by_tune, by_train) == (2 * (durability == "checkpoint",))


def test_tune_and_train_callbacks_record_the_console_of_the_driver():
    callback, trial = HooklineTuneCallback(console="python"), Trial(lr=0.1)
    callback.on_trial_start(0, [], trial)
    print("of the trial")
    callback.on_trial_complete(0, [], trial)
    with HooklineTrainCallback(console="python") as recorded:
        print("of the fit")
    found = [list(hl.read(each, writer="console")) for each in (callback.directories["t1"], recorded.dir)]
    printed = [[line.text for line in lines if hasattr(line, "text")] for lines in found]  # not log records
    assert printed == [["of the trial"], ["of the fit"]]


def test_tune_callback_passes_options_to_each_trials_run():
    labels = {"tags": ["sweep"], "notes": "Which rate, [redacted]?"}
    given = {**labels, "notes": "Which rate, Alice?", "redact": "Alice", "code": "none"}
    callback, trial = HooklineTuneCallback(config={"lr": 1.0, "data": "digits"}, **given), Trial(lr=0.1)
    callback.on_trial_start(0, [], trial)
    callback.on_trial_complete(0, [], trial)
    facts = json.loads((callback.directories["t1"] / "run.json").read_text())
    assert facts.items() >= {"config": {"lr": 0.1, "data": "digits"}, **labels}.items()
    for option in ({"delivery": "pigeon"}, {"drain_seconds": -1}, {"durability": "luck"}, {"root": None}):
        with pytest.raises(OptionError, match=f"^{next(iter(option))}="):
            HooklineTuneCallback(**option)


@pytest.fixture(scope="module")
def cluster():
    with RayCluster(2) as made:
        made.ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests
        yield made.ray
        made.ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def search(config):
    """A trial that is itself a hookline run and reports to Tune."""
    with hl.run("inside", root=config["root"], callbacks=[ReportCallback()], summary=False, strict=True) as run:
        for index in run.steps(3):
            run.log(score=config["lr"] * (index + 1))
            if config["lr"] < 0 and index == 1:
                raise ValueError("a bad learning rate")


def test_tune_trials_are_runs_of_one_experiment(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    callback = HooklineTuneCallback(root="trials")
    grid = ray.tune.Tuner(
        search,
        param_space={"lr": ray.tune.grid_search([0.5, -1.0]), "root": str(tmp_path / "inside")},
        run_config=ray.tune.RunConfig(
            name="search", storage_path=str(tmp_path / "storage"), callbacks=[callback], verbose=0
        ),
    ).fit()
    assert [len(grid), grid.num_errors] == [2, 1]
    facts = {read_metadata(path).membership.arm: (read_metadata(path), path) for path in callback.directories.values()}
    assert sorted(facts) == ["lr=-1.0", "lr=0.5"]
    assert {each.membership.experiment for each, _ in facts.values()} == {"search"}
    good, bad = facts["lr=0.5"], facts["lr=-1.0"]
    assert good[0].config == {"lr": 0.5, "root": str(tmp_path / "inside")}
    assert [(step, values["score"], values["step"]) for step, values in rows(good[1])] == [
        *((1, 0.5, 1), (2, 1.0, 2), (3, 1.5, 3)),
    ]
    assert last_status(good[1]).status == "finished"
    last = last_status(bad[1])
    assert (last.status, last.message) == ("failed", "ValueError: a bad learning rate")
    inside = sorted(last_status(path).status for path in (tmp_path / "inside" / "default").iterdir())
    assert inside == ["failed", "finished"]


def train(config):
    """Two workers, connected over gloo and a file; rank one fails once, when the checkpoint at step 4 is recorded."""
    import torch
    import torch.distributed as dist

    from hookline.integrations.torch import run

    torch.set_num_threads(1)
    rank = ray.train.get_context().get_world_rank()
    store = config["here"] / f"store-{last_checkpoint() is None}"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(3)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saves = hl.callbacks.CheckpointCallback(every_n_steps=2, save_last=False)
    options = {"root": config["here"] / "runs", "resume": last_checkpoint(), "summary": False, "strict": True}
    with run(model, optimizer, name="worker", callbacks=[ReportCallback(), saves], **options) as loop:
        for _ in loop.steps(6):
            loss = model(torch.full((1, 2), rank + 1.0)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loop.log(loss=loss)
            if rank == 1 and loop.step == 4 and loop.resumed_from is None:
                while not any(event.step == 4 for event in events(config["fit"], "checkpoint")):
                    threading.Event().wait(0.01)
                raise ValueError("a bad batch")
    dist.destroy_process_group()


@pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\.data")  # Ray uses what it has deprecated
def test_train_workers_resume_after_a_failure_and_both_runs_record_it(cluster, tmp_path):
    with HooklineTrainCallback("fit", root=tmp_path / "fits", config={"workers": 2}) as recorded:
        result = DataParallelTrainer(  # torch's own store, which TorchTrainer starts, would listen on all interfaces
            train,
            train_loop_config={"here": tmp_path, "fit": recorded.dir},
            scaling_config=ray.train.ScalingConfig(num_workers=2),
            run_config=ray.train.RunConfig(
                name="fit",
                storage_path=str(tmp_path / "storage"),
                failure_config=ray.train.FailureConfig(max_failures=1),
                worker_runtime_env={"env_vars": {"GLOO_SOCKET_IFNAME": "lo"}},
                callbacks=[recorded],
            ),
        ).fit()
    (worker,) = (tmp_path / "runs" / "default").iterdir()
    assert (last_status(worker).status, last_status(recorded.dir).status) == ("finished", "finished")
    names = {"loss"}
    sent = [(step, {name: values[name] for name in names}) for step, values in rows(recorded.dir)]
    assert [step for step, _ in sent] == [1, 2, 3, 4, 5, 6]
    own = [(step, {name: values[name]}) for step, values in rows(worker) for name in values if name in names]
    assert sorted(own, key=str) == sorted(((step, {name: row[name]}) for step, row in sent for name in row), key=str)
    assert result.metrics["loss"] == sent[-1][1]["loss"]
    failures = {
        event.data["rank"]: (event.step, event.data["error"]) for event in events(recorded.dir, "worker_failed")
    }
    assert failures[1] == (4, "ValueError: a bad batch")
    assert [event.step for event in events(recorded.dir, "checkpoint")] == [2, 4, 6]
    assert (Path(result.checkpoint.path) / "model.pt").exists()


def report_losses():
    for step in (1, 2):
        ray.train.report({"step": step, "loss": 1.0 / step})


@pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\.data")  # Ray uses what it has deprecated
def test_fit_is_recorded_without_an_edit_by_rays_variable(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TRAIN_CALLBACKS", "hookline.integrations.ray.FitCallback")
    monkeypatch.setenv("HOOKLINE_ROOT", "fits")
    monkeypatch.setenv("HOOKLINE_TAGS", "night")
    DataParallelTrainer(
        report_losses,
        scaling_config=ray.train.ScalingConfig(num_workers=1),
        run_config=ray.train.RunConfig(name="two-steps", storage_path=str(tmp_path / "storage")),
    ).fit()
    [info] = hl.runs("fits")
    assert (info.name, info.tags, info.status) == ("two-steps", ("night",), "finished")
    assert rows(info.directory) == [(step, {"step": step, "loss": 1.0 / step}) for step in (1, 2)]


def fit_callback(monkeypatch, **variables):
    """The copy of the callback that Ray's controller has; the variables are only in the driver."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    sent = pickle.dumps(FitCallback())
    for name in variables:
        monkeypatch.delenv(name)
    return pickle.loads(sent)


def test_fit_callback_has_the_name_of_the_variable_and_records_failures(tmp_path, monkeypatch):
    controller = fit_callback(monkeypatch, HOOKLINE_NAME="named", HOOKLINE_ROOT=str(tmp_path / "fits"))
    controller.after_controller_start(SimpleNamespace(get_run_config=lambda: SimpleNamespace(name="other")))
    controller.after_worker_group_poll_status(SimpleNamespace(errors={0: OSError("the node is gone")}))
    controller.after_controller_finish(SimpleNamespace(error=RuntimeError("no workers")))
    controller.before_controller_abort()  # it has ended already
    [info] = hl.runs("fits")
    last = last_status(info.directory)
    assert (info.name, last.status, last.message) == ("named", "failed", "RuntimeError: no workers")
    assert len(events(info.directory, "worker_failed")) == 1


def test_fit_callback_that_is_disabled_records_nothing(tmp_path, monkeypatch):
    controller = fit_callback(monkeypatch, HOOKLINE_MODE="disabled")
    controller.after_controller_start(SimpleNamespace())
    controller.after_report(SimpleNamespace(), [{"loss": 1.0}])
    controller.after_worker_group_poll_status(SimpleNamespace(errors={}))
    controller.after_controller_finish(SimpleNamespace(error=None))
    assert list(tmp_path.iterdir()) == []


def test_train_callback_keeps_both_reports_of_a_step_unless_workers_failed_in_between(tmp_path):
    with HooklineTrainCallback(root=tmp_path) as recorded:
        controller = pickle.loads(pickle.dumps(recorded))
        for row in ({"loss": 0.9}, {"val/loss": 0.5}):
            controller.after_report(None, [{"step": 1, **row}], None)
        controller.after_report(None, [{"step": 2, "loss": 0.8}], None)
        controller.after_exception(None, {0: OSError("the node is gone")})
        for row in ({"loss": 0.7}, {"val/loss": 0.4}):
            controller.after_report(None, [{"step": 2, **row}], None)
    assert rows(recorded.dir) == [
        (1, {"step": 1, "loss": 0.9}),
        (1, {"step": 1, "val/loss": 0.5}),
        (2, {"step": 2, "loss": 0.7}),
        (2, {"step": 2, "val/loss": 0.4}),
    ]


def test_train_callback_records_all_workers_and_their_restarts(tmp_path):
    facts = {"name": "fit", "project": "fits", "config": {"workers": 2}}
    with HooklineTrainCallback(root=tmp_path, sinks=["csv"], **facts) as recorded:
        controller = pickle.loads(pickle.dumps(recorded))
        for step in (1, 2, 3):
            controller.after_report(None, [{"step": step, "a": {"b": step}}, {"step": step, "curve": [1]}], None)
        controller.after_exception(None, {1: OSError("the node is gone")})
        for step in (2, 3):
            controller.after_report(None, [{"step": step, "a": {"b": -step}}], SimpleNamespace(path="bucket/there"))
        controller.after_report(None, [{"loss": 0.5}], None)
    one = (1, {"step": 1, "a/b": 1, "rank1/step": 1})
    again = [(step, {"step": step, "a/b": -step}) for step in (2, 3)]
    assert rows(recorded.dir) == [one, *again, (6, {"loss": 0.5})]
    (failure,) = events(recorded.dir, "worker_failed")
    assert (failure.step, failure.data) == (3, {"rank": 1, "error": "OSError: the node is gone"})
    assert [event.data["path"] for event in events(recorded.dir, "checkpoint")] == 2 * ["bucket/there"]
    assert list(recorded.dir.rglob("*.csv"))
    assert recorded.dir.parent == tmp_path / "fits"
    facts_of_run = json.loads((recorded.dir / "run.json").read_text())
    assert {key: facts_of_run[key] for key in facts} == facts


def test_train_callback_not_entered_or_entered_twice_is_refused(tmp_path):
    callback = HooklineTrainCallback(root=tmp_path)
    with pytest.raises(OptionError, match="Enter the callback around the fit"):
        callback.__getstate__()
    with pytest.raises(RuntimeError, match="no workers"), callback:
        raise RuntimeError("no workers")
    last = last_status(callback.dir)
    assert (last.status, last.message) == ("failed", "RuntimeError: no workers")
    with pytest.raises(OptionError, match="records one fit"), callback:
        pass
