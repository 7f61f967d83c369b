"""wandb's data types: images, video, audio, histograms, HTML, figures and files, recorded as hookline's media.

A value is copied or read when it is made, as in wandb, so the program may change it before it logs it. It is encoded
off the training thread. Types that the page does not draw (3-D objects, molecules) are kept as files.
"""

import io
import json
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from hookline._engine.errors import MissingExtraError
from hookline._engine.metrics import MediaValue
from hookline._record import media
from hookline._record.media_encoding import is_instance, numpy
from hookline.compat.wandb.errors import Error
from hookline.compat.wandb.table import EvalTable, JoinedTable, PartitionedTable, Table
from hookline.compat.wandb.terminal import termwarn
from hookline.compat.wandb.values import WBValue, as_array

__all__ = [
    "Audio",
    "BatchableMedia",
    "Bokeh",
    "BoundingBoxes2D",
    "Classes",
    "EvalTable",
    "Graph",
    "Histogram",
    "Html",
    "Image",
    "ImageMask",
    "JoinedTable",
    "Media",
    "Molecule",
    "Node",
    "Object3D",
    "PartitionedTable",
    "Plotly",
    "Table",
    "Video",
    "WBTraceTree",
    "WBValue",
    "box3d",
]

IMAGE_TYPES = ("png", "jpg", "jpeg", "bmp")
VIDEO_TYPES = ("gif", "mp4", "webm", "ogg")
_URLS = ("s3://", "gs://", "http://", "https://")


def is_figure(value: Any) -> bool:
    """Return whether a value is a Plotly or matplotlib figure, matplotlib axes, or ``matplotlib.pyplot``."""
    module = type(value).__module__.partition(".")[0]
    if module == "plotly":
        return callable(getattr(value, "to_json", None))
    is_pyplot = getattr(value, "__name__", "") == "matplotlib.pyplot"
    return is_pyplot or (module == "matplotlib" and _figure_of(value) is not None)


def _figure_of(value: Any) -> Any:
    """Return the matplotlib figure of a value, its axes or ``pyplot``; None if it has none."""
    if getattr(value, "__name__", "") == "matplotlib.pyplot":
        return value.gcf()
    found = value if hasattr(value, "savefig") else getattr(value, "figure", None)
    return found if hasattr(found, "savefig") else None


class Media(WBValue):
    """The base class of types with a file.

    Args:
        caption: Shown below it.
    """

    def __init__(self, caption: str | None = None) -> None:
        self._caption = caption

    def native(self) -> MediaValue:
        """Return the value as hookline records it."""
        raise NotImplementedError

    def to_json(self, run_or_artifact: Any = None) -> dict[str, Any]:
        """Return the value's entry in the summary; the file's path and digest are added when it is written."""
        return super().to_json() | ({"caption": self._caption} if self._caption else {})


class BatchableMedia(Media):
    """The base class of types that are logged in lists."""


class Classes(WBValue):
    """The classes of boxes and masks.

    Args:
        class_set: ``[{"id": 0, "name": "cat"}, ...]``.
    """

    _log_type = "classes"

    def __init__(self, class_set: Sequence[Mapping[str, Any]]) -> None:
        for each in class_set:
            if "id" not in each or "name" not in each:
                raise TypeError(f"{each!r:.200} is not a class: give 'id' and 'name'.")
        self._class_set = list(class_set)


class BoundingBoxes2D(WBValue):
    """Boxes of an image.

    Args:
        val: ``{"box_data": [...], "class_labels": {0: "cat"}}``; the position of a box is ``minX, maxX, minY, maxY`` or
            ``middle, width, height``, as fractions unless its ``domain`` is ``"pixel"``.
        key: Their name.
    """

    _log_type = "bounding-boxes"

    def __init__(self, val: Mapping[str, Any], key: str) -> None:
        self._val, self._key = dict(val), key
        self._class_labels = dict(val.get("class_labels") or {})
        boxes = val.get("box_data")
        if not isinstance(boxes, Sequence) or not all(isinstance(box, Mapping) for box in boxes):
            raise TypeError("Each box must be a mapping in the list 'box_data'.")
        for box in boxes:
            _corners(box, 1, 1)

    def in_pixels(self, width: int, height: int) -> list[dict[str, Any]]:
        """Return the boxes as hookline records them."""
        found = []
        for box in self._val["box_data"]:
            label = box.get("box_caption") or self._class_labels.get(box.get("class_id"))
            scores = [score for score in (box.get("scores") or {}).values() if isinstance(score, int | float)]
            facts = {} if label is None else {"label": str(label)}
            corners = _corners(box, width, height)
            found.append({"box": corners, **facts, **({"score": float(scores[0])} if scores else {})})
        return found


