"""Media as values of `log()`: images, audio, video, histograms, tables, figures, texts and files.

``run.log(loss=loss, samples=hl.Image(x), weights=hl.Histogram(t))`` records them beside the row's numbers. `log` copies
what the program may change afterwards and returns; `MediaWriter` encodes and writes later, on threads of its own. A
value on a device is copied on the device, without waiting for it.

A value that cannot be recorded (a wrong shape, NaN in an image, a file that is missing) never stops a training: it is
logged as an error with its name and shape, recorded as the event ``media_error``, and left out.
"""

import io
import json
import logging
import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hookline._engine.checks import require_integer
from hookline._engine.errors import HooklineError, OptionError
from hookline._engine.metrics import MediaValue, plain
from hookline._record import media_encoding as encoding
from hookline._record.media_encoding import IMAGE_FORMATS, VIDEO_FORMATS, Staged, is_instance, stage
from hookline._record.records import clean, valid_text

logger = logging.getLogger("hookline")

MAX_TEXT_BYTES = 16_000_000
MAX_CAPTION = 10_000
MAX_BINS = 10_000
"""The most bins of a histogram and boxes of an image: both are in the journal itself."""
MAX_CHANNELS = 64
"""The most channels of audio."""
HELD_FILES = 64
"""How many captured files are held open until they are copied; others are opened again by their path."""
SMALL_FILE_BYTES = 1_000_000
"""A file of so many bytes at most is read at the call, so a program may write the next one to the same path."""
PathLike = str | os.PathLike[str]
_MAX_REPORTED = 1000
_reported: set[tuple[str, str]] = set()


class FileContent(Protocol):
    """A file whose content becomes a blob."""

    def seek(self, offset: int, /) -> Any:
        """Read from an offset next."""

    def read(self, size: int, /) -> bytes:
        """Return so many bytes at most; none at the end."""

    def close(self) -> None:
        """Release it."""


class Encoded(NamedTuple):
    """The encoded form of a captured value, made by a thread of `MediaWriter`.

    Attributes:
        content: The blob: bytes, a file to copy, or None where ``data`` holds everything.
        format: The blob's format, as a file's suffix.
        data: Facts for the record.
        parts: More blobs, by the name under which ``data`` gets their digests.
    """

    content: bytes | FileContent | None
    format: str = ""
    data: dict[str, Any] = {}  # noqa: RUF012 - never changed
    parts: dict[str, bytes] = {}  # noqa: RUF012


class Captured:
    """A copy of a value of `log()`, ready to be encoded on another thread.

    Args:
        kind: The type of media, as in the record.
        encode: Encodes it. A partial of a function of this module, so that it can wait in a spill file.
        nbytes: How much memory it holds.
        shape: Its shape, for errors.
        staged: What `release` releases: arrays that no result of ``encode`` refers to.
    """

    __slots__ = ("_staged", "caption", "encode", "nbytes", "shape", "type")

    def __init__(
        self,
        kind: str,
        encode: Callable[[], Encoded],
        nbytes: int,
        *,
        caption: str = "",
        shape: Any = None,
        staged: Staged | None = None,
    ) -> None:
        self.type, self.encode, self.nbytes, self.caption, self.shape = kind, encode, nbytes, caption, shape
        self._staged = staged

    def release(self) -> None:
        """Give the memory of a value back that was encoded."""
        if isinstance(self._staged, encoding.HostArray):
            self._staged.release()


class Invalid(NamedTuple):
    """A value that cannot be recorded, and why."""

    type: str
    reason: str


class Media(MediaValue):
    """The base class of all media.

    Args:
        caption: Shown below it.
    """

    type = ""

    def __init__(self, *, caption: str = "") -> None:
        self.caption = caption

    def capture(self, name: str) -> Any:
        """Copy mutable content, and return the media to record under a name. Never raises."""
        try:
            captured = self._capture(name)
            captured.caption = self._caption()
        except Exception as error:
            return invalid(self.type, name, error, self._shape())
        return captured

    def _capture(self, name: str) -> "Captured":
        raise NotImplementedError

    def _shape(self) -> Any:
        shape = getattr(getattr(self, "value", None), "shape", None)
        return tuple(shape) if isinstance(shape, tuple | list) else None  # torch.Size is a tuple

    def _caption(self) -> str:
        text = valid_text(str(self.caption)) if self.caption else ""
        if len(text) > MAX_CAPTION:
            raise OptionError(f"its caption has {len(text)} characters, {MAX_CAPTION} at most are recorded")
        return text


