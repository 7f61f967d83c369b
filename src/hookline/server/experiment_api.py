"""Experiments: the arms side by side, from the results of runs that are over, while others still run."""

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from hookline.core.errors import HooklineError, UnknownNameError, closest
from hookline.core.state import ArmResult, RunResult
from hookline.experiment.results.result import ExperimentResult
from hookline.experiment.store import PLAN, ExperimentStore
from hookline.record.records import clean
from hookline.server.endpoint import Endpoint
from hookline.server.listing import Listing
from hookline.server.parameters import Parameter, Values
from hookline.server.run_rows import Number
from hookline.store import RunInfo
from hookline.store.catalogue import is_plain_file

_PROJECT = Parameter(
    "project", "string", "The directory of the experiment, as /api/experiments gives it.", required=True
)
_METRIC = Parameter("metric", "string", "What the table is about, instead of the experiment's main metric.")


class ExperimentRow(msgspec.Struct):
    """An experiment: where it lies, what it is called, how its runs are."""

    project: str
    name: str
    arms: list[str]
    runs: int
    statuses: dict[str, int]


class Experiments(msgspec.Struct):
    """All experiments, the latest first."""

    experiments: list[ExperimentRow]


class ArmOutcome(msgspec.Struct):
    """What an arm reached: mean, standard deviation (of a sample) and range over its repeats."""

    arm: str
    mean: Number
    std: Number
    n: int
    best: Number
    worst: Number
    runs: int
    failed: int
    seconds: Number


class ArmDifference(msgspec.Struct):
    """How much larger the metric is in arm ``b`` than in ``a``, with a 95% interval."""

    a: str
    b: str
    difference: Number
    interval: list[Number] | None
    separated: bool
    repeats_to_separate: int | None


class BenchmarkScore(msgspec.Struct):
    """What a run scored in a benchmark, in all and by tag."""

    arm: str
    run: str
    stage: str | None
    benchmark: str
    metrics: dict[str, Number]
    intervals: dict[str, list[Number]]
    breakdowns: dict[str, dict[str, Number]]


class ExperimentReply(msgspec.Struct):
    """An experiment as far as it is."""

    project: str
    name: str
    metric: str | None
    mode: str
    metrics: list[str]
    stages: list[str]
    table: list[ArmOutcome]
    differences: list[ArmDifference]
    benchmarks: list[BenchmarkScore]
    runs: list[str]
    problems: list[str]


def _experiments(listing: Listing, values: Values) -> Experiments:
    by_project: dict[str, list[RunInfo]] = {}
    for info in listing.now().runs:
        if info.experiment is not None:
            by_project.setdefault(info.project, []).append(info)
    return Experiments([_experiment_row(project, infos) for project, infos in by_project.items()])


def _experiment_row(project: str, infos: list[RunInfo]) -> ExperimentRow:
    arms = list(dict.fromkeys(info.arm for info in reversed(infos) if info.arm is not None))
    words = [info.status for info in infos]
    return ExperimentRow(
        project, infos[0].experiment or project, arms, len(infos), {word: words.count(word) for word in set(words)}
    )


def _experiment(listing: Listing, values: Values) -> ExperimentReply:
    infos = _own_runs(listing, values["project"])
    directory, problems = infos[0].directory.parent, []
    results: dict[str, RunResult] = {}
    for info in infos:
        try:
            found = _result(directory, info)
        except HooklineError as error:
            problems.append(str(error))
            continue
        if found is not None:
            results[info.id] = found
    result = _whole(directory, infos, results)
    return _reply(result, infos, values["metric"], problems)


def _own_runs(listing: Listing, project: str) -> list[RunInfo]:
    runs = listing.now().runs
    infos = [info for info in runs if info.project == project and info.experiment is not None]
    if not infos:
        known = {info.project for info in runs if info.experiment is not None}
        raise UnknownNameError(f"There is no experiment {project!r:.80}. {closest(project[:80], known)}")
    return infos[::-1]


def _result(directory: Path, info: RunInfo) -> RunResult | None:
    """How a run ended; files behind links are not read."""
    if not is_plain_file(info.directory / "result.json"):
        return None
    return ExperimentStore(directory).result(info.directory.name)


def _whole(directory: Path, infos: list[RunInfo], results: dict[str, RunResult]) -> ExperimentResult:
    of_arm: dict[str, list[RunResult]] = {arm: [] for arm in _planned_arms(directory)}
    for info in infos:
        if info.arm is not None:
            own = of_arm.setdefault(info.arm, [])
            own += [results[info.id]] if info.id in results else []
    arms = tuple(ArmResult(name, None, tuple(runs)) for name, runs in of_arm.items())
    return ExperimentResult(infos[0].experiment or directory.name, arms, directory)


def _planned_arms(directory: Path) -> list[str]:
    """The arms in the order in which they were given; none where the plan cannot be read."""
    plan = directory / PLAN
    if is_plain_file(plan):
        with contextlib.suppress(OSError, msgspec.DecodeError, AttributeError, UnicodeDecodeError):
            return list(msgspec.json.decode(plan.read_bytes()).get("arms", {}))
    return []


def _reply(result: ExperimentResult, infos: list[RunInfo], metric: str | None, problems: list[str]) -> ExperimentReply:
    about = metric if metric is not None else result.main_metric
    table = result.table(about)
    differences = result.differences(about) if about is not None else []
    return ExperimentReply(
        project=infos[0].project,
        name=result.name,
        metric=about,
        mode=result.mode(about),
        metrics=result.metric_names(),
        stages=result.stages(),
        table=[_picked(ArmOutcome, asdict(row)) for row in table],
        differences=[_picked(ArmDifference, asdict(row)) for row in differences],
        benchmarks=[score for arm in result.arms for score in _scores(arm)],
        runs=[info.id for info in infos],
        problems=problems,
    )


def _scores(arm: ArmResult) -> list[BenchmarkScore]:
    return [
        BenchmarkScore(
            arm=arm.name,
            run=run.run_key,
            stage=run.stage,
            benchmark=given.name,
            metrics=clean(given.metrics),
            intervals=clean(given.intervals),
            breakdowns=clean(given.breakdowns),
        )
        for run in arm.runs
        for given in run.evals
    ]


def _picked(kind: type[Any], values: dict[str, Any]) -> Any:
    return kind(**{name: clean(values[name]) for name in kind.__struct_fields__})


ENDPOINTS = (
    Endpoint("/api/experiments", "All experiments, the latest first.", Experiments, _experiments),
    Endpoint(
        "/api/experiment",
        "The arms of an experiment side by side.",
        ExperimentReply,
        _experiment,
        (_PROJECT, _METRIC),
    ),
)
