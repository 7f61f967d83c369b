"""`TrainerConfig`: the settings of a `Trainer`, from Python or from a YAML, TOML or JSON file.

`Plan` derives from them how many steps and epochs a training has, and when it validates. No torch is loaded here.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from hookline._engine.defaults import NAME_VARIABLE, PROJECT, ROOT, Default
from hookline._engine.errors import OptionError
from hookline._record.console_capture import ConsoleMode
from hookline._record.journal import Durability
from hookline._record.redaction import as_redactor
from hookline._record.run_directory import checked_tags
from hookline._record.source_code import Code
from hookline.config.loading import CheckedStruct
from hookline.loops.run_sinks import DRAIN_SECONDS, DeliveryMode

logger = logging.getLogger("hookline")

Schedule = Literal["constant", "linear", "cosine"]
Precision = Literal["fp32", "bf16", "fp16"]
OptimizerName = Literal["adamw", "adam", "sgd"]
LEARNING_RATE = 1e-3
BATCH_SIZE = 8


class CheckpointRules(CheckedStruct, kw_only=True):
    """When a `Trainer` saves checkpoints, and which it keeps: the arguments of `CheckpointCallback`."""

    monitor: str | None = None
    mode: Literal["min", "max"] | None = None
    save_top_k: int = 1
    save_last: bool = True
    every_n_epochs: int | None = None
    every_n_steps: int | None = None
    artifact: str | None = None


class TrainerConfig(CheckedStruct, kw_only=True):
    """The settings of a `Trainer`.

    Args:
        name: The name of the run; ``resume="auto"`` and ``resume="last"`` find it by this.
        project: The folder of ``output_dir`` that contains the run's directory.
        tags: Short words that the run is found by in lists, on the page and in SQL.
        notes: A description of the run in a few sentences.
        output_dir: Where runs are recorded, each in a directory of its own; None records and saves nothing.
        epochs: How many passes over the data to make. This or ``max_steps`` is needed; with both, the first ends it.
        max_steps: How many optimizer updates to make.
        batch_size: Samples in a batch, for data sets; 8 by default. Loaders bring their own.
        shuffle: Draw a new order for each epoch, for data sets.
        workers: Processes that load data, for data sets.
        accumulation: Batches whose gradients make up one step.
        precision: "fp32", or mixed precision by Accelerate: "bf16" or "fp16".
        device: Where to compute; the first GPU by default, or the CPU.
        optimizer: The optimizer to make where the Trainer is given none: "adamw" (the default), "adam" or "sgd".
        learning_rate: Of that optimizer; 0.001 by default.
        weight_decay: Of that optimizer; 0 by default.
        warmup_steps: Steps over which the learning rate rises from 0.
        schedule: After that, the learning rate stays "constant", or falls to 0, "linear" or as a "cosine".
        gradient_clip_norm: The norm that gradients are scaled down to.
        validate_every_steps: Validate every N steps.
        validate_every_epochs: Validate at the end of every N epochs; of every epoch if neither is given.
        validate_at_start: Validate before the first step too.
        validate_at_end: Validate when training is complete, unless a validation just ended.
        validation_batches: The maximum number of batches of a validation.
        checkpoint: When to save checkpoints and which to keep.
        save_at_end: Save a checkpoint when training ends in an orderly way.
        nan_loss: A loss that is not finite is an "error", unless a `NaNGuard` handles it; "pass" accepts it.
        seed: Seeds every library when training starts; None seeds nothing.
        resume: Resume an earlier run: "auto", "last", an id, a run's or a checkpoint's directory. "auto" also saves
            after each epoch, or each tenth of ``max_steps`` where no ``epochs`` are given, unless a callback saves.
        callbacks: Callbacks, or their names and arguments.
        sinks: Where the record is delivered.
        delivery: "thread" delivers from this process, "process" from one that survives it.
        drain_seconds: How long the end of the run waits for its sinks; ``hookline runs sync`` delivers the rest.
        durability: What survives a power cut, besides checkpoints: everything recorded before the last "checkpoint";
            with "power", until about a second before; with "process", what the system had written by itself.
        console: Whether to record what the process prints, and at which level: True, False, "fd" or "python".
        code: How much of the code is recorded besides the git commit: "diff" the changes against it, "all" untracked
            files too, "none" nothing.
        redact: A function that is called with every text before it is recorded, a regular expression whose matches are
            replaced, "module:function", or a list of these; False also records well-known secrets.
        control: Whether the owner of the run may send commands to it while it runs; "own" offers no learning rates.
        resume_commands: "apply" repeats the commands that were applied after the resumed checkpoint, at the same
            steps; "drop" does not.
        strict: Let exceptions of subscribers propagate.
        summary: Print how the run ended.
    """

    name: str = Default("train", NAME_VARIABLE)
    project: str = PROJECT
    tags: Sequence[str] = ()
    notes: str = ""
    output_dir: str | None = ROOT
    epochs: int | None = None
    max_steps: int | None = None
    batch_size: int | None = None
    shuffle: bool = True
    workers: int = 0
    accumulation: int = 1
    precision: Precision = "fp32"
    device: str | None = None
    optimizer: OptimizerName | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    warmup_steps: int = 0
    schedule: Schedule = "constant"
    gradient_clip_norm: float | None = None
    validate_every_steps: int | None = None
    validate_every_epochs: int | None = None
    validate_at_start: bool = False
    validate_at_end: bool = True
    validation_batches: int | None = None
    checkpoint: CheckpointRules | None = None
    save_at_end: bool = True
    nan_loss: Literal["error", "pass"] = "error"
    seed: int | None = 0
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

    def __post_init__(self) -> None:
        self.output_dir = str(self.output_dir) if isinstance(self.output_dir, Path) else self.output_dir
        self.resume = str(self.resume) if isinstance(self.resume, Path) else self.resume
        super().__post_init__()
        self.tags = checked_tags(self.tags)
        as_redactor(self.redact)
        at_least_one = ("epochs", "max_steps", "batch_size", "accumulation", "validate_every_steps")
        for name in (*at_least_one, "validate_every_epochs", "validation_batches"):
            self._require(name, 1, "a whole number of at least 1")
        for name in ("workers", "warmup_steps", "weight_decay", "drain_seconds"):
            self._require(name, 0, "a number of at least 0")
        for name in ("learning_rate", "gradient_clip_norm"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise OptionError(f"TrainerConfig({name}={value!r}): give a number above 0.")

    def _require(self, name: str, least: int, wanted: str) -> None:
        value = getattr(self, name)
        if value is not None and not value >= least:
            raise OptionError(f"TrainerConfig({name}={value!r}): give {wanted}.")

    @classmethod
    def from_file(cls, path: str | Path, overrides: Sequence[str] = ()) -> Self:
        """Load the settings from a YAML, TOML or JSON file, with overrides such as ``"epochs=3"``."""
        from hookline.config.loading import load_config

        return load_config(path, cls, overrides)

    from_yaml = from_file


class Plan:
    """How long a training is and when it validates, from the settings and the length of the data.

    Args:
        batches: The number of batches in an epoch, where it is known.
        validates: Whether there is validation data.
    """

    def __init__(self, config: TrainerConfig, batches: int | None, *, validates: bool) -> None:
        self._config, self._validates = config, validates
        per_epoch = None if batches is None else -(-batches // config.accumulation)
        by_epochs = None if per_epoch is None or config.epochs is None else per_epoch * config.epochs
        self.num_steps = min((limit for limit in (config.max_steps, by_epochs) if limit is not None), default=None)
        self.num_epochs = config.epochs
        if per_epoch is not None and self.num_steps is not None:
            self.num_epochs = -(-self.num_steps // per_epoch)

    def has_all_steps(self, step: int) -> bool:
        """Whether ``max_steps`` steps are complete."""
        return self._config.max_steps is not None and step >= self._config.max_steps

    def is_done(self, step: int, epoch: int, *, epoch_complete: bool) -> bool:
        """Whether nothing is left to train."""
        is_last = self._config.epochs is not None and epoch >= self._config.epochs - 1
        return (is_last and epoch_complete) or self.has_all_steps(step)

    def is_validated_at(self, step: int) -> bool:
        """Whether a validation follows a step."""
        every = self._config.validate_every_steps
        return every is not None and self._validates and step > 0 and step % every == 0

    def is_validated_after_epoch(self, epoch: int) -> bool:
        """Whether a validation ends an epoch; by default each epoch."""
        every = self._config.validate_every_epochs or (None if self._config.validate_every_steps else 1)
        return self._validates and every is not None and (epoch + 1) % every == 0


def warn_of_changes(then: Mapping[str, Any], now: Mapping[str, Any], consequence: str) -> None:
    """Warn about each setting that differs from the one a checkpoint was saved with."""
    for name, before in then.items():
        if before != now[name]:
            logger.warning(
                "The checkpoint was saved with %s=%s, now it is %s: %s.", name, before, now[name], consequence
            )
