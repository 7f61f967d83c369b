"""Arrays from any library, copied without waiting for a device, and their encodings: PNG, WAV, video, histograms.

`stage` runs on the training thread: it copies an array of host memory, and only launches a copy of one on a device.
Everything else here runs on the threads of `MediaWriter`.
"""

import contextlib
import functools
import io
import math
import sys
import time
import wave
from collections.abc import Callable
from typing import Any, TypeAlias

from hookline._engine.errors import MissingExtraError, OptionError
from hookline._record.device import relaxed_capture_mode

Array: TypeAlias = Any
"""An array of NumPy, which is imported when it is first needed."""
CAPTURE_SECONDS = 0.001
"""How long a thread that fetches values waits before it looks again whether a CUDA graph is still being captured."""
GRID_GAP = 2
"""Pixels between the images of a grid."""
IMAGE_FORMATS = {"png": "PNG", "webp": "WEBP", "jpeg": "JPEG"}
VIDEO_FORMATS = ("webp", "gif", "mp4")
IMAGE_FILES = frozenset({"png", "jpeg", "gif", "webp", "bmp", "tiff", "avif"})
AUDIO_FILES = frozenset({"wav", "mp3", "flac", "ogg", "mp4", "webm"})
VIDEO_FILES = frozenset({"mp4", "webm", "ogg", "avi", "gif", "webp"})
"""The formats of files that are recorded as they are."""
BINS = 64


def numpy() -> Any:
    """Return NumPy."""
    try:
        import numpy
    except ModuleNotFoundError as error:
        raise MissingExtraError("media", "media") from error
    return numpy


def pillow() -> Any:
    """Return Pillow's module of images."""
    try:
        import PIL.Image
    except ModuleNotFoundError as error:
        raise MissingExtraError("images", "media") from error
    return PIL.Image


_MIN_POOLED, _POOLED_BYTES = 64 << 10, 64 << 20
_EXACT_VALUES = 16_384
"""How many values of a histogram are converted to doubles at a time."""
_pool: dict[int, list[Array]] = {}
"""Buffers of arrays that were encoded, by their size. The memory of a new array is not there before its first use: to
fill a million floats of it takes ten times as long as to fill those of a buffer that was used before."""


class HostArray:
    """A copy of an array in host memory, in a buffer that `release` makes available to the next array of its size."""

    def __init__(self, array: Array) -> None:
        self.shape, self.nbytes = tuple(array.shape), array.nbytes
        self._buffer: Array = None
        if self.nbytes < _MIN_POOLED:
            self.array = array.copy()
            return
        try:
            self._buffer = _pool[self.nbytes].pop()
        except (KeyError, IndexError):
            self._buffer = numpy().empty(self.nbytes, "u1")
        self.array = self._buffer.view(array.dtype).reshape(array.shape)
        if array.flags.c_contiguous:
            # As bytes, which keeps the interpreter's lock. NumPy releases it while it copies, and a thread that encodes
            # would take it and hold up the training for milliseconds.
            self._buffer.data[:] = array.reshape(-1).view("u1").data
        else:
            self.array[...] = array

    def fetch(self) -> Array:
        """Return the array."""
        return self.array

    def release(self) -> None:
        """Give the buffer back; nobody may use the array from now on."""
        buffer, self._buffer, self.array = self._buffer, None, None
        # Two threads may both see room: a buffer more does no harm.
        if buffer is not None and sum(size * len(found) for size, found in list(_pool.items())) < _POOLED_BYTES:
            _pool.setdefault(self.nbytes, []).append(buffer)

    def __reduce__(self) -> Any:
        return HostArray, (self.array,)


class DeviceTensor:
    """A copy of a torch tensor on its device, launched after everything that its stream has been given so far.

    The copy is all that the training thread launches: an event would cost it as much again. The thread that fetches
    the values records one, on the same stream and therefore after the copy.
    """

    def __init__(self, torch: Any, tensor: Any) -> None:
        if tensor.is_cuda and torch._C._cuda_isCurrentStreamCapturing():
            raise OptionError("a CUDA graph is being captured; log the graph's outputs after its replay")
        self._torch = torch
        # Copied on the device: a later change in place (an optimizer, the replay of a CUDA graph) must not be recorded.
        self._tensor = tensor.detach().clone()
        self._stream = torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None
        self.shape, self.nbytes = tuple(tensor.shape), tensor.numel() * tensor.element_size()

    def fetch(self, compute: Callable[[Any], Any] | None = None) -> Array:
        """Copy it to host memory; only the calling thread waits.

        Args:
            compute: Computes, on the device, what is copied instead.
        """
        torch, tensor = self._torch, self._tensor
        with torch.no_grad(), contextlib.ExitStack() as stack:
            if self._stream is not None:
                stack.enter_context(relaxed_capture_mode())
                stack.enter_context(torch.cuda.stream(self._stream))
                while torch._C._cuda_isCurrentStreamCapturing():  # an event would become part of the graph
                    time.sleep(CAPTURE_SECONDS)
                event, stream = torch.cuda.Event(), torch.cuda.Stream(tensor.device)
                event.record(self._stream)
                # On a stream of its own, so that the copy to the host does not hold up the training.
                stream.wait_event(event)
                stack.enter_context(torch.cuda.stream(stream))
            found = tensor if compute is None else compute(tensor)
            if found.dtype not in _numpy_types(torch):
                found = found.float()
            if self._stream is None:
                return _numpy_of(found.cpu())
            # Into pinned memory and without `.cpu()`, which counts as a synchronization of the process.
            host = torch.empty(found.shape, dtype=found.dtype, device="cpu", pin_memory=True)
            host.copy_(found, non_blocking=True)
            event.record(stream)
            event.synchronize()
        return _numpy_of(host)

    def __reduce__(self) -> Any:
        return HostArray, (self.fetch(),)  # a spill file holds the values, not the device's memory


