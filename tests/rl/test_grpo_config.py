"""The settings of GRPO: TRL's names and defaults, refused values, and what the less usual ones do to a training."""

import itertools
import logging
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

import hookline as hl
from hookline import rl
from hookline.rl.environments import RewardDataset
from hookline.testing import character_tokenizer, tiny_causal_lm

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

torch.set_num_threads(1)
TOKENIZER = character_tokenizer("0123456789>x")
OURS = {"advantage_clip", "dynamic_sampling", "max_generation_batches", "updates", "mini_batches", "micro_batch_size"}


def test_grpo_config_names_and_defaults_are_those_of_trl():
    trl = pytest.importorskip("trl")
    theirs = {each.name: each.default for each in fields(trl.GRPOConfig)}
    own = rl.GRPOConfig()
    names = set(own.__struct_fields__) - OURS
    assert {name: getattr(own, name) for name in names} == {name: theirs[name] for name in names}
    assert set(own.renamed) - {"clip", "kl"} <= set(theirs)
    assert (theirs["num_iterations"], own.updates) == (1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": 0.2}, "GRPOConfig has no 'clip'. It is called epsilon"),
        ({"kl": 0.1}, "GRPOConfig has no 'kl'. It is called beta"),
        ({"num_iterations": 2}, "It is called updates"),
        ({"num_generations": 2}, r"It is called RolloutConfig\.group_size"),
        ({"gradient_accumulation_steps": 2}, r"It is called TrainerConfig\.accumulation"),
        ({"epsilon_hihg": 0.1}, "Did you mean 'epsilon_high'"),
        ({"loss_type": "ppo"}, "loss_type='ppo'.*one of 'dapo', 'grpo', 'bnpo'"),
        ({"importance_sampling_level": "word"}, "one of 'token', 'sequence'"),
        ({"scale_rewards": "prompt"}, "one of 'group', 'batch', 'none'"),
        ({"scale_rewards": 1}, "one of 'group', 'batch', 'none'"),
        ({"multi_objective_aggregation": "sum"}, "one of 'sum_then_normalize', 'normalize_then_sum'"),
        ({"vllm_importance_sampling_mode": "mask"}, "one of 'sequence_mask'"),
        ({"epsilon": 0.0}, "epsilon=0.0: give a finite number greater than 0"),
        ({"epsilon_high": -0.1}, "epsilon_high=-0.1"),
        ({"delta": 0.0}, "delta=0.0"),
        ({"advantage_clip": 0.0}, "advantage_clip=0.0"),
        ({"beta": -0.1}, "beta=-0.1: give a finite number of at least 0"),
        ({"beta": float("nan")}, "beta=nan"),
        ({"sapo_temperature_pos": 0.0}, "sapo_temperature_pos=0.0"),
        ({"sapo_temperature_neg": -1.0}, "sapo_temperature_neg=-1.0"),
        ({"vespo_k_pos": -1.0}, "vespo_k_pos=-1.0"),
        ({"vespo_lambda_neg": float("inf")}, "vespo_lambda_neg=inf"),
        ({"top_entropy_quantile": 1.1}, "top_entropy_quantile=1.1"),
        ({"entropy_coef": float("inf")}, "entropy_coef=inf"),
        ({"entropy_coef_min": 0.5, "entropy_coef_max": 0.1}, "entropy_coef_max=0.1: .*of at least 0.5"),
        ({"entropy_coef": 2.0, "use_adaptive_entropy": True}, "entropy_coef=2.0 with use_adaptive_entropy=True"),
        ({"entropy_coef_delta": -0.1}, "entropy_coef_delta=-0.1"),
        ({"entropy_target": -1.0}, "entropy_target=-1.0"),
        ({"ref_model_mixup_alpha": 1.5}, "ref_model_mixup_alpha=1.5"),
        ({"ref_model_sync_steps": 0}, "ref_model_sync_steps=0: give a whole number of at least 1"),
        ({"sync_ref_model": True}, "sync_ref_model=True with beta=0: there is no reference model"),
        ({"off_policy_mask_threshold": 0.0}, "off_policy_mask_threshold=0.0"),
        ({"vllm_importance_sampling_clip_max": 0.0}, "vllm_importance_sampling_clip_max=0.0"),
        ({"vllm_importance_sampling_clip_min": 3.0}, "give a lower bound below the upper one"),
        (
            {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": None},
            "without bounds truncates nothing",
        ),
        ({"max_generation_batches": 0}, "max_generation_batches=0"),
        ({"updates": 0}, "updates=0: give a whole number of at least 1"),
        ({"mini_batches": 0}, "mini_batches=0"),
        ({"micro_batch_size": 0}, "micro_batch_size=0: give a whole number of at least 1, or None"),
    ],
)
def test_grpo_config_value_that_is_not_accepted_raises(options, message):
    with pytest.raises(hl.OptionError, match=message):
        rl.GRPOConfig(**options)


