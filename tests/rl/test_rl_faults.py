"""Failures in rollouts and in learning from them, and their consequences."""

import math
from types import SimpleNamespace

import pytest
import torch

import hookline as hl
from hookline import rl
from hookline._engine.errors import OptionError
from hookline.rl.learner.reference import CopiedReference
from hookline.testing import character_tokenizer, tiny_causal_lm

torch.set_num_threads(1)
TOKENIZER = character_tokenizer("0123456789>")


class Scored:
    name = "scored"

    def __init__(self, score):
        self._score, self.calls = score, 0

    def sample(self, n, rng):
        return [rl.Task(f"{rng.randrange(10)}>") for _ in range(n)]

    def score(self, task, completion):
        self.calls += 1
        return self._score(self.calls)


def worker(*environments, policy=None, **options):
    lessons = [rl.Lesson(f"lesson {place}", each) for place, each in enumerate(environments)]
    curriculum = rl.CurriculumConfig(lessons=lessons, **({"micro_eval_frequency": 0, "eval_frequency": 0} | options))
    rollout = rl.RolloutConfig(prompts=2, group_size=2, max_tokens=4)
    policy = policy or rl.HFPolicy(tiny_causal_lm(TOKENIZER), TOKENIZER)
    config = rl.RolloutWorkerConfig(
        curriculum_config=curriculum, rollout=rollout, policy=policy, output_dir=None, summary=False
    )
    return rl.RolloutWorker(config)


