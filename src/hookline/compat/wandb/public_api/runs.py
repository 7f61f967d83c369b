"""Recorded runs as ``wandb.Api`` returns them: their history, configuration and summary, and changes to them."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from hookline._engine.errors import HooklineError
from hookline._record import artifacts as stored
from hookline._record import run_directory
from hookline._record.artifact_saving import SAVED
from hookline._record.artifact_versions import artifact_folders
from hookline._record.commands import control
from hookline._record.records import Media, TableRows, clean
from hookline._record.run_directory import read_metadata
from hookline.compat.wandb.artifacts import Artifact
from hookline.compat.wandb.errors import CommError, UnsupportedError
from hookline.compat.wandb.history import Replayed, replay
from hookline.compat.wandb.public_api import filters as run_filters
from hookline.compat.wandb.public_api.files import (
    File,
    Files,
    Found,
    described_files,
    media_files,
    media_path,
    saved_files,
)
from hookline.compat.wandb.recording import MEMBERSHIP, id_of
from hookline.store.edits import Change, edit_run, remove_run
from hookline.store.run_info import RunInfo

STATES = {"stalled": "running", "stopped": "killed", "killed": "crashed"}
"""wandb's states for hookline's, where they differ."""
SAMPLES = 500
POLL_SECONDS = 1.0
_TYPES = {
    "image": "image-file",
    "figure": "plotly-file",
    "audio": "audio-file",
    "video": "video-file",
    "html": "html-file",
}


class ChangedDict(dict[str, Any]):
    """The configuration or the summary of a run; `update` records changes.

    Args:
        values: The values.
        record: Records them.
    """

    def __init__(self, values: Mapping[str, Any], record: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(values)
        self._record, self._recorded = record, dict(values)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set values, and record all changes."""
        super().update(*args, **kwargs)
        self.save()

    def save(self) -> None:
        """Record all changes."""
        changed = {key: value for key, value in self.items() if self._recorded.get(key, self) != value}
        if changed:
            self._record(changed)
            self._recorded = dict(self)


