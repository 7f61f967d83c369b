"""`HooklineSink`: sends a run's journals to `hookline serve`, byte for byte.

Guarantees:

- The server ends up with the journal files as they are here, resume marks and rows that were done again
  included: what `hl.read` gives of its directory is what it gives of this one.
- A record that is more than the server takes with one request is replaced there by a note of its size, and the rest
  goes on; so is what is large in a ``run.json`` that is. Both stay here as they are, and it is said in a warning.
- A row with more metrics than the server takes is sent without them. It stays here as it is; a warning says so, and
  how many values are missing there stands in the sink's state, which `hookline runs verify` and `runs sync` show.
- A batch counts as delivered when the server holds its bytes. A request whose answer was lost, a server
  that was restarted or that lost what it had: the next opening hears what is held, and goes on there.
- A run keeps its place on the server, also when it is resumed or delivered later: its origin follows from
  what ``run.json`` says, and stands in the sink's state. Where another run of the same name came first, this
  one is called ``<run>-2``, ``<run>-3``, ...
- While the training process lives the server hears of it, every five seconds or so: by what is sent, or by a beat.

Other files of the run (checkpoints, what other sinks wrote) stay here.
"""

import hashlib
import importlib.util
import itertools
import logging
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
from hookline._record.reader import JOURNAL, Cursor, JournalEntry, read_lines
from hookline._record.records import DESCRIPTION, Event
from hookline._record.run_directory import METADATA
from hookline._record.segment import JournalFile, journal_files
from hookline._record.sink import Sink, register_sink
from hookline.sinks.hookline_upload import (
    LEFT_OUT,
    JournalReceiver,
    NamesRefusedError,
    TakenNames,
    fitting_facts,
    fitting_lines,
)
from hookline.sinks.http import IN_TOKENS, EndpointError, expanded, require_url
from hookline.sinks.run_progress import RunFacts, read_facts

logger = logging.getLogger("hookline")

TOKEN = "${HOOKLINE_TOKEN}"  # noqa: S105 - where it is taken from
"""The write token, where none is given, and in what is written down of one that was given literally."""
DIFF = "git.diff"
BEAT_SECONDS = 5.0
PIECE_BYTES = 4 << 20
"""How much of a file goes with one request; a line that is longer goes alone."""
_NAME_BYTES = 180
_NOT_IN_NAMES = "/\\\ufffd"
_MOST_TWINS = 1000


