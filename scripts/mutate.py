"""Shows that the tests notice mistakes: changes the source in random places and counts which changes make a test fail.

    pytest --cov --cov-context=test        # which test runs which line, in .coverage; not with -n0, which records none
    python scripts/mutate.py --count 40 [--under src/hookline/loops]

A place is a comparison, a boolean or arithmetic operator, a condition, a constant, a returned value or a call whose
result is not used, on a line that at least one test runs. Each change is made in a copy of the source, and the tests
that run its line are run against the copy in batches, those that run the fewest lines first, until one fails. Each
change is printed with its outcome. Tests that take too long with the change, and not without it, count as having
noticed it (timed out); tests that fail or take too long without it say nothing (not run). The exit status is 1 if
fewer than nine of ten are noticed.
"""

import argparse
import ast
import copy
import functools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from coverage import CoverageData
from rich.console import Console
from rich.progress import track

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
BATCH = 40
MAX_TESTS = 400
SECONDS_PER_BATCH = 180
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
}


@dataclass
class Change:
    """A change of the source, and what the tests made of it."""

    file: str
    line: int
    before: str
    after: str
    tests: int = 0
    outcome: str = ""
    by: str = ""


def changed(node: ast.AST) -> ast.AST | None:
    """The node with one mistake in it, or None where there is none to make."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in SWAPS:
        new.ops[0] = SWAPS[type(new.ops[0])]()  # type: ignore[call-overload]
    elif isinstance(new, ast.BoolOp | ast.BinOp) and type(new.op) in SWAPS:
        if isinstance(new, ast.BinOp) and any(isinstance(side, ast.JoinedStr) for side in (new.left, new.right)):
            return None
        new.op = SWAPS[type(new.op)]()  # type: ignore[assignment]
    elif isinstance(new, ast.If | ast.While | ast.IfExp):
        new.test = ast.UnaryOp(ast.Not(), new.test)
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
        new.value = not new.value
    elif isinstance(new, ast.Constant) and isinstance(new.value, int):
        new.value += 1
    elif isinstance(new, ast.Return) and new.value is not None:
        if isinstance(new.value, ast.Constant) and new.value.value is None:
            return None
        new.value = ast.Constant(None)
    elif isinstance(new, ast.Expr) and isinstance(new.value, ast.Call):
        return ast.Pass()
    else:
        return None
    return new


def nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that run: no annotations, no docstrings, no code for type checkers."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                waiting += [
                    each for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.AST)
                ]


class Replace(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        """The new node for the old one."""
        return ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)


def tests_by_line(data: CoverageData, file: Path) -> dict[int, list[str]]:
    """Which tests run each line of a file."""
    found = data.contexts_by_lineno(str(file))
    # A context ends with the phase, "|run"; the name of a test may have a bar as well.
    return {line: sorted({c.rpartition("|")[0] for c in contexts if "::" in c}) for line, contexts in found.items()}


def users_at_import(tree: ast.Module) -> dict[ast.AST, range]:
    """The lines that use a node which runs when the module is imported, by whichever test comes first.

    A default is used by its function, and everything else outside of functions by the whole module.
    """
    found: dict[ast.AST, range] = {}
    waiting: list[tuple[ast.AST, range | None]] = [(tree, range(1, 1 << 20))]
    while waiting:
        node, lines = waiting.pop()
        if lines is not None:
            found[node] = lines
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = range(node.body[0].lineno, (node.end_lineno or 0) + 1)
            waiting += [(each, None) for each in node.body]
            waiting.append((node.args, None if lines is None else body))
        else:
            waiting += [(each, lines) for each in ast.iter_child_nodes(node)]
    return found


def places(data: CoverageData, folders: list[Path]) -> Iterator[tuple[Path, ast.Module, ast.AST, list[str]]]:
    """Everything in some folders that can be changed on a line that a test runs."""
    for file in sorted(map(Path, data.measured_files())):
        if not any(file.is_relative_to(folder) for folder in folders):
            continue
        by_line, tree = tests_by_line(data, file), ast.parse(file.read_text(encoding="utf-8"))
        users = users_at_import(tree)

        @functools.cache
        def tests_of(lines: range, by_line: dict[int, list[str]] = by_line) -> list[str]:
            return sorted({test for line, tests in by_line.items() if line in lines for test in tests})

        for node in nodes(tree):
            lines = users.get(node)
            tests = by_line.get(getattr(node, "lineno", 0), []) if lines is None else tests_of(lines)
            if tests and changed(node) is not None:
                yield file, tree, node, tests


def run(home: Path, tests: list[str]) -> tuple[str, str]:
    """Run tests against the source in a directory: what they say of it, and the first one that fails."""
    environment = {**os.environ, "PYTHONPATH": str(home)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", "--no-cov", *tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS_PER_BATCH, check=False
        )
    except subprocess.TimeoutExpired:
        if home != SOURCE and run(SOURCE, tests)[0] == "timed out":
            return "not run", ""
        return "timed out", ""
    # pytest ends with 1 if a test failed. Any other status may be a change that breaks the import of everything, or a
    # test that cannot be selected by its name, which says nothing of the change.
    if done.returncode > 1 and home != SOURCE and run(SOURCE, tests)[0] != "survived":
        return "not run", ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return "noticed" if done.returncode else "survived", failed[0].split()[1] if failed else ""


def main() -> int:
    """Make the changes, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coverage", default=str(ROOT / ".coverage"), help="the data of a run with --cov-context=test")
    parser.add_argument("--count", type=int, default=40, help="how many places are changed")
    parser.add_argument("--under", action="append", type=Path, help="a folder of the source; may be repeated")
    parser.add_argument("--seed", type=int, default=None, help="of the choice of places; random by default")
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args()
    seed = random.randrange(10_000) if options.seed is None else options.seed
    data = CoverageData(options.coverage)
    data.read()
    console = Console(stderr=True)
    everything = list(places(data, [folder.resolve() for folder in options.under or [SOURCE]]))
    lines_of = Counter(
        test for file in {p[0] for p in everything} for tests in tests_by_line(data, file).values() for test in tests
    )
    chosen = random.Random(seed).sample(everything, min(options.count, len(everything)))
    changes = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "src"
        shutil.copytree(SOURCE, home, ignore=shutil.ignore_patterns("__pycache__"))
        for file, tree, node, tests in track(chosen, "changes", console=console):
            new = changed(node)
            assert new is not None
            copied = home / file.relative_to(SOURCE)
            change = Change(str(file.relative_to(ROOT)), node.lineno, ast.unparse(node)[:100], ast.unparse(new)[:100])  # type: ignore[attr-defined]
            mutated = Replace(node, new).visit(tree)
            copied.write_text(ast.unparse(ast.fix_missing_locations(mutated)), encoding="utf-8")
            waiting = sorted(tests, key=lambda test: lines_of[test])[:MAX_TESTS]
            for batch in (waiting[start : start + BATCH] for start in range(0, len(waiting), BATCH)):
                outcome, change.by = run(home, batch)
                change.tests += len(batch)
                if outcome != "not run" or not change.outcome:
                    change.outcome = outcome
                if outcome in ("noticed", "timed out"):
                    break
            Replace(new, node).visit(tree)
            shutil.copy2(file, copied)
            changes.append(change)
            console.print(
                f"{change.outcome}  {change.file}:{change.line}  {change.before}  ->  {change.after}", markup=False
            )
    noticed = sum(change.outcome in ("noticed", "timed out") for change in changes)
    if options.json:
        print(json.dumps({"seed": seed, "noticed": noticed, "changes": [asdict(each) for each in changes]}))
    else:
        print(f"{noticed} of {len(changes)} changes were noticed (seed {seed}, {len(everything):,} places)")
    return 0 if noticed >= 0.9 * len(changes) else 1


if __name__ == "__main__":
    sys.exit(main())
