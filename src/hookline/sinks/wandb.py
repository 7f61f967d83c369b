"""`WandbSink`: metrics, rewards, samples, media and artifacts in a Weights & Biases run, online or offline.

Each row arrives once: it has its own number, W&B drops a number that it already has, and a batch counts as delivered
when wandb has it on disk. A resumed run continues the same W&B run; W&B removes nothing, so repeated steps appear
twice. Values are plotted over the steps of their axis: those of ``train`` and ``eval`` over ``train/step`` under their
own names, those of another axis, such as ``rollout``, over ``rollout/step`` as ``rollout/<name>``. Values of another
process are prefixed with its name. The samples of a batch are a table, and so are the rows that a table gained in it:
W&B would store a growing table whole each time.

Artifacts that the run saves are W&B artifacts with W&B's own version numbers; files with the same content are one
version there, so a repeated batch adds none. The uses of artifacts stay in the run: wandb needs a server for them.

wandb sends its files asynchronously. ``wandb sync`` sends what is still on disk when the training ends or wandb's
process is killed.
"""

import importlib.util
import re
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline._engine.checks import require_integer
from hookline._engine.errors import MissingExtraError, OptionError, RefusedError, closest
from hookline._record.delivery import SINKS_FOLDER
from hookline._record.reader import JournalEntry
from hookline._record.records import DESCRIPTION, Event, Media, Metrics, Rewards, Sample, Status, TableRows
from hookline._record.sink import Sink, register_sink
from hookline.sinks.artifacts import convert_artifact, saved_artifacts, used_artifacts
from hookline.sinks.media import RunMedia
from hookline.sinks.run_progress import STATUS_WRITERS, RunMetadata, read_metadata

if TYPE_CHECKING:
    from hookline.sinks.wandb_run import RowNumbers, WandbRun

MODES = ("online", "offline", "disabled")
_MOST_TAG_LETTERS = 64
_DROP_INS = ("hookline/compat/wandb/__init__.py", "hookline/compat/wandb/import_path/wandb/__init__.py")
"""Where ``wandb`` is found if it is hookline's drop-in."""


