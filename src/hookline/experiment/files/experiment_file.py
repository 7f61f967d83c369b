"""`ExperimentFile`: what the file of an experiment holds, before any of it is made."""

from typing import Annotated, Any, Literal

import msgspec


class ExperimentFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the file of an experiment holds.

    Args:
        name: What the experiment is called; as its file by default.
        output_dir: Its directory, ``runs/<name>`` by default.
        repeats: How often each arm is run, with a seed of its own each time.
        retries: How often a run that fails is tried again.
        metric: What the tables are about.
        mode: Whether that is better when it is smaller (``min``) or larger (``max``), where its name does not say.
        executor: ``local``, ``{local: {processes: 4}}``, ``ray`` or ``{ray: {num_gpus: 1}}``.
        base: What the settings of arms and of the grid go on top of: one of ``sft``, ``rl`` and ``function``. Its
            ``stages`` are what trains in a stage, by the stage's name, in place of each arm: one of the three as well.
        arms: Settings on top of the base by the name of their arm, or a configuration of the arm's own; ``stages``
            among them are put in the place of the base's.
        grid: Values of settings; each combination of them is an arm.
        stages: Trainings that follow one another in each arm, each with a name and settings on top of what trains in
            it.
        benchmarks: What every run is scored on, by name or as ``{name: {setting: value}}``.
        callbacks: Callbacks of every run, by name or as ``{name: {setting: value}}``.
        sinks: Where the record of every run is delivered to, by name or as ``{name: {setting: value}}``.
        strict: Let exceptions of callbacks propagate.
    """

    name: str | None = None
    output_dir: str | None = None
    repeats: Annotated[int, msgspec.Meta(ge=1)] = 1
    retries: Annotated[int, msgspec.Meta(ge=0)] = 0
    metric: str | None = None
    mode: Literal["min", "max"] | None = None
    executor: str | dict[str, dict[str, Any] | None] = "local"
    base: dict[str, Any] | None = None
    arms: dict[str, dict[str, Any] | None] | None = None
    grid: dict[str, Any] | None = None
    stages: list[str | dict[str, Any]] | None = None
    benchmarks: list[Any] | None = None
    callbacks: list[Any] | None = None
    sinks: list[Any] | None = None
    strict: bool = False

    def stage_names(self) -> list[str]:
        """What its stages are called, as far as they have names."""
        names = (given if isinstance(given, str) else given.get("name") for given in self.stages or ())
        return [name for name in names if isinstance(name, str)]