@register_sink("hookline")
@dataclass(eq=False)
class HooklineSink(Sink):
    """Sends the run to a server of your own, `hookline serve`.

    Args:
        url: Where the server is, e.g. ``http://host:8765``; ``${NAME}`` in it is taken from the environment.
        token: The server's write token; ``${NAME}`` in it is taken from the environment, and ``HOOKLINE_TOKEN``
            where none is given. One that is given literally is never written down: a later delivery takes it
            from ``HOOKLINE_TOKEN``.
        token_file: A file that holds the token instead, read for each request.
        ca_file: Certificates to trust instead of the system's.
        timeout_seconds: How long to wait for an answer.
        name: What the sink is called in its run.
    """

    batch_records: ClassVar[int] = 20_000  # a batch ends at a megabyte
    mends: ClassVar[bool] = True

    url: str
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    ca_file: Path | None = None
    timeout_seconds: float = 10.0
    name: str | None = None

    def __post_init__(self) -> None:
        require_url(self.url, "url")
        self.url = self.url.rstrip("/")
        if self.token is not None and self.token_file is not None:
            raise OptionError(f"token and token_file={str(self.token_file)!r} are both given: give one of them.")
        if self.token is not None and not _is_reference(self.token):
            _require_token(self.token, "token")
        if not self.timeout_seconds > 0:
            raise OptionError(f"timeout_seconds={self.timeout_seconds!r}: give a number of seconds above 0.")
        self.token_file = Path(self.token_file).absolute() if self.token_file is not None else None
        self.ca_file = Path(self.ca_file).absolute() if self.ca_file is not None else None
        self.clock: Callable[[], float] = time.monotonic
        self._receiver: JournalReceiver | None = None
        self._run = ""
        self._run_dir: Path | None = None
        self._held: dict[str, int] = {}
        self._delivered = Cursor()
        self._state: dict[str, Any] = {}
        self._signed = float("-inf")
        self._has_beaten = False
        self._told: set[str] = set()
        self._taken: TakenNames | None = None

    def check(self) -> None:
        if importlib.util.find_spec("httpx") is None:
            raise MissingExtraError("The sink 'hookline'", "status")
        expanded(self.url, "url")
        if self.token_file is None:
            _require_token(expanded(self.token or TOKEN, "token"), "token")

    def spec(self) -> dict[str, Any]:
        described = super().spec()
        token = described["with"].get("token")
        if token == TOKEN or not _is_reference(token or ""):
            described["with"].pop("token", None)
        return described

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        is_given = settings.get("token") or settings.get("token_file")
        return [f"address {settings.get('url')}", *([] if is_given else ["variable HOOKLINE_TOKEN"])]

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        saved, facts, self._run_dir = state or {}, read_facts(run_dir), run_dir
        origin = saved.get("origin") or _origin(run_dir, facts)
        self._receiver = self._opened(origin)
        project = wire_name(facts.project)
        names = _names(wire_name(facts.id), saved)
        run, self._held = self._claim(project, names, self._fitting_description(run_dir, facts))
        self._run = f"{project}/{run}"
        self._state = {"origin": origin, "project": project, "run": run, "diff": saved.get("diff")}
        self._state |= {LEFT_OUT: saved[LEFT_OUT]} if saved.get(LEFT_OUT) else {}
        self._taken = None  # a server that was started again may take more
        self._has_beaten = False  # the first one says how often there will be one
        self._delivered = Cursor({writer: (number, end) for writer, (number, end) in saved.get("places", {}).items()})
        self._send_diff(run_dir / DIFF)
        self._mend(run_dir / JOURNAL)
        return self._saved()

    def write(self, parcels: Sequence[JournalEntry]) -> dict[str, Any]:
        for file, end in {parcel.file: parcel.end for parcel in parcels}.items():
            self._send(file, end)
            if self._held.get(file.path.name, 0) < end:
                raise EndpointError(f"{self._run}/{file.path.name} is not held up to byte {end}")
            self._delivered.pass_by(file, end)
        if any(isinstance(parcel.record, Event) and parcel.record.name in DESCRIPTION for parcel in parcels):
            self._describe_again()
        return self._saved()

    def _describe_again(self) -> None:
        """Send ``run.json`` again: settings, the summary or notes in it were changed."""
        assert self._receiver is not None
        assert self._run_dir is not None
        self._receiver.claim(self._run, self._fitting_description(self._run_dir, read_facts(self._run_dir)))

    def beat(self) -> None:
        assert self._receiver is not None
        if not self._has_beaten or self.clock() - self._signed >= BEAT_SECONDS:
            self._receiver.beat(self._run, BEAT_SECONDS)
            self._signed, self._has_beaten = self.clock(), True

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()

    def ids(self, state: Any) -> dict[str, str]:
        page = f"{self.url}/#/charts?run={quote(state['project'] + '/' + state['run'], safe='')}"
        return {"project": state["project"], "run": state["run"], "url": page}

    def _opened(self, origin: str) -> JournalReceiver:
        receiver = self._receiver
        if receiver is None or receiver.origin != origin:  # kept when opened again: it knows how long to wait
            receiver = JournalReceiver(
                self.url,
                self.token or TOKEN,
                origin,
                token_file=self.token_file,
                ca_file=self.ca_file,
                timeout_seconds=self.timeout_seconds,
                clock=self.clock,
            )
        receiver.open()
        return receiver

    def _claim(self, project: str, names: Iterator[str], description: bytes) -> tuple[str, dict[str, int]]:
        """The first name that is free or this run's own, and what is held of its files."""
        assert self._receiver is not None
        for name in names:
            held = self._receiver.claim(f"{project}/{name}", description)
            if held is not None:
                return name, held
        raise RefusedError(f"{self.url} has {_MOST_TWINS} other runs of this name in {project}: give the run another.")

    def _send_diff(self, path: Path) -> None:
        """What was not committed, once; again where it changed, or the server lost it."""
        assert self._receiver is not None
        if not path.is_file():
            return
        diff = path.read_bytes()
        digest = hashlib.blake2s(diff, digest_size=8).hexdigest()
        if digest != self._state["diff"] or not self._held:
            self._receiver.append(self._run, DIFF, diff, offset=0)
            self._state["diff"] = digest

    def _send(self, file: JournalFile, end: int | None = None) -> int:
        """What the server does not hold yet of a file, up to an offset, or all lines that there are; how much it is."""
        assert self._receiver is not None
        name, sent = file.path.name, 0
        for offset, data in pieces(file.path, self._held.get(name, 0), end):
            fitting = fitting_lines(data)
            self._held[name] = self._append(name, fitting, offset)
            self._signed = self.clock()
            sent += len(data)
            if fitting != data:
                self._tell(f"The record at byte {offset:,} of {name}, {len(data):,} bytes,")
        return sent

    def _append(self, name: str, lines: bytes, offset: int) -> int:
        """Send lines, without the metrics that the server does not take; how much of the file is held then."""
        assert self._receiver is not None
        while True:
            fitting, left_out = (lines, 0) if self._taken is None else self._taken.fitting(lines)
            try:
                held = self._receiver.append(self._run, name, fitting, offset=offset)
            except NamesRefusedError as refusal:
                if refusal.taken == self._taken:  # it is of another mind about the same rows
                    raise
                self._taken = refusal.taken
                logger.warning("%s They are left out there, and stay in the run.", refusal)
                continue
            if left_out:
                self._state[LEFT_OUT] = self._state.get(LEFT_OUT, 0) + left_out
            return held

    def _fitting_description(self, run_dir: Path, facts: RunFacts) -> bytes:
        description = _description(run_dir, facts)
        fitting = fitting_facts(description)
        if fitting != description:
            self._tell(f"What is large in {METADATA}, {len(description):,} bytes,")
        return fitting

    def _tell(self, what: str) -> None:
        """Say that something was left out, once."""
        if what not in self._told:
            self._told.add(what)
            logger.warning("%s is more than %s takes: it is left out there, and stays in the run.", what, self.url)

    def _mend(self, journal: Path) -> None:
        """Send again what was delivered and is no longer held."""
        for file in journal_files(journal):
            number, end = self._delivered.places.get(file.writer, (0, 0))
            if file.number <= number:
                self.sent_again_bytes += self._send(file, end if file.number == number else None)

    def _saved(self) -> dict[str, Any]:
        return self._state | {"places": dict(self._delivered.places)}