def _corners(box: Mapping[str, Any], width: int, height: int) -> list[float]:
    place = box.get("position")
    across, down = (1, 1) if box.get("domain") == "pixel" else (width, height)
    try:
        if not isinstance(place, Mapping):
            raise TypeError  # noqa: TRY301 - one message for every wrong form
        if "middle" in place:
            (x, y), w, h = place["middle"], place["width"], place["height"]
            left, right, top, bottom = x - w / 2, x + w / 2, y - h / 2, y + h / 2
        else:
            left, right, top, bottom = (place[name] for name in ("minX", "maxX", "minY", "maxY"))
        return [float(left * across), float(top * down), float(right * across), float(bottom * down)]
    except (TypeError, KeyError, ValueError):
        raise TypeError(
            f"The position of the box {box!r:.200} is not known: give minX, maxX, minY and maxY, or middle, width and "
            "height."
        ) from None


class ImageMask(WBValue):
    """Class numbers for each pixel of an image.

    Args:
        val: ``{"mask_data": array, "class_labels": {0: "road"}}``, or ``"path"`` in place of the array.
        key: Its name.
    """

    _log_type = "mask"

    def __init__(self, val: Mapping[str, Any], key: str) -> None:
        self._val, self._key = dict(val), key
        self._class_labels = dict(val.get("class_labels") or {})
        if "mask_data" in val:
            self._array = _owned(val["mask_data"])
            if len(self._array.shape) != 2:
                raise TypeError("mask_data must be a 2d array")
        elif "path" in val:
            self._array = numpy().asarray(_pillow().open(val["path"]).convert("L"))
        else:
            raise TypeError('Missing key "mask_data" or "path": an image mask requires one of them')


