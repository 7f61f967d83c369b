"""The format of checkpoints on the disk: writing, checking and reading them. Every loop and host uses this one.

A checkpoint is a directory. It holds the loop's counters and metrics and every callback's state (``state.json`` with
their types, and the tensors among them in ``tensors.pt``), the loop's own files, and a manifest that lists every file
with its size and its SHA-256. It is written under a hidden name and then renamed: a crash while saving leaves the
previous checkpoint whole, and at most a hidden directory that the next save removes. A checkpoint with a missing,
truncated or changed file is never loaded. Reading one runs no code.

For a path such as ``x.pt`` it is one file instead: a dict that `torch.load` reads. Files of torch are in it under their
names, so ``torch.load("x.pt")["model"]`` are the weights; all other files are bytes, as tensors. To be loaded, it is
unpacked into a temporary directory.

Manifests of version 0.1 have no digests: of those checkpoints only the sizes are compared.
"""

import contextlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hookline._engine.errors import CheckpointError
from hookline._engine.metrics import plain
from hookline._engine.state import ManifestRow
from hookline._engine.state_encoding import TENSOR, decode, encode
from hookline._record.files import file_digest, sync_descriptor, sync_directory, sync_file, write_atomically
from hookline._record.records import DamagedLineError, line_number, seal_line

logger = logging.getLogger("hookline")

SUFFIXES = (".pt", ".pth")
_PACKED, _PACKED_FILES = "hookline_checkpoint", "hookline_files"
STATE_FILE = "state.json"
TENSORS_FILE = "tensors.pt"
MANIFEST_FILE = "manifest.json"
CALLBACK_SHARDS = "sharded-callbacks"
"""The folder with the sharded tensors of callbacks' states."""
FULL_BYTES = 64 << 10
"""With less free space than this, a failed write is reported as a full disk, whatever torch says."""
_NAMED = 3
_LARGE = 64 << 20
_HASHING_THREADS = 4
_MOST_KNOWN = 1000
_KNOWN_DIGESTS: dict[Path, tuple[tuple[int, ...], str]] = {}
"""Digests of files that were read: a resume checks a checkpoint to choose it, and again to load it."""
Save = Callable[[Path], object]


def save(path: Path, state: Mapping[str, Any], save_more: Save, *, step: int, kind: str = "step") -> ManifestRow:
    """Write a checkpoint at ``path``, replacing what was there only once the new one is complete."""
    partial = make_partial(path)
    try:
        save_more(partial)
    except OSError as error:
        discard(partial)
        raise CheckpointError(f"The checkpoint {path} cannot be written: {error}") from error
    return complete(partial, path, state, step=step, kind=kind)


def make_partial(path: Path, *, name: str | None = None) -> Path:
    """Create an empty directory beside a checkpoint's path, to write it in.

    Args:
        path: The path of the checkpoint.
        name: The name of the directory, where another checkpoint may be written before this one is complete.

    Raises:
        CheckpointError: Something else is at the path, which the checkpoint would replace; or the disk fails.
    """
    if is_file_path(path):
        require_torch(path)
    recover(path)
    # Only the content counts: a directory called step-00000010 may be the user's own.
    if not path.name or (path.exists() and not (is_checkpoint(path) or _is_empty(path))):
        raise CheckpointError(
            f"The checkpoint {path} is not saved: what exists there is not a checkpoint and would be replaced. "
            "Give a path that does not exist yet."
        )
    partial = path.with_name(f"{name or '.' + path.name}.partial")
    try:
        # Killed processes leave these behind. Only in a folder of checkpoints, where nothing else has such names.
        for left in (partial, *(path.parent.glob(".step-*.partial") if path.match("checkpoints/step-*") else ())):
            shutil.rmtree(left, ignore_errors=True)
        partial.mkdir(parents=True)
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} cannot be written: {error}") from error
    return partial


def discard(partial: Path) -> None:
    """Remove a partial checkpoint: on a full disk it takes the space of everything else."""
    shutil.rmtree(partial, ignore_errors=True)


def complete(partial: Path, path: Path, state: Mapping[str, Any], *, step: int, kind: str) -> ManifestRow:
    """Write the state and the manifest beside the loop's files, and rename the checkpoint into place."""
    write_state(partial, path, state)
    return seal(partial, path, plain(dict(state["metrics"])), step=step, kind=kind)


