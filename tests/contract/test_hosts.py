"""One callback in every trainer: compares each whole list of moments with that of hookline's own `Trainer`."""

import functools
import itertools
import os
from pathlib import Path

import hosts
import pytest
from hosts import differences, matrix, ray_train, steering
from hosts.base import BATCHES, EPOCHS, STEPS
from hosts.scenarios import SCENARIOS

import hookline as hl
from hookline.testing import RecordingCallback

REFERENCE = "trainer"
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="session")
def facts_of(tmp_path_factory):
    """Runs each scenario in each host once."""

    @functools.cache
    def run(name, scenario):
        return SCENARIOS[scenario](hosts.make(name, tmp_path_factory.mktemp(name)))

    return run


def check_moments(name, facts, reference):
    """The whole list is the reference with the host's differences, each of which is needed."""
    told, known = facts["moments"]["told"], differences.of(name)
    assert told == differences.applied(reference, known)
    assert differences.superfluous(reference, told, known) == []
    everything = {moment for each in facts.values() for moment in each["told"]}
    matrix.check(matrix.moments_found(everything, known), "moments", name)


@pytest.mark.parametrize("name", hosts.HOSTS)
def test_host_fires_the_moments_of_the_reference(name, facts_of):
    scenarios = ("moments", "error", "resume")  # the others tell of errors, and of checkpoints that are loaded
    facts = {scenario: facts_of(name, scenario) for scenario in scenarios}
    check_moments(name, facts, facts_of(REFERENCE, "moments")["told"])


@pytest.mark.parametrize("name", hosts.HOSTS)
def test_host_counts_steps_and_batches_like_the_reference(name, facts_of):
    reference = facts_of(REFERENCE, "moments")["counts"]
    differing = {each.moment for each in differences.of(name)}
    expected = {moment: counts for moment, counts in reference.items() if moment not in differing}
    if name == "learner":  # whose batches are those of one epoch
        expected |= {moment: [*range(STEPS)] for moment in ("on_train_batch_start", "on_train_batch_end")}
    counts = facts_of(name, "moments")["counts"]
    assert {moment: counts.get(moment) for moment in expected} == expected


def check_evaluations(name, facts):
    """One name for an evaluation, with which its metrics begin, and predictions in the outputs of its batches."""
    expected = "micro_eval/sums" if name == "learner" else "val"
    assert facts["evaluations"] == [[expected, True]] * EPOCHS
    reason = differences.NO_PREDICTIONS.get(name)
    assert set(facts["predictions"]) == ({True} if reason is None else {False} if facts["predictions"] else set())
    matrix.check([] if reason is None else [reason], "predictions", name)


@pytest.mark.parametrize("name", hosts.HOSTS)
def test_host_names_evaluations_and_passes_predictions_like_the_reference(name, facts_of):
    check_evaluations(name, facts_of(name, "moments"))


def means(losses):
    """Return the mean of each epoch so far, as Keras computes it."""
    epochs = (losses[:BATCHES], losses[BATCHES:])
    return [total / count for epoch in epochs for count, total in enumerate(itertools.accumulate(epoch), 1)]


@pytest.mark.parametrize("name", hosts.REGRESSING)
def test_host_records_the_losses_of_the_reference(name, facts_of):
    expected = facts_of(REFERENCE, "moments")["losses"]
    shown = means(expected) if name == "keras" else expected
    assert facts_of(name, "moments")["losses"] == pytest.approx(shown, rel=1e-5)


def test_tables_and_matrix_list_the_existing_hosts():
    there = {*hosts.HOSTS, ray_train.NAME}
    listed = [*differences.DIFFERENCES, *differences.STEERING_DIFFERENCES]
    assert {each.host for each in listed} <= there == set(differences.HOSTS)  # type: ignore[attr-defined]
    assert {section: set(found) for section, found in matrix.read().items()} == dict.fromkeys(
        ("moments", "predictions", "steering", "builtins"), there
    )


def test_integrations_page_has_the_matrix(monkeypatch):
    monkeypatch.syspath_prepend(DOCS.with_name("scripts"))
    import moments_reference

    page = (DOCS / "integrations.md").read_text(encoding="utf-8")
    assert page == moments_reference.with_matrix(page, matrix.read())


def test_superfluous_difference_is_found(facts_of):
    told = facts_of(REFERENCE, "moments")["told"]
    useless = differences.Difference(REFERENCE, "on_eval", lambda names, moment: names, "for fun")
    assert differences.superfluous(told, told, [useless]) == [useless]


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
    told = [name for name in seen.names() if name in ("on_step_end", "on_eval", "on_train_epoch_end")]
    assert told == EPOCHS * [*BATCHES * ["on_step_end"], "on_eval", "on_eval", "on_train_epoch_end"]


def test_huggingface_validation_requested_during_one_follows_the_next_step(tmp_path):
    seen = RecordingCallback()
    hosts.make("huggingface", tmp_path).train(seen, Curious())
    validated = [event.arguments[0] + 1 for event in seen.events if event.moment == "on_eval"]
    assert validated == [BATCHES, BATCHES + 1, STEPS]


def test_ray_train_fires_the_reference_and_applies_requests_in_two_workers(tmp_path, facts_of, monkeypatch):
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
        check_moments(ray_train.NAME, facts, facts_of(REFERENCE, "moments")["told"])
        check_evaluations(ray_train.NAME, facts["moments"])
        steered = {name: {**facts[name], "told": None} for name in steering.EXPECTED}
        assert steered == {name: {**steering.expected(ray_train.NAME, name), "told": None} for name in steered}
    for name in steering.EXPECTED:
        matrix.check(steering.notes(ray_train.NAME, name), "steering", ray_train.NAME, name)
    matrix.check(matrix.builtins_found(ray_train.NAME), "builtins", ray_train.NAME)