@pytest.mark.parametrize(
    "options", [{"scoring_seconds": 0}, {"scoring_seconds": -1}, {"reward_weights": {"a": math.nan}}]
)
def test_rollout_config_invalid_number_raises(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        rl.RolloutConfig(**options)


@pytest.mark.parametrize("scores", [{"a": 1e300}, {"a": 1.7e308, "b": 1.7e308}, {"a": 8e29, "b": 8e29}])
def test_rewards_that_are_too_large_are_faults_and_the_run_continues(scores):
    made = worker(Scored(lambda call: scores if call % 2 else dict.fromkeys(scores, 0.0)))
    made.run(max_steps=2)
    assert made.step == 2
    assert sum(made.faults.values()) >= 4


def test_faults_of_an_environment_with_a_dict_of_that_name_are_counted():
    environment = Scored(lambda call: {"a": math.nan})
    environment.faults = {}  # type: ignore[attr-defined]
    made = worker(environment)
    made.run(max_steps=2)
    assert made.metrics["faults/a"] == 8


def test_faults_of_an_environment_that_two_lessons_share_are_counted_once():
    def broken(prompts, completions, **columns):
        raise ValueError("no answer")

    environment = rl.environments.RewardDataset([{"prompt": f"{digit}>"} for digit in range(50)], [broken])
    made = worker(environment, environment)
    made.run(max_steps=3)
    assert made.metrics["faults/broken"] == 3


class Flat(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(16, 16)

    def forward(self, input_ids, use_cache):
        return SimpleNamespace(logits=self.table(input_ids))


def test_reference_follows_the_model_to_its_device():
    ids = torch.zeros(1, 2, dtype=torch.long, device="meta")
    logits = CopiedReference(Flat()).compute(lambda model: model(ids, use_cache=False).logits, "meta")
    assert logits.device.type == "meta"


def learner(environment, *, beta=0.0, temperature=1.0, model=None, **settings):
    model = tiny_causal_lm(TOKENIZER) if model is None else model
    made = worker(environment, policy=rl.HFPolicy(model, TOKENIZER))
    config = hl.TrainerConfig(**({"max_steps": 2, "summary": False, "device": "cpu"} | settings))
    grpo = rl.GRPOConfig(beta=beta)
    return rl.GRPOLearner(model, made, pad_id=0, config=config, grpo=grpo, temperature=temperature)


def test_environment_whose_sample_fails_once_costs_that_step_only():
    class Shaky(Scored):
        def sample(self, n, rng):
            self.calls += 1
            if self.calls == 1:
                raise ValueError("the data base is gone")
            return super().sample(n, rng)

    made = worker(Shaky(lambda call: {"a": 1.0}))
    made.run(max_steps=3)
    assert (made.step, made.faults["scored.sample"]) == (3, 1)


def test_stop_requested_while_rollouts_stay_empty_takes_effect(tmp_path):
    class Nothing(Scored):
        def sample(self, n, rng):
            return []

    made = learner(Nothing(lambda call: {}), output_dir=str(tmp_path))
    made.callbacks.add(hl.on("rollout_end", lambda loop: loop.request_stop("enough of this")))
    assert made.fit().stop_reason == "enough of this"
    assert (made.state, made.rollout_worker.step) == ("stopped", 1)


def test_learner_at_another_temperature_begins_with_a_ratio_of_one():
    made = learner(Scored(lambda call: {"a": float(call % 2)}), temperature=0.5, max_steps=1, output_dir=None)
    made.fit()
    assert made.metrics["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert made.metrics["clip_share"] == 0


def test_resume_with_kl_and_another_initial_model_raises(tmp_path):
    environment = Scored(lambda call: {"a": float(call % 2)})
    learner(environment, beta=0.1, output_dir=str(tmp_path)).fit()
    again = learner(environment, beta=0.1, output_dir=str(tmp_path), max_steps=4)
    assert again.resume().step == 4
    other = learner(
        environment, beta=0.1, output_dir=str(tmp_path), max_steps=6, model=tiny_causal_lm(TOKENIZER, seed=1)
    )
    with pytest.raises(hl.CheckpointError, match="Give the model that the training started with"):
        other.resume()


@pytest.mark.parametrize("options", [{"group_size": 1}, {"temperature": 0.0}])
def test_rl_config_of_groups_without_variance_raises(options):
    lessons = rl.CurriculumConfig(lessons=[rl.Lesson("sort", "sorting")])
    with pytest.raises(OptionError, match="nothing to learn from"):
        rl.RLConfig(curriculum=lessons, rollout=rl.RolloutConfig(**options), train=hl.TrainerConfig(max_steps=1))


def test_rl_train_on_ray_in_one_of_several_processes_raises(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    lessons = rl.CurriculumConfig(lessons=[rl.Lesson("sort", "sorting")])
    config = rl.RLConfig(curriculum=lessons, train=hl.TrainerConfig(max_steps=1), executor="ray")
    with pytest.raises(OptionError, match="run the program in one process"):
        rl.train(config, model=tiny_causal_lm(TOKENIZER), tokenizer=TOKENIZER)


@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_learner_model_for_which_padding_is_impossible_learns_with_finite_numbers(beta):
    def forbid(module, given, output):
        output.logits[..., TOKENIZER.pad_token_id] = -math.inf

    model = tiny_causal_lm(TOKENIZER)
    model.register_forward_hook(forbid)
    made = learner(Scored(lambda call: {"a": float(call % 2)}), beta=beta, model=model, output_dir=None)
    made.fit()
    facts = [name for name in ("loss", "entropy", "ratio", "kl") if name in made.metrics]
    assert all(math.isfinite(made.metrics[name]) for name in facts)
    assert len(facts) == (4 if beta else 3)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_reference_whose_sum_was_rounded_otherwise_is_the_same():
    reference = CopiedReference(Flat())
    assert reference.has_fingerprint([math.nextafter(total, math.inf) for total in reference.fingerprint()])


@pytest.mark.parametrize("change", [1e-6, math.nan])
def test_reference_with_one_different_weight_is_another(change):
    model = Flat()
    fingerprint = CopiedReference(model).fingerprint()
    with torch.no_grad():
        model.table.weight[0, 0] += change
    assert not CopiedReference(model).has_fingerprint(fingerprint)


def test_reference_with_another_number_of_weights_is_another():
    fingerprint = CopiedReference(Flat()).fingerprint()
    assert not CopiedReference(torch.nn.ModuleList([Flat(), Flat()])).has_fingerprint(fingerprint)
