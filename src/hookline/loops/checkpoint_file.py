"""A checkpoint as one file, for paths such as ``x.pt``: the files of its directory in a dict that `torch.load` reads.

What a checkpoint has as files of torch stands in the dict under the name of the file, so that
``torch.load("x.pt")["model"]`` are the weights; all other files are bytes, as tensors. The file is replaced as a whole.
To be loaded, it is unpacked into a temporary directory.
"""

import json
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hookline._engine.errors import CheckpointError
from hookline._record.files import sync_descriptor

SUFFIXES = (".pt", ".pth")
_MARK, _FILES = "hookline_checkpoint", "hookline_files"


def is_file_path(path: Path) -> bool:
    """Whether a checkpoint at this path is one file."""
    return path.suffix.lower() in SUFFIXES


def pack(directory: Path, path: Path) -> int:
    """Write a checkpoint's directory as a file, in place of what was there; returns its size in bytes."""
    torch = require_torch(path)
    packed: dict[str, Any] = {_MARK: 1, _FILES: {}}
    for file in sorted(each for each in directory.rglob("*") if each.is_file()):
        name = file.relative_to(directory).as_posix()
        content = _read(torch, file) if "/" not in name and file.suffix == ".pt" else None
        if content is None or file.stem in packed:
            packed[_FILES][name] = torch.frombuffer(bytearray(file.read_bytes() or b"\0"), dtype=torch.uint8)
            packed[_FILES][name] = packed[_FILES][name][: file.stat().st_size]
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
    return isinstance(content, dict) and _MARK in content


@contextmanager
def opened(path: Path) -> Iterator[Path]:
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
    for name, content in packed[_FILES].items():
        file = directory / name
        if directory.resolve() not in file.resolve().parents:
            raise CheckpointError(f"The checkpoint {path} is damaged: it has a file {name!r} outside of itself.")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.numpy().tobytes())
    for name, content in packed.items():
        if name not in (_MARK, _FILES):
            torch.save(content, directory / f"{Path(name).name}.pt")
    # Files of torch that are written again need not have their size and digest; the archive itself was checked above.
    manifest = directory / "manifest.json"
    facts = json.loads(manifest.read_text(encoding="utf-8"))
    noted = facts.get("sha256", {})
    facts["sha256"] = {name: digest for name, digest in noted.items() if name in packed[_FILES]}
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
