"""The settings of curricula (`Lesson`, `CurriculumConfig`), of rollouts and of rollout workers."""

import math
import threading
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import msgspec

from hookline._engine.defaults import NAME_VARIABLE, PROJECT, ROOT, Default
from hookline._engine.errors import OptionError, closest
from hookline._engine.hooks import GeneratorKind
from hookline._record.console_capture import ConsoleMode
from hookline._record.journal import Durability
from hookline._record.source_code import Code
from hookline.config.loading import CheckedStruct
from hookline.loops.run_sinks import DRAIN_SECONDS, DeliveryMode
from hookline.rl.environments.base import make_environment
from hookline.rl.types import Sampling


class Lesson(CheckedStruct):
    """An environment to learn, and the lessons that come before it.

    Args:
        id: The lesson's name in the curriculum and in records.
        environment: An `Environment`, its name, or a mapping of its name to settings:
            ``{"arithmetic": {"difficulty": "easy"}}``.
        threshold: The success rate from which the lesson counts as learnt.
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


_MINIMUMS = {
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
        micro_eval_frequency: Evaluate the current lesson every this many rollout steps; 0 never does.
        micro_eval_n_examples: The number of tasks of such an evaluation.
        eval_frequency: Evaluate all lessons every this many rollout steps; 0 never does.
        eval_n_examples: The number of tasks of each lesson in such an evaluation.
        window: A lesson's success rate is the mean of this many latest results.
        min_results: The number of results required before a lesson can graduate or regress.
        regression_margin: A graduated lesson regresses if its rate falls this far below its threshold, or below half
            of its threshold.
        review_share: The share of draws for graduated lessons while others are active; with 0, a regression is never
            noticed, because evaluations do not change the curriculum.
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
        for name, least in _MINIMUMS.items():
            if getattr(self, name) < least:
                raise self._error(name, f"give a whole number of at least {least}")
        if self.min_results > self.window:
            raise self._error("min_results", f"give at most the window, which is {self.window}")
        for name in ("regression_margin", "review_share"):
            if not 0 <= getattr(self, name) < 1:
                raise self._error(name, "give a number of at least 0, and below 1")
        _require_reachable(self.lessons)

    @classmethod
    def from_file(cls, path: str | Path, overrides: Sequence[str] = ()) -> Self:
        """Load the settings from a YAML, TOML or JSON file, with overrides such as ``"window=50"``."""
        from hookline.config.loading import load_config

        return load_config(path, cls, overrides)

    from_yaml = from_file

    def _error(self, name: str, wanted: str) -> OptionError:
        return OptionError(f"CurriculumConfig({name}={getattr(self, name)!r}): {wanted}.")


def _require_reachable(lessons: Sequence[Lesson]) -> None:
    if not lessons:
        raise OptionError("CurriculumConfig(lessons=[]): give at least one lesson.")
    dependencies: dict[str, tuple[str, ...]] = {}
    for lesson in lessons:
        if lesson.id in dependencies:
            raise OptionError(f"Two lessons have the id {lesson.id!r}. Give each a different one.")
        dependencies[lesson.id] = lesson.depends_on
    for lesson_id, needed in dependencies.items():
        for other in needed:
            if other not in dependencies:
                raise OptionError(
                    f"Lesson {lesson_id!r} depends on {other!r}, which is not a lesson. {closest(other, dependencies)}"
                )
    try:
        TopologicalSorter(dependencies).prepare()
    except CycleError as error:
        cycle = " -> ".join(map(repr, reversed(error.args[1])))
        raise OptionError(
            f"Lessons depend on each other in a circle, {cycle}, so none of them could begin: remove one "
            "dependency. At least one lesson of a curriculum must not depend on another."
        ) from None


_ROLLOUT_MINIMUMS = {
    "prompts": 1,
    "group_size": 1,
    "max_turns": 1,
    "max_episode_tokens": 1,
    "max_open_episodes": 1,
    "samples": 0,
    "failures": 1,
}


class RolloutConfig(CheckedStruct, kw_only=True):
    """How rollouts are made.

    Args:
        prompts: The number of tasks in a step.
        group_size: The number of completions of each task.
        temperature: The sampling temperature; 0 selects the most likely token.
        top_p: The probability of the nucleus that tokens are sampled from.
        max_tokens: The largest number of tokens of a completion; in an episode, of a turn.
        stop: Texts that end a completion.
        max_turns: The largest number of turns of the policy in an episode.
        max_episode_tokens: The largest number of tokens of an episode after its prompt, those of tools and other
            messages included; None leaves it to the model.
        environment_seconds: The time limit of an environment between two turns of the policy, whatever it does then;
            None waits indefinitely.
        episode_seconds: The time limit of a whole episode; None waits indefinitely. It includes the time of the policy,
            which depends on how many other episodes there are.
        max_open_episodes: The largest number of episodes that run at the same time.
        chat_template_kwargs: Variables of the chat template, such as ``{"enable_thinking": False}``.
        reward_weights: The weight of each reward in the total; 1 by default.
        scoring_seconds: The time limit for scoring one completion, or a whole step if the environment scores batches
            (``dataset``); None waits indefinitely.
        samples: The number of rollouts of a step that are recorded with their texts; None records all.
        tokens: The share of these samples that are recorded with what is known about each token, see `hookline.Tokens`.
        failures: The worker gives up after this many steps in a row without any completion.
        hook_rng: The library of the generator in ``context.rng`` of hooks; with ``"jax"`` it is a key.
    """

    renamed: ClassVar[Mapping[str, str]] = {"scale_advantages": "GRPOConfig.scale_rewards"}

    prompts: int = 8
    group_size: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 64
    stop: list[str] = msgspec.field(default_factory=list)
    max_turns: int = 16
    max_episode_tokens: int | None = None
    environment_seconds: float | None = 600.0
    episode_seconds: float | None = None
    max_open_episodes: int = 256
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    reward_weights: dict[str, float] = msgspec.field(default_factory=dict)
    scoring_seconds: float | None = None
    samples: int | None = 16
    tokens: float = 0.0
    failures: int = 10
    hook_rng: GeneratorKind = "python"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in _ROLLOUT_MINIMUMS.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise OptionError(f"{type(self).__name__}({name}={value!r}): give a whole number of at least {least}.")
        if not 0 <= self.tokens <= 1:
            raise OptionError(f"{type(self).__name__}(tokens={self.tokens!r}): give a share from 0 to 1.")
        for name in ("scoring_seconds", "environment_seconds", "episode_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds <= threading.TIMEOUT_MAX:
                raise OptionError(f"RolloutConfig({name}={seconds!r}): give a number above 0, or None to wait.")
        for name, weight in self.reward_weights.items():
            if not math.isfinite(weight):
                raise OptionError(f"RolloutConfig(reward_weights={{{name!r}: {weight!r}}}): give finite numbers.")
        self.sampling()

    def sampling(self, *, seed: int | None = None, greedy: bool = False) -> Sampling:
        """Return the sampling settings; evaluations sample greedily."""
        temperature = 0.0 if greedy else self.temperature
        return Sampling(temperature, self.top_p, self.max_tokens, tuple(self.stop), seed)


class RolloutWorkerConfig(CheckedStruct, kw_only=True):
    """The settings of a `RolloutWorker`.

    Args:
        curriculum_config: The lessons, and when they are evaluated.
        policy: Generates the completions.
        rollout: The settings of rollouts.
        max_steps: The number of rollout steps of `run()`; None runs until a stop is requested.
        name: The name of the run.
        project: The subdirectory of ``output_dir`` for the run.
        tags: Short labels to find the run by, in lists, on the page and in SQL.
        notes: A short description of the run.
        output_dir: Where the run is recorded; None keeps everything in memory.
        seed: The seed of the tasks, the lessons and the sampling.
        resume: Resume an earlier run, as for any run.
        callbacks: Callbacks, or their names and arguments.
        sinks: Where the record is delivered.
        delivery: "thread" delivers from this process, "process" from one that survives it.
        drain_seconds: How long the end of the run waits for its sinks; ``hookline runs sync`` delivers the rest.
        durability: What survives a power failure, besides checkpoints: with "checkpoint", everything recorded before
            the last one; with "power", everything but about the last second; with "process", whatever the operating
            system had written.
        console: Whether to record what the process prints, and at which level: True, False, "fd" or "python".
        code: How much of the code is recorded besides the git commit: "diff" the changes against it, "all" untracked
            files too, "none" nothing.
        redact: A function that is called with every text before it is recorded, a regular expression whose matches are
            replaced, "module:function", or a list of these; False also records well-known secrets.
        control: Whether the owner of the run may send commands to it while it runs.
        resume_commands: "apply" repeats the commands that were applied after the resumed checkpoint, at the same
            steps; "drop" does not.
        strict: Let exceptions of observers propagate.
        summary: Print a summary at the end of the run.
    """

    curriculum_config: CurriculumConfig
    policy: Any = None
    rollout: RolloutConfig = msgspec.field(default_factory=RolloutConfig)
    max_steps: int | None = None
    name: str = Default("rollouts", NAME_VARIABLE)
    project: str = PROJECT
    tags: Sequence[str] = ()
    notes: str = ""
    output_dir: str | None = ROOT
    seed: int = 0
    resume: str | None = None
    callbacks: Any = ()
    sinks: Any = ()
    delivery: DeliveryMode = "thread"
    drain_seconds: float = DRAIN_SECONDS
    durability: Durability = "checkpoint"
    console: ConsoleMode = True
    code: Code = "diff"
    redact: Any = None
    control: bool | Literal["own"] = True
    resume_commands: Literal["apply", "drop"] = "apply"
    strict: bool = False
    summary: bool = True
