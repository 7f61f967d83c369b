"""The ids that loggers gave a run, in ``ids.json`` in its directory: an experiment that is started again has them.

A file that cannot be written or read costs the ids, never the run.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookline.experiment.results.atomic_file import write_atomically
from hookline.record.records import clean

logger = logging.getLogger("hookline")

FILE = "ids.json"


def keep_run_ids(directory: Path, ids: Mapping[str, Any]) -> None:
    """Write down a run's ids, without those of the experiment and of its groups, which are kept with the plan."""
    own = {name: id_ for name, id_ in ids.items() if name != "experiment_id" and not name.startswith("group:")}
    if own == (run_ids(directory) or {"run_id": directory.name}):  # every run is called so without a logger
        return
    try:
        directory.mkdir(exist_ok=True)
        write_atomically(directory / FILE, f"{json.dumps(clean(own))}\n".encode())
    except OSError as error:
        logger.error("The ids of %s cannot be written: %s. The experiment continues.", directory.name, error)  # noqa: TRY400


def run_ids(directory: Path) -> dict[str, Any]:
    """The ids of a run, as far as any were kept."""
    try:
        found: dict[str, Any] = json.loads((directory / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.error("%s cannot be read, and the run gets new ids: %s", directory / FILE, error)  # noqa: TRY400
        return {}
    return found
