"""Lazy imports and optional dependencies.

`load_lazy` imports a public name when it is first used, so that ``import hookline`` stays cheap. `require` checks a
package and its version before an integration imports it. Both raise an error with the command that installs what is
missing, instead of an import error from deep inside.
"""

import re
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

from hookline._engine.errors import MissingExtraError

_OPTIONAL_PACKAGES = frozenset({"accelerate", "torch", "transformers"})


def load_lazy(name: str, place: str, *, extra: str = "torch") -> Any:
    """Import the object of a public name.

    Args:
        name: The name as users write it.
        place: ``package.module:attribute``, or ``package.module`` for the module itself.
        extra: The extra that installs its dependencies.

    Raises:
        MissingExtraError: A package it needs is not installed.
    """
    module, _, attribute = place.partition(":")
    try:
        value = import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OPTIONAL_PACKAGES:
            raise
        raise MissingExtraError(name, extra) from error
    return getattr(value, attribute) if attribute else value


_RELEASE = re.compile(r"\d+(?:\.\d+)*")


def require(
    package: str,
    versions: str | None,
    *,
    extra: str,
    what: str = "hookline",
    alternative: str | None = None,
    distribution: str | None = None,
) -> None:
    """Check that a package is installed in a supported version.

    Args:
        package: Its import name.
        versions: The supported versions, such as ``">=2.4"`` or ``">=2.4,<4"``; None for any.
        extra: The extra of hookline that installs it.
        what: The feature that needs it.
        alternative: Another package that works as well.
        distribution: The name that it is installed by, where that is not its import name.

    Raises:
        MissingExtraError: It is not installed, or in another version.
    """
    found = next((each for each in (package, alternative) if each is not None and _is_installed(each)), None)
    if found is None:
        raise MissingExtraError(what, extra)
    installed = _version_of(found) or (None if distribution is None else _version_of(distribution))
    if installed is None:  # not installed as a distribution
        return
    bounds = [] if versions is None else [bound.strip() for bound in versions.split(",")]
    if not all(_is_within(_release(installed), bound) for bound in bounds):
        raise MissingExtraError(
            f"{what} needs {found}{versions}, and {installed} is installed. "
            f"Install a supported version with: pip install -U 'hookline[{extra}]'"
        )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # a broken or half-removed installation
        return False


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _is_within(installed: tuple[int, ...], bound: str) -> bool:
    limit = _release(bound[2:] if bound.startswith(">=") else bound[1:])
    width = max(len(installed), len(limit))
    left, right = (release + (0,) * (width - len(release)) for release in (installed, limit))
    return left >= right if bound.startswith(">=") else left < right


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without suffixes for builds and pre-releases."""
    numbers = _RELEASE.match(version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()
