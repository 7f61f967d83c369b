"""`StatusSink`: tells a monitor where the run is, over HTTP or in a file of lines.

Statuses and events are told always, in order, each once: over HTTP by an ``Idempotency-Key`` that stays
the same when a message is sent again, in a file by cutting back. Metrics are a state to a monitor, not a
history: by default each validation's are told, and the latest of the others travel with the heartbeats.

Heartbeats are sent while the training process lives and the run has not ended, at most every
``heartbeat_seconds``, and carry the last completed step: a run that is alive and does not move can be
told from one that does. The first one goes out at the start, so that a wrong address or a bad token is
an error then. A heartbeat that did not get through is not sent again later; the next one says more.

Samples, rewards and lines of logging are not told.
"""

import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args
from urllib.parse import quote

import msgspec

from hookline._engine.errors import MissingExtraError, OptionError, closest
from hookline._record.reader import MAIN, JournalEntry
from hookline._record.records import BOOKKEEPING, Event, Metrics, Status
from hookline._record.sink import Sink, register_sink
from hookline.sinks.http import HttpEndpoint, expanded, require_url, without_secrets
from hookline.sinks.output_files import AppendedFile, loss_of, set_aside
from hookline.sinks.run_progress import CREATED, RunFacts, RunProgress, read_facts
from hookline.sinks.status_formats import FORMATS, Message

Format = Literal["json", "tao", "kubeflow"]
WhichMetrics = Literal["latest", "all", "none"]
KUBEFLOW = "KUBEFLOW_TRAINER_STATUS_"
"""What the names of the variables begin with that Kubeflow Trainer sets in a TrainJob's pods."""


