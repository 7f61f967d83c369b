"""Several sources of one run as one stream without duplicates.

Where a training has a history of its own (a trainer's state, a table of metrics) beside TensorBoard's event
files, the history counts: it has the numbers in full precision and each once. From the event files come
the times, and what the history does not have: names that it lacks, and steps behind its end. Samples are
put between the rows by their steps.
"""

import heapq
from collections.abc import Iterator

from hookline.integrations.ingest.items import Item, Occurrence, Restart, Row, StatusRow
from hookline.integrations.ingest.source import Reading, Source
from hookline.integrations.ingest.trl import Completions

_Times = dict[tuple[str, int], float]


def combined(sources: list[Source], reading: Reading) -> Iterator[Item]:
    """Everything that the sources of a run have, each thing once."""
    secondary = [source for source in sources if source.is_secondary]
    primary = [source for source in sources if source.has_metrics and not source.is_secondary]
    samples = [source for source in sources if not source.has_metrics]
    reading.renamed = primary[0].renamed if primary else None
    times = _times(secondary, reading) if primary or samples else {}
    streams = [_timed(source, reading, times) for source in [*primary, *samples]]
    if not primary:
        yield from heapq.merge(*(source.items(reading) for source in secondary), *streams, key=_step)
        return
    last: dict[str, int] = {}
    for item in heapq.merge(*streams, key=_step):
        if isinstance(item, Row):
            for name in item.values:
                last[name] = max(item.step, last.get(name, item.step))
        yield item
    for source in secondary:
        yield from _not_there(source, reading, last, primary[0])


def metric_names(sources: list[Source]) -> set[str]:
    """The names in the histories of a run, or else in its event files, for those who have to know them beforehand."""
    metrics = [source for source in sources if source.has_metrics]
    histories = [source for source in metrics if not source.is_secondary] or metrics
    found: set[str] = set()
    for source in histories:
        for item in source.items(Reading()):
            found.update(item.values if isinstance(item, Row) else ())
    return found


def tell_rewards(sources: list[Source]) -> None:
    """Tell tables of completions which of their columns are rewards, where the metrics say it."""
    tables = [source for source in sources if isinstance(source, Completions)]
    if tables and len(sources) > len(tables):
        names = metric_names(sources)
        for table in tables:
            table.know(names)


def _step(item: Item) -> int:
    return 0 if item.step is None else item.step


def _times(secondary: list[Source], reading: Reading) -> _Times:
    """When each step was first written, by axis."""
    silent = Reading(renamed=reading.renamed)
    times: _Times = {}
    for source in secondary:
        for item in source.items(silent):
            if isinstance(item, Row):
                times.setdefault((item.axis, item.step), item.time)
    return times


def _timed(source: Source, reading: Reading, times: _Times) -> Iterator[Item]:
    """A source's items with the times of the event files; where those have none, the time of what came before."""
    if source.has_times or not times:
        yield from source.items(reading)
        return
    now = min(times.values())
    for item in source.items(reading):
        axis = "train" if isinstance(item, Occurrence | StatusRow) else item.axis
        now = times.get((axis, _step(item))) or times.get(("train", _step(item))) or now
        yield item._replace(time=now)


def _not_there(source: Source, reading: Reading, last: dict[str, int], history: Source) -> Iterator[Item]:
    left = 0
    for item in source.items(reading):
        if isinstance(item, Restart):
            continue  # the history has each step once, and what lies behind its end was done once so far
        if not isinstance(item, Row):
            yield item
            continue
        values = {name: value for name, value in item.values.items() if item.step > last.get(name, item.step - 1)}
        left += len(item.values) - len(values)
        if values:
            yield item._replace(values=values)
    if left:
        files = ", ".join(str(file) for file in source.files[:3]) + (", ..." if len(source.files) > 3 else "")
        reading.leave(f"values in {files}", f"{history.files[0].name} has them as well", left)
