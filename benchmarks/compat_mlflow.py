"""`compat` measures here how many metrics a server receives from MLflow's ``log_batch``, and what a kill loses of them.

Each server is pinned to one core, and is the only one at its time.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

TOKEN = "token-of-a-benchmark"  # noqa: S105 - of a server on this machine
_START_SECONDS = 120.0


def received(posts: int, peer_posts: int) -> dict[str, tuple[float, float]]:
    """Metrics a second of each server, by the clock and by the CPU time of its processes.

    Args:
        peer_posts: How many posts MLflow's own server gets, which takes long to start; 0 to leave it out.
    """
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for name, command in _servers(Path(place), with_peer=peer_posts > 0).items():
            with _served(command, Path(place)) as (process, port):
                found[name] = _received(process, port, posts if name == "hookline" else peer_posts)
    return found


def lost(posts: int) -> int:
    """How many acknowledged metrics a server that is killed has lost."""
    import hookline as hl

    with tempfile.TemporaryDirectory() as place:
        command = _servers(Path(place), with_peer=False)["hookline"]
        with contextlib.suppress(ProcessLookupError), _served(command, Path(place)) as (process, port):
            run_id = _ask(port, "POST", "runs/create", b'{"experiment_id": "0"}')["run"]["info"]["run_id"]
            for post in range(posts):
                _ask(port, "POST", "runs/log-batch", _batch(run_id, post))
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=60)
        records: list[Any] = list(hl.read(f"{place}/runs/default/{run_id}"))
        return 1000 * posts - sum(len(each.values) for each in records if type(each).__name__ == "Metrics")


def _servers(place: Path, *, with_peer: bool) -> dict[str, list[str]]:
    (place / "runs").mkdir()
    scripts = Path(sys.executable).parent
    servers = {"hookline": [str(scripts / "hookline"), "serve", str(place / "runs"), "--port", "PORT"]}
    if with_peer:
        store = ["--backend-store-uri", f"sqlite:///{place}/mlflow.db", "--artifacts-destination", f"{place}/files"]
        servers["mlflow server"] = [str(scripts / "mlflow"), "server", "--port", "PORT", "--workers", "1", *store]
    return servers


@contextlib.contextmanager
def _served(command: list[str], place: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a server on one core, in a group of its own: some start others."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(port) if each == "PORT" else each for each in command]
    environment = os.environ | {"HOOKLINE_WRITE_TOKEN": TOKEN}
    with (place / "server.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own commands
            command, env=environment, stdout=log, stderr=log, start_new_session=True, preexec_fn=_to_one_core
        )
        try:
            _wait_for(port)
            yield process, port
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=60)


def _to_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):  # not on macOS
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, AssertionError):
            _ask(port, "GET", "experiments/get?experiment_id=0")
            return
        time.sleep(0.2)
    raise SystemExit(f"the server at port {port} did not start in {_START_SECONDS:.0f} s")


def _ask(port: int, method: str, path: str, body: bytes = b"", connection: Any = None) -> Any:
    own = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    own.request(method, f"/api/2.0/mlflow/{path}", body, headers)
    reply = own.getresponse()
    content = reply.read()
    assert reply.status == 200, content
    return json.loads(content)


def _received(process: "subprocess.Popen[bytes]", port: int, posts: int) -> tuple[float, float]:
    """Metrics a second, by the clock and by the CPU time of the server's processes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    run_id = _ask(port, "POST", "runs/create", b'{"experiment_id": "0"}', connection)["run"]["info"]["run_id"]
    bodies = [_batch(run_id, post) for post in range(posts + 1)]
    _ask(port, "POST", "runs/log-batch", bodies.pop(), connection)
    used, start = _cpu_seconds(process.pid), time.perf_counter()
    for body in bodies:
        _ask(port, "POST", "runs/log-batch", body, connection)
    took, used = time.perf_counter() - start, _cpu_seconds(process.pid) - used
    return 1000 * posts / took, 1000 * posts / max(used, 0.01)


def _batch(run_id: str, post: int) -> bytes:
    """A hundred steps of ten metrics."""
    metrics = [
        {
            "key": f"metric_{index % 10}",
            "value": index / 7,
            "step": 100 * post + index // 10,
            "timestamp": 1_700_000_000_000 + 100 * post + index // 10,
        }
        for index in range(1000)
    ]
    return json.dumps({"run_id": run_id, "metrics": metrics}).encode()


def _cpu_seconds(pid: int) -> float:
    """What a process and its children have used."""
    psutil: Any = import_module("psutil")

    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return float(sum(each.cpu_times().user + each.cpu_times().system for each in family))
