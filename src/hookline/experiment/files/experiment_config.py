"""An experiment from a YAML, TOML or JSON file.

    name: learning-rates
    repeats: 3
    base:
      sft: {model: {tiny: {}}, data: {train: rows.jsonl}, train: {max_steps: 100}}
    arms:
      low: {train.learning_rate: 1e-4}
      high: {train: {learning_rate: 1e-3}}

Everything in the file is checked before anything runs: every key at every level, every name of a benchmark, callback,
sink and executor, and every function is imported. An error says the file and the line, or the command line; the path;
what was given and what is accepted. Modules beside the file can be imported, as those beside a script can.
"""

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from hookline.core.config_source import Source
from hookline.core.errors import ConfigError, HooklineError, MissingExtraError, closest
from hookline.experiment.arm import Arm
from hookline.experiment.benchmark import make_benchmarks
from hookline.experiment.executors.executor import make_executor
from hookline.experiment.files.config_layers import ExperimentSource, Layer, expanded
from hookline.experiment.files.file_arm import (
    KINDS,
    FileArm,
    StageChanges,
    Trained,
    check_callbacks,
    check_sinks,
    config_type,
    whole,
)
from hookline.experiment.grid import grid
from hookline.experiment.stage import Stage, checked_stages
from hookline.loops.config_file import overridden, parse_overrides, read_config_source
from hookline.loops.config_struct import COMMAND_LINE, to_struct

BASE = "base"
"""What the one arm of a file with neither arms nor a grid is called."""


class ExperimentFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the file of an experiment holds.

    Args:
        name: What the experiment is called; as its file by default.
        output_dir: Its directory, ``runs/<name>`` by default.
        base: What the settings of arms and of the grid go on top of: one of ``sft``, ``rl`` and ``function``.
        arms: Settings on top of the base by the name of their arm, or a configuration of the arm's own.
        grid: Values of settings; each combination of them is an arm.
        metric: What the tables are about, and ``mode`` whether it is better when smaller or larger.
        stages: Trainings that follow one another in each arm, each with a name and settings on top of the arm's.
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


