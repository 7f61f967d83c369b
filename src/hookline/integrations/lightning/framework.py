"""`FRAMEWORK`: Lightning, as the package that is installed, and loaded already if one is.

``lightning.pytorch`` and ``pytorch_lightning`` hold the same classes twice. Their trainers take callbacks and loggers
of either.
"""

import sys
from importlib import import_module
from typing import Any

from hookline.core.errors import MissingExtraError

NAMES = ("lightning.pytorch", "pytorch_lightning")


def _find() -> Any:
    for name in sorted(NAMES, key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise  # it is there, and something that it needs is not
    raise MissingExtraError("hookline.integrations.lightning", "lightning")


FRAMEWORK = _find()
