"""The documents that commands print with ``--json``: a type for each, and `SCHEMAS`, the documents of each command.

``json_reference.py`` writes the page from them. A test runs the commands and checks that their output has these types,
with no other fields and none left out.
"""

from typing import Any, Literal

import msgspec

from hookline._record.commands import Outcome
from hookline.cli.bench import Figure
from hookline.cli.runs.verify import Finding
from hookline.experiment.experiment import DryRunRow
from hookline.experiment.results.statistics import Difference
from hookline.experiment.results.tables import ArmRow
from hookline.experiment.results.trials import SearchResult
from hookline.server.tokens import TokenInfo
from hookline.store.alert_book import Mute, RaisedAlert
from hookline.store.compression import CompressedRun

Number = float | Literal["NaN", "Infinity", "-Infinity"]
"""JSON has no such numbers."""

WITHOUT = {
    "exec": "It prints what the script prints.",
    "mcp": "It speaks a protocol on standard output; every answer is JSON.",
    "ui": "It opens the page in a browser. `hookline serve --json` prints an address.",
}
"""The commands without ``--json``, with the reason."""


class Document(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A JSON object with exactly these fields; those with a default may be missing."""


class Error(Document):
    """What a command prints instead if its input is wrong; the exit status is not 0."""

    error: str


class Run(Document):
    """A run as listings show it.

    Attributes:
        status: `running`, `stalled`, `finished`, `stopped`, `failed` or `killed`.
        message: The error, or the reason of the stop.
        started: Seconds since 1970, as all times.
        num_steps: The planned steps, if they are known.
        problems: What is missing or damaged, in words.
        summary: What the run wrote to its summary.
        metrics: The last value of each metric.
    """

    id: str
    name: str
    project: str
    status: str
    message: str
    experiment: str | None
    group: str | None
    arm: str | None
    repeat: int | None
    stage: str | None
    seed: int | None
    started: Number | None
    ended: Number | None
    step: int
    num_steps: int | None
    seconds_per_step: Number | None
    eta_seconds: Number | None
    last_seen: Number | None
    host: str
    tags: list[str]
    notes: str
    archived: bool
    problems: list[str]
    config: Any
    summary: dict[str, Any]
    metrics: dict[str, Any]
    directory: str


class RunList(Document):
    """The matching runs, the latest first.

    Attributes:
        more: How many further runs match.
    """

    root: str
    runs: list[Run]
    more: int


class MetricResult(Document):
    """A metric of a run on an axis: its last value with its step, and the smallest and largest finite ones."""

    name: str
    axis: str
    last: Number
    step: int
    least: Number | None
    largest: Number | None
    points: int


class ShownRun(Run):
    """A run with everything recorded about it.

    Attributes:
        facts: The content of `run.json`.
        environments: Packages, hardware and git state of each session.
        ranks: The environments of other processes.
        results: Each metric, with its last and extreme values.
        order: The subscribers in the order of their calls.
        failures: Recorded tracebacks.
    """

    facts: dict[str, Any]
    environments: list[dict[str, Any]]
    ranks: list[dict[str, Any]]
    results: list[MetricResult]
    media: list[dict[str, Any]]
    checkpoints: list[dict[str, Any]]
    artifacts: list[dict[str, Any]]
    hooks: list[dict[str, Any]]
    hook_errors: list[dict[str, Any]]
    order: list[dict[str, Any]]
    sinks: list[dict[str, Any]]
    events: list[dict[str, Any]]
    failures: list[dict[str, Any]]


class ComparedRunFacts(Document):
    """A run of a comparison."""

    id: str
    name: str
    status: str
    step: int
    seconds: Number | None
    seconds_per_step: Number | None
    directory: str


class RunComparison(Document):
    """Lists have one value for each run, in the order given.

    Attributes:
        arms: The groups of repeats among the runs.
        config: The settings that differ; with `--all`, all.
        environment: The facts and packages that differ.
        code: The code of each further run compared with that of the first.
    """

    runs: list[ComparedRunFacts]
    arms: list[dict[str, Any]]
    config: dict[str, list[Any]]
    environment: dict[str, list[Any]]
    metrics: list[dict[str, Any]]
    code: list[dict[str, Any]]


class RatedSetting(Document):
    """A setting with its importance, from 0 to 1."""

    setting: str
    importance: Number
    explained: Number
    p_value: Number
    correlation: Number | None
    values: int
    missing: int


class SettingImportance(Document):
    """The settings that differ between runs, the most important first.

    Attributes:
        diverged: How many runs have a value that is not finite.
        left_out: How many runs do not count.
        problem: Why nothing can be said; empty if something can.
    """

    metric: str
    mode: str
    runs: int
    best: int
    diverged: int
    left_out: int
    settings: list[RatedSetting]
    problem: str
    note: str


class RecordLine(msgspec.Struct, kw_only=True):
    """One line for each record, as it is in the journal: further fields depend on the kind.

    Attributes:
        writer: The process that wrote it.
        kind: `metrics`, `status`, `event`, `samples`, ...
    """

    writer: str
    kind: str
    time: float


class LogLine(Document):
    """One line for each recorded line.

    Attributes:
        stream: `stdout`, `stderr`, `log` or `note`.
        partial: Whether its end is missing.
        actor: The name of a worker process.
    """

    time: float
    rank: int
    stream: str
    text: str
    step: int | None
    partial: bool
    level: str
    logger: str
    actor: str


class MediaSummary(Document):
    """The items of one name."""

    name: str
    axis: str
    type: str
    items: int
    first_step: int
    last_step: int
    bytes: int


class Media(Document):
    """What the run logged, by name.

    Attributes:
        files: With `--export`, the files that were written.
    """

    run: str
    media: list[MediaSummary]
    files: list[str] = []
    problems: list[str] = []


class Code(Document):
    """The code that the run was started with.

    Attributes:
        sessions: How often the run was started or resumed.
        git: The commit, branch and changes; empty outside of a repository.
        restored: With a directory, what was written there.
    """

    run: str
    sessions: int
    git: dict[str, Any]
    restored: dict[str, Any] = {}


class Exported(Document):
    """The written file, or with `--what all` the directory.

    Attributes:
        rows: How many rows of each kind were written, or of the one that was asked for.
        missing: How many media files the run lacks.
    """

    run: str
    what: str
    format: str
    rows: Any
    directory: str = ""
    file: str = ""
    bytes: int = 0
    missing: int = 0
    missing_artifacts: int = 0


class Compressed(Document):
    """The runs with their sizes in bytes."""

    undo: bool
    dry_run: bool
    runs: list[CompressedRun]


class EditedRun(Document):
    """A run with its edits, without those that were never changed."""

    id: str
    edits: dict[str, Any]


class Edited(Document):
    """The edited runs."""

    runs: list[EditedRun]


class DeletedRun(Document):
    """A deleted run."""

    id: str
    directory: str
    bytes: int


class Deleted(Document):
    """The deleted runs.

    Attributes:
        deleted: False for `--dry-run`.
        running: Runs that are not deleted because they are still running.
    """

    deleted: bool
    runs: list[DeletedRun]
    running: list[str]


class VerifiedRun(Document):
    """A run and what was found."""

    run: str
    directory: str
    ok: bool
    records: int
    bytes: int
    findings: list[Finding]


class SyncedRun(Document):
    """With a run: the states of its sinks."""

    run: str
    sinks: list[dict[str, Any]]


class Synced(Document):
    """Without a run: all of them.

    Attributes:
        logging: Journals of `hookline.logging`.
    """

    root: str
    runs: list[dict[str, Any]]
    logging: list[dict[str, Any]]


class ImportedRun(Document):
    """An imported run.

    Attributes:
        directory: Null with `--dry-run`.
        already: Whether it was imported before.
        taken: The files that were read.
        left: The files that were not read, with reasons.
        skipped: The first values that were not imported, with reasons.
    """

    directory: str | None
    name: str
    format: str
    source: str
    rows: int
    samples: int
    events: int
    media: int
    already: bool
    taken: list[str]
    left: list[dict[str, Any]]
    skipped_count: int
    skipped: list[dict[str, Any]]


class ExportedSamples(Document):
    """The written file."""

    run: str
    format: str
    file: str
    rows: int
    bytes: int


class ArtifactFolder(Document):
    """An artifact, its versions, and the version of each alias."""

    artifact: str
    versions: list[str]
    aliases: dict[str, str]


class ListedArtifact(ArtifactFolder):
    """An artifact with its latest version."""

    latest: dict[str, Any] | None


class ArtifactList(Document):
    """All artifacts."""

    root: str
    artifacts: list[ListedArtifact]


class ArtifactVersion(Document):
    """A version."""

    artifact: str
    version: str
    kind: str
    digest: str
    time: float
    run: str | None
    step: int | None
    aliases: list[str]
    files: int
    bytes: int


class ShownArtifact(ArtifactVersion):
    """A version with its files and the runs that saved and used it."""

    metadata: dict[str, Any]
    runs: list[dict[str, Any]]
    content: list[dict[str, Any]]


class CopiedArtifact(ArtifactVersion):
    """A version that was copied.

    Attributes:
        left: References that were not downloaded.
    """

    directory: str
    left: list[str]


class VerifiedArtifact(Document):
    """A version and what is wrong with it."""

    artifact: str
    ok: bool
    problems: list[Any]


class DeletedArtifact(ArtifactFolder):
    """What is left, and the files and bytes that were freed."""

    deleted: str
    files: int
    bytes: int


class RemovedFiles(Document):
    """The number and the bytes of the files.

    Attributes:
        removed: False for `--dry-run`.
    """

    removed: bool
    files: int
    bytes: int


class Alert(RaisedAlert, forbid_unknown_fields=True, kw_only=True):
    """An alert with its state, in words."""

    state: str


class AlertList(Document):
    """Alerts, the latest first."""

    alerts: list[Alert]
    mutes: list[Mute]


class Acknowledged(Document):
    """The ids of the alerts."""

    acknowledged: list[str]


class Mutes(Document):
    """Everything that is muted now."""

    mutes: list[Mute]


class TestedAlerts(Document):
    """The rules of the file, and what became of the test alert.

    Attributes:
        destinations: The problem with each destination; empty if the alert was sent.
    """

    rules: list[str]
    silence_seconds: float | None
    destinations: dict[str, str]


class ControlState(Document):
    """Without a command.

    Attributes:
        offer: What the run accepts; null if it never listened.
    """

    offer: dict[str, Any] | None
    commands: list[Outcome]


class Callback(Document):
    """A registered callback or hook."""

    name: str
    kind: str
    source: str
    summary: str
    error: str | None


class CallbackArgument(Document):
    """An argument of a callback; the default is Python source text."""

    name: str
    type: str
    required: bool
    default: str | None
    meaning: str


class ShownCallback(Document):
    """A callback with its arguments, moments and options."""

    name: str
    kind: str
    source: str
    path: str
    docstring: str
    arguments: list[CallbackArgument]
    moments: list[str]
    options: dict[str, str]


class CheckedFile(Document):
    """A file of callbacks; the error is null if it is accepted."""

    ok: bool
    file: str
    names: list[str]
    error: str | None


class CallbackPlan(Document):
    """The subscribers of each moment, in order."""

    file: str
    moments: dict[str, list[str]]
    subscribers: list[dict[str, Any]]


class NewPackage(Document):
    """The package that was created."""

    directory: str
    package: str
    files: list[str]


class ReplayedRun(Document):
    """What the callbacks would have done.

    Attributes:
        recorded: What really happened.
        unavailable: What each callback asked for that a record does not have.
        left_out: What was not listed because there was too much of it.
    """

    run: str
    name: str
    recorded: dict[str, Any]
    subscribers: list[str]
    stops: list[dict[str, Any]]
    alerts: list[dict[str, Any]]
    checkpoints: list[dict[str, Any]]
    values: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    costs: dict[str, Any]
    unavailable: dict[str, list[str]]
    ended_by: str | None
    left_out: dict[str, Any]
    seconds: float


class ArmRuns(Document):
    """An arm with its runs."""

    name: str
    config: Any
    runs: list[dict[str, Any]]


class Experiment(Document):
    """The result of an experiment.

    Attributes:
        search: The trials of a search; null without one.
    """

    name: str
    output_dir: str | None
    metric: str | None
    mode: str
    table: list[ArmRow]
    search: SearchResult | None
    differences: list[Difference]
    arms: list[ArmRuns]


class PlannedExperiment(Document):
    """With `--dry-run`.

    Attributes:
        listeners: The subscribers of each moment, for arms that have the same ones.
        search: What a search would choose.
    """

    name: str
    output_dir: str
    runs: list[DryRunRow]
    listeners: list[dict[str, Any]]
    search: str = ""


class Training(Document):
    """The result of a single training."""

    name: str | None
    step: int
    metrics: dict[str, Any]
    output_dir: str | None
    stop_reason: str | None


class PlannedTraining(Document):
    """A single training with `--dry-run`."""

    kind: str
    name: str | None
    project: str | None
    output_dir: str | None
    max_steps: int | None
    epochs: int | None
    seed: int | None
    resume: Any
    moments: dict[str, list[str]]


class Demo(Experiment):
    """The result of the demo.

    Attributes:
        curves: The curves of each arm, shortened.
        gap: The difference between the arms.
        hooks: What each subscriber cost.
        hook_share: The share of the time that they took.
    """

    status: str
    curves: list[dict[str, Any]]
    gap: dict[str, Any] | None
    hooks: list[dict[str, Any]]
    hook_share: float


class Token(TokenInfo, forbid_unknown_fields=True):
    """A token, with its secret, which is shown once."""

    token: str


class TokenList(Document):
    """The tokens of a file, without their secrets."""

    file: str
    tokens: list[TokenInfo]


class RevokedToken(Document):
    """The token that is no longer accepted."""

    revoked: TokenInfo


class AuditEntries(Document):
    """Entries, the latest last."""

    file: str
    entries: list[dict[str, Any]]


class Benchmarks(Document):
    """The machine and the measurements."""

    environment: dict[str, Any]
    figures: list[Figure]


class QuickDemo(Document):
    """With `--quick`."""

    directory: str
    state: str
    step: int
    num_steps: int
    stop_reason: str | None
    seconds: float
    metrics: dict[str, Any]
    costs: list[dict[str, Any]]


class Served(Document):
    """One line when the server listens.

    Attributes:
        made: New tokens, which are shown once.
        kept: The tokens that were saved.
        sinks: The configuration for a machine that trains.
    """

    url: str
    root: str
    runs: int
    made: dict[str, str]
    kept: list[str]
    token_file: str | None
    reading_needs_token: bool
    sinks: str


SCHEMAS: dict[str, Any] = {
    "alerts ack": Acknowledged,
    "alerts list": AlertList,
    "alerts mute": Mutes,
    "alerts test": TestedAlerts,
    "artifacts delete": DeletedArtifact,
    "artifacts gc": RemovedFiles,
    "artifacts get": CopiedArtifact,
    "artifacts list": ArtifactList,
    "artifacts show": ShownArtifact,
    "artifacts tag": ArtifactFolder,
    "artifacts verify": list[VerifiedArtifact],
    "bench": Benchmarks,
    "control": ControlState | Outcome,
    "demo": QuickDemo | Demo,
    "hooks check": CheckedFile,
    "hooks list": list[Callback],
    "hooks new": NewPackage,
    "hooks plan": CallbackPlan,
    "hooks show": ShownCallback,
    "replay": ReplayedRun,
    "run": Experiment | PlannedExperiment | Training | PlannedTraining,
    "runs code": Code,
    "runs compare": RunComparison,
    "runs compress": Compressed,
    "runs delete": Deleted,
    "runs edit": Edited,
    "runs export": Exported,
    "runs import": list[ImportedRun],
    "runs importance": SettingImportance,
    "runs list": RunList,
    "runs log": LogLine,
    "runs media": Media,
    "runs show": ShownRun,
    "runs sync": Synced | SyncedRun,
    "runs tail": RecordLine,
    "runs verify": list[VerifiedRun],
    "samples export": ExportedSamples,
    "serve": Served,
    "sql": list[dict[str, Any]] | dict[str, dict[str, str]],
    "tokens audit": AuditEntries,
    "tokens create": Token,
    "tokens list": TokenList,
    "tokens revoke": RevokedToken,
    "tokens rotate": Token,
}
"""The document of each command; several where it depends on the arguments."""