def test_rollout_config_scale_advantages_names_its_place():
    with pytest.raises(hl.OptionError, match=r"It is called GRPOConfig\.scale_rewards"):
        rl.RolloutConfig(scale_advantages=False)  # type: ignore[call-arg]


class Setup:
    """A learner whose rewards come from a function of the prompt and the completion."""

    def __init__(self, reward: Any, *, grpo: Any = None, accumulation: int = 1, rollout: Any = None, **train: Any):
        def function(prompts: Any, completions: Any, **columns: Any) -> list[float]:
            return [float(reward(*each)) for each in zip(prompts, completions, strict=True)]

        environment = RewardDataset([{"prompt": f"{number}>"} for number in range(200)], [function])
        config = rl.RolloutWorkerConfig(
            curriculum_config=rl.CurriculumConfig([rl.Lesson("lesson", environment)], micro_eval_frequency=0),
            rollout=rl.RolloutConfig(**{"prompts": 4, "group_size": 4, "max_tokens": 5} | (rollout or {})),
            output_dir=None,
        )
        self.model = tiny_causal_lm(TOKENIZER, hidden_size=16, layers=1, heads=2)
        self.rows: list[dict[str, Any]] = []
        self.rollouts: list[list[rl.Rollout]] = []
        self.batches: list[Any] = []
        worker = rl.RolloutWorker(config, policy=rl.HFPolicy(self.model, TOKENIZER), hooks=[])
        options = {"max_steps": 3, "output_dir": None, "summary": False, "strict": True, "learning_rate": 0.01} | train
        self.learner = rl.GRPOLearner(
            self.model,
            worker,
            pad_id=TOKENIZER.pad_token_id,
            config=hl.TrainerConfig(accumulation=accumulation, **options),
            grpo=rl.GRPOConfig(**(grpo or {})),
            callbacks=[
                hl.on("log", self._log),
                hl.on("rollout_end", lambda loop, step_idx, rollouts: self.rollouts.append(rollouts)),
                hl.on("train_batch_start", lambda loop, batch: self.batches.append(batch)),
            ],
        )

    def _log(self, loop: Any, step: int, metrics: Any) -> None:
        if "loss" in metrics:
            self.rows.append(dict(metrics))

    def fit(self) -> "Setup":
        self.learner.fit()
        return self


def shortness(prompt: str, completion: str) -> float:
    return 1 - 0.1 * len(completion)


def test_learner_scale_rewards_is_that_of_the_samples_of_its_worker():
    advantages = [each.advantage or 0 for each in Setup(shortness, grpo={"scale_rewards": False}).fit().rollouts[0]]
    assert advantages == pytest.approx([round(each * 40) / 40 for each in advantages])  # quarters of tenths
    clipped = Setup(shortness, grpo={"scale_rewards": False, "advantage_clip": 0.05}).fit().rollouts[0]
    assert [each.advantage for each in clipped] == pytest.approx([max(-0.05, min(0.05, each)) for each in advantages])


def test_learner_batch_deviation_spans_the_groups_of_a_rollout_step():
    made = Setup(shortness, grpo={"scale_rewards": "batch"}, max_steps=1).fit()
    advantages = torch.tensor([each.advantage for each in made.rollouts[0]])
    totals = torch.tensor([each.total for each in made.rollouts[0]])
    distances = totals - totals.view(4, 4).mean(1).repeat_interleave(4)
    torch.testing.assert_close(advantages, distances / (totals.std() + 1e-4))


