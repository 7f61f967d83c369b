"""``hookline runs media``: lists a run's images, histograms, tables and files, and exports them."""

import csv
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from hookline._engine.errors import ConfigError, OptionError, closest
from hookline._record.blobs import BlobError, blob_problem
from hookline._record.records import clean
from hookline._record.terminal import one_line, plural
from hookline.cli.output import AsJson, console, print_json, table, wrong_input
from hookline.cli.runs.reference import Root, RunArgument, locate, opened
from hookline.cli.runs.text import bytes_text
from hookline.sinks.media import media_of
from hookline.store.media import MediaItem, safe_file_name
from hookline.store.run_info import RunInfo
from hookline.store.runs import Runs

_PAGE_ROWS = 50_000
"""How many rows of a table are in memory while it is exported."""

Name = Annotated[str | None, typer.Option(help="Only media of this name; * matches anything.", show_default=False)]
Type = Annotated[str | None, typer.Option("--type", help="Only image, histogram, table, ...", show_default=False)]
Export = Annotated[
    Path | None,
    typer.Option("--export", help="Write each to a file in this new or empty directory.", show_default=False),
]


def media_command(
    run: RunArgument,
    *,
    name: Name = None,
    kind: Type = None,
    export: Export = None,
    root: Root = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List a run's images, histograms, tables and files, or export them.

    An exported file has the name, the step and, in a list, the index. Its content is compared with its digest: one that
    is missing or damaged is reported, and the exit status is 1. Histograms and plots become JSON, tables CSV; media in
    the cells of a table become files beside it, and the cells have their names.
    """
    problems: list[str] = []
    with wrong_input(as_json=as_json):
        found = opened([locate(root, run)])
        listed = summaries(found, name, kind)
        if not listed and (name or kind):
            known = [row["name"] if name else row["type"] for row in summaries(found)]
            raise OptionError(f"{found[0].id} has no such media. {closest(name or kind or '', known)}")
        files = None if export is None else _export(found[0], listed, export, problems)
    if as_json:
        facts = {"run": found[0].id, "media": listed}
        print_json(facts if files is None else facts | {"files": [str(file) for file in files], "problems": problems})
    elif files is not None:
        size = bytes_text(sum(file.stat().st_size for file in files))
        console().print(one_line(f"{plural(len(files), 'file')} of {found[0].id} in {export} ({size})"), soft_wrap=True)
        for problem in problems:
            console().print(one_line(problem), style="red", soft_wrap=True)
    elif listed:
        console().print(summary_table(listed))
    else:
        console().print(one_line(f"{found[0].id} has no media and no tables."), soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def summaries(found: Runs, name: str | None = None, kind: str | None = None) -> list[dict[str, Any]]:
    """The names of media and tables of one run with their types, numbers, steps and sizes."""
    query = (
        "SELECT name, axis, type, if(type = 'table', count(DISTINCT data ->> '$.table'), count(*)) AS items, "
        "min(step) AS first_step, max(step) AS last_step, sum(size)::BIGINT AS bytes FROM media "
        "WHERE ($name IS NULL OR name LIKE $name ESCAPE '\\') AND ($kind IS NULL OR type = $kind) "
        "GROUP BY name, axis, type ORDER BY name, axis, type"
    )
    escaped = None if name is None else name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    listed = found.sql(query, {"name": escaped and escaped.replace("*", "%"), "kind": kind}).rows()
    tables = found.tables().rows() if any(row["type"] == "table" for row in listed) else []
    for row in listed:
        if row["type"] == "table":
            own = [each for each in tables if (each["name"], each["axis"]) == (row["name"], row["axis"])]
            row["rows"] = sum(each["rows"] for each in own)
            row["last_step"] = max([row["last_step"], *(each["last_step"] for each in own)])
    return listed


def summary_table(listed: list[dict[str, Any]]) -> Table:
    """The same as a table in the terminal."""
    shown = table("name", "type", "items", "steps", "size", numbers=("items", "size"))
    for row in listed:
        first, last = row["first_step"], row["last_step"]
        name = row["name"] if row["axis"] == "train" else f"{row['name']} ({row['axis']})"
        rows = row.get("rows")
        size = bytes_text(row["bytes"]) if row["bytes"] else "" if rows is None else plural(rows, "row")
        steps = f"{first:,}" if first == last else f"{first:,} to {last:,}"
        shown.add_row(one_line(name), one_line(row["type"]), f"{row['items']:,}", steps, size)
    return shown


def _export(info: RunInfo, listed: list[dict[str, Any]], folder: Path, problems: list[str]) -> list[Path]:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not an empty directory. Give another one.")
    files: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for row in listed:
            if row["type"] == "table":
                path = _free_path(folder, safe_file_name(row["name"], "csv"))
                files.append(path)
                cells = _TableMedia(info, row["name"], path, files, problems)
                _write_table(info, row["name"], row["axis"], path, cells)
                continue
            for item in info.media([row["name"]], type=row["type"], axis=row["axis"]):
                path = _free_path(folder, item.file_name)
                try:
                    _write_item(item, path)
                    files.append(path)
                except BlobError as error:
                    problems.append(str(error))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error}") from error
    return files


def _free_path(folder: Path, name: str) -> Path:
    """A path that does not exist yet: safe names of different media can be equal."""
    stem, dot, suffix = name.partition(".")
    candidates: Iterator[str] = (f"{stem}{'' if n == 1 else f'_{n}'}{dot}{suffix}" for n in range(1, 1 << 30))
    return next(path for each in candidates if not os.path.lexists(path := folder / each))


def _write_item(item: MediaItem, path: Path) -> None:
    if not item.blob:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(clean(item.data))) + b"\n")
        return
    # Without reading it into memory: a video may be large.
    if problem := blob_problem(item.run_dir, item.blob):
        raise BlobError(f"{item.name} at step {item.step}: its content {problem}.")
    with item.open() as source, path.open("xb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


class _TableMedia:
    """Writes the media in the cells of a table beside it, each content once."""

    def __init__(self, info: RunInfo, name: str, table: Path, files: list[Path], problems: list[str]) -> None:
        self._info, self._name, self._table, self._files, self._problems = info, name, table, files, problems
        self._folder = table.with_name(f"{table.stem}_media")
        self._written: dict[str, str] = {}

    def shown(self, cell: Any, column: str, row: int) -> Any:
        """The text of a cell: of media, the name of the file; of other cells, the value."""
        if not (isinstance(cell, str) and cell.startswith('{"media":')):
            return cell
        try:
            media = media_of(msgspec.json.decode(cell))
        except (msgspec.DecodeError, RecursionError):
            return cell
        if media is None:
            return cell
        if media.blob in self._written:
            return self._written[media.blob]
        facts: dict[str, Any] = {
            "axis": media.axis,
            "step": media.step,
            "time": media.time,
            "type": media.type,
            "blob": media.blob,
        }
        facts |= {"size": media.size, "format": media.format, "caption": media.caption, "data": media.data}
        item = MediaItem(
            run=self._info.id, writer="", name=self._name, index=row, run_dir=self._info.directory, **facts
        )
        self._folder.mkdir(exist_ok=True)
        stem = safe_file_name(f"{column}-{row}", media.format if media.blob else "json")
        path = _free_path(self._folder, stem)
        try:
            _write_item(item, path)
        except BlobError:
            self._problems.append(f"{self._name}, row {row}, column {column}: the content is missing or damaged.")
            return cell
        self._files.append(path)
        shown = path.relative_to(self._table.parent).as_posix()
        if media.blob:
            self._written[media.blob] = shown
        return shown


def _write_table(info: RunInfo, name: str, axis: str, path: Path, media: _TableMedia) -> None:
    with path.open("x", encoding="utf-8", newline="") as file:
        writer, first = csv.writer(file), 0
        while True:
            columns = info.table(name, axis=axis, limit=_PAGE_ROWS, offset=first).columns()
            if not first:
                writer.writerow(columns)
            rows = list(zip(*columns.values(), strict=True))
            for number, row in enumerate(rows, first):
                writer.writerow([media.shown(cell, str(col), number) for col, cell in zip(columns, row, strict=True)])
            first += len(rows)
            if len(rows) < _PAGE_ROWS:
                return