class Image(BatchableMedia):
    """An image.

    Args:
        data_or_path: An array (height, width, channels), a torch tensor (channels, height, width), an image of Pillow,
            a figure of matplotlib, or a path. Floats are taken as 0 to 1 or as 0 to 255, by their values.
        mode: Pillow's mode to convert to: ``L``, ``RGB``, ``RGBA``.
        caption: Shown below it.
        grouping: Accepted.
        classes: The names of the classes of boxes and masks.
        boxes: `BoundingBoxes2D` by name, or what it takes.
        masks: `ImageMask` by name, or what it takes.
        file_type: ``png``, ``jpg``, ``jpeg`` or ``bmp`` (kept as PNG); for anything but a path.
        normalize: Accepted; the range of the values decides.
    """

    _log_type = "image-file"
    MAX_ITEMS = 108

    def __init__(
        self,
        data_or_path: Any,
        mode: str | None = None,
        caption: str | None = None,
        grouping: int | None = None,
        classes: Classes | Sequence[Mapping[str, Any]] | None = None,
        boxes: Mapping[str, Any] | None = None,
        masks: Mapping[str, Any] | None = None,
        file_type: str | None = None,
        normalize: bool = True,
    ) -> None:
        super().__init__(caption=caption)
        if file_type is not None and file_type not in IMAGE_TYPES:
            raise ValueError(f"file_type must be one of {list(IMAGE_TYPES)}")
        self._width: int | None = None
        self._height: int | None = None
        self._channels = "auto"
        self.format: str = file_type or "png"
        if isinstance(data_or_path, Image):
            self._copy(data_or_path)
        else:
            self._value = self._read(data_or_path, mode)
        if boxes is not None and not isinstance(boxes, Mapping):
            raise ValueError('Images "boxes" argument must be a dictionary')
        if masks is not None and not isinstance(masks, Mapping):
            raise ValueError('Images "masks" argument must be a dictionary')
        self._boxes = {
            key: box if isinstance(box, BoundingBoxes2D) else BoundingBoxes2D(box, key)
            for key, box in (boxes or {}).items()
        }
        self._masks = {
            key: mask if isinstance(mask, ImageMask) else ImageMask(mask, key) for key, mask in (masks or {}).items()
        }
        listed = classes._class_set if isinstance(classes, Classes) else classes or ()
        layers: list[BoundingBoxes2D | ImageMask] = [*self._boxes.values(), *self._masks.values()]
        self._labels: dict[Any, Any] = {key: name for layer in layers for key, name in layer._class_labels.items()}
        self._labels |= {each["id"]: each["name"] for each in listed}

    @property
    def image(self) -> Any:
        """The image as Pillow's."""
        pillow = _pillow()
        if isinstance(self._value, bytes):
            return pillow.open(io.BytesIO(self._value))
        if isinstance(self._value, str):
            return pillow.open(io.BytesIO(Path(self._value).read_bytes()))
        if is_instance(self._value, "PIL.Image", "Image"):
            return self._value
        array = _channels_last(self._value, self._channels)
        scaled = array * 255 if array.dtype.kind == "f" and array.size and array.max() <= 1 else array
        return pillow.fromarray(scaled.astype("uint8").squeeze())

    def native(self) -> MediaValue:
        """Return the image as hookline records it."""
        if isinstance(self._value, str) and self._value.startswith(_URLS):
            raise ValueError(
                "Image media created by a reference to external storage cannot currently be added to a run"
            )
        size = (self._width or 1, self._height or 1)
        return media.Image(
            self._value,
            caption=self._caption or "",
            channels=self._channels,
            boxes=[box for layer in self._boxes.values() for box in layer.in_pixels(*size)],
            masks={name: mask._array for name, mask in self._masks.items()} or None,
            labels=self._labels or None,
            format="jpeg" if self.format in ("jpg", "jpeg") else "png",
        )

    def to_json(self, run_or_artifact: Any = None) -> dict[str, Any]:
        """Return the image's entry in the summary."""
        known = {"format": self.format, "width": self._width, "height": self._height}
        return super().to_json() | {name: value for name, value in known.items() if value is not None}

    @classmethod
    def seq_to_json(cls, seq: Sequence["Image"], *_: Any) -> dict[str, Any]:
        """Return the summary's entry for a list of images."""
        first = seq[0].to_json()
        shown: dict[str, Any] = {name: first[name] for name in ("width", "height", "format") if name in first}
        captions = [each._caption or "" for each in seq]
        named = {"captions": captions} if any(captions) else {}
        return {"_type": "images/separated", **shown, "count": len(seq), **named}

    def _copy(self, other: "Image") -> None:
        self._value, self.format = other._value, other.format
        self._width, self._height, self._channels = other._width, other._height, other._channels
        self._caption = self._caption or other._caption

    def _read(self, value: Any, mode: str | None) -> Any:
        if isinstance(value, str | os.PathLike):
            path = os.fspath(value)
            if not path.startswith(_URLS):
                with _pillow().open(path) as opened:
                    self._width, self._height = opened.size
            self.format = Path(path).suffix.lstrip(".")
            return path
        if is_figure(value):
            content = media.render_figure(_figure_of(value))
            self._width, self._height = _pillow().open(io.BytesIO(content)).size
            return content
        if is_instance(value, "PIL.Image", "Image"):
            picture = value.convert(mode) if mode else value.copy()
            self._width, self._height = picture.size
            return picture
        array = _owned(value)
        is_tensor = is_instance(value, "torch", "Tensor")
        shape = tuple(array.shape)
        if len(shape) > 2 and 1 in shape and not is_tensor:
            array = array.squeeze()
            shape = tuple(array.shape)
        channels = 1 if len(shape) == 2 else shape[0 if is_tensor else -1]
        if len(shape) not in (2, 3) or channels not in (1, 3, 4):
            raise ValueError(f"Un-supported shape for image conversion {list(shape)}")
        if len(shape) == 3:
            self._channels = "first" if is_tensor else "last"
        size = shape if len(shape) == 2 else shape[1:] if is_tensor else shape[:2]
        self._height, self._width = int(size[0]), int(size[1])
        if mode:
            self._value = array
            return self.image.convert(mode)
        return array


