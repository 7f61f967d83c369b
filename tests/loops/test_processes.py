"""Trainings of two real processes, connected over gloo on loopback.

What the processes do stands in `process_scripts`; each start is made once and serves several tests.
"""

import fcntl
import json
import os
from collections import Counter
from pathlib import Path

import pytest
from fork_server import GLOO
from loopback_server import free_port

import hookline as hl
from hookline._record.reader import MAIN, Reader, journal_directory, last_status
from hookline._record.records import Event, Metrics
from hookline.loops import checkpoint

SCRIPTS = Path(__file__).parent / "process_scripts"
TIMEOUT_SECONDS = 120
SHARDING = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP",
    "FSDP_MIN_NUM_PARAMS": "1",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
}
SCENARIOS = {
    "alone": ["weights_after", "weights_by_tokens", "data", "reductions", "saved"],
    "together": [
        *("means", "record", "weights_after", "data", "reductions", "stops", "requests", "resumed", "hooks", "saved"),
        *("continued", "weights_by_tokens"),
    ],
    "sharded": ["sharded", "continued"],
    "alone_again": ["continued"],
}


@pytest.fixture(scope="module")
def run_scenarios(torch_programs):
    """Runs scenarios in processes, which must succeed."""

    def run(directory, count, scenarios, **environment):
        directory.mkdir()
        arguments = [SCRIPTS / "together.py", "{rank}", str(count), directory, *scenarios]
        torch_programs.run_ranks(count, *arguments, env=environment, timeout=TIMEOUT_SECONDS)

    return run


def found(directory, scenario):
    """What a scenario returned on each rank."""
    return [json.loads(path.read_text()) for path in sorted(directory.glob(f"{scenario}-[0-9].json"))]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A directory that the workers of a test session share."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "processes"
    shared.mkdir(exist_ok=True)
    return shared


@pytest.fixture(scope="module")
def runs(root, run_scenarios):
    """What the orderly starts found, by the name of the start and the scenario: a list with one entry a rank."""
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "alone_again").exists():
            run_scenarios(root / "alone", 1, SCENARIOS["alone"])
            run_scenarios(root / "together", 2, SCENARIOS["together"])
            run_scenarios(root / "sharded", 2, SCENARIOS["sharded"], **SHARDING)
            run_scenarios(root / "alone_again", 1, SCENARIOS["alone_again"])
    return {name: {each: found(root / name, each) for each in scenarios} for name, scenarios in SCENARIOS.items()}


@pytest.fixture(scope="module")
def together(runs):
    return runs["together"]


@pytest.fixture(scope="module")
def recorded(together):
    """The records of one training by the name of their writer."""
    (directory,) = {rank["directory"] for rank in together["record"]}
    by_writer = {}
    for entry in Reader(journal_directory(directory)).new():
        by_writer.setdefault(entry.file.name, []).append(entry.record)
    return by_writer


def test_processes_that_are_connected_know_each_other_and_end_together(together):
    facts = [(rank["rank"], rank["world_size"], rank["step"], rank["state"]) for rank in together["record"]]
    assert facts == [(0, 2, 8, "completed"), (1, 2, 8, "completed")]


def test_record_of_two_processes_is_one_directory_with_a_journal_of_each(together, recorded):
    directories = list(Path(together["record"][0]["directory"]).parent.iterdir())
    assert [str(directory) for directory in directories] == [rank["directory"] for rank in together["record"][:1]]
    assert sorted(recorded) == [MAIN, "rank1"]


def test_record_of_rank_zero_has_each_row_of_a_training_once(recorded):
    rows = [(row.step, row.axis, *row.values) for row in recorded[MAIN] if isinstance(row, Metrics)]
    steps = [(step, "train", "loss", "learning_rate") for step in range(1, 9)]
    assert rows == [*steps[:4], (4, "eval", "val/loss"), *steps[4:], (8, "eval", "val/loss")]


def test_record_of_rank_one_has_no_copies_of_what_rank_zero_records(recorded):
    rows = [(row.step, row.axis, *row.values) for row in recorded["rank1"] if isinstance(row, Metrics)]
    events = [record.name for record in recorded["rank1"] if isinstance(record, Event)]
    assert rows == []
    assert (events, [record.name for record in recorded[MAIN] if isinstance(record, Event)]) == (
        ["environment", "hooks_cost"],
        ["hooks_plan", "eval", "eval", "checkpoint", "hooks_cost"],
    )


