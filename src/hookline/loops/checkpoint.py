"""Checkpoints: a directory each, written aside and then renamed; or a file, for a path such as ``x.pt``.

A checkpoint holds the loop's counters and metrics and every callback's state (``state.json``, with their
types, and the tensors among them in ``tensors.pt``), what the loop itself puts beside them, and a manifest that lists
every file with its size and its SHA-256. A crash while saving leaves the previous checkpoint whole and at most a hidden
directory that the next save removes. One of which a file is missing, cut short or changed is never loaded.

Manifests of version 0.1 have no digests: of those checkpoints only the sizes are compared.

A checkpoint as one file, for paths such as ``x.pt``: the files of its directory in a dict that `torch.load` reads.

What a checkpoint has as files of torch stands in the dict under the name of the file, so that
``torch.load("x.pt")["model"]`` are the weights; all other files are bytes, as tensors. The file is replaced as a whole.
To be loaded, it is unpacked into a temporary directory.
"""

import contextlib
import json
import logging
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

from hookline._engine.encoding import TENSOR, decode, encode
from hookline._engine.errors import CheckpointError
from hookline._engine.metrics import plain
from hookline._engine.state import ManifestRow
from hookline._record.files import file_digest, sync_descriptor, sync_directory, sync_file, write_atomically
from hookline._record.records import DamagedLineError, line_number, seal_line

SUFFIXES = (".pt", ".pth")
_PACKED, _PACKED_FILES = "hookline_checkpoint", "hookline_files"


def is_file_path(path: Path) -> bool:
    """Whether a checkpoint at this path is one file."""
    return path.suffix.lower() in SUFFIXES


def pack(directory: Path, path: Path) -> int:
    """Write a checkpoint's directory as a file, in place of what was there; returns its size in bytes."""
    torch = require_torch(path)
    packed: dict[str, Any] = {_PACKED: 1, _PACKED_FILES: {}}
    for file in sorted(each for each in directory.rglob("*") if each.is_file()):
        name = file.relative_to(directory).as_posix()
        content = _read(torch, file) if "/" not in name and file.suffix == ".pt" else None
        if content is None or file.stem in packed:
            packed[_PACKED_FILES][name] = torch.frombuffer(bytearray(file.read_bytes() or b"\0"), dtype=torch.uint8)
            packed[_PACKED_FILES][name] = packed[_PACKED_FILES][name][: file.stat().st_size]
        else:
            packed[file.stem] = content
    aside = path.with_name(f".{path.name}.file")
    with aside.open("wb") as file_:
        torch.save(packed, file_)
        file_.flush()
        sync_descriptor(file_.fileno())
    aside.replace(path)
    return path.stat().st_size


def is_packed(path: Path) -> bool:
    """Whether there is a file at that path that `pack` wrote."""
    if not is_file_path(path) or not path.is_file():
        return False
    content = _read(require_torch(path), path, mmap=True)
    return isinstance(content, dict) and _PACKED in content


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The directory of a checkpoint, which for a file is a temporary one."""
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
        if directory.resolve() not in file.resolve().parents:
            raise CheckpointError(f"The checkpoint {path} is damaged: it has a file {name!r} outside of itself.")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.numpy().tobytes())
    for name, content in packed.items():
        if name not in (_PACKED, _PACKED_FILES):
            torch.save(content, directory / f"{Path(name).name}.pt")
    # Files of torch that are written again need not have their size and digest; the archive itself was checked above.
    manifest = directory / "manifest.json"
    facts = json.loads(manifest.read_text(encoding="utf-8"))
    noted = facts.get("sha256", {})
    facts["sha256"] = {name: digest for name, digest in noted.items() if name in packed[_PACKED_FILES]}
    facts["files"] = {name: (directory / name).stat().st_size for name in facts["files"]}
    manifest.write_text(json.dumps(facts), encoding="utf-8")


def damage_of_file(path: Path) -> str | None:
    """What is wrong with a file of torch by the checksums in it, which torch writes and does not check; or None."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        # A flipped bit in its table of contents can ask for a compression that does not exist, or a password.
        return f"it is not a file of torch any more ({error})"
    return None if damaged is None else f"the content of {damaged} in it changed since it was saved"


