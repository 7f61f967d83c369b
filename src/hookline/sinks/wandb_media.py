"""Media as W&B's own types: images with boxes and masks, video, audio, tables, histograms, HTML, Plotly and plots.

wandb copies a file when it is logged, under a name with its digest, so a repeated row writes the same file again. A
`hl.File` is copied into the run's directory and saved as one of the run's files.

Names of media become parts of paths in wandb: `safe_name` keeps them below its directory.
"""

import glob
import html
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import wandb
from wandb.sdk.artifacts.artifact_manifest_entry import ArtifactManifestEntry
from wandb.sdk.lib.paths import LogicalPath

from hookline._record.artifacts import Artifact
from hookline._record.records import Event, Media, TableRows
from hookline.sinks.artifacts import aliases_of
from hookline.sinks.media import (
    CURVES,
    CannotShowError,
    RunMedia,
    curve_points,
    file_name,
    file_suffix,
    histogram_bins,
    media_of,
    plural,
    safe_name,
)

MOST_IMAGES = wandb.Image.MAX_ITEMS
"""How many images of a name and step W&B shows."""
_VIDEOS = ("gif", "mp4", "webm", "ogg")
_CURVE = "wandb/area-under-curve/v0"
_CONFUSION = "wandb/confusion_matrix/v1"


class WandbMedia:
    """Converts media for one batch.

    Args:
        media: Reads the run's media.
        folder: A folder for files until wandb has copied them.
        run: The open run; its files are in its directory.
    """

    def __init__(self, media: RunMedia, folder: Path, run: Any) -> None:
        self._media, self._folder, self._run = media, folder, run
        self._numbers = count()

    def values(self, records: Sequence[Media]) -> dict[str, Any]:
        """The values of a row by name; a list of images stays one, and other lists get a name for each."""
        values: dict[str, Any] = {}
        images: dict[str, list[Any]] = {}
        for record in records:
            found = self._media.convert(record, self._form)
            if found is None:
                continue
            name = safe_name(record.name)
            if isinstance(found, wandb.Image):
                images.setdefault(name, []).append(found)
            else:
                values[f"{name}/{record.index}" if record.index else name] = found
        for name, found in images.items():
            for _ in found[MOST_IMAGES:]:
                self._media.leave_out(f"more than {MOST_IMAGES} images of a name and step")
            values[name] = found[0] if len(found) == 1 else found[:MOST_IMAGES]
        return values

    def table(self, records: Sequence[TableRows]) -> wandb.Table | None:
        """Rows of one table as a table of W&B."""
        rows = [row for record in records for row in self._media.convert(record, self._rows) or ()]
        columns: list[Any] = records[0].columns
        return wandb.Table(columns=columns, data=rows, allow_mixed_types=True) if rows else None

    def _rows(self, record: TableRows) -> list[list[Any]]:
        width = len(record.columns)
        return [[self._cell(cell) for cell in row[:width]] + [None] * (width - len(row)) for row in record.rows]

    def _cell(self, cell: Any) -> Any:
        media = media_of(cell)
        if media is None:
            return cell
        found = self._media.convert(media, self._form)
        return f"({media.type})" if found is None else found

    def _form(self, record: Media) -> Any:
        match record.type, record.format:
            case "figure", "plotly.json":
                return wandb.Plotly(_plotly_figure(self._media.content(record)))
            case "image" | "figure", _:
                return self._image(record)
            case "video", _:
                return self._video(record)
            case "audio", _:
                return wandb.Audio(str(self._file(record)), caption=record.caption or None)
            case "histogram", _:
                return wandb.Histogram(np_histogram=histogram_bins(record))  # type: ignore[arg-type]
            case "html" | "text" | "markdown", _:
                text = self._media.text(record)
                shown = text if record.type == "html" else f"<pre>{html.escape(text)}</pre>"
                return wandb.Html(shown, data_is_not_path=True)
            case "plot", _:
                return _chart(record)
            case "file", _:
                return self._saved(record)
        raise CannotShowError(plural(record.type))

    def _image(self, record: Media) -> wandb.Image:
        path = self._file(record)
        labels = {int(number): str(label) for number, label in (record.data.get("labels") or {}).items()}
        options: dict[str, Any] = {}
        if boxes := record.data.get("boxes"):
            options["boxes"] = {"boxes": _boxes(boxes, labels)}
        masks = {}
        for name in record.data.get("parts") or ():
            if name.startswith("masks/"):
                mask = self._new_path(".png")
                mask.write_bytes(self._media.part(record, name))
                masks[safe_name(name.removeprefix("masks/"))] = {"path": str(mask)} | (
                    {"class_labels": labels} if labels else {}
                )
        if masks:
            options["masks"] = masks
        return wandb.Image(str(path), caption=record.caption or None, **options)

    def _video(self, record: Media) -> wandb.Video:
        if record.format in _VIDEOS:
            path = self._file(record)
        else:
            path = self._new_path(".gif")
            path.write_bytes(self._media.gif(record)[0])
        return wandb.Video(str(path), caption=record.caption or None)

    def _saved(self, record: Media) -> str:
        """Save a file with the run, and return its path there."""
        place = Path("media", "file", safe_name(record.name), file_name(record))
        directory = Path(self._run.dir)
        self._media.copy(record, directory / place)
        if not self._run.disabled:
            self._run.save(glob.escape(str(directory / place)), base_path=str(directory), policy="now")
        return str(place)

    def _file(self, record: Media) -> Path:
        return self._media.copy(record, self._new_path(file_suffix(record)))

    def _new_path(self, suffix: str) -> Path:
        return self._folder / f"{next(self._numbers)}{suffix}"


