"""Imports runs that other tools recorded: `import_runs`, and `detect`, which only looks."""

from hookline.importers.detect import FORMATS, DetectedRun, detect
from hookline.importers.importer import ImportedRun, import_runs
from hookline.importers.sources import Left, Skipped

__all__ = [
    "FORMATS",
    "DetectedRun",
    "ImportedRun",
    "Left",
    "Skipped",
    "detect",
    "import_runs",
]
