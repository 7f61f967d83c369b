"""`JournalUploader` and `BlobUploads`: upload a run's journals, and the blobs they refer to, to `hookline serve`.

- A run is claimed for an origin, repeatedly by the same one; a run of another origin is taken.
- Bytes of a journal are sent with their offset. The server compares what it has already instead of writing it twice, so
  a request can be repeated if its response was lost.
- A conflict (the server has different bytes) is refused. A gap (the server has fewer bytes than before) is temporary:
  claiming the run again returns where to continue.
- If a row has more metrics than the server accepts, the refusal lists the accepted ones.

A record that is too large for one request is replaced by one of exactly the same size, so that the offsets after it
stay valid: an event ``left_out`` with the kind and size of the record, padded with spaces. A status keeps its name,
because that says how the run ended. A row loses the metrics that the server does not accept. The local journal is not
changed.

Blobs are sent before the lines that name them. The server is asked which ones it lacks, a thousand at a time, and how
much it has of each, so that an interrupted upload continues. Small blobs share a request, large ones come in pieces. A
blob that is missing or damaged here, or that the server does not accept, is left out: it is counted, its reason is
logged once, and the lines are sent nevertheless.
"""

import contextlib
import gzip
import io
import itertools
import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from urllib.parse import quote

import msgspec

from hookline._engine.errors import RefusedError
from hookline._record.blobs import BlobError, blob_problem, open_blob
from hookline._record.records import DamagedLineError, Event, Status, encode, line_number, seal_line
from hookline.sinks.http import TEMPORARY, WRONG_ADDRESS, EndpointError, HttpClient, redacted

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger("hookline")

MOST_PACKED_BYTES = 8 << 20
"""The server's limit for one request, compressed."""
MOST_FACTS_BYTES = 4 << 20
"""The server's limit for a ``run.json``, uncompressed."""
LEFT_OUT = "left_out"
"""The name of the event, and the key in a shortened ``run.json`` with the sizes of the missing parts."""
BLOB_REQUEST_BYTES = 2 << 20
"""How many bytes of blobs one request has: a slow connection sends them within the server's time limit."""
BLOBS_ASKED = 1000
"""How many blobs one request names; the server's limit."""
_KNOWN_BLOBS = 100_000
_PACKED_FROM = 1000
"""From how many bytes on a report is compressed."""
_ROUNDS = 5
"""How often the server is asked about the same blobs: once is enough, unless it loses what it gets."""
_VERIFIED_BYTES_PER_SECOND = 50e6
"""How fast a server verifies a blob, at least: the response to the last piece comes when it has."""
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