def test_learner_reward_weights_are_those_of_its_worker_or_given():
    given = {"grpo": {"multi_objective_aggregation": "normalize_then_sum"}, "rollout": {"reward_weights": {"r": 2.0}}}
    assert Setup(shortness, **given).learner.advantages.reward_weights == {"r": 2.0}
    learner = learner_of(given["grpo"], reward_weights={"r": 3.0})
    assert learner.advantages.reward_weights == {"r": 3.0}


# Dynamic sampling


def some_prompts(prompt: str, completion: str) -> float:
    """Equal for every completion of half of the prompts."""
    return shortness(prompt, completion) if int(prompt[:-1]) % 2 else 0.5


def test_learner_dynamic_sampling_fills_the_batch_with_groups_that_differ():
    made = Setup(some_prompts, grpo={"dynamic_sampling": True}).fit()
    assert [sum(own["sequences"] for own in batches) for batches in steps_of(made)] == [16, 16, 16]
    assert all((own["advantages"].view(4, 4) != 0).any(1).all() for own in made.batches)
    taken = [row["groups/rollout_steps"] for row in made.rows]
    assert sum(taken) == len(made.rollouts) > 3
    for row, steps in zip(made.rows, taken, strict=True):
        assert 4 * steps - row["groups/dropped"] - row["groups/discarded"] == 4
        assert row["groups/zero_variance"] == row["groups/dropped"] / (4 * steps)


def steps_of(made: Setup) -> list[list[Any]]:
    """The batches of each step."""
    ends = [index + 1 for index, batch in enumerate(made.batches) if batch["ends_step"]]
    return [made.batches[start:end] for start, end in itertools.pairwise([0, *ends])]


def test_learner_dynamic_sampling_is_bounded_and_uses_what_there_is(caplog):
    def one_prompt_in_ten(prompt: str, completion: str) -> float:
        return shortness(prompt, completion) if prompt == first[0] else 0.5

    first = ["none>"]
    made = Setup(one_prompt_in_ten, grpo={"dynamic_sampling": True, "max_generation_batches": 2}, max_steps=2)
    made.fit()
    assert [row["groups/rollout_steps"] for row in made.rows] == [2, 2]
    assert [row["loss"] for row in made.rows] == [0.0, 0.0]
    assert caplog.text.count("all groups of 2 rollout steps have equal rewards") == 1


def test_learner_without_dynamic_sampling_learns_from_each_rollout_step():
    made = Setup(some_prompts).fit()
    assert len(made.rollouts) == 3
    assert not any("groups/dropped" in row for row in made.rows)


# Mini-batches and micro-batches


def test_learner_mini_batches_are_optimizer_steps_each_of_them_several_times():
    made = Setup(shortness, grpo={"mini_batches": 2, "updates": 2}, max_steps=8).fit()
    steps = [sorted(map(tuple, batch["ids"].tolist())) for (batch,) in steps_of(made)]
    assert steps[0] == steps[2] != steps[1] == steps[3]
    assert steps[4] == steps[6] not in steps[:4]
    assert len(made.rollouts) == 2
    assert [row["ratio"] == pytest.approx(1.0, abs=1e-6) for row in made.rows[:4]] == [True, False, False, False]
    assert [("seconds/generate" in row, row["seconds/learn"] > 0) for row in made.rows[:4]] == [
        (True, True), *[(False, True)] * 3
    ]  # fmt: skip


@pytest.mark.parametrize("accumulation", [1, 2])
def test_learner_micro_batches_with_callbacks_are_batches_of_a_step(accumulation):
    made = Setup(shortness, grpo={"micro_batch_size": 6}, accumulation=accumulation).fit()
    assert [len(batches) for batches in steps_of(made)] == [3 * accumulation] * 3
    assert max(batch["sequences"] for batch in made.batches) <= 6
    assert [row["rollouts"] for row in made.rows] == [16] * 3


