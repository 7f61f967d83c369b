"""Lets ``import wandb`` find the drop-in, for libraries and scripts that are not edited.

The directory that `import_directory` returns holds a package ``wandb`` and the metadata of a distribution of that name,
which libraries look for. In front of ``sys.path`` or ``PYTHONPATH`` it takes wandb's place: always where wandb is not
installed; where it is, only if `install` is called with ``replace=True``, or ``HOOKLINE_AS_WANDB`` is ``on``.
"""

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from hookline.compat.wandb import layout
from hookline.compat.wandb.active import PACKAGE
from hookline.compat.wandb.errors import UsageError

VARIABLE = "HOOKLINE_AS_WANDB"
"""The variable that lets the drop-in take the place of an installed wandb (``on``), or never (``off``)."""
NAME = "wandb"


def import_directory() -> Path:
    """Return the directory to put on ``sys.path`` or ``PYTHONPATH``."""
    return Path(__file__).parent / "import_path"


def child_environment(environment: Mapping[str, str] | None = None, *, replace: bool = True) -> dict[str, str]:
    """Return an environment in which other Python processes import the drop-in as ``wandb``.

    Args:
        environment: The environment to extend; this process's by default.
        replace: Whether it takes the place of an installed wandb.
    """
    found = dict(os.environ if environment is None else environment)
    paths = [str(import_directory()), *filter(None, found.get("PYTHONPATH", "").split(os.pathsep))]
    found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    if replace:
        found[VARIABLE] = "on"
    return found


def install(*, replace: bool = False) -> None:
    """Let ``import wandb`` in this process return the drop-in.

    Call it before anything imports wandb, and before libraries that look for it.

    Args:
        replace: Whether it takes the place of an installed wandb.

    Raises:
        UsageError: wandb is imported already, or is installed and ``replace`` is not given.
    """
    imported = sys.modules.get(NAME)
    if imported is not None and not is_drop_in(imported):
        raise UsageError("install(): wandb has been imported already. Call install() before anything imports it.")
    if not replace and not _is_requested() and find_installed() is not None:
        raise UsageError(
            f"install(): wandb is installed. Give replace=True, or set {VARIABLE}=on, to use the drop-in instead."
        )
    directory = str(import_directory())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    importlib.invalidate_caches()
    take_over()


def uninstall() -> None:
    """Undo `install`; modules that imported the drop-in keep it."""
    directory = str(import_directory())
    sys.path[:] = [path for path in sys.path if path != directory]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AliasFinder)]
    for name in [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def take_over() -> ModuleType:
    """Make the drop-in the module ``wandb``, and let its submodules be imported; returns it."""
    package = importlib.import_module(PACKAGE)
    sys.modules[NAME] = package
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder())
    return package


def import_wandb() -> ModuleType:
    """Return the module for ``import wandb`` from the directory: the drop-in, or an installed wandb."""
    if not _is_requested() and (_is_refused() or find_installed() is not None):
        directory = str(import_directory())
        # importlib.metadata must find the installed one, too.
        sys.path[:] = [path for path in sys.path if Path(path).absolute() != Path(directory)]
        sys.modules.pop(NAME, None)
        importlib.invalidate_caches()
        return importlib.import_module(NAME)
    return take_over()


def find_installed() -> ModuleSpec | None:
    """Return the installed wandb; None if there is none."""
    directory = import_directory()
    paths = [path for path in sys.path if Path(path or ".").absolute() != directory]
    return PathFinder.find_spec(NAME, paths)


def is_drop_in(module: Any) -> bool:
    """Return whether a module is the drop-in."""
    return bool(getattr(module, "IS_HOOKLINE", False))


def _is_requested() -> bool:
    return os.environ.get(VARIABLE, "").strip().lower() in ("1", "on", "true", "yes")


def _is_refused() -> bool:
    return os.environ.get(VARIABLE, "").strip().lower() in ("0", "off", "false", "no")


class AliasFinder(MetaPathFinder):
    """Finds wandb's submodules, such as ``wandb.sdk.lib.config_util``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a submodule; None for any other module."""
        parent, _, name = fullname.partition(".")
        if parent != NAME or not is_drop_in(sys.modules.get(NAME)) or not layout.has_module(name):
            return None
        return ModuleSpec(fullname, AliasLoader(name), is_package=True)


class AliasLoader(Loader):
    """Loads a submodule of wandb from the layout."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return layout.module(self._name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is complete."""
