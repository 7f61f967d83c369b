"""Experiments: the arms side by side, from the results of runs that are over, while others still run.

The results of runs that no file beside them says: from their journals.

Such are runs that were received from other machines, and those whose experiment was killed. A run that recorded what it
came to has that result, however its process ended afterwards; one that said that it failed or was stopped has that. A
run of which neither is known, or that goes on, has none yet. One that began again after it recorded a result goes on.
"""

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from hookline._engine.errors import HooklineError, UnknownNameError, closest
from hookline._engine.state import ArmResult, RunResult
from hookline._record.reader import MAIN
from hookline._record.records import RUN_RESULT, clean
from hookline.experiment.directory import PLAN, RESULT, ExperimentStore, RecordedResult
from hookline.experiment.results.result import ExperimentResult
from hookline.server.endpoint import Endpoint
from hookline.server.listing import Listed, Listing, Number
from hookline.server.parameters import Parameter, Values
from hookline.store import RunInfo, Runs
from hookline.store.run_info import is_regular_file

_UNSUCCESSFUL = ("failed", "stopped")


def recorded_results(runs: Runs) -> tuple[dict[str, RunResult], list[str]]:
    """The results of those of some runs that are over, by their ids, and what cannot be understood, in words."""
    results: dict[str, RunResult] = {}
    problems: list[str] = []
    said = _last_said(runs.events([RUN_RESULT, "resume"], kind="event"))
    for info in runs:
        try:
            found = _result_from_journal(info, said.get(info.id)) if info.is_over else None
        except msgspec.ValidationError as error:
            problems.append(f"{info.id}: its journal says no result that can be understood: {error}")
            continue
        if found is not None:
            results[info.id] = found
    return results, problems


