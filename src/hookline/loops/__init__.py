"""Loops that fire moments: the driver for a bare loop, and what all loops share."""

from hookline.loops.loop import Loop, Row
from hookline.loops.run import Run, Validation, run

__all__ = ["Loop", "Row", "Run", "Validation", "run"]
