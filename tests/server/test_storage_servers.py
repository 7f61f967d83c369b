"""Three servers over one object store, which are killed again and again while several machines send their runs."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="object stores need the extra 'storage'")

from sending import TOKENS, WRITE
from waiting import wait_until

import hookline as hl
from hookline.server import WebServer
from hookline.server.storage import protocol
from hookline.server.storage.objects import open_objects
from hookline.server.storage.service import StorageOptions

SERVER = """
import sys
from hookline.server import Tokens, WebServer
from hookline.server.storage.compaction import CompactionPolicy
from hookline.server.storage.service import StorageOptions

url, root, port, token = sys.argv[1:]
options = StorageOptions(
    url, report_seconds=0.5, copy_seconds=1.0, scan_seconds=3.0, compact_seconds=0.5, threads=2,
    policy=CompactionPolicy(min_batches=4, grace_seconds=1.0),
)
server = WebServer(root, port=int(port), tokens=Tokens(write=token), storage=options)
print(server.url, flush=True)
server.serve()
"""
SENDER = """
import sys, time
import hookline as hl

url, root, name, rows, seconds = sys.argv[1:]
with hl.run(name, project="lab", root=root, sinks=[{"hookline": {"url": url}}], summary=False) as run:
    for step in run.steps(int(rows)):
        run.log(loss=1.0 / (step + 1), text="x" * (step % 50))
        if step % 200 == 199:
            sys.stdin.readline()  # until another server was killed
        time.sleep(float(seconds) / int(rows))
"""
SENDERS, ROWS, SENDING_SECONDS, KILL_SECONDS = 3, 600, 6.0, 1.5


class Balancer:
    """Connects each sender to the server with the fewest connections so far that answers."""

    def __init__(self, ports):
        self._ports, self._listener = ports, socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.counts, self._choice = dict.fromkeys(ports, 0), threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, self._connect() as server:
            back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
            back.start()
            self._copy(client, server)
            back.join()

    def _connect(self):
        with self._choice:  # or clients that come at once would all get the same server
            for port in sorted(self._ports, key=lambda port: self.counts[port]):
                with contextlib.suppress(OSError):
                    server = socket.create_connection(("127.0.0.1", port), 5)
                    self.counts[port] += 1
                    return server
        return socket.socket()  # no server answers: it cannot be read, and the client is disconnected

    def _copy(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def processes():
    """Starts processes, and ends those that are left."""
    started = []

    def start(code, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"HOOKLINE_TOKEN": WRITE},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def journals(directory):
    """The journal files of runs, without the zeros after the lines of a file that was not closed."""
    found = {}
    for path in sorted(Path(directory).glob("lab/*/journal/main-*.jsonl")):
        found[str(path.relative_to(directory))] = path.read_bytes().rstrip(b"\0")
    return found


def test_servers_killed_again_and_again_lose_and_double_nothing(bucket, processes, tmp_path):
    ports = [free_port() for _ in range(3)]
    servers = {}

    def start(port):
        root = tmp_path / f"server-{port}"
        root.mkdir(exist_ok=True)
        servers[port] = processes(SERVER, bucket, root, port, WRITE)
        assert servers[port].stdout.readline(), servers[port].stderr.read()

    for port in ports:
        start(port)
    balancer = Balancer(ports)
    own = tmp_path / "own"
    senders = [processes(SENDER, balancer.url, own, f"s{n}", ROWS, SENDING_SECONDS) for n in range(SENDERS)]
    kills = 0

    def are_done_by(when):
        return time.monotonic() > when or all(sender.poll() is not None for sender in senders)

    while any(sender.poll() is None for sender in senders):
        wait_until(partial(are_done_by, time.monotonic() + KILL_SECONDS))
        port = ports[kills % len(ports)]
        servers[port].send_signal(signal.SIGKILL)
        servers[port].communicate()
        for sender in senders:
            with contextlib.suppress(BrokenPipeError):  # it has ended
                os.write(sender.stdin.fileno(), b"\n")
        start(port)
        kills += 1
    errors = [sender.communicate()[1] for sender in senders]
    assert [sender.returncode for sender in senders] == [0] * SENDERS, errors
    for name in sorted(journals(own)):  # what a sender could not deliver before its time was up
        run_dir = own / Path(name).parent.parent
        command = [sys.executable, "-m", "hookline", "runs", "sync", str(run_dir)]
        environment = os.environ | {"HOOKLINE_TOKEN": WRITE}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    balancer.close()
    (tmp_path / "fresh").mkdir()
    with WebServer(tmp_path / "fresh", tokens=TOKENS, storage=StorageOptions(bucket, report_seconds=0.2)):
        wait_until(lambda: journals(tmp_path / "fresh") == journals(own))
        rows = (
            hl.runs(tmp_path / "fresh")
            .sql("SELECT run, count(*), count(DISTINCT step), max(step) FROM metrics WHERE name = 'loss' GROUP BY run")
            .rows()
        )
    counts = sorted(tuple(row.values())[1:] for row in rows)
    assert counts == [(ROWS, ROWS, ROWS)] * SENDERS
    # It was about something: servers were killed, all of them received batches, and batches were joined.
    objects = open_objects(bucket)
    manifests = [entry.name for entry in objects.list(protocol.RUNS) if "/manifest/" in entry.name]
    assert (kills >= 3, min(balancer.counts.values()) >= 1, len(manifests) >= 1) == (True, True, True)
