"""Endpoints for the page of one run: all its metrics with sparklines, its checkpoints, its artifacts with lineage."""

from typing import Any

import msgspec

from hookline._engine.errors import HooklineError
from hookline._record.artifact_versions import ArtifactFolder, parse_reference
from hookline._record.artifacts import Artifact
from hookline._record.records import clean
from hookline.server.endpoint import Endpoint, Parameter, Values, records_endpoint
from hookline.server.listing import Listing, Number, number
from hookline.store.outcomes import Metric, better_mode, main_metrics, outcomes
from hookline.store.run_contents import RunCheckpoint, artifact_uses, run_checkpoints

MAX_METRICS = 300
SPARK_POINTS = 60
MAX_ARTIFACTS = 100
MAX_OTHERS = 20
"""How many other runs of an artifact are named."""
_MAX_NAME = 500

_RUN = Parameter("run", "string", "The id of a run, as returned by /api/runs.", required=True)


class MetricValue(msgspec.Struct):
    """A metric of a run: its last and extreme values, and a few of its points.

    Attributes:
        best: The smallest or largest value; null if its name does not tell which is better.
        step: The step of the last value.
        not_finite: How many values are NaN or infinite.
    """

    name: str
    axis: str
    last: Number
    min: Number
    max: Number
    best: Number
    better: str | None
    step: int
    points: int
    not_finite: int
    x: list[float]
    y: list[float]


class RunValuesReply(msgspec.Struct):
    """The metrics of a run, the most important first; ``total`` counts those that are left out as well."""

    total: int
    metrics: list[MetricValue]


class Checkpoints(msgspec.Struct):
    """The checkpoints of a run, by time."""

    checkpoints: list[RunCheckpoint]


class OtherRun(msgspec.Struct):
    """Another run that saved or used the same version, and whether it is still there."""

    run: str
    role: str
    exists: bool


class RunArtifact(msgspec.Struct):
    """A version of an artifact that the run saved or used; ``exists`` if it is in this root."""

    artifact: str
    version: str
    kind: str
    role: str
    step: int | None
    exists: bool
    bytes: int
    files: int
    aliases: list[str]
    others: list[OtherRun]


class RunArtifacts(msgspec.Struct):
    """The artifacts that a run saved and used, by time; ``total`` counts those that are left out as well."""

    total: int
    artifacts: list[RunArtifact]


def _values(listing: Listing, values: Values) -> RunValuesReply:
    found = listing.some([values["run"]])
    known = outcomes(found)[found[0].id]
    names = [name for name in main_metrics(dict.fromkeys(metric.name for metric in known)) if len(name) <= _MAX_NAME]
    chosen = names[:MAX_METRICS]
    lines = found.series(chosen, max_points=SPARK_POINTS) if chosen else []
    curves = {Metric(line.name, line.axis): line for line in lines}
    order = {name: place for place, name in enumerate(chosen)}
    rows = []
    for metric in sorted(
        (each for each in known if each.name in order), key=lambda each: (order[each.name], each.axis)
    ):
        outcome, line, mode = known[metric], curves.get(metric), better_mode(metric.name)
        rows.append(
            MetricValue(
                metric.name,
                metric.axis,
                number(outcome.last),
                number(outcome.least),
                number(outcome.largest),
                None if mode is None else number(outcome.best(mode)),
                mode,
                outcome.step,
                outcome.points,
                line.not_finite if line else 0,
                line.x if line else [],
                line.y if line else [],
            )
        )
    return RunValuesReply(len(names), rows)


def _checkpoints(listing: Listing, values: Values) -> Checkpoints:
    found = listing.some([values["run"]])
    return Checkpoints(
        [msgspec.structs.replace(each, values=clean(each.values)) for each in run_checkpoints(found, found[0])]
    )


def _artifacts(listing: Listing, values: Values) -> RunArtifacts:
    found = listing.some([values["run"]])
    uses = artifact_uses(found, found[0])
    return RunArtifacts(len(uses), [_artifact(listing, found[0].id, use) for use in uses[:MAX_ARTIFACTS]])


def _artifact(listing: Listing, run: str, use: dict[str, Any]) -> RunArtifact:
    name, version, kind = (str(use[key])[:_MAX_NAME] for key in ("artifact", "version", "kind"))
    row = RunArtifact(name, version, kind, use["role"], use["step"], False, 0, 0, [], [])
    try:
        reference = parse_reference(f"{name}:{version}")
        if not listing.scope.allows(reference.project):
            return row  # of a project that the token is not for
        folder = ArtifactFolder(listing.now().runs.root, reference.project, reference.name)
        saved = Artifact(folder, folder.resolve(reference.version))
    except (HooklineError, OSError):
        return row  # deleted, or in another root
    rows = listing.now().rows
    row.exists, row.bytes, row.files = True, saved.size, len(saved.files)
    row.aliases = [alias for alias, named in folder.aliases().items() if named == saved.number]
    others = dict.fromkeys((each.run, each.role) for each in saved.runs)
    if saved.run:
        others = dict.fromkeys([(saved.run, "saved"), *others])
    visible = [
        (other, role) for other, role in others if other != run and listing.scope.allows(other.partition("/")[0])
    ]
    row.others = [OtherRun(other, role, other in rows) for other, role in visible[:MAX_OTHERS]]
    return row


ENDPOINTS = (
    records_endpoint("/api/run/values", "All metrics of a run, with sparklines.", RunValuesReply, _values, (_RUN,)),
    Endpoint("/api/run/checkpoints", "The checkpoints of a run.", Checkpoints, _checkpoints, (_RUN,), is_slow=True),
    Endpoint("/api/run/artifacts", "The artifacts that a run saved and used.", RunArtifacts, _artifacts, (_RUN,)),
)
