"""Small stand-ins for frameworks that do not install beside the tests.

Each calls the same methods with the same arguments in the same order as the named version of the framework, and has the
attributes that hookline reads. It does nothing else: what is tested with it is hookline's side.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def importable(modules: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Let hookline import modules by name, given what is in each; the packages above them as well."""
    names = {".".join(name.split(".")[:depth]) for name in modules for depth in range(1, name.count(".") + 2)}
    for name in sorted(names):
        module = sys.modules[name] = ModuleType(name)
        vars(module).update({"__path__": [], **modules.get(name, {})})
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