def _owned(value: Any) -> Any:
    """Copy an array or a tensor; whole numbers become bytes, as in wandb."""
    if is_instance(value, "torch", "Tensor"):
        tensor = value.detach().clone()
        whole = not tensor.is_floating_point() and str(tensor.dtype) not in ("torch.uint8", "torch.bool")
        return tensor.to(sys.modules["torch"].uint8) if whole else tensor
    array = as_array(value)
    array = numpy().array(value if array is None else array)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"a {type(value).__name__} is not an array of numbers")
    return array.astype("uint8") if array.dtype.kind in "iu" and array.dtype.itemsize > 1 else array


def _channels_last(value: Any, channels: str) -> Any:
    array = as_array(value)
    return array.transpose(1, 2, 0) if channels == "first" else array


def _pillow() -> Any:
    try:
        import PIL.Image
    except ModuleNotFoundError as error:
        raise MissingExtraError("wandb.Image", "media") from error
    return PIL.Image


class Video(BatchableMedia):
    """A video.

    Args:
        data_or_path: Frames as an array (frames, channels, height, width), with a dimension in front for several
            videos; a path, or an open file.
        caption: Shown below it.
        fps: Frames per second, for arrays; 4 by default.
        format: ``gif``, ``mp4``, ``webm`` or ``ogg``; required for arrays and open files. Arrays are encoded as GIF, as
            MP4 with the extra ``video``, and otherwise as WebP.
    """

    _log_type = "video-file"
    EXTS = VIDEO_TYPES

    def __init__(
        self,
        data_or_path: Any,
        caption: str | None = None,
        fps: int | None = None,
        format: str | None = None,  # noqa: A002
    ) -> None:
        super().__init__(caption=caption)
        self._fps = fps or 4
        if isinstance(data_or_path, str | os.PathLike):
            self._value: Any = os.fspath(data_or_path)
            self._format = Path(self._value).suffix.lstrip(".").lower()
            if self._format not in VIDEO_TYPES:
                raise ValueError(f"wandb.Video accepts {', '.join(VIDEO_TYPES)} formats")
            if fps:
                termwarn("`fps` argument does not affect the frame rate of the video when providing a file path.")
            return
        if format is None:
            raise ValueError("wandb.Video requires a `format` argument when initializing with an array or a file")
        if format not in VIDEO_TYPES:
            raise ValueError(f"wandb.Video accepts {', '.join(VIDEO_TYPES)} formats")
        self._format = format
        if hasattr(data_or_path, "read"):
            self._value = data_or_path.read()
            return
        self._value = _owned(data_or_path)
        if len(self._value.shape) not in (4, 5):
            raise ValueError("Video must be atleast 4 dimensions: time, channels, height, width")

    def native(self) -> MediaValue:
        """Return the video as hookline records it."""
        caption = self._caption or ""
        if isinstance(self._value, str | bytes):
            return media.Video(self._value, caption=caption)
        encoded = self._format if self._format == "gif" or (self._format == "mp4" and _has_av()) else "webp"
        return media.Video(self._value, fps=self._fps, caption=caption, format=encoded, channels="first")


def _has_av() -> bool:
    from importlib.util import find_spec

    return find_spec("av") is not None


class Audio(BatchableMedia):
    """Sound.

    Args:
        data_or_path: Samples as an array, or a path.
        sample_rate: Samples per second; required for arrays.
        caption: Shown below it.
    """

    _log_type = "audio-file"

    def __init__(self, data_or_path: Any, sample_rate: int | None = None, caption: str | None = None) -> None:
        super().__init__(caption=caption)
        self._sample_rate, self._duration = sample_rate, None
        if isinstance(data_or_path, str | os.PathLike):
            self._value: Any = os.fspath(data_or_path)
            return
        if sample_rate is None:
            raise ValueError('Argument "sample_rate" is required when instantiating wandb.Audio with raw data.')
        array = as_array(data_or_path)
        self._value = numpy().array(data_or_path if array is None else array)
        self._duration = len(self._value) / float(sample_rate)

    def native(self) -> MediaValue:
        """Return the sound as hookline records it."""
        if isinstance(self._value, str) and self._value.startswith(_URLS):
            raise ValueError(
                "Audio media created by a reference to external storage cannot currently be added to a run"
            )
        rate = None if self._sample_rate is None else int(self._sample_rate)
        return media.Audio(self._value, rate=rate, caption=self._caption or "")