def _read(torch: Any, path: Path, **options: Any) -> Any:
    """What a file of torch holds, without running code of it; None for one that cannot be read so."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, **options)
    except Exception:
        return None


def require_torch(path: Path) -> Any:
    """The module torch, which a checkpoint in one file needs.

    Raises:
        CheckpointError: It is not installed.
    """
    try:
        import torch
    except ImportError:
        raise CheckpointError(
            f"The checkpoint {path} would be a file of torch, which is not installed: give a path without "
            f"{path.suffix!r}, for a directory."
        ) from None
    return torch


logger = logging.getLogger("hookline")

STATE_FILE = "state.json"
TENSORS_FILE = "tensors.pt"
MANIFEST_FILE = "manifest.json"
CALLBACK_SHARDS = "sharded-callbacks"
"""Where the sharded tensors of callbacks' states lie."""
FULL_BYTES = 64 << 10
"""With less free space than this, a failed write is reported as a full disk, whatever torch says."""
_NAMED = 3
_LARGE = 64 << 20
_HASHING_THREADS = 4
_MOST_KNOWN = 1000
_KNOWN_DIGESTS: dict[Path, tuple[tuple[int, ...], str]] = {}
"""Digests of files that were read, so that the checkpoint that a resume chooses is not read once more to be loaded."""
Save = Callable[[Path], object]


def save(path: Path, state: Mapping[str, Any], save_more: Save, *, step: int, kind: str = "step") -> ManifestRow:
    """Write a checkpoint at ``path``, replacing what was there only once the new one is complete."""
    aside = make_partial(path)
    try:
        save_more(aside)
    except OSError as error:
        discard(aside)
        raise CheckpointError(f"The checkpoint {path} cannot be written: {error}") from error
    return complete(aside, path, state, step=step, kind=kind)


def make_partial(path: Path, *, name: str | None = None) -> Path:
    """An empty directory beside a checkpoint's place, to write it in.

    Args:
        path: The checkpoint's place.
        name: What the directory is called, where another checkpoint may be written before this one is complete.

    Raises:
        CheckpointError: Something else lies there, which the checkpoint would replace; or the disk fails.
    """
    if is_file_path(path):
        require_torch(path)
    recover(path)
    # The name says nothing: a directory called step-00000010 may be the user's own.
    if not path.name or (path.exists() and not (is_checkpoint(path) or _is_empty(path))):
        raise CheckpointError(
            f"The checkpoint {path} is not saved: what lies there is no checkpoint, and would be replaced by one. "
            "Give a path that does not exist yet."
        )
    aside = path.with_name(f"{name or '.' + path.name}.partial")
    try:
        for left in (aside, *(path.parent.glob(".step-*.partial") if path.match("checkpoints/step-*") else ())):
            shutil.rmtree(left, ignore_errors=True)
        aside.mkdir(parents=True)
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} cannot be written: {error}") from error
    return aside


def discard(aside: Path) -> None:
    """Remove what was begun: on a full disk it takes the place of everything else."""
    shutil.rmtree(aside, ignore_errors=True)


def complete(aside: Path, path: Path, state: Mapping[str, Any], *, step: int, kind: str) -> ManifestRow:
    """Write the state and the manifest beside what was written already, and put the checkpoint in its place."""
    write_state(aside, path, state)
    return seal(aside, path, plain(dict(state["metrics"])), step=step, kind=kind)


def write_state(aside: Path, path: Path, state: Mapping[str, Any]) -> None:
    """Write the state of a checkpoint that will lie at ``path``."""
    tensors = Tensors()
    try:
        text = json.dumps(tensors.taken_from(state))
    except CheckpointError as error:
        discard(aside)
        raise CheckpointError(f"The checkpoint {path} cannot be written: {error}") from None
    try:
        (aside / STATE_FILE).write_text(text, encoding="utf-8")
        tensors.save(aside / TENSORS_FILE)
    except OSError as error:
        discard(aside)
        raise CheckpointError(f"The checkpoint {path} cannot be written: {error}") from error


