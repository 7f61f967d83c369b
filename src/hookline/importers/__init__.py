"""What other tools wrote, made into runs: `import_runs`, and `detect`, which only looks."""

from hookline.importers.detect import FORMATS, Candidate, detect
from hookline.importers.importer import ImportedRun, import_runs
from hookline.importers.source import Left, Skipped

__all__ = [
    "FORMATS",
    "Candidate",
    "ImportedRun",
    "Left",
    "Skipped",
    "detect",
    "import_runs",
]
