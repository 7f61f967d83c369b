"""What a run's ``run.json`` says about it, for destinations that have runs of their own.

Where there is no such file, the directory's name stands in: delivering does not depend on it. A run of an
experiment says there which one it is (`Membership`), so it finds its place in a tracker from any process.
"""

import json
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hookline.record.run_directory import FACTS


@dataclass(frozen=True, slots=True)
class Membership:
    """Which run of an experiment this is; the runs of an arm are a group."""

    experiment: str
    experiment_id: str
    group: str
    group_id: str
    arm: str
    run_key: str = ""
    repeat: int | None = None
    stage: str | None = None
    seed: int | None = None

    @property
    def group_path(self) -> str:
        """A name for the group that no arm of another experiment has."""
        return f"{self.experiment}/{self.group}"

    @property
    def experiment_key(self) -> str:
        """What no other experiment has, on any machine, as far as its id is its own."""
        return _key("experiment", self.experiment_id)

    @property
    def group_key(self) -> str:
        """What no other group has, also not one of the same id in another experiment."""
        return _key("group", self.experiment_id, self.group_id)

    def facts(self) -> dict[str, Any]:
        """What is known of it, by name."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


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
    tags: tuple[str, ...] = ()
    notes: str = ""
    membership: Membership | None = None

    @property
    def title(self) -> str:
        """What people call the run."""
        return (self.membership.run_key if self.membership is not None else "") or self.id


def read_facts(run_dir: Path) -> RunFacts:
    """What is written down about a run."""
    try:
        known = json.loads((run_dir / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = None
    if not isinstance(known, Mapping):
        return RunFacts(run_dir.name, _key(socket.gethostname(), str(run_dir.resolve())))
    run_id, started = str(known.get("id") or run_dir.name), float(known.get("started") or 0.0)
    membership = _membership(known.get("experiment"))
    whose = () if membership is None else (membership.experiment_id,)  # their runs have the same ids, say low-r0
    return RunFacts(
        id=run_id,
        key=_key(str(known.get("host")), repr(started), run_id, *whose),
        name=str(known.get("name") or ""),
        project=str(known.get("project") or "default"),
        config=known.get("config"),
        started=started,
        user=str(known.get("user") or ""),
        command=" ".join(map(str, known.get("command") or ())),
        commit=str((known.get("git") or {}).get("commit") or ""),
        tags=tuple(map(str, known.get("tags") or ())),
        notes=str(known.get("notes") or ""),
        membership=membership,
    )


def _membership(known: Any) -> Membership | None:
    """A run's place in its experiment; None for one that belongs to none."""
    if not isinstance(known, Mapping) or not known.get("id"):
        return None
    experiment_id, arm = str(known["id"]), str(known.get("arm") or known.get("group") or "")
    group = str(known.get("group") or arm)
    return Membership(
        experiment=str(known.get("name") or experiment_id),
        experiment_id=experiment_id,
        group=group,
        group_id=str(known.get("group_id") or group),
        arm=arm,
        run_key=str(known.get("run_key") or ""),
        repeat=known.get("repeat"),
        stage=known.get("stage"),
        seed=known.get("seed"),
    )


def _key(*parts: str) -> str:
    return uuid.uuid5(uuid.NAMESPACE_URL, "hookline:" + "\n".join(parts)).hex