class ArtifactRefusedError(RefusedError):
    """The server does not accept a version of an artifact, now or later."""


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
        self.control_waits = False
        """Whether the last answer said that commands for the run wait."""

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
        self.control_waits = bool(answer.get("control"))
        return int(answer.get("offset", 0))

    def beat(self, run: str, every_seconds: float) -> float:
        """Report that the training process is alive; returns in how many seconds the server wants to know again."""
        code, answer = self._exchange("POST", f"{run}/beat", msgspec.json.encode({"every_seconds": every_seconds}))
        self._require_success(code, run, answer)
        self.control_waits = bool(answer.get("control"))
        accepted = answer.get("every_seconds")
        return float(accepted) if isinstance(accepted, int | float) else every_seconds

    def exchange_control(self, run: str, report: bytes) -> dict[str, Any]:
        """Report what a run offers and how it answered commands; returns what the server says, with new commands."""
        code, answer = self._exchange("POST", f"{run}/control", report, packs=len(report) > _PACKED_FROM)
        self._require_success(code, f"the control of {run}", answer)
        self.control_waits = False
        return answer

    def missing_blobs(self, run: str, sizes: Mapping[str, int]) -> "BlobsAnswer":
        """Ask which blobs the server lacks, and how much it has of each."""
        content = msgspec.json.encode({"blobs": sizes})
        code, answer = self._exchange("POST", f"{run}/blobs", content, expected={404, 405, 409})
        if code in WRONG_ADDRESS:  # the run was claimed at this address: it is a server without blobs
            error = "it is an older `hookline serve`, which receives no blobs"
            return BlobsAnswer({}, dict.fromkeys(sizes, (code, error)))
        self._require_success(code, f"the blobs of {run}", answer)
        return BlobsAnswer.read(answer, "missing", sizes)

    def send_blobs(self, run: str, parts: "list[BlobPart]", *, seconds: float) -> "BlobsAnswer":
        """Send pieces of blobs; returns how much the server has of each now, and those that it refuses.

        Args:
            run: ``<project>/<run>``.
            parts: The pieces.
            seconds: How much longer than usual the response may take.
        """
        head = [{"digest": p.digest, "size": p.size, "offset": p.offset, "length": len(p.content)} for p in parts]
        content = b"".join([msgspec.json.encode({"parts": head}), b"\n", *(part.content for part in parts)])
        code, answer = self._exchange(
            "PUT", f"{run}/blobs", content, expected={409, 413, 422, 507}, packs=False, seconds=seconds
        )
        if not answer.get("refused"):  # otherwise the status is that of the refusal
            self._require_success(code, f"the blobs of {run}", answer)
        return BlobsAnswer.read(answer, "stored", {part.digest: part.size for part in parts})

    def send_artifact(self, run: str, document: Mapping[str, Any]) -> str:
        """Send what a run did with a version of an artifact; returns its name on the server, empty if it is not there.

        Raises:
            ArtifactRefusedError: The server does not accept it.
        """
        content, codes = msgspec.json.encode(document), {400, 404, 405, 409, 413, 422, 507}
        code, answer = self._exchange("PUT", f"{run}/artifacts", content, expected=codes)
        # Without room on the disk it may be accepted later; beyond a limit of the server's it is not.
        if code not in (200, 409) and (code != 507 or answer.get("refused")):
            is_old = code in WRONG_ADDRESS or "offset" in str(answer.get("error"))
            error = "it is an older `hookline serve`, which receives no artifacts" if is_old else answer.get("error")
            raise ArtifactRefusedError(str(error)[:300])
        self._require_success(code, f"an artifact of {run}", answer)
        return str(answer.get("version") or "")

    def _exchange(
        self,
        method: str,
        path: str,
        content: bytes,
        *,
        expected: Collection[int] = (409,),
        packs: bool = True,
        seconds: float = 0.0,
        **query: int,
    ) -> tuple[int, dict[str, Any]]:
        """Send a request to the path of a run.

        Args:
            method: The HTTP method.
            path: Below the path of all runs.
            content: The body.
            expected: Status codes whose meaning depends on the request: they are returned.
            packs: Whether to compress the body.
            seconds: How much longer than usual the response may take.
            query: The parameters.
        """
        kind = "application/octet-stream" if not packs else "application/json"
        response = self.request(
            method,
            _packed(content) if packs else content,
            path=f"/api/journals/{quote(path)}",
            params={"origin": self.origin, **query},
            headers={"Content-Type": "application/x-ndjson" if "offset" in query else kind}
            | ({"Content-Encoding": "gzip"} if packs else {}),
            permanent=expected,
            more_seconds=seconds,
        )
        code, described = response.status_code, self.describe(response)
        if code in expected:
            return code, self._decoded(response)
        if code == 403 and (reason := self._decoded(response).get("error")):
            raise RefusedError(f"{described}: {reason}")
        if code in (401, 403):
            project = path.partition("/")[0]
            raise RefusedError(
                f"{described}. Give the write token of its `hookline serve` as token='${{HOOKLINE_TOKEN}}', or a file "
                f"that holds it as token_file. It must be for the project {project!r}."
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


class BlobPart(NamedTuple):
    """A piece of a blob, or all of it."""

    digest: str
    size: int
    offset: int
    content: bytes


class BlobsAnswer(NamedTuple):
    """What a server answers about blobs: how many bytes it has of each, and which it refuses (status and reason)."""

    held: dict[str, int]
    refused: dict[str, tuple[int, str]]

    @classmethod
    def read(cls, answer: Mapping[str, Any], key: str, sizes: Collection[str]) -> "BlobsAnswer":
        """Read an answer, which is not trusted: only what was asked about, in the expected form."""
        held, refused = answer.get(key), answer.get("refused")
        held = held if isinstance(held, dict) else {}
        refused = refused if isinstance(refused, dict) else {}
        return cls(
            {digest: size for digest, size in held.items() if digest in sizes and isinstance(size, int) and size >= 0},
            {
                digest: (int(each.get("status") or 0), str(each.get("error"))[:300])
                for digest, each in refused.items()
                if digest in sizes and isinstance(each, dict)
            },
        )


class BlobUploads:
    """Sends the blobs of one run, each of them once.

    Args:
        uploader: The connection to the server.
        run_dir: The run's directory.

    Attributes:
        left_out: The blobs that the server does not have, and is not asked to take again.
    """

    def __init__(self, uploader: JournalUploader, run_dir: Path) -> None:
        self.uploader, self._run_dir, self._run = uploader, run_dir, ""
        self._known: set[str] = set()
        self.left_out: set[str] = set()
        self._reported: set[str] = set()

    def open(self, run: str) -> None:
        """Start, or start again after a fault: the server may have lost what it had.

        Args:
            run: ``<project>/<run>`` on the server.
        """
        self._run = run
        self._known.clear()

    def send(self, digests: Iterable[str], between: Callable[[], None] = lambda: None) -> int:
        """Send what the server lacks, and return how many bytes that were.

        Args:
            digests: The digests of the blobs.
            between: Called after each request.

        Raises:
            EndpointError: The server cannot be reached, or is not able to at the moment; what it has, it keeps.
        """
        if len(self._known) > _KNOWN_BLOBS:
            self._known.clear()  # asked again: that costs less than remembering them all
        new = [each for each in dict.fromkeys(digests) if each not in self._known and each not in self.left_out]
        starts = range(0, len(new), BLOBS_ASKED)
        return sum(self._send_some(new[start : start + BLOBS_ASKED], between) for start in starts)

    def _send_some(self, digests: Iterable[str], between: Callable[[], None]) -> int:
        sent, sizes = 0, self._sizes(digests)
        for _ in range(_ROUNDS):
            wanted = {digest: size for digest, size in sizes.items() if digest not in self.left_out}
            answer = self.uploader.missing_blobs(self._run, wanted) if wanted else BlobsAnswer({}, {})
            self._leave_out_refused(answer)
            if not answer.held:
                self._known.update(wanted.keys() - self.left_out)
                return sent
            wanting = {digest: (sizes[digest], held) for digest, held in answer.held.items()}
            sent += self._upload(wanting, between)
        raise EndpointError(f"{redacted(self.uploader.url)} does not keep the blobs of {self._run}")

    def _sizes(self, digests: Iterable[str]) -> dict[str, int]:
        """The sizes of blobs; those that are missing here are left out."""
        sizes: dict[str, int] = {}
        for digest in digests:
            with self._opened(digest) as file:
                if digest not in self.left_out:
                    sizes[digest] = os.fstat(file.fileno()).st_size
        return sizes

    @contextlib.contextmanager
    def _opened(self, digest: str) -> Iterator[BinaryIO]:
        """A blob; one that is missing here is left out, and read as empty."""
        try:
            file: BinaryIO = open_blob(self._run_dir, digest)
        except BlobError as error:
            self._leave_out(digest, "missing", str(error))
            file = io.BytesIO()
        with file:
            yield file

    def _upload(self, wanted: Mapping[str, tuple[int, int]], between: Callable[[], None]) -> int:
        sent = 0
        for parts in self._requests(wanted):
            ends = {part.digest: part.offset + len(part.content) for part in parts}
            verified = sum(part.size for part in parts if ends[part.digest] == part.size)
            answer = self.uploader.send_blobs(self._run, parts, seconds=verified / _VERIFIED_BYTES_PER_SECOND)
            sent += sum(len(part.content) for part in parts)
            self._leave_out_refused(answer)
            between()
            if any(answer.held.get(digest) != end for digest, end in ends.items() if digest not in answer.refused):
                break  # the server has another part of it than it had: ask where to continue
        return sent

    def _requests(self, wanted: Mapping[str, tuple[int, int]]) -> Iterator[list[BlobPart]]:
        """Yield the parts of each request."""
        parts: list[BlobPart] = []
        room = BLOB_REQUEST_BYTES
        for digest, (size, begin) in wanted.items():
            with self._opened(digest) as file:
                file.seek(begin)
                while digest not in self.left_out:
                    begin = file.tell()
                    content = file.read(min(room, size - begin))
                    if not content and begin < size:
                        self._leave_out(digest, "damaged", f"The blob {digest} is shorter than it was.")
                        break
                    parts.append(BlobPart(digest, size, begin, content))
                    room -= len(content)
                    if not room or len(parts) == BLOBS_ASKED:
                        yield parts
                        parts, room = [], BLOB_REQUEST_BYTES
                    if begin + len(content) == size:
                        break
        if parts:
            yield parts

    def _leave_out_refused(self, answer: BlobsAnswer) -> None:
        for digest, (status, error) in answer.refused.items():
            if status == 422:
                # The content that arrived is another. Is it the one here?
                if not (problem := blob_problem(self._run_dir, digest)):
                    raise EndpointError(f"{redacted(self.uploader.url)} got other content than that of blob {digest}")
                self._leave_out(digest, "damaged", f"The blob {digest} {problem}.")
            else:
                self._leave_out(digest, str(status), error)

    def _leave_out(self, digest: str, kind: str, reason: str) -> None:
        self.left_out.add(digest)
        if kind not in self._reported:  # later ones of the kind are only counted
            self._reported.add(kind)
            logger.warning(
                "A blob of %s is left out at %s, and so are others like it: %s",
                self._run_dir,
                redacted(self.uploader.url),
                reason,
            )
