"""The public surface, what `import hookline` loads, and the direction of imports between layers."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import hookline

ROOT = Path(hookline.__file__).parent

LAYERS = [
    {"_engine"},
    {"_record", "config"},
    {"sinks", "logging", "callbacks"},
    {"loops", "rl", "experiment"},
    {"integrations", "compat", "importers", "store"},
    {"_exec"},
    {"server", "cli", "launcher", "tools"},
]
RANK = {folder: rank for rank, layer in enumerate(LAYERS) for folder in layer}
TOP = len(LAYERS)
FACES = {"hookline", "__main__", "functions", "hooks", "main", "plots", "rewards", "status", "testing"}
"""Modules beside the folders: the package itself and namespaces for users. They may import every layer."""


def python(code):
    """What a fresh interpreter prints."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def loaded_by(statement):
    """The modules that a statement loads in a fresh interpreter, beyond those loaded at its start."""
    return python(f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))")


def module_name(file, root):
    parts = file.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def followed(node):
    """All nodes of a file but those that only type checkers follow."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from followed(child)


def imported(file, root):
    """Every module that a file imports, anywhere in it, as (line, dotted name)."""
    module = module_name(file, root)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    found = []
    for node in followed(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            outer = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*outer, *([node.module] if node.module else [])])
            found += [(node.lineno, f"{source}.{alias.name}") for alias in node.names]
    return found


def place(name):
    """A module's folder or face: ``hookline._engine.order`` is in ``core``, ``hookline.Callback`` in ``hookline``."""
    _, _, rest = name.partition(".")
    first = rest.partition(".")[0]
    return first if first in RANK or first in FACES else "hookline"


def rank(name):
    return RANK.get(place(name), TOP)


def wrong_imports(root):
    """Imports of an upper layer by a lower one, and of the faces by anything below the top layer."""
    wrong = []
    for file in sorted(root.rglob("*.py")):
        own = rank(module_name(file, root))
        highest = TOP if own == TOP - 1 else own
        for line, name in imported(file, root):
            if name.partition(".")[0] == root.name and rank(name) > highest:
                wrong.append(f"{file.relative_to(root)}:{line} imports {name}")
    return wrong


def test_public_names_are_sorted_constants_first():
    assert hookline.__all__ == sorted(hookline.__all__, key=lambda name: (not name.isupper(), name))
    assert len(set(hookline.__all__)) == len(hookline.__all__)


@pytest.mark.parametrize("name", hookline.__all__)
def test_public_name_can_be_imported(name):
    assert getattr(importlib.import_module("hookline"), name) is not None


def test_public_names_come_with_a_star_import():
    assert set(python("from hookline import *; print(*globals())")) >= set(hookline.__all__)


def test_public_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'hookline' has no attribute 'Calback'"):
        _ = hookline.Calback


@pytest.mark.parametrize(
    ("statement", "name", "extra"),
    [
        ("hookline.Trainer", "hookline.Trainer", "torch"),
        ("from hookline import Trainer", "hookline.Trainer", "torch"),
        ("hookline.SFTPolicyWorker", "hookline.SFTPolicyWorker", "hf"),
        ("hookline.rl.GRPOLearner", "hookline.rl.GRPOLearner", "torch"),
        ("from hookline.rl import HFPolicy", "hookline.rl.HFPolicy", "torch"),
        ("hookline.sft.prepare", "hookline.sft.prepare", "torch"),
    ],
)
def test_public_name_without_the_package_that_it_needs_says_what_to_install(statement, name, extra):
    code = f"import sys; sys.modules['torch'] = None\nimport hookline\n{statement}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    needs = f"{name} needs a package that is not installed. Install it with: pip install 'hookline[{extra}]'"
    assert result.stderr.splitlines()[-1] == f"hookline._engine.errors.MissingExtraError: {needs}"


def test_public_name_without_what_every_installation_has_is_the_error_of_python():
    code = "import sys; sys.modules['msgspec'] = None\nimport hookline\nhookline.Trainer"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr.splitlines()[-1].startswith("ModuleNotFoundError: import of msgspec")


CORE_ONLY = """
import importlib.metadata, re, sys
from packaging.requirements import Requirement

def needed(name, found):
    for text in importlib.metadata.requires(name) or ():
        each = Requirement(text)
        if each.name not in found and (each.marker is None or each.marker.evaluate({"extra": ""})):
            found.add(each.name)
            needed(each.name, found)
    return found

normal = {re.sub(r"[-_.]+", "-", name).lower() for name in {"hookline", *needed("hookline", set())}}
packages = importlib.metadata.packages_distributions().items()
missing = {name for name, owners in packages if not any(re.sub(r"[-_.]+", "-", o).lower() in normal for o in owners)}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.modules.pop("packaging", None)
sys.meta_path.insert(0, Missing())
from hookline.cli import app
app()
"""


@pytest.mark.parametrize(
    ("arguments", "status", "printed"),
    [
        (["--help"], 0, "Usage"),
        (["artifacts", "list"], 0, "no artifacts"),
        (["serve", "--help"], 0, "--storage"),
        (["tokens", "list"], 0, "no tokens"),
        (["runs", "list"], 1, "pip install 'hookline[ui]'"),
        (["ui"], 1, "pip install 'hookline[ui]'"),
    ],
)
def test_command_line_works_with_the_required_packages_alone(tmp_path, arguments, status, printed):
    (tmp_path / "runs").mkdir()
    command = [sys.executable, "-c", CORE_ONLY, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, printed in " ".join((done.stdout + done.stderr).split())) == (status, True), (
        done.stdout + done.stderr
    )


