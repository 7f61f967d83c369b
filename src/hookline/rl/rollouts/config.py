"""`RolloutConfig`: how rollouts are made. `RolloutWorkerConfig`: the settings of a worker that makes nothing else.

`Lesson`: an environment as a part of a curriculum.

`CurriculumConfig`: the lessons of a curriculum and how it treats them, from Python or from a file.
"""

import math
import threading
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Self

import msgspec

from hookline._engine.errors import OptionError, closest
from hookline._engine.rng import Kind
from hookline._record.journal import Durability
from hookline.config.structs import CheckedStruct
from hookline.loops.run_sinks import DRAIN_SECONDS, DeliveryMode
from hookline.rl.environments.base import make_environment
from hookline.rl.types import Sampling


class Lesson(CheckedStruct):
    """Something to learn, and what has to be learnt before.

    Args:
        id: What it is called in the curriculum and in records.
        environment: An `Environment`, or its name, or a mapping of its name to settings:
            ``{"arithmetic": {"difficulty": "easy"}}``.
        threshold: The success rate from which on it counts as learnt.
        depends_on: The ids of lessons that have to be learnt first.
    """

    id: str
    environment: Any
    threshold: float = 0.9
    depends_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.id.strip():
            raise OptionError(f"Lesson(id={self.id!r}): give a text that is not blank.")
        if not 0 < self.threshold <= 1:
            raise OptionError(f"Lesson {self.id!r}: threshold={self.threshold!r}: give a number above 0, at most 1.")
        self.environment = make_environment(self.environment)


_LEAST = {
    "micro_eval_frequency": 0,
    "micro_eval_n_examples": 1,
    "eval_frequency": 0,
    "eval_n_examples": 1,
    "window": 1,
    "min_results": 1,
}


class CurriculumConfig(CheckedStruct):
    """The settings of a `Curriculum`.

    Args:
        lessons: The lessons, as `Lesson` or as mappings of its arguments.
        micro_eval_frequency: Evaluate the current lesson after every so many rollout steps; 0 never does.
        micro_eval_n_examples: On how many tasks.
        eval_frequency: Evaluate all lessons after every so many rollout steps; 0 never does.
        eval_n_examples: On how many tasks of each.
        window: How many of its latest results a lesson's success rate is the mean of.
        min_results: How many of them there have to be before a lesson is learnt, or forgotten.
        regression_margin: How far below its threshold a learnt lesson counts as forgotten; at most half of
            that.
        review_share: The share of draws that goes to learnt lessons while there are others; at 0 nobody notices
            that one was forgotten, since evaluations are only recorded.
    """

    lessons: list[Lesson]
    micro_eval_frequency: int = 10
    micro_eval_n_examples: int = 16
    eval_frequency: int = 100
    eval_n_examples: int = 64
    window: int = 200
    min_results: int = 50
    regression_margin: float = 0.1
    review_share: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise self._refused(name, f"give a whole number of at least {least}")
        if self.min_results > self.window:
            raise self._refused("min_results", f"give at most the window, which is {self.window}")
        for name in ("regression_margin", "review_share"):
            if not 0 <= getattr(self, name) < 1:
                raise self._refused(name, "give a number of at least 0, and below 1")
        _require_order(self.lessons)

    @classmethod
    def from_file(cls, path: str | Path, overrides: Sequence[str] = ()) -> Self:
        """The settings in a YAML, TOML or JSON file, with overrides such as ``"window=50"`` on top."""
        from hookline.config.structs import load_config

        return load_config(path, cls, overrides)

    from_yaml = from_file

    def _refused(self, name: str, wanted: str) -> OptionError:
        return OptionError(f"CurriculumConfig({name}={getattr(self, name)!r}): {wanted}.")


def _require_order(lessons: Sequence[Lesson]) -> None:
    """Refuse lessons that could never all be reached."""
    if not lessons:
        raise OptionError("CurriculumConfig(lessons=[]): give at least one lesson.")
    dependencies: dict[str, tuple[str, ...]] = {}
    for lesson in lessons:
        if lesson.id in dependencies:
            raise OptionError(f"Two lessons have the id {lesson.id!r}. Give each its own.")
        dependencies[lesson.id] = lesson.depends_on
    for lesson_id, needed in dependencies.items():
        for other in needed:
            if other not in dependencies:
                raise OptionError(
                    f"Lesson {lesson_id!r} depends on {other!r}, which is no lesson. {closest(other, dependencies)}"
                )
    try:
        TopologicalSorter(dependencies).prepare()
    except CycleError as error:
        cycle = " -> ".join(map(repr, reversed(error.args[1])))
        raise OptionError(
            f"Lessons depend on each other in a circle, {cycle}, so none of them could begin: take one "
            "dependency out. At least one lesson of a curriculum depends on no other."
        ) from None


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
    delivery: DeliveryMode = "thread"
    drain_seconds: float = DRAIN_SECONDS
    durability: Durability = "checkpoint"
    strict: bool = False
    summary: bool = True
