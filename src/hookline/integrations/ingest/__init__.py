"""What other tools wrote, made into runs: `import_runs`, and `detect`, which only looks."""

from hookline.integrations.ingest.detect import FORMATS, Candidate, detect
from hookline.integrations.ingest.importer import ImportedRun, import_runs
from hookline.integrations.ingest.source import Left, Skipped

__all__ = [
    "FORMATS",
    "Candidate",
    "ImportedRun",
    "Left",
    "Skipped",
    "detect",
    "import_runs",
]
