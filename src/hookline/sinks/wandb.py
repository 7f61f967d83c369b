"""Metrics, rewards and samples in a run at Weights & Biases, online or offline.

Rows arrive once: each has a number of its own, W&B drops a number that it has, and a batch counts as
delivered when wandb has it on disk. A run that is resumed goes on in the same W&B run; W&B takes
nothing back, so steps that are done again are there again. Values are shown over the steps of their
axis, in whatever order they come: those of ``train`` and ``eval`` over ``train/step`` under their own
names, those of another axis, say ``rollout``, over ``rollout/step`` under ``rollout/<name>``; those of
another process have its name in front. The samples of a batch are a table.

wandb sends what it has on its own time. What is not sent when the training ends, or when wandb's
process is killed, is on disk, and ``wandb sync`` sends it.
"""

import importlib.util
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline._engine.errors import MissingExtraError, OptionError, RefusedError, closest
from hookline._record.delivery import SINKS_FOLDER
from hookline._record.reader import JournalEntry
from hookline._record.records import DESCRIPTION, Event, Metrics, Rewards, Sample, Status
from hookline._record.sink import Sink, register_sink
from hookline.sinks.run_progress import STATUS_WRITERS, Membership, RunMetadata, read_metadata

if TYPE_CHECKING:
    from hookline.sinks.wandb_run import Numbers, WandbRun

MODES = ("online", "offline", "disabled")
_TAG_LENGTH = 64


@register_sink("wandb")
@dataclass(eq=False)
class WandbSink(Sink):
    """Writes a W&B run. The API key comes from ``wandb login`` or ``WANDB_API_KEY``.

    Args:
        project: W&B's project; the run's where none is given.
        entity: The user or team; the key's own where none is given.
        mode: ``online``, ``offline`` or ``disabled``; as ``WANDB_MODE`` says, or online, where none is given.
        id: W&B's id of the run; one made of the run's where none is given.
        run_name: What the run is called at W&B; where none is given, its id, or its key in its experiment.
        group: What the run is grouped under; ``<experiment>/<arm>`` where none is given and it belongs to one.
        job_type: What kind of run of the group it is; its stage, or ``run``, where none is given and it belongs
            to an experiment.
        tags: Words to find it by; the run's own tags and the names of its experiment, arm and stage are added.
        directory: Where wandb keeps its files; the run's directory where none is given.
        samples_per_step: How many samples of a step are shown in a table; 0 for none.
        system_metrics: Whether wandb measures the machine, too.
        name: What the sink is called in its run.
    """

    project: str | None = None
    entity: str | None = None
    mode: str | None = None
    id: str | None = None
    run_name: str | None = None
    group: str | None = None
    job_type: str | None = None
    tags: tuple[str, ...] = ()
    directory: Path | None = None
    samples_per_step: int = 32
    system_metrics: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in MODES:
            raise OptionError(f"mode={self.mode!r} is not a mode of wandb. {closest(self.mode, MODES)}")
        if self.samples_per_step < 0:
            raise OptionError(f"samples_per_step={self.samples_per_step!r}: give a number from 0 up.")
        self.tags = tuple(self.tags)
        self.directory = Path(self.directory).absolute() if self.directory is not None else None
        self._made_id = ""
        self._failed, self._status_time = False, 0.0
        self._run: WandbRun | None = None
        self._numbers: Numbers | None = None

    def check(self) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise MissingExtraError("The sink 'wandb'", "wandb")

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return ["W&B, with its credentials"]

    def check_foreign(self, run_dir: Path, state: Any) -> None:
        if Path(str(state["id"])).name != state["id"]:
            raise RefusedError(f"id={state['id']!r} in the run's directory is no id of W&B.")

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        self.check()
        from hookline.sinks.wandb_run import Numbers, WandbRun

        facts = read_metadata(run_dir)
        state = state or {"id": self.id or self._new_id(facts.id), "rows": 0, "failed": False}
        self._failed, self._status_time = state["failed"], state.get("status_time", 0.0)
        noted = run_dir / SINKS_FOLDER / f"{state['id']}.rows"
        noted.parent.mkdir(exist_ok=True)
        self._numbers = Numbers(noted, state["rows"])
        self._run = WandbRun(
            self.directory or run_dir,
            system_metrics=self.system_metrics,
            options=self._options(facts) | {"id": state["id"], "resume": "allow"},
        )
        return self._state(state["id"])

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        from hookline.sinks.wandb_run import row

        assert self._run is not None
        assert self._numbers is not None
        wanted = [entry for entry in entries if self._wants(entry)]
        numbered = self._numbers.give(wanted) if wanted else []
        rows = [(number, *row(group, self.samples_per_step)) for number, group in numbered]
        self._run.write([each for each in rows if each[2]])
        if rows:
            self._numbers.following = rows[-1][0] + 1
        for entry in entries:
            if isinstance(entry.record, Status) and entry.file.name in STATUS_WRITERS:
                self._note_status(entry.record)
            elif isinstance(entry.record, Event) and entry.record.name in DESCRIPTION:
                self._run.describe(entry.record)
        return self._state(self._run.run.id)

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(failed=self._failed)

    def ids(self, state: Any) -> dict[str, str]:
        return {"run_id": state["id"]}

    def _note_status(self, record: Status) -> None:
        """Take over the latest by time: what the courier says of a death may come before what the dead had said."""
        if record.status != "heartbeat" and record.time >= self._status_time:
            self._failed, self._status_time = record.status == "failed", record.time

    def _wants(self, entry: JournalEntry) -> bool:
        wanted = Metrics | Rewards | Sample if self.samples_per_step else Metrics | Rewards
        return isinstance(entry.record, wanted)

    def _options(self, facts: RunMetadata) -> dict[str, Any]:
        config = facts.config or {}
        config = config if isinstance(config, Mapping) else {"config": config}
        about = {"run": facts.id, "command": facts.command, "commit": facts.commit, "user": facts.user}
        options = {
            "project": self.project or facts.project,
            "entity": self.entity,
            "mode": self.mode,
            "name": self.run_name or facts.title,
            "group": self.group,
            "job_type": self.job_type,
            "tags": self._tags(facts) or None,
            "notes": facts.notes or None,
            "config": {**config, "hookline": about},
            "allow_val_change": True,
        }
        return options if facts.membership is None else self._placed(options, about, facts.membership)

    def _placed(self, options: dict[str, Any], about: dict[str, Any], place: Membership) -> dict[str, Any]:
        """The options of a run that belongs to an experiment; stages are kinds, so that only repeats share a band."""
        about |= place.facts()
        options["group"] = self.group or place.group_path
        options["job_type"] = self.job_type or place.stage or "run"
        return options

    def _tags(self, facts: RunMetadata) -> tuple[str, ...]:
        """What was asked for, and of what is known of the run what W&B takes for a tag."""
        place = facts.membership
        words = (*facts.tags, *((place.experiment, place.arm, place.stage) if place is not None else ()))
        fitting = (word for word in words if word and len(word) <= _TAG_LENGTH)
        return tuple(dict.fromkeys((*self.tags, *fitting)))

    def _new_id(self, run_id: str) -> str:
        readable = re.sub(r"[^\w.-]", "-", run_id)[:100]
        self._made_id = self._made_id or f"{readable}-{secrets.token_hex(4)}"
        return self._made_id

    def _state(self, wandb_id: str) -> dict[str, Any]:
        assert self._numbers is not None
        told = {"failed": self._failed, "status_time": self._status_time}
        return {"id": wandb_id, "rows": self._numbers.following, **told}
