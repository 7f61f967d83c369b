"""`Server`: a process that a sink delivers to, which can be killed, frozen and started again on its port."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil

from soak.layout import Layout


class Server:
    """One server with all its children.

    Args:
        name: What it is called; its log is called the same.
        command: How it is started.
        health: An address that answers once it is up.
        log: Where it writes.
    """

    def __init__(self, name: str, command: list[str], *, health: str, log: Path, environment: dict[str, str]) -> None:
        self.name, self.command, self.health, self.log = name, command, health, log
        self.environment = environment
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.log.parent,
                start_new_session=True,
            )

    def kill(self) -> None:
        if self.process is not None:
            self._signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def is_up(self) -> bool:
        try:
            with urllib.request.urlopen(self.health, timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def resident_bytes(self) -> int:
        assert self.process is not None
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, number)


def servers_for(layout: Layout) -> dict[str, Server]:
    """The servers of the sinks that are on, not started yet."""
    made = {}
    if "status" in layout.sinks:
        command = [sys.executable, "-m", "soak.endpoint_server", str(layout.ports["status"]), str(layout.endpoint_file)]
        made["status"] = _server("status", command, layout, "/")
    if "mlflow" in layout.sinks:
        made["mlflow"] = _server("mlflow", _mlflow(layout), layout, "/health")
    if "hookline" in layout.sinks:
        place = [str(layout.received_root), "--host", "127.0.0.1", "--port", str(layout.ports["hookline"])]
        made["hookline"] = _server("hookline", [hookline_command(), "serve", *place], layout, "/")
    return made


def hookline_command() -> str:
    """The program of the environment that this runs in."""
    return str(Path(sys.executable).parent / "hookline")


def _server(name: str, command: list[str], layout: Layout, health: str) -> Server:
    return Server(
        name,
        command,
        health=layout.url(name) + health,
        log=layout.logs / f"server-{name}.log",
        environment=layout.environment() | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
    )


def _mlflow(layout: Layout) -> list[str]:
    directory = layout.mlflow_directory
    directory.mkdir(exist_ok=True)
    store = ["--backend-store-uri", f"sqlite:///{directory}/server.db", "--artifacts-destination", f"{directory}/kept"]
    place = ["--host", "127.0.0.1", "--port", str(layout.ports["mlflow"]), "--workers", "1"]
    return [sys.executable, "-m", "mlflow", "server", *store, *place]