class JaxArray:
    """A copy of a JAX array, which no later step can donate or delete."""

    def __init__(self, jax: Any, array: Any) -> None:
        self._array = jax.numpy.copy(array)
        self._array.copy_to_host_async()
        self.shape, self.nbytes = tuple(array.shape), array.nbytes

    def fetch(self) -> Array:
        """Copy it to host memory; only the calling thread waits."""
        array = numpy().asarray(self._array)
        return array.astype("float32") if array.dtype.kind == "V" else array

    def __reduce__(self) -> Any:
        return HostArray, (self.fetch(),)


Staged = HostArray | DeviceTensor | JaxArray


def is_instance(value: Any, module: str, kind: str) -> bool:
    """Return whether a value is an instance of a class of another package, without importing that package."""
    # Another thread may be in the middle of importing it: then it has no such class yet, and nobody an instance.
    found = getattr(sys.modules.get(module), kind, None)
    return found is not None and isinstance(value, found)


def stage(value: Any) -> Staged:
    """Copy an array, a tensor or nested lists of numbers, without waiting for a device.

    Raises:
        OptionError: It is none of these.
    """
    if is_instance(value, "torch", "Tensor"):
        torch = sys.modules["torch"]
        if hasattr(value, "to_local"):
            raise OptionError("it is sharded over processes; give its full_tensor()")
        # Here, because a copy that fails on another thread is no error of this call.
        if value.is_meta or value.is_complex() or value.is_quantized or value.layout is not torch.strided:
            kind = "meta" if value.is_meta else str(value.layout if value.layout is not torch.strided else value.dtype)
            raise OptionError(f"it is a {kind} tensor; give a dense one of real numbers")
        if not value.is_cpu:
            return DeviceTensor(torch, value)
        tensor = value.detach()
        return HostArray(_numpy_of(tensor if tensor.dtype in _numpy_types(torch) else tensor.float()))
    if is_instance(value, "jax", "Array"):
        if value.dtype.kind == "c":
            raise OptionError("it holds complex numbers; give real ones")
        return JaxArray(sys.modules["jax"], value)
    np = numpy()
    array = np.asarray(value)
    if array.dtype.kind == "V" and "float" in array.dtype.name:  # ml_dtypes: bfloat16, float8, ...
        array = array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        raise OptionError(f"it is a {type(value).__name__} that holds no real numbers (dtype {array.dtype})")
    return HostArray(array)


@functools.cache
def _numpy_types(torch: Any) -> frozenset[Any]:
    """Return the types of tensors that NumPy has as well; bfloat16 and float8 are not among them."""
    names = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
    return frozenset(getattr(torch, name) for name in names)


def _numpy_of(tensor: Any) -> Any:
    return tensor.resolve_conj().resolve_neg().numpy()


def has_nonfinite(array: Array) -> bool:
    """Return whether an array holds NaN or infinity."""
    if array.dtype.kind != "f" or not array.size:
        return False
    # NaN wins in both, and neither needs a temporary array.
    return not (math.isfinite(array.max()) and math.isfinite(array.min()))


# Images


def image_layout(shape: tuple[int, ...], *, channels: str, channels_first: bool) -> str:
    """Return the layout of an image or a batch of images: ``HW``, ``HWC``, ``CHW``, ``NHW``, ``NHWC`` or ``NCHW``.

    Args:
        channels: ``"first"``, ``"last"``, or ``"auto"``.
        channels_first: What ``"auto"`` means where the shape allows both, as for torch tensors.

    Raises:
        OptionError: It is not the shape of images.
    """
    if len(shape) not in (2, 3, 4) or 0 in shape:
        raise OptionError("give (height, width), (height, width, channels), or a batch of these")
    if len(shape) == 2:
        return "HW"
    first, last = shape[-3] in (1, 3, 4), shape[-1] in (1, 3, 4)
    if channels != "auto":
        first, last = first and channels == "first", last and channels == "last"
    if not first and not last:
        if len(shape) == 3 and channels == "auto":
            return "NHW"
        raise OptionError("the number of channels has to be 1, 3 or 4")
    layout = "CHW" if first and (channels_first or not last) else "HWC"
    return layout if len(shape) == 3 else "N" + layout