def write_state(partial: Path, path: Path, state: Mapping[str, Any]) -> None:
    """Write the state of a checkpoint that ``path`` will name."""
    # Written over, the user's content would be missing without a trace at the next resume.
    taken = [name for name in (STATE_FILE, TENSORS_FILE, MANIFEST_FILE) if os.path.lexists(partial / name)]
    if taken:
        discard(partial)
        raise CheckpointError(
            f"The checkpoint {path} is not saved: the save function wrote {taken[0]}, which hookline writes itself. "
            f"Give it another name, such as my_{taken[0]}."
        )
    tensors = Tensors()
    try:
        text = json.dumps(tensors.taken_from(state))
    except CheckpointError as error:
        discard(partial)
        raise CheckpointError(f"The checkpoint {path} cannot be written: {error}") from None
    try:
        (partial / STATE_FILE).write_text(text, encoding="utf-8")
        tensors.save(partial / TENSORS_FILE)
    except OSError as error:
        discard(partial)
        raise CheckpointError(f"The checkpoint {path} cannot be written: {error}") from error


def seal(partial: Path, path: Path, metrics: Any, *, step: int, kind: str) -> ManifestRow:
    """Write the manifest of the files in ``partial``, and rename the checkpoint into place."""
    row: dict[str, Any] = {"step": step, "kind": kind, "metrics": metrics, "time": time.time()}
    try:
        files = _sizes(partial)
        # Everything is on the disk before the manifest says so, and the manifest before the rename: after a power cut
        # the final name never stands for incomplete files.
        _sync(partial)
        listed = {"files": files, "sha256": _digests(partial, files)}
        write_atomically(
            partial / MANIFEST_FILE, seal_line(json.dumps(row | listed).encode(), 0)
        )  # checked like a journal line
        size = sum(_sizes(partial).values())
        if is_file_path(path):
            if path.is_dir():
                path.rmdir() if _is_empty(path) else shutil.rmtree(path)  # a checkpoint of an earlier version
            size = pack(partial, path)
            discard(partial)
        else:
            _replace(partial, path)
        for folder in (path.parent, path.parent.parent):  # its own name, and that of the folder of checkpoints
            sync_directory(folder)
    except OSError as error:
        discard(partial)
        raise CheckpointError(f"The checkpoint {path} cannot be written: {error}") from error
    return ManifestRow(path=path, bytes=size, **row)


def load(path: Path) -> dict[str, Any]:
    """Check all files of a checkpoint, and return its state."""
    recover(path)
    if path.is_file() and is_file_path(path):  # a whole one would have been unpacked
        damage = damage_of_file(path)
        reason = "is not a checkpoint: it was not saved by hookline" if damage is None else f"is damaged: {damage}"
        raise CheckpointError(f"{path} {reason}.")
    if not is_checkpoint(path):
        raise CheckpointError(f"{path} is not a checkpoint: it has no {STATE_FILE}.")
    # Reads every file, since torch does not check its own: a flipped bit would be trained on unnoticed.
    damage = damage_of(path, digests=True)
    if damage is not None:
        raise CheckpointError(f"The checkpoint {path} is damaged: {damage}. {_others(path)}")
    try:
        state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / STATE_FILE} cannot be read: {error}") from error
    restored: dict[str, Any] = Tensors.load(path / TENSORS_FILE).put_into(state)
    return restored


def is_checkpoint(path: Path) -> bool:
    """Whether there is a checkpoint at the path, whole or damaged."""
    return any((path / name).is_file() for name in (STATE_FILE, MANIFEST_FILE)) or is_packed(path)


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def recover(path: Path) -> None:
    """Restore a checkpoint that was being replaced when the process died: the new one, or else the old."""
    path = path.resolve()  # one given as "." has no name
    if not path.name:
        return
    old, new = path.with_name(f".{path.name}.old"), path.with_name(f".{path.name}.partial")
    if old.exists() and not path.exists():
        with contextlib.suppress(OSError):  # another process may do the same
            (new if damage_of(new) is None else old).rename(path)


