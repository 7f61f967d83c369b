"""Everything in which a host is not like hookline's own `Trainer`, with the reasons: there is nothing else."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hosts.changes import (
    Change,
    Names,
    absent,
    absent_behind,
    also_before,
    also_behind,
    moved_before,
    moved_behind,
    only_first,
    only_last,
)

HOSTS = (
    *("trainer", "bare_loop", "torch", "jax", "accelerate", "huggingface", "trl_sft", "trl_grpo", "learner"),
    *("lightning", "keras", "ray"),
)


@dataclass(frozen=True)
class Difference:
    """A moment that a host tells in another way."""

    host: str
    moment: str
    change: Change
    reason: str


NO_OPTIMIZER = "A loop of one's own does not show its optimizer; with `hookline.integrations.torch.run` it does."
FUNCTIONAL = "In JAX there is no optimizer that could be asked: an update is a function of the state."
KERAS_UPDATES = "Keras does not tell when its optimizer is about to move."
ONE_BODY = "The body of the loop is forward, backward and update in one: the batch ends when the body does."
LIGHTNING_OUTPUTS = "Lightning moves the optimizer inside of the batch, and has the outputs only behind that."
SUMMARY = "Hugging Face logs how long the training took: one more row, before the end."
GENERATES = "Completions are generated for each step."
GENERATES_IN_BATCH = "TRL generates inside of the batch that is trained on."
ONE_EPOCH = "Rollouts never end: there is one epoch."
FIRST_ROLLOUT = (
    "The first batch of an epoch is made before it starts, so that it depends on nothing that callbacks draw."
)
LESSONS = "Rollouts have no batches to validate on: hooks evaluate lessons, which is told by `on_eval`."
AFTER_ROLLOUT = "Lessons are evaluated behind a rollout, before the step that learns from it."
NEW_WEIGHTS = "The policy is given the new weights with each update."

UPDATE, BATCH_END, STEP_START = "on_before_optimizer_step", "on_train_batch_end", "on_step_start"
VALIDATION = [
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_validation_epoch_end",
    "on_validation_end",
]

DIFFERENCES = [
    Difference("bare_loop", UPDATE, absent(), NO_OPTIMIZER),
    Difference("jax", UPDATE, absent(), FUNCTIONAL),
    Difference("keras", UPDATE, absent(), KERAS_UPDATES),
    Difference("torch", BATCH_END, moved_behind(UPDATE), ONE_BODY),
    Difference("accelerate", BATCH_END, moved_behind(UPDATE), ONE_BODY),
    Difference("ray", BATCH_END, moved_behind(UPDATE), ONE_BODY),
    Difference("lightning", BATCH_END, moved_behind(UPDATE), LIGHTNING_OUTPUTS),
    *(
        Difference(host, "on_log", also_before("on_train_end"), SUMMARY)
        for host in ("huggingface", "trl_sft", "trl_grpo")
    ),
    Difference("trl_grpo", "on_rollout_end", also_behind("on_train_batch_start"), GENERATES_IN_BATCH),
    Difference("trl_grpo", "on_rollout_start", also_before("on_rollout_end"), GENERATES_IN_BATCH),
    Difference("learner", "on_log", absent_behind("on_validation_batch_end"), AFTER_ROLLOUT),
    *(Difference("learner", moment, absent(), LESSONS) for moment in VALIDATION),
    Difference("learner", "on_rollout_start", also_before(STEP_START), GENERATES),
    Difference("learner", "on_rollout_end", also_behind("on_rollout_start"), GENERATES),
    Difference("learner", "on_weights_update", also_behind(UPDATE), NEW_WEIGHTS),
    Difference("learner", "on_eval", moved_before(STEP_START), AFTER_ROLLOUT),
    Difference("learner", "on_log", also_before("on_eval"), AFTER_ROLLOUT),
    Difference("learner", "on_train_epoch_start", only_first(), ONE_EPOCH),
    Difference("learner", "on_train_epoch_start", moved_behind("on_rollout_end"), FIRST_ROLLOUT),
    Difference("learner", "on_train_epoch_end", only_last(), ONE_EPOCH),
]


@dataclass(frozen=True)
class SteeringDifference:
    """Something that comes of steering in another way."""

    host: str
    scenario: str
    fact: str
    value: Any
    reason: str


LAST_VALIDATION = "It validates at the end of an epoch also where that is cut short by a stop."
VALIDATE_WHEN_STOPPED = ("huggingface", "trl_sft", "trl_grpo", "lightning", "keras")

STEERING_DIFFERENCES = [
    SteeringDifference(host, "stop", "validations", 1, LAST_VALIDATION) for host in VALIDATE_WHEN_STOPPED
]


LESSON_HOOK = "It evaluates the lessons of a rollout worker: give it to `rl.train(hooks=[...])`."
JAX_PARAMETERS = "In JAX the parameters are arrays of the state: average them there, e.g. with `optax.ema`."
JAX_RATE = "In JAX the rate is part of the update: log it, e.g. `run.log(lr=schedule(step))`."

IDLE: dict[tuple[str, str], str] = {
    **{(host, "evaluation_hook"): LESSON_HOOK for host in HOSTS if host != "learner"},
    ("bare_loop", "gradient_monitor"): NO_OPTIMIZER,
    ("jax", "gradient_monitor"): FUNCTIONAL,
    ("jax", "learning_rate_monitor"): JAX_RATE,
    ("jax", "ema"): JAX_PARAMETERS,
    ("keras", "gradient_monitor"): KERAS_UPDATES,
}
"""Built-in callbacks that can do nothing in a host, by the host and their name; they say so when training starts."""


NO_PREDICTIONS = {
    "keras": "Keras gives its callbacks its logs, and no predictions.",
    "trl_sft": "TRL computes no logits in an evaluation unless its trainer has `compute_metrics`.",
    "learner": LESSONS,
}
"""Hosts whose `on_validation_batch_end` has no predictions, with the reasons."""


LOSS_ONLY = "Only the loss is looked at, when its update is made: the gradients are not shown."
PARTLY: dict[tuple[str, str], str] = {(host, "nan_guard"): LOSS_ONLY for host in ("bare_loop", "jax", "keras")}
"""Built-in callbacks that can do only a part of what they are for, by the host and their name."""


KERAS_ON_TORCH = "With Keras on torch. On JAX or TensorFlow the weights are not torch's, and it says so."
NOTES: dict[tuple[str, str], str] = {("keras", "ema"): KERAS_ON_TORCH}
"""What tests elsewhere hold of built-in callbacks in a host, by the host and their name."""


def partly(host: str) -> dict[str, str]:
    """The built-in callbacks that can do only a part, with the reasons."""
    return {name: reason for (where, name), reason in PARTLY.items() if where == host}


def idle(host: str) -> dict[str, str]:
    """The built-in callbacks that can do nothing in a host, with the reasons."""
    return {name: reason for (where, name), reason in IDLE.items() if where == host}


def of(host: str) -> list[Difference]:
    """The differences of a host."""
    return [difference for difference in DIFFERENCES if difference.host == host]


def applied(reference: Names, differences: Iterable[Difference]) -> Names:
    """What a host tells that has these differences."""
    names = reference
    for difference in differences:
        names = difference.change(names, difference.moment)
    return names


def superfluous(reference: Names, told: Names, differences: list[Difference]) -> list[Difference]:
    """The differences without which the rest would say the same."""
    return [
        left_out
        for left_out in differences
        if applied(reference, [other for other in differences if other is not left_out]) == told
    ]
