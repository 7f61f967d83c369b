"""Options of rollouts, the learner and rewards that the other tests leave at the default."""

import json
from pathlib import Path

import pytest
from scripted_policy import ScriptedPolicy, curriculum, worker

import hookline as hl
from hookline import rl
from hookline.rewards import library, logged, wrap
from hookline.rl.rollouts.actor import RolloutActor, WorkerSpec
from hookline.testing import RecordingCallback, character_tokenizer, tiny_causal_lm


def advantages(**options):
    """The advantages of a group that is rewarded with 0, 0, 0 and 4."""
    rewards = iter([0.0, 0.0, 0.0, 4.0])

    def next_reward(prompts, completions, **columns):
        return [next(rewards) for _ in completions]

    environment = rl.environments.RewardDataset([{"prompt": "a>"}], [next_reward], held_out_share=0)
    made = worker(environment=environment, rollout={"prompts": 1, "group_size": 4, **options}, strict=True)
    return sorted(each.advantage for each in made.roll_out())


def test_rollout_worker_alone_scales_advantages_by_the_group():
    assert advantages()[-1] == pytest.approx(3.0 / 2.0, rel=0.2)


def test_rollout_config_sampling_reaches_the_policy():
    policy = ScriptedPolicy()
    given = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 5, "stop": ["\n", ">"]}
    worker(policy, rollout=given, max_steps=1).run()
    ((_, _, sampling),) = policy.requests
    assert {name: getattr(sampling, name) for name in given} == given | {"stop": ("\n", ">")}


def test_evaluation_hook_start_step_leaves_out_the_first_steps():
    hook = rl.EvaluationHook(frequency=2, n_examples=1, start_step=2)
    seen = RecordingCallback()
    worker(hooks=[hook], callbacks=[seen], max_steps=6).run()
    events = [event.arguments[:2] for event in seen.events if event.moment == "on_eval"]
    assert [step_idx + 1 for step_idx, name in events if name == "eval"] == [4, 6]


