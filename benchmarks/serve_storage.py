"""Three servers over one object store, of which one is killed every few seconds; started by ``serve.py``.

The store is moto's S3, in a process of its own. Runs send small batches to any server that is up; after a fault they
ask another one how much of the run is stored, and continue from there. At the end a new server, with an empty
directory, shows every run: its steps must be exactly those that were sent, each once. Reads an order from the standard
input, and prints one JSON object.
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import time
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from serve_http import PROJECT, Connection, RequestError, SentRun

SERVERS = 3
ROWS = 4
MOST_BATCHES = 4900
"""Of a run: its rows still fit into one chart without being thinned out."""
MAX_POINTS = 20_000
RETRY_SECONDS = 0.1
DRAIN_SECONDS, SEEN_SECONDS = 120.0, 120.0
BUCKET = "hookline-benchmark"
_MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
sys.stdin.read()
server.stop()
"""


@contextlib.asynccontextmanager
async def object_store() -> AsyncIterator[dict[str, str]]:
    """A new S3 store with a bucket: the variables with which a server finds it."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _MOTO, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        request = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")  # noqa: S310 - our own server
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=30).close())  # noqa: S310
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "benchmark",
            "AWS_SECRET_ACCESS_KEY": "benchmark",
        }
    finally:
        process.stdin.close()
        await process.wait()


class Server:
    """A server over the store; it can be killed and started again.

    Args:
        folder: Has its directory and its messages.
        name: Its name in the folder.
        variables: Those of the store, and the write token.
    """

    def __init__(self, folder: Path, name: str, variables: dict[str, str]) -> None:
        self.root, self.log = folder / name, folder / f"{name}.log"
        self.variables, self.url = variables, ""
        self._process: Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        storage = ["--storage", f"s3://{BUCKET}/runs", "--cache", str(self.root)]
        with self.log.open("a") as messages:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "hookline", "serve", *storage, "--port", "0", "--json"),
                stdout=PIPE,
                stderr=messages,
                env=os.environ | self.variables,
            )
        assert self._process.stdout is not None
        said = await self._process.stdout.readline()
        if not said:
            raise SystemExit(f"The server does not start: {self.log.read_text()[-2000:]}")
        self.url = json.loads(said)["url"].rstrip("/")

    async def stop(self, how: signal.Signals) -> None:
        """End it; by SIGKILL, in the middle of what it does."""
        self.url = ""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(how)
            await self._process.wait()


class Load:
    """Runs that are sent to any of the servers.

    Args:
        servers: Some of them may be down.
        token: Their write token.
    """

    def __init__(self, servers: list[Server], token: str) -> None:
        self.servers, self.token = servers, token
        self.times: list[float] = []

    async def feed(self, run: SentRun, deadline: float) -> None:
        """Send a run until a time, whatever happens to the servers."""
        connection = await self._connect(run.start)
        while time.monotonic() < deadline and run.batches < MOST_BATCHES:
            lines, start = run.batch(ROWS), time.perf_counter()
            try:
                await run.send(connection, lines)
            except RequestError:
                connection.close()
                connection = await self._connect(lambda other, lines=lines: run.send_again(other, lines))
            self.times.append(time.perf_counter() - start)
        connection.close()

    async def _connect(self, first: Any) -> Connection:
        """A connection to a server with which something succeeds."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline:
            url = random.choice(self.servers).url
            if url:
                connection = Connection(url, self.token)
                try:
                    await first(connection)
                except RequestError:
                    connection.close()
                else:
                    return connection
            await asyncio.sleep(RETRY_SECONDS)
        raise SystemExit(f"No server answered for {DRAIN_SECONDS:g} s.")


async def kill_in_turns(servers: list[Server], every_seconds: float, over: asyncio.Event) -> int:
    """Kill one server after the other, and start it again, until it is over; returns how often."""
    for kills, server in enumerate(itertools.cycle(servers)):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), every_seconds)
        if over.is_set():
            return kills
        await server.stop(signal.SIGKILL)
        await server.start()
    return 0


async def differences(url: str, runs: list[SentRun], token: str, seconds: float = SEEN_SECONDS) -> list[str]:
    """The runs that a server does not show, within some time, exactly as they were sent."""
    waiting, deadline = {run.name: run for run in runs}, time.monotonic() + seconds
    found: dict[str, list[int]] = {}
    async with Connection(url, token) as connection:
        while waiting and time.monotonic() < deadline:
            for name, run in list(waiting.items()):
                query = f"run={PROJECT}%2F{name}&name=loss&max_points={MAX_POINTS}"
                with contextlib.suppress(RequestError):
                    lines = (await connection.request("GET", f"/api/series?{query}"))["lines"]
                    found[name] = [int(step) for line in lines for step in line["x"]]
                    if len(found[name]) >= run.rows:
                        del waiting[name]
            await asyncio.sleep(RETRY_SECONDS)
    return [
        f"{run.name}: {run.rows} rows sent, {len(found.get(run.name, []))} stored, "
        f"{len(set(found.get(run.name, [])))} of them different"
        for run in runs
        if found.get(run.name) != list(range(1, run.rows + 1))
    ]


async def measured(folder: str, token: str, runs: int, seconds: float, kill_seconds: float) -> dict[str, Any]:
    """Send runs while servers are killed, and compare what is stored."""
    place = Path(folder)
    async with object_store() as variables:
        variables |= {"HOOKLINE_WRITE_TOKEN": token}
        servers = [Server(place, f"server-{number}", variables) for number in range(SERVERS)]
        new = Server(place, "new", variables)
        try:
            await asyncio.gather(*(server.start() for server in servers))
            load, over = Load(servers, token), asyncio.Event()
            sent = [SentRun(f"sent-{number}", 1) for number in range(runs)]
            killing = asyncio.create_task(kill_in_turns(servers, kill_seconds, over))
            start = time.monotonic()
            await asyncio.gather(*(load.feed(run, start + seconds) for run in sent))
            wall = time.monotonic() - start
            over.set()
            kills = await killing
            for server in servers:
                await server.stop(signal.SIGKILL)
            await new.start()
            lost = await differences(new.url, sent, token)
        finally:
            for server in (*servers, new):
                await server.stop(signal.SIGTERM)
    batches = sum(run.batches for run in sent)
    ordered = sorted(load.times)
    return {
        "batches": batches,
        "batches_per_second": batches / wall,
        "rows": sum(run.rows for run in sent),
        "kills": kills,
        "faults": sum(run.faults for run in sent),
        "batch_seconds": {"p50": ordered[len(ordered) // 2], "max": ordered[-1]},
        "lost": lost,
        "server_log": "".join(server.log.read_text()[-1000:] for server in (*servers, new)),
    }


def main() -> None:
    """Read the order, and print the report."""
    print(json.dumps(asyncio.run(measured(**json.load(sys.stdin)))))


if __name__ == "__main__":
    main()
