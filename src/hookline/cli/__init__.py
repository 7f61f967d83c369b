"""The command line: ``hookline``."""

from hookline.cli.app import app

__all__ = ["app"]
