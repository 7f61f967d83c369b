"""``wandb.env``: the names of wandb's environment variables, and functions that set some."""

import os
from collections.abc import MutableMapping

API_KEY = "WANDB_API_KEY"
DIR = "WANDB_DIR"
DISABLE_CODE = "WANDB_DISABLE_CODE"
ENTITY = "WANDB_ENTITY"
JOB_TYPE = "WANDB_JOB_TYPE"
MODE = "WANDB_MODE"
NAME = "WANDB_NAME"
NOTES = "WANDB_NOTES"
PROJECT = "WANDB_PROJECT"
QUIET = "WANDB_QUIET"
RESUME = "WANDB_RESUME"
RUN_GROUP = "WANDB_RUN_GROUP"
RUN_ID = "WANDB_RUN_ID"
SAVE_CODE = "WANDB_SAVE_CODE"
SILENT = "WANDB_SILENT"
SWEEP_ID = "WANDB_SWEEP_ID"
TAGS = "WANDB_TAGS"

Environment = MutableMapping[str, str]


def _environment(env: Environment | None) -> Environment:
    return os.environ if env is None else env


def set_entity(value: str, env: Environment | None = None) -> None:
    """Set the entity of the runs of this process."""
    _environment(env)[ENTITY] = value


def set_project(value: str, env: Environment | None = None) -> None:
    """Set the project of the runs of this process."""
    _environment(env)[PROJECT] = value or "uncategorized"


def get_project(default: str | None = None, env: Environment | None = None) -> str | None:
    """Return the project of the environment, or the default."""
    return _environment(env).get(PROJECT, default)


def get_entity(default: str | None = None, env: Environment | None = None) -> str | None:
    """Return the entity of the environment, or the default."""
    return _environment(env).get(ENTITY, default)


def get_dir(default: str | None = None, env: Environment | None = None) -> str | None:
    """Return the directory of the environment, or the default."""
    return _environment(env).get(DIR, default)


def is_quiet(env: Environment | None = None) -> bool:
    """Return whether the environment asks for few messages."""
    return _environment(env).get(QUIET, "").lower() in ("1", "true")


def is_silent(env: Environment | None = None) -> bool:
    """Return whether the environment asks for no messages."""
    return _environment(env).get(SILENT, "").lower() in ("1", "true")
