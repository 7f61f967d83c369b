"""Searches with Optuna: what trials get, how they are pruned, and that no interruption loses or repeats one."""

import json
import signal
import subprocess
import sys
import threading

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend

import hookline as hl
from hookline._record.run_directory import METADATA
from hookline.experiment.experiment import dry_run
from hookline.experiment.search import JournalLock, open_study

RANGE = {"low": 0.0, "high": 1.0}
STEPS = 4


def descend(ctx, run):
    """Evaluates to the same value at every step: the distance of its setting from the best one."""
    distance = abs(run.config["optimizer"]["lr"] - 0.3)
    for _ in run.steps(STEPS):
        with run.validate() as val:
            val.log(loss=distance)


def base(train=descend, **config):
    return hl.Arm("a", {"optimizer": {"lr": 0.1}, "layers": 1, **config}, train=train)


def search(path, *arms, parameters=None, executor="local", stages=None, repeats=1, **options):
    given = hl.Optuna(parameters or {"optimizer.lr": RANGE}, **{"metric": "val/loss", "trials": 8, **options})
    about = {"output_dir": path / "e", "executor": executor, "stages": stages, "repeats": repeats}
    return hl.Experiment("e", arms or [base()], search=given, **about)


def states(result):
    return [trial.state for trial in result.search.trials]


def test_search_trains_an_arm_for_each_trial_with_the_chosen_settings(tmp_path):
    parameters = {"optimizer.lr": {"low": 1e-3, "high": 1.0, "log": True}, "layers": [1, 2]}
    result = search(tmp_path, parameters=parameters, trials=4, pruner="none").run()
    assert [(arm.name, arm.config["layers"], arm.config["optimizer"]) for arm in result.arms] == [
        (trial.arm, trial.parameters["layers"], {"lr": trial.parameters["optimizer.lr"]})
        for trial in result.search.trials
    ]
    assert (result.status, result.metric, states(result)) == ("completed", "val/loss", ["complete"] * 4)
    best = min(result.search.trials, key=lambda trial: trial.values)
    assert (result.best_trial, result.best_arms(1)) == (best, [best.arm])
    assert result.to_dict()["search"]["trials"][best.number]["parameters"] == best.parameters


def test_search_with_tpe_finds_better_settings_than_its_first_random_ones(tmp_path):
    trials = search(tmp_path, trials=25, pruner="none").run(report=False).search.trials
    assert min(trial.values for trial in trials[10:]) < min(trial.values for trial in trials[:10])


def test_range_of_whole_numbers_with_a_step_and_choices_of_any_object_are_given_as_they_are(tmp_path):
    def note(ctx, run):
        seen.append((run.config["width"], run.config["betas"]))
        return {"score": run.config["width"]}

    seen: list[tuple[int, tuple[float, float]]] = []
    parameters = {"width": {"low": 8, "high": 32, "step": 8}, "betas": [(0.9, 0.99), (0.9, 0.999)]}
    arm = hl.Arm("a", {"width": 8, "betas": (0.9, 0.99)}, train=note)
    result = search(tmp_path, arm, parameters=parameters, metric="score", pruner="none").run(report=False)
    assert {width for width, _ in seen} <= {8, 16, 24, 32}
    assert {type(width) for width, _ in seen} == {int}
    assert [tuple(trial.parameters.values()) for trial in result.search.trials] == seen


def test_trial_that_is_worse_than_the_median_is_stopped_and_recorded_as_pruned(tmp_path):
    result = search(tmp_path, trials=12, sampler="random").run(report=False)
    pruned = [trial for trial in result.search.trials if trial.state == "pruned"]
    assert pruned
    assert all(list(trial.steps) == [1] for trial in pruned)
    run = {run.run_key: run for run in result.runs}[f"{pruned[0].arm}-r0"]
    reason = f"pruned by the search: val/loss was {pruned[0].steps[1]:.6g} after step 1"
    assert (run.status, run.error, run.artifacts.stop_reason, run.artifacts.step) == ("pruned", reason, reason, 1)
    assert (result.status, result.failed) == ("completed", [])
    assert hl.runs(tmp_path)[f"e/{run.run_key}"].status == "stopped"


def test_search_that_is_started_again_runs_only_more_trials(tmp_path):
    first = search(tmp_path, trials=8, sampler="random").run(report=False)
    started = []
    again = search(tmp_path, trials=10, sampler="random").run(
        watch=lambda event, about: started.append((event, about)), report=False
    )
    assert again.search.trials[:8] == first.search.trials
    assert [about.key for event, about in started if event == "started"] == ["a-t8-r0", "a-t9-r0"]
    assert [run.status for run in again.runs[:8]] == [run.status for run in first.runs]


