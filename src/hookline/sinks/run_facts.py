"""What a run's ``run.json`` says about it, for destinations that have runs of their own.

Where there is no such file, the directory's name stands in: delivering does not depend on it.
"""

import json
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline.record.run_directory import FACTS


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run as a destination needs to know it; ``key`` is what no other run has, on any machine."""

    id: str
    key: str
    name: str = ""
    project: str = "default"
    config: Any = None
    started: float = 0.0
    user: str = ""
    command: str = ""
    commit: str = ""


def read_facts(run_dir: Path) -> RunFacts:
    """What is written down about a run."""
    try:
        known = json.loads((run_dir / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = None
    if not isinstance(known, Mapping):
        return RunFacts(run_dir.name, _key(socket.gethostname(), str(run_dir.resolve())))
    run_id, started = str(known.get("id") or run_dir.name), float(known.get("started") or 0.0)
    return RunFacts(
        id=run_id,
        key=_key(str(known.get("host")), repr(started), run_id),
        name=str(known.get("name") or ""),
        project=str(known.get("project") or "default"),
        config=known.get("config"),
        started=started,
        user=str(known.get("user") or ""),
        command=" ".join(map(str, known.get("command") or ())),
        commit=str((known.get("git") or {}).get("commit") or ""),
    )


def _key(*parts: str) -> str:
    return uuid.uuid5(uuid.NAMESPACE_URL, "hookline:" + "\n".join(parts)).hex
