"""`JournalUploader`: uploads a run's files to `hookline serve`.

- A run is claimed for an origin, repeatedly by the same one; a run of another origin is taken.
- Bytes of a journal are sent with their offset. The server compares what it has already instead of writing it twice, so
  a request can be repeated if its response was lost.
- A conflict (the server has different bytes) is refused. A gap (the server has fewer bytes than before) is temporary:
  claiming the run again returns where to continue.
- If a row has more metrics than the server accepts, the refusal lists the accepted ones.

A record that is too large for one request is replaced by one of exactly the same size, so that the offsets behind it
stay valid: an event ``left_out`` with the kind and size of the record, padded with spaces. A status keeps its name,
because that says how the run ended. A row loses the metrics that the server does not accept. The local journal is not
changed.
"""

import gzip
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from hookline._engine.errors import RefusedError
from hookline._record.records import DamagedLineError, Event, Status, encode, line_number, seal_line
from hookline.sinks.http import TEMPORARY, WRONG_ADDRESS, EndpointError, HttpClient, redacted

if TYPE_CHECKING:
    import httpx

MOST_PACKED_BYTES = 8 << 20
"""The server's limit for one request, compressed."""
MOST_FACTS_BYTES = 4 << 20
"""The server's limit for a ``run.json``, uncompressed."""
LEFT_OUT = "left_out"
"""The name of the event, and the key in a shortened ``run.json`` with the sizes of the missing parts."""
_LARGE_FACT = MOST_FACTS_BYTES // 64
_GZIP_LEVEL = 1  # a fifth of a journal's size, at 100 MB per second
_MOST_LETTERS = 100


class _Head(msgspec.Struct):
    """The fields of a record that its replacement keeps."""

    kind: str = "unknown"
    time: float = 0.0
    step: int | None = None
    name: str = ""
    status: str = ""


class _Row(msgspec.Struct, tag_field="kind", tag="metrics"):
    """A row of metrics whose values are not decoded."""

    step: msgspec.Raw
    values: dict[str, msgspec.Raw]
    time: msgspec.Raw = msgspec.Raw(b"0.0")
    axis: str = "train"


_row = msgspec.json.Decoder(_Row)


@dataclass(frozen=True, slots=True)
class AcceptedMetrics:
    """The metrics that a server accepts.

    Args:
        per_row: How many in one row.
        names: Their names; None if it accepts any.
    """

    per_row: int
    names: frozenset[str] | None = None

    def filter(self, lines: bytes) -> tuple[bytes, int]:
        """Lines of a journal with only these metrics, each as long as before, and the number of dropped values."""
        filtered = lines.split(b"\n")
        left_out = 0
        for index, line in enumerate(filtered):
            try:
                row = _row.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # another kind of record, or damage
                continue
            first = itertools.islice(row.values.items(), self.per_row)
            kept = {name: value for name, value in first if self.names is None or name in self.names}
            if len(kept) < len(row.values):
                left_out += len(row.values) - len(kept)
                row.values = kept
                filtered[index] = _padded(msgspec.json.encode(row), line)
        return b"\n".join(filtered), left_out


def _packed(content: bytes) -> bytes:
    return gzip.compress(content, _GZIP_LEVEL, mtime=0)