def seal(aside: Path, path: Path, metrics: Any, *, step: int, kind: str) -> ManifestRow:
    """Write the manifest of what was written aside, and put the checkpoint in its place."""
    row: dict[str, Any] = {"step": step, "kind": kind, "metrics": metrics, "time": time.time()}
    try:
        files = _sizes(aside)
        _sync(aside)
        listed = {"files": files, "sha256": _digests(aside, files)}
        write_atomically(
            aside / MANIFEST_FILE, seal_line(json.dumps(row | listed).encode(), 0)
        )  # checked like a journal line
        size = sum(_sizes(aside).values())
        if is_file_path(path):
            if path.is_dir():
                path.rmdir() if _is_empty(path) else shutil.rmtree(path)  # a checkpoint of an earlier version
            size = pack(aside, path)
            discard(aside)
        else:
            _replace(aside, path)
        for folder in (path.parent, path.parent.parent):  # its name, and that of the folder of checkpoints
            sync_directory(folder)
    except OSError as error:
        discard(aside)
        raise CheckpointError(f"The checkpoint {path} cannot be written: {error}") from error
    return ManifestRow(path=path, bytes=size, **row)


def load(path: Path) -> dict[str, Any]:
    """The state in a checkpoint, once all its files are known to be whole."""
    recover(path)
    if path.is_file() and is_file_path(path):  # one in a file that is whole was unpacked
        damage = damage_of_file(path)
        said = "is not a checkpoint: it was not saved by hookline" if damage is None else f"is damaged: {damage}"
        raise CheckpointError(f"{path} {said}.")
    if not is_checkpoint(path):
        raise CheckpointError(f"{path} is not a checkpoint: it has no {STATE_FILE}.")
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
    """Whether there is a checkpoint at that place, whole or damaged."""
    return any((path / name).is_file() for name in (STATE_FILE, MANIFEST_FILE)) or is_packed(path)


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def recover(path: Path) -> None:
    """Bring back a checkpoint that was just being replaced when the process died: the new one, or else the old."""
    path = path.resolve()  # one given as "." has no name
    if not path.name:
        return
    old, new = path.with_name(f".{path.name}.old"), path.with_name(f".{path.name}.partial")
    if old.exists() and not path.exists():
        with contextlib.suppress(OSError):  # another process does the same
            (new if damage_of(new) is None else old).rename(path)


def damage_of(path: Path, *, digests: bool = False) -> str | None:
    """What is wrong with a checkpoint's files, or None.

    Args:
        path: The checkpoint.
        digests: Whether the content of the files is compared, too, which reads all of them.
    """
    if path.is_file():
        return damage_of_file(path) if digests else None
    try:
        text = (path / MANIFEST_FILE).read_bytes()
        line_number(text)  # checks it
        manifest = json.loads(text)
        files: dict[str, int] = dict(manifest["files"])
        noted: dict[str, str] = dict(manifest.get("sha256", {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DamagedLineError) as error:
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
            return f"the content of {name} changed since it was saved (its SHA-256 is another)"
    return None


def recorded_lines(path: Path) -> tuple[str, int] | None:
    """Which journal the run was writing when it saved a checkpoint, and its lines; None where that was not noted."""
    try:
        noted = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))["journal"]
        return str(noted["writer"]), int(noted["lines"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def row_of(path: Path, state: Mapping[str, Any]) -> ManifestRow:
    """The manifest row of a checkpoint that was loaded."""
    manifest = json.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))
    size = sum(_sizes(path).values())
    kind, when = manifest["kind"], manifest["time"]
    return ManifestRow(step=state["step"], path=path, metrics=state["metrics"], kind=kind, bytes=size, time=when)


