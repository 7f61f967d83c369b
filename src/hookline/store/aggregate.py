"""Mean, spread and range of a metric over runs, step by step.

Runs are aligned on the step: a step has the values of those runs that recorded the metric there. A run that recorded
it more than once at a step counts once, with the value that was recorded last. All numbers are those of the finite
values, of which there are ``n``: one diverged run must not erase the curve of its group. ``not_finite`` counts the
others.
"""

from collections.abc import Sequence

from hookline.core.errors import OptionError, closest
from hookline.store.tables import IN_ORDER, ORDER

BY = ("arm", "group", "experiment", "stage", "name", "project", "repeat", "seed", "status", "id")
"""What runs can be grouped by."""
_SPREADS = {0: "stddev_pop", 1: "stddev_samp"}


def checked_keys(by: str | Sequence[str]) -> list[str]:
    """What runs are grouped by, each once.

    Raises:
        OptionError: They cannot be grouped by that.
    """
    keys = [by] if isinstance(by, str) else list(dict.fromkeys(by))
    if not keys:
        raise OptionError(f"by={by!r}: give what to group by: {', '.join(BY)}.")
    for key in keys:
        if key not in BY:
            raise OptionError(f"by={key!r}: runs cannot be grouped by that. {closest(key, BY)}")
    return keys


def aggregate_query(by: str | Sequence[str], ddof: int, where: str) -> str:
    """The query, whose parameters are those of ``where``.

    Raises:
        OptionError: Runs cannot be grouped by that, or ``ddof`` is neither 0 nor 1.
    """
    keys = checked_keys(by)
    if ddof not in _SPREADS:
        raise OptionError(f"ddof={ddof!r}: give 0 (of a population) or 1 (of a sample).")
    groups = ", ".join(f'runs."{key}"' for key in keys)
    shown = ", ".join(f'runs."{key}" AS "{key}"' for key in keys)
    finite = "FILTER (isfinite(value))"
    return f"""
SELECT {shown}, latest.axis, latest.step,
    avg(value) {finite} AS mean,
    {_SPREADS[ddof]}(value) {finite} AS std,
    min(value) {finite} AS min,
    max(value) {finite} AS max,
    count(*) {finite} AS n,
    count(*) FILTER (NOT isfinite(value)) AS not_finite
FROM (
    SELECT run, axis, step, arg_max(value, {ORDER}) AS value
    FROM {IN_ORDER} {where} GROUP BY run, axis, step
) AS latest JOIN runs ON runs.id = latest.run
GROUP BY {groups}, latest.axis, latest.step
ORDER BY {groups}, latest.axis, latest.step
"""
