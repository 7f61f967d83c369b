"""One callback in every trainer: the moments are those of hookline's own `Trainer`, and requests are applied alike."""

import functools
import itertools
import os
from pathlib import Path

import hosts
import pytest
from hosts import differences, matrix, ray_train, steering
from hosts.base import BATCHES, EPOCHS, STEPS
from hosts.scenarios import AT, COMMANDS, SCENARIOS

import hookline as hl
from hookline.testing import RecordingCallback

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="session")
def facts_of(tmp_path_factory):
    """Runs each scenario in each host once."""

    @functools.cache
    def run(name, scenario):
        return SCENARIOS[scenario](hosts.make(name, tmp_path_factory.mktemp(name)))

    return run


@pytest.fixture(scope="session")
def reference_of(tmp_path_factory):
    """The moments of the reference that a host is compared with."""

    @functools.cache
    def run(place):
        return SCENARIOS["moments"](hosts.made(place, tmp_path_factory.mktemp("reference")))

    return lambda name: run(hosts.TABLE[name].training.reference)


def check_moments(name, facts, reference):
    """The whole list is the reference with the host's differences, each of which is needed."""
    reported, known = facts["moments"]["fired"], differences.of(name)
    assert reported == differences.applied(reference, known)
    assert differences.superfluous(reference, reported, known) == []
    everything = {moment for each in facts.values() for moment in each["fired"]}
    matrix.check(matrix.moments_found(everything, known), "moments", name)


@pytest.mark.parametrize("name", hosts.HOSTS)
def test_host_fires_the_moments_of_the_reference(name, facts_of, reference_of):
    scenarios = ("moments", "error", "resume")  # the others tell of errors, and of checkpoints that are loaded
    facts = {scenario: facts_of(name, scenario) for scenario in scenarios}
    check_moments(name, facts, reference_of(name)["fired"])


@pytest.mark.parametrize("name", hosts.HOSTS)
def test_host_counts_steps_and_batches_like_the_reference(name, facts_of, reference_of):
    reference = reference_of(name)["counts"]
    differing = {each.moment for each in differences.of(name)}
    expected = {moment: counts for moment, counts in reference.items() if moment not in differing}
    if name == "learner":  # whose batches are those of one epoch
        expected |= {moment: [*range(STEPS)] for moment in ("on_train_batch_start", "on_train_batch_end")}
    counts = facts_of(name, "moments")["counts"]
    assert {moment: counts.get(moment) for moment in expected} == expected


@pytest.mark.parametrize("scenario", steering.EXPECTED)
@pytest.mark.parametrize("name", hosts.HOSTS)
def test_host_applies_requests_like_every_other(name, scenario, facts_of):
    facts = {fact: value for fact, value in facts_of(name, scenario).items() if fact != "fired"}
    assert facts == steering.expected(name, scenario)
    matrix.check(steering.found(name, scenario), "steering", name, scenario)


def check_commands(name, facts):
    """Each command is applied, or refused by name with the reason; the training ends where the last one stops it."""
    if name in differences.PASSIVE:
        reason = differences.PASSIVE[name]
        assert {answer.partition(": ")[2] for answer in facts["answers"].values()} == {reason}
        assert (facts["counted"], facts["ended"][:2]) == (STEPS, [STEPS, "finished"])
        matrix.check(dict.fromkeys(COMMANDS, reason), "commands", name)
        return
    refused = differences.refused_commands(name)
    assert facts["answers"] == dict.fromkeys(COMMANDS, "applied") | refused
    assert (facts["counted"], facts["ended"][:2]) == (2, [BATCHES + 2, "stopped"])
    assert facts["ended"][2].startswith("enough (")
    matrix.check(refused, "commands", name)


@pytest.mark.parametrize("name", hosts.HOSTS)
def test_host_applies_commands_from_outside_or_refuses_them_by_name(name, facts_of):
    check_commands(name, facts_of(name, "commands"))