def test_processes_share_the_study_and_prune(tmp_path):
    result = search(tmp_path, trials=9, sampler="random", executor={"local": {"processes": 2}}).run(report=False)
    assert [trial.number for trial in result.search.trials] == list(range(9))
    assert set(states(result)) == {"complete", "pruned"}
    assert sorted(path.name for path in (tmp_path / "e").glob("a-t*")) == sorted(run.run_key for run in result.runs)


def test_trainer_is_pruned_by_its_validation(tmp_path):
    import torch

    torch.set_num_threads(1)
    x = torch.linspace(-1, 1, 8).unsqueeze(1)
    config = hl.TrainerConfig(max_steps=4, batch_size=8, validate_every_steps=1, summary=False)
    data = torch.utils.data.TensorDataset(x, 2 * x)
    parts = {"train_data": data, "val_data": data, "loss": torch.nn.functional.mse_loss}
    model = torch.nn.Linear(1, 1)
    torch.nn.init.zeros_(model.weight)
    arm = hl.Arm("a", config, model=model, **parts)
    pruner = optuna.pruners.ThresholdPruner(upper=1.0, n_warmup_steps=3)
    sampler = optuna.samplers.GridSampler({"learning_rate": [1e-3, 0.5]}, seed=0)
    parameters = {"learning_rate": {"low": 1e-3, "high": 0.5}}
    result = search(tmp_path, arm, parameters=parameters, pruner=pruner, sampler=sampler).run(report=False)
    found = {trial.parameters["learning_rate"]: (trial.state, max(trial.steps)) for trial in result.search.trials}
    assert found == {1e-3: ("pruned", 3), 0.5: ("complete", 4)}
    assert str(result.search).startswith("2 trials (")


def test_trial_counts_the_mean_of_its_repeats_and_its_last_stage(tmp_path):
    def repeat(ctx, run):
        run.save_checkpoint()
        return {"score": run.config["seed"] + run.config["bonus"]}

    arm = hl.Arm("a", {"bonus": 0, "lr": 0.0}, train=repeat)
    stages = [hl.Stage("one"), hl.Stage("two", bonus=10)]
    about = {"repeats": 3, "stages": stages, "metric": "score", "trials": 1, "pruner": "none"}
    result = search(tmp_path, arm, parameters={"lr": RANGE}, **about).run(report=False)
    assert result.search.trials[0].values == (11.0,)


def test_search_for_two_metrics_has_the_trials_that_none_surpasses(tmp_path):
    def trade(ctx, run):
        return {"loss": run.config["x"] + run.config["waste"], "accuracy": run.config["x"]}

    arm, parameters = hl.Arm("a", {"x": 0.0, "waste": 0}, train=trade), {"x": RANGE, "waste": [0, 1]}
    options = {"parameters": parameters, "trials": 12, "sampler": "random", "pruner": "none"}
    given = hl.Optuna(metric=["loss", "accuracy"], **options)
    result = hl.Experiment("e", [arm], search=given, output_dir=tmp_path / "e").run(report=False)
    assert result.search.modes == ("min", "max")
    surpassed = [trial for trial in result.search.trials if trial not in result.search.best_trials]
    assert [trial.parameters["waste"] for trial in result.search.best_trials] == [0] * len(result.search.best_trials)
    assert {trial.parameters["waste"] for trial in surpassed} == {1}
    with pytest.raises(hl.OptionError, match="optimizes loss, accuracy.*Read best_trials"):
        _ = result.best_trial


