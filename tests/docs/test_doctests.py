"""The examples in docstrings."""

import doctest
import importlib
from pathlib import Path

import pytest

import hookline

ROOT = Path(hookline.__file__).parents[1]
WITH_EXAMPLES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in (ROOT / "hookline").rglob("*.py")
    if ">>> " in file.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_docstring_examples_hold(name):
    results = doctest.testmod(importlib.import_module(name))
    assert (results.failed, results.attempted > 0) == (0, True)
