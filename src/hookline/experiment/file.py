"""Loads an experiment from a YAML, TOML or JSON file.

    name: learning-rates
    repeats: 3
    base:
      sft: {model: {tiny: {}}, data: {train: rows.jsonl}, train: {max_steps: 100}}
    arms:
      low: {train.learning_rate: 1e-4}
      high: {train: {learning_rate: 1e-3}}

The whole file is checked before anything runs: every key at every level and every name of a benchmark, callback, sink
and executor; functions are imported. An error names the file and line, or the command line, the path, the value and
what is accepted. Modules beside the file can be imported, like modules beside a script.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hookline._engine.errors import ConfigError, HooklineError, MissingExtraError, closest
from hookline._engine.factories import COMMAND_LINE, Source
from hookline.config.loading import to_struct
from hookline.config.sources import expand_dotted, expand_each, parse_overrides, read_config_source, with_overrides
from hookline.experiment.arms import Stage, checked_stages
from hookline.experiment.benchmark import make_benchmarks
from hookline.experiment.file_arms import (
    STAGES,
    ExperimentFile,
    FileArm,
    FileArms,
    StageChanges,
    check_callbacks,
    check_keys,
    check_sinks,
    has_training,
)
from hookline.experiment.scheduler import make_executor
from hookline.experiment.search import checked_search


def experiment_arguments(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read the arguments of an `Experiment` from a file, with overrides from the command line.

    Raises:
        ConfigError: The file has a mistake.
    """
    read = read_config_source(path)
    read = replace(read, data=_nested(read.data, read))
    _check_overridden_arms(read.data, [path for path, _ in parse_overrides(overrides)])
    changed = with_overrides(read, overrides)
    source = replace(changed, data=_nested(changed.data, COMMAND_LINE))
    file = to_struct(source.data, ExperimentFile, source=source)
    make_importable(Path(path).resolve().parent)
    benchmarks = make_benchmarks(file.benchmarks, source=source)
    check_callbacks(file.callbacks or [], source, "callbacks")
    check_sinks(file.sinks or [], source, "sinks")
    arms = list(FileArms(file, source))
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
        "search": _search(file, source),
        "strict": file.strict,
    }


def make_importable(directory: Path) -> None:
    """Add a directory to the import path of this process and of those that it starts."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _nested(data: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """The data with dotted settings turned into nested mappings, so that each setting has one form."""
    made = dict(data)
    base = made.get("base")
    if isinstance(base, Mapping):
        made["base"] = _nested_stages(base, source, "base")
    if isinstance(made.get("arms"), Mapping):
        made["arms"] = {name: _nested_arm(arm, base, source, f"arms.{name}") for name, arm in made["arms"].items()}
    if isinstance(made.get("grid"), Mapping):
        made["grid"] = expand_dotted(made["grid"], source, "grid")
    if isinstance(made.get("stages"), list):
        made["stages"] = [
            expand_dotted(stage, source, f"stages[{index}]") if isinstance(stage, Mapping) else stage
            for index, stage in enumerate(made["stages"])
        ]
    return made


def _nested_arm(arm: Any, base: Any, source: Source, path: str) -> Any:
    if not isinstance(arm, Mapping):
        return arm
    if has_training(arm, base):
        return _nested_stages(arm, source, path)
    return expand_dotted(arm, source, path, names=(STAGES,))


def _nested_stages(given: Mapping[str, Any], source: Source, path: str) -> dict[str, Any]:
    stages = {STAGES: expand_each(given[STAGES], source, f"{path}.{STAGES}")} if STAGES in given else {}
    return {**given, **stages}


def _check_overridden_arms(values: Mapping[str, Any], paths: Sequence[str]) -> None:
    """Refuse overrides of unknown arms: they would add an arm."""
    arms = values.get("arms")
    known = [str(name) for name in arms] if isinstance(arms, Mapping) else []
    for path in paths:
        first, _, rest = path.partition(".")
        name, _, setting = rest.partition(".")
        if first == "arms" and setting and name not in known:
            raise COMMAND_LINE.error(path, f"there is no arm {name!r}. {closest(name, known)}")


def _stages(file: ExperimentFile, source: Source, arms: Sequence[FileArm]) -> list[Stage]:
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


def _stage(given: Mapping[str, Any], path: str, source: Source, arms: Sequence[FileArm]) -> Stage:
    changes = {key: value for key, value in given.items() if key not in ("name", "start_from")}
    if not isinstance(given.get("name"), str):
        raise source.error(path, "name is missing: give the stage a name.")
    stage = Stage(given["name"], given.get("start_from"))
    kinds = {arm.in_stage(stage).training.kind for arm in arms}
    check_keys(changes, kinds, path, source, besides=("name", "start_from"))
    stage.changes = StageChanges(changes, path) if changes else {}
    return stage


def _check_arms(arms: Sequence[FileArm], stages: Sequence[Stage], source: Source, *, benchmarked: bool) -> None:
    for arm in arms:
        for stage in stages or [Stage("only")]:
            made = arm.in_stage(stage)
            try:
                made.required_recipe().check(benchmarked=benchmarked)
            except HooklineError as error:
                where = f" in stage {stage.name!r}" if stages else ""
                raise source.error(made.path, f"arm {arm.name!r}{where}: {error}") from error


def _search(file: ExperimentFile, source: Source) -> Any:
    try:
        return checked_search(file.search)
    except MissingExtraError:
        raise
    except HooklineError as error:
        raise source.error("search", str(error)) from error


def _executor(file: ExperimentFile, source: Source) -> Any:
    try:
        return make_executor(file.executor)
    except MissingExtraError:
        raise
    except HooklineError as error:
        raise source.error("executor", str(error).removeprefix(f"executor={file.executor!r}: ")) from error