def damage_of(path: Path, *, digests: bool = False) -> str | None:
    """Return the damage of a checkpoint's files, or None.

    Args:
        path: The checkpoint.
        digests: Whether to compare the content of the files too, which reads all of them.
    """
    if path.is_file():
        return damage_of_file(path) if digests else None
    if (path / MANIFEST_FILE).exists() and not (path / MANIFEST_FILE).is_file():  # reading a pipe would wait for ever
        return f"its {MANIFEST_FILE} is not a regular file"
    try:
        text = (path / MANIFEST_FILE).read_bytes()
        line_number(text)  # checks it
        manifest = json.loads(text)
        files: dict[str, int] = dict(manifest["files"])
        noted: dict[str, str] = dict(manifest.get("sha256", {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, DamagedLineError) as error:
        return f"its {MANIFEST_FILE} cannot be read ({error})"
    there = _sizes(path)
    for name, size in files.items():
        if name not in there:
            return f"{name} is missing"
        if there[name] != size:
            return f"{name} has {there[name]:,} of {size:,} bytes"
    try:
        found = _digests(path, files.keys() & noted.keys()) if digests else {}
    except OSError as error:
        return f"{error.filename} cannot be read ({error.strerror})"
    for name in files:
        if name in found and found[name] != noted[name]:
            return f"the content of {name} changed since it was saved (its SHA-256 differs)"
    return None


def recorded_lines(path: Path) -> tuple[str, int] | None:
    """Return the journal of the run that saved a checkpoint, and its number of lines then; None if not noted."""
    try:
        noted = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))["journal"]
        return str(noted["writer"]), int(noted["lines"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def row_of(path: Path, state: Mapping[str, Any]) -> ManifestRow:
    """Return the manifest row of a checkpoint that was loaded."""
    manifest = json.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))
    size = sum(_sizes(path).values())
    kind, when = manifest["kind"], manifest["time"]
    return ManifestRow(step=state["step"], path=path, metrics=state["metrics"], kind=kind, bytes=size, time=when)


def last(run_dir: Path) -> Path | None:
    """Return the latest whole checkpoint in a run's directory; damaged ones are skipped with a warning."""
    for old in run_dir.glob("checkpoints/.step-*.old"):
        recover(old.with_name(old.name.removeprefix(".").removesuffix(".old")))
    for path in sorted(filter(Path.is_dir, run_dir.glob("checkpoints/step-*")), key=_age, reverse=True):
        # By content here too: otherwise a damaged one is chosen, and fails to load where an older one would do.
        damage = damage_of(path, digests=True)
        if damage is None:
            return path
        logger.warning("Skipping the damaged checkpoint %s: %s.", path, damage)
    return None


def _age(path: Path) -> tuple[float, str]:
    """Return when it was saved: after a resume from an earlier one, that is not the order of the steps."""
    try:
        return float(json.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))["time"]), path.name
    except (OSError, ValueError, KeyError, TypeError):
        return path.stat().st_mtime, path.name


def _others(path: Path) -> str:
    names = _whole_beside(path, digests=True)
    return f"Intact checkpoints beside it: {', '.join(names)}." if names else "There is no other checkpoint beside it."


def _whole_beside(path: Path, *, digests: bool = False) -> list[str]:
    others = (state.parent for state in path.parent.glob(f"*/{STATE_FILE}"))
    return sorted(other.name for other in others if damage_of(other, digests=digests) is None)


def beside(path: Path) -> str:
    """Return a sentence that names the latest whole checkpoints beside a path that does not exist."""
    if not path.parent.is_dir():
        return f"There is no {path.parent} either."
    names = _whole_beside(path)
    if not names:
        return f"There is no checkpoint in {path.parent}."
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{path.parent} has {', '.join(names[-_NAMED:])}{more}."


class Tensors:
    """The tensors of a state: the encoded state has a number in place of each."""

    def __init__(self, tensors: list[Any] | None = None) -> None:
        self._tensors = tensors or []

    def taken_from(self, value: Any) -> Any:
        """Return the value as JSON can hold it.

        Raises:
            CheckpointError: It holds something that a checkpoint cannot.
        """
        return encode(value, self._take)

    def put_into(self, value: Any) -> Any:
        """Return the value with its types, and every tensor back in place."""
        return decode(value, lambda place: self._tensors[place])

    def _take(self, tensor: Any) -> dict[str, int]:
        self._tensors.append(tensor)
        return {TENSOR: len(self._tensors) - 1}

    def save(self, path: Path) -> None:
        """Write them, if there are any."""
        if self._tensors:
            with path.open("wb") as file:  # torch, given a path, has an error of its own for a full disk
                sys.modules["torch"].save(self._tensors, file)

    @classmethod
    def load(cls, path: Path) -> "Tensors":
        """Read those of a checkpoint, to the CPU."""
        if not path.exists():
            return cls()
        return cls(read_tensors(path))


