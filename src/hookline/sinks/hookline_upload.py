"""`JournalReceiver`: asks `hookline serve` to keep a run's files, and hears what it holds of them.

- A run is claimed for an origin, again and again by the same one; by another one it is taken.
- Bytes of a journal go to an offset. What is held already is compared there and not written twice, so
  that a request whose answer was lost can be repeated.
- Answers mean what they mean for every endpoint: credentials and addresses are refused, faults pass.
  What else the server will not have is refused, in its own words. A conflict (it holds other bytes) is
  refused; a gap (it holds less than it did) passes, because whoever claims the run again hears where to go on.
- Rows with more metrics than the server takes are refused with which ones it does take.

What stands on `hookline serve` in the place of a record, or of facts, that are more than it takes with one request.

A line of a journal is replaced by one of exactly as many bytes, so that everything behind it keeps its place: an event
``left_out`` that says what kind of record it was, and how large, and spaces, which gzip packs to nothing. A status
keeps its word, because that says how the run ended. A row with more metrics than the server takes is replaced by one
without them. The journal here stays as it is.
"""

import gzip
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from hookline._engine.errors import RefusedError
from hookline._record.records import DamagedLineError, Event, Status, encode, line_number, seal_line
from hookline.sinks.http import ADDRESS, PASSES, EndpointError, HttpEndpoint, expanded, shown

if TYPE_CHECKING:
    import httpx


MOST_PACKED_BYTES = 8 << 20
"""How much the server takes with one request, as it is sent."""
MOST_FACTS_BYTES = 4 << 20
"""How much it takes of a ``run.json``, unpacked."""
LEFT_OUT = "left_out"
"""What the event is called, and what a shortened ``run.json`` has the sizes of what is missing under."""
_LARGE_FACT = MOST_FACTS_BYTES // 64
_LEVEL = 1
_WORD = 100


class _Head(msgspec.Struct):
    """What is told of a record that is left out."""

    kind: str = "unknown"
    time: float = 0.0
    step: int | None = None
    name: str = ""
    status: str = ""


class _Row(msgspec.Struct, tag_field="kind", tag="metrics"):
    """A row of metrics whose values stay the bytes that they are."""

    step: msgspec.Raw
    values: dict[str, msgspec.Raw]
    time: msgspec.Raw = msgspec.Raw(b"0.0")
    axis: str = "train"


_row = msgspec.json.Decoder(_Row)


@dataclass(frozen=True, slots=True)
class TakenNames:
    """Which metrics a server takes.

    Args:
        per_row: How many of a row.
        names: Which of the run; None as long as it takes any.
    """

    per_row: int
    names: frozenset[str] | None = None

    def fitting(self, lines: bytes) -> tuple[bytes, int]:
        """Lines of a journal with those metrics only, each as long as before; and how many values are left out."""
        whole = lines.split(b"\n")
        left_out = 0
        for place, line in enumerate(whole):
            try:
                row = _row.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # another kind of record, or none
                continue
            first = itertools.islice(row.values.items(), self.per_row)
            kept = {name: value for name, value in first if self.names is None or name in self.names}
            if len(kept) < len(row.values):
                left_out += len(row.values) - len(kept)
                row.values = kept
                whole[place] = _in_as_many_bytes(msgspec.json.encode(row), line)
        return b"\n".join(whole), left_out


def packed(content: bytes) -> bytes:
    """Content as it is sent: journals become a fifth of their size, at 100 MB a second."""
    return gzip.compress(content, _LEVEL, mtime=0)


def fitting_lines(lines: bytes) -> bytes:
    """Lines of a journal, or where they are one line that is too large, the line in its place."""
    if len(lines) <= MOST_PACKED_BYTES // 2 or len(packed(lines)) <= MOST_PACKED_BYTES:
        return lines
    return _in_as_many_bytes(encode(_in_the_place_of(lines)), lines[:-1]) + b"\n"


def _in_as_many_bytes(line: bytes, before: bytes) -> bytes:
    """A line that is to stand in the place of a longer one, with its number."""
    try:
        number = line_number(before)
    except DamagedLineError:
        number = None
    return line.ljust(len(before)) if number is None else _sealed_to(line, number, len(before))


def _sealed_to(line: bytes, number: int, size: int) -> bytes:
    """A line with its number and checksum, filled up to a size: the server finds no gap where it stands."""
    missing = size - len(seal_line(line, number))
    while True:  # the checksum has a digit less for some of the fillings
        whole = seal_line(line[:-1] + b" " * missing + b"}", number)
        if len(whole) >= size:
            return whole if len(whole) == size else line.ljust(size)
        missing += size - len(whole)


def fitting_facts(description: bytes) -> bytes:
    """What ``run.json`` has; where that is too much, without what is large in it, most likely the configuration."""
    if len(description) <= MOST_FACTS_BYTES:
        return description
    facts = json.loads(description)
    sizes = {name: len(json.dumps(value)) for name, value in facts.items()}
    large = {name: size for name, size in sizes.items() if size > _LARGE_FACT}
    kept = {name: value for name, value in facts.items() if name not in large}
    return json.dumps(kept | {LEFT_OUT: large}).encode()


