"""Media of a run for sinks: the content of blobs, forms that other systems show, and a count of what is left out.

Guarantees:

- Media that a destination cannot show, and media whose blob is missing or damaged, never stop a sink: `RunMedia` leaves
  them out, counts them for the sink's state, and logs each reason once for each type.
- An error of the operating system, such as a full disk, is no such reason: it is raised, and the delivery retries.

Records may come from a shared or received directory. Their names never become paths here, the content of a blob is
compared with its digest, and whatever a library raises for a wrong content counts as damaged.
"""

import hashlib
import io
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from hookline._record.blobs import BlobError, open_blob, read_blob
from hookline._record.media_encoding import numpy, pillow
from hookline._record.records import Media, TableRows, clean

logger = logging.getLogger("hookline")

Value = TypeVar("Value")
MEMORY_BYTES = 64_000_000
"""The largest blob that is read into memory."""
MOST_FRAMES = 600
"""How many frames of a video are converted."""
TABLE = "table"
_PLURALS = {"audio": "audio", "html": "HTML", "markdown": "Markdown"}
_PALETTE = ((230, 57, 70), (29, 120, 216), (42, 157, 80), (244, 162, 40), (140, 80, 200), (20, 160, 170))
_SHOWN = frozenset({"png", "jpeg", "gif"})
"""The formats of images that every destination shows; others are converted to PNG."""
_PLOTLY = "https://cdn.plot.ly/plotly-3.1.0.min.js"
_NOT_IN_FILES = re.compile(r"[^\w.-]")


class CannotShowError(Exception):
    """A destination has no form for a value; the message says for which: "figures of Plotly"."""


def plural(kind: str) -> str:
    """Return a type of media as a message names it.

    >>> plural("image"), plural("audio")
    ('images', 'audio')
    """
    return _PLURALS.get(kind, f"{kind}s")


