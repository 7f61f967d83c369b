"""Converts MLflow's requests to records and ``run.json``, and runs to MLflow's responses."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from hookline._engine.metrics import axis_of
from hookline._record.records import Metrics, clean, encode
from hookline._record.run_directory import MAX_TAG_LENGTH, MAX_TAGS
from hookline.server.mlflow.messages import (
    SentMetric,
    checked_integer,
    checked_key,
    checked_number,
    shown_number,
    shown_texts,
)
from hookline.server.mlflow.state import RunState

RUN_NAME, NOTE, PARENT = "mlflow.runName", "mlflow.note.content", "mlflow.parentRunId"
_OWN_TAGS = "mlflow."
_MAX_NOTES = 20_000
_MAX_DIGITS = 300
_NUMBER = re.compile(r"[+-]?(\d{1,15}|(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d{1,3})?)")


def rows_of(metrics: Iterable[SentMetric], now: float) -> list[tuple[bytes, Metrics]]:
    """Return rows with their lines; values of the same step and time share a row.

    Raises:
        MlflowError: One is not accepted.
    """
    groups: dict[tuple[int, int, str, int], dict[str, float]] = {}
    for metric in metrics:
        name = checked_key("metric", metric.key)
        at = round(now * 1000) if metric.timestamp is None else checked_integer("timestamp", metric.timestamp)
        step, value = checked_integer("step", metric.step), checked_number(name, metric.value)
        repeat = 0
        # A name that occurs twice at one step and time gets a second row.
        while name in (values := groups.setdefault((at, step, axis_of(name), repeat), {})):
            if values[name] == value:
                break
            repeat += 1
        values[name] = value
    rows = [
        Metrics(time=at / 1000, step=step, values=values, axis=axis) for (at, step, axis, _), values in groups.items()
    ]
    return [(_row_line(row), row) for row in rows]


def _row_line(row: Metrics) -> bytes:
    line = encode(row)
    if line.find(b"null") < 0:
        return line
    # A value is not finite (or a name says null): in a copy, since the state gets the numbers.
    return encode(Metrics(time=row.time, step=row.step, values=clean(row.values), axis=row.axis))


def plain_value(text: str) -> Any:
    """Return a param as a setting: numbers and booleans are parsed, so runs can be filtered and compared by them.

    >>> [plain_value(text) for text in ("0.1", "3", "True", "None", "adam", "1e-4", "nan", "0x10")]
    [0.1, 3, True, None, 'adam', 0.0001, 'nan', '0x10']
    """
    known = {"True": True, "False": False, "None": None}
    if text in known:
        return known[text]
    if len(text) > _MAX_DIGITS or not _NUMBER.fullmatch(text):
        return text
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def facts_of(state: RunState, project: str, run_id: str, group: str | None) -> bytes:
    """Return the ``run.json`` of a run.

    Args:
        group: The name of the run that it is nested in.
    """
    tags = state.tags
    own = [f"{key}={value}" if value else key for key, value in tags.items() if not key.startswith(_OWN_TAGS)]
    shown = [tag for tag in own if len(tag) <= MAX_TAG_LENGTH and tag == tag.strip() and tag.isprintable()]
    commit = tags.get("mlflow.source.git.commit")
    facts: dict[str, Any] = {
        "id": run_id,
        "name": state.name,
        "project": project,
        "started": state.created.start_time / 1000,
        "source": "mlflow",
        "user": state.created.user,
        "command": [source] if (source := tags.get("mlflow.source.name")) else None,
        "git": {"commit": commit} if commit else None,
        "config": {key: plain_value(value) for key, value in state.params.items()},
        "tags": shown[:MAX_TAGS],
        "notes": tags.get(NOTE, "")[:_MAX_NOTES],
        "group": group,
        "parents": {"run_id": tags[PARENT]} if tags.get(PARENT) else None,
        "mlflow": {
            "experiment_id": state.created.experiment_id,
            "lifecycle_stage": state.stage,
            "tags": tags,
            "params": state.params,
        },
    }
    given = {name: value for name, value in facts.items() if value not in (None, "", [], {})}
    return msgspec.json.encode(given) + b"\n"


def shown_metric(key: str, value: float, timestamp: int, step: int) -> dict[str, Any]:
    """Return a value of a metric as sent to clients."""
    return {"key": key, "value": shown_number(value), "timestamp": timestamp, "step": step}


def shown_info(run_id: str, state: RunState) -> dict[str, Any]:
    """Return a run without its data, as sent to clients."""
    experiment_id = state.created.experiment_id
    info = {
        "run_id": run_id,
        "run_uuid": run_id,
        "experiment_id": experiment_id,
        "run_name": state.name,
        "user_id": state.created.user,
        "status": state.status,
        "start_time": state.created.start_time,
        "artifact_uri": f"mlflow-artifacts:/{experiment_id}/{run_id}/artifacts",
        "lifecycle_stage": state.stage,
    }
    return info if state.end_time is None else info | {"end_time": state.end_time}


def shown_run(run_id: str, state: RunState) -> dict[str, Any]:
    """Return a run as sent to clients."""
    metrics = [shown_metric(key, value, at, step) for key, (step, at, value) in state.latest.items()]
    data = {"metrics": metrics, "params": shown_texts(state.params), "tags": shown_texts(state.tags)}
    shown = {"info": shown_info(run_id, state), "data": data}
    if state.datasets or state.inputs:
        datasets = [msgspec.to_builtins(each) for each in state.datasets]
        models = [{"model_id": each.model_id} for each in state.inputs]
        shown["inputs"] = {"dataset_inputs": datasets, "model_inputs": models}
    if state.outputs:
        shown["outputs"] = {"model_outputs": [msgspec.to_builtins(each) for each in state.outputs]}
    return shown
