"""The sixty patterns: the drop-in passes all of them live, wandb and trackio a sample; the page shows all results."""

import json
import sys
from pathlib import Path

import pytest
from compat.run_wandb_patterns import mismatches
from compat.wandb_patterns import DIFFERENCES, PATTERNS

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).with_name("run_wandb_patterns.py")
RECORDED = json.loads(Path(__file__).with_name("wandb_patterns.json").read_text())
BY_NAME = {each.name: each for each in PATTERNS}
SAMPLE = (
    *("init_as_context_with_an_exception", "init_in_a_loop", "log_with_step", "log_mixed", "log_at_a_lower_step"),
    *("log_lists", "define_step_metric", "define_summary", "config_changed", "table_refuses_rows", "charts_logged"),
    *("artifact_round_trip", "gradients_watched"),
)


TRACKIO_SAMPLE = ("init_with_argparse_namespace", "log_scalars", "log_without_commit", "image_logged")


@pytest.fixture(scope="module")
def outcomes(torch_programs, tmp_path_factory):
    """What each package returned and recorded; the three processes run at the same time."""
    folder = tmp_path_factory.mktemp("patterns")
    started = {}
    for package, names in {"hookline": (), "wandb": SAMPLE, "trackio": TRACKIO_SAMPLE}.items():
        output = folder / f"{package}.json"
        arguments = (RUNNER, package, "--output", output, "--only", ",".join(names))
        started[package] = output, torch_programs.start(*arguments, cwd=folder)
    found = {}
    for package, (output, process) in started.items():
        printed, _ = process.communicate(240)
        assert process.returncode == 0, printed[-2000:]
        found[package] = json.loads(output.read_text())
    return found


def test_patterns_are_sixty_with_names_of_their_own():
    assert (len(PATTERNS), len(BY_NAME)) == (60, 60)


@pytest.mark.parametrize("name", BY_NAME)
def test_drop_in_pattern_returns_and_records_what_it_must(name, outcomes):
    assert mismatches(BY_NAME[name], outcomes["hookline"][name], "hookline") == []


@pytest.mark.parametrize("name", SAMPLE)
def test_wandb_pattern_of_the_sample_gives_what_is_expected(name, outcomes):
    problems = mismatches(BY_NAME[name], outcomes["wandb"][name], "wandb")
    assert bool(problems) == bool(BY_NAME[name].needs), problems


@pytest.mark.parametrize("name", TRACKIO_SAMPLE)
def test_trackio_pattern_of_the_sample_gives_what_is_recorded(name, outcomes):
    passed = not mismatches(BY_NAME[name], outcomes["trackio"][name], "trackio")
    assert passed == RECORDED["passed"][name]["trackio"]


def test_recorded_results_are_those_that_patterns_expect():
    passed = RECORDED["passed"]
    assert {name: own["wandb"] for name, own in passed.items()} == {each.name: not each.needs for each in PATTERNS}
    assert {name for name, own in passed.items() if not own["hookline"]} == set()


def test_differing_patterns_name_a_declared_difference():
    assert {each.differs[1] for each in PATTERNS if each.differs} <= set(DIFFERENCES)


def test_pattern_that_records_something_else_is_noticed(outcomes):
    found = outcomes["hookline"]["log_scalars"]
    changed = {**found, "rows": found["rows"][:2]}
    [problem] = mismatches(BY_NAME["log_scalars"], changed, "hookline")
    assert problem.startswith("rows: expected [{")


def test_page_of_patterns_is_what_the_results_say():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import wandb_reference
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    assert (ROOT / "docs" / "wandb_patterns.md").read_text() == wandb_reference.page(RECORDED)
