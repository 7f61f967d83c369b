"""All differences between each host and hookline's own `Trainer`, with their reasons."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hosts import TABLE
from hosts.base import STEPS
from hosts.changes import (
    Change,
    Names,
    absent,
    absent_after,
    also_after,
    also_before,
    also_before_last,
    moved_after,
    moved_before,
    only_first,
    only_last,
)
from hosts.scenarios import AT


@dataclass(frozen=True)
class Difference:
    """A moment that a host fires differently."""

    host: str
    moment: str
    change: Change
    reason: str


NO_OPTIMIZER = "A bare loop does not know its optimizer; `hookline.integrations.torch.run` does."
KERAS_UPDATES = "Keras does not report when its optimizer is about to update."
ONE_BODY = "The loop's body contains forward, backward and update: the batch ends with the body."
LIGHTNING_OUTPUTS = "Lightning updates inside of the batch, and has the outputs only afterwards."
FASTAI_OUTPUTS = "fastai updates inside of the batch, and its callbacks see the batch's end afterwards."
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
ALL_ROWS = "A round trains on all rows, and evaluates all rows: there are no batches."
TREES = "A booster fits trees: it has no optimizer and no gradients."
CATBOOST_RATE = "CatBoost shows its callbacks no model, and so no learning rate."
SKLEARN_UPDATES = "A solver of scikit-learn shows no gradients and no optimizer."
EMPTY_ITERATION = "scikit-learn begins one more iteration of L-BFGS than it makes."
SKLEARN_WEIGHTS = "The parameters of scikit-learn are NumPy arrays: there are no weights of torch to average."
SKLEARN_RATE = "A solver of scikit-learn has no learning rate."
ITERATIONS = "An iteration collects a rollout and trains on it in gradient steps that SB3 does not report."
IN_ROLLOUT = (
    "`EvalCallback` evaluates inside of a rollout, before the step that learns from it, and reports when it is over."
)
EPISODES = "Each iteration begins with a rollout."
TRAINED_WEIGHTS = "SB3 reports an evaluation when it is over: it was one of the trained weights, not of the averages."
BODY_WITH_UPDATE = "Updates are seen at the optimizer, inside of a batch."
OWN_BATCHES = "It keeps the batches and predictions of validations to itself."
BEST = "At the end it validates the best weights once more, as the evaluation `best`."
SAVES_LAST = "It saves at the end of the last epoch in any case."
OWN_AVERAGES = "ultralytics validates and saves averages of its own."
JITTED = "It computes gradients and update in one jitted function."
TUNIX_LOSSES = "Tunix computes losses, and shows no predictions."
TUNIX_SAVES_LAST = "It saves at the end of the training in any case."
OWN_STATE = "The state belongs to its loop: callbacks can change neither weights nor rates."
NO_BATCHES = "MaxText shows the metrics of a step, and no batch."
ELSEWHERE = "verl's models are in other processes: callbacks see no weights, rates and gradients."
ONE_BATCH = "verl reports a step when it is over, and a validation as one batch of rollouts."
LISTENS = "A monitor of prime-rl only listens."
EPISODES_ONLY = "A monitor of prime-rl gets metrics and episodes, and no batches."
OWN_RATE = "It logs the learning rate itself."
LEVANTER_LOGS = "Levanter logs the time of loading after each step."
FROM_HUGGING_FACE = ("huggingface", "trl_sft", "trl_grpo", "sentence_transformers", "unsloth")
ONE_BODIES = ("torch", "jax", "flax", "accelerate", "fabric", "deepspeed", "ignite", "ray")
BOOSTERS = {"xgboost": "XGBoost", "lightgbm": "LightGBM", "catboost": "CatBoost"}

UPDATE, BATCH_END, STEP_START = "on_before_optimizer_step", "on_train_batch_end", "on_step_start"
BATCH_START = "on_train_batch_start"
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
    Difference("keras", UPDATE, absent(), KERAS_UPDATES),
    *(Difference(host, BATCH_END, moved_after(UPDATE), ONE_BODY) for host in ONE_BODIES),
    Difference("lightning", BATCH_END, moved_after(UPDATE), LIGHTNING_OUTPUTS),
    Difference("fastai", BATCH_END, moved_after(UPDATE), FASTAI_OUTPUTS),
    *(Difference(host, "on_log", also_before("on_train_end"), SUMMARY) for host in FROM_HUGGING_FACE),
    Difference("ultralytics", BATCH_END, moved_after(UPDATE), BODY_WITH_UPDATE),
    *(Difference("ultralytics", moment, absent(), OWN_BATCHES) for moment in VALIDATION[2:4]),
    Difference("ultralytics", "on_checkpoint", also_before_last("on_train_epoch_end"), SAVES_LAST),
    *(
        Difference("ultralytics", moment, also_before("on_train_end"), BEST)
        for moment in (*VALIDATION[:2], "on_log", *VALIDATION[4:], "on_eval")
    ),
    *(Difference(host, UPDATE, absent(), JITTED) for host in ("tunix", "levanter", "maxtext")),
    *(Difference("maxtext", moment, absent(), NO_BATCHES) for moment in (BATCH_START, BATCH_END)),
    *(
        Difference(host, moment, absent(), OWN_BATCHES)
        for host in ("levanter", "maxtext")
        for moment in VALIDATION[2:4]
    ),
    Difference("verl", UPDATE, absent(), ELSEWHERE),
    *(Difference("verl", moment, absent(), ONE_BATCH) for moment in (BATCH_START, BATCH_END, *VALIDATION[2:4])),
    Difference("verl", VALIDATION[2], also_after("on_validation_epoch_start"), ONE_BATCH),
    Difference("verl", VALIDATION[3], also_after(VALIDATION[2]), ONE_BATCH),
    Difference("verl", "on_rollout_start", also_after(STEP_START), EPISODES),
    Difference("verl", "on_rollout_end", also_before("on_step_end"), EPISODES),
    Difference("prime_rl", UPDATE, absent(), LISTENS),
    Difference("prime_rl", "on_checkpoint", absent(), LISTENS),
    *(Difference("prime_rl", moment, absent(), EPISODES_ONLY) for moment in (BATCH_START, BATCH_END, *VALIDATION[2:4])),
    Difference("prime_rl", VALIDATION[2], also_after("on_validation_epoch_start"), EPISODES_ONLY),
    Difference("prime_rl", VALIDATION[3], also_after(VALIDATION[2]), EPISODES_ONLY),
    Difference("prime_rl", "on_rollout_start", also_after(STEP_START), EPISODES),
    Difference("prime_rl", "on_rollout_end", also_before("on_step_end"), EPISODES),
    Difference("levanter", "on_log", also_before(STEP_START), LEVANTER_LOGS),
    Difference("levanter", "on_log", absent_after("on_train_epoch_start"), LEVANTER_LOGS),
    Difference("levanter", "on_log", also_before("on_train_epoch_end"), LEVANTER_LOGS),
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
    *(
        Difference(host, moment, absent(), ALL_ROWS)
        for host in (*BOOSTERS, "sklearn")
        for moment in (BATCH_START, BATCH_END, "on_validation_batch_start", "on_validation_batch_end")
    ),
    *(Difference(host, UPDATE, absent(), TREES) for host in BOOSTERS),
    Difference("sklearn", UPDATE, absent(), SKLEARN_UPDATES),
    Difference("sklearn", STEP_START, also_before("on_train_epoch_end"), EMPTY_ITERATION),
    *(Difference("stable_baselines3", moment, absent(), ITERATIONS) for moment in (BATCH_START, BATCH_END, UPDATE)),
    *(Difference("stable_baselines3", moment, absent(), IN_ROLLOUT) for moment in VALIDATION[2:4]),
    *(
        Difference("stable_baselines3", moment, moved_before("on_step_end"), IN_ROLLOUT)
        for moment in (*VALIDATION[:2], *VALIDATION[4:], "on_eval")
    ),
    Difference("stable_baselines3", "on_log", absent_after("on_log"), IN_ROLLOUT),
    Difference("stable_baselines3", "on_log", absent_after("on_checkpoint"), IN_ROLLOUT),
    Difference("stable_baselines3", "on_log", also_after("on_validation_epoch_start"), IN_ROLLOUT),
    Difference("stable_baselines3", "on_rollout_start", also_after(STEP_START), EPISODES),
    Difference("stable_baselines3", "on_rollout_end", also_before("on_step_end"), EPISODES),
]


@dataclass(frozen=True)
class SteeringDifference:
    """A request that has a different outcome in a host.

    Attributes:
        works: Whether the request is granted nevertheless; if not, the matrix has a dash.
    """

    host: str
    scenario: str
    fact: str
    value: Any
    reason: str
    works: bool = True


LAST_VALIDATION = "It also validates at the end of an epoch that a stop cut short."
VALIDATE_WHEN_STOPPED = (*FROM_HUGGING_FACE, "lightning", "keras", "ultralytics", "composer")

STEERING_DIFFERENCES = [
    *(SteeringDifference(host, "stop", "validations", 1, LAST_VALIDATION) for host in VALIDATE_WHEN_STOPPED),
    SteeringDifference("prime_rl", "stop", "step", STEPS, LISTENS, works=False),
    SteeringDifference("prime_rl", "stop", "validations", STEPS, LISTENS, works=False),
    SteeringDifference("prime_rl", "stop", "recorded", ["finished", ""], LISTENS, works=False),
    SteeringDifference("prime_rl", "checkpoint", "saved", [], LISTENS, works=False),
    SteeringDifference("prime_rl", "checkpoint", "there", [], LISTENS, works=False),
    SteeringDifference("prime_rl", "resume", "steps", [*range(STEPS)], LISTENS, works=False),
    SteeringDifference(
        "prime_rl", "resume", "begins", ["on_train_start", "on_train_epoch_start"], LISTENS, works=False
    ),
    SteeringDifference("prime_rl", "resume", "in the same run", False, LISTENS, works=False),
    SteeringDifference("tunix", "checkpoint", "saved", [AT, STEPS], TUNIX_SAVES_LAST),
    SteeringDifference("tunix", "checkpoint", "there", [True, True], TUNIX_SAVES_LAST),
    SteeringDifference("ultralytics", "checkpoint", "saved", [AT, STEPS], SAVES_LAST),
    SteeringDifference("ultralytics", "checkpoint", "there", [True, True], SAVES_LAST),
]


NO_RATE = "The run offers no parameter 'learning_rate'. There are none. Offer it with run.tunable()."

REFUSED_COMMANDS: dict[tuple[str, str], str] = {
    ("jax", "set"): NO_RATE,
    ("learner", "validate"): "validate: This Trainer has no val_data.",
    ("keras", "validate"): "validate: Keras validates only at the end of an epoch.",
    ("levanter", "set"): NO_RATE,
    ("verl", "set"): NO_RATE,
    ("maxtext", "set"): NO_RATE,
    ("maxtext", "validate"): "validate: MaxText evaluates every eval_interval steps, and not on request.",
    ("levanter", "validate"): "validate: Levanter evaluates every steps_per_eval, and not on request.",
    ("tunix", "validate"): "validate: Tunix evaluates every eval_every_n_steps, and not on request.",
    ("fastai", "validate"): "validate: fastai validates only at the end of an epoch.",
    **{
        (host, "validate"): f"validate: {title} evaluates after each round, and not on request."
        for host, title in BOOSTERS.items()
    },
    ("catboost", "set"): NO_RATE,
    ("sklearn", "set"): NO_RATE,
    ("stable_baselines3", "validate"): (
        "validate: Stable-Baselines3 evaluates in an EvalCallback, at its own frequency."
    ),
    ("sklearn", "validate"): (
        "validate: scikit-learn is evaluated on validation= after each step, and not on request."
    ),
}
"""Commands that a host cannot apply, by host and name, with the answer that the sender gets."""


PASSIVE = {"prime_rl": "It only records another program's values, and has no steps itself."}
"""Hosts that apply no command, with the answer that the sender gets."""


def refused_commands(host: str) -> dict[str, str]:
    """Return the commands that a host refuses, with the answers."""
    return {name: answer for (where, name), answer in REFUSED_COMMANDS.items() if where == host}


LESSON_HOOK = "It evaluates the lessons of a rollout worker: give it to `rl.train(hooks=[...])`."
JAX_RATE = "The rate is part of the update, unless the state has one of `optax.inject_hyperparams`."

IDLE: dict[tuple[str, str], str] = {
    **{(host, "evaluation_hook"): LESSON_HOOK for host in TABLE if host != "learner"},
    ("bare_loop", "gradient_monitor"): NO_OPTIMIZER,
    ("jax", "learning_rate_monitor"): JAX_RATE,
    ("keras", "gradient_monitor"): KERAS_UPDATES,
    **{(host, "gradient_monitor"): TREES for host in BOOSTERS},
    **{(host, "ema"): TREES for host in BOOSTERS},
    **{(host, "sample_logger"): ALL_ROWS for host in BOOSTERS},
    ("catboost", "learning_rate_monitor"): CATBOOST_RATE,
    ("stable_baselines3", "gradient_monitor"): ITERATIONS,
    ("sklearn", "gradient_monitor"): SKLEARN_UPDATES,
    ("sklearn", "ema"): SKLEARN_WEIGHTS,
    ("sklearn", "sample_logger"): ALL_ROWS,
    ("sklearn", "learning_rate_monitor"): SKLEARN_RATE,
    **{(host, "ema"): OWN_STATE for host in ("levanter", "maxtext")},
    **{(host, "gradient_monitor"): JITTED for host in ("levanter", "maxtext")},
    **{(host, "learning_rate_monitor"): OWN_RATE for host in ("levanter", "maxtext")},
    **{(host, "sample_logger"): OWN_BATCHES for host in ("levanter", "maxtext")},
    **{("prime_rl", name): LISTENS for name in ("ema", "gradient_monitor", "learning_rate_monitor")},
    **{("prime_rl", name): LISTENS for name in ("checkpoint", "checkpoint_hook", "timer")},
    **{("verl", name): ELSEWHERE for name in ("ema", "gradient_monitor", "learning_rate_monitor")},
    ("tunix", "gradient_monitor"): JITTED,
    ("ultralytics", "sample_logger"): OWN_BATCHES,
}
"""Built-in callbacks that cannot work in a host, by host and name; they warn when training starts."""


NO_PREDICTIONS = {
    "keras": "Keras gives callbacks logs, but no predictions.",
    "sentence_transformers": "Its losses are made of embeddings, and show no predictions.",
    **dict.fromkeys(
        ("trl_sft", "unsloth"), "TRL computes no logits in an evaluation unless its trainer has `compute_metrics`."
    ),
    "learner": LESSONS,
    **dict.fromkeys((*BOOSTERS, "sklearn"), ALL_ROWS),
    "stable_baselines3": IN_ROLLOUT,
    **dict.fromkeys(("levanter", "maxtext"), OWN_BATCHES),
    "tunix": TUNIX_LOSSES,
    "ultralytics": OWN_BATCHES,
}
"""Hosts whose `on_validation_batch_end` has no predictions, with the reasons."""


FURTHER_EVALUATIONS = {"ultralytics": ["best"]}
"""Evaluations of hosts that come after the usual ones."""


LOSS_ONLY = "It checks only the loss, after the update: the gradients are not available."
PARTLY: dict[tuple[str, str], str] = {
    (host, "nan_guard"): LOSS_ONLY
    for host in (
        "bare_loop",
        "keras",
        "levanter",
        "maxtext",
        "tunix",
        "verl",
        "prime_rl",
        "sklearn",
        "stable_baselines3",
        *BOOSTERS,
    )
}
"""Built-in callbacks that work partly in a host, by host and name."""


KERAS_ON_TORCH = "With Keras on torch. On JAX or TensorFlow it warns that the weights are not torch's."
NOTES: dict[tuple[str, str], str] = {
    ("keras", "ema"): KERAS_ON_TORCH,
    ("stable_baselines3", "ema"): TRAINED_WEIGHTS,
    ("ultralytics", "ema"): OWN_AVERAGES,
}
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
