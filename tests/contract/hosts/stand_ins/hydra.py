"""A stand-in for ``hydra.main``, with which verl's command reads its configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hosts.stand_ins.verl import settings


def main(config_path: str, config_name: str, version_base: Any) -> Callable[..., Callable[[], Any]]:
    """Call a function with the configuration."""
    return lambda function: lambda: function(settings(Path("checkpoints")))
