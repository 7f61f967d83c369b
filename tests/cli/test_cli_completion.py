"""Completion in a shell: commands, and the ids of runs."""

import os
import subprocess

import pytest
from conftest import SCRIPT  # type: ignore[attr-defined]
from finished_runs import record


@pytest.fixture
def completed(tmp_path, monkeypatch):
    """What bash offers for a line that ends where the cursor is."""
    monkeypatch.chdir(tmp_path)

    def complete(line):
        words = line.split(" ")
        asked = {
            "_HOOKLINE_COMPLETE": "complete_bash",
            "COMP_WORDS": "\n".join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
        environment = {**os.environ, **asked}
        done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, timeout=200, check=True)
        return done.stdout.split()

    return complete


def test_completion_of_a_command_offers_those_that_begin_so(completed):
    assert completed("hookline runs exp") == ["export"]


def test_completion_of_a_run_offers_ids_of_the_root_given(tmp_path, completed):
    here, there = record(), record(root="kept", project="p")
    assert completed("hookline runs show def") == [f"default/{here.name}"]
    assert completed("hookline runs show ") == ["latest", f"default/{here.name}"]
    assert completed(f"hookline runs show --root kept {there.name[:4]}") == [there.name]


def test_completion_where_there_is_no_root_offers_the_latest_only(completed):
    assert completed("hookline runs tail l") == ["latest"]