def test_steering_differences_are_real_differences():
    listed = differences.STEERING_DIFFERENCES
    assert [each for each in listed if steering.usual(each.host, each.scenario)[each.fact] == each.value] == []


def check_evaluations(name, facts):
    """One name for an evaluation, with which its metrics begin, and predictions in the outputs of its batches."""
    expected = {"learner": "micro_eval/sums", "prime_rl": "sums"}.get(name, "val")
    names = [expected] * len(hosts.TABLE[name].training.evaluated) + differences.FURTHER_EVALUATIONS.get(name, [])
    assert facts["evaluations"] == [[each, True] for each in names]
    reason = differences.NO_PREDICTIONS.get(name)
    assert set(facts["predictions"]) == ({True} if reason is None else {False} if facts["predictions"] else set())
    matrix.check([] if reason is None else [reason], "predictions", name)


@pytest.mark.parametrize("name", hosts.HOSTS)
def test_host_names_evaluations_and_passes_predictions_like_the_reference(name, facts_of):
    check_evaluations(name, facts_of(name, "moments"))


MEDIA = {
    "media": [
        *(["answers", AT], ["answers", BATCHES + 1], ["artist/picture", AT], ["artist/picture", BATCHES + 1]),
        *(["draw/sketch", AT], ["metrics_hook/map", AT], ["metrics_hook/map", 2 * AT]),
        *(["weights", AT], ["weights", BATCHES + 1]),
    ],
    "rows": [[AT, "yes"], [BATCHES + 1, "yes"]],
    "in on_log": [],
    "failing": [],
    "fired": [],
}


@pytest.mark.parametrize("name", hosts.HOSTS)
def test_host_records_the_media_of_callbacks_hooks_and_functions_at_their_steps(name, tmp_path):
    # The learner evaluates between the rollouts and the update of a step, which is not complete then.
    early = name == "learner"
    evaluated = [step - early for step in hosts.TABLE[name].training.evaluated]
    assert SCENARIOS["media"](hosts.make(name, tmp_path)) == MEDIA | {"of evaluations": evaluated}


def means(losses):
    """Return the mean of each epoch so far, as Keras computes it."""
    epochs = (losses[:BATCHES], losses[BATCHES:])
    return [total / count for epoch in epochs for count, total in enumerate(itertools.accumulate(epoch), 1)]


@pytest.mark.parametrize("name", hosts.REGRESSING)
def test_host_records_the_losses_of_the_reference(name, facts_of, reference_of):
    expected = reference_of(name)["losses"]
    shown = means(expected) if name == "keras" else expected
    assert facts_of(name, "moments")["losses"] == pytest.approx(shown, rel=1e-5)


def test_tables_and_matrix_list_the_existing_hosts():
    there = set(hosts.TABLE)
    assert {each.host for each in differences.DIFFERENCES} <= there
    assert {each.host for each in differences.STEERING_DIFFERENCES} <= there
    matrix.check(matrix.hosts_listed(), "hosts")
    found = matrix.read()
    assert {section: set(found[section]) for section in found if section != "hosts"} == dict.fromkeys(
        ("moments", "predictions", "steering", "commands", "builtins"), there
    )


def test_matrix_page_is_what_the_tests_found(monkeypatch):
    monkeypatch.syspath_prepend(DOCS.with_name("scripts"))
    import moments_reference

    page = (DOCS / "hosts" / "matrix.md").read_text(encoding="utf-8")
    assert page == moments_reference.matrix_page(matrix.read())