@dataclass
class RunMedia:
    """Reads the media of a run for one sink, and counts what the sink leaves out.

    It belongs to the sink, not to one opening of it, so that a reason is logged once however often the sink is opened.

    Args:
        destination: The name of the destination, for messages.
    """

    destination: str
    run_dir: Path = Path()
    left_out: int = 0
    _reported: set[str] = field(default_factory=set)

    def open(self, run_dir: Path, state: Any) -> None:
        """Continue counting from the sink's state."""
        known = state.get("left_out", 0) if isinstance(state, Mapping) else 0
        self.run_dir, self.left_out = run_dir, known if isinstance(known, int) else 0

    def state(self) -> dict[str, int]:
        """The entries for the sink's state."""
        return {"left_out": self.left_out} if self.left_out else {}

    def convert(self, record: Media | TableRows, form: Callable[[Any], Value]) -> Value | None:
        """Convert a record to a destination's form; None if there is none, which is counted.

        Raises:
            OSError: Something that a retry may solve.
        """
        kind = record.type if isinstance(record, Media) else TABLE
        try:
            return form(record)
        except CannotShowError as error:
            self.leave_out(str(error) or plural(kind))
        except BlobError as error:
            self.leave_out(kind, f"does not get the {kind} {record.name!r} of step {record.step}: {error}")
        except Exception as error:  # damaged content, or a record that another program wrote
            # Pillow raises an OSError without a number for a content that is no image; a full disk has one.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = f"{type(error).__name__}: {error}".rstrip(". ")
            self.leave_out(kind, f"does not get the {kind} {record.name!r} of step {record.step}: {reason}.")
        return None

    def leave_out(self, what: str, problem: str = "") -> None:
        """Count a value that is not delivered; log the first of each kind."""
        self.left_out += 1
        key = f"{what}!" if problem else what
        if key not in self._reported:
            self._reported.add(key)
            text = problem or f"leaves out {what}, which it cannot show; the run keeps everything."
            logger.warning("%s %s", self.destination, text)

    def content(self, record: Media) -> bytes:
        """Return the content of a record's blob.

        Raises:
            BlobError: It is missing or damaged.
            CannotShowError: It is too large to be held in memory.
        """
        if record.size > MEMORY_BYTES:
            raise CannotShowError(f"{plural(record.type)} of more than {MEMORY_BYTES // 10**6} MB")
        return read_blob(self.run_dir, record.blob)

    def text(self, record: Media) -> str:
        """Return the content of a text."""
        return self.content(record).decode("utf-8", "replace")

    def part(self, record: Media, name: str) -> bytes:
        """Return one of the further blobs of a record, such as a mask."""
        return read_blob(self.run_dir, record.data["parts"][name]["blob"])

    def copy(self, record: Media, path: Path) -> Path:
        """Copy the content of a record's blob to a file, whatever its size.

        Raises:
            BlobError: It is missing or damaged.
        """
        # Opened first: a path that is made of the digest is used only if it is one.
        with open_blob(self.run_dir, record.blob) as source:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as target:
                hashed = _HashedWrites(target)
                shutil.copyfileobj(source, hashed, 1 << 20)
        if hashed.digest() != record.blob:
            path.unlink()
            raise BlobError(f"The blob {record.blob} of {self.run_dir} is damaged: its content has another digest.")
        return path

    def picture(self, record: Media) -> tuple[bytes, str, tuple[int, int]]:
        """Return an image in a format that every browser shows: content, format, and size.

        Boxes and masks are drawn into it.
        """
        content = self.content(record)
        with pillow().open(io.BytesIO(content)) as image:
            size, found = image.size, str(image.format).lower()
            boxes = record.data.get("boxes") or ()
            masks = [name for name in record.data.get("parts") or () if name.startswith("masks/")]
            if not boxes and not masks:
                return (content, found, size) if found in _SHOWN else (_png(image), "png", size)
            return _png(self._with_overlays(image, record, boxes, masks)), "png", size

    def png(self, record: Media) -> bytes:
        """Return an image as PNG, with boxes and masks drawn into it."""
        content, found, _ = self.picture(record)
        if found == "png":
            return content
        with pillow().open(io.BytesIO(content)) as image:
            return _png(image)

    def _with_overlays(self, image: Any, record: Media, boxes: Sequence[Any], masks: Sequence[str]) -> Any:
        from PIL import ImageDraw

        np = numpy()
        labels = record.data.get("labels") or {}
        drawn = image.convert("RGB")
        for name in masks:
            with pillow().open(io.BytesIO(self.part(record, name))) as found:
                classes = np.array(found.resize(drawn.size, 0))
            colours = np.array([_PALETTE[number % len(_PALETTE)] for number in range(256)], np.float32)[classes]
            shares = np.where(classes > 0, 0.45, 0.0)[..., None]  # class 0 is the background
            blended = np.array(drawn, np.float32) * (1 - shares) + colours * shares
            drawn = pillow().fromarray(blended.astype(np.uint8))
        draw = ImageDraw.Draw(drawn)
        names = list(dict.fromkeys(str(box.get("label", "")) for box in boxes))
        for box in boxes:
            label = str(box.get("label", ""))
            colour = _PALETTE[names.index(label) % len(_PALETTE)]
            left, top, right, bottom = box["box"]
            draw.rectangle((left, top, max(left, right), max(top, bottom)), outline=colour, width=2)
            text = " ".join(str(part) for part in (labels.get(label, label), box.get("score", "")) if part != "")
            draw.text((left + 3, top + 2), text, fill=colour)
        return drawn

    def gif(self, record: Media) -> tuple[bytes, tuple[int, int]]:
        """Return a video as an animated GIF, and its size.

        Raises:
            CannotShowError: Its format cannot be decoded here.
        """
        content = self.content(record)
        if record.format in ("gif", "webp"):
            with pillow().open(io.BytesIO(content)) as video:
                if record.format == "gif":
                    return content, video.size
                return _converted_to_gif(video, record), video.size
        frames, rate = _decoded_frames(content, record.format)
        return _gif(frames, 1000 / rate), frames[0].size


