"""`Layout`: where everything of one soak lies, and what is trained; written down for the processes that take part."""

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

OFFLINE = ("console", "csv", "jsonl", "tensorboard", "trackio", "prometheus", "function", "status")
"""Sinks that cost little to start."""
SLOW = ("hookline", "wandb", "mlflow")
"""Sinks whose packages, or whose server, take seconds to start."""
PROJECT = "soak"
WRITE_TOKEN = "the-write-token-of-a-soak"


@dataclass(frozen=True)
class Layout:
    """The places and the numbers of one soak.

    Args:
        home: The directory of the soak; servers and logs lie there, as if on other machines.
        disk: Where the runs are recorded: a small file system of its own, where there is one.
        steps: How many steps are trained.
        seed: What the model and the data are made of.
        sinks: Which sinks are on.
        ports: The ports of the servers by name.
        checkpoint_every: How many steps lie between two checkpoints.
        evaluate_every: How many steps lie between two evaluations.
    """

    home: Path
    disk: Path
    steps: int
    seed: int
    sinks: tuple[str, ...]
    ports: dict[str, int] = field(default_factory=dict)
    checkpoint_every: int = 80
    evaluate_every: int = 20

    @property
    def root(self) -> Path:
        return self.disk / "runs"

    @property
    def quiet_root(self) -> Path:
        return self.home / "quiet"

    @property
    def has_begun(self) -> bool:
        """Whether there is a run yet."""
        return any(self.root.glob(f"{PROJECT}/*/run.json"))

    @property
    def run_dir(self) -> Path:
        """The run's directory; there is never a second one, whatever happens."""
        (facts,) = self.root.glob(f"{PROJECT}/*/run.json")
        return facts.parent

    @property
    def reported(self) -> Path:
        """What each session says to have recorded, in a file each."""
        return self.home / "acknowledged"

    @property
    def is_over(self) -> Path:
        """A file that is there once nothing more is done to the training: only then is it completed."""
        return self.home / "is-over"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def function_file(self) -> Path:
        return self.home / "function.jsonl"

    @property
    def endpoint_file(self) -> Path:
        return self.home / "endpoint.jsonl"

    @property
    def received_root(self) -> Path:
        """Where the server of hookline keeps the journals that it is sent."""
        return self.home / "received"

    @property
    def mlflow_directory(self) -> Path:
        return self.home / "mlflow"

    def environment(self) -> dict[str, str]:
        """What all processes of the soak have in theirs."""
        own = {"SOAK_FUNCTION_FILE": str(self.function_file), "HOOKLINE_TOKEN": WRITE_TOKEN}
        quiet = {"WANDB_ERROR_REPORTING": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        path = os.pathsep.join(entry or "." for entry in sys.path)
        return os.environ | own | quiet | {"PYTHONPATH": path, "HOOKLINE_WRITE_TOKEN": WRITE_TOKEN}

    def url(self, server: str) -> str:
        return f"http://127.0.0.1:{self.ports[server]}"

    def save(self) -> Path:
        path = self.home / "layout.json"
        path.write_text(json.dumps(asdict(self), default=str))
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Layout":
        saved = json.loads(Path(path).read_text())
        places = {name: Path(saved[name]) for name in ("home", "disk")}
        return cls(**saved | places | {"sinks": tuple(saved["sinks"])})