def fitting_lines(lines: bytes) -> bytes:
    """Lines of a journal; a single line that is too large is replaced."""
    if len(lines) <= MOST_PACKED_BYTES // 2 or len(_packed(lines)) <= MOST_PACKED_BYTES:
        return lines
    try:
        head = msgspec.json.decode(lines, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        head = _Head()
    data: dict[str, Any] = {"kind": head.kind[:_MOST_LETTERS], "bytes": len(lines)}
    if head.name:
        data["name"] = head.name[:_MOST_LETTERS]
    record: Event | Status = Event(time=head.time, name=LEFT_OUT, step=head.step, data=data)
    if head.kind == "status":
        status = head.status[:_MOST_LETTERS]
        record = Status(time=head.time, status=status, step=head.step, data={LEFT_OUT: data})
    return _padded(encode(record), lines[:-1]) + b"\n"


def _padded(line: bytes, replaced: bytes) -> bytes:
    """A line with the length and the line number of the one it replaces, so that the server sees no gap."""
    size = len(replaced)
    try:
        number = line_number(replaced)
    except DamagedLineError:
        number = None
    if number is None:
        return line.ljust(size)
    padding = size - len(seal_line(line, number))
    while True:  # the checksum, which depends on the padding, may be a digit shorter
        sealed = seal_line(line[:-1] + b" " * padding + b"}", number)
        if len(sealed) >= size:
            return sealed if len(sealed) == size else line.ljust(size)
        padding += size - len(sealed)


def fitting_facts(description: bytes) -> bytes:
    """A ``run.json``; if it is too large, without its large parts, most likely the configuration."""
    if len(description) <= MOST_FACTS_BYTES:
        return description
    facts = json.loads(description)
    sizes = {name: len(json.dumps(value)) for name, value in facts.items()}
    large = {name: size for name, size in sizes.items() if size > _LARGE_FACT}
    kept = {name: value for name, value in facts.items() if name not in large}
    return json.dumps(kept | {LEFT_OUT: large}).encode()


class MetricsRefusedError(RefusedError):
    """The server does not accept all metrics; ``accepted`` are those that it does."""

    def __init__(self, message: str, accepted: AcceptedMetrics) -> None:
        super().__init__(message)
        self.accepted = accepted


class JournalUploader(HttpClient):
    """Uploads the runs of one origin to a server.

    Args:
        url: The address of `hookline serve`; may contain ``${NAME}``.
        token: Its write token; may contain ``${NAME}``. Not used with a ``token_file``.
        origin: Identifies the sender: 32 hexadecimal digits.
        options: Those of `HttpClient`.
    """

    def __init__(self, url: str, token: str, origin: str, *, token_file: Path | None = None, **options: Any) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token_file is None else {}
        super().__init__(url, headers, option="url", token_file=token_file, **options)
        self.origin = origin

    def claim(self, run: str, description: bytes) -> dict[str, int] | None:
        """Claim a run and return how many bytes of each file the server has; None if it belongs to another origin.

        Args:
            run: ``<project>/<run>``.
            description: The content of ``run.json``.
        """
        code, answer = self._exchange("PUT", run, description)
        if code == 409 and answer.get("taken"):
            return None
        self._require_success(code, run, answer)
        held = answer.get("files")
        return {str(name): int(size) for name, size in held.items()} if isinstance(held, dict) else {}

    def append(self, run: str, file: str, data: bytes, *, offset: int) -> int:
        """Send bytes of a file and return how many of it the server has then."""
        code, answer = self._exchange("PUT", f"{run}/{file}", data, offset=offset)
        if answer.get("conflict"):
            raise RefusedError(
                f"{redacted(self.url)} has different bytes in {run}/{file} than this run: {answer.get('error')}. "
                "Delete the run there to deliver everything again."
            )
        self._require_success(code, f"{run}/{file}", answer)
        return int(answer.get("offset", 0))

    def beat(self, run: str, every_seconds: float) -> None:
        """Report that the training process is alive."""
        code, answer = self._exchange("POST", f"{run}/beat", msgspec.json.encode({"every_seconds": every_seconds}))
        self._require_success(code, run, answer)

    def _exchange(self, method: str, path: str, content: bytes, **query: int) -> tuple[int, dict[str, Any]]:
        response = self.request(
            method,
            _packed(content),
            path=f"/api/journals/{quote(path)}",
            params={"origin": self.origin, **query},
            headers={
                "Content-Type": "application/x-ndjson" if "offset" in query else "application/json",
                "Content-Encoding": "gzip",
            },
            permanent={409},  # its meaning depends on the request
        )
        code, described = response.status_code, self.describe(response)
        if code in (401, 403):
            raise RefusedError(
                f"{described}. Give the write token of its `hookline serve` as token='${{HOOKLINE_TOKEN}}', or a file "
                "that holds it as token_file."
            )
        if code in WRONG_ADDRESS or response.is_redirect:
            raise RefusedError(f"{described}. Check the address of the endpoint.")
        if code == 422 and isinstance(per_row := (answer := self._decoded(response)).get("names_per_row"), int):
            names = answer.get("names")
            accepted = AcceptedMetrics(per_row, frozenset(map(str, names)) if isinstance(names, list) else None)
            raise MetricsRefusedError(f"{described} to {path}: {answer.get('error')}", accepted)
        if 400 <= code < 500 and code not in TEMPORARY:
            raise RefusedError(f"{described} to {path}: {response.text[:300]}")
        return code, self._decoded(response)

    def _decoded(self, response: "httpx.Response") -> dict[str, Any]:
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise RefusedError(f"{redacted(self.url)} does not answer as `hookline serve` does. Check the address.")
        return answer

    def _require_success(self, code: int, what: str, answer: dict[str, Any]) -> None:
        if code != 200:
            error = answer.get("error", "no reason given")
            raise EndpointError(f"{redacted(self.url)} does not accept {what} at the moment: {error}")
