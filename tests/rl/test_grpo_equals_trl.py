"""Every option of the loss beside TRL's trainer: the same tokens, masks and rewards give the same loss and gradients.

TRL's trainer gets fixed completions in place of those it would generate, scores them, and computes its loss. A learner
gets the same ones as rollouts, and makes two optimizer steps with them. The second has other weights than those that
generated, so ratios are clipped; TRL's model is set to these weights before it computes its loss again.
"""

from dataclasses import dataclass
from typing import Any

import pytest

import hookline as hl
from hookline import rl

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

from datasets import Dataset  # noqa: E402
from fixed_rollouts import COUNT, FIXED, GROUP_SIZE, MAX_TOKENS, TOKENIZER, Source, model  # noqa: E402
from trl.trainer.utils import split_tensor_dict  # noqa: E402

torch.set_num_threads(1)
STEP_LENGTH = 0.1
"""How far the first step moves the weights, whatever the loss is: some ratios must be clipped afterwards."""
TOLERANCE = 1e-6


@dataclass
class Step:
    """An optimizer step: the weights before it, its loss, its gradients, and what else was recorded."""

    weights: dict[str, Any]
    loss: float
    gradients: dict[str, Any]
    metrics: dict[str, float]


def learnt(
    options: dict[str, Any], *, temperature: float, accumulation: int, exact: bool, steps: int = 2
) -> list[Step]:
    """The steps of a learner."""
    made: list[Step] = []

    class Watch(hl.Callback):
        def on_before_optimizer_step(self, loop: Any, optimizer: Any) -> None:
            own = dict(loop.model.named_parameters())
            weights = {name: parameter.detach().clone() for name, parameter in own.items()}
            gradients = {name: parameter.grad.clone() for name, parameter in own.items()}
            made.append(Step(weights, 0.0, gradients, {}))

        def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
            made[-1].loss, made[-1].metrics = metrics["loss"], dict(metrics)

    net = model()
    config = hl.TrainerConfig(
        max_steps=steps,
        output_dir=None,
        summary=False,
        strict=True,
        accumulation=accumulation,
        gradient_clip_norm=1.0,
    )
    learner = rl.GRPOLearner(
        net,
        Source(parts=accumulation, exact=exact),
        pad_id=TOKENIZER.pad_token_id,
        config=config,
        grpo=rl.GRPOConfig(**{"updates": steps, **options}),
        temperature=temperature,
        max_tokens=MAX_TOKENS,
        optimizer=torch.optim.SGD(net.parameters(), lr=STEP_LENGTH),
        callbacks=[Watch()],
    )
    learner.fit()
    return made


class FixedTrainer(trl.GRPOTrainer):  # type: ignore[name-defined]
    """TRL's trainer, which gets the fixed completions in place of generating them."""

    def _generate(self, prompts: list[str]) -> Any:
        logprobs = FIXED.reported if self.use_vllm else None
        return FIXED.prompts, FIXED.completions, FIXED.masks, [""] * COUNT, logprobs, {}, None, None


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where TRL finds the initial model, to make its reference model from."""
    directory = tmp_path_factory.mktemp("model")
    model().save_pretrained(directory)
    return directory


def first(prompts, completions, **columns):
    return FIXED.rewards["first"]


def second(prompts, completions, **columns):
    return FIXED.rewards["second"]


def trainer(place: Any, options: dict[str, Any], *, temperature: float, accumulation: int, exact: bool) -> Any:
    """TRL's trainer with these options; if log-probabilities are not exact, as if an inference server had generated."""
    net = model()
    net.config._name_or_path = str(place)
    args = trl.GRPOConfig(
        str(place / "out"),
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=COUNT // accumulation,
        gradient_accumulation_steps=accumulation,
        num_generations=GROUP_SIZE,
        num_iterations=2,
        max_completion_length=MAX_TOKENS,
        temperature=temperature,
        **options,
    )
    data = Dataset.from_list([{"prompt": str(index)} for index in range(COUNT)])
    made = FixedTrainer(net, [first, second], args=args, train_dataset=data, processing_class=TOKENIZER)
    made.use_vllm = not exact
    made.current_gradient_accumulation_steps = accumulation
    made.model.train()
    return made


def assert_equal_steps(made: Any, steps: list[Step], accumulation: int) -> list[dict[str, float]]:
    """Compare TRL's losses and gradients with those of a learner at the same weights; returns TRL's metrics."""
    own, metrics = dict(made.model.named_parameters()), []
    batch = made._generate_and_score_completions([{"prompt": str(index)} for index in range(COUNT)])
    for step in steps:
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(step.weights[name])
                parameter.grad = None
        made._metrics["train"].clear()
        losses = []
        for part in range(accumulation):
            made.accelerator.gradient_state._set_sync_gradients(part == accumulation - 1)
            losses.append(made._compute_loss(made.model, split_tensor_dict(batch, accumulation)[part]))
        loss = sum(losses)
        loss.backward()
        assert step.loss == pytest.approx(loss.item(), abs=TOLERANCE)
        for name, parameter in own.items():
            torch.testing.assert_close(step.gradients[name], parameter.grad, atol=TOLERANCE, rtol=TOLERANCE)
        metrics.append({name: sum(values) / len(values) for name, values in made._metrics["train"].items()})
    return metrics


