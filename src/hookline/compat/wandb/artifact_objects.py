"""Tables and images as files of an artifact, in wandb's form: a JSON file, and the files that it names."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookline._record.media_encoding import encode_pillow
from hookline.compat.wandb.data_types import Html, Image, KeptFile
from hookline.compat.wandb.errors import UnsupportedError
from hookline.compat.wandb.table import Table
from hookline.compat.wandb.values import WBValue, plain_value

SUFFIXES = {".table.json": Table, ".image-file.json": Image, ".html-file.json": Html}
"""The names of the files that describe values, and the types of these."""
AddContent = Callable[[str, bytes], Any]
"""Adds a file to the artifact: its name and its content."""
Content = Callable[[str], bytes]
"""Returns the content of a file of the artifact."""


def suffix_of(value: WBValue) -> str:
    """Return the suffix of the file that describes a value.

    Raises:
        UnsupportedError: Values of its type cannot be added.
    """
    found = next((suffix for suffix, kind in SUFFIXES.items() if isinstance(value, kind)), None)
    if found is None:
        raise UnsupportedError(
            f"artifact.add: a {type(value).__name__} cannot be added. Add a wandb.Table, wandb.Image or wandb.Html, or "
            "the file itself with add_file."
        )
    return found


def encode(value: WBValue, add: AddContent) -> dict[str, Any]:
    """Add the files of a value, and return the document that describes it."""
    if isinstance(value, Table):
        rows = [[_encoded_cell(cell, add) for cell in row] for row in value.data]
        columns = [str(name) for name in value.columns]
        facts = {"ncols": len(columns), "nrows": len(rows), "log_mode": value.log_mode}
        return {"_type": "table", "columns": columns, "data": rows, **facts}
    cell = _encoded_cell(value, add)
    assert isinstance(cell, dict)
    return cell


def decode(document: dict[str, Any], content: Content) -> Any:
    """Return the value that a document describes.

    Raises:
        ValueError: The document has another form.
    """
    if document.get("_type") == "table":
        columns, rows = document.get("columns"), document.get("data")
        if not isinstance(columns, list) or not isinstance(rows, list):
            raise ValueError("The table's document has no columns and data.")
        cells = [[_decoded_cell(cell, content) for cell in row] for row in rows]
        return Table(columns=columns, data=cells, allow_mixed_types=True)
    found = _decoded_cell(document, content)
    if not isinstance(found, WBValue):
        raise ValueError(f"The document of a {document.get('_type')!r:.80} is not known.")  # noqa: TRY004 - of a file
    return found


def _encoded_cell(cell: Any, add: AddContent) -> Any:
    if isinstance(cell, Image):
        content = encode_pillow(cell.image, "png", 90)
        caption = {"caption": cell._caption} if cell._caption else {}
        sizes = {"width": cell._width, "height": cell._height}
        return {
            "_type": "image-file",
            "format": "png",
            "path": _added(content, "images", "png", add),
            **sizes,
            **caption,
        }
    if isinstance(cell, Html):
        return {"_type": "html-file", "path": _added(cell.html.encode(), "html", "html", add)}
    if isinstance(cell, KeptFile):
        path = Path(cell._path)
        place = _added(path.read_bytes(), "files", path.suffix.lstrip("."), add)
        return {"_type": cell._log_type, "path": place}
    if isinstance(cell, WBValue):
        raise UnsupportedError(
            f"artifact.add: a cell with a {type(cell).__name__} cannot be added. Log the table instead."
        )
    return plain_value(cell)


def _added(content: bytes, folder: str, suffix: str, add: AddContent) -> str:
    import hashlib

    name = f"media/{folder}/{hashlib.sha256(content).hexdigest()[:20]}.{suffix}"
    add(name, content)
    return name


def _decoded_cell(cell: Any, content: Content) -> Any:
    if not isinstance(cell, dict) or "_type" not in cell:
        return cell
    if cell["_type"] == "image-file":
        import PIL.Image

        picture = PIL.Image.open(io.BytesIO(content(str(cell["path"]))))
        picture.load()
        return Image(picture, caption=cell.get("caption"))
    if cell["_type"] == "html-file":
        return Html(content(str(cell["path"])).decode("utf-8"), data_is_not_path=True)
    return json.loads(json.dumps(cell))