@register_sink("wandb")
@dataclass(eq=False)
class WandbSink(Sink):
    """Writes a W&B run. The API key comes from ``wandb login`` or ``WANDB_API_KEY``.

    Args:
        project: W&B's project; by default the run's.
        entity: The user or team; by default that of the API key.
        mode: ``online``, ``offline`` or ``disabled``; by default ``WANDB_MODE``, or online.
        id: W&B's id of the run; by default made from the run's id.
        run_name: The run's name at W&B; by default its id, or its key in its experiment.
        group: W&B's group; by default ``<experiment>/<arm>`` for a run of an experiment.
        job_type: W&B's job type; by default the stage, or ``run``, for a run of an experiment.
        tags: Tags, in addition to the run's own and the names of its experiment, arm and stage.
        directory: Where wandb keeps its files; by default the run's directory.
        samples_per_step: How many samples of a step are shown in a table; 0 for none.
        system_metrics: Whether wandb also measures the machine.
        name: The sink's name in its run.
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
        require_integer("samples_per_step", self.samples_per_step, minimum=0)
        self.tags = tuple(self.tags)
        self.directory = Path(self.directory).absolute() if self.directory is not None else None
        self._generated_id = ""
        self._failed, self._status_time = False, 0.0
        self._run: WandbRun | None = None
        self._numbers: RowNumbers | None = None
        self._media = RunMedia("W&B")

    def check(self) -> None:
        found = importlib.util.find_spec("wandb")
        if found is None:
            raise MissingExtraError("The sink 'wandb'", "wandb")
        if (found.origin or "").endswith(_DROP_INS):  # which would record a run of hookline again
            raise RefusedError("The sink 'wandb' needs W&B's own package, and `wandb` is hookline's drop-in here.")

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return ["W&B, with its credentials"]

    def check_foreign(self, run_dir: Path, state: Any) -> None:
        if Path(str(state["id"])).name != state["id"]:
            raise RefusedError(f"id={state['id']!r} in the sink's state is not a valid W&B id.")

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        self.check()
        from hookline.sinks.wandb_run import RowNumbers, WandbRun

        metadata = read_metadata(run_dir)
        self._media.open(run_dir, state)
        if not state:
            readable = re.sub(r"[^\w.-]", "-", metadata.id)[:100]
            self._generated_id = self._generated_id or f"{readable}-{secrets.token_hex(4)}"
            state = {"id": self.id or self._generated_id, "rows": 0, "failed": False}
        self._failed, self._status_time = state["failed"], state.get("status_time", 0.0)
        numbers = run_dir / SINKS_FOLDER / f"{state['id']}.rows"
        numbers.parent.mkdir(exist_ok=True)
        self._numbers = RowNumbers(numbers, state["rows"])
        self._run = WandbRun(
            self.directory or run_dir,
            system_metrics=self.system_metrics,
            options=self._options(metadata) | {"id": state["id"], "resume": "allow"},
        )
        return self._state(state["id"])

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        from hookline.sinks.wandb_media import WandbMedia, artifact_form
        from hookline.sinks.wandb_run import row

        assert self._run is not None
        assert self._numbers is not None
        kinds = Metrics | Rewards | Media | TableRows
        shown = kinds | Sample if self.samples_per_step else kinds
        wanted = [entry for entry in entries if isinstance(entry.record, shown)]
        numbered = self._numbers.assign(wanted) if wanted else []
        with tempfile.TemporaryDirectory(prefix="hookline-wandb-") as folder:
            media = WandbMedia(self._media, Path(folder), self._run.run)
            self._run.write((number, *row(group, self.samples_per_step, media)) for number, group in numbered)
        if numbered:
            self._numbers.next = numbered[-1][0] + 1
        for event in saved_artifacts(entries):
            made = convert_artifact(self._media, event, partial(artifact_form, event))
            if made is not None:
                self._run.save_artifact(*made)
        for event in used_artifacts(entries):
            made = convert_artifact(self._media, event, partial(artifact_form, event))
            if made is not None:
                self._run.save_artifact(*made, is_used=True)
        for entry in entries:
            record = entry.record
            if isinstance(record, Status) and entry.file.name in STATUS_WRITERS:
                # The latest by time: the delivery may report a death before the last records of the dead process.
                if record.status != "heartbeat" and record.time >= self._status_time:
                    self._failed, self._status_time = record.status == "failed", record.time
            elif isinstance(record, Event) and record.name in DESCRIPTION:
                self._run.describe(record)
        return self._state(self._run.run.id)

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(failed=self._failed)

    def ids(self, state: Any) -> dict[str, str]:
        return {"run_id": state["id"]}

    def _options(self, metadata: RunMetadata) -> dict[str, Any]:
        config = metadata.config or {}
        config = config if isinstance(config, Mapping) else {"config": config}
        about: dict[str, Any] = {name: getattr(metadata, name) for name in ("command", "commit", "user")}
        group, job_type, tags = self.group, self.job_type, list(metadata.tags)
        if (place := metadata.membership) is not None:
            about |= place.facts()
            group = group or place.group_path
            job_type = job_type or place.stage or "run"  # stages are job types, so that only repeats share a band
            tags += filter(None, (place.experiment, place.arm, place.stage))
        fitting = (tag for tag in tags if tag and len(tag) <= _MOST_TAG_LETTERS)
        return {
            "project": self.project or metadata.project,
            "entity": self.entity,
            "mode": self.mode,
            "name": self.run_name or metadata.title,
            "group": group,
            "job_type": job_type,
            "tags": tuple(dict.fromkeys((*self.tags, *fitting))) or None,
            "notes": metadata.notes or None,
            "config": {**config, "hookline": {"run": metadata.id, **about}},
            "allow_val_change": True,
        }

    def _state(self, wandb_id: str) -> dict[str, Any]:
        assert self._numbers is not None
        status = {"failed": self._failed, "status_time": self._status_time}
        return {"id": wandb_id, "rows": self._numbers.next, **status, **self._media.state()}
