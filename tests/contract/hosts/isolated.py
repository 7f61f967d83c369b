"""Packages in a directory of their own, since other packages behave differently where they find them."""

import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

ISOLATED = Path(sys.prefix) / "isolated"


def load(package: str) -> Any:
    """Import such a package, without leaving it where others find it."""
    sys.path.append(str(ISOLATED))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its imports use what others deprecate
            return import_module(package)
    finally:
        sys.path.remove(str(ISOLATED))