class Histogram(WBValue):
    """The distribution of values.

    Args:
        sequence: The values.
        np_histogram: Counts and edges, as ``numpy.histogram`` returns them.
        num_bins: How many bins of equal width, 512 at most.

    Attributes:
        histogram: The counts.
        bins: The edges.
    """

    _log_type = "histogram"
    MAX_LENGTH = 512

    def __init__(self, sequence: Any = None, np_histogram: Any = None, num_bins: int = 64) -> None:
        if np_histogram:
            if len(np_histogram) != 2:
                raise ValueError(
                    "Expected np_histogram to be a tuple of (values, bin_edges) or sequence to be specified"
                )
            counts, edges = np_histogram
        else:
            array = as_array(sequence)
            counts, edges = numpy().histogram(sequence if array is None else array, bins=num_bins)
        self.histogram = counts.tolist() if hasattr(counts, "tolist") else list(counts)
        self.bins = edges.tolist() if hasattr(edges, "tolist") else list(edges)
        if len(self.histogram) > self.MAX_LENGTH:
            raise ValueError(f"The maximum length of a histogram is {self.MAX_LENGTH}")
        if len(self.histogram) + 1 != len(self.bins):
            raise ValueError("len(bins) must be len(histogram) + 1")

    def native(self) -> MediaValue:
        """Return the histogram as hookline records it."""
        return media.Histogram(counts=self.histogram, edges=self.bins)

    def to_json(self, run_or_artifact: Any = None) -> dict[str, Any]:
        """Return the counts and edges."""
        return {"_type": self._log_type, "values": self.histogram, "bins": self.bins}


class Html(BatchableMedia):
    """HTML, shown in a separate frame without access to the page.

    Args:
        data: The HTML, the path of a file that ends in ``.html``, or an open file.
        inject: Accepted; wandb's style sheet is not added, because the page needs no network.
        data_is_not_path: Take a text as HTML even if a file has that name.
    """

    _log_type = "html-file"

    def __init__(self, data: Any, inject: bool = True, data_is_not_path: bool = False) -> None:
        super().__init__()
        is_path = isinstance(data, str | os.PathLike) and not data_is_not_path
        if is_path and os.path.isfile(data) and os.path.splitext(data)[1] == ".html":  # noqa: PTH113, PTH122 - any text
            self.html = Path(data).read_text(encoding="utf-8")
        elif isinstance(data, str):
            self.html = data
        elif hasattr(data, "read"):
            if hasattr(data, "seek"):
                data.seek(0)
            self.html = data.read()
        else:
            raise ValueError("data must be a string or an io object")

    def native(self) -> MediaValue:
        """Return the HTML as hookline records it."""
        return media.Html(self.html)


class Plotly(Media):
    """A Plotly figure. A matplotlib figure is recorded as an image.

    Args:
        val: The figure.
    """

    _log_type = "plotly-file"

    def __init__(self, val: Any) -> None:
        super().__init__()
        if not is_figure(val):
            raise ValueError(
                "Logged plots must be plotly figures, or matplotlib plots convertible to plotly via mpl_to_plotly"
            )
        figure = _figure_of(val) if type(val).__module__.partition(".")[0] != "plotly" else None
        self._content: bytes | dict[str, Any] = (
            media.render_figure(figure) if figure is not None else json.loads(val.to_json())
        )

    @classmethod
    def make_plot_media(cls, val: Any) -> "Plotly | Image":
        """Return a Plotly figure, or a matplotlib figure as an image."""
        return cls(val) if type(val).__module__.partition(".")[0] == "plotly" else Image(val)

    def native(self) -> MediaValue:
        """Return the figure as hookline records it."""
        return media.Image(self._content) if isinstance(self._content, bytes) else media.Figure(self._content)


