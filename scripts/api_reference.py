"""Writes the pages of ``reference/`` from what each namespace makes public: ``python scripts/api_reference.py``.

A page names the objects; their text is taken from the docstrings when the site is built.
"""

import importlib
import types
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[1] / "docs" / "reference"
NAMESPACES = {
    "hookline": "The names that most people need: `import hookline as hl`.",
    "hookline.callbacks": "The built-in callbacks, which `callbacks=` also takes by name.",
    "hookline.experiment": "Arms, repeats, stages and benchmarks.",
    "hookline.functions": "Logger functions and dicts of hook functions.",
    "hookline.hooks": "Hooks that decide and act, and their manager.",
    "hookline.logging": "The front of the standard library's logging: topics, a YAML file, CSV and TensorBoard.",
    "hookline.plots": "Ready-made plots as values of `log()`.",
    "hookline.rewards": "Reward functions that are logged.",
    "hookline.rl": "Environments, rollout workers and the GRPO learner.",
    "hookline.sinks": "Where the record is delivered to.",
    "hookline.status": "Status endpoints.",
    "hookline.store": "What was recorded, as tables.",
    "hookline.testing": "What tests of your own callbacks need.",
}


def page(namespace: str) -> str:
    """The page of a namespace: each public name once, or where it is described."""
    public = importlib.import_module(namespace)
    names = sorted(public.__all__, key=str.lower)
    homes = {name: _home(namespace, name, getattr(public, name)) for name in names}
    places = [_place(getattr(public, name), namespace, name) for name in names if homes[name] == namespace]
    described = [f"::: {place}\n" for place in dict.fromkeys(places)]
    elsewhere = [f"- `{name}`: [{home}]({home}.md)" for name, home in homes.items() if home != namespace]
    also = ["## Described elsewhere", "", *elsewhere, ""] if elsewhere else []
    return "\n".join([f"# {namespace}", "", NAMESPACES[namespace], "", *described, *also]).rstrip() + "\n"


def _home(namespace: str, name: str, found: Any) -> str:
    """On whose page something is described: a namespace's own, otherwise the first one's that has it."""
    if isinstance(found, types.ModuleType):
        return found.__name__ if found.__name__ in NAMESPACES else namespace
    return next(
        other
        for other in NAMESPACES
        if name in (there := importlib.import_module(other)).__all__ and getattr(there, name) is found
    )


def _place(found: Any, namespace: str, name: str) -> str:
    """Where an object is defined, which is where its docstring is found."""
    if isinstance(found, types.ModuleType):
        return found.__name__
    module, qualified = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    if module is None or qualified is None or not module.startswith("hookline"):
        return f"{namespace}.{name}"
    return f"{module}.{qualified}"


def main() -> None:
    """Write all of them."""
    PAGES.mkdir(exist_ok=True)
    for namespace in NAMESPACES:
        (PAGES / f"{namespace}.md").write_text(page(namespace), encoding="utf-8")


if __name__ == "__main__":
    main()
