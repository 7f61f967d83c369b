"""The checkpoints that lie in a run's directory, and whether they are whole."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline.loops import checkpoint
from hookline.loops.checkpoint_file import is_file_path

FOLDER = "checkpoints"


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint; ``damage`` says what is wrong with it, if something is."""

    path: Path
    step: int | None
    bytes: int
    kind: str
    damage: str | None


def saved_checkpoints(run_dir: Path, *, digests: bool = False) -> list[SavedCheckpoint]:
    """All in a run's directory, by step; links are passed by.

    Args:
        run_dir: The run's directory.
        digests: Whether the content of their files is compared with what was saved, which reads all of them.
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
    return path.is_dir() and (checkpoint.is_one(path) or path.name.startswith("step-"))


def _described(path: Path, *, digests: bool) -> SavedCheckpoint:
    facts: Any = {}
    try:
        facts = json.loads((path / checkpoint.MANIFEST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        facts = {}
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
