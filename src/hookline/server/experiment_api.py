"""Endpoints for experiments: compares the arms by the results of ended runs, while others still run.

Results come from the files beside the runs. Runs without one (received from another machine, or of a killed experiment)
get their result from the journal: the recorded result counts, however the process ended afterwards; otherwise a failed
or stopped run counts as such. A run that is still active, or was resumed after recording a result, has none yet.
"""

import contextlib
import json
import os
from collections import Counter
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
from hookline.server.endpoint import Endpoint, Parameter, Values
from hookline.server.listing import ListedRuns, Listing, Number
from hookline.store import RunInfo, Runs
from hookline.store.run_info import is_regular_file

_UNSUCCESSFUL = ("failed", "stopped")


def recorded_results(runs: Runs) -> tuple[dict[str, RunResult], list[str]]:
    """The results of ended runs from their journals, by id, and the problems found, as sentences."""
    results: dict[str, RunResult] = {}
    problems: list[str] = []
    # Events come by time: a resume after a result discards it.
    events = runs.events([RUN_RESULT, "resume"], kind="event")
    last = {event["run"]: event for event in events if event["writer"] == MAIN}
    recorded = {run: json.loads(event["data"]) for run, event in last.items() if event["name"] == RUN_RESULT}
    for info in runs:
        try:
            found = _result_from_journal(info, recorded.get(info.id)) if info.is_over else None
        except msgspec.ValidationError as error:
            problems.append(f"{info.id}: the result in its journal is not valid: {error}")
            continue
        if found is not None:
            results[info.id] = found
    return results, problems


def _result_from_journal(info: RunInfo, data: Any) -> RunResult | None:
    position: dict[str, Any] = {"repeat": info.repeat or 0, "stage": info.stage, "seed": info.seed}
    if data is not None:  # also after an early stop
        recorded = RecordedResult.read(data)
        status = "failed" if info.status == "failed" else recorded.status
        return recorded.result(info.directory.name, status, info.directory, **position)
    if info.status not in _UNSUCCESSFUL:
        return None
    seconds = max(0.0, (info.ended or 0.0) - (info.started or info.ended or 0.0))
    return RecordedResult(seconds=seconds).result(info.directory.name, info.status, info.directory, **position)


_PROJECT = Parameter(
    "project", "string", "The directory of the experiment, as returned by /api/experiments.", required=True
)
_METRIC = Parameter("metric", "string", "The metric of the table; by default the experiment's main metric.")
_STAGE = Parameter("stage", "string", "The stage; by default the last one.")


class ExperimentRow(msgspec.Struct):
    """An experiment: its directory, its name, and the statuses of its runs."""

    project: str
    name: str
    arms: list[str]
    runs: int
    statuses: dict[str, int]


class Experiments(msgspec.Struct):
    """All experiments, the latest first."""

    experiments: list[ExperimentRow]


class ArmOutcome(msgspec.Struct):
    """The result of an arm: mean, standard deviation (of a sample) and range over its repeats."""

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
    """The difference of the metric between arm ``b`` and arm ``a``, with a 95% interval."""

    a: str
    b: str
    difference: Number
    interval: list[Number] | None
    separated: bool
    repeats_to_separate: int | None


class BenchmarkScore(msgspec.Struct):
    """The scores of a run in a benchmark, overall and by tag."""

    arm: str
    run: str
    stage: str | None
    benchmark: str
    metrics: dict[str, Number]
    intervals: dict[str, list[Number]]
    breakdowns: dict[str, dict[str, Number]]


class ExperimentReply(msgspec.Struct):
    """The current results of an experiment, in one stage if it has stages."""

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
    """The runs of each experiment, the latest first; the key is the project, plus the id for all but its latest one.

    Several machines may send an experiment of the same name.
    """
    found: dict[tuple[str, str], list[RunInfo]] = {}
    for info in runs:
        if info.experiment is not None:
            found.setdefault((info.project, str(_experiment_facts(info).get("id"))), []).append(info)
    keyed: dict[str, list[RunInfo]] = {}
    for (project, experiment), infos in found.items():
        keyed[project if project not in keyed else f"{project}@{experiment}"] = infos
    return keyed


def _experiment_facts(info: RunInfo) -> dict[str, Any]:
    known = info.facts.get("experiment")
    return known if isinstance(known, dict) else {}


def _experiment_row(project: str, infos: list[RunInfo]) -> ExperimentRow:
    arms = list(dict.fromkeys(info.arm for info in reversed(infos) if info.arm is not None))
    statuses = Counter(info.status for info in infos)
    name, suffix = infos[0].experiment or project, project.removeprefix(infos[0].project).removeprefix("@")
    return ExperimentRow(project, f"{name} ({suffix})" if suffix else name, arms, len(infos), dict(statuses))


