"""`GRPOConfig`, the settings of the loss, and `RLConfig`, the settings of a whole reinforcement learning."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec

from hookline._engine.checks import require_integer, require_number
from hookline._engine.errors import OptionError
from hookline.config.loading import CheckedStruct
from hookline.loops.trainer_config import TrainerConfig
from hookline.loops.worker_config import ModelOptions
from hookline.rl.policies.server import ServerPolicyConfig
from hookline.rl.rollouts.config import CurriculumConfig, RolloutConfig, RolloutWorkerConfig
from hookline.rl.rollouts.scoring import AdvantageOptions, RewardScale

LossType = Literal["dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"]
CorrectionMode = Literal["sequence_mask", "sequence_truncate", "token_mask", "token_truncate"]


class GRPOConfig(CheckedStruct, kw_only=True):
    """The settings of GRPO, with TRL's names and defaults; the documentation has the formulas.

    Args:
        loss_type: How the losses of tokens become one number: "dapo" averages over all tokens of an optimizer step,
            "bnpo" over those of a rollout step, "grpo" over sequences, "dr_grpo" divides by a constant length, "cispo"
            clips the weight of the log-probability instead of the ratio, "sapo" replaces clipping by a soft gate,
            "luspo" sums over sequences, "vespo" weights sequences by a smooth function of their ratio.
        epsilon: Probability ratios are clipped at 1 minus this.
        epsilon_high: Ratios are clipped at 1 plus this; ``epsilon`` by default. For "cispo", the largest weight.
        delta: The largest ratio where the advantage is negative; None sets no limit.
        importance_sampling_level: Ratios of a "token", or one of a "sequence" (GSPO): the geometric mean of its tokens.
        scale_rewards: Divide advantages by the standard deviation of their "group", of the "batch", or by "none"; True
            is "group" and False is "none".
        multi_objective_aggregation: Sum the rewards and then normalize them, or normalize each reward function within
            its groups, then the weighted sum over the batch (GDPO).
        advantage_clip: Advantages are clipped to this distance from 0; None leaves them.
        beta: The weight of the divergence from the reference model, which is the initial one; 0 leaves it out.
        use_bias_correction_kl: Multiply the divergence by the ratio, so that its gradient is that of the reverse KL.
        sync_ref_model: Move the reference model towards the policy every ``ref_model_sync_steps`` optimizer steps.
        ref_model_mixup_alpha: The share of the policy in the reference model after each of these moves.
        ref_model_sync_steps: The number of optimizer steps between two moves of the reference model.
        sapo_temperature_pos: The temperature of the gate of "sapo" where the advantage is positive.
        sapo_temperature_neg: The temperature of the gate of "sapo" elsewhere.
        vespo_k_pos: The exponent of the ratio in "vespo" where the advantage is not negative.
        vespo_lambda_pos: The decay with the ratio in "vespo" where the advantage is not negative.
        vespo_k_neg: The exponent where the advantage is negative.
        vespo_lambda_neg: The decay where the advantage is negative.
        mask_truncated_completions: Leave completions that did not end by themselves out of the loss.
        top_entropy_quantile: Learn only from this share of the tokens, those with the highest entropy; 1 uses all.
        entropy_coef: The weight of the mean entropy of a token, which is subtracted from the loss.
        use_adaptive_entropy: Raise ``entropy_coef`` after a step whose entropy is at or below ``entropy_target``, and
            lower it after any other; it has no effect on a step that follows one with a higher entropy.
        entropy_coef_min: The lowest adapted ``entropy_coef``.
        entropy_coef_max: The highest adapted ``entropy_coef``.
        entropy_coef_delta: The change of ``entropy_coef`` by one step.
        entropy_target: The entropy of a token in nats that ``use_adaptive_entropy`` keeps.
        vllm_importance_sampling_correction: Weight tokens by the ratio of the learner's probabilities to those of the
            policy that generated them, where these differ: inference servers compute them in another way.
        vllm_importance_sampling_mode: Whether such ratios are those of a "token" or of a whole "sequence", and what
            happens to one out of bounds: "truncate" sets it to the bound, "mask" to 0.
        vllm_importance_sampling_clip_max: The upper bound of these ratios; None sets none.
        vllm_importance_sampling_clip_min: The lower bound of these ratios; None sets none.
        off_policy_mask_threshold: Leave out sequences with a negative advantage whose mean log-probability fell by more
            than this since they were generated; None leaves out none.
        dynamic_sampling: Leave out groups whose rewards are all equal, and make further rollout steps until the batch
            has ``RolloutConfig.prompts`` other groups; what is too much is discarded.
        max_generation_batches: The most rollout steps for one such batch; it may then have fewer groups.
        updates: How many optimizer steps learn from each rollout (TRL's ``num_iterations``).
        mini_batches: Divide each rollout step into this many parts, each for an optimizer step of its own; all of them
            are used before any is used again.
        micro_batch_size: The most completions in one forward and backward pass, which bounds the memory and does not
            change the loss; None puts all of a mini-batch into one.
    """

    renamed: ClassVar[Mapping[str, str]] = {
        "clip": "epsilon",
        "kl": "beta",
        "num_iterations": "updates",
        "steps_per_generation": "mini_batches",
        "per_device_train_batch_size": "micro_batch_size",
        "gradient_accumulation_steps": "TrainerConfig.accumulation",
        "num_generations": "RolloutConfig.group_size",
        "max_completion_length": "RolloutConfig.max_tokens",
        "temperature": "RolloutConfig.temperature",
        "top_p": "RolloutConfig.top_p",
        "reward_weights": "RolloutConfig.reward_weights",
    }

    loss_type: LossType = "dapo"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    importance_sampling_level: Literal["token", "sequence"] = "token"
    scale_rewards: RewardScale | bool = "group"
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    advantage_clip: float | None = None
    beta: float = 0.0
    use_bias_correction_kl: bool = True
    sync_ref_model: bool = False
    ref_model_mixup_alpha: float = 0.6
    ref_model_sync_steps: int = 512
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0
    mask_truncated_completions: bool = False
    top_entropy_quantile: float = 1.0
    entropy_coef: float = 0.0
    use_adaptive_entropy: bool = False
    entropy_coef_min: float = 0.0
    entropy_coef_max: float = 1.0
    entropy_coef_delta: float = 0.005
    entropy_target: float = 0.2
    vllm_importance_sampling_correction: bool = True
    vllm_importance_sampling_mode: CorrectionMode = "sequence_mask"
    vllm_importance_sampling_clip_max: float | None = 3.0
    vllm_importance_sampling_clip_min: float | None = None
    off_policy_mask_threshold: float | None = None
    dynamic_sampling: bool = False
    max_generation_batches: int = 10
    updates: int = 1
    mini_batches: int = 1
    micro_batch_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.scale_rewards, bool):
            self.scale_rewards = "group" if self.scale_rewards else "none"
        self._check_numbers()
        self._check_combinations()

    @property
    def upper_epsilon(self) -> float:
        """The distance from 1 at which ratios are clipped above; for "cispo", the largest weight."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    @property
    def uses_entropy_bonus(self) -> bool:
        """Whether entropy is part of the loss; an adapted coefficient of 0 may rise again."""
        return self.entropy_coef != 0 or self.use_adaptive_entropy

    def advantages(self, reward_weights: Mapping[str, float]) -> AdvantageOptions:
        """Return how advantages are computed, given the weights of the reward functions."""
        normalizes_first = self.multi_objective_aggregation == "normalize_then_sum"
        assert not isinstance(self.scale_rewards, bool)
        return AdvantageOptions(self.scale_rewards, normalizes_first, self.advantage_clip, dict(reward_weights))

    def _check_numbers(self) -> None:
        for name in ("epsilon", "sapo_temperature_pos", "sapo_temperature_neg"):
            require_number(name, getattr(self, name), above=0)
        of_importance = ("vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min")
        for name in ("epsilon_high", "delta", "advantage_clip", "off_policy_mask_threshold", *of_importance):
            require_number(name, getattr(self, name), above=0, optional=True)
        of_vespo = ("vespo_k_pos", "vespo_k_neg", "vespo_lambda_pos", "vespo_lambda_neg")
        for name in ("beta", "entropy_coef_min", "entropy_coef_delta", "entropy_target", *of_vespo):
            require_number(name, getattr(self, name), minimum=0)
        require_number("entropy_coef", self.entropy_coef)
        require_number("entropy_coef_max", self.entropy_coef_max, minimum=self.entropy_coef_min)
        for name in ("top_entropy_quantile", "ref_model_mixup_alpha"):
            require_number(name, getattr(self, name), minimum=0, maximum=1)
        for name in ("ref_model_sync_steps", "max_generation_batches", "updates", "mini_batches"):
            require_integer(name, getattr(self, name))
        require_integer("micro_batch_size", self.micro_batch_size, optional=True)

    def _check_combinations(self) -> None:
        low, high = self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
        mode = self.vllm_importance_sampling_mode
        if low is not None and high is not None and low >= high:
            raise OptionError(
                f"vllm_importance_sampling_clip_min={low!r} with vllm_importance_sampling_clip_max={high!r}: give a "
                "lower bound below the upper one."
            )
        if low is None and high is None and mode.endswith("truncate") and self.vllm_importance_sampling_correction:
            raise OptionError(
                f"vllm_importance_sampling_mode={mode!r} without bounds truncates nothing: give "
                "vllm_importance_sampling_clip_max or vllm_importance_sampling_clip_min."
            )
        if self.sync_ref_model and not self.beta:
            raise OptionError("sync_ref_model=True with beta=0: there is no reference model. Give a beta.")
        if self.use_adaptive_entropy and not self.entropy_coef_min <= self.entropy_coef <= self.entropy_coef_max:
            raise OptionError(
                f"entropy_coef={self.entropy_coef!r} with use_adaptive_entropy=True: give a number from "
                f"entropy_coef_min={self.entropy_coef_min!r} to entropy_coef_max={self.entropy_coef_max!r}."
            )


class RLConfig(CheckedStruct, kw_only=True):
    """The settings of a reinforcement learning.

    Args:
        model: The initial model, unless `train` gets one.
        policy: The inference servers that sample the completions; by default the model that is trained does.
        curriculum: The lessons, and when they are evaluated.
        rollout: The settings of rollouts.
        grpo: The settings of the loss.
        train: The settings of training: its length, optimizer and record.
        executor: "local" makes rollouts and learns in turns in this process; "ray" uses Ray actors.
        rollout_workers: With Ray, how many actors make rollouts.
        max_staleness: With Ray, how many versions old the weights of a rollout may be when it is learnt from; older
            rollouts are discarded.
        learner_restarts: With Ray, how often in a row the learner is started again after its process died, without a
            new checkpoint in between; it resumes from the last one.
    """

    model: ModelOptions | None = None
    policy: ServerPolicyConfig | None = None
    curriculum: CurriculumConfig
    rollout: RolloutConfig = msgspec.field(default_factory=RolloutConfig)
    grpo: GRPOConfig = msgspec.field(default_factory=GRPOConfig)
    train: TrainerConfig
    executor: Literal["local", "ray"] = "local"
    rollout_workers: int = 1
    max_staleness: int = 2
    learner_restarts: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integer("rollout_workers", self.rollout_workers)
        require_integer("max_staleness", self.max_staleness, minimum=0)
        require_integer("learner_restarts", self.learner_restarts, minimum=0)
        if self.rollout.group_size == 1 or self.rollout.temperature == 0:
            raise OptionError(
                f"RLConfig(rollout): group_size={self.rollout.group_size} and temperature={self.rollout.temperature} "
                "make all completions of a group equal, so there is nothing to learn from: give a group_size of at "
                "least 2 and a temperature above 0."
            )
        if self.executor == "ray" and self.policy is not None:
            raise OptionError("RLConfig(policy=...) with executor='ray': give executor='local' to sample from servers.")
        if self.policy is not None and self.policy.weights is None:
            raise OptionError(
                "RLConfig(policy=...) without weights: the servers would keep the weights they started with. Give "
                "weights: checkpoint, adapter or broadcast."
            )
        if self.executor == "local" and self.rollout_workers > 1:
            raise OptionError("RLConfig(rollout_workers=...) requires executor='ray': one process has one worker.")


def worker_config(config: RLConfig) -> RolloutWorkerConfig:
    """Return the settings of the rollout workers."""
    return RolloutWorkerConfig(
        curriculum_config=config.curriculum,
        rollout=config.rollout,
        seed=config.train.seed or 0,
        output_dir=None,
        strict=config.train.strict,
        durability=config.train.durability,
        redact=config.train.redact,
    )
