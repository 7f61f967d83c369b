"""`Arguments`: what a Hugging Face callback finds in ``args``.

What the loop knows stands under the names of `TrainingArguments`: its length, its data, its optimizer, when it
validates and saves. What only Hugging Face has may be given to `wrap`; the rest is a `NotOfferedError`.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from transformers.training_args import TrainingArguments

from hookline.core.errors import OptionError, closest
from hookline.integrations.foreign.facts import LoopFacts
from hookline.integrations.foreign.stand_in import StandIn

if TYPE_CHECKING:
    from hookline.integrations.foreign.bridge import ForeignCallback

OF_THE_LOOP = frozenset(
    {
        *("output_dir", "run_name", "num_train_epochs", "max_steps", "learning_rate", "weight_decay", "max_grad_norm"),
        *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "seed"),
    }
)
"""What is always the loop's own to say."""


def checked_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that somebody gave for ``args``, if Hugging Face has them and the loop has not."""
    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    for name in given:
        if name not in known:
            raise OptionError(f"wrap(args=...): TrainingArguments has no {name!r}. {closest(name, known)}")
        if name in OF_THE_LOOP:
            raise OptionError(f"wrap(args=...): {name!r} is what the loop says: set it there.")
    return dict(given)


class Arguments(StandIn):
    """The settings of a loop, by the names of Hugging Face.

    Args:
        given: Settings that the loop does not know.
    """

    def __init__(self, bridge: "ForeignCallback", loop: Any, given: Mapping[str, Any]) -> None:
        super().__init__(bridge, loop, "args")
        known = {**_defaults(loop), **_plan(loop), **given, **_of_loop(loop)}
        metric = known["metric_for_best_model"]
        known.setdefault("greater_is_better", metric is not None and not metric.endswith("loss"))
        vars(self).update({name: value for name, value in known.items() if value is not None or name in given})
        vars(self)["_names"] = frozenset(vars(self)) - {"_bridge", "_loop", "_path"}

    def to_dict(self) -> dict[str, Any]:
        """Everything that is known."""
        return {name: getattr(value, "value", value) for name, value in vars(self).items() if name in self._names}

    def _offered(self) -> list[str]:
        return [*self._names, "to_dict"]


def _defaults(loop: Any) -> dict[str, Any]:
    """What Hugging Face has where nobody says otherwise, and what is true of a loop that is not Hugging Face's."""
    return {
        "metric_for_best_model": "loss",
        "load_best_model_at_end": False,
        "eval_delay": 0,
        "logging_strategy": IntervalStrategy.STEPS,
        "logging_steps": 1,
        "logging_first_step": False,
        "report_to": [],
        "push_to_hub": False,
        "world_size": loop.world_size,
        "process_index": loop.rank,
        "should_log": loop.rank == 0,
        "should_save": loop.rank == 0,
    }


def _plan(loop: Any) -> dict[str, Any]:
    """When the loop validates and saves by itself; a loop of somebody's own does so when its body says."""
    settings = LoopFacts(loop).settings
    if settings is None:
        return {"eval_strategy": IntervalStrategy.EPOCH, "save_strategy": SaveStrategy.NO}
    rules = settings.checkpoint
    saves_steps = None if rules is None else rules.every_n_steps
    plan: dict[str, Any] = {"eval_strategy": IntervalStrategy.NO, "save_strategy": SaveStrategy.NO}
    if LoopFacts(loop).val_data is not None:
        plan["eval_strategy"] = IntervalStrategy.STEPS if settings.validate_every_steps else IntervalStrategy.EPOCH
    if rules is not None:
        plan["save_strategy"] = SaveStrategy.STEPS if saves_steps else SaveStrategy.EPOCH
    if rules is not None and rules.monitor is not None:
        plan["metric_for_best_model"] = eval_name(rules.monitor, LoopFacts(loop).val_sets)
        plan["greater_is_better"] = None if rules.mode is None else rules.mode == "max"
        plan = {name: value for name, value in plan.items() if value is not None}
    return {**plan, "eval_steps": settings.validate_every_steps, "save_steps": saves_steps}


def _of_loop(loop: Any) -> dict[str, Any]:
    facts = LoopFacts(loop)
    settings = facts.settings
    return {
        "output_dir": None if loop.output_dir is None else str(loop.output_dir),
        "run_name": getattr(loop, "name", None),
        "num_train_epochs": None if loop.num_epochs is None else float(loop.num_epochs),
        "max_steps": -1 if loop.num_steps is None else loop.num_steps,
        "learning_rate": facts.of_optimizer("lr"),
        "weight_decay": facts.of_optimizer("weight_decay"),
        "max_grad_norm": None if settings is None else settings.gradient_clip_norm or math.inf,
        "per_device_train_batch_size": facts.train_batch_size,
        "per_device_eval_batch_size": facts.val_batch_size,
        "train_batch_size": facts.train_batch_size,
        "eval_batch_size": facts.val_batch_size,
        "gradient_accumulation_steps": facts.accumulation,
        "seed": getattr(settings, "seed", None),
    }


def eval_name(name: str, sets: Collection[str] = ()) -> str:
    """What a metric of a validation is called by Hugging Face.

    Args:
        sets: The names of validation sets, where there are several.

    >>> eval_name("val/loss"), eval_name("val_loss"), eval_name("loss")
    ('eval_loss', 'eval_loss', 'loss')
    >>> eval_name("val/easy/loss", ["easy", "hard"])
    'eval_easy_loss'
    """
    if not name.startswith(("val/", "val_")):
        return name
    first, slash, rest = name[4:].partition("/")
    return f"eval_{first}_{rest}" if first in sets else f"eval_{first}{slash}{rest}"
