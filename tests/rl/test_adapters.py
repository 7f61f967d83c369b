"""LoRA through PEFT: adapters are trained, saved and resumed alone, and given to policies merged or as they are."""

import copy
import math

import pytest

import hookline as hl
from hookline import rl
from hookline.rl.environments import RewardDataset
from hookline.testing import character_tokenizer, tiny_causal_lm

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

torch.set_num_threads(1)
TOKENIZER = character_tokenizer("0123456789>x")
IDS = torch.tensor([[1, 5, 6, 7, 8]])


def adapted(*, seed=0, **options):
    """A model with fresh adapters, of which every draw gives the same."""
    torch.manual_seed(seed)
    base = tiny_causal_lm(TOKENIZER, hidden_size=16, layers=1, heads=2)
    settings = {"r": 2, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"} | options
    return peft.get_peft_model(base, peft.LoraConfig(**settings))


def ends_early(prompts, completions, **columns):
    return [1.0 - 0.1 * len(completion) for completion in completions]


def learner(model, *, policy=None, grpo=None, callbacks=None, **train):
    environment = RewardDataset([{"prompt": f"{number}>"} for number in range(50)], [ends_early])
    config = rl.RolloutWorkerConfig(
        curriculum_config=rl.CurriculumConfig([rl.Lesson("lesson", environment)], micro_eval_frequency=0),
        rollout=rl.RolloutConfig(prompts=3, group_size=4, max_tokens=5, samples=None),
        output_dir=None,
    )
    worker = rl.RolloutWorker(config, policy=policy or rl.HFPolicy(model, TOKENIZER), hooks=[])
    train = {"max_steps": 4, "output_dir": None, "summary": False, "strict": True, "learning_rate": 0.05} | train
    return rl.GRPOLearner(
        model,
        worker,
        pad_id=TOKENIZER.pad_token_id,
        config=hl.TrainerConfig(**train),
        grpo=rl.GRPOConfig(**(grpo or {})),
        callbacks=callbacks,
    )


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


class Rows(hl.Callback):
    def __init__(self):
        self.rows = []

    def on_log(self, loop, step, metrics):
        if "loss" in metrics:
            self.rows.append(dict(metrics))


def test_learner_with_adapters_trains_these_alone_and_compares_with_the_model_without_them():
    model, rows = adapted(), Rows()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = learner(model, grpo={"beta": 0.1}, callbacks=[rows])
    made.fit()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if "lora_" in name}
    assert [row["kl"] == 0 for row in rows.rows] == [True, False, False, False]
    assert rows.rows[-1]["ratio"] == pytest.approx(1.0, abs=1e-6)


def test_learner_checkpoint_has_the_adapters_alone_and_resumes_exactly(tmp_path):
    class Stops(hl.Callback):
        def on_step_end(self, loop, step_idx, batch, metrics):
            if loop.step == 3:
                loop.request_stop("preempted")

    def setup(name, *callbacks):
        options = {"output_dir": str(tmp_path), "name": name, "max_steps": 5}
        return learner(
            adapted(lora_dropout=0.1), grpo={"beta": 0.1, "updates": 2}, callbacks=list(callbacks), **options
        )

    whole, first, second = setup("whole"), setup("broken", Stops()), setup("broken")
    whole.fit()
    first.fit()
    saved = torch.load(first.checkpoints[-1].path / "model.pt")
    assert saved
    assert all("lora_" in name for name in saved)
    second.resume("last")
    assert second.metrics["loss"] == whole.metrics["loss"]
    states = second.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_learner_resumed_with_other_adapters_names_what_differs(tmp_path):
    learner(adapted(), output_dir=str(tmp_path)).fit()
    with pytest.raises(hl.CheckpointError, match="lora_A"):
        learner(adapted(r=4), output_dir=str(tmp_path)).resume("last")