@pytest.mark.parametrize("durability", ["process", "checkpoint"])
def test_rollout_worker_config_durability_decides_whether_the_journal_is_synced(tmp_path, monkeypatch, durability):
    synced = []
    monkeypatch.setattr("os.fdatasync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().suffix))
    config = rl.RolloutWorkerConfig(
        curriculum_config=curriculum(),
        rollout=rl.RolloutConfig(prompts=1, group_size=2),
        output_dir=str(tmp_path),
        durability=durability,
        summary=False,
        max_steps=1,
    )
    rl.RolloutWorker(config, policy=ScriptedPolicy()).run()
    assert (".jsonl" in synced) == (durability == "checkpoint")


@pytest.mark.parametrize("durability", ["process", "checkpoint"])
def test_rollout_actor_syncs_its_journal_before_the_learner_gets_the_step(tmp_path, monkeypatch, durability):
    synced, tokenizer = [], character_tokenizer()
    model = tiny_causal_lm(tokenizer, hidden_size=16, heads=2)
    config = rl.RolloutWorkerConfig(
        curriculum_config=curriculum(),
        rollout=rl.RolloutConfig(prompts=1, group_size=2, max_tokens=2),
        output_dir=None,
        durability=durability,
    )
    actor = RolloutActor(WorkerSpec(config, model, tokenizer, hooks=[]), 0, run_dir=tmp_path)
    actor.start()
    monkeypatch.setattr("os.fdatasync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name))
    actor.roll_out(1, model.state_dict())
    assert any(name.startswith("rollout0-") for name in synced) == (durability == "checkpoint")
    actor.close()


def test_rollout_worker_config_project_and_sinks_are_those_of_its_run(tmp_path):
    config = rl.RolloutWorkerConfig(
        curriculum_config=curriculum(),
        rollout=rl.RolloutConfig(prompts=1, group_size=2),
        output_dir=str(tmp_path / "runs"),
        project="sorting",
        sinks=["csv"],
        summary=False,
        max_steps=1,
    )
    made = rl.RolloutWorker(config, policy=ScriptedPolicy())
    made.run()
    assert made.dir.parent == tmp_path / "runs" / "sorting"
    assert (made.dir / "metrics.csv").read_text().count("\n") == 2


def test_topic_relevance_min_letters_decides_which_words_are_key_words():
    asked = {"prompts": ["Why is the sea salty"], "completions": ["the sea"]}
    assert library.TopicRelevance(threshold=1, min_letters=4)(**asked) == [0.0]
    assert library.TopicRelevance(threshold=1, min_letters=3, reward=1.0)(**asked)[0] > 0.0


def test_repetition_run_is_how_many_words_count_as_one():
    text = "one two one two"
    assert (library.repetition(text, run=2), library.repetition(text, run=4)) == (pytest.approx(1 / 3), 0.0)  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("given", "expected", "same"), [("1,234.0", 1234, True), ("New  York", "new york", True), ("4", "5", False)]
)
def test_same_answer_compares_numbers_and_words_not_their_spelling(given, expected, same):
    assert library.same_answer(given=given, expected=expected) is same


class Rows:
    """Keeps the samples that rewards record."""

    def __init__(self):
        self.rows = []

    def log_samples(self, rows):
        self.rows += [json.loads(json.dumps(dict(row), default=str)) for row in rows]


def length(prompts, completions, **columns):
    return [float(len(completion)) for completion in completions]


@pytest.mark.parametrize("make", [logged, wrap])
def test_reward_expected_names_the_column_of_right_answers(make):
    kept = Rows()
    if make is logged:
        function = logged("length", recorder=kept, expected="gold")(length)
    else:
        (function,) = wrap([length], recorder=kept, expected="gold")
    function(prompts=["2+2="], completions=["4"], gold=["four"], answer=["no"])
    hl.rewards.flush()
    assert [row["expected"] for row in kept.rows] == ["four"]


def tiny_model():
    """A model that knows nothing, and its tokenizer."""
    pytest.importorskip("transformers")
    from hookline.testing import character_tokenizer, tiny_causal_lm

    tokenizer = character_tokenizer("0123456789>x")
    return tiny_causal_lm(tokenizer, hidden_size=16, layers=1, heads=2), tokenizer


def learnt(**options):
    """The metrics of the second of two updates with one step's rollouts."""
    model, tokenizer = tiny_model()

    def ends_early(prompts, completions, **columns):
        return [-float(len(completion)) for completion in completions]

    environment = rl.environments.RewardDataset([{"prompt": "1>"}], [ends_early], held_out_share=0)
    made = worker(rl.HFPolicy(model, tokenizer), environment=environment, rollout={"prompts": 1, "group_size": 8})
    config = hl.TrainerConfig(max_steps=2, output_dir=None, summary=False, strict=True)
    options["grpo"] = rl.GRPOConfig(updates=2, **options.get("grpo", {}))
    return rl.GRPOLearner(model, made, pad_id=tokenizer.pad_token_id, config=config, **options).fit().metrics


def test_learner_epsilon_and_temperature_are_those_of_its_loss(torch):
    clipped, cold = learnt(grpo={"epsilon": 1e-7}), learnt(temperature=0.01)
    assert clipped["clip_share"] > 0.5
    assert cold["entropy"] < clipped["entropy"] / 2


def test_learner_uses_the_given_optimizer_scheduler_and_hook_functions(torch):
    model, tokenizer = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.1**step)
    received = []
    learner = rl.GRPOLearner(
        model,
        worker(rl.HFPolicy(model, tokenizer), rollout={"prompts": 1, "group_size": 2, "max_tokens": 2}),
        pad_id=tokenizer.pad_token_id,
        config=hl.TrainerConfig(max_steps=2, output_dir=None, summary=False, strict=True),
        optimizer=optimizer,
        scheduler=scheduler,
        hook_fns={"pre_training_hook": lambda worker, report_data: received.append("pre_training_hook")},
    )
    learner.fit()
    assert received == ["pre_training_hook"]
    assert (learner.optimizer.__class__, learner.scheduler.last_epoch) == (torch.optim.SGD, 2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * 0.1**2)