def test_trial_that_fails_or_has_no_finite_metric_is_failed_and_not_repeated(tmp_path, caplog):
    def train(ctx, run):
        if run.config["x"] == "crash":
            raise RuntimeError("no")
        return {"score": {"nan": float("nan"), "good": 1.0}[run.config["x"]]}

    about = {"parameters": {"x": ["crash", "nan", "good"]}, "sampler": "random", "metric": "score", "pruner": "none"}
    first = search(tmp_path, hl.Arm("a", {"x": "good"}, train=train), **about).run(report=False)
    wanted = {"crash": "failed", "nan": "failed", "good": "complete"}
    assert states(first) == [wanted[trial.parameters["x"]] for trial in first.search.trials]
    assert set(states(first)) == {"failed", "complete"}
    assert first.status == "failed"
    assert "has no finite 'score' and failed" in caplog.text
    again = search(tmp_path, hl.Arm("a", {"x": "good"}, train=train), **about).run(report=False)
    assert again.search == first.search


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"parameters": {"optimizer.lrr": RANGE}}, "the arm 'a' has no setting 'optimizer.lrr'. Did you mean 'lr'"),
        ({"parameters": {"lr": RANGE}}, "the arm 'a' has no setting 'lr'. Known: layers, optimizer"),
        ({"parameters": {"optimizer.lr": {"low": 1.0, "high": 0.1}}}, "'low' has to be below 'high'"),
        ({"parameters": {"optimizer.lr": {"low": 0.0, "high": 1.0, "log": True}}}, "'optimizer.lr'.*low"),
        ({"parameters": {"optimizer.lr": {"low": 0.1, "hihg": 1.0}}}, "a range has no 'hihg'. Did you mean 'high'\\?$"),
        ({"parameters": {"optimizer.lr": 0.1}}, "give {'low': ..., 'high': ...}, a list of values"),
        ({"parameters": {"layers": []}}, "a list of values"),
        ({"metric": None}, "give the metric to optimize"),
        ({"metric": ["a", "b"], "mode": ["min"]}, "give one mode for each metric"),
        ({"mode": "smaller"}, "mode='smaller': give 'min' or 'max'"),
        ({"sampler": "tep"}, "sampler='tep': there is no such sampler. Did you mean 'tpe'"),
        ({"pruner": "medain"}, "pruner='medain': there is no such pruner. Did you mean 'median'"),
        ({"trials": 0}, "trials=0: give a whole number of at least 1"),
        ({"repeats": 2}, "trials with repeats are not pruned. Give pruner='none'"),
    ],
)
def test_search_with_a_wrong_option_is_refused_before_anything_runs(tmp_path, options, problem):
    with pytest.raises(hl.OptionError, match=problem):
        search(tmp_path, **options)
    assert not (tmp_path / "e").exists()


def test_search_of_several_arms_is_refused(tmp_path):
    with pytest.raises(hl.OptionError, match="2 arms were given. Give one arm"):
        search(tmp_path, base(), hl.Arm("b", train=descend))


def test_search_with_other_parameters_in_the_same_directory_is_refused(tmp_path):
    search(tmp_path, trials=1).run(report=False)
    with pytest.raises(hl.ConfigError, match=r"search.parameters.optimizer.lr was 'FloatDistribution\(high=1.0"):
        search(tmp_path, parameters={"optimizer.lr": {"low": 0.0, "high": 2.0}}).run(report=False)


def test_search_without_optuna_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(hl.MissingExtraError, match=r"pip install 'hookline\[search\]'"):
        hl.Optuna({"lr": RANGE}, trials=1)


def test_sampler_pruner_and_distribution_of_optuna_are_used_as_given(tmp_path):
    grid = optuna.samplers.GridSampler({"optimizer.lr": [0.1, 0.3, 0.9]}, seed=0)
    threshold = optuna.pruners.ThresholdPruner(upper=0.5)
    distribution = optuna.distributions.FloatDistribution(0.0, 1.0)
    parameters = {"optimizer.lr": distribution}
    result = search(tmp_path, parameters=parameters, sampler=grid, pruner=threshold, trials=5).run(report=False)
    found = {trial.parameters["optimizer.lr"]: trial.state for trial in result.search.trials}
    assert found == {0.1: "complete", 0.3: "complete", 0.9: "pruned"}


@pytest.mark.parametrize(
    ("sampler", "pruner"),
    [
        ("tpe", "median"),
        ("random", "successive_halving"),
        ("tpe", "hyperband"),
        ("random", "hyperband"),
        ("random", "none"),
        ("tpe", None),
    ],
)
def test_named_sampler_and_pruner_make_a_search(tmp_path, sampler, pruner):
    result = search(tmp_path, sampler=sampler, pruner=pruner, trials=8).run(report=False)
    assert {"complete"} <= set(states(result)) <= {"complete", "pruned"}
    assert len(result.search.trials) == 8


def test_half_a_line_of_the_study_is_removed_when_the_search_resumes(tmp_path):
    first = search(tmp_path, trials=2).run(report=False)
    with (tmp_path / "e" / "search.jsonl").open("a") as file:
        file.write('{"op_code": 4, "wor')
    again = search(tmp_path, trials=3).run(report=False)
    assert again.search.trials[:2] == first.search.trials
    assert states(again) == ["complete"] * 3


