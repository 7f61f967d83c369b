"""The results of runs that no file beside them says: from their journals.

Such are runs that were received from other machines, and those whose experiment was killed. A run that recorded what it
came to has that result, however its process ended afterwards; one that said that it failed or was stopped has that. A
run of which neither is known, or that goes on, has none yet. One that began again after it recorded a result goes on.
"""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from hookline.core.state import RunResult
from hookline.experiment.recorded_result import RecordedResult
from hookline.record.reader import MAIN
from hookline.record.records import RUN_RESULT
from hookline.store import RunInfo, Runs

_UNSUCCESSFUL = ("failed", "stopped")


def recorded_results(runs: Runs) -> tuple[dict[str, RunResult], list[str]]:
    """The results of those of some runs that are over, by their ids, and what cannot be understood, in words."""
    results: dict[str, RunResult] = {}
    problems: list[str] = []
    said = _last_said(runs.events([RUN_RESULT, "resume"], kind="event"))
    for info in runs:
        try:
            found = _result(info, said.get(info.id)) if info.is_over else None
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


def _result(info: RunInfo, data: Any) -> RunResult | None:
    about: dict[str, Any] = {"repeat": info.repeat or 0, "stage": info.stage, "seed": info.seed}
    if data is not None:  # an early stop is an end like any other
        recorded = RecordedResult.read(data)
        status = "failed" if info.status == "failed" else recorded.status
        return recorded.result(info.directory.name, status, info.directory, **about)
    if info.status not in _UNSUCCESSFUL:
        return None
    seconds = max(0.0, (info.ended or 0.0) - (info.started or info.ended or 0.0))
    return RecordedResult(seconds=seconds).result(info.directory.name, info.status, info.directory, **about)
