"""The package's source as classes and functions with their full names, without importing any of it."""

import ast
import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Parses without garbage collections: to look at the trees again and again takes longer than to make them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True)
class Module:
    """A module's source: its name, and where the names that it imports come from."""

    name: str
    tree: ast.Module
    imported: dict[str, str]

    @classmethod
    def read(cls, file: Path, root: Path) -> "Module":
        parts = file.relative_to(root).with_suffix("").parts
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imports = [node for node in _statements(tree.body) if isinstance(node, ast.ImportFrom)]
        imported = {each.asname or each.name: f"{node.module}.{each.name}" for node in imports for each in node.names}
        return cls(".".join(parts).removesuffix(".__init__"), tree, imported)

    def home(self, name: str) -> str:
        """The full name of what goes by a name here; one with dots is reached through a module, and is full."""
        return name if "." in name else self.imported.get(name, f"{self.name}.{name}")

    def offered(self) -> list[str]:
        """What its ``__all__`` lists."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return [str(name) for name in ast.literal_eval(node.value)]
        return []


@dataclass(frozen=True)
class Class:
    """A class's source, and the full names of its bases."""

    place: str
    node: ast.ClassDef
    bases: tuple[str, ...]

    def methods(self) -> dict[str, Function]:
        return {node.name: node for node in self.node.body if isinstance(node, Function)}


class Package:
    """All modules below a directory, and the classes and functions in them by their full names."""

    def __init__(self, root: Path = SOURCE) -> None:
        with without_collections():
            self.modules = {module.name: module for module in _modules(root)}
        self.classes: dict[str, Class] = {}
        self.functions: dict[str, Function] = {}
        for module in self.modules.values():
            self._take(module)

    def _take(self, module: Module) -> None:
        for node in _statements(module.tree.body):
            place = f"{module.name}.{getattr(node, 'name', '')}"
            if isinstance(node, ast.ClassDef):
                self.classes[place] = Class(place, node, tuple(module.home(_dotted(base)) for base in node.bases))
            elif isinstance(node, Function):
                self.functions[place] = node

    def home(self, module: str, name: str) -> str:
        """Where a name that a module offers is defined, through all modules that pass it on."""
        place = self.modules[module].home(name)
        while place not in self.classes and place not in self.functions:
            owner, _, word = place.rpartition(".")
            further = self.modules[owner].home(word) if owner in self.modules else place
            if further == place:
                break
            place = further
        return place

    def lineage(self, owner: Class) -> Iterator[Class]:
        """A class and those of its bases that are of this package, the nearest first."""
        yield owner
        for base in owner.bases:
            module, _, word = base.rpartition(".")
            place = self.home(module, word) if module in self.modules else base
            if place in self.classes and place != owner.place:
                yield from self.lineage(self.classes[place])


def _modules(root: Path) -> Iterator[Module]:
    for file in sorted(root.rglob("*.py")):
        yield Module.read(file, root)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those under a condition or in a ``try`` too."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _statements([*node.body, *node.orelse])


def _dotted(base: ast.expr) -> str:
    """A base without its parameters: ``Protocol`` of ``Protocol[T]``, ``nn.Module`` as it is."""
    while isinstance(base, ast.Subscript):
        base = base.value
    return ast.unparse(base)