def _in_the_place_of(line: bytes) -> Event | Status:
    try:
        head = msgspec.json.decode(line, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        head = _Head()
    data = {"kind": head.kind[:_WORD], "bytes": len(line)} | ({"name": head.name[:_WORD]} if head.name else {})
    if head.kind == "status":
        return Status(time=head.time, status=head.status[:_WORD], step=head.step, data={LEFT_OUT: data})
    return Event(time=head.time, name=LEFT_OUT, step=head.step, data=data)


class NamesRefusedError(RefusedError):
    """The server takes no more metrics; ``taken`` says which it does."""

    def __init__(self, message: str, taken: TakenNames) -> None:
        super().__init__(message)
        self.taken = taken


class JournalReceiver(HttpEndpoint):
    """The server at an address, for the runs of one origin.

    Args:
        url: Where `hookline serve` is; may hold ``${NAME}``.
        token: Its write token; may hold ``${NAME}``.
        origin: Who sends: 32 hexadecimal digits.
        token_file: Read for each request instead of the token.
    """

    def __init__(
        self,
        url: str,
        token: str,
        origin: str,
        *,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token_file is None else {}
        super().__init__(
            url, headers, token_file=token_file, ca_file=ca_file, timeout_seconds=timeout_seconds, clock=clock
        )
        self.origin = origin

    def claim(self, run: str, description: bytes) -> dict[str, int] | None:
        """How many bytes of each file are held, of a run that is now this origin's; None where it is another's.

        Args:
            run: ``<project>/<run>``.
            description: What ``run.json`` has.
        """
        code, answer = self._ask("PUT", run, description)
        if code == 409 and answer.get("taken"):
            return None
        self._require(code == 200, run, answer)
        held = answer.get("files")
        return {str(name): int(size) for name, size in held.items()} if isinstance(held, dict) else {}

    def append(self, run: str, file: str, data: bytes, *, offset: int) -> int:
        """How many bytes of a file are held, with those that are to lie behind the offset."""
        code, answer = self._ask("PUT", f"{run}/{file}", data, offset=offset)
        if answer.get("conflict"):
            raise RefusedError(
                f"{shown(self.url)} holds other bytes in {run}/{file} than this run: {answer.get('error')}. Delete the "
                "run there, and everything is delivered anew."
            )
        self._require(code == 200, f"{run}/{file}", answer)
        return int(answer.get("offset", 0))

    def beat(self, run: str, every_seconds: float) -> None:
        """Say that the training process lives."""
        code, answer = self._ask("POST", f"{run}/beat", msgspec.json.encode({"every_seconds": every_seconds}))
        self._require(code == 200, run, answer)

    def _ask(self, method: str, path: str, content: bytes, **query: int) -> tuple[int, dict[str, Any]]:
        import httpx

        assert self._client is not None
        if self._clock() < self._not_before:
            raise EndpointError(f"{shown(self.url)} asked to be left alone for a while")
        url = f"{expanded(self.url, 'url').rstrip('/')}/api/journals/{quote(path)}"
        kind = "application/json" if "offset" not in query else "application/x-ndjson"
        headers = self._headers(path) | {"Content-Type": kind, "Content-Encoding": "gzip"}
        del headers["Idempotency-Key"]  # two pieces of a file are not one message: the offset tells
        try:
            answer = self._client.request(
                method,
                url,
                params={"origin": self.origin, **query},
                content=packed(content),
                headers=headers,
            )
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise RefusedError(f"{shown(self.url)} is no address: {error}. Give url='http://host:8765'.") from error
        except httpx.HTTPError as error:
            raise EndpointError(f"{shown(self.url)}: {type(error).__name__}: {error}".rstrip(".: ")) from error
        self._judge(path, answer)
        return answer.status_code, self._said(answer)

    def _judge(self, key: str, answer: "httpx.Response") -> None:
        code = answer.status_code
        said = f"{shown(self.url)} answers {code} {answer.reason_phrase}".rstrip()
        if code in (401, 403):
            raise RefusedError(
                f"{said}. Give the write token of its `hookline serve` as token='${{HOOKLINE_TOKEN}}', or a file that "
                "holds it as token_file."
            )
        if code == 422 and isinstance(per_row := (facts := self._said(answer)).get("names_per_row"), int):
            names = facts.get("names")
            taken = TakenNames(per_row, frozenset(map(str, names)) if isinstance(names, list) else None)
            raise NamesRefusedError(f"{said} to {key}: {facts.get('error')}", taken)
        if 400 <= code < 500 and code not in PASSES | ADDRESS:
            raise RefusedError(f"{said} to {key}: {answer.text[:300]}")
        if code != 409:  # which means one thing or another, by what was asked
            super()._judge(key, answer)

    def _said(self, answer: "httpx.Response") -> dict[str, Any]:
        try:
            said = answer.json()
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise RefusedError(f"{shown(self.url)} does not answer as `hookline serve` does. Check the address.")
        return said

    def _require(self, is_so: bool, what: str, answer: dict[str, Any]) -> None:
        if not is_so:
            raise EndpointError(f"{shown(self.url)} does not take {what} now: {answer.get('error', 'no reason given')}")