def last(run_dir: Path) -> Path | None:
    """The latest whole checkpoint in a run's directory; those that are damaged are named and passed over."""
    for old in run_dir.glob("checkpoints/.step-*.old"):
        recover(old.with_name(old.name.removeprefix(".").removesuffix(".old")))
    for path in sorted(filter(Path.is_dir, run_dir.glob("checkpoints/step-*")), key=_age, reverse=True):
        damage = damage_of(path, digests=True)
        if damage is None:
            return path
        logger.warning("The checkpoint %s is damaged and passed over: %s.", path, damage)
    return None


def _age(path: Path) -> tuple[float, str]:
    """When it was saved, which after going back to an earlier one is not the order of the steps."""
    try:
        return float(json.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))["time"]), path.name
    except (OSError, ValueError, KeyError, TypeError):
        return path.stat().st_mtime, path.name


def _others(path: Path) -> str:
    names = _whole_beside(path, digests=True)
    return f"Whole ones beside it: {', '.join(names)}." if names else "There is no other one beside it."


def _whole_beside(path: Path, *, digests: bool = False) -> list[str]:
    others = (state.parent for state in path.parent.glob(f"*/{STATE_FILE}"))
    return sorted(other.name for other in others if damage_of(other, digests=digests) is None)


def beside(path: Path) -> str:
    """A sentence that names the latest whole checkpoints in the directory that one was looked for in."""
    if not path.parent.is_dir():
        return f"There is no {path.parent} either."
    names = _whole_beside(path)
    if not names:
        return f"No checkpoint lies in {path.parent}."
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{path.parent} has {', '.join(names[-_NAMED:])}{more}."


class Tensors:
    """The tensors among a state: the encoded state has a number in the place of each."""

    def __init__(self, tensors: list[Any] | None = None) -> None:
        self._tensors = tensors or []

    def taken_from(self, value: Any) -> Any:
        """The value as JSON can hold it.

        Raises:
            CheckpointError: It holds something that a checkpoint cannot.
        """
        return encode(value, self._take)

    def put_into(self, value: Any) -> Any:
        """The value with its types, and every tensor back in its place."""
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
        """Those of a checkpoint, on the CPU."""
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
    """What a file of a checkpoint holds, on the CPU; only tensors and plain values are read, never code."""
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: that checkpoint was not saved by a Trainer.") from None
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read: {str(error).strip().partition(chr(10))[0]}") from error


def _sizes(directory: Path) -> dict[str, int]:
    """The size of every file in it, by its path inside."""
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    return {file.relative_to(directory).as_posix(): file.stat().st_size for file in files}


def _digests(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of files in it. Large ones are read by several threads: hashing lets go of the interpreter's lock."""
    paths = [directory / name for name in sorted(names)]
    if len(paths) > 1 and sum(path.stat().st_size for path in paths) > _LARGE:
        with contextlib.suppress(RuntimeError), ThreadPoolExecutor(_HASHING_THREADS) as threads:  # not at exit
            list(threads.map(_digest, paths))
    return {path.relative_to(directory).as_posix(): _digest(path) for path in paths}


def _digest(path: Path) -> str:
    """The SHA-256 of a file; one that this process has read and that did not change since is not read again."""
    found = path.stat()
    stamp = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    known = _KNOWN_DIGESTS.get(path)
    if known is None or known[0] != stamp:
        known = (stamp, file_digest(path))
        if len(_KNOWN_DIGESTS) >= _MOST_KNOWN:
            _KNOWN_DIGESTS.clear()
        _KNOWN_DIGESTS[path] = known
    return known[1]


def _sync(directory: Path) -> None:
    """Bring everything in a directory to the disk, with its names."""
    for path in (*directory.rglob("*"), directory):
        if path.is_dir():
            sync_directory(path)
        elif path.is_file():
            sync_file(path)


def _replace(aside: Path, path: Path) -> None:
    if path.exists():
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        aside.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        aside.rename(path)
