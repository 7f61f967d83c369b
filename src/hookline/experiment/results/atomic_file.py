"""Files that are there as a whole or not at all: written aside, then put in their place."""

from pathlib import Path

from hookline.record.durable import replace_file


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file, making its folder if need be. A reader finds what was there before or all that is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