@register_sink("status")
@dataclass(eq=False)
class StatusSink(Sink):
    """Posts the run's status to an HTTP endpoint, or appends it to a file.

    Args:
        endpoint: The address; ``${NAME}`` in it is taken from the environment. With ``format="kubeflow"``
            it may be left out in a TrainJob's pod, which is told address, token and certificate.
        path: A file to append lines to instead, which nobody else writes, e.g. TAO's ``status.json``.
        format: ``json``, ``tao`` or ``kubeflow``.
        headers: Sent with every message. ``${NAME}`` is taken from the environment; a value given literally
            is never written down: a later delivery takes it from ``HOOKLINE_HEADER_<NAME>``.
        component: What reports, where it is not the run's name.
        metrics: ``latest`` tells each validation's and sends the latest others with the heartbeats, ``all``
            tells every row, one message each, ``none`` tells none.
        heartbeat_seconds: How often at most a heartbeat is sent; 0 for none.
        timeout_seconds: How long to wait for an answer.
        skip_rejected: Leave out a message that the endpoint will not have (400, 413, 422, ...), with a warning.
            Otherwise delivery waits there, and the sink shows as refused.
        ca_file: Certificates to trust instead of the system's.
        name: What the sink is called in its run.
    """

    batch_records: ClassVar[int] = 20  # what is told again after a crash, at most

    endpoint: str | None = None
    path: Path | None = None
    format: Format = "json"
    headers: dict[str, str] = field(default_factory=dict)
    component: str = ""
    metrics: WhichMetrics = "latest"
    heartbeat_seconds: float = 10.0
    timeout_seconds: float = 5.0
    skip_rejected: bool = False
    ca_file: Path | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _require_one_of("format", self.format, FORMATS)
        _require_one_of("metrics", self.metrics, get_args(WhichMetrics))
        if self.endpoint is not None:
            require_url(self.endpoint, "endpoint")
        if (self.endpoint is None) == (self.path is None) and not (self.format == "kubeflow" and self.path is None):
            raise OptionError(f"endpoint={self.endpoint!r}, path={self.path!r}: give one of them.")
        if not self.heartbeat_seconds >= 0 or not self.timeout_seconds > 0:
            given = f"heartbeat_seconds={self.heartbeat_seconds!r}, timeout_seconds={self.timeout_seconds!r}"
            raise OptionError(f"{given}: give numbers of seconds; heartbeat_seconds=0 sends none.")
        self.path = Path(self.path).absolute() if self.path is not None else None
        self.ca_file = Path(self.ca_file).absolute() if self.ca_file is not None else None
        self.clock: Callable[[], float] = time.monotonic
        self.pulse: Callable[[], int | None] | None = None
        self.watch: Callable[[], None] | None = None
        self._to: HttpEndpoint | StatusFile | None = None
        self._http: HttpEndpoint | None = None
        self._standing, self._sender = RunProgress(), RunFacts("", "")
        self._begin = 0
        self._beaten = self._told = float("-inf")
        self._untold = False

    def check(self) -> None:
        if self.path is not None:
            return
        if importlib.util.find_spec("httpx") is None:
            raise MissingExtraError("The sink 'status'", "status")
        if self.endpoint is None and KUBEFLOW + "URL" not in os.environ:
            raise OptionError(f"endpoint=None: this is no TrainJob's pod ({KUBEFLOW}URL is not set). Give an endpoint.")
        for what, text in {"endpoint": self.endpoint or "", **self.headers}.items():
            expanded(text, what)

    def spec(self) -> dict[str, Any]:
        described = super().spec()
        if self.headers:
            described["with"]["headers"] = without_secrets(self.headers)
        return described

    def find_loss(self, run_dir: Path, state: Any) -> str:
        return "" if self.path is None else loss_of(self.path, state.get("bytes") or 0, state)

    def set_aside(self, run_dir: Path, state: Any) -> None:
        if self.path is not None:
            set_aside(self.path, state.get("begin", 0), state.get("inode"))

    def is_intact(self) -> bool:
        return not isinstance(self._to, StatusFile) or self._to.is_intact()

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        if settings.get("path") is not None:
            return []
        return [f"address {settings.get('endpoint') or KUBEFLOW + 'URL'}"]

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        saved = state or {}
        self._sender = read_facts(run_dir)
        self._standing = RunProgress.restored(saved.get("standing"))
        if self.path is not None:
            self._to = StatusFile(self.path, saved.get("bytes"), saved)
            self._begin = saved.get("begin", 0) if state else self._to.size
        else:
            self._http = self._http or self._http_endpoint()  # kept when opened again: it knows what was accepted
            self._http.open()
            self._to = self._http
        return self._state()

    def write(self, parcels: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._to is not None
        for parcel in parcels:
            self._standing.note(parcel)
            if self._is_told(parcel):
                key = f"{quote(self._sender.id)}-{parcel.id}"
                self._tell(Message(key, parcel.record.time, parcel.record, *self._who(), parcel.file.name))
            elif isinstance(parcel.record, Metrics):
                self._untold = self.metrics == "latest"
        self._to.settle()
        return self._state()

    def beat(self) -> None:
        if self.watch is not None:  # in every round: a failure is told at once, whenever the next heartbeat is due
            self.watch()
        now = self.clock()
        quiet_since = self._beaten if self._untold else max(self._beaten, self._told)
        if not self.heartbeat_seconds or self._standing.has_ended or now - quiet_since < self.heartbeat_seconds:
            return
        if self.pulse is not None:
            step = self.pulse()
            if step is None or self._standing.status == CREATED:  # what is under way is told first
                return
            self._standing.reach(step, time.time())
        key = f"{quote(self._sender.id)}-beat-{os.getpid()}-{time.time_ns()}"
        self._tell(Message(key, time.time(), None, *self._who()))
        self._beaten, self._untold = now, False

    def close(self) -> None:
        if self._to is not None:
            self._to.close()

    def _is_told(self, parcel: JournalEntry) -> bool:
        match parcel.record:
            case Event() if parcel.record.name in BOOKKEEPING:
                return False
            case Status() | Event():
                return True
            case Metrics():
                return self.metrics == "all" or (
                    self.metrics == "latest" and parcel.record.axis == "eval" and parcel.file.name == MAIN
                )
        return False

    def _who(self) -> tuple[RunProgress, RunFacts, str]:
        return self._standing, self._sender, self.component

    def _tell(self, message: Message) -> None:
        payload = FORMATS[self.format](message)
        if payload is not None and self._to is not None:
            self._to.send(message.id, payload)
            self._told = self.clock()

    def _http_endpoint(self) -> HttpEndpoint:
        given = {
            "timeout_seconds": self.timeout_seconds,
            "skips_rejected": self.skip_rejected,
            "ca_file": self.ca_file,
            "clock": self.clock,
        }
        if self.endpoint is not None:
            return HttpEndpoint(self.endpoint, self.headers, **given)  # type: ignore[arg-type]
        certificates = os.environ.get(KUBEFLOW + "CA_CERT")
        given["ca_file"] = self.ca_file or (Path(certificates) if certificates else None)
        token = os.environ.get(KUBEFLOW + "TOKEN")
        given["token_file"] = Path(token) if token else None
        return HttpEndpoint(os.environ[KUBEFLOW + "URL"], self.headers, **given)  # type: ignore[arg-type]

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"standing": self._standing.saved()}
        if not isinstance(self._to, StatusFile):
            return state
        return state | {"bytes": self._to.size, "begin": self._begin} | self._to.mark()


class StatusFile:
    """A file of messages, one line each."""

    def __init__(self, path: Path, size: int | None, mark: Mapping[str, Any]) -> None:
        self._file = AppendedFile(path, size, mark)

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self._file.size

    def mark(self) -> dict[str, int]:
        """What tells it from another file."""
        return self._file.mark()

    def is_intact(self) -> bool:
        """Whether it still has what was written to it."""
        return self._file.is_intact()

    def send(self, key: str, payload: dict[str, Any]) -> None:
        """Append a message."""
        self._file.append(msgspec.json.encode(payload) + b"\n")

    def settle(self) -> None:
        """Nothing: what does not count is cut off when the file is opened again."""

    def close(self) -> None:
        """Close the file. May be called again."""
        self._file.close()


def _require_one_of(what: str, given: Any, known: Any) -> None:
    if given not in known:
        raise OptionError(f"{what}={given!r} is not known. {closest(str(given), known)}")
