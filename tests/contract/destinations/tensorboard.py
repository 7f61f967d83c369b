"""TensorBoard's event files on a file system that can be full, read back with TensorBoard's own reader."""

import struct

import tensorboard.util.tensor_util
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from destinations import media_values
from destinations.base import LEFT_OUT
from destinations.files import FileDestination
from hookline.sinks import TensorboardSink

EVERYTHING = {"scalars": 0, "tensors": 0, "histograms": 0}


class TensorboardDestination(FileDestination):
    name = "tensorboard"
    file_name = "logs"
    keeps_samples = True

    def sink(self):
        return TensorboardSink(self.path, samples_per_step=8)

    def metrics(self):
        found = read(self.path)
        scalars = [
            (event.wall_time, event.step, tag, event.value) for tag in tags(found) for event in found.Scalars(tag)
        ]
        return [(step, tag, value) for _, step, tag, value in sorted(scalars, key=lambda item: item[:2])]

    def texts(self):
        found = read(self.path)
        samples = [tag for tag in found.Tags()["tensors"] if tag.startswith("samples/")]
        events = [(event.step, tag, event) for tag in samples for event in found.Tensors(tag)]
        return [block(text_of(event), "completion") for _, _, event in sorted(events, key=lambda item: item[:2])]

    def media(self):
        found = read(self.path)
        plugins = {tag: found.SummaryMetadata(tag).plugin_data.plugin_name for tag in found.Tags()["tensors"]}
        return {
            tag.removesuffix("/text_summary"): _value(plugin, found.Tensors(tag)[-1].tensor_proto)
            for tag, plugin in plugins.items()
            if plugin != "hparams"
        }

    def shown(self, value):
        if value is None or isinstance(value, str):
            return LEFT_OUT
        try:
            return struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")


def read(directory):
    """All that TensorBoard finds in a directory, without the ones below it."""
    return EventAccumulator(str(directory), size_guidance=EVERYTHING).Reload()


def _value(plugin, tensor):
    array = tensorboard.util.tensor_util.make_ndarray(tensor)
    if plugin == "images":
        return media_values.image(array[2])
    if plugin == "audio":
        return media_values.audio(array[0][0])
    if plugin == "text":
        return array.item().decode()
    return [[round(float(number), 6) for number in row] for row in array]


def tags(found):
    """The scalars that were logged as metrics."""
    return [tag for tag in found.Tags()["scalars"] if not tag.startswith("rewards/")]


def text_of(event):
    (text,) = event.tensor_proto.string_val
    return text.decode()


def block(text, name):
    """One of the texts that a sample shows in blocks."""
    lines = text.split(f"**{name}**\n\n", 1)[1].split("\n")
    end = next((place for place, line in enumerate(lines) if not line.startswith("    ")), len(lines))
    return "\n".join(line[4:] for line in lines[:end])