class Run:
    """A recorded run.

    Args:
        info: The run, as hookline lists it.
        entity: The entity of the path that it was found by.
        api: Lists the run again, and finds its sweep.

    Attributes:
        config: Its settings; ``update()`` records changes.
        tags: Words that it is found by; ``update()`` records changes.
        notes: A text about it; ``update()`` records changes.
    """

    def __init__(self, info: RunInfo, entity: str = "", api: Any = None) -> None:
        self._info, self._entity, self._api = info, entity, api
        self._replayed: Replayed | None = None
        self._load()

    def _load(self) -> None:
        info = self._info
        self.directory: Path = info.directory
        settings = info.config if isinstance(info.config, dict) else {}
        self.config = ChangedDict(settings, self._record_config)
        self.tags: list[str] = list(info.tags)
        self.notes: str | None = info.notes or None
        self._name = info.name
        self._summary: ChangedDict | None = None

    def __repr__(self) -> str:
        return f"<Run {'/'.join(self.path)} ({self.state})>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self._info.id == other._info.id

    def __hash__(self) -> int:
        return hash(self._info.id)

    # What it is

    @property
    def id(self) -> str:
        """Its id."""
        return id_of(self._info.facts, self.directory)

    @property
    def name(self) -> str:
        """Its name; ``update()`` records a change."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    display_name = name

    @property
    def entity(self) -> str:
        """The entity that the script gave, or that of the path."""
        own = self._info.facts.get(MEMBERSHIP)
        return self._entity or (str(own.get("entity") or "") if isinstance(own, dict) else "")

    @property
    def project(self) -> str:
        """Its project."""
        return self._info.project

    @property
    def path(self) -> list[str]:
        """The entity, if there is one, the project and the id."""
        return [part for part in (self.entity, self.project, self.id) if part]

    @property
    def url(self) -> str:
        """The address of its directory."""
        return self.directory.as_uri()

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``failed``, ``killed`` (stopped by a person) or ``crashed`` (its process died)."""
        return STATES.get(self._info.status, self._info.status)

    @property
    def group(self) -> str | None:
        """Its group."""
        return self._info.group

    @property
    def job_type(self) -> str | None:
        """What it does in its group."""
        return self._info.stage

    @property
    def user(self) -> str:
        """The user of the machine that it ran as."""
        return str(self._info.facts.get("user") or "")

    username = user

    @property
    def host(self) -> str:
        """The machine that it ran on."""
        return str(self._info.host or "")

    @property
    def created_at(self) -> str:
        """When it began, in ISO form."""
        return _iso(self._info.started)

    @property
    def heartbeat_at(self) -> str:
        """When it last recorded something, in ISO form."""
        return _iso(self._info.last_seen)

    @property
    def sweep_name(self) -> str | None:
        """The id of its sweep."""
        own = self._info.facts.get(MEMBERSHIP)
        found = own.get("sweep") if isinstance(own, dict) else None
        return None if found is None else str(found)

    @property
    def sweep(self) -> Any:
        """Its sweep; None if it belongs to none."""
        if self.sweep_name is None or self._api is None:
            return None
        return self._api.sweep(f"{self.project}/{self.sweep_name}")

    @property
    def metadata(self) -> dict[str, Any]:
        """Facts about the machine and the program."""
        facts = self._info.facts
        known = {name: facts.get(name) for name in ("host", "python", "platform", "cwd", "git", "hardware")}
        command = facts.get("command")
        words = [str(word) for word in command] if isinstance(command, list) else []
        program = {"program": words[0] if words else "", "args": words[1:], "startedAt": self.created_at}
        return {name: value for name, value in known.items() if value is not None} | program

    @property
    def summary(self) -> ChangedDict:
        """One value for each metric; ``update()`` records changes."""
        if self._summary is None:
            self._summary = ChangedDict(self.summary_values, self._record_summary)
        return self._summary

    @property
    def summary_values(self) -> Mapping[str, Any]:
        """The values of its summary, with ``_step``, ``_timestamp`` and ``_runtime``."""
        if self._summary is not None:
            return self._summary
        found = self._history_so_far()
        values = found.summary.shown()
        for records in found.media.values():
            for name, listed in records.items():
                _put(values, name.split(".") if name in found.nested else [name], _shown_media(listed))
        last = found.last_step
        if last is not None:
            at = found.times[last]
            values |= {"_step": last, "_timestamp": at, "_runtime": max(0.0, at - (self._info.started or at))}
        own = self._info.facts.get(MEMBERSHIP)
        changed: Any = own.get("summary") if isinstance(own, dict) else None
        return values | (changed if isinstance(changed, dict) else {})

    summary_metrics = summary_values

    @property
    def json_config(self) -> str:
        """Its settings as JSON text."""
        return json.dumps({key: {"value": value} for key, value in self.config.items()}, default=str)

    @property
    def rawconfig(self) -> dict[str, Any]:
        """Its settings."""
        return dict(self.config)

    @property
    def system_metrics(self) -> dict[str, Any]:
        """Nothing: the drop-in does not measure the machine."""
        return {}

    @property
    def lastHistoryStep(self) -> int:  # noqa: N802 - wandb's name
        """The last step; -1 if there is none."""
        found = self._history_so_far().last_step
        return -1 if found is None else found

    def fact(self, name: str) -> Any:
        """Return a fact that filters ask for, or `filters.MISSING`."""
        known = {
            "id": self.id,
            "display_name": self.name,
            "state": self.state,
            "group": self.group,
            "job_type": self.job_type,
            "tags": self.tags,
            "notes": self.notes,
            "host": self.host,
            "user": self.user,
            "sweep": self.sweep_name,
            "project": self.project,
            "created_at": self._info.started,
            "heartbeat_at": self._info.last_seen,
            "duration": (self._info.ended or self._info.last_seen or 0.0) - (self._info.started or 0.0),
        }
        found = known.get(name)
        return run_filters.MISSING if found is None else found

    # Its history

    def history(
        self,
        samples: int = SAMPLES,
        keys: Sequence[str] | None = None,
        x_axis: str = "_step",
        pandas: bool = True,
        stream: str = "default",
    ) -> Any:
        """Return rows, evenly spaced where there are more than ``samples``, as a data frame or a list of dicts.

        Args:
            samples: How many, at most.
            keys: Only rows that have all of these names, and only these values.
            x_axis: A name to keep besides ``keys``.
            pandas: Whether to return a data frame, where pandas is installed.
            stream: ``"default"``; there are no rows of ``"system"``.
        """
        if stream == "system":
            rows: list[dict[str, Any]] = []
        else:
            rows = list(self._rows(None if keys is None else [*keys, x_axis], required=keys))
            if len(rows) > samples > 0:
                spread = [round(index * (len(rows) - 1) / max(1, samples - 1)) for index in range(samples)]
                rows = [rows[index] for index in spread]
        if not pandas:
            return rows
        try:
            package = import_module("pandas")
        except ModuleNotFoundError:
            return rows
        return package.DataFrame.from_records(rows)

    def scan_history(
        self,
        keys: Sequence[str] | None = None,
        page_size: int = 1000,
        min_step: int | None = None,
        max_step: int | None = None,
        use_cache: bool = True,
    ) -> Iterator[dict[str, Any]]:
        """Yield all rows.

        Args:
            keys: Only rows that have all of these names, and only these values.
            page_size: Accepted.
            min_step: The first step.
            max_step: The step after the last one.
            use_cache: Accepted.
        """
        for row in self._rows(None if keys is None else [*keys], required=keys, with_step=keys is None):
            step = row.get("_step")
            if step is None or ((min_step is None or step >= min_step) and (max_step is None or step < max_step)):
                yield row

    beta_scan_history = scan_history

    def _rows(
        self, keys: Sequence[str] | None, *, required: Sequence[str] | None, with_step: bool = True
    ) -> Iterator[dict[str, Any]]:
        found = self._history_so_far()
        for step in sorted({*found.rows, *found.media}):
            row = dict(found.rows.get(step, {}))
            row |= {name: _shown_media(records) for name, records in found.media.get(step, {}).items()}
            at = found.times[step]
            row |= {"_step": step, "_timestamp": at, "_runtime": max(0.0, at - (self._info.started or at))}
            if required is not None and not all(row.get(name) is not None for name in required):
                continue
            wanted = None if keys is None else {*keys, *(("_step",) if with_step else ())}
            yield row if wanted is None else {name: value for name, value in row.items() if name in wanted}

    def _history_so_far(self) -> Replayed:
        if self._replayed is None or not self._info.is_over:
            self._replayed = replay(self.directory)
        return self._replayed

    # Its files and artifacts

    def files(
        self,
        names: Sequence[str] | None = None,
        per_page: int = 50,
        pattern: str | None = None,
        order: str | None = None,
    ) -> Files:
        """Return its files.

        Args:
            names: Only these.
            per_page: Accepted.
            pattern: A pattern as of SQL: ``%`` matches anything.
            order: Accepted.
        """
        from fnmatch import fnmatchcase

        found = [*saved_files(self.directory), *self._media_files(), *described_files(self)]
        wanted = None if pattern is None else pattern.replace("[", "[[]").replace("%", "*").replace("_", "?")
        return Files(
            [
                file
                for file in found
                if (not names or file.name in names) and (wanted is None or fnmatchcase(file.name, wanted))
            ]
        )

    def file(self, name: str) -> File:
        """Return a file by its name.

        Raises:
            CommError: There is none.
        """
        found = self.files([name])
        if not found:
            raise CommError(f"There is no file {name!r} in the run {'/'.join(self.path)}.")
        first: File = found[0]
        return first

    def upload_file(self, path: str, root: str = ".") -> File:
        """Copy a file to the run's files.

        Args:
            path: Its path.
            root: The part of the path that is left out.
        """
        source = Path(path).absolute()
        inside = source.relative_to(Path(root).absolute())
        target = self.directory / "files" / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        return self.file(inside.as_posix())

    def _media_files(self) -> Iterator[File]:
        steps = self._history_so_far().media
        records = [each for step in sorted(steps) for own in steps[step].values() for each in own]
        yield from media_files(self.directory, records)

    def logged_artifacts(self, per_page: int = 100) -> list[Artifact]:
        """Return the artifacts that it saved."""
        return self._artifacts(is_saved=True)

    def used_artifacts(self, per_page: int = 100) -> list[Artifact]:
        """Return the artifacts that it used."""
        return self._artifacts(is_saved=False)

    def _artifacts(self, *, is_saved: bool) -> list[Artifact]:
        root, name = self.directory.parent.parent, f"{self.directory.parent.name}/{self.directory.name}"
        found = []
        for folder in artifact_folders(root):
            for number in folder.versions():
                roles = {each.role for each in folder.runs(number) if each.run == name}
                if roles and (SAVED in roles) == is_saved:
                    found.append(Artifact.from_stored(stored.Artifact(folder, number)))
        return found

    # Changes

    def update(self) -> None:
        """Record changes of its name, tags, notes, settings and summary."""
        before = self._info
        gone = [tag for tag in before.tags if tag not in self.tags]
        new = [tag for tag in self.tags if tag not in before.tags]
        name = self._name if self._name != before.name else None
        notes = (self.notes or "") if (self.notes or "") != before.notes else None
        if gone or new or name is not None or notes is not None:
            try:
                edit_run(self.directory, Change(name=name, notes=notes, add_tags=new, remove_tags=gone))
            except HooklineError as error:
                raise CommError(str(error), error) from error
        self.config.save()
        if self._summary is not None:
            self._summary.save()
        self.load(force=True)

    save = update

    def delete(self, delete_artifacts: bool = False) -> None:
        """Delete the run.

        Args:
            delete_artifacts: Also the versions of artifacts that it saved.

        Raises:
            CommError: It is running.
        """
        saved = self.logged_artifacts() if delete_artifacts else []
        try:
            remove_run(self.directory.parent.parent, self.directory)
        except OSError as error:
            raise CommError(f"The run {'/'.join(self.path)} cannot be deleted: {error}", error) from error
        for artifact in saved:
            artifact.delete(delete_aliases=True)

    def stop(self) -> None:
        """Stop the run, if it is running."""
        try:
            control(self.directory).stop(reason="wandb.Api")
        except HooklineError as error:
            raise CommError(str(error), error) from error

    def load(self, force: bool = False) -> dict[str, Any]:
        """Read the run again.

        Args:
            force: Accepted.
        """
        if self._api is not None:
            self._info = self._api.info(self._info.id)
        self._replayed = None
        self._load()
        return dict(self._info.facts)

    def wait_until_finished(self) -> None:
        """Wait until the run has ended."""
        while not self._info.is_over:
            time.sleep(POLL_SECONDS)
            self.load()

    def to_html(self, height: int = 420, hidden: bool = False) -> str:
        """Return the run as a notebook shows it.

        Args:
            height, hidden: Accepted.
        """
        return self._info._html()

    _repr_html_ = to_html

    def use_artifact(self, *_: Any, **__: Any) -> Any:
        """Raise an error: only an active run uses artifacts."""
        raise UnsupportedError("A recorded run uses no artifacts. Call use_artifact of an active run.")

    def log_artifact(self, *_: Any, **__: Any) -> Any:
        """Raise an error: only an active run saves artifacts."""
        raise UnsupportedError("A recorded run saves no artifacts. Resume it with wandb.init(id=..., resume='must').")

    def _record_config(self, changed: dict[str, Any]) -> None:
        run_directory.update(self.directory, "config", (changed, ()))

    def _record_summary(self, changed: dict[str, Any]) -> None:
        facts = read_metadata(self.directory).get(MEMBERSHIP)
        own = dict(facts) if isinstance(facts, dict) else {"id": self.id}
        known = own.get("summary")
        plain = {key: value for key, value in changed.items() if key not in ("_step", "_timestamp", "_runtime")}
        own["summary"] = (known if isinstance(known, dict) else {}) | clean(plain)
        run_directory.update(self.directory, MEMBERSHIP, own)
        run_directory.update(self.directory, "summary", (clean(plain), ()))


