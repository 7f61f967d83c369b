"""All differences between each host and hookline's own `Trainer`, with their reasons."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hosts.changes import (
    Change,
    Names,
    absent,
    absent_after,
    also_after,
    also_before,
    moved_after,
    moved_before,
    only_first,
    only_last,
)

HOSTS = (
    *("trainer", "bare_loop", "torch", "jax", "accelerate", "huggingface", "trl_sft", "trl_grpo", "learner"),
    *("lightning", "keras", "ray"),
)


@dataclass(frozen=True)
class Difference:
    """A moment that a host fires differently."""

    host: str
    moment: str
    change: Change
    reason: str


NO_OPTIMIZER = "A bare loop does not know its optimizer; `hookline.integrations.torch.run` does."
FUNCTIONAL = "JAX has no optimizer object: an update is a function of the state."
KERAS_UPDATES = "Keras does not report when its optimizer is about to update."
ONE_BODY = "The loop's body contains forward, backward and update: the batch ends with the body."
LIGHTNING_OUTPUTS = "Lightning updates inside of the batch, and has the outputs only afterwards."
SUMMARY = "Hugging Face logs the duration of the training: one more row, before the end."
GENERATES = "Completions are generated for each step."
GENERATES_IN_BATCH = "TRL generates inside of the training batch."
ONE_EPOCH = "Rollouts have no end: there is one epoch."
FIRST_ROLLOUT = (
    "The first batch of an epoch is made before it starts, so that it does not depend on callbacks' random numbers."
)
LESSONS = "Rollouts have no validation batches: hooks evaluate lessons, reported by `on_eval`."
AFTER_ROLLOUT = "Lessons are evaluated after a rollout, before the step that learns from it."
NEW_WEIGHTS = "The policy receives the new weights with each update."

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
    Difference("torch", BATCH_END, moved_after(UPDATE), ONE_BODY),
    Difference("accelerate", BATCH_END, moved_after(UPDATE), ONE_BODY),
    Difference("ray", BATCH_END, moved_after(UPDATE), ONE_BODY),
    Difference("lightning", BATCH_END, moved_after(UPDATE), LIGHTNING_OUTPUTS),
    *(
        Difference(host, "on_log", also_before("on_train_end"), SUMMARY)
        for host in ("huggingface", "trl_sft", "trl_grpo")
    ),
    Difference("trl_grpo", "on_rollout_end", also_after("on_train_batch_start"), GENERATES_IN_BATCH),
    Difference("trl_grpo", "on_rollout_start", also_before("on_rollout_end"), GENERATES_IN_BATCH),
    Difference("learner", "on_log", absent_after("on_validation_batch_end"), AFTER_ROLLOUT),
    *(Difference("learner", moment, absent(), LESSONS) for moment in VALIDATION),
    Difference("learner", "on_rollout_start", also_before(STEP_START), GENERATES),
    Difference("learner", "on_rollout_end", also_after("on_rollout_start"), GENERATES),
    Difference("learner", "on_weights_update", also_after(UPDATE), NEW_WEIGHTS),
    Difference("learner", "on_eval", moved_before(STEP_START), AFTER_ROLLOUT),
    Difference("learner", "on_log", also_before("on_eval"), AFTER_ROLLOUT),
    Difference("learner", "on_train_epoch_start", only_first(), ONE_EPOCH),
    Difference("learner", "on_train_epoch_start", moved_after("on_rollout_end"), FIRST_ROLLOUT),
    Difference("learner", "on_train_epoch_end", only_last(), ONE_EPOCH),
]


@dataclass(frozen=True)
class SteeringDifference:
    """A request that has a different outcome in a host."""

    host: str
    scenario: str
    fact: str
    value: Any
    reason: str


LAST_VALIDATION = "It also validates at the end of an epoch that a stop cut short."
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
"""Built-in callbacks that cannot work in a host, by host and name; they warn when training starts."""


NO_PREDICTIONS = {
    "keras": "Keras gives callbacks logs, but no predictions.",
    "trl_sft": "TRL computes no logits in an evaluation unless its trainer has `compute_metrics`.",
    "learner": LESSONS,
}
"""Hosts whose `on_validation_batch_end` has no predictions, with the reasons."""


LOSS_ONLY = "It checks only the loss, after the update: the gradients are not available."
PARTLY: dict[tuple[str, str], str] = {(host, "nan_guard"): LOSS_ONLY for host in ("bare_loop", "jax", "keras")}
"""Built-in callbacks that work partly in a host, by host and name."""


KERAS_ON_TORCH = "With Keras on torch. On JAX or TensorFlow it warns that the weights are not torch's."
NOTES: dict[tuple[str, str], str] = {("keras", "ema"): KERAS_ON_TORCH}
"""Notes on built-in callbacks that other tests cover, by host and name."""


def partly(host: str) -> dict[str, str]:
    """Return the built-in callbacks that work partly in a host, with the reasons."""
    return {name: reason for (where, name), reason in PARTLY.items() if where == host}


def idle(host: str) -> dict[str, str]:
    """Return the built-in callbacks that cannot work in a host, with the reasons."""
    return {name: reason for (where, name), reason in IDLE.items() if where == host}


def of(host: str) -> list[Difference]:
    """Return the differences of a host."""
    return [difference for difference in DIFFERENCES if difference.host == host]


def applied(reference: Names, differences: Iterable[Difference]) -> Names:
    """Apply differences to the reference list of moments."""
    names = reference
    for difference in differences:
        names = difference.change(names, difference.moment)
    return names


def superfluous(reference: Names, fired: Names, differences: list[Difference]) -> list[Difference]:
    """Return the differences without which the others give the same list."""
    return [
        left_out
        for left_out in differences
        if applied(reference, [other for other in differences if other is not left_out]) == fired
    ]
