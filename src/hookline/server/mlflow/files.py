"""`MlflowFiles`: the artifacts of MLflow's runs and models, through its proxy routes.

A file is a blob, and an event records its path. A run's own files are also media of the run, so the page
shows them: images, sounds, videos, HTML and Markdown by their suffix, what ``log_image`` wrote at its step, what
``log_table`` wrote as the rows of a table, everything else as a file. If a table is written again with more rows, the
new rows are added.

No part of a path is used as a path of the file system.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import msgspec

from hookline._engine.metrics import axis_of
from hookline._record.media_table import Table, table_records
from hookline._record.records import AnyRecord, Media, TableRows, clean
from hookline.importers.media import KINDS
from hookline.server.limits import BodyError
from hookline.server.mlflow.messages import INVALID, MISSING, MlflowError, checked_id
from hookline.server.mlflow.runs import MlflowRuns, NewChange, experiment_of_run
from hookline.server.mlflow.state import ORIGIN, Change, LoggedTable, RunState, StoredFile, model_folder
from hookline.server.received_blobs import BlobPart, ReceivedBlobs

MAX_FILES = 20_000
"""The most files of a run and its models."""
MAX_TABLE_BYTES = 8 << 20
"""A larger file of ``log_table`` is kept as a file only."""
PIECE_BYTES = 8_000_000
_MAX_PATH, _MAX_PART = 1000, 250
_RUN_ID, _MODEL_SUFFIX = 32, 8
_LOGGED_IMAGE = re.compile(
    r"images/(?P<key>[^/]+?)(?P<mark>[%+])step(?P=mark)(?P<step>\d{1,15})(?P=mark)timestamp(?P=mark).*"
)


class Place(NamedTuple):
    """The target of a proxy path: a run, and a file or folder of it or of one of its models."""

    run_id: str
    folder: str
    path: str


def run_of_model(model_id: str) -> str:
    """The id of the run that a model belongs to, by the model's id.

    Raises:
        MlflowError: There can be no such model.
    """
    checked_id("model_id", model_id)
    run_id = model_id[2 : 2 + _RUN_ID]
    if not model_id.startswith("m-") or len(model_id) != 2 + _RUN_ID + _MODEL_SUFFIX or not experiment_of_run(run_id):
        raise MlflowError(MISSING, f"There is no model with the id {model_id!r:.80}.")
    return run_id


def place_of(path: str) -> Place:
    """Parse ``<experiment>/<run>/artifacts/<path>`` or ``<experiment>/models/<model>/artifacts/<path>``.

    Raises:
        MlflowError: It is not a path of a run or a model.
    """
    experiment_id, _, rest = path.partition("/")
    is_model = rest.startswith("models/")
    owner, _, inner = rest.removeprefix("models/").partition("/artifacts")
    if inner and inner[0] != "/":
        raise MlflowError(MISSING, f"There are no artifacts at {path!r:.200}.")
    run_id = run_of_model(owner) if is_model else checked_id("run_id", owner)
    if experiment_of_run(run_id) != experiment_id:
        raise MlflowError(MISSING, f"There are no artifacts at {path!r:.200}.")
    path = checked_path(inner.removeprefix("/").removesuffix("/"))
    return Place(run_id, model_folder(owner) if is_model else "", path)


def checked_path(path: str) -> str:
    """Return the path of a file or a folder; empty for the whole.

    Raises:
        MlflowError: It is absolute, leads out of its folder, or is too long.
    """
    parts = path.split("/") if path else []
    is_safe = path.isprintable() and "\\" not in path and not {"", ".", ".."}.intersection(parts)
    if not is_safe or len(path) > _MAX_PATH or any(len(part.encode(errors="replace")) > _MAX_PART for part in parts):
        raise MlflowError(INVALID, f"path={path!r:.200}: give a relative path of printable characters.")
    return path


@dataclass(slots=True)
class MlflowFiles:
    """Stores and lists files.

    Args:
        clock: Seconds since 1970.
    """

    runs: MlflowRuns
    blobs: ReceivedBlobs
    clock: Callable[[], float] = time.time

    def check_size(self, size: int) -> None:
        """Refuse a partly received file that is too large or does not fit the quota.

        Raises:
            BodyError: The file is refused.
        """
        refusal = self.blobs.refusal(size, size, 0)
        if refusal is not None:
            raise BodyError(refusal.status, refusal.error)

    def check_place(self, project: str, place: Place) -> None:
        """Refuse a file before it is received, if its path is not available.

        Raises:
            MlflowError: There is no such run, it has too many files, or the file has no name.
        """
        if not place.path:
            raise MlflowError(INVALID, "Give the name of a file.")
        with self.runs.reading(project, place.run_id) as state:
            if len(state.files) >= MAX_FILES and place.folder + place.path not in state.files:
                message = f"The run {place.run_id} has {len(state.files):,} files; no others are accepted."
                raise MlflowError(INVALID, message)
            above = place.path
            while above := above.rpartition("/")[0]:
                if place.folder + above in state.files:
                    raise MlflowError(INVALID, f"{above!r:.200} is a file, so nothing can be in it.")

    def add(self, project: str, place: Place, content: IO[bytes], digest: str, size: int) -> None:
        """Store a file.

        Args:
            content: The file.
            digest: Its SHA-256.

        Raises:
            MlflowError: There is no such run, or it has too many files.
            BlobsRefusedError: There is no room for it.
        """
        self.check_place(project, place)
        self._store(project, place.run_id, content, digest, size)
        stored = [StoredFile(place.folder + place.path, digest, size)]

        def note(state: RunState) -> NewChange:
            if place.folder:
                return Change(files=stored), ()
            records, tables = self._media(state, place.path, content, digest, size)
            return Change(files=stored, tables=tables), records

        self.runs.change_from(project, place.run_id, note)

    def listed(self, project: str, place: Place, *, whole_paths: bool = False) -> list[dict[str, Any]]:
        """The files and folders in a folder.

        Args:
            whole_paths: Their paths begin at the run; otherwise at the folder.
        """
        with self.runs.reading(project, place.run_id) as state:
            paths = {path: file.size for path, file in state.files.items()}
        start = place.folder + (f"{place.path}/" if place.path else "")
        found: dict[str, dict[str, Any]] = {}
        for path, size in paths.items():
            if not path.startswith(start) or (not place.folder and path[0] == "/"):
                continue
            name, _, more = path.removeprefix(start).partition("/")
            shown = f"{place.path}/{name}" if whole_paths and place.path else name
            entry = {"path": shown, "is_dir": True} if more else {"path": shown, "is_dir": False, "file_size": size}
            found.setdefault(name, entry)
        return [found[name] for name in sorted(found)]

    def found(self, project: str, place: Place) -> StoredFile:
        """A file.

        Raises:
            MlflowError: There is none.
        """
        with self.runs.reading(project, place.run_id) as state:
            file = state.files.get(place.folder + place.path)
        if file is None:
            raise MlflowError(MISSING, f"The run {place.run_id} has no file {place.path!r:.200}.")
        return file

    def remove(self, project: str, place: Place) -> None:
        """Remove a file, or the files of a folder, from listings; their records stay."""
        path = place.folder + place.path
        start = f"{path}/" if place.path else path
        with self.runs.reading(project, place.run_id) as state:
            own = [each for each in state.files if place.folder or each[0] != "/"]
            gone = [each for each in own if each == path or each.startswith(start)]
        if gone:
            self.runs.change(project, place.run_id, Change(removed_files=gone))

    def _store(self, project: str, run_id: str, content: IO[bytes], digest: str, size: int) -> None:
        content.seek(0)
        offset = 0
        for _ in range(2 + 2 * (size // PIECE_BYTES)):
            piece = content.read(min(PIECE_BYTES, size - offset))
            part = BlobPart(digest, size, offset, len(piece))
            reply = self.blobs.receive(project, run_id, origin=ORIGIN, parts=[part], content=memoryview(piece))
            stored = reply.stored.get(digest, 0)
            if stored >= size:
                return
            # Another upload of the same content may be ahead, or was abandoned.
            offset = stored
            content.seek(offset)
        raise BodyError(503, "The same file is being sent elsewhere. Try again in a moment.")

    def _media(
        self, state: RunState, path: str, content: IO[bytes], digest: str, size: int
    ) -> tuple[list[AnyRecord], dict[str, LoggedTable]]:
        """Return the media records of a file, and the table in it."""
        now = self.clock()
        step = max((at for at, _, _ in state.latest.values()), default=0)
        name, _, suffix = path.rpartition(".")
        suffix = {"jpg": "jpeg", "htm": "html"}.get(suffix.lower(), suffix.lower())[:16] if name else ""
        kind, key = KINDS.get(suffix, "file"), path
        if (image := _LOGGED_IMAGE.fullmatch(path)) is not None:
            if name.endswith("compressed"):  # the same image, smaller, for lists
                return [], {}
            key, step = re.sub("[#~]", "/", image["key"]), int(image["step"])
            checked_path(key)
        elif suffix == "json" and size <= MAX_TABLE_BYTES:
            content.seek(0)
            found = _table_in(content.read())
            if found is not None:
                return _new_rows(found, state.tables.get(path), path, (now, step, axis_of(path)))
        data = {"file": path.rpartition("/")[2]}
        record = Media(time=now, step=step, name=key, type=kind, axis=axis_of(key), blob=digest, size=size, data=data)
        record.format = suffix
        return [record], {}


def _table_in(content: bytes) -> Table | None:
    """Return the table in a file of ``log_table``; None if there is none."""
    try:
        found = json.loads(content)
        if isinstance(found, dict) and found.keys() == {"columns", "data"} and isinstance(found["data"], list):
            rows = [clean(row) for row in found["data"]]
            return Table([str(column) for column in found["columns"]], rows)
    except (ValueError, TypeError, RecursionError):  # another file, or rows that do not fit its columns
        pass
    return None


def _new_rows(
    table: Table, known: LoggedTable | None, path: str, stamp: tuple[float, int, str]
) -> tuple[list[AnyRecord], dict[str, LoggedTable]]:
    new = table.take_new()
    rows = [[_plain_cell(cell) for cell in row] for row in new.rows]
    start, table_id = 0, new.table
    if known is not None and known.rows <= len(rows) and known.digest == _digest(new.columns, rows[: known.rows]):
        start, table_id = known.rows, known.id  # log_table writes the whole table again to add rows
    noted = {path: LoggedTable(table_id, len(rows), _digest(new.columns, rows))}
    added = new._replace(table=table_id, start=start, rows=rows[start:])
    return [record for record in table_records(added, path, stamp) if isinstance(record, TableRows)], noted


def _plain_cell(cell: Any) -> Any:
    """Return a cell without keys that the page would interpret as media."""
    if isinstance(cell, str | int | float | None):
        return cell
    return msgspec.json.encode(clean(cell)).decode() if isinstance(cell, dict | list) else str(cell)


def _digest(columns: list[str], rows: Iterable[list[Any]]) -> str:
    return hashlib.sha256(msgspec.json.encode([columns, clean(list(rows))])).hexdigest()
