"""Artifacts of a run for sinks: the versions that the run saved, checked, and a count of what is left out.

A version that is missing, deleted or damaged never stops a sink: it is counted as left out, and the first is logged. An
error that may pass, such as a full disk, is raised, and the delivery retries.

Events may come from a shared or received directory. Names are checked before they become paths, a version counts only
if it has the digest that the event names, and every stored file is compared with its digest before it is delivered.
"""

import errno
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from hookline._engine.errors import ArtifactError, HooklineError
from hookline._record.artifact_saving import ARTIFACT_SAVED, ARTIFACT_USED
from hookline._record.artifact_versions import checked_aliases
from hookline._record.artifacts import Artifact, artifact
from hookline._record.reader import JournalEntry
from hookline._record.records import Event
from hookline.sinks.media import RunMedia

Value = TypeVar("Value")
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT})
"""Errors of reading a file that say nothing about the file."""


def saved_artifacts(entries: Iterable[JournalEntry]) -> list[Event]:
    """Return the events for saved artifacts."""
    records = (entry.record for entry in entries)
    return [record for record in records if isinstance(record, Event) and record.name == ARTIFACT_SAVED]


def used_artifacts(entries: Iterable[JournalEntry]) -> list[Event]:
    """Return the events for used artifacts."""
    records = (entry.record for entry in entries)
    return [record for record in records if isinstance(record, Event) and record.name == ARTIFACT_USED]


def leave_out_artifacts(media: RunMedia, entries: Iterable[JournalEntry], what: str = "artifacts") -> None:
    """Count artifacts for a destination that has no place for them."""
    for _ in saved_artifacts(entries):
        media.leave_out(what)


def convert_artifact(media: RunMedia, event: Event, form: Callable[[Artifact], Value]) -> Value | None:
    """Convert the version that an event names to a destination's form; None if there is none, which is counted.

    Raises:
        OSError: Something that a retry may solve.
    """
    try:
        return form(recorded_version(media.run_dir, event))
    except OSError:
        raise
    except Exception as error:  # damaged or deleted, an event of another program, or nothing for the destination
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in _PASSING:
            raise cause from None
        reason = (
            str(error) if isinstance(error, HooklineError) else f"{type(error).__name__}: {error}".rstrip(". ") + "."
        )
        name = f"{event.data.get('artifact')}:{event.data.get('version')}"
        media.leave_out("artifact", f"does not get the artifact {name!r:.200}: {reason}")
        return None


def aliases_of(event: Event) -> list[str]:
    """Return the aliases that the run gave a version when it saved it."""
    return checked_aliases(event.data.get("aliases") or [])


def recorded_version(run_dir: Path, event: Event) -> Artifact:
    """Return the version that an event of a run names.

    Raises:
        UnknownNameError: There is no such version.
        ArtifactError: It is damaged, or another than the run recorded.
    """
    data: dict[str, Any] = event.data
    root = Path(run_dir).resolve().parent.parent
    found = artifact(f"{data.get('artifact')}:{data.get('version')}", root=root)
    if found.digest != data.get("digest"):
        raise ArtifactError(f"{found.id} in {root} is another version: it has another digest.")
    return found
