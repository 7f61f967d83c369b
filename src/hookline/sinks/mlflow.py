"""Metrics, configuration, status and, where asked for, samples in an MLflow run.

The run is found again by a tag, so that a start that is cut short leaves no second one. A metric is
sent with its own time, and a tracking store in a database keeps one row for the same name, step, time
and value, so a batch that comes again changes nothing. MLflow's file store appends instead: it is
refused. What is done again after a resume stays in the history beside the first attempt: MLflow takes
nothing out of it.

A run of an experiment is nested: below a run that stands for its group, which is below one that stands
for the experiment. Those two have no metrics and are finished from the start. The first run that needs
them makes them, behind a lock in the experiment's directory; runs that share no directory find them by a
tag, and of two that were made at once all take the older one.

MLflow holds numbers as 64-bit floats; its databases keep infinity as the largest of them. None is left
out. A text is the value of a tag (its first 5,000 characters). Characters that MLflow does not have in
names become ``_``, with a short digest behind the name, so that two names never become one.

mlflow's own HTTP client waits for minutes and retries; here a request has one attempt and
``timeout_seconds``, in the sink's thread only: the delivery does the retrying.
"""

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hookline._engine.errors import MissingExtraError, OptionError, RefusedError
from hookline._record.reader import MAIN, JournalEntry
from hookline._record.recorder import cleaned
from hookline._record.records import Metrics, Sample, Status, encode
from hookline._record.sink import Sink, register_sink
from hookline.sinks.mlflow_connection import (
    Connection,
    absolute,
    alone_in,
    artifact_location,
    check_uri,
    default_uri,
    has_password,
    local_database,
)
from hookline.sinks.output_files import file_loss
from hookline.sinks.run_progress import STATUS_WRITERS, Membership, RunMetadata, clamped_step, read_metadata

KEY_TAG = "hookline.key"
PARENT_TAG = "mlflow.parentRunId"

_NAME_LENGTH, _TAG_LENGTH, _PARAM_LENGTH = 250, 5000, 6000
_BATCH_METRICS, _BATCH_TEXTS, _BATCH_BYTES = 1000, 100, 900_000
_NOT_IN_NAMES = re.compile(r"[^\w.\- :/]")
_ENDED = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


