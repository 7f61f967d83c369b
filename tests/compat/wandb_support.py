"""Helpers for tests of the drop-in: it runs in a temporary directory, and its recorded rows are read back."""

import os

import pytest

import hookline.compat.wandb as wandb

TIMES = ("_runtime", "_timestamp")


@pytest.fixture
def drop_in(tmp_path, monkeypatch):
    """The drop-in with an empty directory, no variables of wandb's, and nothing that an earlier test set."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    monkeypatch.setenv("WANDB_DISABLE_GIT", "true")
    monkeypatch.setenv("WANDB_PROJECT", "p")
    wandb.configure(root=None)
    yield wandb
    wandb.teardown()
    wandb.configure(root=None)


def rows(run=None, **keys):
    """The rows of a run without times; of the last run of the project by default."""
    found = wandb.Api().runs("p", order="-created_at")[0] if run is None else run
    return [{name: value for name, value in row.items() if name not in TIMES} for row in found.scan_history(**keys)]


def last_run():
    """The last run of the project, as ``Api`` returns it."""
    return wandb.Api().runs("p", order="-created_at")[0]