def test_matrix_page_marks_stand_ins_and_requests_that_have_no_effect(monkeypatch):
    monkeypatch.syspath_prepend(DOCS.with_name("scripts"))
    import moments_reference

    found = matrix.read()
    (keras,) = (host for host in found["hosts"] if host["name"] == "keras")
    keras["stand_in"] = True
    found["steering"]["keras"]["resume"] = {"works": False, "notes": ["It starts again."]}
    lines = moments_reference.matrix_page(found).splitlines()
    (heading,) = (line for line in lines if line.startswith("| steered by") and "Keras" in line)
    row = next(line for line in lines[lines.index(heading) :] if line.startswith("| states of callbacks"))
    cells = dict(zip(heading.split(" | "), row.split(" | "), strict=True))
    number = next(line.partition(".")[0] for line in lines if line.endswith(". It starts again."))
    assert cells["Keras (stand-in)"] == f"– ({number})"  # noqa: RUF001
    assert cells["Lightning"] == "✓"


def test_superfluous_difference_is_found(reference_of):
    reported = reference_of("trainer")["fired"]
    useless = differences.Difference("trainer", "on_eval", lambda names, moment: names, "for fun")
    assert differences.superfluous(reported, reported, [useless]) == [useless]


class Curious(hl.Callback):
    """Requests another validation during the first one."""

    def on_eval(self, loop, step_idx, eval_name, metrics):
        if step_idx + 1 == BATCHES:
            loop.request_validation()


def test_huggingface_epoch_ends_after_the_evaluations_of_all_data_sets(tmp_path):
    seen = RecordingCallback()
    host = hosts.make("huggingface", tmp_path)
    host.several_data_sets = True  # type: ignore[attr-defined]
    host.train(seen)
    reported = [name for name in seen.names() if name in ("on_step_end", "on_eval", "on_train_epoch_end")]
    assert reported == EPOCHS * [*BATCHES * ["on_step_end"], "on_eval", "on_eval", "on_train_epoch_end"]


def test_huggingface_validation_requested_during_one_follows_the_next_step(tmp_path):
    seen = RecordingCallback()
    hosts.make("huggingface", tmp_path).train(seen, Curious())
    validated = [event.arguments[0] + 1 for event in seen.events if event.moment == "on_eval"]
    assert validated == [BATCHES, BATCHES + 1, STEPS]


def test_ray_train_fires_the_reference_and_applies_requests_in_two_workers(tmp_path, reference_of, monkeypatch):
    """Uses one fit for all scenarios: starting Ray Train takes half a minute."""
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{here}{os.pathsep}{here.parent}")  # for its workers
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.1")  # so long does every report wait
    error, of_ranks = ray_train.fit(tmp_path)
    assert "ZeroDivisionError: division by zero" in error  # that of a critical callback, which ends the fit
    for rank, facts in enumerate(of_ranks):
        found = facts.pop("builtins")
        idle = found["idle"] if rank else sorted(differences.idle(ray_train.NAME))  # many are for rank zero only
        assert found == {"failing": [], "idle": idle, "partly": [], "steps": [BATCHES, STEPS]}
        drawn = facts.pop("media")  # each rank records its own, under its name
        own = [(name, step) for name, step in drawn["media"] if name.startswith("rank1/") == bool(rank)]
        named = [[name.removeprefix("rank1/"), step] for name, step in own]
        assert [each for each in named if each[0] != "evaluated"] == MEDIA["media"]
        assert (drawn["in on_log"], drawn["failing"]) == ([], [])
        check_moments(ray_train.NAME, facts, reference_of(ray_train.NAME)["fired"])
        check_evaluations(ray_train.NAME, facts["moments"])
        commands = facts.pop("commands")
        if not rank:  # which sends them, and records what became of them
            check_commands(ray_train.NAME, commands)
        assert (commands["counted"], commands["ended"][0]) == (2, BATCHES + 2)
        steered = {name: {**facts[name], "fired": None} for name in steering.EXPECTED}
        assert steered == {name: {**steering.expected(ray_train.NAME, name), "fired": None} for name in steered}
    for name in steering.EXPECTED:
        matrix.check(steering.found(ray_train.NAME, name), "steering", ray_train.NAME, name)
    matrix.check(matrix.builtins_found(ray_train.NAME), "builtins", ray_train.NAME)
