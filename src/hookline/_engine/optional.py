"""Public names that are imported when they are first used, so that ``import hookline`` stays cheap.

Where that takes a package of an extra which is not installed, the error says what to install.

`require`: what a bridge needs of other packages is checked before anything is imported, and said in plain words.

The message has the command that installs what is needed, so that nobody sees an import error from deep inside.
"""

import re
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

from hookline._engine.errors import MissingExtraError

_OF_EXTRAS = frozenset({"accelerate", "torch", "transformers"})


def load_lazy(name: str, place: str, *, extra: str = "torch") -> Any:
    """What a public name stands for.

    Args:
        name: The name as users write it.
        place: Where it is: ``package.module:attribute``, or ``package.module`` for the module itself.
        extra: The extra that brings all that it needs.

    Raises:
        MissingExtraError: A package that it needs is not installed.
    """
    module, _, attribute = place.partition(":")
    try:
        value = import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_EXTRAS:
            raise
        raise MissingExtraError(name, extra) from error
    return getattr(value, attribute) if attribute else value


_RELEASE = re.compile(r"\d+(?:\.\d+)*")
Release = tuple[int, ...]


def require(
    package: str, versions: str | None, *, extra: str, what: str = "hookline", alternative: str | None = None
) -> None:
    """Check that a package is installed, and of a version that is supported.

    Args:
        package: What it is imported as.
        versions: Those that are supported, such as ``">=2.4"`` or ``">=2.4,<4"``; None for whichever another
            package brings.
        extra: The extra of hookline that brings it.
        what: What needs it.
        alternative: Another package that does as well.

    Raises:
        MissingExtraError: It is not installed, or of another version.
    """
    found = next((each for each in (package, alternative) if each is not None and _is_there(each)), None)
    if found is None:
        raise MissingExtraError(what, extra)
    installed = _version(found)
    if installed is not None and versions is not None and not _fits(installed, versions):
        raise MissingExtraError(
            f"{what} works with {found}{versions}, and {installed} is installed. "
            f"Install one that is supported with: pip install -U 'hookline[{extra}]'"
        )


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # somebody took it away, or left a part of it
        return False


def _version(package: str) -> str | None:
    """The installed version; None for one that was not installed as a distribution."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _fits(installed: str, versions: str) -> bool:
    found = _release(installed)
    return all(_holds(found, bound.strip()) for bound in versions.split(","))


def _holds(found: Release, bound: str) -> bool:
    limit = _release(bound[2:] if bound.startswith(">=") else bound[1:])
    width = max(len(found), len(limit))
    left, right = (release + (0,) * (width - len(release)) for release in (found, limit))
    return left >= right if bound.startswith(">=") else left < right


def _release(version: str) -> Release:
    """The numbers of a version, without what marks it as a build or as one before its release."""
    numbers = _RELEASE.match(version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()
