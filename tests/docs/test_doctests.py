"""The examples in docstrings."""

import doctest
import importlib
import pkgutil

import pytest

import hookline

MODULES = sorted(module.name for module in pkgutil.walk_packages(hookline.__path__, "hookline."))


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_hold(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0
