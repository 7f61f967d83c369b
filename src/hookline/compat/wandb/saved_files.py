"""Files of a run: `save`, `restore` and `log_code`, and the folder ``run.dir``.

A saved file gets a place below ``run.dir``, as a hard link where the file system has them, and is recorded as a file of
the run, which the page offers for download. With the policy ``live`` or ``end`` it is recorded at the end as well, if
it has changed, and so are files that the program wrote to ``run.dir`` itself.
"""

import contextlib
import glob as globbing
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Any, TextIO

from hookline._record import media
from hookline.compat.wandb.errors import CommError
from hookline.compat.wandb.history import SAVED_FILES
from hookline.compat.wandb.recording import run_directories
from hookline.compat.wandb.terminal import termlog, termwarn

FILES = "files"
"""The folder of a run's directory that is ``run.dir``."""
POLICIES = ("live", "end", "now")
CODE_SUFFIXES = (".py",)
_LEFT_OUT = ("wandb", ".wandb", "runs", ".git", "__pycache__", ".venv", "node_modules")
_Stamp = tuple[int, int, int]


class SavedFiles:
    """The saved files of a run.

    Args:
        folder: ``run.dir``.
        record: Records a file under a name.
    """

    def __init__(self, folder: Path, record: Callable[[str, media.File], None]) -> None:
        self.folder = folder
        self._record = record
        self._sources: dict[Path, Path] = {}
        self._recorded: dict[Path, _Stamp] = {}

    def save(self, glob_str: Any, base_path: Any, policy: str, *, expands: bool) -> list[str]:
        """Save the files that match a pattern; see `Run.save`.

        Raises:
            ValueError: The policy is not known, or the pattern is not below the base.
        """
        if policy not in POLICIES:
            raise ValueError('Only "live", "end" and "now" policies are currently supported.')
        text = glob_str.decode() if isinstance(glob_str, bytes) else os.fspath(glob_str)
        if text.startswith(("gs://", "s3://")):
            termlog(f"{text} is a cloud storage url, can't save file to W&B.")
            return []
        pattern = PurePath(os.path.abspath(text))  # noqa: PTH100 - a pattern, which must not be resolved
        if base_path is not None:
            base = PurePath(os.path.abspath(base_path))  # noqa: PTH100
        elif not os.path.isabs(text):  # noqa: PTH117
            base = PurePath(Path.cwd())
        else:
            termwarn("Saving files without folders. To preserve subdirectories give base_path.", repeat=False)
            base = pattern.parent.parent
        if not pattern.is_relative_to(base):
            raise ValueError(f"glob_path={text!r} must be below base_path={os.fspath(base)!r}.")
        matches = sorted(globbing.glob(str(pattern))) if expands else [str(pattern)]  # noqa: PTH207 - of a text
        found = [Path(match) for match in matches if Path(match).is_file()]
        return [str(self._save(path, path.relative_to(base), policy)) for path in found]

    def finish(self) -> None:
        """Record files that changed since, and those that the program wrote to the folder itself."""
        for target, source in self._sources.items():
            with contextlib.suppress(OSError):
                if not target.exists() or not target.samefile(source):
                    _link(source, target)
        with contextlib.suppress(OSError):
            for path in sorted(self.folder.rglob("*")):
                if path.is_file() and not path.is_symlink():
                    self._record_changed(path)

    def _save(self, source: Path, inside: Path, policy: str) -> Path:
        target = self.folder / inside
        if not (target.exists() and target.samefile(source)):
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(source, target)
        if policy == "now":
            self._record_changed(target)
        else:
            self._sources[target] = source
            self._record_changed(target)
        return target

    def _record_changed(self, path: Path) -> None:
        status = path.stat()
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._recorded.get(path) != stamp:
            self._recorded[path] = stamp
            self._record(f"{SAVED_FILES}{path.relative_to(self.folder).as_posix()}", media.File(path))


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def restore(name: str, run_path: str, *, home: Path, project: str, folder: Path, replace: bool) -> TextIO | None:
    """Copy a saved file of a run to a folder, and open it; None if there is none.

    Args:
        name: Its name.
        run_path: ``[entity/][project/]id``.
        home: Where runs are recorded.
        project: The project, where the path names none.
        folder: The folder.
        replace: Replace a file that is there.

    Raises:
        CommError: There is no such run.
    """
    target = folder / name
    if target.exists() and not replace:
        return target.open(encoding="utf-8")
    parts = run_path.strip("/").split("/")
    there = run_directories(home / (parts[-2] if len(parts) > 1 else project), parts[-1])
    if not there:
        raise CommError(f"There is no run {run_path!r} in {home}.")
    files = (there[0] / FILES).resolve()
    source = (files / name).resolve()
    if not source.is_file() or not source.is_relative_to(files):
        return None
    if source != target.resolve():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    return target.open(encoding="utf-8")


def code_files(
    root: str | os.PathLike[str], include: Callable[..., bool], exclude: Callable[..., bool]
) -> Iterable[tuple[str, Path]]:
    """Yield the code below a directory, by its path there.

    Args:
        root: The directory.
        include: Whether to include a path; called with the path, and the root if it takes two arguments.
        exclude: Whether to leave out a path, likewise.
    """
    top = Path(root).absolute()
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in sorted(names):
            path = str(Path(folder, name))
            if _asked(include, path, top) and not _asked(exclude, path, top):
                yield Path(path).relative_to(top).as_posix(), Path(path)


def is_code(path: str) -> bool:
    """Return whether a path is one that `log_code` includes by default."""
    name = Path(path).name
    return path.endswith(CODE_SUFFIXES) or name.startswith(("requirements", "Dockerfile"))


def is_left_out(path: str, root: str) -> bool:
    """Return whether a path is one that `log_code` leaves out by default."""
    return any(part in _LEFT_OUT for part in Path(path).relative_to(root).parts)


def _asked(question: Callable[..., bool], path: str, root: Path) -> bool:
    import inspect

    try:
        takes_two = len(inspect.signature(question).parameters) > 1
    except (TypeError, ValueError):
        takes_two = False
    return bool(question(path, str(root)) if takes_two else question(path))