def test_callbacks_and_logger_functions_run_on_the_ranks_they_are_for(together):
    zero, one = together["record"]
    steps = list(range(1, 9))
    assert (zero["everywhere"], one["everywhere"]) == (steps, steps)
    assert (zero["on_zero"], one["on_zero"]) == (steps, [])
    assert [step for step, _ in zero["logged"]] == [1, 2, 3, 4, 4, 5, 6, 7, 8, 8]
    assert one["logged"] == []


@pytest.mark.parametrize("accumulation", ["plain", "accumulated", "unequal"])
def test_weights_of_two_processes_are_those_of_one_with_twice_the_batch(runs, accumulation):
    zero, one = (rank[accumulation] for rank in runs["together"]["weights_after"])
    (alone,) = runs["alone"]["weights_after"]
    assert zero == one
    assert zero == pytest.approx(alone[accumulation], abs=1e-6)


def test_weights_of_two_processes_are_by_token_those_of_one_with_the_same_batches(runs):
    zero, one = runs["together"]["weights_by_tokens"]
    (alone,) = runs["alone"]["weights_by_tokens"]
    assert (zero["step"], one["step"], alone["step"]) == (8, 8, 8)
    assert zero["weights"] == one["weights"]
    assert zero["weights"] == pytest.approx(alone["weights"], abs=1e-6)


def test_test_and_predictions_of_two_processes_are_those_of_all_data(together):
    zero, one = together["data"]
    assert (zero["world_size"], one["world_size"]) == (2, 2)
    tested = {"test/all/loss": 4.0, "test/all/samples": 9, "test/few/loss": 1.0, "test/few/samples": 3}
    assert zero["tested"] == one["tested"] == tested
    assert (zero["predicted"], one["predicted"]) == ([2, 1], [2])
    records = [entry.record for entry in Reader(journal_directory(zero["directory"])).new()]
    rows = [record.values for record in records if isinstance(record, Metrics) and record.axis == "eval"]
    assert {name: value for row in rows[-2:] for name, value in row.items()} == tested


def test_training_data_is_shared_out_without_overlap_in_an_order_of_each_epoch(together):
    zero, one = (rank["seen"] for rank in together["data"])
    epochs = [[value for batch in mine + theirs for value in batch] for mine, theirs in zip(zero, one, strict=True)]
    assert [len(batches) for batches in zero + one] == [3] * 4  # of seven batches, the last makes no full round
    assert [len(set(values)) for values in epochs] == [12, 12]
    assert epochs[0] != epochs[1]
    assert [rank["num_steps"] for rank in together["data"]] == [6, 6]