@register_sink("mlflow")
@dataclass(eq=False)
class MlflowSink(Sink):
    """Writes to a run of an MLflow tracking server or database.

    Args:
        tracking_uri: ``http(s)://...`` or ``sqlite:///...``; ``MLFLOW_TRACKING_URI`` where none is given, and
            ``mlflow.db`` in the root of the runs where that is not set either.
        experiment: MLflow's experiment; the run's project where none is given.
        run_name: What the run is called in MLflow; where none is given, its id, or its key in its experiment.
        tags: More tags for the run, whose own are the tag ``hookline.tags``; with ``mlflow.parentRunId`` it is
            nested there.
        samples: Whether samples are kept as well, as artifacts below ``samples/``, a file a batch.
        timeout_seconds: How long a request may take before it counts as failed.
        name: What the sink is called in its run.
    """

    tracking_uri: str | None = None
    experiment: str | None = None
    run_name: str | None = None
    tags: dict[str, str] | None = None
    samples: bool = False
    timeout_seconds: float = 10.0
    name: str | None = None

    def __post_init__(self) -> None:
        if not self.timeout_seconds > 0:
            raise OptionError(f"timeout_seconds={self.timeout_seconds!r}: give a number of seconds above 0.")
        self.tracking_uri = absolute(self.tracking_uri) if self.tracking_uri else None
        self._connection: Connection | None = None
        self._client: Any = None
        self._state: dict[str, Any] = {}
        self._has_ended = False

    def check(self) -> None:
        if importlib.util.find_spec("mlflow") is None:
            raise MissingExtraError("The sink 'mlflow'", "mlflow")
        check_uri(self.tracking_uri)

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return [f"address {settings.get('tracking_uri') or 'MLFLOW_TRACKING_URI'}, with MLflow's credentials"]

    def check_foreign(self, run_dir: Path, state: Any) -> None:
        uri = state.get("uri")
        if self.tracking_uri is None and uri is not None and uri != default_uri(run_dir):
            raise RefusedError(
                f"The state in the run's directory names {uri}, and was not written by a process of this user. Give "
                "tracking_uri= to say where to deliver."
            )

    def find_loss(self, run_dir: Path, state: Any) -> str:
        # Gone only: a database that was put back from a copy is another file, and may have the run.
        path = local_database(state.get("uri") or "")
        return file_loss(path, 1, {}) if path is not None and not path.exists() else ""

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        uri = self.tracking_uri or (state or {}).get("uri") or default_uri(run_dir)
        self._connection = Connection(uri, self.timeout_seconds)
        with self._connection:
            if state:
                self._client = self._connection.client()
                run = self._run(state["run_id"])
            else:
                run = self._begun_once(run_dir, uri)
        self._has_ended = run.info.status != "RUNNING"
        self._state = {
            "run_id": run.info.run_id,
            "experiment_id": run.info.experiment_id,
            "parent_run_id": run.data.tags.get(PARENT_TAG),
            "uri": None if has_password(uri) else uri,
            "status_time": state["status_time"] if state else 0.0,
        }
        return dict(self._state)

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._connection is not None
        with self._connection:
            self._log(metrics=_metrics(entries), tags=_tags(entries))
            if self.samples:
                self._log_samples(entries)
            self._note_status(entries)
        return dict(self._state)

    def ids(self, state: Any) -> dict[str, str]:
        names = ("run_id", "experiment_id", "parent_run_id")
        return {name: state[name] for name in names if state.get(name)}

    def _run(self, run_id: str) -> Any:
        """The run that was begun before."""
        again = "To deliver everything to a new run, remove the sink's file in the run's folder 'sinks'."
        try:
            run = self._client.get_run(run_id)
        except Exception as error:
            if getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST":
                raise RefusedError(f"MLflow does not know the run {run_id} any more. {again}") from error
            raise
        if run.info.lifecycle_stage != "active":
            raise RefusedError(f"The run {run_id} was deleted in MLflow: restore it there. {again}")
        return run

    def _begun_once(self, run_dir: Path, uri: str) -> Any:
        """Begin; the runs of an experiment one after the other, because they share what they are nested in."""
        assert self._connection is not None
        facts = read_metadata(run_dir)
        with alone_in(run_dir.parent) if facts.membership is not None else nullcontext():
            self._client = self._connection.client()
            return self._begun(facts, uri)

    def _begun(self, facts: RunMetadata, uri: str) -> Any:
        """The run with the tag of this one, or a new one, with what was configured."""
        experiment = self._experiment(self.experiment or facts.project, uri)
        run = self._oldest(experiment, facts.key) or self._created(experiment, facts)
        self._state = {"run_id": run.info.run_id}
        self._log(params=dict(_flat("", facts.config)))
        return run

    def _oldest(self, experiment: str, key: str) -> Any:
        """The run with a key, the same one for everybody should there be two; None where there is none."""
        order = ["attributes.start_time ASC", "attributes.run_id ASC"]
        found = self._client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{key}'", max_results=1, order_by=order)
        return found[0] if found else None

    def _created(self, experiment: str, facts: RunMetadata) -> Any:
        own = self.tags or {}
        known = {KEY_TAG: facts.key, "hookline.run": facts.id} | _source(facts)
        known |= {"hookline.tags": ", ".join(facts.tags)} if facts.tags else {}
        if facts.membership is not None:
            known |= {f"hookline.{name}": value for name, value in facts.membership.facts().items()}
            if PARENT_TAG not in own:
                known[PARENT_TAG] = self._group_run(experiment, facts, facts.membership)
        started = int(facts.started * 1000) or None
        return self._client.create_run(
            experiment, start_time=started, tags=_as_tags(known | own), run_name=self.run_name or facts.title
        )

    def _group_run(self, experiment: str, facts: RunMetadata, place: Membership) -> str:
        """The id of the run that stands for the group, below the one that stands for the experiment."""
        about = {"hookline.experiment": place.experiment, "hookline.experiment_id": place.experiment_id}
        about |= _source(facts)
        root = self._parent(experiment, place.experiment_key, place.experiment, about)
        about |= {"hookline.group": place.group, "hookline.group_id": place.group_id, PARENT_TAG: root}
        return self._parent(experiment, place.group_key, place.group, about)

    def _parent(self, experiment: str, key: str, name: str, about: Mapping[str, Any]) -> str:
        """The id of a run that others are nested in, made where there is none, and finished: it is only a folder."""
        run = self._oldest(experiment, key)
        if run is None:
            made = self._client.create_run(experiment, tags=_as_tags({KEY_TAG: key, **about}), run_name=name)
            run = self._oldest(experiment, key) or made
            if run.info.run_id != made.info.run_id:  # a run elsewhere, which does not see the lock, was faster
                self._client.delete_run(made.info.run_id)
        if run.info.status == "RUNNING":
            self._client.set_terminated(run.info.run_id, "FINISHED")
        return str(run.info.run_id)

    def _experiment(self, name: str, uri: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifact_location(uri, entity_name(name))))
            except Exception:  # somebody else may have made it in between
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            raise RefusedError(f"MLflow's experiment {name!r} is deleted: restore it, or give the sink another one.")
        return str(found.experiment_id)

    def _log(
        self,
        *,
        metrics: Iterable[Any] = (),
        tags: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        from mlflow.entities import Param, RunTag

        log = partial(self._client.log_batch, self._state["run_id"], synchronous=True)
        for batch in _batches(metrics, _BATCH_METRICS):
            log(metrics=batch)
        for batch in _batches((RunTag(key, _text(v, _TAG_LENGTH)) for key, v in (tags or {}).items()), _BATCH_TEXTS):
            log(tags=batch)
        for batch in _batches((Param(key, _text(v, _PARAM_LENGTH)) for key, v in (params or {}).items()), _BATCH_TEXTS):
            log(params=batch)

    def _log_samples(self, entries: Sequence[JournalEntry]) -> None:
        """A file for each writer, named after its first sample: the same one when the batch comes again."""
        by_writer: dict[str, list[JournalEntry]] = {}
        for entry in entries:
            if isinstance(entry.record, Sample):
                by_writer.setdefault(entry.file.writer, []).append(entry)
        for own in by_writer.values():
            lines = b"".join(encode(cleaned(entry.record)) + b"\n" for entry in own)
            self._client.log_text(self._state["run_id"], lines.decode(), f"samples/{own[0].id}.jsonl")

    def _note_status(self, entries: Sequence[JournalEntry]) -> None:
        """Take over the latest by time: what the courier says of a death may come before what the dead had said."""
        spoken = [entry.record for entry in entries if entry.file.name in STATUS_WRITERS]
        told = (record for record in spoken if isinstance(record, Status) and record.status != "heartbeat")
        last = max(told, key=lambda status: status.time, default=None)
        if last is None or last.time < self._state["status_time"]:
            return
        self._log(tags={"hookline.status": last.status, "hookline.message": last.message})
        if last.status in _ENDED:
            self._client.set_terminated(self._state["run_id"], _ENDED[last.status], int(last.time * 1000))
        elif self._has_ended:  # it was taken up again
            self._client.update_run(self._state["run_id"], status="RUNNING")
        self._has_ended = last.status in _ENDED
        self._state["status_time"] = last.time


def _source(facts: RunMetadata) -> dict[str, Any]:
    return {
        "mlflow.user": facts.user,
        "mlflow.source.name": facts.command,
        "mlflow.source.git.commit": facts.commit,
    }


def _as_tags(wanted: Mapping[str, Any]) -> dict[str, str]:
    given = {key: value for key, value in wanted.items() if value not in (None, "")}
    return {entity_name(key): _text(value, _TAG_LENGTH) for key, value in given.items()}


def entity_name(name: str) -> str:
    """A name as MLflow takes it, different for different names."""
    parts = [part for part in _NOT_IN_NAMES.sub("_", name).split("/") if part.strip(".")]
    plain = "/".join(parts)
    if plain == name and 0 < len(name) <= _NAME_LENGTH:
        return name
    digest = hashlib.blake2s(name.encode(), digest_size=4).hexdigest()
    return f"{plain[: _NAME_LENGTH - 9]}-{digest}"


def _metrics(entries: Iterable[JournalEntry]) -> Iterator[Any]:
    from mlflow.entities import Metric

    for entry in entries:
        if isinstance(record := entry.record, Metrics):
            at = int(record.time * 1000)
            for name, value in record.values.items():
                if isinstance(value, int | float):
                    yield Metric(_name(entry, name), _number(value), at, clamped_step(record.step))


def _tags(entries: Iterable[JournalEntry]) -> dict[str, Any]:
    """The metrics that are no numbers, the latest of each."""
    tags: dict[str, Any] = {}
    for entry in entries:
        if isinstance(record := entry.record, Metrics):
            texts = {name: value for name, value in record.values.items() if not isinstance(value, int | float | None)}
            tags |= {_name(entry, name): value for name, value in texts.items()}
    return tags


def _name(entry: JournalEntry, name: str) -> str:
    return entity_name(name if entry.file.name == MAIN else f"{entry.file.name}/{name}")


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _text(value: Any, length: int) -> str:
    return str(value).replace("\0", "\ufffd")[:length]


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A configuration as names and values, what is nested joined by ``/``."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{prefix}/{key}" if prefix else str(key), item)
    elif value is not None or prefix:
        yield entity_name(prefix or "config"), value


def _batches(entities: Iterable[Any], most: int) -> Iterator[list[Any]]:
    """Entities as one request can hold them, by number and by size."""
    batch: list[Any] = []
    size = 0
    for entity in entities:
        own = len(json.dumps([entity.key, entity.value])) + 120
        if batch and (len(batch) == most or size + own > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(entity)
        size += own
    if batch:
        yield batch