def pieces(path: Path, begin: int, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The lines of a file from one offset to another, as many together as go with a request, each with its offset."""
    gathered: list[bytes] = []
    size = 0
    for line, behind in read_lines(path, begin):
        if end is not None and behind > end:
            break
        if gathered and size + len(line) + 1 > PIECE_BYTES:
            yield begin, _as_text(gathered)
            gathered, begin, size = [], begin + size, 0
        gathered.append(line)
        size += len(line) + 1
    if gathered:
        yield begin, _as_text(gathered)


def _as_text(gathered: list[bytes]) -> bytes:
    """Lines as the server takes them: it refuses what is not UTF-8, so a damaged line is blanks there."""
    data = b"\n".join(gathered) + b"\n"
    try:
        data.decode()
    except UnicodeDecodeError:
        kept = (line if line == line.decode(errors="replace").encode() else b" " * len(line) for line in gathered)
        data = b"\n".join(kept) + b"\n"
    return data


def wire_name(name: str) -> str:
    """A project's or run's name as the server takes it, different for different names."""
    whole = unicodedata.normalize("NFC", name)
    plain = "".join(sign if sign.isprintable() and sign not in _NOT_IN_NAMES else "_" for sign in whole)
    plain = plain.lstrip(" .").rstrip()
    if plain == name and 0 < len(name.encode()) <= _NAME_BYTES:
        return name
    digest = hashlib.blake2s(name.encode("utf-8", "replace"), digest_size=4).hexdigest()
    kept = plain.encode()[: _NAME_BYTES - 9].decode(errors="ignore").strip()
    return f"{kept or 'run'}-{digest}"


def _origin(run_dir: Path, facts: RunFacts) -> str:
    """The same one for the same run, as far as it is known which one it is."""
    return facts.key if (run_dir / METADATA).is_file() else uuid.uuid4().hex


def _names(name: str, saved: dict[str, Any]) -> Iterator[str]:
    """What the run may be called: as before, by its own name, or with a number."""
    if saved.get("run"):
        yield saved["run"]
    yield name
    yield from (f"{name}-{number}" for number in itertools.islice(itertools.count(2), _MOST_TWINS))


def _description(run_dir: Path, facts: RunFacts) -> bytes:
    """What ``run.json`` has; a run that has none is described by its name."""
    try:
        description = (run_dir / METADATA).read_bytes()
        if isinstance(msgspec.json.decode(description), dict):
            return description
    except (OSError, msgspec.DecodeError):
        pass
    return msgspec.json.encode({"id": facts.id, "name": facts.id, "project": facts.project})


def _is_reference(text: str) -> bool:
    return "${" in text


def _require_token(token: str, what: str) -> None:
    if not IN_TOKENS.fullmatch(token):
        raise OptionError(
            f"{what}: it is empty, or has spaces or other characters that no token has. Give it as it is."
        )
