"""A run of an experiment in trackers: its group, the runs that it is nested in, and what the trackers call it."""

import json
import subprocess
import sys
import warnings

import pytest
from destinations.trackio import trackio_in
from destinations.wandb import end_wandb, read_records

import hookline as hl
from hookline._record import files
from hookline._record.delivery import Delivery, Pace
from hookline._record.recorder import Recorder
from hookline._record.sink import Sink
from hookline.sinks.mlflow import KEY_TAG, PARENT_TAG, MlflowSink
from hookline.sinks.mlflow_connection import exclusive_start
from hookline.sinks.run_progress import read_metadata
from hookline.sinks.trackio import TrackioSink
from hookline.sinks.wandb import WandbSink

PACE = Pace(poll_seconds=0.01, retry_seconds=0.01, longest_seconds=0.05)
BESIDE = """
import sys
from pathlib import Path
from mlflow.tracking import MlflowClient
from hookline._record.delivery import Delivery
from hookline.sinks.mlflow import MlflowSink

MlflowClient(tracking_uri=sys.argv[2]).search_experiments()  # what takes long is done
delivery = Delivery(Path(sys.argv[1]), "mlflow", MlflowSink(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
delivery.round()
print(delivery.progress.status, delivery.progress.error)
delivery.close(0)
delivery.run()
"""


@pytest.fixture
def make_run(tmp_path):
    """Makes the directory of a run as an experiment does, with one row in its journal."""

    def make(run_key, arm="low", *, repeat=0, stage=None, experiment="sweep-1", **facts):
        directory = tmp_path / "runs" / experiment / run_key
        directory.mkdir(parents=True)
        place = {"name": "sweep", "id": experiment, "group": arm, "group_id": f"{experiment}:{arm}", "arm": arm}
        place |= {"run_key": run_key, "repeat": repeat, "stage": stage, "seed": 40 + repeat}
        known = {"id": run_key, "project": "sums", "started": 1000.5 + repeat, "host": "h", "user": "ann"}
        (directory / "run.json").write_text(json.dumps(known | {"experiment": place} | facts))
        recorder = Recorder(directory)
        recorder.log(loss=0.5, step=1)
        recorder.close()
        return directory

    return make


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    """A database with MLflow's tables, which takes seconds to make."""
    path = tmp_path_factory.mktemp("hierarchy") / "mlflow.db"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mlflow uses what SQLAlchemy is about to drop
        client_of(f"sqlite:///{path}").search_experiments()
    return path.read_bytes()


@pytest.fixture
def uri(tables, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "mlflow.db").write_bytes(tables)
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def wandb_alone(monkeypatch):
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    end_wandb()
    yield
    end_wandb()


def deliver(run_dir, sink):
    delivery = Delivery(run_dir, "it", sink, PACE)
    delivery.round()
    delivery.close(0)
    delivery.run()
    assert delivery.progress.status == "ok", delivery.progress.error
    return delivery.progress.state


def client_of(uri):
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def all_runs(uri):
    client = client_of(uri)
    return client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])


def tree(uri):
    """The parents of each run, by name, outermost first."""
    runs = {run.info.run_id: run for run in all_runs(uri)}

    def path(run):
        parent = run.data.tags.get(PARENT_TAG)
        return (*(path(runs[parent]) if parent else ()), run.info.run_name)

    return sorted(map(path, runs.values()))


def wandb_run(run_dir):
    (run,) = [record.run for record in read_records(run_dir) if record.HasField("run")]
    return run, {item.key: json.loads(item.value_json) for item in run.config.update}


def test_wandb_run_of_an_experiment_is_grouped_by_its_arm(make_run, wandb_alone):
    run_dir = make_run("low-r1-s0", repeat=1, stage="sft", config={"lr": 0.1})
    deliver(run_dir, WandbSink(mode="offline", tags=("mine",)))
    run, config = wandb_run(run_dir)
    assert (run.display_name, run.run_group, run.job_type) == ("low-r1-s0", "sweep/low", "sft")
    assert list(run.tags) == ["mine", "sweep", "low", "sft"]
    known = {"experiment": "sweep", "experiment_id": "sweep-1", "arm": "low", "repeat": 1, "stage": "sft", "seed": 41}
    assert known.items() <= config["hookline"].items()
    assert config["lr"] == 0.1