class KeptFile(BatchableMedia):
    """A type that is kept as a file: the page offers it for download.

    Args:
        content: Its path, or its content.
        suffix: The file's suffix, for content.
        caption: Shown below it.
    """

    what: ClassVar[str] = ""

    def __init__(self, content: str | bytes, suffix: str, caption: str | None = None) -> None:
        super().__init__(caption=caption)
        termwarn(f"A wandb.{self.what} is not drawn: the page offers its file for download.", repeat=False)
        if isinstance(content, str):
            self._path = content
        else:
            # In a temporary file, because hookline copies files by path. It is deleted with this object.
            folder = tempfile.mkdtemp(prefix="hookline-wandb-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._path = str(Path(folder, f"{self.what.lower()}{suffix}"))
            Path(self._path).write_bytes(content)

    def native(self) -> MediaValue:
        """Return the file as hookline records it."""
        return media.File(self._path, caption=self._caption or "")


def _file_or_text(value: Any, formats: Sequence[str], what: str, file_type: str | None) -> tuple[str | bytes, str]:
    """Return the path or content of a file in one of some formats, and its suffix."""
    if hasattr(value, "name") and not isinstance(value, os.PathLike):
        value = value.name
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        if not path.endswith(tuple(formats)):
            raise ValueError(f"{what} accepts only the following file types: {', '.join(formats)}")
        return path, ""
    if not hasattr(value, "read"):
        raise ValueError(f"{what} accepts a path or an open file, not a {type(value).__name__}")
    if file_type is None or file_type not in formats:
        raise ValueError(f"Must pass file_type, one of {', '.join(formats)}, to {what} for an open file")
    content = value.read()
    return content.encode() if isinstance(content, str) else content, f".{file_type}"


class Object3D(KeptFile):
    """A 3-D object or a point cloud, kept as a file.

    Args:
        data_or_path: A path, an open file, a dict of points and boxes, or an array of points.
        caption: Shown below it.
        kwargs: ``file_type`` of an open file.
    """

    _log_type = "object3D-file"
    what = "Object3D"
    SUPPORTED_TYPES = ("obj", "gltf", "glb", "babylon", "stl", "pts.json")

    def __init__(self, data_or_path: Any, caption: str | None = None, **kwargs: Any) -> None:
        if isinstance(data_or_path, Mapping):
            content: tuple[str | bytes, str] = json.dumps(_listed(data_or_path)).encode(), ".pts.json"
        elif (array := as_array(data_or_path)) is not None:
            if array.ndim != 2 or array.shape[1] not in (3, 4, 6):
                raise ValueError(
                    f"The shape of the numpy array must be one of either [[x y z]], [[x y z c]] or [[x y z r g b]], "
                    f"not {array.shape}"
                )
            content = json.dumps(array.tolist()).encode(), ".pts.json"
        else:
            content = _file_or_text(data_or_path, self.SUPPORTED_TYPES, "Object3D", kwargs.get("file_type"))
        super().__init__(*content, caption=caption)

    @classmethod
    def from_file(cls, data_or_path: Any, file_type: str | None = None) -> Self:
        """Read the object from a file."""
        return cls(data_or_path, file_type=file_type)

    @classmethod
    def from_numpy(cls, data: Any) -> Self:
        """Make the object from an array of points."""
        return cls(data)

    @classmethod
    def from_point_cloud(
        cls, points: Any, boxes: Any, vectors: Any = None, point_cloud_type: str = "lidar/beta"
    ) -> Self:
        """Make the object from points, boxes and vectors."""
        cloud = {"type": point_cloud_type, "points": points, "boxes": boxes, "vectors": vectors or []}
        return cls({name: _listed(value) for name, value in cloud.items()})


def _listed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _listed(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_listed(each) for each in value]
    array = as_array(value)
    return value if array is None else array.tolist()


def box3d(
    *,
    center: Any,
    size: Any,
    orientation: Any,
    color: tuple[int, int, int],
    label: str | None = None,
    score: float | None = None,
) -> dict[str, Any]:
    """Return a box of a point cloud by its corners.

    Args:
        center: Its center.
        size: Its size along its axes.
        orientation: The rotation of its axes as a quaternion (r, i, j, k).
        color: Red, green and blue from 0 to 255.
        label: Its label.
        score: Its score.
    """
    np = numpy()
    quaternion = np.asarray(orientation, float)
    real, i, j, k = quaternion / np.linalg.norm(quaternion)
    rotation = np.array(
        [
            [1 - 2 * (j * j + k * k), 2 * (i * j - k * real), 2 * (i * k + j * real)],
            [2 * (i * j + k * real), 1 - 2 * (i * i + k * k), 2 * (j * k - i * real)],
            [2 * (i * k - j * real), 2 * (j * k + i * real), 1 - 2 * (i * i + j * j)],
        ]
    )
    signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    corners = signs * (np.asarray(size, float) / 2) @ rotation.T + np.asarray(center, float)
    named = {"label": label, "score": score}
    return {"corners": corners.tolist(), "color": list(color)} | {k: v for k, v in named.items() if v is not None}


class Molecule(KeptFile):
    """A molecule, kept as a file.

    Args:
        data_or_path: A path, or an open file.
        caption: Shown below it.
        kwargs: ``file_type`` of an open file.
    """

    _log_type = "molecule-file"
    what = "Molecule"
    SUPPORTED_TYPES = ("pdb", "pqr", "mmcif", "mcif", "cif", "sdf", "sd", "gro", "mol2", "mmtf")

    def __init__(self, data_or_path: Any, caption: str | None = None, **kwargs: Any) -> None:
        content = _file_or_text(data_or_path, self.SUPPORTED_TYPES, "Molecule", kwargs.get("file_type"))
        super().__init__(*content, caption=caption)

    @classmethod
    def from_rdkit(cls, data_or_path: Any, caption: str | None = None, **_: Any) -> Self:
        """Make the molecule from an RDKit object, as an SDF file."""
        try:
            from rdkit import Chem  # type: ignore[import-not-found,unused-ignore]
        except ModuleNotFoundError as error:
            raise Error("wandb.Molecule.from_rdkit needs the package rdkit.") from error
        return cls(io.StringIO(Chem.MolToMolBlock(data_or_path)), caption, file_type="sdf")

    @classmethod
    def from_smiles(cls, data: str, caption: str | None = None, **_: Any) -> Self:
        """Make the molecule from a SMILES string."""
        try:
            from rdkit import Chem
        except ModuleNotFoundError as error:
            raise Error("wandb.Molecule.from_smiles needs the package rdkit.") from error
        return cls.from_rdkit(Chem.MolFromSmiles(data), caption)


class Bokeh(Media):
    """A Bokeh plot, recorded as HTML.

    Args:
        data_or_path: The path of an HTML file, or a document or model of Bokeh.
    """

    _log_type = "bokeh-file"

    def __init__(self, data_or_path: Any) -> None:
        super().__init__()
        if isinstance(data_or_path, str | os.PathLike):
            self._html = Path(data_or_path).read_text(encoding="utf-8")
            return
        try:
            from bokeh.embed import file_html  # type: ignore[import-not-found,unused-ignore]
        except ModuleNotFoundError as error:
            raise Error("wandb.Bokeh needs the package bokeh.") from error
        self._html = file_html(data_or_path, None)

    def native(self) -> MediaValue:
        """Return the plot as hookline records it."""
        return media.Html(self._html)


class Node(WBValue):
    """A node of a graph.

    Args:
        kwargs: Its attributes: ``id``, ``name``, ``class_name``, ...
    """

    def __init__(self, **kwargs: Any) -> None:
        self.__dict__.update(kwargs)


class Graph(Media):
    """The graph of a model, recorded as text with one line per node.

    Args:
        format: Accepted.
    """

    _log_type = "graph-file"

    def __init__(self, format: str = "keras") -> None:  # noqa: A002
        super().__init__()
        self.format = format
        self.nodes: list[Node] = []
        self.edges: list[tuple[Any, Any]] = []

    def add_node(self, node: Node | None = None, **node_kwargs: Any) -> Node:
        """Add a node."""
        self.nodes.append(Node(**node_kwargs) if node is None else node)
        return self.nodes[-1]

    def add_edge(self, from_node: Any, to_node: Any) -> None:
        """Add an edge."""
        self.edges.append((from_node, to_node))

    def native(self) -> MediaValue:
        """Return the graph as hookline records it."""
        return media.Text("\n".join(str(vars(node)) for node in self.nodes) or "(no nodes)")


class WBTraceTree(Media):
    """A trace of spans, recorded as JSON text.

    Args:
        root_span: The outermost span.
        model_dict: Facts about the model.
    """

    _log_type = "wb_trace_tree"

    def __init__(self, root_span: Any, model_dict: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._text = json.dumps({"root_span": root_span, "model": model_dict}, default=_plain_object, indent=1)

    def native(self) -> MediaValue:
        """Return the trace as hookline records it."""
        return media.Text(self._text)


def _plain_object(value: Any) -> Any:
    return vars(value) if hasattr(value, "__dict__") else str(value)