def test_study_that_is_a_link_is_not_read_and_what_it_links_to_stays(tmp_path):
    (tmp_path / "e").mkdir()
    (tmp_path / "other.txt").write_text("a line\nwithout an end")
    (tmp_path / "e" / "search.jsonl").symlink_to(tmp_path / "other.txt")
    with pytest.raises(hl.ConfigError, match=r"search\.jsonl cannot be read"):
        search(tmp_path, trials=1).run(report=False)
    assert (tmp_path / "other.txt").read_text() == "a line\nwithout an end"


def test_lock_of_the_study_excludes_threads_and_ends_with_its_process(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from hookline.experiment.search import JournalLock; "
        "JournalLock(Path(sys.argv[1])).acquire(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "search.jsonl"
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    held, waiting, order = JournalLock(path), JournalLock(path), []
    held.acquire()

    def wait():
        waiting.acquire()
        order.append("waited")
        waiting.release()

    thread = threading.Thread(target=wait)
    thread.start()
    order.append("held")
    held.release()
    thread.join(30)
    assert order == ["held", "waited"]


def test_trial_that_a_process_began_without_drawing_its_settings_is_run(tmp_path):
    search(tmp_path, trials=1).run(report=False)
    path = str(tmp_path / "e" / "search.jsonl")
    storage = optuna.storages.JournalStorage(JournalFileBackend(path))
    optuna.load_study(study_name="search", storage=storage).ask()
    result = search(tmp_path, trials=2).run(report=False)
    assert states(result) == ["complete"] * 2
    assert list(result.search.trials[1].parameters) == ["optimizer.lr"]


def test_settings_that_were_enqueued_with_optuna_are_tried_next(tmp_path):
    search(tmp_path, trials=1).run(report=False)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(tmp_path / "e" / "search.jsonl")))
    optuna.load_study(study_name="search", storage=storage).enqueue_trial({"optimizer.lr": 0.3})
    assert len(search(tmp_path, trials=1).run(report=False).search.trials) == 1
    result = search(tmp_path, trials=3).run(report=False)
    assert (result.search.trials[1].parameters, states(result)) == ({"optimizer.lr": 0.3}, ["complete"] * 3)