def test_wandb_settings_win_over_the_experiments(make_run, wandb_alone):
    run_dir = make_run("low-r0")
    deliver(run_dir, WandbSink(mode="offline", group="g", job_type="j", run_name="n"))
    run, _ = wandb_run(run_dir)
    assert (run.display_name, run.run_group, run.job_type) == ("n", "g", "j")


def test_wandb_name_too_long_for_a_tag_is_left_out_of_the_tags(make_run, wandb_alone):
    run_dir = make_run("low-r0", arm="l" * 65)
    deliver(run_dir, WandbSink(mode="offline"))
    run, _ = wandb_run(run_dir)
    assert (list(run.tags), run.run_group, run.job_type) == (["sweep"], "sweep/" + "l" * 65, "run")


@pytest.mark.parametrize(("given", "shown"), [(None, "sweep/low"), ("mine", "mine")])
def test_trackio_run_of_an_experiment_is_in_its_group(given, shown, make_run, tmp_path):
    run_dir = make_run("low-r0")
    deliver(run_dir, TrackioSink(project="sums", directory=tmp_path / "trackio", group=given))
    with trackio_in(tmp_path / "trackio", "sums") as (_, run):
        assert (run.name, run.config["_Group"]) == ("low-r0", shown)


def test_mlflow_runs_of_experiments_are_nested_in_their_groups(make_run, uri):
    for run_dir in (
        make_run("low-r0"),
        make_run("low-r1", repeat=1),
        make_run("high-r0", "high"),
        make_run("low-r0", experiment="sweep-2"),
    ):
        deliver(run_dir, MlflowSink(uri))
    own = [("sweep",), ("sweep", "high"), ("sweep", "high", "high-r0"), ("sweep", "low"), ("sweep", "low", "low-r0")]
    another = [("sweep",), ("sweep", "low"), ("sweep", "low", "low-r0")]
    assert tree(uri) == sorted([*own, ("sweep", "low", "low-r1"), *another])


def test_mlflow_run_of_an_experiment_carries_its_place_and_its_parents_are_finished(make_run, uri):
    state = deliver(make_run("low-r0"), MlflowSink(uri, tags={"hookline.seed": "mine"}))
    client = client_of(uri)
    run, group = client.get_run(state["run_id"]), client.get_parent_run(state["run_id"])
    experiment = client.get_parent_run(group.info.run_id)
    tags = {name: run.data.tags.get(f"hookline.{name}") for name in ("experiment", "arm", "repeat", "stage", "seed")}
    assert tags == {"experiment": "sweep", "arm": "low", "repeat": "0", "stage": None, "seed": "mine"}
    assert [each.info.status for each in (run, group, experiment)] == ["RUNNING", "FINISHED", "FINISHED"]
    assert group.data.tags["hookline.group_id"] == "sweep-1:low"
    assert experiment.data.tags["hookline.experiment_id"] == "sweep-1"


def test_mlflow_run_with_a_parent_of_its_own_makes_no_others(make_run, uri):
    client = client_of(uri)
    mine = client.create_run(client.create_experiment("sums"), run_name="mine").info.run_id
    deliver(make_run("low-r0"), MlflowSink(uri, tags={PARENT_TAG: mine}))
    assert tree(uri) == [("mine",), ("mine", "low-r0")]


def test_mlflow_start_whose_state_was_lost_finds_its_place_again(make_run, uri):
    run_dir = make_run("low-r0")
    before = deliver(run_dir, MlflowSink(uri))
    (run_dir / "sinks" / "it.json").unlink()
    assert deliver(run_dir, MlflowSink(uri)) == before
    assert len(all_runs(uri)) == 3


def test_mlflow_parent_left_running_by_a_death_is_finished_by_the_next_run(make_run, uri):
    deliver(make_run("low-r0"), MlflowSink(uri))
    client = client_of(uri)
    (root,) = [run for run in all_runs(uri) if run.info.run_name == "sweep"]
    client.update_run(root.info.run_id, status="RUNNING")
    deliver(make_run("low-r1", repeat=1), MlflowSink(uri))
    assert client.get_run(root.info.run_id).info.status == "FINISHED"


def test_mlflow_runs_of_a_group_begun_by_two_processes_at_once_share_their_parents(make_run, uri):
    command = [sys.executable, "-W", "ignore", "-c", BESIDE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    both = [
        subprocess.Popen([*command, str(make_run(f"low-r{repeat}", repeat=repeat)), uri], **pipes)
        for repeat in range(2)
    ]
    assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate(timeout=200)[0].strip() for process in both] == ["ok"] * 2
    assert tree(uri) == [("sweep",), ("sweep", "low"), ("sweep", "low", "low-r0"), ("sweep", "low", "low-r1")]
    client = client_of(uri)
    deleted = client.search_runs([all_runs(uri)[0].info.experiment_id], run_view_type=2)
    assert deleted == []  # the lock left nothing to settle