def invalid(kind: str, name: str, error: BaseException, shape: Any = None) -> Invalid:
    """Log that a value cannot be recorded, and return what is recorded instead."""
    try:
        text = str(error) if isinstance(error, HooklineError | OSError) else f"{type(error).__name__}: {error}"
    except Exception:  # an error that cannot be shown must not become one of the training
        text = type(error).__name__
    text = text[:2000]
    reason = f"{kind} {name!r}{'' if shape is None else f' of shape {shape}'} cannot be recorded: {text.rstrip('.')}."
    # Once a name: a loop would log it at every step. The event is recorded each time.
    if (kind, name) not in _reported and len(_reported) < _MAX_REPORTED:
        _reported.add((kind, name))
        logger.error("log(): %s Training continues.", reason)
    return Invalid(kind, reason)


def _capture_file(value: Any, kind: str, data: Mapping[str, Any], formats: frozenset[str] | None) -> Captured:
    """Capture a file by its path or content, unchanged.

    Args:
        formats: What it may be, judged by its first bytes; None for anything.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        content = bytes(value)
        found = _checked_format(content[:32], kind, formats, f"{len(content)} bytes")
        return Captured(kind, partial(_encode_file, content, found, dict(data)), len(content))
    path = Path(value)
    file = CapturedFile(path)
    suffix = path.suffix.lstrip(".").lower()[:16]
    found = suffix if formats is None else _checked_format(file.head, kind, formats, str(path))
    source = file if file.content is None else file.content
    return Captured(kind, partial(_encode_file, source, found, {"file": path.name, **data}), len(file.content or b""))


def _checked_format(head: bytes, kind: str, formats: frozenset[str] | None, what: str) -> str:
    found = encoding.sniff(head)
    if formats is not None and found not in formats:
        raise OptionError(f"{what}: not one of the formats {', '.join(sorted(formats))}; use hl.File for other files")
    return found


def _encode_file(content: "bytes | CapturedFile", suffix: str, data: dict[str, Any]) -> Encoded:
    return Encoded(content, suffix, data)


_held: set[int] = set()
"""The descriptors of captured files. Only its size matters: a few too many do no harm."""


class CapturedFile:
    """A file: a small one is read at once, a larger one is copied later and has to be the same then.

    A larger one is held open, so it may be deleted meanwhile, unless too many others are held: a program that logs
    thousands of files at once must not run out of descriptors. Such a file is opened again by its path.

    Attributes:
        head: Its first bytes.
        content: The content of a small file; None for a larger one.

    Raises:
        OptionError: It is not a regular file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor = path, -1
        self.content: bytes | None = None
        # Not blocking: opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._status = os.fstat(descriptor)
            if not stat.S_ISREG(self._status.st_mode):
                raise OptionError(f"{path} is not a regular file")
            size = self._status.st_size
            if 0 < size <= SMALL_FILE_BYTES and len(content := os.pread(descriptor, size + 1, 0)) == size:
                self.content, self.head = content, content[:32]
                return
            # Larger, or of a size that is not known, as below /proc.
            self.head = os.pread(descriptor, 32, 0)
            if len(_held) < HELD_FILES:
                _held.add(descriptor)
                self._descriptor, descriptor = descriptor, -1
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def seek(self, offset: int, /) -> None:
        """Read from an offset; opens the file again if it is not held open."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                self._check()
            os.lseek(self._descriptor, offset, os.SEEK_SET)
        except OSError as error:  # not an OSError, which would be one of the disk that is written to
            raise OptionError(f"{self._path} can no longer be read: {error.strerror}") from error

    def read(self, size: int) -> bytes:
        """Read on; raises at the end if the file was changed since it was captured."""
        try:
            piece = os.read(self._descriptor, size)
        except OSError as error:
            raise OptionError(f"{self._path} cannot be read: {error.strerror}") from error
        if not piece:
            self._check()
        return piece

    def _check(self) -> None:
        now, then = os.fstat(self._descriptor), self._status
        if (now.st_ino, now.st_size, now.st_mtime_ns) != (then.st_ino, then.st_size, then.st_mtime_ns):
            raise OptionError(f"{self._path} was changed before it was copied; log it when it is complete")

    def close(self) -> None:
        """Release the descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _held.discard(descriptor)
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class Image(Media):
    """An image, or a batch of images as a grid.

    Args:
        value: A NumPy array, a torch tensor or a JAX array on any device (height x width, with 1, 3 or 4 channels, last
            or first; one dimension more for a batch), an image of Pillow, a matplotlib figure, a path, or the bytes of
            an image file.
        caption: Shown below it.
        channels: ``"first"`` or ``"last"``; by default found from the shape, ``"first"`` for tensors that allow both.
        range: The values of black and white; by default (0, 1), (-1, 1) or (0, 255), whichever all values fit into,
            otherwise the smallest and the largest value. Arrays of unsigned bytes are taken as they are.
        columns: How many images of a batch are in a row.
        boxes: Boxes drawn over it: dicts with ``box`` (left, top, right, bottom in pixels), and optionally ``label``
            and ``score``.
        masks: Class numbers for each pixel, by name: ``{"prediction": array}``.
        labels: The names of the classes, for boxes and masks: ``{0: "background", 1: "cat"}``.
        format: ``"png"``, ``"webp"`` or ``"jpeg"``.
        quality: The quality of WebP and JPEG.
    """

    type = "image"

    def __init__(
        self,
        value: Any,
        *,
        caption: str = "",
        channels: str = "auto",
        range: tuple[float, float] | None = None,  # noqa: A002
        columns: int | None = None,
        boxes: Sequence[Mapping[str, Any]] = (),
        masks: Mapping[str, Any] | None = None,
        labels: Mapping[int, str] | None = None,
        format: str = "png",  # noqa: A002
        quality: int = 90,
    ) -> None:
        super().__init__(caption=caption)
        self.value = value
        self.channels, self.range, self.columns = channels, range, columns
        self.boxes, self.masks, self.labels = boxes, masks, labels
        self.format, self.quality = format, quality

    def _capture(self, name: str) -> Captured:
        if self.format not in IMAGE_FORMATS:
            raise OptionError(f"format={self.format!r}; give {', '.join(IMAGE_FORMATS)}")
        if self.channels not in ("auto", "first", "last"):
            raise OptionError(f"channels={self.channels!r}; give 'first', 'last' or 'auto'")
        data = self._overlays()
        masks = {name: stage(mask) for name, mask in (self.masks or {}).items()}
        if wrong := [name for name, mask in masks.items() if len(mask.shape) != 2]:
            raise OptionError(f"masks: {wrong[0]!r} has shape {masks[wrong[0]].shape}; give (height, width)")
        value, suffix, quality = self.value, self.format, self.quality
        if is_instance(value, "matplotlib.figure", "Figure"):
            content = render_figure(value, suffix)
            return Captured("image", partial(Encoded, content, suffix, data), len(content))
        if is_instance(value, "PIL.Image", "Image"):
            if value.mode == "F":
                raise OptionError("Pillow's mode 'F' has no picture format; give the array instead")
            picture = value.copy()
            size = picture.width * picture.height * len(picture.getbands())
            data |= {"width": picture.width, "height": picture.height}
            encode = partial(_encode_picture, picture, suffix, quality, data, masks)
            return Captured("image", encode, size, shape=picture.size)
        if isinstance(value, str | os.PathLike | bytes | bytearray):
            return _capture_file(value, "image", data, encoding.IMAGE_FILES)
        staged = stage(value)
        is_array = type(value).__module__.partition(".")[0] == "numpy"
        layout = encoding.image_layout(staged.shape, channels=self.channels, channels_first=not is_array)
        if isinstance(staged, encoding.HostArray) and encoding.has_nonfinite(staged.array):
            raise OptionError("it holds NaN or infinite values")
        look = (layout, self.range, self.columns, suffix, quality)
        size = staged.nbytes + sum(mask.nbytes for mask in masks.values())
        encode = partial(_encode_images, staged, look, data, masks)
        return Captured("image", encode, size, shape=staged.shape, staged=staged)

    def _overlays(self) -> dict[str, Any]:
        data: dict[str, Any] = {}
        boxes = [dict(box) for box in self.boxes]
        if len(boxes) > MAX_BINS:
            raise OptionError(f"{len(boxes)} boxes; {MAX_BINS} at most are recorded")
        for box in boxes:
            corners = [float(corner) for corner in plain(list(box.get("box", ())))]
            if len(corners) != 4:
                raise OptionError(f"boxes: {box!r:.200} has no 'box' of four numbers (left, top, right, bottom)")
            box["box"] = corners
        if boxes:
            data["boxes"] = clean(boxes)
        if self.labels:
            data["labels"] = {str(number): str(label) for number, label in self.labels.items()}
        return data


