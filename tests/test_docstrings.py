"""Every module, function and class has a docstring, and so has every method and property that users can reach.

Users reach the methods of the classes that a namespace offers, inherited ones included. A method that overrides another
is documented where that one is declared, in a base class of ours or of the framework that the class belongs to. The
source is read and nothing is imported, so every module counts, whatever it needs.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from source_code import SOURCE, Class, Function, Package

PLAIN = ("ABC", "Enum", "Exception", "Generic", "NamedTuple", "Protocol", "StrEnum", "Struct", "TypedDict", "object")
"""Bases from outside that declare no methods which a class of ours overrides."""
ELSEWHERE = ("hookline._engine.collection.Fired",)
"""Classes that declare for type checkers what `Callback` documents."""


def undocumented(root: Path) -> list[str]:
    package = Package(root)
    silent = [name for name, module in package.modules.items() if not ast.get_docstring(module.tree)]
    silent += [name for name, node in package.functions.items() if _public(node) and not _documented(node)]
    reachable = _reachable(package)
    for place, owner in package.classes.items():
        if _public(owner.node) and place not in ELSEWHERE:
            silent += [] if _documented(owner.node) else [place]
            silent += _silent_methods(owner, package) if place in reachable else []
    return sorted(silent)


def _reachable(package: Package) -> set[str]:
    """The classes that namespaces offer, and their bases."""
    namespaces = [module for name, module in package.modules.items() if not any(p[0] == "_" for p in name.split("."))]
    offered = {module.home(name) for module in namespaces for name in module.offered()}
    owners = [package.classes[place] for place in offered if place in package.classes]
    return {each.place for owner in owners for each in package.lineage(owner)}


def _silent_methods(owner: Class, package: Package) -> Iterator[str]:
    lineage = [*package.lineage(owner)]
    frameworks = {base for each in lineage for base in each.bases if base not in package.classes}
    if any(base.rpartition(".")[2] not in PLAIN for base in frameworks):
        return  # a method may be one of the framework's, whose class says what it is for
    for name, method in owner.methods().items():
        declared = [each.methods()[name] for each in lineage if name in each.methods()]
        if _public(method) and not any(map(_documented, declared)):
            yield f"{owner.place}.{name}"


def _public(node: Function | ast.ClassDef) -> bool:
    return not node.name.startswith("_")


def _documented(node: Function | ast.ClassDef) -> bool:
    """Whether it has a docstring, or is part of something that has: a setter, one of several overloads."""
    part = any(ast.unparse(each).endswith((".setter", "overload")) for each in node.decorator_list)
    return part or bool((ast.get_docstring(node) or "").strip())


def test_public_names_have_docstrings():
    assert undocumented(SOURCE) == []


def test_names_without_docstrings_are_noticed(tmp_path):
    (tmp_path / "base.py").write_text(
        '"""Said."""\nclass Base:\n    """Said."""\n    def act(self):\n        """Said."""\n    def rest(self): ...\n'
    )
    (tmp_path / "made.py").write_text(
        "from base import Base\nfrom keras import Callback\n__all__ = ['Own', 'Foreign', 'function']\n"
        "def function(): ...\ndef _private(): ...\n"
        "class Own(Base):\n    def act(self): ...\n    async def more(self): ...\n    def _private(self): ...\n"
        "class Foreign(Callback):\n    '''Said.'''\n    def on_train_begin(self): ...\n"
    )
    assert undocumented(tmp_path) == ["base.Base.rest", "made", "made.Own", "made.Own.more", "made.function"]
