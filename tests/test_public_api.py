"""The public API: every name that users may import, pinned, and nothing else in the documentation and the examples.

`public_api.txt` lists the names. A name that is added, renamed or removed changes that file in the same commit, and
the changelog; ``python tests/test_public_api.py`` writes it.
"""

import ast
import importlib
import re
from pathlib import Path

import pytest
from source_code import Package

ROOT = Path(__file__).parents[1]
PINNED = Path(__file__).with_name("public_api.txt")
NAMESPACES = (
    "hookline",
    "hookline.callbacks",
    "hookline.compat",
    "hookline.compat.wandb",
    "hookline.compat.mlflow",
    "hookline.compat.tensorboard",
    "hookline.experiment",
    "hookline.functions",
    "hookline.hooks",
    "hookline.importers",
    "hookline.integrations",
    "hookline.logging",
    "hookline.loops.sft",
    "hookline.plots",
    "hookline.rewards",
    "hookline.rl",
    "hookline.server",
    "hookline.sinks",
    "hookline.status",
    "hookline.store",
    "hookline.testing",
)
HOSTS = (
    *("accelerate", "catboost", "composer", "deepspeed", "fabric", "fastai", "ignite", "jax", "keras", "levanter"),
    *("lightgbm", "lightning", "maxtext", "prime_rl", "ray", "sklearn", "skyrl", "stable_baselines3"),
    *("torch", "transformers", "tunix", "ultralytics", "verl", "xgboost"),
)
"""Modules of `hookline.integrations` that users import from, each where its framework is installed."""
SEED_PATHS = ("hookline.launcher.worker_entry", "hookline.tools.custom_hooks", "hookline.rl.hooks")
SEED_PATHS += ("hookline.rl.rollout_worker",)  # type: ignore[assignment]
"""Import paths of the systems that hookline follows; they offer public names once more."""
IMPORTABLE = {*NAMESPACES, *SEED_PATHS, *(f"hookline.integrations.{host}" for host in HOSTS)}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))


def public_names():
    """What each namespace lists, read from its source: importing every framework would take half a minute."""
    modules = [*NAMESPACES, *(f"hookline.integrations.{host}" for host in HOSTS)]
    package = Package()
    return [f"{module}.{name}" for module in modules for name in package.modules[module].offered()]


def imported_modules(code):
    """The modules of hookline that a piece of code imports from, as far as it is Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in IMPORTABLE else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def private_imports(code):
    return sorted({m for m in imported_modules(code) if m.partition(".")[0] == "hookline" and m not in IMPORTABLE})


def test_public_names_are_those_pinned():
    assert public_names() == PINNED.read_text(encoding="utf-8").split()


@pytest.mark.parametrize("module", NAMESPACES)
def test_namespace_offers_every_name_that_it_lists(module):
    namespace = importlib.import_module(module)
    assert [name for name in namespace.__all__ if not hasattr(namespace, name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_imports_public_names_only(page):
    blocks = re.findall(r"```python[^\n]*\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert [found for block in blocks for found in private_imports(block)] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_example_imports_public_names_only(example):
    assert private_imports(example.read_text(encoding="utf-8")) == []


def test_private_import_is_noticed():
    code = "import hookline\nfrom hookline._engine.order import arrange\nfrom hookline.loops.run import run\n"
    assert private_imports(code) == ["hookline._engine.order", "hookline.loops.run"]


if __name__ == "__main__":
    PINNED.write_text("\n".join(public_names()) + "\n", encoding="utf-8")