def test_validation_of_two_processes_is_the_mean_over_every_sample_on_both(runs):
    zero, one = runs["together"]["data"]
    (alone,) = runs["alone"]["data"]
    assert (zero["validated"], one["validated"]) == ([[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [8]])
    assert zero["validation"] == one["validation"] == alone["validation"] == {"val/loss": 4.0, "val/samples": 9}


def test_log_with_reduce_synchronizes_at_the_end_of_the_step_if_any_process_logged(together):
    always = {"mean": 0.5, "sum": 3, "sums/deep": 4.0}
    reduced = [[1, always], [2, always | {"low": 4}], [3, always | {"only_there": 7.0}]]
    for rank in together["reductions"]:
        assert [row for row in rank["rows"] if row[1]] == reduced


def test_log_with_reduce_alone_is_a_plain_log(runs):
    (alone,) = runs["alone"]["reductions"]
    always = {"mean": 0.0, "sum": 1, "sums/deep": 2.0}
    assert alone["rows"] == [[1, always], [2, always | {"low": 5}], [3, always]]


def rows_of(rank, *, axis="train"):
    """The records of a run of several processes, by step."""
    recorded = [row for row in hl.read(rank["directory"]) if isinstance(row, Metrics) and row.axis == axis]
    return [(row.step, row.values) for row in recorded]


def test_log_of_two_processes_records_the_means_once_under_one_name(together):
    zero, one = together["means"]
    assert (zero["world_size"], one["world_size"]) == (2, 2)
    always = {"loss": 2.0, "tokens": 128, "share": 0.1, "word": "of rank 0", "device": 2.0, "is_good": True}
    rows = rows_of(zero)
    steps = [(step, values) for step, values in rows if "word" in values]
    assert steps == [(1, always), (2, always | {"only_there": 7.0}), (3, always)]
    assert [values for _, values in rows if "loose" in values] == [{"loose": 0.5}]
    assert [(step, values["late"]) for step, values in rows if "late" in values] == [(s, 15.0) for s in range(1, 6)]


def test_log_of_two_processes_gives_both_the_mean_when_a_step_ends(together):
    zero, one = together["means"]
    assert zero["given"] == one["given"] == [2.0] * 4 + [None]
    assert [names for names in one["received"] if "only_there" in names] == [
        names for names in zero["received"] if "only_there" in names
    ]


def test_log_with_reduce_none_records_the_value_of_each_process(together):
    rows = rows_of(together["means"][0])
    own = [(step, values) for step, values in rows if "own" in values or "rank1/own" in values]
    assert [values["rank1/received"] for _, values in rows if "rank1/received" in values] == list(range(1, 11))
    names = ({"own": 0}, {"rank1/own": 1})
    assert sorted(own, key=str) == sorted([(step, name) for step in (1, 2, 3) for name in names], key=str)


def test_validation_of_both_or_of_rank_zero_alone_is_recorded_once_and_warns_on_no_rank(together):
    zero, one = together["means"]
    assert rows_of(zero, axis="eval") == [(2, {"val/loss": 5.0}), (4, {"test/loss": 0.5})]
    assert (zero["warnings"], one["warnings"]) == ([], [])


def test_log_with_an_unknown_reduction_is_an_error_on_one_process_and_on_two(runs):
    errors = {rank["refused"] for name in ("alone", "together") for rank in runs[name]["reductions"]}
    message = "give 'mean', 'sum', 'min', 'max', 'none', or leave it out."
    assert errors == {f"OptionError: log(reduce='median'): {message}"}


@pytest.mark.parametrize(
    ("asked", "step", "reason"),
    [("asked", 3, "enough"), ("early", 1, "early stopping: loss reached"), ("signal", 3, "SIGTERM")],
)
def test_stop_asked_for_on_rank_one_stops_both_at_the_same_step(together, asked, step, reason):
    zero, one = (rank[asked] for rank in together["stops"])
    assert [(rank["world_size"], rank["step"], rank["state"]) for rank in (zero, one)] == [(2, step, "stopped")] * 2
    assert one["reason"].startswith(reason)
    assert zero["reason"] == f"{one['reason']} (requested by rank 1)"


def test_signal_to_one_rank_saves_one_whole_checkpoint_of_both(together):
    zero, one = (rank["signal"]["checkpoints"] for rank in together["stops"])
    assert zero == one
    ((step, kind, path),) = zero
    assert (step, kind, checkpoint.damage_of(Path(path))) == (3, "stop", None)
    assert [each.name for each in Path(path).parent.iterdir()] == ["step-00000003"]
    assert sorted(each.name for each in Path(path).glob("random-*")) == ["random-rank0.pt", "random-rank1.pt"]


def test_checkpoint_and_validation_asked_for_on_rank_one_are_made_by_both(together):
    zero, one = together["requests"]
    assert (zero["saved"], zero["validated"]) == (one["saved"], one["validated"]) == ([2], [0, 3])


def test_checkpoint_of_a_bare_run_asked_for_on_rank_one_is_written_by_rank_zero(together):
    zero, one = together["requests"]
    assert zero["bare"] == one["bare"] == [2]
    assert (len(zero["written"]), len(one["written"])) == (1, 0)


def test_resume_in_the_middle_of_an_epoch_repeats_the_losses_of_both_ranks_exactly(together):
    for rank in together["resumed"]:
        assert rank["steps"] == [6, 6]
        assert rank["halved"] == rank["straight"]
        assert rank["weights"][0] == rank["weights"][1]
    zero, one = together["resumed"]
    assert zero["straight"] != one["straight"]  # each has samples and a dropout of its own


def test_resume_continues_with_the_record_of_both_processes(together):
    zero, one = together["resumed"]
    assert zero["same"]
    assert one["same"]
    steps = Counter(zero["history"])
    assert sorted(steps) == list(range(1, 13))
    assert len(set(steps.values())) == 1


@pytest.mark.parametrize(
    ("saved_by", "resumed_by"),
    [
        *(("together", "alone_again"), ("alone", "together")),
        *(("sharded", "alone_again"), ("alone", "sharded"), ("together", "sharded")),
    ],
)
def test_checkpoint_is_resumed_by_another_number_of_processes_and_sharded_or_not(runs, saved_by, resumed_by):
    saved = [runs["sharded"]["sharded"][0]["saved"]] if saved_by == "sharded" else runs[saved_by]["saved"]
    for rank in (each[saved_by] for each in runs[resumed_by]["continued"]):
        assert rank["state"] == "completed"
        assert (rank["weights"], rank["moments"]) == (saved[0]["weights"], saved[0]["moments"])
        changed = saved[0]["world_size"] != rank["world_size"]
        message = f"saved with world_size={saved[0]['world_size']}, now it is {rank['world_size']}"
        assert [message in text for text in rank["said"]] == [True] * changed


TABLE = {
    "pre_training_hook": {"total_epochs": 1, "total_steps": 1, "start_epoch": 0, "start_step": 0},
    "pre_training_step_hook": {"current_epoch": 0, "current_step": 0, "total_steps": 1},
    "post_training_step_hook": {"current_epoch": 0, "current_step": 1, "total_steps": 1, "learning_rate": 0.1},
    "post_training_hook": {"final_epoch": 0, "final_step": 1, "total_steps": 1},
    "pre_validation_hook": {"current_epoch": 0, "is_last_step": True},
    "pre_per_step_validation_hook": {"current_epoch": 0, "batch_index": 0},
    "post_per_step_validation_hook": {"current_epoch": 0, "batch_index": 0},
    "post_validation_hook": {"current_epoch": 0},
}
MEASURED = {
    "post_training_step_hook": "loss",
    "post_training_hook": "final_val_loss",
    "post_per_step_validation_hook": "val_score",
    "post_validation_hook": "val_avg_loss",
}


@pytest.mark.parametrize("name", TABLE)
def test_hook_functions_are_given_the_keys_and_values_of_their_table_on_every_rank(together, name):
    for rank in together["hooks"]:
        report, is_trainer = next((report, right) for called, report, right in rank["calls"] if called == name)
        measured = {key: value for key, value in report.items() if key == MEASURED.get(name)}
        assert (report, is_trainer) == (TABLE[name] | measured, True)
        assert [type(value) for value in measured.values()] == [float] * (name in MEASURED)


def test_hook_functions_after_a_validation_have_its_loss_over_all_samples(together):
    reports = [{name: report for name, report, _ in rank["calls"]} for rank in together["hooks"]]
    losses = {report["post_validation_hook"]["val_avg_loss"] for report in reports}
    assert losses == {report["post_training_hook"]["final_val_loss"] for report in reports}
    assert len(losses) == 1


def test_sharded_model_is_saved_and_resumed_exactly(runs):
    for rank in runs["sharded"]["sharded"]:
        assert (rank["world_size"], rank["steps"], set(rank["parts"])) == (2, [6, 6], {"DTensor"})
        assert rank["halved"] == rank["straight"]
        assert rank["weights"][0] == rank["weights"][1]


def test_sharded_model_learns_what_a_whole_one_does(runs):
    for sharded, whole in zip(runs["sharded"]["sharded"], runs["together"]["resumed"], strict=True):
        assert sharded["straight"] == pytest.approx(whole["straight"], abs=1e-5)


def test_sharding_asked_for_on_cpus_says_that_nothing_is_sharded(runs):
    said = ["Accelerate shards no model on CPUs: each process holds and trains all of it."]
    assert [rank["said"] for rank in runs["sharded"]["sharded"]] == [said, said]


def test_processes_of_a_launcher_are_connected_by_the_trainer_and_train_in_half_precision(run_scenarios, tmp_path):
    launched = {"RANK": "{rank}", "LOCAL_RANK": "{rank}", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    run_scenarios(tmp_path / "half", 2, ["half"], MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), **launched)
    zero, one = found(tmp_path / "half", "half")
    assert [(rank["rank"], rank["world_size"], rank["step"]) for rank in (zero, one)] == [(0, 2, 4), (1, 2, 4)]
    assert set(zero["kinds"] + one["kinds"]) == {"torch.bfloat16"}
    assert zero["weights"] == one["weights"]
    assert zero["refused"].startswith("OptionError: Accelerate computes in one precision")


FAILURES = {
    "fails_in_a_step": "ValueError: a bad batch",
    "fails_and_stays": "ValueError: a bad batch",
    "fails_in_a_bare_run": "ValueError: a bad batch",
    "fails_in_validation": "ValueError: a bad sample",
    "fails_to_save": "No space left on device",
}
FAILURES_OF_A_START = {"first": ["fails_in_a_step"], "second": ["fails_and_stays"], "third": ["fails_in_turn"]}


def fail(programs, directory, scenarios):
    """Start two processes of which one fails."""
    directory.mkdir()
    script = SCRIPTS / "together.py"
    return [programs.start(script, str(rank), "2", directory, *scenarios, env=GLOO) for rank in (0, 1)]


def ended(programs):
    """The exit code and the output of each, once all have ended; none is left behind."""
    try:
        outputs = [program.communicate(TIMEOUT_SECONDS)[0] for program in programs]
        return [(program.returncode, output) for program, output in zip(programs, outputs, strict=True)]
    finally:
        for program in programs:
            program.close()


@pytest.fixture(scope="module")
def failed(root, torch_programs):
    """The exit codes and outputs of processes that fail, by the name of the start; all are made at once."""
    with (root / "lock-of-failures").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = root / "failed.json"
        if not kept.exists():
            started = {name: fail(torch_programs, root / name, given) for name, given in FAILURES_OF_A_START.items()}
            kept.write_text(json.dumps({name: ended(programs) for name, programs in started.items()}))
        return json.loads(kept.read_text())


def failed_run(root, scenario):
    """The directory of the one run that a scenario made."""
    (directory,) = root.glob(f"*/{scenario}/default/*")
    return directory


@pytest.mark.parametrize("start", FAILURES_OF_A_START)
def test_failure_of_one_rank_ends_both_processes(failed, start):
    assert [code for code, _ in failed[start]] == [1, 1], failed[start]


@pytest.mark.parametrize("scenario", FAILURES)
def test_failure_of_one_rank_is_what_the_record_of_rank_zero_says(root, failed, scenario):
    status = last_status(failed_run(root, scenario))
    assert (status.status, FAILURES[scenario] in status.message) == ("failed", True)
    assert status.message.startswith("CheckpointError: " if scenario == "fails_to_save" else "rank 1: ")
    assert last_status(failed_run(root, scenario), "rank1").status == "failed"


def test_failure_while_saving_leaves_the_checkpoints_before_it_whole(root, failed):
    directory = failed_run(root, "fails_to_save")
    saved = checkpoint.last(directory)
    assert (saved.name, checkpoint.damage_of(saved)) == ("step-00000002", None)
    assert not (directory / "checkpoints" / "step-00000003").exists()


def test_main_under_torchrun_trains_on_both_ranks_and_records_once(torch_programs, tmp_path):
    config = {
        "model": {"tiny": {"hidden_size": 16, "layers": 1, "heads": 2}},
        "data": {"train": [{"prompt": "1+1=", "completion": str(n)} for n in range(8)]},
        "train": {"epochs": 1, "batch_size": 2, "output_dir": "runs", "summary": False, "callbacks": ["timer"]},
    }
    (tmp_path / "tune.json").write_text(json.dumps(config))
    launch = ["-c", "from torch.distributed.run import main; main()", "--nproc_per_node", "2"]
    launch += ["--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--local-addr", "127.0.0.1"]
    program = torch_programs.start(*launch, SCRIPTS / "tune.py", "--config", "tune.json", "train.seed=1", env=GLOO)
    output, _ = program.communicate(TIMEOUT_SECONDS)
    assert program.returncode == 0, output
    zero, one = found(tmp_path, "tune")
    assert (zero["world_size"], one["world_size"]) == ("2", "2")
    assert zero["directory"] == one["directory"] == str(next((tmp_path / "runs" / "default").iterdir()))
    assert (zero["step"], one["step"]) == (2, 2)
    assert [step for step, _ in zero["logged"]] == [1, 2]
    assert one["logged"] == []
    assert zero["calls"] == one["calls"]
    assert {worker for _, _, worker in zero["calls"]} == {"SFTPolicyWorker"}
    assert (Path(zero["directory"]) / "model").is_dir()


def test_history_of_two_processes_has_each_row_of_rank_zero_once_on_both(together, recorded):
    rows = [[row.step, row.values] for row in recorded[MAIN] if isinstance(row, Metrics)]
    assert [rank["history"] for rank in together["record"]] == [rows, rows]


def test_read_has_each_row_of_several_ranks_once(together):
    rows = [row for row in hl.read(together["record"][0]["directory"]) if isinstance(row, Metrics)]
    assert [row.step for row in rows if "loss" in row.values] == list(range(1, 9))
    assert not any(name.startswith("rank1/") for row in rows for name in row.values)
    assert [row.step for row in rows if "val/loss" in row.values] == [4, 8]
