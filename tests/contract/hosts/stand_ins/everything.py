"""All stand-ins under the names of their frameworks: ``python -m hosts.stand_ins.everything SCRIPT``.

The script, with the arguments after it, finds the stand-ins where it imports the frameworks.
"""

import functools
import runpy
import sys
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

from hosts.stand_ins import importable

PLACES = {
    "composer": "composer",
    "composer.models": "composer",
    "composer.utils.checkpoint": "composer",
    "hydra": "hydra",
    "levanter.callbacks": "levanter",
    "levanter.checkpoint": "levanter",
    "levanter.tracker": "levanter",
    "levanter.trainer": "levanter",
    "maxtext.common.checkpointing": "maxtext",
    "maxtext.common.metric_logger": "maxtext",
    "maxtext.trainers.pre_train.train": "maxtext",
    "maxtext.utils.exceptions": "maxtext",
    "ultralytics": "ultralytics",
    "unsloth": "unsloth",
    "verl.trainer.main_ppo": "verl_command",
}
"""The modules of the frameworks, and the stand-ins that have what is imported from them."""


def _found(place: str, name: str) -> Any:
    """Import a stand-in when something of it is looked up: a script needs one of them."""
    if name.startswith("_"):  # libraries look for these in all modules
        raise AttributeError(name)
    return getattr(import_module(f"hosts.stand_ins.{place}"), name)


def installed() -> AbstractContextManager[None]:
    """Let programs import all of them."""
    return importable({name: {"__getattr__": functools.partial(_found, place)} for name, place in PLACES.items()})


if __name__ == "__main__":
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    with installed():
        runpy.run_path(sys.argv[0], run_name="__main__")
