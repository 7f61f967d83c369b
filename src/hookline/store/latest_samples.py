"""The latest samples of runs, read from the ends of their journals while the tables are still being built.

Reading a million samples takes half a minute, and people open the page for the latest ones. These are decoded here
separately, with the same ids as in the tables. Samples that a later session repeats may be included, because they are
known only when all records are read.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from hookline._record.reader import JOURNAL, JournalEntry
from hookline._record.records import Sample, decode_numbered
from hookline._record.segment import JournalFile, open_journal
from hookline.store.journal_files import regular_journal_files, written_end
from hookline.store.run_info import RunInfo
from hookline.store.tables import TABLES, sample_row

_TAIL_BYTES = 256 << 10
"""How many bytes are read from the end of a file: a few hundred samples of usual length."""
_MAX_FILES = 64
"""The maximum number of files read: the last file of each writer, of the latest runs."""
_PREFIX = b'{"kind":"sample"'


def latest_samples(runs: Iterable[RunInfo], limit: int) -> list[dict[str, Any]]:
    """The samples of the latest steps, as rows of the table of samples."""
    found = [row for info, file in _last_files(runs) for row in _rows(info, file, limit)]
    found.sort(key=lambda row: (row["step"], row["time"]), reverse=True)
    return found[:limit]


def _last_files(runs: Iterable[RunInfo]) -> list[tuple[RunInfo, JournalFile]]:
    last: list[tuple[RunInfo, JournalFile]] = []
    for info in runs:
        by_writer = {file.writer: file for file in regular_journal_files(info.directory / JOURNAL)}
        last += [(info, file) for file in by_writer.values()]
        if len(last) >= _MAX_FILES:
            break
    return last[:_MAX_FILES]


def _rows(info: RunInfo, file: JournalFile, limit: int) -> Iterator[dict[str, Any]]:
    names = TABLES["samples"].columns
    for record, end in _last_samples(file, limit):
        row = dict(zip(names, sample_row(record, file.name, JournalEntry(record, file, end, 0).id), strict=True))
        yield {"run": info.id, **row} | {name: msgspec.json.decode(row[name]) for name in ("rewards", "timings")}


def _last_samples(file: JournalFile, limit: int) -> list[tuple[Sample, int]]:
    """The last samples of a file, each with the offset after its line."""
    end = written_end(file.path)
    start = max(0, end - _TAIL_BYTES)
    try:
        with open_journal(file.path, follow_links=False) as opened:
            content = opened.pread(end - start, start)
    except OSError:
        return []
    lines = []
    for line in content.split(b"\n")[:-1]:
        start += len(line) + 1
        if line.startswith(_PREFIX):  # skip the first line if its beginning is missing
            lines.append((line, start))
    found: list[tuple[Sample, int]] = []
    while lines and len(found) < limit:
        line, after = lines.pop()
        if (record := _decoded(line)) is not None:
            found.append((record, after))
    return found


def _decoded(line: bytes) -> Sample | None:
    try:
        record = decode_numbered(line)[1]
    except msgspec.DecodeError:
        return None
    return record if isinstance(record, Sample) else None
