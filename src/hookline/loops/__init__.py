"""Loops that fire moments: the driver for a bare loop, and what all loops share."""

from hookline.loops.loop import Loop, Row
from hookline.loops.run import Run, run
from hookline.loops.validation import Validation

__all__ = ["Loop", "Row", "Run", "Validation", "run"]
