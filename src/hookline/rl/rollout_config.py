"""`RolloutConfig`: how rollouts are made. `RolloutWorkerConfig`: the settings of a worker that makes nothing else."""

import math
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from hookline.core.errors import OptionError
from hookline.core.rng import Kind
from hookline.loops.checked_struct import CheckedStruct
from hookline.loops.outlets import DRAIN_SECONDS, Delivery
from hookline.record.journal import Durability
from hookline.rl.curriculum_config import CurriculumConfig
from hookline.rl.types import Sampling


class RolloutConfig(CheckedStruct, kw_only=True):
    """How rollouts are made.

    Args:
        prompts: How many tasks are asked in a step.
        group_size: How many completions each gets.
        temperature: Of the sampling; 0 takes the likeliest token each time.
        top_p: The share of probability that tokens are sampled from.
        max_tokens: The most tokens of a completion.
        stop: Texts that end a completion.
        reward_weights: How much each reward counts in the total; 1 where it is not named.
        scale_advantages: Divide advantages by the standard deviation in their group.
        scoring_seconds: How long scoring one completion may take, or a whole step's where the environment scores
            them at once (``dataset``); None waits.
        samples: How many rollouts of a step are recorded with their texts; None records all.
        failures: After how many steps in a row without a single completion the worker gives up.
        hook_rng: The library that the generator in ``context.rng`` of hooks comes from; with ``"jax"`` it is a key.
    """

    prompts: int = 8
    group_size: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 64
    stop: list[str] = msgspec.field(default_factory=list)
    reward_weights: dict[str, float] = msgspec.field(default_factory=dict)
    scale_advantages: bool = True
    scoring_seconds: float | None = None
    samples: int | None = 16
    failures: int = 10
    hook_rng: Kind = "python"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in {"prompts": 1, "group_size": 1, "samples": 0, "failures": 1}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise OptionError(f"{type(self).__name__}({name}={value!r}): give a whole number of at least {least}.")
        if self.scoring_seconds is not None and not 0 < self.scoring_seconds <= threading.TIMEOUT_MAX:
            raise OptionError(
                f"RolloutConfig(scoring_seconds={self.scoring_seconds!r}): give a number above 0, or None to wait."
            )
        for name, weight in self.reward_weights.items():
            if not math.isfinite(weight):
                raise OptionError(f"RolloutConfig(reward_weights={{{name!r}: {weight!r}}}): give finite numbers.")
        self.sampling()

    def sampling(self, *, seed: int | None = None, greedy: bool = False) -> Sampling:
        """How completions are sampled; greedily in evaluations."""
        temperature = 0.0 if greedy else self.temperature
        return Sampling(temperature, self.top_p, self.max_tokens, tuple(self.stop), seed)


class RolloutWorkerConfig(CheckedStruct, kw_only=True):
    """The settings of a `RolloutWorker`.

    Args:
        curriculum_config: What is learnt, and when it is evaluated.
        policy: What writes the completions.
        rollout: How.
        max_steps: How many rollout steps `run()` makes; without it until a stop is asked for.
        name: What the run is called.
        project: The folder of ``output_dir`` that its directory lies in.
        tags: Short words that the run is found by in lists, on the page and in SQL.
        notes: What the run is about, in a few sentences.
        output_dir: Where it is recorded; None keeps everything in memory.
        seed: Of the tasks, the lessons and the sampling.
        resume: Take up an earlier run, as for any other.
        callbacks: Callbacks, or their names and arguments.
        sinks: Where the record is delivered to.
        delivery: "thread" delivers from this process, "process" from one that survives it.
        drain_seconds: How long the end of the run waits for its sinks; ``hookline runs sync`` delivers the rest.
        durability: What survives a power cut, besides checkpoints: everything recorded before the last "checkpoint";
            with "power", until about a second before; with "process", what the system had written by itself.
        strict: Let exceptions of observers propagate.
        summary: Print how the run ended.
    """

    curriculum_config: CurriculumConfig
    policy: Any = None
    rollout: RolloutConfig = msgspec.field(default_factory=RolloutConfig)
    max_steps: int | None = None
    name: str = "rollouts"
    project: str = "default"
    tags: Sequence[str] = ()
    notes: str = ""
    output_dir: str | None = "runs"
    seed: int = 0
    resume: str | None = None
    callbacks: Any = ()
    sinks: Any = ()
    delivery: Delivery = "thread"
    drain_seconds: float = DRAIN_SECONDS
    durability: Durability = "checkpoint"
    strict: bool = False
    summary: bool = True
