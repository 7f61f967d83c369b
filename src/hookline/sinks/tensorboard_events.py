"""Records as TensorBoard's events, and events as the bytes of an event file.

Numbers become scalars, which TensorBoard keeps as 32-bit floats; strings become texts, under a tag of
their own, since TensorBoard allows one kind of data per tag. All events carry the record's own time,
so that the same records always give the same bytes.
"""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from hookline.record.records import Metrics, Sample
from hookline.sinks.histogram import histogram, mean

_TEXTS = ("prompt", "reasoning", "completion", "answer", "expected")
_STEPS = range(-(2**63), 2**63)


def encoded(events: Iterable[Event]) -> bytes:
    """Events as they lie in a file, each with its length and checksums."""
    data = io.BytesIO()
    writer = RecordWriter(data)
    for event in events:
        writer.write(event.SerializeToString())
    return data.getvalue()


def beginning(time: float, step: int) -> list[Event]:
    """What every file begins with: TensorBoard takes the first start in it for none that drops anything."""
    return [Event(wall_time=time, file_version="brain.Event:2"), start(time, step)]


def start(time: float, step: int) -> Event:
    """The mark that a step and all after it come anew: readers drop what they have of them."""
    return Event(wall_time=time, step=_step(step), session_log=SessionLog(status=SessionLog.START))


def metrics_event(record: Metrics) -> Event:
    """The values of a row."""
    values = [_value(name, value) for name, value in record.values.items() if value is not None]
    return _event(record.time, record.step, values)


def rewards_event(time: float, step: int, name: str, values: Sequence[float]) -> Event:
    """What a reward function gave at a step: its distribution and its mean.

    The mean is not called ``rewards/<name>/mean``: rows of metrics have that name.
    """
    middle = Summary.Value(tag=f"rewards/{name}", simple_value=mean(values))
    return _event(time, step, [middle, _histogram(name, values)])


def distribution_event(time: float, step: int, rewards: Mapping[str, Sequence[float]]) -> Event:
    """The distributions of the rewards of a step's samples."""
    return _event(time, step, [_histogram(name, values) for name, values in rewards.items()])


def sample_event(record: Sample, number: int) -> Event:
    """A sample as a text to read; the samples of a step are told apart by their numbers."""
    tag = f"samples/{record.lesson or record.axis}/{number}"
    return _event(record.time, record.step, [_text(tag, markdown(record))])


def markdown(sample: Sample) -> str:
    """A sample for people: its texts as they are, in blocks, and what it was rewarded."""
    parts = []
    for name in _TEXTS:
        text = getattr(sample, name)
        if text is not None:
            parts.append(f"**{name}**\n\n" + "\n".join("    " + line for line in text.split("\n")))
    facts = {**sample.rewards, "total": sample.total, "advantage": sample.advantage, "group": sample.group}
    told = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    return "\n\n".join([*parts, f"**rewards** {told}"] if told else parts)


def _event(time: float, step: int, values: Sequence[Summary.Value]) -> Event:
    return Event(wall_time=time, step=_step(step), summary=Summary(value=values))


def _value(name: str, value: Any) -> Summary.Value:
    if isinstance(value, int | float):
        return Summary.Value(tag=name, simple_value=_float(value))
    return _text(f"{name}/text_summary", str(value))


def _text(tag: str, text: str) -> Summary.Value:
    metadata: SummaryMetadata = create_summary_metadata(display_name=None, description=None)
    return Summary.Value(tag=tag, metadata=metadata, tensor=TensorProto(dtype=DT_STRING, string_val=[text.encode()]))


def _histogram(name: str, values: Sequence[float]) -> Summary.Value:
    counts, edges = histogram(values)
    value = HistogramProto(
        min=min(values),
        max=max(values),
        num=len(values),
        sum=math.fsum(values),
        sum_squares=math.fsum(value * value for value in values),
        bucket_limit=edges[1:],
        bucket=counts,
    )
    return Summary.Value(tag=f"rewards/{name}/histogram", histo=value)


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # a whole number: copysign would make it a float, too


def _step(step: int) -> int:
    return min(max(step, _STEPS.start), _STEPS.stop - 1)
