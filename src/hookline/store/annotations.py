"""People's annotations of samples: good, bad, and notes.

They are kept in ``annotations.json`` beside ``run.json``, as edits of a run are: a live run can be annotated, and its
process overwrites nothing. The file is replaced as a whole under a lock, so concurrent changes are all kept.
Annotations stay where they are made: sinks do not send them.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from hookline._engine.errors import ConfigError, OptionError
from hookline._record import files
from hookline._record.records import clean

ANNOTATIONS_FILE = "annotations.json"
LABELS = ("good", "bad")
MAX_NOTE, MAX_ANNOTATIONS = 10_000, 100_000
_MAX_ID = 300
_MAX_BYTES = 64 << 20
_LOCK_SECONDS = 10.0


class Annotation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The annotation of a sample.

    Attributes:
        label: ``good``, ``bad``, or empty.
        note: A text.
        time: When it was last changed, in seconds since 1970.
    """

    label: str = ""
    note: str = ""
    time: float = 0.0


class _Content(msgspec.Struct):
    samples: dict[str, Annotation] = {}


def read_annotations(directory: Path) -> tuple[dict[str, Annotation], str]:
    """The annotations of a run by the sample's id, and an error text if they cannot be read."""
    try:
        # The directory may have come from elsewhere: neither follow a link nor wait at a pipe.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(directory / ANNOTATIONS_FILE, flags)
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        return {}, f"{ANNOTATIONS_FILE} cannot be read: {error.strerror}"
    try:
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            return {}, f"{ANNOTATIONS_FILE} is larger than {_MAX_BYTES >> 20} MB; ignoring it"
        found = msgspec.json.decode(content, type=_Content).samples
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return {}, f"{ANNOTATIONS_FILE} cannot be read: {error}"
    known = {key: each for key, each in found.items() if each.label in ("", *LABELS) and len(key) <= _MAX_ID}
    return {
        clean(key): Annotation(each.label, clean(each.note)[:MAX_NOTE], each.time) for key, each in known.items()
    }, ""


def annotate(
    directory: Path,
    changes: Mapping[str, tuple[str | None, str | None]],
    *,
    clock: Callable[[], float] = time.time,
) -> dict[str, Annotation]:
    """Change annotations of a run; returns all of them afterwards.

    Args:
        changes: For each sample its new label and note; None keeps the current one, an empty text removes it.

    Raises:
        OptionError: A change is not accepted; nothing was changed.
        OSError: The directory cannot be written.
    """
    for key, (label, note) in changes.items():
        if not key or len(key) > _MAX_ID:
            raise OptionError(f"{key!r:.80} is not the id of a sample.")
        if label not in (None, "", *LABELS):
            raise OptionError(f"label={label!r:.80}: give 'good', 'bad' or an empty text.")
        if note is not None and (len(note) > MAX_NOTE or "\0" in note):
            raise OptionError(
                f"The note {note!r:.60} is not accepted: give at most {MAX_NOTE:,} characters without NUL."
            )
    # The lock is that of the directory: a lock file would stay behind.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with files.exclusive(descriptor, seconds=_LOCK_SECONDS):
            before, problem = read_annotations(directory)
            if problem:
                raise ConfigError(f"{directory.name}: {problem}. Remove the file to annotate samples.")
            after = dict(before)
            for key, (label, note) in changes.items():
                old = after.pop(key, Annotation())
                new = Annotation(old.label if label is None else label, old.note if note is None else note, clock())
                if new.label or new.note:
                    after[key] = new
            if len(after) > MAX_ANNOTATIONS:
                raise OptionError(f"A run has at most {MAX_ANNOTATIONS:,} annotations.")
            if after != before:
                _write(directory, after)
            return after
    finally:
        os.close(descriptor)


def _write(directory: Path, annotations: dict[str, Annotation]) -> None:
    content = msgspec.json.encode(_Content(annotations))
    if len(content) > _MAX_BYTES:  # it would not be read again
        raise OptionError(f"The annotations of a run have at most {_MAX_BYTES >> 20} MB. Shorten notes.")
    files.write_atomically(directory / ANNOTATIONS_FILE, content)