class SavedBytes:
    """The most bytes that one forward pass saves for its backward pass, and the most logits."""

    def __init__(self, made: Setup) -> None:
        self.most = self.logits = self._now = 0
        made.model.lm_head.register_forward_hook(self._see_logits)
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        begin = hl.on("train_batch_start", lambda loop: self._begin(hooks), name="begin")
        end = hl.on("train_batch_end", lambda loop: hooks.__exit__(None, None, None), name="end")
        made.learner.callbacks.extend([begin, end])

    def _begin(self, hooks: Any) -> None:
        self._now = 0
        hooks.__enter__()

    def _pack(self, tensor: Any) -> Any:
        self._now += tensor.nbytes
        self.most = max(self.most, self._now)
        return tensor

    def _see_logits(self, module: Any, given: Any, logits: Any) -> None:
        if torch.is_grad_enabled():
            self.logits = max(self.logits, logits.numel())


def test_learner_micro_batches_keep_the_memory_flat_in_the_number_of_prompts():
    def measured(prompts: int, size: int | None) -> SavedBytes:
        made = Setup(shortness, grpo={"micro_batch_size": size}, rollout={"prompts": prompts}, max_steps=1)
        saved = SavedBytes(made)
        made.fit()
        return saved

    few, many, whole = measured(4, 4), measured(32, 4), measured(32, None)
    assert many.most < 1.2 * few.most
    assert many.logits <= 4 * 7 * len(TOKENIZER)  # prompts differ by up to two tokens
    assert whole.most > 6 * many.most
    assert whole.logits > 6 * many.logits


# The reference


def test_learner_reference_follows_the_policy_by_the_share_and_the_interval():
    def kl(**options: Any) -> list[float]:
        made = Setup(shortness, grpo={"beta": 0.01, **options}, max_steps=5).fit()
        return [row["kl"] for row in made.rows]

    kept = kl()
    replaced = kl(sync_ref_model=True, ref_model_mixup_alpha=1.0, ref_model_sync_steps=2)
    mixed = kl(sync_ref_model=True, ref_model_mixup_alpha=0.5, ref_model_sync_steps=2)
    assert kept[:2] == replaced[:2] == mixed[:2]
    assert replaced[2] == pytest.approx(0, abs=1e-6)
    assert replaced[4] == pytest.approx(0, abs=1e-6) != replaced[3]
    assert replaced[2] < mixed[2] < kept[2]


# Combinations that a learner refuses, or warns about


def learner_of(grpo: Any, **options: Any) -> Any:
    source: Any = SimpleNamespace(exact_logprobs=False, latest_version=0, step=0)
    config = hl.TrainerConfig(max_steps=1, output_dir=None)
    model = tiny_causal_lm(TOKENIZER, hidden_size=16, layers=1, heads=2)
    return rl.GRPOLearner(model, source, pad_id=0, config=config, grpo=rl.GRPOConfig(**grpo), **options)


def test_learner_dr_grpo_without_a_largest_length_raises():
    with pytest.raises(hl.OptionError, match="loss_type='dr_grpo' divides by the largest length.*give max_tokens"):
        learner_of({"loss_type": "dr_grpo"})
    assert learner_of({"loss_type": "dr_grpo"}, max_tokens=4).grpo.loss_type == "dr_grpo"


def test_learner_vespo_with_weights_of_sequences_for_an_inexact_policy_raises():
    with pytest.raises(hl.OptionError, match="loss_type='vespo' with vllm_importance_sampling_mode='sequence_mask'"):
        learner_of({"loss_type": "vespo"})
    learner_of({"loss_type": "vespo", "vllm_importance_sampling_correction": False})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_type": "luspo"}, "loss_type='luspo' is made for importance_sampling_level='sequence'"),
        ({"importance_sampling_level": "sequence"}, "weights each sequence by its length. GSPO is loss_type='grpo'"),
        ({"loss_type": "cispo"}, "limits weights to epsilon=0.2"),
    ],
)
def test_learner_warns_of_combinations_that_rarely_make_sense(caplog, options, message):
    with caplog.at_level(logging.WARNING):
        learner_of(options)
    assert message in caplog.text