def _experiment(listing: Listing, values: Values) -> ExperimentReply:
    infos = listing.find(lambda listed: _own_runs(listed, values["project"]))
    directory, problems = infos[0].directory.parent, []
    results: dict[str, RunResult] = {}
    for info in infos:
        try:
            if is_regular_file(info.directory / RESULT):  # links are not followed
                found = ExperimentStore(directory).result(info.directory.name)
                results |= {info.id: found} if found is not None else {}
        except HooklineError as error:
            problems.append(str(error))
    without_file = [
        info.id for info in infos if info.id not in results and not os.path.lexists(info.directory / RESULT)
    ]
    if without_file:
        recorded, found_problems = recorded_results(listing.some(without_file))
        results, problems = results | recorded, problems + found_problems
    planned = _planned_arms(directory) or _arms_in_order(infos)
    of_arm: dict[str, list[RunResult]] = {arm: [] for arm in planned}
    for info in infos:
        if info.arm is not None:
            own = of_arm.setdefault(info.arm, [])
            own += [results[info.id]] if info.id in results else []
    arms = tuple(ArmResult(name, None, tuple(runs)) for name, runs in of_arm.items())
    whole = ExperimentResult(infos[0].experiment or directory.name, arms, directory)
    return _reply(_select_stage(whole, infos, values["stage"]), infos, values["metric"], problems)


def _own_runs(listed: ListedRuns, project: str) -> list[RunInfo]:
    known = _by_experiment(listed.runs)
    if project not in known:
        raise UnknownNameError(f"There is no experiment {project!r:.80}. {closest(project[:80], known)}")
    return known[project][::-1]


def _planned_arms(directory: Path) -> list[str]:
    """The arms in their given order; none if the plan cannot be read, or if a search chooses them."""
    plan = directory / PLAN
    if is_regular_file(plan):
        with contextlib.suppress(OSError, msgspec.DecodeError, AttributeError, UnicodeDecodeError):
            known = msgspec.json.decode(plan.read_bytes())
            return [] if known.get("search") else list(known.get("arms", {}))
    return []


def _arms_in_order(infos: list[RunInfo]) -> list[str]:
    """The arms that have started, in their given order as far as their runs recorded it."""
    positions = {info.arm: _experiment_facts(info).get("position") for info in infos if info.arm is not None}
    return sorted(positions, key=lambda arm: known if isinstance(known := positions[arm], int) else len(positions))


@dataclass(frozen=True, slots=True)
class _StageView:
    """An experiment as shown: whole, with the metrics of its last stage, or one stage as if it were the whole."""

    result: ExperimentResult
    metrics: list[str]
    stage: str | None
    stages: list[str]


def _select_stage(whole: ExperimentResult, infos: list[RunInfo], stage: str | None) -> _StageView:
    """The view of a stage.

    Raises:
        UnknownNameError: There is no such stage.
    """
    # Including stages that have only started.
    known = list(dict.fromkeys([*whole.stages(), *(info.stage for info in infos if info.stage is not None)]))
    if stage is not None and stage not in known:
        raise UnknownNameError(f"There is no stage {stage!r:.80} in {whole.name}. {closest(stage[:80], known)}")
    last = next(reversed(whole.stages() or known), None)
    shown = last if stage is None else stage
    only = whole
    if shown is not None:
        arms = (
            ArmResult(arm.name, arm.config, tuple(run for run in arm.runs if run.stage == shown)) for arm in whole.arms
        )
        only = ExperimentResult(whole.name, tuple(arms), whole.output_dir)
    return _StageView(whole if stage is None else only, only.metric_names(), shown, known)


def _reply(view: _StageView, infos: list[RunInfo], metric: str | None, problems: list[str]) -> ExperimentReply:
    result = view.result
    shown = metric if metric is not None else result.main_metric
    table = result.table(shown)
    differences = result.differences(shown) if shown is not None else []
    return ExperimentReply(
        project=infos[0].project,
        name=result.name,
        metric=shown,
        mode=result.mode(shown),
        metrics=view.metrics,
        stage=view.stage,
        stages=view.stages,
        table=[_convert(ArmOutcome, asdict(row)) for row in table],
        differences=[_convert(ArmDifference, asdict(row)) for row in differences],
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
            benchmark=scored.name,
            metrics=clean(scored.metrics),
            intervals=clean(scored.intervals),
            breakdowns=clean(scored.breakdowns),
        )
        for run in arm.runs
        for scored in run.evals
    ]


def _convert(kind: type[Any], values: dict[str, Any]) -> Any:
    return kind(**{name: clean(values[name]) for name in kind.__struct_fields__})


ENDPOINTS = (
    Endpoint("/api/experiments", "All experiments, the latest first.", Experiments, _experiments),
    Endpoint(
        "/api/experiment",
        "The arms of an experiment compared.",
        ExperimentReply,
        _experiment,
        (_PROJECT, _METRIC, _STAGE),
    ),
)
