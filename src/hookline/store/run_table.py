"""The listing of runs as columns for the table ``runs``."""

import json
from collections.abc import Sequence
from typing import Any

from hookline.record.records import clean
from hookline.store.columns import columns
from hookline.store.run_info import RunInfo
from hookline.store.tables import RUN_COLUMNS, Table

_LISTING = Table(RUN_COLUMNS, "id")


def run_columns(runs: Sequence[RunInfo]) -> tuple[dict[str, Any], list[str]]:
    """The runs as arrays, and for each column of the table the expression that makes it of them."""
    arrays, expressions = columns(_LISTING, [tuple(_value(info, name) for name in RUN_COLUMNS) for info in runs])
    return arrays, expressions


def _value(info: RunInfo, name: str) -> Any:
    value = getattr(info, name)
    if name in ("tags", "problems"):
        return json.dumps(list(value))
    if name in ("config", "summary"):
        return None if value is None else json.dumps(clean(value))
    return str(value) if name == "directory" else value