def test_public_names_that_wait_for_their_first_use_are_public():
    assert sorted(set(hookline._LAZY) - set(hookline.__all__)) == []


@pytest.mark.parametrize("name", sorted(path.stem for path in ROOT.glob("*.py") if path.stem[0] != "_"))
def test_namespace_lists_what_it_offers(name):
    face = importlib.import_module(f"hookline.{name}")
    assert face.__all__ == sorted(face.__all__, key=lambda name: (not name.isupper(), name))
    assert [each for each in face.__all__ if not hasattr(face, each)] == []


def test_import_hookline_loads_nothing_heavy():
    heavy = {"torch", "numpy", "jax", "yaml", "typer", "rich", "asyncio", "msgspec", "importlib.metadata"}
    assert sorted(heavy & set(loaded_by("import hookline"))) == []


def test_import_of_the_program_loads_no_framework():
    heavy = {"torch", "transformers", "numpy", "jax", "duckdb", "uvicorn", "ray", "pandas", "matplotlib"}
    assert sorted(heavy & set(loaded_by("import hookline.cli"))) == []


def test_import_hookline_loads_the_engine_only():
    ours = [name for name in loaded_by("import hookline") if name.partition(".")[0] == "hookline"]
    assert [name for name in ours if name != "hookline" and not f"{name}.".startswith("hookline._engine.")] == []


def test_import_engine_loads_only_the_standard_library():
    modules = [module_name(file, ROOT) for file in sorted((ROOT / "_engine").glob("*.py"))]
    loaded = loaded_by(f"import {', '.join(modules)}")
    allowed = {*sys.stdlib_module_names, "hookline"}
    assert [name for name in loaded if name.partition(".")[0] not in allowed] == []
    assert [m for m in loaded if m.startswith("hookline.") and not f"{m}.".startswith("hookline._engine.")] == []


def test_every_folder_and_module_has_its_place():
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    files = {path.stem for path in ROOT.glob("*.py")} - {"__init__"}
    assert sorted(folders - set(RANK)) == []
    assert sorted(files - FACES) == []


def test_imports_point_one_way():
    assert wrong_imports(ROOT) == []


def cycles(root):
    """Groups of modules that import each other, lazily or not, each group sorted."""
    files = {module_name(file, root): file for file in root.rglob("*.py")}
    graph = {name: set() for name in files}
    for name, file in files.items():
        for _, target in imported(file, root):
            module = target if target in files else target.rpartition(".")[0]
            if module in files and module != name:
                graph[name].add(module)
    reached = {name: reachable(graph, name) for name in graph}
    found = {tuple(sorted(b for b in reached[a] if a in reached[b])) for a in graph if a in reached[a]}
    return sorted(found)


def reachable(graph, start):
    found, waiting = set(), [start]
    while waiting:
        for module in graph[waiting.pop()] - found:
            found.add(module)
            waiting.append(module)
    return found


def test_imports_have_no_cycle():
    assert cycles(ROOT) == []


def test_imports_in_a_circle_are_noticed_where_one_is_lazy(tmp_path):
    root = tmp_path / "hookline"
    root.mkdir()
    (root / "__init__.py").write_text("")
    (root / "a.py").write_text("from hookline import b\n")
    (root / "b.py").write_text("def f():\n    from hookline.c import g\n")
    (root / "c.py").write_text("import hookline.a\n")
    (root / "d.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from hookline.e import x\n")
    (root / "e.py").write_text("import hookline.d\n")
    assert cycles(root) == [("hookline.a", "hookline.b", "hookline.c")]


def test_imports_that_point_the_other_way_are_noticed(tmp_path):
    root = tmp_path / "hookline"
    for folder in ("_engine", "loops", "cli"):
        (root / folder).mkdir(parents=True)
    (root / "__init__.py").write_text("from hookline.cli import main")
    (root / "_engine" / "a.py").write_text("import json\nfrom hookline._engine import b\nfrom hookline import loops\n")
    (root / "_engine" / "b.py").write_text(
        "def f():\n    from ..loops.run import run\n\nTEXT = 'import hookline.cli'\n"
    )
    (root / "loops" / "__init__.py").write_text(
        "from . import run\nfrom hookline._engine.a import x\nimport hookline.cli.main"
    )
    (root / "loops" / "run.py").write_text("from hookline import Callback")
    (root / "cli" / "main.py").write_text("import hookline\nfrom hookline.testing import FakeLoop")
    assert wrong_imports(root) == [
        "_engine/a.py:3 imports hookline.loops",
        "_engine/b.py:2 imports hookline.loops.run.run",
        "loops/__init__.py:3 imports hookline.cli.main",
        "loops/run.py:1 imports hookline.Callback",
    ]


def test_dir_lists_names_that_are_loaded_when_they_are_first_used():
    listed = python("import hookline as hl; print(*dir(hl))")
    assert set(hookline.__all__) <= set(listed)
    for package in ("hookline.rl", "hookline.integrations"):
        listed = python(f"import {package} as package; print(*dir(package))")
        assert {"hookline.rl": "RolloutWorker", "hookline.integrations": "transformers"}[package] in listed


def test_package_is_a_program_as_the_command_is():
    done = subprocess.run([sys.executable, "-m", "hookline", "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, "Usage: hookline" in done.stdout) == (0, True), done.stdout + done.stderr