def test_learner_with_adapters_and_another_initial_model_of_the_reference_raises(tmp_path):
    learner(adapted(), output_dir=str(tmp_path), grpo={"beta": 0.1}).fit()
    other = adapted()
    with torch.no_grad():
        other.get_base_model().model.embed_tokens.weight[5] += 1
    with pytest.raises(hl.CheckpointError, match="Give the model that the training started with"):
        learner(other, output_dir=str(tmp_path), grpo={"beta": 0.1}).resume("last")


@pytest.mark.parametrize("options", [{}, {"modules_to_save": ["lm_head"]}, {"use_dora": True}])
def test_learner_weights_merged_are_those_of_a_model_that_computes_the_same(options):
    made = learner(adapted(**options))
    made.fit()
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    plain = tiny_causal_lm(TOKENIZER, hidden_size=16, layers=1, heads=2, seed=3)
    plain.load_state_dict(made.weights("merged"))
    torch.testing.assert_close(logits(plain), logits(made.model), atol=1e-5, rtol=1e-4)
    with made.model.disable_adapter():
        assert (logits(made.model) - logits(plain)).abs().max() > 1e-3
    assert all(torch.equal(value, before[name]) for name, value in made.model.state_dict().items())


def test_learner_saves_an_adapter_that_peft_loads(tmp_path):
    made = learner(adapted())
    base = copy.deepcopy(made.model.unload())
    made = learner(adapted())
    made.fit()
    place = made.save_adapter(tmp_path / "adapter")
    assert sorted(each.name for each in place.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert set(made.weights("adapter")) == set(peft.get_peft_model_state_dict(made.model))
    loaded = peft.PeftModel.from_pretrained(base, place)
    torch.testing.assert_close(logits(loaded), logits(made.model))


@pytest.mark.parametrize("with_adapters", [True, False])
def test_policy_with_a_model_of_its_own_gets_the_adapters_or_the_merged_weights(with_adapters):
    own = adapted() if with_adapters else tiny_causal_lm(TOKENIZER, hidden_size=16, layers=1, heads=2)
    policy, rows = rl.HFPolicy(own, TOKENIZER), Rows()
    made = learner(adapted(), policy=policy, callbacks=[rows], grpo={"mini_batches": 2})
    made.fit()
    assert policy.version == 4
    torch.testing.assert_close(logits(own), logits(made.model), atol=1e-5, rtol=1e-4)
    assert policy.weights_format == ("model" if with_adapters else "merged")


def test_policy_with_adapters_refuses_weights_that_lack_one():
    policy = rl.HFPolicy(adapted(), TOKENIZER)
    weights = learner(adapted()).weights()
    weights.pop(next(iter(weights)))
    with pytest.raises(hl.OptionError, match="lora_A.* is missing"):
        policy.load_weights(1, weights)
    assert policy.version == 0


def test_learner_without_adapters_has_none_to_give():
    model = tiny_causal_lm(TOKENIZER, hidden_size=16, layers=1, heads=2)
    made = learner(model)
    assert set(made.weights("merged")) == set(made.weights()) == set(model.state_dict())
    with pytest.raises(hl.OptionError, match="has no adapters"):
        made.weights("adapter")
    with pytest.raises(hl.OptionError, match="give 'model', 'merged' or 'adapter'"):
        made.weights("lora")


def test_learner_with_adapters_refuses_a_reference_that_follows_the_policy():
    with pytest.raises(hl.OptionError, match="sync_ref_model=True with adapters"):
        learner(adapted(), grpo={"beta": 0.1, "sync_ref_model": True})


def test_trainer_with_adapters_saves_and_resumes_them_alone(tmp_path):
    def trainer(name, epochs):
        config = hl.TrainerConfig(epochs=epochs, output_dir=str(tmp_path), name=name, summary=False)
        batches = [{"input_ids": IDS, "labels": IDS}] * 2
        return hl.Trainer(adapted(), batches, config=config)

    whole, first, second = trainer("whole", 2), trainer("half", 1), trainer("half", 2)
    whole.fit()
    first.fit()
    assert all("lora_" in name for name in torch.load(first.checkpoints[-1].path / "model.pt"))
    second.resume("last")
    assert second.metrics["loss"] == whole.metrics["loss"]
    assert math.isfinite(second.metrics["loss"])