def _encode_picture(picture: Any, suffix: str, quality: int, data: dict[str, Any], masks: Any) -> Encoded:
    return Encoded(encoding.encode_pillow(picture, suffix, quality), suffix, data, _encoded_masks(masks))


def _encode_images(staged: Staged, look: tuple[Any, ...], data: dict[str, Any], masks: Any) -> Encoded:
    layout, value_range, columns, suffix, quality = look
    pixels = encoding.to_pixels(staged.fetch(), layout, value_range)
    grid = encoding.make_grid(pixels, columns)
    facts = {"width": grid.shape[1], "height": grid.shape[0]} | ({"images": len(pixels)} if len(pixels) > 1 else {})
    return Encoded(encoding.encode_image(grid, suffix, quality), suffix, facts | data, _encoded_masks(masks))


def _encode_audio(staged: Staged, rate: int, facts: dict[str, Any], *, channels_first: bool) -> Encoded:
    samples = staged.fetch()
    return Encoded(encoding.encode_wav(samples.T if channels_first else samples, rate), "wav", facts)


def _encode_video(staged: Staged, look: tuple[Any, ...]) -> Encoded:
    layout, value_range, suffix, fps = look
    values = staged.fetch()
    pixels = encoding.to_pixels(values.reshape(-1, *values.shape[-3:]), layout, value_range)
    if values.ndim == 5:  # several videos: each frame is a grid of theirs
        videos = pixels.reshape(*values.shape[:2], *pixels.shape[1:])
        pixels = encoding.numpy().stack([encoding.make_grid(frames, None) for frames in videos.swapaxes(0, 1)])
    count, height, width = pixels.shape[:3]
    facts = {"frames": count, "width": width, "height": height, "fps": fps}
    return Encoded(encoding.encode_video(pixels, suffix, fps), suffix, facts)