def test_mlflow_parent_made_elsewhere_at_the_same_time_is_taken_if_it_is_older(make_run, uri, monkeypatch):
    from mlflow.tracking import MlflowClient

    run_dir, create, rivals = make_run("low-r0"), MlflowClient.create_run, []
    key = read_metadata(run_dir).membership.experiment_key

    def create_after_a_rival(self, experiment_id, start_time=None, tags=None, run_name=None):
        if tags[KEY_TAG] == key:
            rivals.append(create(self, experiment_id, 5, tags, "rival").info.run_id)
        return create(self, experiment_id, start_time, tags, run_name)

    monkeypatch.setattr(MlflowClient, "create_run", create_after_a_rival)
    state = deliver(run_dir, MlflowSink(uri))
    assert client_of(uri).get_parent_run(state["parent_run_id"]).info.run_id == rivals[0]
    assert tree(uri) == [("rival",), ("rival", "low"), ("rival", "low", "low-r0")]


def test_lock_of_an_experiment_that_is_held_is_a_fault_after_a_while(tmp_path):
    with (
        exclusive_start(tmp_path, 1.0),
        pytest.raises(TimeoutError, match="another run holds"),
        exclusive_start(tmp_path, 0.05),
    ):
        raise AssertionError("two at once")
    with exclusive_start(tmp_path, 0.05):
        assert files.is_locked(tmp_path / ".mlflow.lock")


def test_lock_of_an_experiment_in_a_directory_that_is_gone_keeps_nobody_out(tmp_path):
    entered = []
    with exclusive_start(tmp_path / "gone", 0.05), exclusive_start(tmp_path / "gone", 0.05):
        entered.append("both")
    assert (entered, (tmp_path / "gone").exists()) == (["both"], False)


@pytest.mark.parametrize("experiment", [None, "sweep", {}, {"name": "sweep"}])
def test_run_without_an_id_of_an_experiment_belongs_to_none(experiment, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"id": "r", "experiment": experiment}))
    facts = read_metadata(tmp_path)
    assert (facts.membership, facts.title) == (None, "r")


def test_groups_of_one_name_in_two_experiments_have_keys_of_their_own(make_run):
    places = [read_metadata(make_run("low-r0", experiment=name)).membership for name in ("sweep-1", "sweep-2")]
    assert len({key for place in places for key in (place.experiment_key, place.group_key)}) == 4


def test_ids_are_known_once_the_sinks_are_open_also_from_another_process(tmp_path):
    sinks = [
        {"trackio": {"directory": str(tmp_path / "one")}},
        {"trackio": {"directory": str(tmp_path / "two"), "name": "copy"}},
        {"jsonl": {}},
    ]
    with hl.run("ids", sinks=sinks, delivery="process", summary=False) as run:
        during = run.recording.sinks.ids()
        run.log(loss=1.0)
    key = read_metadata(run.output_dir).key
    assert during == run.recording.sinks.ids() == {"trackio_run_id": key, "copy_run_id": key}


class Confused(Sink):
    def write(self, entries):
        return "state"

    def ids(self, state):
        raise KeyError(state)


def test_ids_of_a_sink_that_raises_are_left_out_with_a_warning(caplog):
    with hl.run("ids", sinks=[Confused()], summary=False) as run:
        run.log(loss=1.0)
    assert run.recording.sinks.ids() == {}
    assert "Confused failed to return its ids" in caplog.text


def test_ids_of_trackers_are_those_they_use(make_run, uri, wandb_alone):
    run_dir = make_run("low-r0")
    sink = MlflowSink(uri)
    ids = sink.ids(deliver(run_dir, sink))
    run = client_of(uri).get_run(ids["run_id"])
    assert ids["experiment_id"] == run.info.experiment_id
    assert ids["parent_run_id"] == run.data.tags[PARENT_TAG]
    sink = WandbSink(mode="offline")  # type: ignore[assignment]
    assert sink.ids(deliver(run_dir, sink)) == {"run_id": wandb_run(run_dir)[0].run_id}


def test_ids_before_a_run_begins_are_none():
    assert hl.run("not_yet", sinks=["jsonl"], summary=False).recording.sinks.ids() == {}