def to_pixels(array: Array, layout: str, value_range: tuple[float, float] | None) -> Array:
    """Return images as unsigned bytes, with shape (images, height, width, channels).

    Raises:
        OptionError: A value is not finite.
    """
    np = numpy()
    if has_nonfinite(array):
        raise OptionError("it holds NaN or infinite values")
    if not layout.startswith("N"):
        array = array[None]
    if layout.endswith("CHW"):
        array = array.transpose(0, 2, 3, 1)
    elif layout.endswith("HW"):
        array = array[..., None]
    if array.dtype == np.uint8 and value_range is None:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * 255
    low, high = value_range or _value_range(array)
    scaled = (array.astype(np.float32) - low) * (255.0 / (high - low if high > low else 1.0))
    return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)


def _value_range(array: Array) -> tuple[float, float]:
    """Return the values of black and white: 0 to 1, -1 to 1 or 0 to 255 where all values fit, else the extremes."""
    low, high = float(array.min()), float(array.max())
    usual = ((0.0, 255.0),) if array.dtype.kind in "iu" else ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))
    return next(((a, b) for a, b in usual if a <= low and high <= b), (low, high))


def make_grid(pixels: Array, columns: int | None) -> Array:
    """Arrange images of shape (images, height, width, channels) in rows, as one image."""
    np = numpy()
    count, height, width, depth = pixels.shape
    if count == 1:
        return pixels[0]
    columns = min(count, columns or int(np.ceil(np.sqrt(count))))
    rows = -(-count // columns)
    grid = np.zeros((rows * (height + GRID_GAP) - GRID_GAP, columns * (width + GRID_GAP) - GRID_GAP, depth), np.uint8)
    for index in range(count):
        top, left = (index // columns) * (height + GRID_GAP), (index % columns) * (width + GRID_GAP)
        grid[top : top + height, left : left + width] = pixels[index]
    return grid


def encode_image(image: Array, suffix: str, quality: int) -> bytes:
    """Encode one image of shape (height, width, channels)."""
    made = pillow().fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    return encode_pillow(made, suffix, quality)


def encode_pillow(image: Any, suffix: str, quality: int) -> bytes:
    """Encode an image of Pillow."""
    if image.mode not in ("L", "RGB") and (suffix == "jpeg" or image.mode in ("CMYK", "YCbCr", "LAB", "HSV")):
        image = image.convert("RGB")
    buffer = io.BytesIO()
    # Level 3: at the default of 6, an image takes three times as long for a few percent.
    image.save(buffer, IMAGE_FORMATS[suffix], **({"compress_level": 3} if suffix == "png" else {"quality": quality}))
    return buffer.getvalue()


_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"OggS", "ogg"),
    (b"fLaC", "flac"),
    (b"ID3", "mp3"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"\x1a\x45\xdf\xa3", "webm"),
)


def sniff(head: bytes) -> str:
    """Return the format of a file from its first bytes, as a suffix; empty if it is unknown.

    >>> sniff(b"GIF89a...")
    'gif'
    """
    if head[:4] == b"RIFF":
        return {b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "avi"}.get(head[8:12], "")
    if head[4:8] == b"ftyp":
        return "avif" if head[8:12] in (b"avif", b"avis") else "mp4"
    if head[:1] == b"\xff" and head[1:2] >= b"\xe0":  # a frame of MPEG audio, without tags before it
        return "mp3"
    return next((suffix for signature, suffix in _SIGNATURES if head.startswith(signature)), "")


# Audio and video


def encode_wav(array: Array, rate: int) -> bytes:
    """Encode samples of shape (samples,) or (samples, channels) as 16-bit WAV; floats are from -1 to 1.

    Raises:
        OptionError: A value is not finite.
    """
    np = numpy()
    if has_nonfinite(array):
        raise OptionError("it holds NaN or infinite values")
    if array.dtype.kind == "f":
        samples = (np.clip(array, -1.0, 1.0) * 32767).astype("<i2")
    elif array.dtype == np.uint8:
        samples = ((array.astype(np.int32) - 128) << 8).astype("<i2")
    elif array.dtype == np.int32:
        samples = (array >> 16).astype("<i2")
    else:
        samples = np.clip(array, -32768, 32767).astype("<i2")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return buffer.getvalue()


