"""`EventRecorder` records the events of TensorBoard's event files in a run, including their media.

Each kind of value is read in the old encoding (a field of its own) and in the new one (a tensor with the name of a
plugin). The protocol buffers may be TensorBoard's or tensorboardX's, which have the same fields.
"""

import logging
from typing import TYPE_CHECKING, Any

from hookline._engine.metrics import axis_of
from hookline._record.media import Audio, Image, Markdown, Media
from hookline.compat.tensorboard.runs import Homes, record_media, record_row
from hookline.compat.tensorboard.values import bucket_histogram, histogram_of, joined_name, pr_curve, settings_in

if TYPE_CHECKING:
    from hookline.loops.session import Session

logger = logging.getLogger("hookline")

TEXT_SUFFIX = "/text_summary"
"""The suffix that writers add to the tag of a text."""
MEDIA_PLUGINS = ("images", "audio", "histograms", "pr_curves")
"""The plugins whose tensors are media."""
_MOST_REPORTED = 100


def media_of(value: Any, plugin: str) -> list[Media]:
    """Return the media in a value.

    Raises:
        ValueError: Its shape is not that of its plugin.
    """
    kind = value.WhichOneof("value")
    if kind == "image":
        return [Image(value.image.encoded_image_string)]
    if kind == "audio":
        return [Audio(value.audio.encoded_audio_string, rate=round(value.audio.sample_rate) or None)]
    if kind == "histo":
        histogram = value.histo
        return [bucket_histogram(histogram.min, histogram.max, histogram.bucket_limit, histogram.bucket)]
    array = array_of(value)
    if plugin == "images":  # width, height, and the images
        return [Image(bytes(each)) for each in array.reshape(-1)[2:]]
    if plugin == "audio":  # sounds, or pairs of a sound and its label
        sounds = array if array.ndim == 2 else array.reshape(-1, 1)
        return [Audio(bytes(row[0]), caption=row[1].decode(errors="replace") if len(row) > 1 else "") for row in sounds]
    if plugin == "histograms":  # rows of left edge, right edge, count
        buckets = array.reshape(-1, 3).tolist()
        return [histogram_of([buckets[0][0], *(row[1] for row in buckets)], [row[2] for row in buckets])]
    return [pr_curve(array)]


def array_of(value: Any) -> Any:
    """Return the tensor of a value as an array."""
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.util.tensor_util import make_ndarray

    tensor = value.tensor
    # tensorboardX has its own classes for the same messages.
    return make_ndarray(
        tensor if isinstance(tensor, TensorProto) else TensorProto.FromString(tensor.SerializeToString())
    )


def hyperparameters_in(value: Any) -> dict[str, Any]:
    """Return the hyperparameters in a value of the plugin ``hparams``; empty if there are none."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    hparams = HParamsPluginData.FromString(value.metadata.plugin_data.content).session_start_info.hparams
    return {name: getattr(each, each.WhichOneof("kind") or "string_value") for name, each in hparams.items()}


class EventRecorder:
    """Records the events of any number of event files in one run.

    An event that cannot be recorded is logged and skipped, because the program that writes it must not fail.

    Args:
        run: The run.
    """

    def __init__(self, run: "Session") -> None:
        self._run = run
        self._homes = Homes()
        self._names: dict[tuple[str, str], tuple[str, str]] = {}
        self._plugins: dict[tuple[str, str], str] = {}
        self._reported: set[str] = set()

    def add(self, directory: str, event: Any) -> None:
        """Record the values of an event that is written to a directory."""
        try:
            if not event.HasField("summary"):
                self._note(event)
                return
            for value in event.summary.value:
                self._value(directory, event, value)
        except Exception as error:
            self._report(f"{type(error).__name__}", "An event of TensorBoard is not recorded: %s", error)

    def _value(self, directory: str, event: Any, value: Any) -> None:
        kind, tag = value.WhichOneof("value"), value.tag
        if kind == "simple_value":
            self._row(directory, event, tag, value.simple_value)
            return
        plugin = self._plugins.setdefault((directory, tag), value.metadata.plugin_data.plugin_name)
        if plugin == "hparams":
            if found := hyperparameters_in(value):
                self._run.update_config(found)
        elif kind in ("image", "audio", "histo") or (kind == "tensor" and plugin in MEDIA_PLUGINS):
            self._media(directory, event, tag, media_of(value, plugin))
        elif kind == "tensor" and plugin in ("", "scalars", "tensor", "text"):
            array = array_of(value)
            if array.dtype.kind not in "OSU":
                if array.size == 1:
                    self._row(directory, event, tag, array.item())
                    return
                self._report(
                    "tensors", "SummaryWriter.add_tensor is accepted, but tensors of several values are not recorded."
                )
                return
            texts = (each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in array.flat)
            text, name = "\n".join(texts), tag.removesuffix(TEXT_SUFFIX)
            if settings := settings_in(name, text):
                self._run.update_config(settings)
            self._media(directory, event, name, [Markdown(text)])
        else:
            self._report(plugin or str(kind), "Values of TensorBoard's plugin %r are not recorded.", plugin or kind)

    def _row(self, directory: str, event: Any, tag: str, number: float) -> None:
        name, axis = self._place(directory, tag)
        record_row(self._run, {name: number}, event.step, axis, event.wall_time)

    def _media(self, directory: str, event: Any, tag: str, media: list[Media]) -> None:
        name, axis = self._place(directory, tag)
        record_media(self._run, name, media, event.step, axis, event.wall_time)

    def _place(self, directory: str, tag: str) -> tuple[str, str]:
        """The name and the axis of a tag."""
        known = self._names.get((directory, tag))
        if known is None:
            name = joined_name(self._homes.folder_in_one_run(directory, self._run.root), tag)
            known = self._names[directory, tag] = name, axis_of(name)
        return known

    def _note(self, event: Any) -> None:
        for field in ("graph_def", "tagged_run_metadata"):
            if event.HasField(field):
                self._report("graph", "SummaryWriter.add_graph is accepted, but graphs are not recorded.")

    def _report(self, about: str, message: str, *args: Any) -> None:
        if about not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(about)
            logger.warning(message, *args)