def test_search_is_read_from_a_file(tmp_path, monkeypatch):
    (tmp_path / "searched.py").write_text("def train(ctx, run):\n    return {'score': run.config['x']}\n")
    file = tmp_path / "e.yaml"
    file.write_text(
        "base: {function: 'searched:train', config: {x: 0}}\nmetric: score\nmode: max\noutput_dir: runs/e\n"
        "search: {parameters: {x: {low: 1, high: 9}}, trials: 3}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = hl.Experiment.from_file(file, ["search.trials=2"]).run(report=False)
    assert [trial.arm for trial in result.search.trials] == ["base-t0", "base-t1"]
    assert result.best_trial.values == (max(trial.parameters["x"] for trial in result.search.trials),)
    with pytest.raises(hl.ConfigError, match="search: .*it has no 'trails'. Did you mean 'trials'"):
        hl.Experiment.from_file(file, ["search.trails=2"])


SCRIPT = """
import os, signal, sys
from pathlib import Path
import hookline as hl

directory, executor, trials, when, victim = sys.argv[1], eval(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
marker = Path(directory).parent / "killed"

def kill():
    if not marker.exists():
        marker.touch()
        os.kill(os.getppid() if when == "parent" else os.getpid(), signal.SIGKILL)

def train(ctx, run):
    state = {"steps": 0}
    run.checkpoint_with(
        lambda folder: (folder / "steps").write_text(str(state["steps"])),
        lambda folder: state.update(steps=int((folder / "steps").read_text())),
    )
    for step in run.steps(4):
        state["steps"] += 1
        with run.validate() as val:
            val.log(loss=abs(run.config["lr"] - 0.3) + 1 / state["steps"])
        run.save_checkpoint()
        if ctx.run_key == victim and step == 1 and when in ("training", "parent"):
            kill()

def watch(event, about):
    if event == "ended" and about.run_key == victim and when == "ended":
        kill()

if __name__ == "__main__":
    search = hl.Optuna({"lr": {"low": 0.0, "high": 1.0}}, metric="val/loss", trials=trials)
    arms = [hl.Arm("a", {"lr": 0.1}, train=train)]
    hl.Experiment("e", arms, search=search, output_dir=directory, executor=executor).run(watch=watch, report=False)
"""


def start(tmp_path, executor, when="never", victim="", trials=8):
    script = tmp_path / "searching.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "e" / "e"), repr(executor), str(trials), when, victim]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def study(directory):
    path = str(directory / "e" / "search.jsonl")
    storage = optuna.storages.JournalStorage(JournalFileBackend(path))
    trials = optuna.load_study(study_name="search", storage=storage).trials
    return [(trial.params, trial.state.name, trial.values, trial.intermediate_values) for trial in trials]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed")
    assert start(path, "local").returncode == 0
    found = study(path / "e")
    assert {state for _, state, _, _ in found} == {"COMPLETE", "PRUNED"}
    return found


@pytest.mark.parametrize("when", ["training", "ended"])
def test_search_that_is_killed_continues_as_if_it_was_not(tmp_path, undisturbed, when):
    victim = [f"a-t{number}-r0" for number, trial in enumerate(undisturbed) if trial[1] == "COMPLETE"][-1]
    (tmp_path / "e").mkdir()
    assert start(tmp_path, "local", when, victim).returncode == -signal.SIGKILL
    assert any(state == "RUNNING" for _, state, _, _ in study(tmp_path / "e"))
    done = start(tmp_path, "local", when, victim)
    assert (done.returncode, done.stderr) == (0, "")
    assert study(tmp_path / "e") == undisturbed


def test_search_on_processes_that_is_killed_loses_and_repeats_no_trial(tmp_path):
    (tmp_path / "e").mkdir()
    processes = {"local": {"processes": 2}}
    assert start(tmp_path, processes, "parent", "a-t2-r0", trials=4).returncode == -signal.SIGKILL
    before = study(tmp_path / "e")
    assert start(tmp_path, processes, "parent", "a-t2-r0", trials=4).returncode == 0
    after = study(tmp_path / "e")
    assert len(after) == 4
    assert {state for _, state, _, _ in after} <= {"COMPLETE", "PRUNED"}
    assert [trial[0] for trial in after[: len(before)]] == [trial[0] for trial in before]
    finished = [number for number, trial in enumerate(before) if trial[1] != "RUNNING"]
    assert [after[number] for number in finished] == [before[number] for number in finished]
    attempts = [
        json.loads((tmp_path / "e" / "e" / f"a-t{number}-r0" / "result.json").read_text())["attempts"]
        for number in finished
    ]
    assert attempts == [1] * len(finished)


def test_dry_run_of_a_search_shows_one_trial_and_writes_nothing(tmp_path):
    planned = dry_run(search(tmp_path, trials=8))
    assert ([run.run for run in planned.runs], planned.search) == (["a-r0"], "8 trials that choose optimizer.lr")
    assert not (tmp_path / "e").exists()


def test_run_records_its_trial_for_the_page_and_the_listing(tmp_path):
    search(tmp_path, trials=2, pruner="none").run(report=False)
    assert sorted(str(info.arm) for info in hl.runs(tmp_path)) == ["a-t0", "a-t1"]
    facts = json.loads((tmp_path / "e" / "a-t1-r0" / METADATA).read_text())["experiment"]
    assert (facts["trial"], list(facts["parameters"])) == (1, ["optimizer.lr"])


def test_pickles_that_others_wrote_into_a_journal_are_not_returned(tmp_path):
    def opened():
        return open_study(tmp_path / "search.jsonl", "s", wanted_by="A test", directions=["minimize"])

    def attributes(study):
        return [trial.system_attrs for trial in study.get_trials()]

    own = opened()
    trial = own.ask()
    for key in ("cma:optimizer:0", "sepcma:ipop:restart_1:optimizer:0", "cma:generation"):
        own._storage.set_trial_system_attr(trial._trial_id, key, "80")
    other = opened()
    other.add_trial(optuna.trial.create_trial(value=1.0, system_attrs={"cma:optimizer:0": "81"}))
    ignored = {"ignored:cma:optimizer:0": None}
    assert attributes(own) == [
        {"cma:optimizer:0": "80", "sepcma:ipop:restart_1:optimizer:0": "80", "cma:generation": "80"},
        ignored,
    ]
    first = {**ignored, "ignored:sepcma:ipop:restart_1:optimizer:0": None, "cma:generation": "80"}
    assert attributes(opened()) == [first, ignored]


def test_line_of_a_journal_that_is_no_entry_is_an_error_with_the_file(tmp_path):
    search(tmp_path, trials=1, pruner="none").run(report=False)
    with (tmp_path / "e" / "search.jsonl").open("a") as file:
        file.write("[]\n")
    with pytest.raises(hl.ConfigError, match=r"search\.jsonl cannot be read: '\[\]' is not an entry"):
        search(tmp_path, trials=2, pruner="none").run(report=False)