CASES: dict[str, dict[str, Any]] = {
    **{name: {"loss_type": name} for name in ("dapo", "grpo", "bnpo", "dr_grpo", "sapo")},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.1},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "luspo of tokens": {"loss_type": "luspo"},
    "vespo": {"loss_type": "vespo"},
    "vespo by other numbers": {
        "loss_type": "vespo",
        "vespo_k_pos": 1.0,
        "vespo_lambda_pos": 2.0,
        "vespo_k_neg": 2.5,
        "vespo_lambda_neg": 0.5,
    },
    "sapo by other numbers": {"loss_type": "sapo", "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 0.5},
    "epsilon": {"epsilon": 0.05, "epsilon_high": 0.4},
    "delta": {"delta": 1.3, "epsilon": 0.1},
    "GSPO": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.02},
    "KL": {"beta": 0.01},
    "KL without correction": {"beta": 0.01, "use_bias_correction_kl": False},
    "KL of sequences": {"beta": 0.01, "importance_sampling_level": "sequence", "loss_type": "grpo"},
    "truncated": {"mask_truncated_completions": True},
    "truncated, by sequences": {"mask_truncated_completions": True, "loss_type": "grpo"},
    "high entropy": {"top_entropy_quantile": 0.3},
    "highest entropy": {"top_entropy_quantile": 0.0},
    "entropy": {"entropy_coef": 0.2},
    "entropy of some": {"entropy_coef": 0.2, "top_entropy_quantile": 0.5, "loss_type": "grpo"},
    "adaptive entropy": {"entropy_coef": 0.1, "use_adaptive_entropy": True, "entropy_target": 3.0},
    "adaptive entropy, with limits": {
        "entropy_coef": 0.1,
        "use_adaptive_entropy": True,
        "entropy_target": 0.1,
        "entropy_coef_delta": 0.04,
        "entropy_coef_min": 0.05,
        "entropy_coef_max": 0.2,
        "loss_type": "grpo",
    },
    "off-policy mask": {"off_policy_mask_threshold": 0.01},
    "rewards by batch": {"scale_rewards": "batch"},
    "rewards unscaled": {"scale_rewards": "none"},
    "rewards unscaled, as a bool": {"scale_rewards": False},
    "rewards normalized first": {"multi_objective_aggregation": "normalize_then_sum"},
}
IMPORTANCE: dict[str, dict[str, Any]] = {
    **{
        mode: {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": 1.2}
        for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
    },
    "default": {},
    "lower bound": {
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_min": 0.9,
        "vllm_importance_sampling_clip_max": None,
    },
    "both bounds": {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_min": 0.8},
    "vespo": {"loss_type": "vespo", "vllm_importance_sampling_mode": "token_truncate"},
    "off-policy mask": {"off_policy_mask_threshold": 0.01},
    "off": {"vllm_importance_sampling_correction": False},
}
IN_PARTS = (
    *("dapo", "grpo", "bnpo", "dr_grpo", "sapo", "cispo", "luspo", "vespo", "KL of sequences", "high entropy"),
    *("entropy", "entropy of some", "truncated", "off-policy mask"),
)


def assert_equal_metrics(steps: list[Step], metrics: list[dict[str, float]]) -> None:
    """Compare what both record by the same names."""
    for step, expected in zip(steps, metrics, strict=True):
        shared = {name: value for name, value in expected.items() if name in step.metrics}
        assert "entropy" in shared
        assert {name: step.metrics[name] for name in shared} == pytest.approx(shared, abs=2 * TOLERANCE)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", CASES)
def test_learner_loss_gradients_and_metrics_are_those_of_trl(place, name, temperature):
    given: dict[str, Any] = {"temperature": temperature, "accumulation": 1, "exact": True}
    steps = learnt(CASES[name], **given)
    assert_equal_metrics(steps, assert_equal_steps(trainer(place, CASES[name], **given), steps, 1))


def test_learner_of_these_tests_clips_ratios_and_leaves_its_reference(place):
    (_, second) = learnt({"beta": 0.1}, temperature=1.0, accumulation=1, exact=True)
    assert min(second.metrics[f"clip_ratio/{name}_mean"] for name in ("low", "high")) > 0.05
    assert second.metrics["kl"] > 0.05


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", IMPORTANCE)
def test_learner_of_inexact_logprobs_corrects_them_as_trl_does(place, name, temperature):
    given: dict[str, Any] = {"temperature": temperature, "accumulation": 1, "exact": False}
    steps = learnt(IMPORTANCE[name], **given)
    made = trainer(place, IMPORTANCE[name], **given)
    metrics = assert_equal_steps(made, steps, 1)
    assert_equal_metrics(steps, metrics)
    names = [each for each in steps[0].metrics if each.startswith("sampling/")]
    assert len(names) == (0 if name == "off" else 5)


@pytest.mark.parametrize(("accumulation", "micro_batch_size"), [(1, 3), (2, None), (2, 3)])
@pytest.mark.parametrize("name", IN_PARTS)
def test_learner_of_several_rollout_steps_and_micro_batches_has_the_gradients_of_trl(
    place, name, accumulation, micro_batch_size
):
    given: dict[str, Any] = {"temperature": 1.0, "accumulation": accumulation, "exact": True}
    steps = learnt(CASES[name] | {"micro_batch_size": micro_batch_size}, **given)
    assert_equal_steps(trainer(place, CASES[name], **given), steps, accumulation)
