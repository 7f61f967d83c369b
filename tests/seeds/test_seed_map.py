"""``docs/seeds.md`` is honest: the tests, the names and the files that it speaks of exist, for each of the seeds."""

import ast
import functools
import importlib
import re
from pathlib import Path

import pytest

import hookline

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
PAGE = (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\d{3}): .*?\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@functools.cache
def functions_of(file):
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


def rows(section):
    """The cells of the table of a section, without its head."""
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[1:]]


def named_tests(text):
    """The tests that a text names, each with the file that it stands in, below tests/."""
    names = [name for name in CODE.findall(text) if re.fullmatch(r"(?:[\w/]+\.py::)?test_\w+", name)]
    return [tuple(name.split("::")) if "::" in name else ("", name) for name in names]


def exists(seed, file, name):
    places = [TESTS / file] if file else sorted((TESTS / "seeds").glob(f"test_seed_{seed}_*.py"))
    return any(place.is_file() and name in functions_of(place) for place in places)


def resolves(name):
    """Whether a dotted name of hookline leads to something."""
    module, *rest = name.split(".")
    found = importlib.import_module(module)
    for part in rest:
        if not hasattr(found, part):
            try:
                importlib.import_module(f"{found.__name__}.{part}")
            except (ImportError, AttributeError):
                return False
        found = getattr(found, part)
    return True


def test_page_has_a_section_for_each_seed_that_is_tested():
    tested = {file.name[10:13] for file in (TESTS / "seeds").glob("test_seed_[0-9]*.py")}
    assert set(SECTIONS) == tested == {"000", "001", "002", "003", "004"}


@pytest.mark.parametrize("seed", sorted(SECTIONS))
def test_page_names_only_tests_that_exist(seed):
    named = named_tests(SECTIONS[seed])
    assert [f"{file} {name}".strip() for file, name in named if not exists(seed, file, name)] == []


@pytest.mark.parametrize("seed", sorted(SECTIONS))
def test_page_has_a_test_for_each_row(seed):
    table = rows(SECTIONS[seed])
    assert len(table) > 15
    assert [row[0] for row in table if len(row) != 3 or not named_tests(row[-1])] == []


@pytest.mark.parametrize("seed", sorted(SECTIONS))
def test_page_says_what_differs_and_why(seed):
    assert "What differs on purpose:\n\n- " in SECTIONS[seed]


def test_page_names_only_what_can_be_imported():
    names = [
        name.replace("hl.", "hookline.", 1)
        for name in CODE.findall(PAGE)
        if re.fullmatch(r"(hl|hookline)\.[\w.]+", name)
    ]
    assert len(names) > 50
    assert [name for name in names if not resolves(name)] == []


def test_page_names_only_methods_that_there_are():
    owners = {"CallbackCollection", "HookManager", "LoopState", "RolloutWorker", "Benchmark"}
    calls = [
        name.rstrip("()").split(".") for name in CODE.findall(PAGE) if name.partition(".")[0] in owners and "." in name
    ]
    found = {"RolloutWorker": hookline.rl.RolloutWorker}
    missing = [call for call in calls if not hasattr(found.get(call[0]) or getattr(hookline, call[0]), call[1])]
    assert [call for call in missing if call != ["RolloutWorker", "tracker"]] == []  # an attribute of the object


def test_page_names_only_files_that_there_are():
    files = [name for name in CODE.findall(PAGE) if re.fullmatch(r"(examples|benchmarks)/[\w./]+", name)]
    assert files
    assert [name for name in files if not (ROOT / name).is_file()] == []
