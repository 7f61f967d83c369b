"""`ArtifactUploads`: sends what a run did with artifacts to `hookline serve`: versions, aliases and uses.

- A version is sent when its files are there, which are blobs (see `BlobUploads`): those that the server has are not
  sent, and an interrupted upload continues.
- The server checks everything, and may be asked again: a repeated request changes nothing.
- A version that is missing, deleted or damaged here, or that the server does not accept, is left out: it is counted,
  and the first reason of each kind is logged.
- A used version that the server does not have is not sent: only the run that saved it sends it. Its use is not noted
  there.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from hookline._engine.errors import ArtifactError, OptionError, UnknownNameError
from hookline._record.artifact_saving import ARTIFACT_SAVED, ARTIFACT_USED
from hookline._record.artifact_versions import parse_reference
from hookline._record.artifacts import Artifact
from hookline._record.records import ARTIFACT_TAGGED, Event, decode
from hookline.sinks.artifacts import aliases_of, recorded_version
from hookline.sinks.hookline_upload import ArtifactRefusedError, BlobUploads, JournalUploader
from hookline.sinks.http import redacted

logger = logging.getLogger("hookline")

_ROLES = {ARTIFACT_SAVED: "saved", ARTIFACT_TAGGED: "tagged", ARTIFACT_USED: "used"}


def artifact_events(lines: bytes) -> list[Event]:
    """Return the events for artifacts in lines of a journal."""
    found = []
    for line in lines.split(b"\n") if b'"artifact_' in lines else ():
        if b'"artifact_' in line:
            try:
                record = decode(line)
            except msgspec.DecodeError:
                continue
            found += only_artifact_events([record])
    return found


def only_artifact_events(records: Iterable[Any]) -> list[Event]:
    """Return the events for artifacts among records."""
    return [record for record in records if isinstance(record, Event) and record.name in _ROLES]


class ArtifactUploads:
    """Sends the artifacts of one run.

    Args:
        blobs: Sends their files.
        run_dir: The run's directory.
        wire_name: Returns the name of a project on the server.

    Attributes:
        left_out: The versions that the server does not have.
    """

    def __init__(self, blobs: BlobUploads, run_dir: Path, wire_name: Callable[[str], str]) -> None:
        self._blobs, self._run_dir, self._wire_name, self._run = blobs, run_dir, wire_name, ""
        self.left_out: set[str] = set()
        self._sent: set[bytes] = set()
        self._reported: set[str] = set()

    def open(self, run: str) -> None:
        """Start, or start again after a fault: the server may have lost what it had.

        Args:
            run: ``<project>/<run>`` on the server.
        """
        self._run = run
        self._sent.clear()

    def send(self, event: Event, between: Callable[[], None] = lambda: None) -> int:
        """Send what an event tells, and return how many bytes that were.

        Args:
            between: Called between the requests of a long upload.

        Raises:
            EndpointError: The server cannot be reached, or is not able to at the moment; what it has, it keeps.
        """
        key = msgspec.json.encode(event)
        name = f"{event.data.get('artifact')}:{event.data.get('version')}"
        if key in self._sent:
            return 0
        sent = 0
        try:
            document = self._document(event)
            if event.name == ARTIFACT_SAVED:
                found = recorded_version(self._run_dir, event)
                sent += self._send_files(found, between)
                document |= {"manifest": _manifest(found)}
            version = self._uploader.send_artifact(self._run, document)
            if event.name == ARTIFACT_USED and not version:
                logger.info("%s does not have the artifact %s: its use is not noted there.", self._place, name)
            self.left_out.discard(name)
            sent += len(key)
        except (ArtifactRefusedError, ArtifactError, UnknownNameError, OptionError) as error:
            self._leave_out(name, error)
        self._sent.add(key)
        return sent

    @property
    def _uploader(self) -> JournalUploader:
        return self._blobs.uploader

    @property
    def _place(self) -> str:
        return redacted(self._uploader.url)

    def _document(self, event: Event) -> dict[str, Any]:
        reference = parse_reference(f"{event.data.get('artifact')}:{event.data.get('version')}")
        document: dict[str, Any] = {"role": _ROLES[event.name], "name": reference.name, "time": event.time}
        document |= {"digest": str(event.data.get("digest")), "project": self._wire_name(reference.project)}
        return document | ({} if event.name == ARTIFACT_USED else {"aliases": aliases_of(event)})

    def _send_files(self, found: Artifact, between: Callable[[], None]) -> int:
        digests = [file.blob for file in found.files if file.blob]
        sent = self._blobs.send(digests, between)
        if lacking := self._blobs.left_out.intersection(digests):
            raise ArtifactRefusedError(f"the server does not have {len(lacking):,} of its files")
        return sent

    def _leave_out(self, name: str, error: Exception) -> None:
        self.left_out.add(name)
        kind = type(error).__name__
        if kind not in self._reported:  # later ones of the kind are only counted
            self._reported.add(kind)
            logger.warning("%s does not get the artifact %r, and others like it: %s", self._place, name, error)


def _manifest(found: Artifact) -> dict[str, Any]:
    facts = {"kind": found.kind, "metadata": found.metadata, "files": found.files}
    return facts | {"number": found.number, "step": found.step}