class _HashedWrites:
    """A file that computes the digest of what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return self._file.write(data)

    def digest(self) -> str:
        return self._hash.hexdigest()


def _png(image: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=3)
    return buffer.getvalue()


def webp_thumbnail(content: bytes, longest: int = 256) -> bytes:
    """Return a small version of an image as WebP."""
    buffer = io.BytesIO()
    with pillow().open(io.BytesIO(content)) as image:
        image.thumbnail((longest, longest))
        image.save(buffer, "WEBP")
    return buffer.getvalue()


def _gif(frames: Sequence[Any], milliseconds: float) -> bytes:
    buffer = io.BytesIO()
    rest = {"append_images": frames[1:], "loop": 0, "duration": max(1, round(milliseconds))}
    frames[0].save(buffer, "GIF", save_all=True, **rest)
    return buffer.getvalue()


def _converted_to_gif(video: Any, record: Media) -> bytes:
    from PIL import ImageSequence

    frames = [frame.convert("RGB") for frame, _ in zip(ImageSequence.Iterator(video), range(MOST_FRAMES), strict=False)]
    return _gif(frames, 1000 / float(record.data.get("fps") or 8.0))


def _decoded_frames(content: bytes, suffix: str) -> tuple[list[Any], float]:
    try:
        import av  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ModuleNotFoundError:
        raise CannotShowError(f"videos in {suffix} without hookline[video], which converts them") from None
    opened: Any = av.open(io.BytesIO(content))
    with opened as container:
        stream = container.streams.video[0]
        rate = float(stream.average_rate or 8)
        frames = [frame.to_image() for frame, _ in zip(container.decode(stream), range(MOST_FRAMES), strict=False)]
    if not frames:
        raise ValueError("the video has no frames")
    return frames, rate


def histogram_bins(record: Media) -> tuple[list[float], list[float]]:
    """Return the counts of a histogram and its edges, of which there is one more."""
    counts = [float(count) for count in record.data["counts"]]
    if edges := record.data.get("edges"):
        return counts, [float(edge) for edge in edges]
    low, high = float(record.data["low"]), float(record.data["high"])
    width = (high - low) / len(counts)
    return counts, [low + width * index for index in range(len(counts))] + [high]


def table_of(record: Media) -> tuple[list[str], list[list[Any]]]:
    """Return a histogram or a plot as the columns and rows of a table."""
    if record.type == "histogram":
        counts, edges = histogram_bins(record)
        return ["low", "high", "count"], [[*bin_, count] for bin_, count in zip(pairwise(edges), counts, strict=True)]
    if record.data["plot"] == "confusion_matrix":
        labels = record.data["labels"]
        return ["actual", *labels], [[label, *row] for label, row in zip(labels, record.data["counts"], strict=True)]
    names = CURVES[record.data["plot"]]
    return ["class", *names], curve_points(record)


def curve_points(record: Media) -> list[list[Any]]:
    """Return the points of the curves of a plot, each with the label of its curve."""
    curves = record.data["series"]
    return [[curve["label"], x, y] for curve in curves for x, y in zip(curve["x"], curve["y"], strict=True)]


CURVES = {"roc": ("false positive rate", "true positive rate"), "pr_curve": ("recall", "precision")}
"""The names of the axes of curves, by plot."""


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], more: int = 0) -> str:
    """Format a table in Markdown; ``more`` rows are mentioned below it."""
    lines = [columns, ["---"] * len(columns), *rows]
    text = "\n".join("| " + " | ".join(_markdown_cell(cell) for cell in line) + " |" for line in lines)
    return f"{text}\n\n{more:,} more rows are in the run." if more else text


def _markdown_cell(cell: Any) -> str:
    media = media_of(cell)
    text = cell_text(cell) if media is None else f"({media.type}) {media.caption}".strip()
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def cell_text(cell: Any) -> str:
    """Return a plain cell of a table as text."""
    return cell if isinstance(cell, str) else json.dumps(clean(cell), ensure_ascii=False)


def media_of(cell: Any) -> Media | None:
    """Return the media in a cell of a table, or None if it is plain."""
    if not isinstance(cell, dict) or not isinstance(found := cell.get("media"), dict):
        return None
    try:
        return msgspec.convert({"name": "", "step": 0, **found, "kind": "media"}, Media)
    except msgspec.ValidationError:
        return None


def file_suffix(record: Media) -> str:
    """Return the suffix for a file with a record's content, with its dot."""
    found = _NOT_IN_FILES.sub("", record.format)[:16].strip(".")
    return f".{found or 'bin'}"


def file_name(record: Media) -> str:
    """Return a name for a file with a record's content: its own, or one made of its step and position."""
    own = _NOT_IN_FILES.sub("_", str(record.data.get("file") or ""))[-80:].lstrip(".")
    return f"{record.step}-{record.index}-{own or record.blob[:8] + file_suffix(record)}"


def safe_name(name: str) -> str:
    """Return a name that stays below the directory whose part it becomes.

    >>> safe_name("/../samples/cat.1")
    '_/_/samples/cat.1'
    """
    return "/".join(part if part.strip(". ") else "_" for part in name.replace("\0", "_").split("/"))


def plotly_html(content: bytes) -> str:
    """Return a page that draws a figure of Plotly; the browser fetches Plotly's library."""
    figure = json.loads(content)
    # No text of the figure may end the script.
    data, layout = (json.dumps(figure.get(name) or {}).replace("<", "\\u003c") for name in ("data", "layout"))
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><script src="{_PLOTLY}"></script></head><body>'
        f'<div id="figure"></div><script>Plotly.newPlot("figure", {data}, {layout})</script></body></html>'
    )
