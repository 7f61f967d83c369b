"""What the tests of the benchmarks share: programs that do not find the other systems, which take long to import."""

import os

import pytest


@pytest.fixture
def without(tmp_path):
    """Make the environment of a program for which some packages are not installed."""

    def environment(*packages):
        (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({packages!r}))")
        return os.environ | {"COLUMNS": "100", "PYTHONPATH": str(tmp_path)}

    return environment