def encode_video(frames: Array, suffix: str, fps: float) -> bytes:
    """Encode frames of shape (frames, height, width, channels)."""
    if suffix == "mp4":
        return _encode_mp4(frames, fps)
    image = pillow()
    pictures = [image.fromarray(frame[..., 0] if frame.shape[-1] == 1 else frame) for frame in frames]
    buffer = io.BytesIO()
    options: dict[str, Any] = {"save_all": True, "append_images": pictures[1:], "loop": 0}
    pictures[0].save(buffer, suffix.upper(), duration=max(1, round(1000 / fps)), **options)
    return buffer.getvalue()


def _encode_mp4(frames: Array, fps: float) -> bytes:
    try:
        import av  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ModuleNotFoundError as error:
        raise MissingExtraError("Video(format='mp4')", "video") from error
    from fractions import Fraction

    np = numpy()
    if frames.shape[-1] != 3:
        frames = np.repeat(frames[..., :1], 3, axis=-1) if frames.shape[-1] == 1 else frames[..., :3]
    # The encoder needs even sizes: an odd last row or column is left out.
    frames = np.ascontiguousarray(frames[:, : frames.shape[1] // 2 * 2 or None, : frames.shape[2] // 2 * 2 or None])
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


# Histograms


def histogram_of(array: Array, bins: int) -> dict[str, Any]:
    """Count the finite values of an array in bins of equal width."""
    np = numpy()
    flat = array.reshape(-1)
    if flat.dtype == np.bool_:
        flat = flat.astype(np.uint8)
    elif flat.dtype == np.float16:  # the width of its range may overflow
        flat = flat.astype(np.float32)
    finite = flat[np.isfinite(flat)] if flat.dtype.kind == "f" and has_nonfinite(flat) else flat
    counts, edges = np.histogram(finite, bins=bins) if finite.size else (np.zeros(bins, np.int64), np.zeros(2))
    total = squares = 0.0
    # In pieces that fit into the processor's caches: of a million values, that takes a third less time than arrays of
    # doubles of all of them.
    for begin in range(0, finite.size, _EXACT_VALUES):
        exact = finite[begin : begin + _EXACT_VALUES].astype(np.float64)
        total += float(exact.sum())
        squares += float(np.square(exact, out=exact).sum())
    return histogram_data(counts, float(edges[0]), float(edges[-1]), flat.size - finite.size, total, squares)


def histogram_data(counts: Any, low: float, high: float, nonfinite: int, total: Any, squares: Any) -> dict[str, Any]:
    """Describe a histogram with bins of equal width, as it is recorded."""
    counts = [int(count) for count in counts]
    number = sum(counts)
    mean = float(total) / number if number else 0.0
    deviation = max(0.0, float(squares) / number - mean * mean) ** 0.5 if number else 0.0
    data: dict[str, Any] = {"counts": counts, "low": low, "high": high, "count": number, "mean": mean, "std": deviation}
    return data | ({"nonfinite": int(nonfinite)} if nonfinite else {})


def device_histogram(tensor: Any, bins: int) -> Any:
    """Compute the counts of a tensor on its device, and after them what `device_histogram_data` needs to know.

    Nothing here waits for the device: `torch.histc` would, to learn the extremes, and `torch.bincount`, to check.
    """
    torch = sys.modules["torch"]
    flat = tensor.reshape(-1)
    flat = flat.to(torch.float32 if flat.dtype is not torch.float64 else torch.float64)
    finite = torch.isfinite(flat)
    low = torch.where(finite, flat, torch.inf).amin()
    high = torch.where(finite, flat, -torch.inf).amax()
    known = torch.where(finite, flat, torch.zeros_like(flat))
    width = torch.clamp(high - low, min=torch.finfo(flat.dtype).tiny)
    places = ((known - low) / width * bins).clamp(0, bins - 1).to(torch.int64)
    counts = torch.zeros(bins, dtype=torch.float64, device=flat.device)
    counts.scatter_add_(0, places, finite.to(torch.float64))
    exact = known.to(torch.float64)
    facts = torch.stack([low.double(), high.double(), exact.sum(), exact.square().sum(), (~finite).sum().double()])
    return torch.cat([counts, facts])


def device_histogram_data(array: Array, bins: int) -> dict[str, Any]:
    """Describe the histogram that `device_histogram` computed."""
    counts, (low, high, total, squares, nonfinite) = array[:bins], array[bins:]
    if not counts.any():
        low = high = 0.0
    elif low == high:  # as NumPy does for equal values
        low, high = low - 0.5, high + 0.5
        counts = numpy().zeros(bins)
        counts[bins // 2] = array[:bins].sum()
    return histogram_data(counts, float(low), float(high), int(nonfinite), total, squares)
