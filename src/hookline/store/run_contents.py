"""The checkpoints of a run, kept and deleted, and the artifacts that it saved and used.

Checkpoints are in the run's directory and, as events, in its journal; the two are joined by their names. A path in a
journal may come from another machine: it is shown, and never followed.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import msgspec

from hookline._engine.errors import OptionError
from hookline._record.artifact_saving import ARTIFACT_SAVED, ARTIFACT_USED
from hookline._record.artifact_versions import ArtifactFolder, parse_reference
from hookline._record.records import parse_nonfinite
from hookline._record.run_directory import RECEIVED
from hookline.loops import checkpoint
from hookline.loops.checkpoint import is_file_path
from hookline.store.index import sql_quote
from hookline.store.run_info import RunInfo

if TYPE_CHECKING:
    from hookline.store.runs import Runs

FOLDER = "checkpoints"
_ARTIFACTS = {ARTIFACT_SAVED: "saved", ARTIFACT_USED: "used"}
_ARTIFACT_EVENTS = f"SELECT * FROM events WHERE name IN ({', '.join(map(sql_quote, _ARTIFACTS))}) ORDER BY time"
_CHECKPOINT_EVENTS = "SELECT * FROM events WHERE name = 'checkpoint' AND kind = 'event' ORDER BY time DESC"
MAX_CHECKPOINTS = 1000
_MAX_VALUES = 8
_MAX_PATH = 1000


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint; ``damage`` describes its damage, if any."""

    path: Path
    step: int | None
    bytes: int
    kind: str
    damage: str | None


def saved_checkpoints(run_dir: Path, *, digests: bool = False) -> list[SavedCheckpoint]:
    """The checkpoints in a run's directory, by step, without links.

    Args:
        digests: Also compare the content of their files with the digests, which reads all of them.
    """
    folder = run_dir / FOLDER
    if folder.is_symlink() or not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if _is_ours(path)]
    described = (_described(path, digests=digests) for path in found)
    return sorted(described, key=lambda saved: (saved.step or 0, saved.path.name))


def _is_ours(path: Path) -> bool:
    if path.name[0] == "." or path.is_symlink():
        return False
    if path.is_file():
        return is_file_path(path)
    return path.is_dir() and (checkpoint.is_checkpoint(path) or path.name.startswith("step-"))


def _described(path: Path, *, digests: bool) -> SavedCheckpoint:
    facts: Any = {}
    manifest = path / checkpoint.MANIFEST_FILE
    if manifest.is_file():
        with contextlib.suppress(OSError, ValueError, RecursionError):
            facts = json.loads(manifest.read_text(encoding="utf-8"))
    known = facts if isinstance(facts, dict) else {}
    step = known.get("step")
    files = [path] if path.is_file() else path.rglob("*")
    size = sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())
    return SavedCheckpoint(
        path,
        step if isinstance(step, int) else None,
        size,
        str(known.get("kind", "")),
        checkpoint.damage_of(path, digests=digests),
    )


class RunCheckpoint(msgspec.Struct):
    """A checkpoint that a run saved.

    Attributes:
        path: Inside the run's directory, or as recorded.
        bytes: Its size now, or when it was saved.
        values: The metrics that decide which checkpoint is best, as of when it was saved.
        state: ``kept``, ``damaged``, ``deleted``, or ``elsewhere`` if it was saved outside of the run's directory or
            on another machine.
        damage: The damage, if any.
    """

    path: str
    step: int | None
    time: float | None
    kind: str
    bytes: int
    values: dict[str, float | str | None]
    state: str
    damage: str = ""


def run_checkpoints(found: "Runs", info: RunInfo) -> list[RunCheckpoint]:
    """The checkpoints of a run by time: those in its journal, and those in its directory that no event names."""
    on_disk = {saved.path.name: saved for saved in saved_checkpoints(info.directory)}
    is_received = (info.directory / RECEIVED).is_file()
    made: dict[str, RunCheckpoint] = {}
    for event in found.sql(_CHECKPOINT_EVENTS, limit=MAX_CHECKPOINTS):
        data = json.loads(event["data"])
        if not isinstance(data, dict) or not isinstance(data.get("path"), str):
            continue
        path = PurePath(data["path"][:_MAX_PATH])
        is_own = path.parts[-4:-1] == (info.project, info.directory.name, FOLDER)
        saved = on_disk.get(path.name) if is_own else None
        key = path.name if is_own else str(path)
        if key in made:
            continue  # replaced by a later one, which came first
        size = data.get("bytes")
        state = "kept" if saved else "deleted" if is_own and not is_received else "elsewhere"
        made[key] = RunCheckpoint(
            f"{FOLDER}/{path.name}" if is_own else str(path),
            event["step"],
            event["time"],
            str(data.get("kind") or "")[:100],
            saved.bytes if saved else size if isinstance(size, int) and 0 <= size < 1 << 53 else 0,
            _values(data.get("values")),
            *(("damaged", saved.damage) if saved is not None and saved.damage else (state, "")),
        )
    for name, each in on_disk.items():
        if name not in made:
            state, damage = "damaged" if each.damage else "kept", each.damage or ""
            made[name] = RunCheckpoint(f"{FOLDER}/{name}", each.step, None, each.kind, each.bytes, {}, state, damage)
    return sorted(made.values(), key=lambda each: (each.time or 0, each.step or 0))


def _values(found: Any) -> dict[str, float | str | None]:
    pairs = list(found.items())[:_MAX_VALUES] if isinstance(found, Mapping) else ()
    values = ((str(name)[:200], parse_nonfinite(value)) for name, value in pairs)
    return {name: value for name, value in values if isinstance(value, int | float)}


def artifact_uses(found: "Runs", info: RunInfo) -> list[dict[str, Any]]:
    """The versions of artifacts that the run saved and used, by time; for an imported run, those in its root."""
    listed: dict[tuple[str, str, str], dict[str, Any]] = {}
    for event in found.sql(_ARTIFACT_EVENTS).rows():
        data = json.loads(event["data"])
        # A received journal may contain anything here.
        if isinstance(data, dict) and ("imported" not in info.facts or _is_here(info, data)):
            row = {key: str(data.get(key, "")) for key in ("artifact", "version", "kind")}
            row["role"] = _ARTIFACTS[event["name"]]
            listed.setdefault((row["artifact"], row["version"], row["role"]), row | {"step": event["step"]})
    return list(listed.values())


def _is_here(info: RunInfo, data: dict[str, Any]) -> bool:
    """Whether the root has the version that an event names: that of an imported run may have stayed elsewhere."""
    try:
        reference = parse_reference(f"{data.get('artifact', '')}:{data.get('version', '')}")
    except OptionError:
        return False
    folder = ArtifactFolder(info.directory.parent.parent, reference.project, reference.name)
    number = folder.same(str(data.get("digest", "")))
    return number is not None and reference.version == f"v{number}"
