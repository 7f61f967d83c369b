"""Learners of two real processes, connected over gloo on loopback; what they do stands in `process_scripts`."""

import fcntl
import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

from hookline._record.reader import MAIN, Reader, journal_directory
from hookline._record.records import Event, Metrics, Sample

pytest.importorskip("torch")
pytest.importorskip("transformers")

SCRIPT = Path(__file__).parent / "process_scripts" / "learners.py"
TIMEOUT_SECONDS = 200
STARTS = {"alone": (1, ["losses"]), "pair": (2, ["losses", "together", "sharded", "refused"])}


@pytest.fixture(scope="module")
def found(torch_programs, tmp_path_factory):
    """What the scenarios of each start returned: a list with one entry a rank."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "learners"
    root.mkdir(exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, (count, scenarios) in STARTS.items():
            if not (root / name).exists():
                (root / name).mkdir()
                arguments = (SCRIPT, "{rank}", count, root / name, *scenarios)
                torch_programs.run_ranks(count, *arguments, timeout=TIMEOUT_SECONDS)
    return {
        name: {
            each: [json.loads((root / name / f"{each}-{rank}.json").read_text()) for rank in range(count)]
            for each in scenarios
        }
        for name, (count, scenarios) in STARTS.items()
    }


@pytest.fixture(scope="module")
def together(found):
    return found["pair"]["together"]


@pytest.fixture(scope="module")
def sharded(found):
    return found["pair"]["sharded"]


def losses_of(training):
    return [row["loss"] for row in training["rows"]]


def test_processes_learn_what_one_learns_from_all_of_their_rollouts(found):
    (alone,) = found["alone"]["losses"]
    for rank in found["pair"]["losses"]:
        assert list(rank) == list(alone)
        for name, own in rank.items():
            assert own["weights"] == pytest.approx(alone[name]["weights"], abs=1e-6), name
            assert own["losses"] == pytest.approx(alone[name]["losses"], abs=1e-6), name


def test_processes_make_rollouts_of_their_own_and_have_the_same_weights_and_rows(together):
    zero, one = (rank["whole"] for rank in together)
    assert (zero["world_size"], zero["step"]) == (one["world_size"], one["step"]) == (2, 6)
    assert all(own != other for own, other in zip(zero["prompts"], one["prompts"], strict=True))
    assert zero["weights"] == one["weights"]
    assert zero["rows"] == one["rows"]


@pytest.mark.parametrize("kind", ["together", "sharded"])
def test_processes_stopped_by_one_of_them_resume_exactly_within_a_round(found, kind):
    for rank in found["pair"][kind]:
        whole = rank["whole" if kind == "together" else "following"]
        assert (rank["stopped"]["step"], rank["resumed"]["step"]) == (3, 6)
        assert rank["stopped"]["reason"].startswith("enough of this")
        assert losses_of(rank["stopped"]) + losses_of(rank["resumed"]) == losses_of(whole)
        assert rank["resumed"]["weights"] == whole["weights"]
        assert rank["stopped"]["prompts"] + rank["resumed"]["prompts"] == whole["prompts"]


def test_sharded_learner_learns_what_one_with_whole_models_does(together, sharded):
    for own, whole in zip(sharded, together, strict=True):
        assert own["whole"]["weights"] == pytest.approx(whole["whole"]["weights"], abs=1e-5)
        assert own["whole"]["prompts"] == whole["whole"]["prompts"]
        assert losses_of(own["whole"]) == pytest.approx(losses_of(whole["whole"]), abs=1e-5)
        ratios = [row["ratio"] for row in own["whole"]["rows"]]
        assert ratios[::2] == pytest.approx([1.0] * 3, abs=1e-6)  # the policies' own copies have the newest weights


def test_sharded_learner_reference_follows_its_policy(sharded):
    for rank in sharded:
        kept, following = ([row["kl"] for row in rank[name]["rows"]] for name in ("whole", "following"))
        assert kept[:2] == following[:2]
        assert all(own < fixed for own, fixed in zip(following[2:], kept[2:], strict=True))


def test_processes_agree_on_rollout_steps_thresholds_and_deviations(together):
    zero, one = (rank["agreed"] for rank in together)
    assert len(zero["prompts"]) == len(one["prompts"]) > 6
    assert zero["weights"] == one["weights"]


def test_processes_stopped_by_one_while_they_make_rollouts_make_the_round_again(together):
    for rank in together:
        agreed, first, second = (rank[name] for name in ("agreed", "interrupted", "continued"))
        assert first["reason"].startswith("enough of this")
        assert 0 < first["step"] < 6
        assert losses_of(first) + losses_of(second) == losses_of(agreed)
        assert second["weights"] == agreed["weights"]


def test_record_of_processes_has_the_means_once_and_the_samples_of_all(together):
    by_writer = defaultdict(list)
    for entry in Reader(journal_directory(together[0]["whole"]["directory"])).new():
        by_writer[entry.file.name].append(entry.record)
    assert sorted(by_writer) == [MAIN, "rank1"]
    rows = [(row.step, row.axis) for row in by_writer[MAIN] if isinstance(row, Metrics) and "reward/mean" in row.values]
    expected = [*((step, "rollout") for step in (1, 2, 3)), *((step, "train") for step in range(1, 7))]
    assert sorted(rows) == sorted(expected)
    assert {len([each for each in own if isinstance(each, Sample)]) for own in by_writer.values()} == {3 * 12 + 2}


def test_processes_share_a_curriculum_whose_events_are_recorded_once(together):
    entries = Reader(journal_directory(together[0]["whole"]["directory"])).new()
    found = [(entry.file.name, entry.record) for entry in entries if isinstance(entry.record, Event)]
    events = [(writer, event.name, event.data["lesson"]) for writer, event in found if event.name.startswith("lesson_")]
    assert events
    assert {writer for writer, _, _ in events} == {MAIN}
    assert len(set(events)) == len(events)


def test_learner_whose_policy_has_the_sharded_model_is_refused(found):
    for message in found["pair"]["refused"]:
        assert "The policy has the sharded model that is trained" in message
        assert "as rl.train() does" in message
