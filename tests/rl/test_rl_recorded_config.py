"""What the record of a reinforcement learning says of its configuration: each setting by its name."""

import json

import pytest
from scripted_policy import ScriptedPolicy, curriculum, worker

import hookline as hl
from hookline import rl


def recorded(run_dir):
    text = json.dumps(json.loads((run_dir / "run.json").read_text())["config"])
    assert "0x" not in text
    return json.loads(text)


@pytest.fixture
def model():
    """A model of almost no size with its tokenizer."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from hookline.testing import character_tokenizer, tiny_causal_lm

    tokenizer = character_tokenizer("0123456789>x")
    return {"model": tiny_causal_lm(tokenizer, hidden_size=16, layers=1, heads=2), "tokenizer": tokenizer}


def test_train_records_all_of_its_settings(model):
    config = rl.RLConfig(
        curriculum=curriculum(),
        rollout=rl.RolloutConfig(prompts=2, group_size=2, max_tokens=3, temperature=0.7),
        grpo=rl.GRPOConfig(beta=0.1),
        train=hl.TrainerConfig(max_steps=1, summary=False),
    )
    settings = recorded(rl.train(config, **model).output_dir)
    assert {"loss_type": "dapo", "epsilon": 0.2, "beta": 0.1, "updates": 1}.items() <= settings["grpo"].items()
    assert settings["rollout"]["temperature"] == 0.7
    assert (settings["train"]["max_steps"], settings["executor"]) == (1, "local")
    (lesson,) = settings["curriculum"]["lessons"]
    assert (lesson["id"], lesson["environment"]) == ("sort", "hookline.rl.environments.text_tasks:Sorting")


def test_learner_made_by_hand_records_its_settings_and_those_of_its_worker(model):
    own = worker(rl.HFPolicy(**model), rollout={"prompts": 2, "group_size": 2, "max_tokens": 3})
    train = hl.TrainerConfig(max_steps=1, summary=False)
    learner = rl.GRPOLearner(
        model["model"], own, pad_id=0, config=train, grpo=rl.GRPOConfig(epsilon=0.3), temperature=0.9
    )
    settings = recorded(learner.fit().output_dir)
    assert (settings["grpo"]["epsilon"], settings["temperature"], settings["train"]["max_steps"]) == (0.3, 0.9, 1)
    assert settings["rollouts"]["rollout"]["prompts"] == 2


def test_worker_records_its_settings_and_what_its_policy_is():
    made = worker(policy=None, output_dir="runs", rollout={"prompts": 5}).config
    made.policy = ScriptedPolicy()
    settings = recorded(rl.RolloutWorker(made, hooks=[]).run(1).output_dir)
    assert settings["rollout"]["prompts"] == 5
    assert settings["policy"] == "scripted_policy:ScriptedPolicy"
    assert settings["curriculum_config"]["lessons"][0]["threshold"] == 0.9
