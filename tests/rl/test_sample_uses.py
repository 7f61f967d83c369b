"""Samples and the steps of the training that used them: records, SQL, tokens of both."""

import math
from types import SimpleNamespace

import pytest
from test_learner import Setup, curriculum, ends_early

import hookline as hl
from hookline import rl
from hookline._record.blobs import read_blob
from hookline._record.reader import read
from hookline._record.records import Sample, SampleUse
from hookline._record.tokens import read_tokens
from hookline.rl.environments import RewardDataset

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("duckdb")


def records(directory, kind):
    found = [record for record in read(directory) if isinstance(record, kind)]
    return sorted(found, key=lambda record: record.step)  # those with tokens are written a moment later


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two rollout steps, each learnt from in two passes of two mini-batches, with tokens of every second sample."""
    root = tmp_path_factory.mktemp("uses")
    made = Setup(
        output_dir=str(root), max_steps=8, grpo={"updates": 2, "mini_batches": 2, "beta": 0.1}, rollout={"tokens": 0.5}
    )
    made.fit()
    return SimpleNamespace(root=root, directory=made.learner.dir)


def test_each_use_of_a_sample_is_recorded_with_the_step_that_learnt_from_it(trained):
    samples, uses = records(trained.directory, Sample), records(trained.directory, SampleUse)
    names = sorted(sample.rollout for sample in samples)  # in the order in which they were made
    assert len(set(names)) == len(names) == 24
    assert [use.step for use in uses] == list(range(1, 9))
    assert {use.outcome for use in uses} == {"learnt"}
    # Mini-batches alternate, and the passes repeat them.
    first, second = names[:12], names[12:]
    halves = [first[:6], first[6:], first[:6], first[6:], second[:6], second[6:], second[:6], second[6:]]
    assert [sorted(use.rollouts) for use in uses] == [sorted(half) for half in halves]


def test_sample_has_counts_of_tokens_timings_and_its_origin(trained):
    first = min(records(trained.directory, Sample), key=lambda sample: sample.rollout)
    assert (first.rollout, first.parent, first.lesson, first.last_version) == ("0-0-0-0", None, "lesson", None)
    assert (first.prompt_length, first.length) == (len(first.prompt) + 1, first.length)
    assert set(first.timings) == {"generate", "score"}
    assert first.finish in ("stop", "length")


def test_samples_join_with_the_metrics_of_their_steps_in_sql(trained):
    query = """
    SELECT s.rollout, u.step, m.value AS loss
    FROM samples s
    JOIN sample_uses u USING (run, rollout)
    JOIN metrics m ON m.run = u.run AND m.axis = u.axis AND m.step = u.step AND m.name = 'loss'
    WHERE s.axis = 'rollout' ORDER BY s.rollout, u.step
    """
    rows = hl.runs(trained.root).sql(query).rows()
    losses = {row["step"]: row["value"] for row in hl.runs(trained.root).metrics("loss")}
    assert len(rows) == 48
    assert all(row["loss"] == losses[row["step"]] for row in rows)


def test_uses_are_read_by_outcome_and_step(trained):
    runs = hl.runs(trained.root)
    assert {row["step"] for row in runs.sample_uses(outcome="learnt", steps=(2, 3))} == {2, 3}
    assert list(runs.sample_uses(outcome="stale")) == []


def test_tokens_of_the_last_use_have_what_the_loss_saw(trained):
    samples = {sample.rollout: sample for sample in records(trained.directory, Sample)}
    found = {
        name: (use.step, blob) for use in records(trained.directory, SampleUse) for name, blob in use.tokens.items()
    }
    assert set(found) == {name for name, sample in samples.items() if sample.tokens}
    assert len(found) == 12
    assert {step for step, _ in found.values()} == {3, 4, 7, 8}
    for name, (_, facts) in found.items():
        sampled = read_tokens(read_blob(trained.directory, samples[name].tokens["blob"]))
        learnt = read_tokens(read_blob(trained.directory, facts["blob"]))
        assert learnt.count == sampled.count
        assert (learnt.texts, learnt.ids) == (None, None)
        assert list(learnt.columns) == ["old_logprobs", "ref_logprobs", "entropy", "ratio", "advantage", "mask"]
        assert learnt.columns["advantage"] == pytest.approx(sampled.columns["advantage"])
        assert learnt.columns["old_logprobs"] == pytest.approx(sampled.columns["logprobs"], abs=1e-4)
        assert learnt.columns["mask"] == [1] * learnt.count
        assert all(math.isfinite(value) and value > 0 for value in learnt.columns["ratio"])
    ratios = [ratio for _, facts in found.values() for ratio in column(trained.directory, facts, "ratio")]
    assert any(abs(ratio - 1) > 1e-4 for ratio in ratios)  # of the second pass


def column(directory, facts, name):
    return read_tokens(read_blob(directory, facts["blob"])).columns[name]


def test_nothing_about_tokens_is_recorded_by_default(tmp_path):
    made = Setup(output_dir=str(tmp_path), max_steps=1)
    made.fit()
    (use,) = records(made.learner.dir, SampleUse)
    assert (len(use.rollouts), use.tokens) == (12, {})
    assert not (made.learner.dir / "blobs").exists()


def test_samples_that_are_not_recorded_have_no_uses(tmp_path):
    made = Setup(output_dir=str(tmp_path), max_steps=2, rollout={"samples": 0})
    made.fit()
    assert records(made.learner.dir, SampleUse) == records(made.learner.dir, Sample) == []


def test_groups_that_dynamic_sampling_leaves_out_are_named_with_the_reason(tmp_path):
    def equal_if_odd(prompts, completions, **columns):
        lengths = zip(prompts, ends_early(prompts, completions), strict=True)
        return [1.0 if int(prompt[:-1]) % 2 else reward for prompt, reward in lengths]

    environment = RewardDataset([{"prompt": f"{number}>"} for number in range(50)], [equal_if_odd])
    made = Setup(
        output_dir=str(tmp_path),
        lessons=curriculum(rl.Lesson("lesson", environment)),
        grpo={"dynamic_sampling": True, "max_generation_batches": 20},
        rollout={"prompts": 4},
        max_steps=2,
    )
    made.fit()
    uses = records(made.learner.dir, SampleUse)
    outcomes = {name: use.outcome for use in uses for name in use.rollouts}
    samples = {each.rollout: each for each in records(made.learner.dir, Sample)}
    assert set(outcomes) == set(samples)
    assert set(outcomes.values()) >= {"learnt", "equal_rewards"}
    odd = {name for name, each in samples.items() if int(each.prompt[:-1]) % 2}
    assert odd <= {name for name, outcome in outcomes.items() if outcome == "equal_rewards"}
    assert list(outcomes.values()).count("learnt") == sum(values["rollouts"] for _, values in made.rows())


def test_uses_behind_a_resumed_checkpoint_do_not_count(tmp_path):
    first = Setup(output_dir=str(tmp_path), max_steps=3, checkpoint={"every_n_steps": 2, "save_top_k": -1})
    first.fit()
    saved = next(row for row in first.learner.artifacts().checkpoints if row.step == 2)
    again = Setup(output_dir=str(tmp_path), max_steps=4, resume=str(saved.path))
    again.fit()
    uses = records(again.learner.dir, SampleUse)
    assert [use.step for use in uses] == [1, 2, 3, 4]
    assert sorted(name for use in uses for name in use.rollouts) == sorted(
        sample.rollout for sample in records(again.learner.dir, Sample)
    )
