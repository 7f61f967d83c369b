"""Finds the runs below a root: ``<root>/<project>/<run>/`` with a ``run.json``.

Hidden directories and symbolic links are passed by: nothing outside the root is ever looked at.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hookline.record.reader import JOURNAL
from hookline.record.records import clean
from hookline.record.run_directory import FACTS


class Place(NamedTuple):
    """Where a run lies. Its id is ``<project>/<name of its directory>``."""

    project: str
    directory: Path

    @property
    def id(self) -> str:
        """What no other run below the root has."""
        return f"{self.project}/{self.directory.name}"

    @property
    def journal(self) -> Path:
        """The folder with its journals."""
        return self.directory / JOURNAL

    @property
    def facts(self) -> Path:
        """The file that says what was run."""
        return self.directory / FACTS


def places(root: Path) -> Iterator[Place]:
    """All runs below a root; one that is removed meanwhile is left out."""
    for project in _folders(root):
        for directory in _folders(project):
            if is_plain_file(directory / FACTS):
                yield Place(project.name, directory)


def read_facts(path: Path) -> tuple[dict[str, Any], str]:
    """What ``run.json`` says, and what is wrong with it, if something is."""
    try:
        facts = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return {}, f"{FACTS} cannot be read: {error}"
    return (clean(facts), "") if isinstance(facts, dict) else ({}, f"{FACTS} holds no facts")


def is_plain_file(path: Path) -> bool:
    """Whether there is a file of that name that is no link."""
    return path.is_file() and not path.is_symlink()


def _folders(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            names = [entry.name for entry in entries if entry.name[0] != "." and entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [parent / name for name in sorted(names)]