def _encode_histogram(staged: Staged, bins: int) -> Encoded:
    if isinstance(staged, encoding.DeviceTensor):  # counted on the device: a few numbers are copied, not all values
        counts = staged.fetch(partial(encoding.device_histogram, bins=bins))
        return Encoded(None, "", encoding.device_histogram_data(counts, bins))
    return Encoded(None, "", encoding.histogram_of(staged.fetch(), bins))


def _encoded_masks(masks: Mapping[str, Staged]) -> dict[str, bytes]:
    np = encoding.numpy()
    arrays = {name: np.clip(mask.fetch(), 0, 255).astype(np.uint8) for name, mask in masks.items()}
    return {f"masks/{name}": encoding.encode_image(array[..., None], "png", 0) for name, array in arrays.items()}


def render_figure(figure: Any, suffix: str = "png") -> bytes:
    """Render a figure of matplotlib, on the calling thread: matplotlib is not safe on others."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix, bbox_inches="tight")
    return buffer.getvalue()


class Audio(Media):
    """Sound.

    Args:
        value: Samples as an array or tensor, (samples,), (samples, channels) or (channels, samples), floats from -1 to
            1 or integers; or a path, or the bytes of an audio file.
        rate: Samples per second; for arrays.
        caption: Shown below it.
    """

    type = "audio"

    def __init__(self, value: Any, *, rate: int | None = None, caption: str = "") -> None:
        super().__init__(caption=caption)
        self.value, self.rate = value, rate

    def _capture(self, name: str) -> Captured:
        if isinstance(self.value, str | os.PathLike | bytes | bytearray):
            return _capture_file(self.value, "audio", {"rate": self.rate} if self.rate else {}, encoding.AUDIO_FILES)
        if self.rate is None:
            raise OptionError("give rate=, the number of samples per second")
        require_integer("rate", self.rate)
        staged, rate = stage(self.value), self.rate
        shape = staged.shape
        if len(shape) not in (1, 2) or 0 in shape or (len(shape) == 2 and min(shape) > MAX_CHANNELS):
            raise OptionError(
                f"give (samples,), (samples, channels) or (channels, samples), {MAX_CHANNELS} channels at most"
            )
        # The layout of torchaudio and TensorBoard. Fewer samples than that are no sound.
        channels_first = len(shape) == 2 and shape[1] > MAX_CHANNELS
        facts = {"rate": rate, "seconds": shape[1 if channels_first else 0] / rate}
        encode = partial(_encode_audio, staged, rate, facts, channels_first=channels_first)
        return Captured("audio", encode, staged.nbytes, shape=staged.shape, staged=staged)


class Video(Media):
    """Moving pictures.

    Args:
        value: Frames as an array or tensor (frames x height x width x channels, or channels before height; one
            dimension more for several videos, which become a grid), or a path, or the bytes of a video file.
        fps: Frames per second; for arrays.
        caption: Shown below it.
        format: ``"webp"`` or ``"gif"``, or ``"mp4"`` with the extra ``video``; for arrays.
        channels: ``"first"`` or ``"last"``; by default found from the shape.
        range: The values of black and white, as for `Image`.
    """

    type = "video"

    def __init__(
        self,
        value: Any,
        *,
        fps: float = 8.0,
        caption: str = "",
        format: str = "webp",  # noqa: A002
        channels: str = "auto",
        range: tuple[float, float] | None = None,  # noqa: A002
    ) -> None:
        super().__init__(caption=caption)
        self.value, self.fps, self.format, self.channels, self.range = value, fps, format, channels, range

    def _capture(self, name: str) -> Captured:
        if isinstance(self.value, str | os.PathLike | bytes | bytearray):
            return _capture_file(self.value, "video", {}, encoding.VIDEO_FILES)
        if self.format not in VIDEO_FORMATS:
            raise OptionError(f"format={self.format!r}; give {', '.join(VIDEO_FORMATS)}")
        fps = float(self.fps)
        if not 0 < fps <= 1000:
            raise OptionError(f"fps={self.fps!r}; give a number above 0, 1000 at most")
        staged = stage(self.value)
        if len(staged.shape) not in (4, 5) or 0 in staged.shape:
            shapes = "(frames, height, width, channels) or (frames, channels, height, width)"
            raise OptionError(f"give {shapes}, or several of these")
        is_array = type(self.value).__module__.partition(".")[0] == "numpy"
        layout = encoding.image_layout(staged.shape[-4:], channels=self.channels, channels_first=not is_array)
        encode = partial(_encode_video, staged, (layout, self.range, self.format, fps))
        return Captured("video", encode, staged.nbytes, shape=staged.shape, staged=staged)


class Histogram(Media):
    """The distribution of values.

    Args:
        values: An array or a tensor of any shape, on any device, or a list. For one on a CUDA device the counts are
            computed there. Values that are not finite are counted beside it.
        bins: How many bins of equal width.
        counts: The counts of a histogram that is computed already, instead of values.
        edges: Its edges, one more than counts.
        caption: Shown below it.
    """

    type = "histogram"

    def __init__(
        self,
        values: Any = None,
        *,
        bins: int = encoding.BINS,
        counts: Sequence[float] | None = None,
        edges: Sequence[float] | None = None,
        caption: str = "",
    ) -> None:
        super().__init__(caption=caption)
        self.value, self.bins, self.counts, self.edges = values, bins, counts, edges

    def _capture(self, name: str) -> Captured:
        require_integer("bins", self.bins)
        if self.bins > MAX_BINS:
            raise OptionError(f"bins={self.bins}; give {MAX_BINS} at most")
        if self.value is None:
            return self._capture_counts()
        staged = stage(self.value)
        if 0 in staged.shape:
            raise OptionError("it has no values")
        encode = partial(_encode_histogram, staged, self.bins)
        return Captured("histogram", encode, staged.nbytes, shape=staged.shape, staged=staged)

    def _capture_counts(self) -> Captured:
        if self.counts is None or self.edges is None:
            raise OptionError("give values, or counts= and edges=")
        counts, edges = plain(list(self.counts)), [float(edge) for edge in plain(list(self.edges))]
        if len(edges) != len(counts) + 1 or sorted(edges) != edges or not counts:
            raise OptionError(f"{len(counts)} counts and {len(edges)} edges: give one edge more, in rising order")
        if len(counts) > MAX_BINS or not all(math.isfinite(number) for number in chain(counts, edges)):
            raise OptionError(f"give {MAX_BINS} counts at most, and finite numbers")
        data = {"counts": counts, "low": edges[0], "high": edges[-1], "count": sum(counts)}
        steps = [after - before for before, after in pairwise(edges)]
        if max(steps) - min(steps) > 1e-6 * (edges[-1] - edges[0]):
            data["edges"] = edges
        return Captured("histogram", partial(Encoded, None, "", data), 0)


class Figure(Media):
    """A figure of matplotlib, recorded as a picture, or of Plotly, recorded as JSON and drawn in the page.

    A figure of matplotlib is rendered where it is logged, because matplotlib is not safe on other threads.

    Args:
        value: The figure, or Plotly's figure as a dict.
        caption: Shown below it.
    """

    type = "figure"

    def __init__(self, value: Any, *, caption: str = "") -> None:
        super().__init__(caption=caption)
        self.value = value

    def _capture(self, name: str) -> Captured:
        if is_instance(self.value, "matplotlib.figure", "Figure"):
            content, suffix = render_figure(self.value), "png"
        elif callable(to_json := getattr(self.value, "to_json", None)):
            content, suffix = str(to_json()).encode(), "plotly.json"
        elif isinstance(self.value, Mapping) and "data" in self.value:
            content, suffix = json.dumps(clean(plain(self.value))).encode(), "plotly.json"
        else:
            raise OptionError(f"a {type(self.value).__name__} is not a figure of matplotlib or Plotly")
        return Captured("figure", partial(Encoded, content, suffix), len(content))


class Text(Media):
    """A text, shown as it is.

    Args:
        value: The text.
        caption: Shown below it.
    """

    type = "text"
    suffix = "txt"

    def __init__(self, value: str, *, caption: str = "") -> None:
        super().__init__(caption=caption)
        self.value = value

    def _capture(self, name: str) -> Captured:
        if not isinstance(self.value, str):
            raise OptionError(f"a {type(self.value).__name__} is not a string")
        content = valid_text(self.value).encode()
        if len(content) > MAX_TEXT_BYTES:
            raise OptionError(f"it has {len(content)} bytes, {MAX_TEXT_BYTES} at most are recorded; use hl.File")
        return Captured(self.type, partial(Encoded, content, self.suffix), len(content))


class Markdown(Text):
    """A text in Markdown."""

    type = "markdown"
    suffix = "md"


class Html(Text):
    """HTML, shown in a frame of its own without access to the page.

    Args:
        value: The HTML.
        caption: Shown below it.
    """

    type = "html"
    suffix = "html"


class File(Media):
    """A file, kept as it is.

    A file of up to 1 MB is read at once. A larger one is opened at once and copied later, so it may be deleted, but not
    changed, after `log`. A program that logs more than 64 larger files at once must keep them until they are copied
    (``run.recorder.flush()``).

    Args:
        path: Its path.
        caption: Shown below it.
    """

    type = "file"

    def __init__(self, path: PathLike, *, caption: str = "") -> None:
        super().__init__(caption=caption)
        self.value = path

    def _capture(self, name: str) -> Captured:
        if not isinstance(self.value, str | os.PathLike):
            raise OptionError(f"a {type(self.value).__name__} is not a path")
        return _capture_file(self.value, "file", {}, None)


class Facts(Media):
    """Media that is described by its record alone, such as a curve.

    Args:
        kind: The type of media.
        data: The facts of the record.
    """

    def __init__(self, kind: str, data: Mapping[str, Any]) -> None:
        super().__init__()
        self.type, self.data = kind, dict(data)

    def _capture(self, name: str) -> Captured:
        return Captured(self.type, partial(Encoded, None, "", clean(self.data)), 0)