class Runs(Found[Run]):
    """Recorded runs."""

    def histories(
        self,
        samples: int = SAMPLES,
        keys: Sequence[str] | None = None,
        x_axis: str = "_step",
        format: str = "default",  # noqa: A002 - wandb's name
        stream: str = "default",
    ) -> Any:
        """Return the rows of all runs, with ``run_id``: a list of dicts, or a data frame.

        Args:
            samples, keys, x_axis, stream: As of `Run.history`.
            format: ``"default"``, ``"pandas"`` or ``"polars"``.
        """
        rows = [
            {**row, "run_id": run.id}
            for run in self._found
            for row in run.history(samples=samples, keys=keys, x_axis=x_axis, pandas=False, stream=stream)
        ]
        if format == "default":
            return rows
        if format == "pandas":
            return import_module("pandas").DataFrame.from_records(rows)
        if format == "polars":
            return import_module("polars").from_dicts(rows, infer_schema_length=None)
        raise ValueError(f"Invalid format: {format}. Must be one of 'default', 'pandas', 'polars'")


def _shown_media(records: Sequence[Media | TableRows]) -> dict[str, Any]:
    """Return the entry of a row for the media of one name and step."""
    first = records[0]
    if isinstance(first, TableRows):
        tables = [each for each in records if isinstance(each, TableRows)]
        rows = max(each.start + len(each.rows) for each in tables)
        path = media_path(tables[-1])
        return {"_type": "table-file", "ncols": len(first.columns), "nrows": rows, "path": path}
    media = [each for each in records if isinstance(each, Media)]
    if first.type == "histogram":
        return {"_type": "histogram", "values": first.data.get("counts"), "bins": _edges(first.data)}
    sizes: dict[str, Any] = {name: first.data[name] for name in ("width", "height") if name in first.data}
    if len(media) > 1:
        captions = [each.caption for each in media]
        named = {"captions": captions} if any(captions) else {}
        kind = "images/separated" if first.type == "image" else first.type
        paths = [media_path(each) for each in media]
        return {"_type": kind, "count": len(media), "format": first.format, **sizes, "filenames": paths, **named}
    shown = {"_type": _TYPES.get(first.type, "file"), "format": first.format, **sizes}
    caption = {"caption": first.caption} if first.caption else {}
    return {**shown, "path": media_path(first), "sha256": first.blob, "size": first.size, **caption}


def _edges(data: Mapping[str, Any]) -> Any:
    if "edges" in data:
        return data["edges"]
    counts, low, high = data.get("counts") or [], data.get("low", 0.0), data.get("high", 0.0)
    return [low + (high - low) * index / max(1, len(counts)) for index in range(len(counts) + 1)]


def _put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        inner = values.get(name)
        if not isinstance(inner, dict):
            inner = values[name] = {}
        values = inner
    values[path[-1]] = value


def _iso(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds).astimezone().isoformat()