def artifact_form(event: Event, found: Artifact) -> tuple[wandb.Artifact, list[str]]:
    """Return a version of an artifact as W&B's, and the aliases that the run gave it.

    wandb reads stored files where they are, also later: a blob never changes, and stays as long as the version.

    Raises:
        ArtifactError: A file is missing or damaged.
        ValueError: W&B does not accept its kind or metadata.
    """
    about = {"artifact": f"{found.project}/{found.name}", "version": found.version, "digest": found.digest}
    made = wandb.Artifact(found.name, found.kind, metadata={**found.metadata, "hookline": about})
    for file in found.files:
        if file.uri:
            # As `add_reference(checksum=False)`, which however needs the store's package, or the file itself.
            entry = ArtifactManifestEntry(path=LogicalPath(file.path), ref=file.uri, digest=file.uri, size=file.size)
            made.manifest.add_entry(entry)
        else:
            made.add_file(str(found.path(file.path)), file.path, policy="immutable", skip_cache=True)
    made.finalize()
    return made, aliases_of(event)


def _boxes(boxes: Sequence[Any], labels: dict[int, str]) -> dict[str, Any]:
    """Boxes in W&B's form: classes are numbers, and a label that is a text gets one."""
    numbers = dict(labels)
    free = (number for number in count() if number not in labels)
    data = []
    for box in boxes:
        left, top, right, bottom = box["box"]
        label = box.get("label", "")
        number = label if isinstance(label, int) else _number_of(str(label), numbers, free)
        numbers.setdefault(number, str(label))
        shown: dict[str, Any] = {
            "position": {"minX": left, "maxX": right, "minY": top, "maxY": bottom},
            "domain": "pixel",
            "class_id": number,
            "box_caption": numbers[number],
        }
        if isinstance(score := box.get("score"), int | float):
            shown |= {"scores": {"score": score}}
        data.append(shown)
    return {"box_data": data, "class_labels": numbers}


def _number_of(label: str, numbers: dict[int, str], free: Iterator[int]) -> int:
    known = next((number for number, name in numbers.items() if name == label), None)
    return next(free) if known is None else known


def _chart(record: Media) -> Any:
    kind, title = record.data["plot"], record.caption or record.name
    if kind == "confusion_matrix":
        names = ["Actual", "Predicted", "nPredictions"]
        labels = record.data["labels"]
        counts = record.data["counts"]
        rows = [[a, p, counts[i][j]] for i, a in enumerate(labels) for j, p in enumerate(labels)]
        return _plot(_CONFUSION, names, rows, {name: name for name in names}, {"title": title})
    axes = {"roc": ("fpr", "tpr"), "pr_curve": ("recall", "precision")}[kind]
    titles = dict(zip(("x-axis-title", "y-axis-title"), map(str.capitalize, CURVES[kind]), strict=True))
    fields = {"x": axes[0], "y": axes[1], "class": "class"}
    return _plot(_CURVE, ["class", *axes], curve_points(record), fields, {"title": title, **titles})


def _plot(spec: str, columns: list[Any], rows: list[Any], fields: dict[str, str], texts: dict[str, str]) -> Any:
    table = wandb.Table(columns=columns, data=rows, allow_mixed_types=True)
    return wandb.plot_table(spec, table, fields, texts)


def _plotly_figure(content: bytes) -> Any:
    try:
        import plotly.graph_objects as plotly  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ModuleNotFoundError:
        raise CannotShowError("figures of Plotly without the package plotly") from None
    figure: Callable[..., Any] = plotly.Figure
    return figure(json.loads(content), skip_invalid=True)
