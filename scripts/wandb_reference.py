"""Writes the page with the patterns of wandb: ``python scripts/wandb_reference.py``; ``--record`` runs them first.

Recording takes a minute: it runs all patterns with wandb offline, hookline's drop-in and trackio, and writes what each
of them passes to ``tests/compat/wandb_patterns.json``, from which the page is made.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
RUNNER = TESTS / "compat" / "run_wandb_patterns.py"
RESULTS = TESTS / "compat" / "wandb_patterns.json"
PAGE = ROOT / "docs" / "wandb_patterns.md"
PACKAGES = ("wandb", "hookline", "trackio")
AREAS = {
    "init": "Runs",
    "log": "Metrics",
    "define_metric": "Definitions and the summary",
    "summary": "Definitions and the summary",
    "config": "The configuration",
    "media": "Data types",
    "artifacts": "Artifacts, files, the API, sweeps",
}
"""The sections of the table; areas that are not listed are in the last one."""


def record() -> dict[str, Any]:
    """Run all patterns with all packages, and return what each passes."""
    patterns = import_module("compat.wandb_patterns").PATTERNS
    mismatches = import_module("compat.run_wandb_patterns").mismatches
    passed: dict[str, dict[str, bool]] = {each.name: {} for each in patterns}
    for package in PACKAGES:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder, "results.json")
            command = [sys.executable, str(RUNNER), package, "--output", str(output)]
            subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            outcomes = json.loads(output.read_text())
        for each in patterns:
            passed[each.name][package] = not mismatches(each, outcomes[each.name], package)
    return {"versions": {package: version(package) for package in ("wandb", "trackio")}, "passed": passed}


def page(results: Mapping[str, Any]) -> str:
    """Return the page."""
    module = import_module("compat.wandb_patterns")
    patterns, differences = module.PATTERNS, module.DIFFERENCES
    passed = results["passed"]
    counts = {package: sum(own[package] for own in passed.values()) for package in PACKAGES}
    differing = [each for each in patterns if each.differs is not None]
    no = "\N{EN DASH}"
    versions = results["versions"]
    summary = (
        f"wandb passes {counts['wandb']} of {len(patterns)}, hookline {counts['hookline']} and trackio "
        f"{counts['trackio']}. What wandb does not pass needs its server, or a package that the tests do not install. "
        f"hookline's results equal wandb's in all but {len(differing)} patterns, which are marked with a [declared "
        "difference](#declared-differences)."
    )
    lines = [
        "# Patterns of wandb",
        "",
        "This page is generated from test results by `scripts/wandb_reference.py`. Each pattern is a short piece of",
        "code against wandb's API, chosen by how often public training code uses it, with what it must return and",
        f"record. It runs with wandb {versions['wandb']} offline, with hookline's [drop-in](wandb.md), and with",
        f"trackio {versions['trackio']} (`import trackio as wandb`). ✓ means that everything is as it must be.",
        "",
        *textwrap.wrap(summary, width=120),
    ]
    areas = list(dict.fromkeys(AREAS.values()))
    for title in areas:
        own = [each for each in patterns if AREAS.get(each.area, areas[-1]) == title]
        lines += ["", f"## {title}", "", "| pattern | wandb offline | hookline | trackio |", "|---|---|---|---|"]
        for each in own:
            marks = {package: "✓" if passed[each.name][package] else no for package in PACKAGES}
            if each.needs:
                marks["wandb"] += f" (needs {each.needs})"
            if each.differs is not None:
                marks["hookline"] += f" (differs: {each.differs[1]})"
            lines.append(f"| {each.title} | {' | '.join(marks[package] for package in PACKAGES)} |")
    lines += [
        "",
        "## Declared differences",
        "",
        "Everything that differs on purpose. What is accepted and has no effect is named once on the terminal; what",
        "would give a wrong result raises an error.",
        "",
        "| | wandb 0.31 | hookline |",
        "|---|---|---|",
        *(f"| {topic} | {theirs} | {ours} |" for topic, (theirs, ours) in differences.items()),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Write the page, after recording results if that is asked for."""
    parser = argparse.ArgumentParser(description="Write the page with the patterns of wandb.")
    parser.add_argument("--record", action="store_true", help="run the patterns first, with all packages")
    options = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    if options.record:
        RESULTS.write_text(json.dumps(record(), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