def experiment_arguments(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The arguments of the `Experiment` that a file describes, with overrides of a command line on top.

    Raises:
        ConfigError: Something in it does not fit.
    """
    source = _read(path, overrides)
    file = to_struct(source.data, ExperimentFile, source=source, overridden=source.overrides)
    make_importable(Path(path).resolve().parent)
    benchmarks = make_benchmarks(file.benchmarks, source=source)
    check_callbacks(file.callbacks or [], source, "callbacks")
    check_sinks(file.sinks or [], source, "sinks")
    arms = list(_arms(file, source))
    stages = _stages(file, source, arms)
    _check_arms(arms, stages, source, benchmarked=bool(benchmarks))
    return {
        "name": file.name or Path(path).stem,
        "arms": arms,
        "repeats": file.repeats,
        "stages": stages or None,
        "benchmarks": benchmarks,
        "callbacks": file.callbacks or [],
        "output_dir": file.output_dir,
        "executor": _executor(file, source),
        "sinks": file.sinks or [],
        "retries": file.retries,
        "metric": file.metric,
        "mode": file.mode,
        "strict": file.strict,
    }


def make_importable(directory: Path) -> None:
    """Let modules of a directory be imported, in this process and in those that it starts."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _read(path: str | Path, overrides: Sequence[str]) -> ExperimentSource:
    read = read_config_source(path)
    before = _normal(read.data, read)
    paths = [path for path, _ in parse_overrides(overrides)]
    _check_overridden_arms(before, paths)
    after = _normal(overridden(before, overrides), COMMAND_LINE)
    return ExperimentSource(after, read.file, read.lines, overrides=paths)


def _normal(data: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """The data with settings by dotted paths as nested mappings, so that there is one way to say each thing."""
    made = dict(data)
    if isinstance(made.get("arms"), Mapping):
        made["arms"] = {
            name: expanded(arm, source, f"arms.{name}") if _is_settings(arm) else arm
            for name, arm in made["arms"].items()
        }
    if isinstance(made.get("grid"), Mapping):
        made["grid"] = expanded(made["grid"], source, "grid")
    if isinstance(made.get("stages"), list):
        made["stages"] = [
            expanded(stage, source, f"stages[{index}]") if isinstance(stage, Mapping) else stage
            for index, stage in enumerate(made["stages"])
        ]
    return made


def _is_settings(arm: Any) -> bool:
    return isinstance(arm, Mapping) and not any(kind in arm for kind in KINDS)


def _check_overridden_arms(values: Mapping[str, Any], paths: Sequence[str]) -> None:
    """A setting of an arm that is not there would make another arm."""
    arms = values.get("arms")
    known = [str(name) for name in arms] if isinstance(arms, Mapping) else []
    for path in paths:
        first, _, rest = path.partition(".")
        name, _, setting = rest.partition(".")
        if first == "arms" and setting and name not in known:
            raise COMMAND_LINE.error(path, f"there is no arm {name!r}. {closest(name, known)}")


def _arms(file: ExperimentFile, source: ExperimentSource) -> Iterator[FileArm]:
    """All arms, with names that differ."""
    base = None if file.base is None else whole(file.base, "base", source)
    seen: set[str] = set()
    for arm, path in itertools.chain(_named_arms(file, base, source), _grid_arms(file, base, source)):
        if arm.name in seen:
            raise source.error(path, f"two arms are called {arm.name!r}. Give each a name of its own.")
        seen.add(arm.name)
        yield arm
    if not seen and base is None:
        raise source.error("", "there is nothing to run: give a base, arms or a grid.")
    if not seen and base is not None:
        yield _made(BASE, base[0], [base[1]], source, "base")


def _named_arms(
    file: ExperimentFile, base: tuple[Trained, Layer] | None, source: ExperimentSource
) -> Iterator[tuple[FileArm, str]]:
    for name, given in (file.arms or {}).items():
        path, settings = f"arms.{name}", given or {}
        if not _is_settings(settings):
            _refuse_options_of_sft(settings, base, path, source)
            trained, layer = whole(settings, path, source)
            yield _made(name, trained, [layer], source, path), path
        elif base is None:
            raise source.error(path, "nothing trains it: give it sft, rl or function, or give the file a base.")
        else:
            yield _made(name, base[0], [base[1], Layer(settings, path)], source, path), path


def _grid_arms(
    file: ExperimentFile, base: tuple[Trained, Layer] | None, source: ExperimentSource
) -> Iterator[tuple[FileArm, str]]:
    axes = dict(_axes(file.grid or {}, "grid", source))
    if not axes:
        return
    if base is None:
        raise source.error("grid", "a grid is of settings of a base: give the file a base.")
    try:
        points = grid(**axes)
    except HooklineError as error:
        raise source.error("grid", str(error)) from error
    for point, choice in zip(points, itertools.product(*(range(len(values)) for values in axes.values())), strict=True):
        layers = [
            Layer(axes[path][index], f"grid.{path}[{index}]", tuple(path.split(".")))
            for path, index in zip(axes, choice, strict=True)
        ]
        yield _made(point.name, base[0], [base[1], *layers], source, "grid"), "grid"


def _axes(inside: Mapping[str, Any], path: str, source: ExperimentSource) -> Iterator[tuple[str, list[Any]]]:
    """The paths of settings, and the values that they have in turn."""
    for key, given in inside.items():
        place = f"{path}.{key}"
        if isinstance(given, Mapping):
            yield from _axes(given, place, source)
        elif not isinstance(given, list) or not given:
            raise source.error(place, f"{given!r:.200} was given, a list of at least one value is accepted.")
        else:
            yield place.removeprefix("grid."), given


def _made(name: str, trained: Trained, layers: list[Layer], source: ExperimentSource, path: str) -> FileArm:
    try:
        return FileArm(name, trained, layers, source, path)
    except (ConfigError, MissingExtraError):
        raise
    except HooklineError as error:
        raise source.error(path, str(error)) from error


def _refuse_options_of_sft(
    settings: Mapping[str, Any], base: tuple[Trained, Layer] | None, path: str, source: ExperimentSource
) -> None:
    """``sft`` in an arm is a whole configuration, and that has a part of that name; say how that one is set."""
    inside = settings.get("sft")
    if base is None or base[0].kind != "sft" or not isinstance(inside, Mapping):
        return
    if not {"model", "data", "train"} & set(inside):
        options = ", ".join(f"sft.{key}: ..." for key in inside) or "sft.max_length: ..."
        message = f"is a whole configuration, with model, data and train. For an option of the base give {options}."
        raise source.error(f"{path}.sft", message)


def _stages(file: ExperimentFile, source: ExperimentSource, arms: Sequence[FileArm]) -> list[Stage]:
    stages: list[Stage] = []
    for index, given in enumerate(file.stages or ()):
        path = f"stages[{index}]"
        try:
            stages.append(_stage({"name": given} if isinstance(given, str) else given, path, source, arms))
            checked_stages(stages)
        except ConfigError:
            raise
        except HooklineError as error:
            raise source.error(path, str(error)) from error
    if file.stages == []:
        raise source.error("stages", "[] was given, a list of at least one stage is accepted.")
    return stages


def _stage(given: Mapping[str, Any], path: str, source: ExperimentSource, arms: Sequence[FileArm]) -> Stage:
    changes = {key: value for key, value in given.items() if key not in ("name", "start_from")}
    if not isinstance(given.get("name"), str):
        raise source.error(path, "name is missing: give the stage a name.")
    known = _settings_of(arms)
    for key in changes if known else ():
        if key not in known:
            raise source.error(f"{path}.{key}", f"unknown key. {closest(str(key), ['name', 'start_from', *known])}")
    stage = Stage(given["name"], given.get("start_from"))
    stage.changes = StageChanges(changes, path) if changes else {}
    return stage


def _settings_of(arms: Sequence[FileArm]) -> set[str]:
    """What can be set in arms; nothing where one of them is a function, whose settings are its own matter."""
    kinds = {arm.trained.kind for arm in arms}
    return set() if "function" in kinds else {name for kind in kinds for name in config_type(kind).__struct_fields__}


def _check_arms(
    arms: Sequence[FileArm], stages: Sequence[Stage], source: ExperimentSource, *, benchmarked: bool
) -> None:
    """Find out whether each arm can be trained, in each stage."""
    for arm in arms:
        for stage in stages or [Stage("only")]:
            made: Arm = arm.changed(arm.name, stage.changes) if stage.changes else arm
            try:
                made.required_recipe().check(benchmarked=benchmarked)
            except HooklineError as error:
                where = f" in stage {stage.name!r}" if stages else ""
                raise source.error(arm.path, f"arm {arm.name!r}{where}: {error}") from error


def _executor(file: ExperimentFile, source: ExperimentSource) -> Any:
    try:
        return make_executor(file.executor)
    except MissingExtraError:
        raise
    except HooklineError as error:
        raise source.error("executor", str(error).removeprefix(f"executor={file.executor!r}: ")) from error
