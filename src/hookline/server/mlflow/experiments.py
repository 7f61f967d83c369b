"""`Experiments`: MLflow's experiments, each of which is a project.

An experiment's id is derived from its name, so it is the same on every server and in every run's id. Data that a
project lacks (tags, a deletion, a name that is not valid for a project) is in a small file per experiment: below
``<root>/.hookline/mlflow``, or in the object store. A project without such a file is an experiment as well, once it has
runs.

``Default``, which has the id 0 and is the clients' default, is the project ``default``.
"""

import contextlib
import hashlib
import os
import re
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from hookline._engine.errors import OptionError
from hookline._record.files import exclusive, write_atomically
from hookline.server.limits import check_name
from hookline.server.mlflow.messages import (
    BAD_STATE,
    EXISTS,
    INVALID,
    MAX_NAME,
    MAX_TAG,
    MISSING,
    KeyValue,
    MlflowError,
    checked_texts,
)
from hookline.server.storage.objects import MissingObjectError, ObjectStore
from hookline.server.tokens import FOLDER

DEFAULT_ID, DEFAULT_NAME, DEFAULT_PROJECT = "0", "Default", "default"
ID_DIGITS = 18
_FOLDER = "mlflow"
_MAX_BYTES = 1 << 20
_NOT_IN_PROJECTS = re.compile(r"[^\w.=+@ -]+")


class Experiment(msgspec.Struct, omit_defaults=True):
    """An experiment; times are in milliseconds since 1970."""

    id: str
    name: str
    project: str
    created: int = 0
    updated: int = 0
    stage: str = "active"
    tags: dict[str, str] = {}

    def shown(self) -> dict[str, object]:
        """Return the experiment as sent to clients."""
        return {
            "experiment_id": self.id,
            "name": self.name,
            "artifact_location": f"mlflow-artifacts:/{self.id}",
            "lifecycle_stage": self.stage,
            "creation_time": self.created,
            "last_update_time": self.updated,
            "tags": [{"key": key, "value": value} for key, value in self.tags.items()],
        }


class ExperimentFiles(Protocol):
    """Where the files of experiments are."""

    def read(self, experiment_id: str) -> bytes:
        """The content of a file; empty if there is none."""

    def write(self, experiment_id: str, content: bytes) -> None:
        """Create or replace a file."""

    def ids(self) -> list[str]:
        """The ids of all files."""

    def changing(self) -> contextlib.AbstractContextManager[None]:
        """Hold back other servers that change a file, from reading it until it is written."""