def _last_said(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What each run recorded as its result, unless it was taken up after that."""
    said = {event["run"]: event for event in events if event["writer"] == MAIN}  # they come by time
    return {run: json.loads(event["data"]) for run, event in said.items() if event["name"] == RUN_RESULT}


def _result_from_journal(info: RunInfo, data: Any) -> RunResult | None:
    about: dict[str, Any] = {"repeat": info.repeat or 0, "stage": info.stage, "seed": info.seed}
    if data is not None:  # an early stop is an end like any other
        recorded = RecordedResult.read(data)
        status = "failed" if info.status == "failed" else recorded.status
        return recorded.result(info.directory.name, status, info.directory, **about)
    if info.status not in _UNSUCCESSFUL:
        return None
    seconds = max(0.0, (info.ended or 0.0) - (info.started or info.ended or 0.0))
    return RecordedResult(seconds=seconds).result(info.directory.name, info.status, info.directory, **about)


_PROJECT = Parameter(
    "project", "string", "The directory of the experiment, as /api/experiments gives it.", required=True
)
_METRIC = Parameter("metric", "string", "What the table is about, instead of the experiment's main metric.")
_STAGE = Parameter("stage", "string", "The stage that everything is about, instead of the last one.")


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
    """An experiment as far as it is; where it has stages, in the one that is named."""

    project: str
    name: str
    metric: str | None
    mode: str
    metrics: list[str]
    stage: str | None
    stages: list[str]
    table: list[ArmOutcome]
    differences: list[ArmDifference]
    benchmarks: list[BenchmarkScore]
    runs: list[str]
    problems: list[str]


def _experiments(listing: Listing, values: Values) -> Experiments:
    return Experiments([_experiment_row(key, infos) for key, infos in _by_experiment(listing.now().runs).items()])


def _by_experiment(runs: Iterable[RunInfo]) -> dict[str, list[RunInfo]]:
    """The runs of each experiment, the latest first; the key is the project, with the id for all but its latest one.

    Machines that send their runs to a server may each have an experiment of the same name.
    """
    found: dict[tuple[str, str], list[RunInfo]] = {}
    for info in runs:
        if info.experiment is not None:
            found.setdefault((info.project, str(_belonging(info).get("id"))), []).append(info)
    keyed: dict[str, list[RunInfo]] = {}
    for (project, experiment), infos in found.items():
        keyed[project if project not in keyed else f"{project}@{experiment}"] = infos
    return keyed


def _belonging(info: RunInfo) -> dict[str, Any]:
    """What a run knows of its place in the experiment."""
    known = info.facts.get("experiment")
    return known if isinstance(known, dict) else {}


def _experiment_row(project: str, infos: list[RunInfo]) -> ExperimentRow:
    arms = list(dict.fromkeys(info.arm for info in reversed(infos) if info.arm is not None))
    words = [info.status for info in infos]
    name, mark = infos[0].experiment or project, project.removeprefix(infos[0].project).removeprefix("@")
    return ExperimentRow(
        project,
        f"{name} ({mark})" if mark else name,
        arms,
        len(infos),
        {word: words.count(word) for word in set(words)},
    )


def _experiment(listing: Listing, values: Values) -> ExperimentReply:
    infos = listing.find(lambda listed: _own_runs(listed, values["project"]))
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
    unsaid = [info.id for info in infos if info.id not in results and not _is_said(info)]
    recorded, unclear = recorded_results(listing.some(unsaid)) if unsaid else ({}, [])
    results, problems = results | recorded, problems + unclear
    whole = _whole(directory, infos, results)
    return _reply(_shown(whole, infos, values["stage"]), infos, values["metric"], problems)


def _own_runs(listed: Listed, project: str) -> list[RunInfo]:
    known = _by_experiment(listed.runs)
    if project not in known:
        raise UnknownNameError(f"There is no experiment {project!r:.80}. {closest(project[:80], known)}")
    return known[project][::-1]


def _is_said(info: RunInfo) -> bool:
    """Whether there is a file that says, or should say, how a run ended."""
    return os.path.lexists(info.directory / RESULT)


def _result(directory: Path, info: RunInfo) -> RunResult | None:
    """How a run ended; files behind links are not read."""
    if not is_regular_file(info.directory / RESULT):
        return None
    return ExperimentStore(directory).result(info.directory.name)


def _whole(directory: Path, infos: list[RunInfo], results: dict[str, RunResult]) -> ExperimentResult:
    planned = _planned_arms(directory) or _arms_in_order(infos)
    of_arm: dict[str, list[RunResult]] = {arm: [] for arm in planned}
    for info in infos:
        if info.arm is not None:
            own = of_arm.setdefault(info.arm, [])
            own += [results[info.id]] if info.id in results else []
    arms = tuple(ArmResult(name, None, tuple(runs)) for name, runs in of_arm.items())
    return ExperimentResult(infos[0].experiment or directory.name, arms, directory)


def _planned_arms(directory: Path) -> list[str]:
    """The arms in the order in which they were given; none where the plan cannot be read."""
    plan = directory / PLAN
    if is_regular_file(plan):
        with contextlib.suppress(OSError, msgspec.DecodeError, AttributeError, UnicodeDecodeError):
            return list(msgspec.json.decode(plan.read_bytes()).get("arms", {}))
    return []


def _arms_in_order(infos: list[RunInfo]) -> list[str]:
    """The arms that have begun, in the order in which they were given, as far as their runs know it."""
    places = {info.arm: _belonging(info).get("position") for info in infos if info.arm is not None}
    return sorted(places, key=lambda arm: place if isinstance(place := places[arm], int) else len(places))


def _stages(result: ExperimentResult, infos: list[RunInfo]) -> list[str]:
    """The stages in their order, those that have only begun included."""
    return list(dict.fromkeys([*result.stages(), *(info.stage for info in infos if info.stage is not None)]))


@dataclass(frozen=True, slots=True)
class _Shown:
    """What is shown of an experiment: all of it, which is about its last stage, or a stage as if it were all."""

    result: ExperimentResult
    metrics: list[str]
    stage: str | None
    stages: list[str]


def _shown(whole: ExperimentResult, infos: list[RunInfo], stage: str | None) -> _Shown:
    """What is to be shown.

    Raises:
        UnknownNameError: There is no such stage.
    """
    known = _stages(whole, infos)
    if stage is not None and stage not in known:
        raise UnknownNameError(f"There is no stage {stage!r:.80} in {whole.name}. {closest(stage[:80], known)}")
    last = next(reversed(whole.stages() or known), None)
    about = last if stage is None else stage
    only = whole if about is None else _in_stage(whole, about)
    return _Shown(whole if stage is None else only, only.metric_names(), about, known)


def _in_stage(whole: ExperimentResult, stage: str) -> ExperimentResult:
    arms = (ArmResult(arm.name, arm.config, tuple(run for run in arm.runs if run.stage == stage)) for arm in whole.arms)
    return ExperimentResult(whole.name, tuple(arms), whole.output_dir)


def _reply(shown: _Shown, infos: list[RunInfo], metric: str | None, problems: list[str]) -> ExperimentReply:
    result = shown.result
    about = metric if metric is not None else result.main_metric
    table = result.table(about)
    differences = result.differences(about) if about is not None else []
    return ExperimentReply(
        project=infos[0].project,
        name=result.name,
        metric=about,
        mode=result.mode(about),
        metrics=shown.metrics,
        stage=shown.stage,
        stages=shown.stages,
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
        (_PROJECT, _METRIC, _STAGE),
    ),
)
