"""`HooklineSink`: sends a run's journals to `hookline serve`, byte for byte.

- The server ends up with identical journal files, including resume marks and rows of repeated steps: `hl.read` of its
  directory gives the same as of this one.
- A record that is too large for one request is replaced there by a note of its size, and so are the large parts of a
  ``run.json`` that is too large. A row loses the metrics that the server does not accept. The local files keep
  everything; a warning reports it, and the sink's state counts the missing values for `hookline runs verify` and
  ``runs sync``.
- A batch counts as delivered when the server has its bytes. If a response was lost, or the server was restarted or lost
  data, the next opening asks what the server has and continues from there.
- A run keeps its name on the server when it is resumed or delivered later: its origin follows from ``run.json`` and is
  kept in the sink's state. If another run of the same name was there first, this one becomes ``<run>-2``, ``<run>-3``.
- Images, files and other blobs that records refer to arrive before the records, and so do those of the code in
  ``environment.json``. What the server has is not sent. A blob that the server does not accept, or that is missing
  here, is left out: a warning reports the first one, and the sink's state counts them.
- Versions of artifacts that the run saves arrive after their records, with their files, aliases and lineage. While
  their files are being sent, new records are sent as well.
- Console lines are sent as well, with the records that come next or with a heartbeat; they are no part of the delivery,
  so a server that refuses them still gets everything else.
- Commands that people send through the server come with its answers, into the run's mailbox (see `ControlRelay`).
- While the training process is alive, the server receives data or a heartbeat about every five seconds, or less often
  if it asks for that.

Other files of the run (checkpoints, output of other sinks) are not sent.
"""

import contextlib
import hashlib
import importlib.util
import itertools
import logging
import stat
import time
import unicodedata
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import msgspec

from hookline._engine.errors import MissingExtraError, OptionError, RefusedError
from hookline._record.blobs import references_in
from hookline._record.console_reader import console_files
from hookline._record.environment import ENVIRONMENT
from hookline._record.reader import JOURNAL, Cursor, JournalEntry, read_lines
from hookline._record.records import DESCRIPTION, Event
from hookline._record.run_directory import METADATA
from hookline._record.segment import JournalFile, journal_files
from hookline._record.sink import Sink, register_sink
from hookline._record.source_code import DIFF
from hookline.sinks.hookline_artifacts import ArtifactUploads, artifact_events, only_artifact_events
from hookline.sinks.hookline_control import ControlRelay
from hookline.sinks.hookline_upload import (
    LEFT_OUT,
    AcceptedMetrics,
    BlobUploads,
    JournalUploader,
    MetricsRefusedError,
    fitting_facts,
    fitting_lines,
)
from hookline.sinks.http import TOKEN_PATTERN, EndpointError, expanded, require_url
from hookline.sinks.run_progress import RunMetadata, read_metadata

logger = logging.getLogger("hookline")

TOKEN = "${HOOKLINE_TOKEN}"  # noqa: S105 - a variable of the environment
"""The default for the write token; it also replaces a literal one in saved settings."""
BESIDE = {"diff": DIFF, "environment": ENVIRONMENT}
"""Files beside the journal that are sent whole, by the name of their digest in the sink's state."""
BLOBS_LEFT_OUT = "blobs_left_out"
"""The key in the sink's state for how many blobs and artifacts the server does not have."""
_BLOBS = "blobs"
"""The key for whether delivered lines refer to blobs; most runs need not look."""
_ARTIFACTS = "artifacts"
"""The key for whether the run saved, named or used artifacts."""
BEAT_SECONDS, MOST_BEAT_SECONDS = 5.0, 60.0
"""The interval of heartbeats; a server to which very many runs send may ask for a longer one."""
_BETWEEN_SECONDS = 1.0
"""How often new records are sent during a long upload of an artifact."""
PIECE_BYTES = 4 << 20
"""How much of a file is sent with one request; a longer line is sent alone."""
_NAME_BYTES = 180
_NOT_IN_NAMES = "/\\\ufffd"
_MOST_TWINS = 1000


