"""Attaches hookline to a script that `hookline exec` runs; Python imports this file when it starts.

A ``sitecustomize`` that would have been imported without this one is imported first.
"""

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def _run_hidden() -> None:
    """Import the ``sitecustomize`` that this file hides, in its place."""
    here = Path(__file__).resolve().parent
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if Path(path or ".").resolve() != here])
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _attach() -> None:
    try:
        from hookline._exec.process import attach
    except ModuleNotFoundError as error:
        print(f"hookline exec: {sys.executable} has no {error.name}: nothing is recorded.", file=sys.stderr)  # noqa: T201
        return
    attach()


try:
    _run_hidden()
finally:
    _attach()