@dataclass(frozen=True, slots=True)
class DirectoryExperiments:
    """Files of experiments below the root."""

    root: Path

    def read(self, experiment_id: str) -> bytes:
        with contextlib.suppress(FileNotFoundError):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            with os.fdopen(os.open(self._folder / f"{experiment_id}.json", flags), "rb") as file:
                return file.read(_MAX_BYTES)
        return b""

    def write(self, experiment_id: str, content: bytes) -> None:
        write_atomically(self._folder / f"{experiment_id}.json", content, parents=True)

    def ids(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return [path.stem for path in self._folder.iterdir() if path.suffix == ".json"]
        return []

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with exclusive(descriptor):
                yield
        finally:
            os.close(descriptor)

    @property
    def _folder(self) -> Path:
        return self.root / FOLDER / _FOLDER


@dataclass(frozen=True, slots=True)
class StoredExperiments:
    """Files of experiments in an object store."""

    objects: ObjectStore

    def read(self, experiment_id: str) -> bytes:
        try:
            return self.objects.get(f"{_FOLDER}/{experiment_id}")
        except MissingObjectError:
            return b""

    def write(self, experiment_id: str, content: bytes) -> None:
        self.objects.put(f"{_FOLDER}/{experiment_id}", content)

    def ids(self) -> list[str]:
        return [entry.name.rpartition("/")[2] for entry in self.objects.list(_FOLDER)]

    def changing(self) -> contextlib.AbstractContextManager[None]:
        # An object store has no locks: of two servers that change an experiment at the same moment, the later one wins.
        return contextlib.nullcontext()


@dataclass(slots=True)
class Experiments:
    """The experiments of a root.

    Args:
        root: The directory with the projects, or its copy.
        stored: The files of the experiments.
        clock: Seconds since 1970.
    """

    root: Path
    stored: ExperimentFiles
    clock: Callable[[], float] = time.time
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Held from reading an experiment until its changed file is written."""

    def by_id(self, experiment_id: str) -> Experiment:
        """Find an experiment by its id.

        Raises:
            MlflowError: There is none.
        """
        found = self.find(experiment_id)
        if found is None:
            raise MlflowError(MISSING, f"There is no experiment with the id {experiment_id!r:.80}.")
        return found

    def by_name(self, name: str) -> Experiment:
        """Find an experiment by its name.

        Raises:
            MlflowError: There is none.
        """
        found = self.find(experiment_id_of(name))
        if found is None:
            raise MlflowError(MISSING, f"There is no experiment called {name!r:.80}.")
        return found

    def find(self, experiment_id: str) -> Experiment | None:
        """Return an experiment, if there is one of this id."""
        if experiment_id == DEFAULT_ID:
            own = msgspec.structs.replace(self._of_project(DEFAULT_PROJECT), name=DEFAULT_NAME)
            return self._read(DEFAULT_ID) or own
        if not (experiment_id.isascii() and experiment_id.isdigit() and len(experiment_id) == ID_DIGITS):
            return None
        found = self._read(experiment_id)
        if found is not None:
            return found
        project = next((name for name in self._projects() if experiment_id_of(name) == experiment_id), None)
        return None if project is None else self._of_project(project)

    def all(self) -> list[Experiment]:
        """All experiments: those with a file, and the projects that have runs."""
        found = {DEFAULT_ID: self.by_id(DEFAULT_ID)}
        for experiment_id in self.stored.ids():
            if (experiment := self._read(experiment_id)) is not None:
                found[experiment.id] = experiment
        projects = {experiment.project for experiment in found.values()}
        for name in self._projects():
            if name not in projects:
                found.setdefault(experiment_id_of(name), self._of_project(name))
        return list(found.values())

    def create(self, name: str, tags: list[KeyValue], check: Callable[[str], None]) -> Experiment:
        """Create an experiment.

        Args:
            check: Refuses a project that the sender may not write to.

        Raises:
            MlflowError: The name is not accepted, or is in use.
        """
        if not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise MlflowError(INVALID, f"name={name!r:.80}: give 1 to {MAX_NAME} printable characters.")
        experiment_id, project = experiment_id_of(name), project_of(name)
        check(project)
        now = round(self.clock() * 1000)
        made = Experiment(experiment_id, name, project, now, now, tags=checked_texts("tag", tags, MAX_TAG))
        with self._lock, self.stored.changing():
            known = self.find(experiment_id)
            if known is not None:
                state = "" if known.stage == "active" else ", which was deleted; restore it"
                raise MlflowError(EXISTS, f"There is an experiment called {name!r:.80}{state}.")
            self._write(made)
        return made

    def change(
        self,
        experiment_id: str,
        *,
        stage: str | None = None,
        tags: dict[str, str] | None = None,
        untagged: str = "",
    ) -> None:
        """Change an experiment.

        Raises:
            MlflowError: There is no such experiment, or no tag to remove.
        """
        with self._lock, self.stored.changing():
            experiment = self.by_id(experiment_id)
            merged = experiment.tags | (tags or {})
            if untagged:
                if untagged not in merged:
                    raise MlflowError(MISSING, f"The experiment {experiment.name!r:.80} has no tag {untagged!r:.80}.")
                del merged[untagged]
            now = round(self.clock() * 1000)
            changes = {"stage": stage or experiment.stage, "tags": merged, "updated": now}
            self._write(msgspec.structs.replace(experiment, **changes))

    def _projects(self) -> list[str]:
        names = []
        with contextlib.suppress(OSError), os.scandir(self.root) as entries:
            for entry in entries:
                with contextlib.suppress(OptionError, OSError):
                    if check_name("project", entry.name) != DEFAULT_PROJECT and entry.is_dir(follow_symlinks=False):
                        names.append(entry.name)
        return names

    def _of_project(self, project: str) -> Experiment:
        at = 0
        with contextlib.suppress(OSError):
            at = round((self.root / project).stat().st_mtime * 1000)
        return Experiment(experiment_id_of(project), project, project, at, at)

    def _read(self, experiment_id: str) -> Experiment | None:
        content = self.stored.read(experiment_id)
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = msgspec.json.decode(content, type=Experiment) if content else None
            # A file of a shared directory is not trusted: its name and project have to match its id.
            if found is not None and (experiment_id_of(found.name), project_of(found.name)) == (
                experiment_id,
                found.project,
            ):
                return found
        return None

    def _write(self, experiment: Experiment) -> None:
        content = msgspec.json.encode(experiment)
        if len(content) > _MAX_BYTES:
            raise MlflowError(BAD_STATE, f"The experiment {experiment.name!r:.80} has too many tags.")
        self.stored.write(experiment.id, content)


def experiment_id_of(name: str) -> str:
    """The id of an experiment by its name.

    >>> experiment_id_of("Default"), len(experiment_id_of("mnist"))
    ('0', 18)
    """
    if name in (DEFAULT_NAME, DEFAULT_PROJECT):
        return DEFAULT_ID
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    # In decimal digits like MLflow's own ids. The first is not zero, so all have the same length.
    return str(10 ** (ID_DIGITS - 1) + int.from_bytes(digest, "big") % (9 * 10 ** (ID_DIGITS - 1)))


def project_of(name: str) -> str:
    """The project of an experiment by its name; different names have different ones.

    >>> project_of("mnist"), project_of("Default"), project_of("/Users/me/churn")
    ('mnist', 'default', 'Users-me-churn-8183f9')
    """
    if name == DEFAULT_NAME:
        return DEFAULT_PROJECT
    with contextlib.suppress(OptionError):
        return check_name("project", name)
    plain = _NOT_IN_PROJECTS.sub("-", unicodedata.normalize("NFKC", name)).strip("-. ")[:80] or "experiment"
    digest = hashlib.blake2s(name.encode("utf-8", "surrogatepass"), digest_size=3).hexdigest()
    return f"{plain}-{digest}"
