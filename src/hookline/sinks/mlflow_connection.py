"""`Connection`: how `MlflowSink` reaches a tracking server or database, and its checks of tracking URIs.

mlflow's own HTTP client waits for two minutes and retries seven times. Here a request has one attempt and a time limit,
because the delivery retries. mlflow reads these settings from environment variables, which hold for the whole process.
So that a program that uses mlflow itself keeps its settings, a `Connection` changes them only for the thread that is
inside it; the environment is not changed.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from hookline._engine.errors import OptionError, RefusedError
from hookline._record import files
from hookline._record.run_directory import METADATA

SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")
LOCK_SECONDS = 60.0
"""How long a run waits at its start for other runs of its experiment."""

_SQLITE = "sqlite:///"
_VARIABLE = "MLFLOW_TRACKING_URI"
_LOCK = ".mlflow.lock"
_POLL_SECONDS = 0.02
_CREDENTIALS = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the environment"

_settings: ContextVar[Mapping[str, Any]] = ContextVar("mlflow_settings", default={})  # noqa: B039 - never changed


@dataclass(eq=False)
class Connection:
    """A context in which calls of mlflow fail fast, and with `RefusedError` if retrying cannot help."""

    uri: str
    timeout_seconds: float

    def __enter__(self) -> None:
        own = {
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": 0,
            "MLFLOW_HTTP_REQUEST_TIMEOUT": self.timeout_seconds,
            "MLFLOW_DATABRICKS_ENDPOINT_HTTP_RETRY_TIMEOUT": self.timeout_seconds,
            "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": True,
        }
        # Make mlflow's variables of these names return the thread's own value, if it has one.
        from mlflow import environment_variables

        for name in own:
            variable: Any = getattr(environment_variables, name, None)
            if variable is not None and "get" not in vars(variable):
                variable.get = partial(_own_or, name, variable.get)
        self._token = _settings.set(own)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _settings.reset(self._token)
        server = "The tracking database" if has_password(self.uri) else self.uri
        response = getattr(error, "response", None)
        known = getattr(error, "get_http_status_code", None)
        status: int | None = getattr(response, "status_code", None) or (known() if known is not None else None)
        if status in (401, 403):
            answer = str(error)[:300]
            raise RefusedError(f"{server} refuses access ({status}): {_CREDENTIALS}. Its answer: {answer}") from error
        if getattr(error, "error_code", None) == "ENDPOINT_NOT_FOUND":
            raise RefusedError(f"{server} is not an MLflow tracking server: check the address.") from error

    def client(self) -> Any:
        """An mlflow client, which keeps no run open."""
        from mlflow.tracking import MlflowClient

        database = local_database(self.uri)
        if database is not None and not database.parent.is_dir():  # mlflow would retry for minutes
            raise FileNotFoundError(f"{database.parent} does not exist")
        return MlflowClient(tracking_uri=self.uri)


def check_uri(given: str | None) -> None:
    """Check the given tracking URI, or else that of the environment.

    Raises:
        OptionError: MLflow has no store for it, or it contains credentials.
    """
    uri = given or os.environ.get(_VARIABLE) or _SQLITE
    what = f"tracking_uri={given!r}" if given else f"{_VARIABLE}={uri!r}"
    parts = urlsplit(uri)
    scheme = parts.scheme.partition("+")[0] or uri
    if scheme == "file" or ("://" not in uri and uri != "databricks"):
        raise OptionError(
            f"{what}: MLflow's file store would keep repeated records twice. "
            "Give a database such as 'sqlite:///mlflow.db', or the address of a server."
        )
    if scheme not in (*SCHEMES, *(entry.name for entry in entry_points(group="mlflow.tracking_store"))):
        raise OptionError(f"{what}: MLflow has no store for it. Give one of {', '.join(SCHEMES)}, followed by '://'.")
    if scheme in ("http", "https") and "@" in parts.netloc:
        raise OptionError(
            f"The tracking URI of {parts.hostname} has credentials in it: leave them out, and {_CREDENTIALS}."
        )
    if given and has_password(given):
        raise OptionError(
            f"tracking_uri contains the password of {parts.hostname}, and settings are written to disk: "
            f"give it as {_VARIABLE} in the environment instead."
        )


@contextlib.contextmanager
def exclusive_start(directory: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Keep other processes and threads from creating the same MLflow runs for a directory's runs.

    If the directory cannot be written, there is no lock.

    Raises:
        TimeoutError: Another run holds the lock for longer than that.
    """
    path, deadline = directory / _LOCK, time.monotonic() + seconds

    def acquired() -> bool:
        try:
            return files.acquire_lock(path)
        except OSError:  # not writable: runs find each other's parents by a tag, as on other machines
            return True

    while not (is_mine := acquired()) and time.monotonic() < deadline:
        threading.Event().wait(_POLL_SECONDS)
    if not is_mine:
        raise TimeoutError(f"another run holds {path} for more than {seconds:g} s")
    try:
        yield
    finally:
        files.release_lock(path)


def default_uri(run_dir: Path) -> str:
    """The environment's tracking URI, or a database in the root of the runs."""
    root = run_dir.parent.parent if (run_dir / METADATA).exists() else run_dir
    return absolute(os.environ.get(_VARIABLE) or f"{_SQLITE}{root / 'mlflow.db'}")


def absolute(uri: str) -> str:
    """A URI that does not depend on the working directory."""
    path = uri.removeprefix(_SQLITE)
    return f"{_SQLITE}{Path(path).absolute()}" if uri.startswith(_SQLITE) and path else uri


def has_password(uri: str) -> bool:
    """Whether a URI contains a password, and must not be written to disk."""
    return urlsplit(uri).password is not None


def artifact_location(uri: str, experiment: str) -> str | None:
    """The directory of a local database's artifacts: beside it, not in the working directory."""
    database = local_database(uri)
    return None if database is None else str(database.parent / "mlartifacts" / experiment)


def local_database(uri: str) -> Path | None:
    """The file of a local database; None for others."""
    path = uri.partition("?")[0].removeprefix(_SQLITE)
    return Path(path) if uri.startswith(_SQLITE) and path else None


def _own_or(name: str, default: Callable[[], Any]) -> Any:
    own = _settings.get()
    return own[name] if name in own else default()