@register_sink("hookline")
@dataclass(eq=False)
class HooklineSink(Sink):
    """Sends the run to a server of your own, `hookline serve`.

    Args:
        url: The address of the server, e.g. ``http://host:8765``; ``${NAME}`` in it is taken from the environment.
        token: The server's write token; ``${NAME}`` in it is taken from the environment. By default
            ``${HOOKLINE_TOKEN}``. A literal token is never written to disk: a later delivery takes it from
            ``HOOKLINE_TOKEN``.
        token_file: A file that holds the token instead, read for each request.
        ca_file: Certificates to trust instead of the system's.
        timeout_seconds: How long to wait for a response.
        control: Whether commands that people send through the server reach the run; see [Control](control.md).
        name: The sink's name in its run.
    """

    batch_records: ClassVar[int] = 20_000  # in effect, a batch ends at a megabyte
    repairs: ClassVar[bool] = True

    url: str
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    ca_file: Path | None = None
    timeout_seconds: float = 10.0
    control: bool = True
    name: str | None = None

    def __post_init__(self) -> None:
        require_url(self.url, "url")
        self.url = self.url.rstrip("/")
        if self.token is not None and self.token_file is not None:
            raise OptionError(f"token and token_file={str(self.token_file)!r} are both given: give one of them.")
        if self.token is not None and "${" not in self.token:
            _require_token(self.token)
        if not self.timeout_seconds > 0:
            raise OptionError(f"timeout_seconds={self.timeout_seconds!r}: give a number of seconds above 0.")
        self.token_file = Path(self.token_file).absolute() if self.token_file is not None else None
        self.ca_file = Path(self.ca_file).absolute() if self.ca_file is not None else None
        self.clock: Callable[[], float] = time.monotonic
        self._uploader: JournalUploader | None = None
        self._run = ""
        self._run_dir: Path | None = None
        self._stamps: dict[str, tuple[int, int]] = {}
        self._held: dict[str, int] = {}
        self._delivered = Cursor()
        self._state: dict[str, Any] = {}
        self._last_sent = self._lines_sent = float("-inf")
        self._has_beaten, self._beat_seconds = False, BEAT_SECONDS
        self._warned: set[str] = set()
        self._accepted: AcceptedMetrics | None = None
        self._blobs: BlobUploads | None = None
        self._artifacts: ArtifactUploads | None = None
        self._relay: ControlRelay | None = None
        self._console_refused = False
        self._console_sent: set[str] = set()

    def check(self) -> None:
        if importlib.util.find_spec("httpx") is None:
            raise MissingExtraError("The sink 'hookline'", "status")
        expanded(self.url, "url")
        if self.token_file is None:
            _require_token(expanded(self.token or TOKEN, "token"))

    def spec(self) -> dict[str, Any]:
        described = super().spec()
        token = described["with"].get("token")
        if token == TOKEN or "${" not in (token or ""):
            described["with"].pop("token", None)
        return described

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        is_given = settings.get("token") or settings.get("token_file")
        return [f"address {settings.get('url')}", *([] if is_given else ["variable HOOKLINE_TOKEN"])]

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        saved, metadata, self._run_dir = state or {}, read_metadata(run_dir), run_dir
        # The same origin for the same run, if its metadata identifies it.
        origin = saved.get("origin") or (metadata.key if (run_dir / METADATA).is_file() else uuid.uuid4().hex)
        self._uploader = self._opened(origin)
        project = wire_name(metadata.project)
        run = self._claim(project, wire_name(metadata.id), saved.get("run"), self._description(metadata))
        self._run = f"{project}/{run}"
        self._state = {"origin": origin, "project": project, "run": run, **{key: saved.get(key) for key in BESIDE}}
        self._state |= {key: saved[key] for key in (LEFT_OUT, _BLOBS, _ARTIFACTS, BLOBS_LEFT_OUT) if saved.get(key)}
        self._accepted = None  # a restarted server may accept more
        self._has_beaten = False  # the first beat tells the server the interval
        self._delivered = Cursor({writer: (number, end) for writer, (number, end) in saved.get("places", {}).items()})
        is_first = self._blobs is None  # later openings of this process know what the server has
        if self._blobs is None or self._blobs.uploader is not self._uploader:
            self._blobs = BlobUploads(self._uploader, run_dir)
            self._artifacts = ArtifactUploads(self._blobs, run_dir, wire_name)
            self._relay = ControlRelay(self._uploader, run_dir, self.clock) if self.control else None
        assert self._artifacts is not None
        self._blobs.open(self._run)
        self._artifacts.open(self._run)
        if self._relay is not None:
            self._relay.open(self._run)
        self._stamps.clear()
        if self._send_files_beside(are_lost=not self._held):
            # They may have come, with the commit in run.json, after it was claimed.
            self._uploader.claim(self._run, self._description(read_metadata(run_dir)))
        for file in journal_files(run_dir / JOURNAL):  # sends what was delivered before and the server has lost
            number, end = self._delivered.places.get(file.writer, (0, 0))
            if file.number <= number:
                last = end if file.number == number else None
                if is_first and self._state.get(_BLOBS):
                    self.sent_again_bytes += sum(self._send_blobs(lines) for _, lines in pieces(file.path, 0, last))
                self.sent_again_bytes += self._send(file, last)
                if is_first and self._state.get(_ARTIFACTS):
                    for _, lines in pieces(file.path, 0, last):
                        self._send_artifacts(artifact_events(lines))
        with contextlib.suppress(EndpointError):
            self._exchange_control()  # a run that is over has nothing else to send that would bring its answers
        return self._saved()

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        # The last entry of each file: bytes are sent up to its end, not record by record.
        for file, end in {entry.file: entry.end for entry in entries}.items():
            self._send(file, end)
            if self._held.get(file.path.name, 0) < end:
                raise EndpointError(f"The server does not have {self._run}/{file.path.name} up to byte {end}")
            self._delivered.pass_by(file, end)
        self._send_artifacts(only_artifact_events(entry.record for entry in entries))
        has_new_files = self._send_files_beside()
        if has_new_files or any(isinstance(e.record, Event) and e.record.name in DESCRIPTION for e in entries):
            # Settings, the summary, notes or the commit in run.json have changed.
            assert self._uploader is not None
            assert self._run_dir is not None
            self._uploader.claim(self._run, self._description(read_metadata(self._run_dir)))
        self._send_console()
        with contextlib.suppress(EndpointError):  # the records have arrived; commands are asked for again
            self._exchange_control()
        return self._saved()

    def beat(self) -> None:
        assert self._uploader is not None
        with contextlib.suppress(EndpointError):  # it is sent with the next records
            self._send_console()
        self._exchange_control()
        if not self._has_beaten or self.clock() - self._last_sent >= self._beat_seconds:
            accepted = self._uploader.beat(self._run, BEAT_SECONDS)
            self._beat_seconds = min(max(accepted, BEAT_SECONDS), MOST_BEAT_SECONDS)
            self._last_sent, self._has_beaten = self.clock(), True

    def _exchange_control(self) -> None:
        if self._relay is not None and self._relay.exchange(self._last_sent):
            self._last_sent = self.clock()

    def close(self) -> None:
        if self._uploader is not None:
            self._uploader.close()

    def ids(self, state: Any) -> dict[str, str]:
        page = f"{self.url}/#/charts?run={quote(state['project'] + '/' + state['run'], safe='')}"
        return {"project": state["project"], "run": state["run"], "url": page}

    def _opened(self, origin: str) -> JournalUploader:
        uploader = self._uploader
        if uploader is None or uploader.origin != origin:  # kept when reopened: it knows how long to wait
            uploader = JournalUploader(
                self.url,
                self.token or TOKEN,
                origin,
                token_file=self.token_file,
                ca_file=self.ca_file,
                timeout_seconds=self.timeout_seconds,
                clock=self.clock,
            )
        uploader.open()
        return uploader

    def _claim(self, project: str, name: str, previous: str | None, description: bytes) -> str:
        """Claim the previous name, the run's own, or the first numbered one that is free, and return it."""
        assert self._uploader is not None
        numbered = (f"{name}-{number}" for number in range(2, _MOST_TWINS + 2))
        for candidate in itertools.chain([previous] if previous else [], [name], numbered):
            held = self._uploader.claim(f"{project}/{candidate}", description)
            if held is not None:
                self._held = held
                return candidate
        raise RefusedError(f"{self.url} has {_MOST_TWINS} other runs of this name in {project}. Rename the run.")

    def _send_blobs(self, lines: bytes) -> int:
        """Send the blobs that lines refer to, and return the number of bytes."""
        digests = references_in(lines)
        if not digests:
            return 0
        assert self._blobs is not None
        self._state[_BLOBS] = True
        sent = self._blobs.send(digests)
        self._last_sent = self.clock()
        return sent

    def _send_artifacts(self, events: list[Event]) -> None:
        assert self._artifacts is not None
        for event in events:
            self._state[_ARTIFACTS] = True
            self._artifacts.send(event, self._send_new_lines)
            self._last_sent = self.clock()

    def _send_new_lines(self) -> None:
        """Send records between the requests of a long upload; they count as delivered when their batch is written."""
        assert self._run_dir is not None
        if self.clock() - self._lines_sent >= _BETWEEN_SECONDS:
            for file in journal_files(self._run_dir / JOURNAL):
                self._send(file)
            self._send_console()
            self._lines_sent = self.clock()

    def _send_files_beside(self, *, are_lost: bool = False) -> bool:
        """Send the files beside the journal that are new, changed or lost; returns whether there were any."""
        assert self._uploader is not None
        assert self._run_dir is not None
        assert self._blobs is not None
        were_sent = False
        for key, name in BESIDE.items():
            path = self._run_dir / name
            try:
                found = path.lstat()
                stamp = (found.st_mtime_ns, found.st_size)
                if self._stamps.get(key) == stamp or not stat.S_ISREG(found.st_mode):
                    continue
                content = path.read_bytes()
            except OSError:
                continue
            digest = hashlib.blake2s(content, digest_size=8).hexdigest()
            try:
                if name == ENVIRONMENT:
                    self._blobs.send(references_in(content))  # before the file that names them
                if digest != self._state[key] or are_lost:
                    self._uploader.append(self._run, name, content, offset=0)
            except RefusedError as error:
                if name == DIFF:
                    raise
                # A server of an earlier version, or the file is too large: the run is delivered without it.
                logger.warning("%s is not sent: %s", name, error)
            if digest != self._state[key] or are_lost:
                self._state[key], were_sent = digest, True
            self._stamps[key] = stamp
        return were_sent

    def _send(self, file: JournalFile, end: int | None = None) -> int:
        """Send what the server does not have of a file, up to an offset or to its end; return the number of bytes."""
        name, sent = file.path.name, 0
        for offset, data in pieces(file.path, self._held.get(name, 0), end):
            sent += self._send_blobs(data)  # before the lines that name them
            fitting = fitting_lines(data)
            self._held[name] = self._append(name, fitting, offset)
            self._last_sent = self.clock()
            sent += len(data)
            if fitting != data:
                self._warn_once(f"The record at byte {offset:,} of {name}, {len(data):,} bytes,")
        return sent

    def _send_console(self) -> None:
        """Send the console lines that the server does not have."""
        assert self._run_dir is not None
        if self._console_refused:
            return
        files = console_files(self._run_dir)
        newest = {file.writer: file.number for file in files}
        try:
            for file in files:
                if file.path.name not in self._console_sent:
                    self._send(file)
                    if file.number < newest[file.writer]:  # complete: it does not grow any more
                        self._console_sent.add(file.path.name)
        except RefusedError as error:
            self._console_refused = True
            logger.warning("Console lines are not sent: %s", error)

    def _append(self, name: str, lines: bytes, offset: int) -> int:
        """Send lines without the metrics that the server does not accept; return how much of the file it has then."""
        assert self._uploader is not None
        while True:
            fitting, left_out = (lines, 0) if self._accepted is None else self._accepted.filter(lines)
            try:
                held = self._uploader.append(self._run, name, fitting, offset=offset)
            except MetricsRefusedError as refusal:
                if refusal.accepted == self._accepted:  # it refuses rows that fit its own limits
                    raise
                self._accepted = refusal.accepted
                logger.warning("%s They are left out there, but stay in the run.", refusal)
                continue
            if left_out:
                self._state[LEFT_OUT] = self._state.get(LEFT_OUT, 0) + left_out
            return held

    def _description(self, metadata: RunMetadata) -> bytes:
        """The content of ``run.json``, without parts that are too large; a run without one is described by its name."""
        assert self._run_dir is not None
        try:
            description = (self._run_dir / METADATA).read_bytes()
            is_valid = isinstance(msgspec.json.decode(description), dict)
        except (OSError, msgspec.DecodeError):
            is_valid = False
        if not is_valid:
            return msgspec.json.encode({"id": metadata.id, "name": metadata.id, "project": metadata.project})
        fitting = fitting_facts(description)
        if fitting != description:
            self._warn_once(f"The large part of {METADATA}")
        return fitting

    def _warn_once(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s is more than %s accepts: it is left out there, but stays in the run.", what, self.url)

    def _saved(self) -> dict[str, Any]:
        if self._blobs is not None and self._artifacts is not None:
            left_out = len(self._blobs.left_out) + len(self._artifacts.left_out)
            if left_out or self._state.get(BLOBS_LEFT_OUT):
                self._state[BLOBS_LEFT_OUT] = left_out
        return self._state | {"places": dict(self._delivered.places)}


def pieces(path: Path, begin: int, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Splits the lines of a file between two offsets into requests, each with its offset."""
    gathered: list[bytes] = []
    size = 0
    for line, behind in read_lines(path, begin):
        if end is not None and behind > end:
            break
        if gathered and size + len(line) + 1 > PIECE_BYTES:
            yield begin, _as_utf8(gathered)
            gathered, begin, size = [], begin + size, 0
        gathered.append(line)
        size += len(line) + 1
    if gathered:
        yield begin, _as_utf8(gathered)


def _as_utf8(gathered: list[bytes]) -> bytes:
    """Joins lines, with spaces in place of a damaged line: the server accepts only UTF-8."""
    data = b"\n".join(gathered) + b"\n"
    try:
        data.decode()
    except UnicodeDecodeError:
        kept = (line if line == line.decode(errors="replace").encode() else b" " * len(line) for line in gathered)
        data = b"\n".join(kept) + b"\n"
    return data


def wire_name(name: str) -> str:
    """Converts the name of a project or run to one that the server accepts; different names stay different."""
    whole = unicodedata.normalize("NFC", name)
    plain = "".join(sign if sign.isprintable() and sign not in _NOT_IN_NAMES else "_" for sign in whole)
    plain = plain.lstrip(" .").rstrip()
    if plain == name and 0 < len(name.encode()) <= _NAME_BYTES:
        return name
    digest = hashlib.blake2s(name.encode("utf-8", "replace"), digest_size=4).hexdigest()
    kept = plain.encode()[: _NAME_BYTES - 9].decode(errors="ignore").strip()
    return f"{kept or 'run'}-{digest}"


def _require_token(token: str) -> None:
    if not TOKEN_PATTERN.fullmatch(token):
        raise OptionError("token: it is empty, or has spaces or other characters that a token cannot have. Check it.")