def random_file(rank: int) -> str:
    """Return the name of the file with a process's random states and order of the data."""
    return f"random-rank{rank}.pt"


def read_random_states(directory: Path, rank: int) -> Any:
    """Return the content of that file; rank zero's for a process that there was none of."""
    own = directory / random_file(rank)
    return read_tensors(own if own.exists() else directory / random_file(0))


def write_tensors(values: dict[str, Any], path: Path) -> None:
    """Write values, for `read_tensors` to read.

    Raises:
        CheckpointError: They cannot be written.
    """
    import torch

    try:
        with path.open("wb") as file:  # torch, given a path, leaves the file open when the disk is full
            torch.save(_python_numbers(values), file)
    except (OSError, RuntimeError) as error:  # torch's zip writer raises RuntimeError
        free = shutil.disk_usage(path.parent).free
        full = f"No space left on device ({free:,} bytes are free)" if free < FULL_BYTES else ""
        raise CheckpointError(f"{path} cannot be written: {full or str(error).partition(chr(10))[0]}") from error


def _python_numbers(value: Any) -> Any:
    """Replace NumPy's numbers, such as a computed learning rate, by Python's: only those can be read back."""
    if type(value) is dict:  # not the OrderedDict of weights, which has attributes too
        return {key: _python_numbers(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_python_numbers(item) for item in value)
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 else value


def read_tensors(path: Path) -> Any:
    """Read a file of a checkpoint to the CPU; only tensors and plain values are read, never code."""
    import torch

    try:
        # To the CPU: the device of that training may not exist here, and all ranks would fill the memory of the same
        # one.
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: that checkpoint was not saved by a Trainer.") from None
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read: {str(error).strip().partition(chr(10))[0]}") from error


def require_equal_shapes(path: Path, what: str, saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Compare names and shapes in a checkpoint with those of the program, before anything is restored.

    Raises:
        CheckpointError: Some differ.
    """
    wrong = [f"{name} is not in this {what}" for name in saved.keys() - here.keys()]
    wrong += [f"{name} is not in the checkpoint" for name in here.keys() - saved.keys()]
    both = saved.keys() & here.keys()
    wrong += [f"{name} is {saved[name]} there and {here[name]} here" for name in both if saved[name] != here[name]]
    if wrong:
        shown = "; ".join(sorted(wrong)[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        raise CheckpointError(f"The checkpoint {path} is from another {what}: {shown}. Nothing was changed.")


def _sizes(directory: Path) -> dict[str, int]:
    """Return the size of every file in a directory, by its relative path."""
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    return {file.relative_to(directory).as_posix(): file.stat().st_size for file in files}


def _digests(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of files in it. Large ones are read by several threads: hashing releases the GIL."""
    paths = [directory / name for name in sorted(names)]
    if len(paths) > 1 and sum(path.stat().st_size for path in paths) > _LARGE:
        with contextlib.suppress(RuntimeError), ThreadPoolExecutor(_HASHING_THREADS) as threads:  # not at exit
            # Fills the cache that the line below reads. Where no thread can be started, that line does all the work.
            list(threads.map(_digest, paths))
    return {path.relative_to(directory).as_posix(): _digest(path) for path in paths}


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file; one that did not change since this process read it is not read again."""
    found = path.stat()
    # With the ctime: programs that copy files set the mtime back.
    stamp = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    known = _KNOWN_DIGESTS.get(path)
    if known is None or known[0] != stamp:
        known = (stamp, file_digest(path))
        if len(_KNOWN_DIGESTS) >= _MOST_KNOWN:
            _KNOWN_DIGESTS.clear()
        _KNOWN_DIGESTS[path] = known
    return known[1]


def _sync(directory: Path) -> None:
    """Sync everything in a directory to the disk, with its names."""
    for path in (*directory.rglob("*"), directory):
        if path.is_dir():
            sync_directory(path)
        elif path.is_file():
            sync_file(path)


def _replace(partial: Path, path: Path) -> None:
    # A directory cannot replace another in one step. Between the two renames, `recover` finds both.
    if path.exists():
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        partial.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        partial.rename(path)


def is_file_path(path: Path) -> bool:
    """Whether a checkpoint at this path is one file."""
    return path.suffix.lower() in SUFFIXES


def pack(directory: Path, path: Path) -> int:
    """Write a checkpoint's directory as one file, replacing an old one; returns its size in bytes."""
    torch = require_torch(path)
    packed: dict[str, Any] = {_PACKED: 1, _PACKED_FILES: {}}
    for file in sorted(each for each in directory.rglob("*") if each.is_file()):
        name = file.relative_to(directory).as_posix()
        content = _read(torch, file) if "/" not in name and file.suffix == ".pt" else None
        if content is None or file.stem in packed:
            # frombuffer() refuses an empty buffer, so an empty file has one byte that is cut off again.
            packed[_PACKED_FILES][name] = torch.frombuffer(bytearray(file.read_bytes() or b"\0"), dtype=torch.uint8)
            packed[_PACKED_FILES][name] = packed[_PACKED_FILES][name][: file.stat().st_size]
        else:
            packed[file.stem] = content
    partial = path.with_name(f".{path.name}.file")
    with partial.open("wb") as file_:
        torch.save(packed, file_)
        file_.flush()
        sync_descriptor(file_.fileno())
    partial.replace(path)
    return path.stat().st_size


def is_packed(path: Path) -> bool:
    """Whether there is a file at that path that `pack` wrote."""
    if not is_file_path(path) or not path.is_file():
        return False
    # Mapped: only the keys are looked at, and the weights may be gigabytes.
    content = _read(require_torch(path), path, mmap=True)
    return isinstance(content, dict) and _PACKED in content


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield the directory of a checkpoint; for one in a file, a temporary one."""
    if not is_packed(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="hookline-checkpoint-") as place:
        directory = Path(place) / path.stem
        _unpack(path, directory)
        yield directory


def _unpack(path: Path, directory: Path) -> None:
    torch = require_torch(path)
    damage = damage_of_file(path)
    if damage is not None:
        raise CheckpointError(f"The checkpoint {path} is damaged: {damage}.")
    packed = _read(torch, path)
    directory.mkdir()
    for name, content in packed[_PACKED_FILES].items():
        file = directory / name
        # The file may come from elsewhere: a name with ".." in it must not write outside.
        if directory.resolve() not in file.resolve().parents:
            raise CheckpointError(f"The checkpoint {path} is damaged: it has a file {name!r} outside of itself.")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.numpy().tobytes())
    for name, content in packed.items():
        if name not in (_PACKED, _PACKED_FILES):
            torch.save(content, directory / f"{Path(name).name}.pt")
    # Files of torch that are written again may differ in size and digest; the archive itself was checked above.
    manifest = directory / "manifest.json"
    facts = json.loads(manifest.read_text(encoding="utf-8"))
    noted = facts.get("sha256", {})
    facts["sha256"] = {name: digest for name, digest in noted.items() if name in packed[_PACKED_FILES]}
    facts["files"] = {name: (directory / name).stat().st_size for name in facts["files"]}
    manifest.write_text(json.dumps(facts), encoding="utf-8")


def damage_of_file(path: Path) -> str | None:
    """Return what is wrong with a file of torch by its checksums, which torch does not check itself; or None."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        # A flipped bit in the zip directory can name a compression that does not exist, or ask for a password.
        return f"it is no longer a torch file ({error})"
    return None if damaged is None else f"the content of {damaged} in it changed since it was saved"


def _read(torch: Any, path: Path, **options: Any) -> Any:
    """Read a file of torch without running code; None where that is impossible."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, **options)
    except Exception:
        return None


def require_torch(path: Path) -> Any:
    """Return the module torch, which a checkpoint in one file needs.

    Raises:
        CheckpointError: It is not installed.
    """
    try:
        import torch
    except ImportError:
        raise CheckpointError(
            f"The checkpoint {path} needs torch, which is not installed: give a path without "
            f"{path.suffix!r}, for a directory."
        ) from None
    return torch
