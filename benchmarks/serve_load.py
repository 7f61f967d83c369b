"""Processes that ``serve.py`` starts: writers, viewers, a probe, idle runs, senders. Each prints one JSON object.

- ``writers`` are runs as every run is: a journal, and a delivery with the sink `hookline` on a thread of its own. Only
  the training is left out; a clock logs the rows instead.
- ``viewers`` are browsers' pages as the server sees them: a live stream, the list of runs and a chart of one of them,
  again and again.
- ``probe`` is one run that sends a row, and a viewer, ten times a second, and nothing else. Writers and viewers share
  their processes with many others, so that some of what they wait for is their own work; the probe sees the server.
- ``idle`` runs are live and record nothing.
- ``senders`` send runs as fast as the server answers, or at a rate.

The last three use a client that costs little (``serve_http.py``).
"""

import asyncio
import heapq
import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from serve_http import PROJECT, Connection, RequestError, SentRun, follow

from hookline import Recorder
from hookline._record import run_directory
from hookline._record.delivery import Delivery
from hookline.sinks import HooklineSink, JournalEntry

SCALARS = 10
SAMPLE_EVERY = 10
"""How many rows there are to a sample."""
LOOK_SECONDS = 2.0
"""How long a viewer looks at what it got."""
PROBE_SECONDS = 0.1
BEAT_SECONDS = 5.0
"""How often the sink of a run that records nothing sends a heartbeat, unless the server wants fewer."""
CONNECTIONS = 8
"""How many connections idle runs share: a server has room for a few hundred."""
START_SECONDS, DRAIN_SECONDS = 60.0, 120.0
_TEXT = "a sample has a prompt and a completion of a few hundred characters, as most have; " * 6


class TimedSink(HooklineSink):
    """The sink, and what its writes took: each of them, and the age of the oldest row when it was stored."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seconds: list[float] = []
        self.ages: list[float] = []
        self.opened = 0

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        """Begin, or begin again after a fault."""
        self.opened += 1
        return super().open(run_dir, state)

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        """Send a batch, and note what it took."""
        start = time.perf_counter()
        state = super().write(entries)
        self.seconds.append(time.perf_counter() - start)
        self.ages.append(time.time() - entries[0].record.time)
        return state


class Writer:
    """A run that records and is sent."""

    def __init__(self, root: Path, number: int, url: str) -> None:
        facts = {"name": f"writer-{number}", "project": PROJECT, "git": None}
        self.directory = run_directory.create(root, PROJECT, facts, run_id=f"writer-{number:04d}")
        self.recorder = Recorder(self.directory, segment_bytes=256 << 10)
        self.records = 0
        self.sink = TimedSink(url)
        self.delivery = Delivery(self.directory, "hookline", self.sink)
        self.thread = threading.Thread(target=self.delivery.run, daemon=True)
        self.noise = random.Random(number)

    def begin(self) -> None:
        """Record that it begins, once the server was asked: every run waits for that, if not for so long."""
        self.delivery.opened.wait(START_SECONDS)
        self.recorder.status("running", step=0)
        self.records += 1

    def log(self, step: int) -> None:
        """Record a row, and now and then a sample."""
        noise = self.noise.random
        self.recorder.log({"loss": noise(), **{f"layer{i}/norm": noise() for i in range(1, SCALARS)}}, step=step)
        self.records += 1
        if step % SAMPLE_EVERY == 0:
            sample = {"prompt": _TEXT[:200], "completion": f"{_TEXT} {noise()}", "rewards": {"exact": noise()}}
            self.recorder.samples([sample], step)
            self.records += 1

    def end(self, step: int) -> None:
        """Record that it ended, and have the rest sent."""
        self.recorder.status("finished", step=step)
        self.records += 1
        self.recorder.close()
        self.delivery.close(DRAIN_SECONDS)

    def report(self) -> dict[str, Any]:
        """What was recorded and how sending it went, once all was sent."""
        self.thread.join(DRAIN_SECONDS)
        return {
            "run": self.directory.name,
            "records": self.records,
            "bytes": self.recorder.journal.bytes_written,
            "faults": self.sink.opened - 1,
            "error": self.delivery.progress.error,
            "seconds": self.sink.seconds,
            "ages": self.sink.ages,
        }


def write(url: str, root: str, first: int, count: int, seconds: float, rate: float) -> dict[str, Any]:
    """Have some writers record for a while, and send it all. Prints ``ready`` when the server knows all their runs."""
    writers = [Writer(Path(root), number, url) for number in range(first, first + count)]
    for writer in writers:
        writer.thread.start()
    for writer in writers:
        writer.begin()
    print("ready", flush=True)
    pause, start, step = threading.Event(), time.monotonic(), 0
    while (now := time.monotonic() - start) < seconds:
        pause.wait(max(0.0, step / rate - now))
        step += 1
        for writer in writers:
            writer.log(step)
    for writer in writers:
        writer.end(step)
    return {"writers": [writer.report() for writer in writers]}


@dataclass(slots=True)
class Sight:
    """What the viewers saw."""

    runs: list[float] = field(default_factory=list)
    chart: list[float] = field(default_factory=list)
    events: int = 0
    longest_silence: float = 0.0
    errors: list[str] = field(default_factory=list)


async def view(url: str, count: int, over: asyncio.Event) -> dict[str, Any]:
    """Look at the server as so many people until it is over."""
    sight = Sight()
    limits = httpx.Limits(max_connections=None, keepalive_expiry=2.0)  # before the server closes an idle connection
    async with httpx.AsyncClient(base_url=url, timeout=60.0, limits=limits, trust_env=False) as client:
        tasks = [
            asyncio.create_task(task) for _ in range(count) for task in (_stream(client, sight), _poll(client, sight))
        ]
        await over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return asdict(sight)


async def _stream(client: httpx.AsyncClient, sight: Sight) -> None:
    while True:
        try:
            async with client.stream("GET", "/api/stream") as answer:
                answer.raise_for_status()
                last = time.monotonic()
                async for line in answer.aiter_lines():
                    if line.startswith("event:"):
                        now = time.monotonic()
                        sight.longest_silence, last = max(sight.longest_silence, now - last), now
                        sight.events += 1
        except httpx.HTTPError as error:
            sight.errors.append(f"stream: {error!r}")
            await asyncio.sleep(1.0)


async def _poll(client: httpx.AsyncClient, sight: Sight) -> None:
    choice = random.Random()
    await asyncio.sleep(LOOK_SECONDS * choice.random())
    while True:
        try:
            listed = (await _timed(client, "/api/runs", {}, sight.runs)).json()["runs"]
            if listed:
                chart = {"run": choice.choice(listed)["id"], "name": "loss", "max_points": 500}
                await _timed(client, "/api/series", chart, sight.chart)
        except httpx.HTTPError as error:
            sight.errors.append(f"request: {error!r}")
        await asyncio.sleep(LOOK_SECONDS)


async def _timed(client: httpx.AsyncClient, path: str, query: dict[str, Any], taken: list[float]) -> httpx.Response:
    start = time.perf_counter()
    answer = await client.get(path, params=query)
    taken.append(time.perf_counter() - start)
    return answer.raise_for_status()


async def probe(url: str, over: asyncio.Event) -> dict[str, Any]:
    """Write a row, and look at the list and at a chart, at a steady rate until it is over."""
    token = os.environ["HOOKLINE_TOKEN"]
    run = SentRun("probe", SCALARS)
    taken: dict[str, list[float]] = {"write": [], "runs": [], "chart": []}
    errors: list[str] = []
    chart = f"/api/series?run={PROJECT}%2F{run.name}&name=loss&max_points=500"
    async with Connection(url, token) as writing, Connection(url, token) as reading:
        await run.start(writing)

        async def time_reads() -> None:
            for path, times in itertools.cycle((("/api/runs", taken["runs"]), (chart, taken["chart"]))):
                await _probed(lambda path=path: reading.request("GET", path), times, errors)
                await asyncio.sleep(5 * PROBE_SECONDS)

        reads = asyncio.create_task(time_reads())
        while not over.is_set():
            lines, start = run.batch(1), time.monotonic()
            if not await _probed(lambda lines=lines: run.send(writing, lines), taken["write"], errors):
                await run.send_again(writing, lines)
            await asyncio.sleep(max(0.0, PROBE_SECONDS - (time.monotonic() - start)))
        reads.cancel()
        await asyncio.gather(reads, return_exceptions=True)
        await run.finish(writing)
    return {"run": run.name, "records": run.rows + 2, "errors": errors, **taken}


async def _probed(request: Any, times: list[float], errors: list[str]) -> bool:
    start = time.perf_counter()
    try:
        await request()
    except RequestError as error:
        errors.append(str(error))
        return False
    times.append(time.perf_counter() - start)
    return True


async def idle(url: str, count: int, beats: bool, over: asyncio.Event) -> dict[str, Any]:
    """Have live runs that record nothing, and a viewer, until it is over. Prints ``ready`` when they are there.

    Args:
        url: The address of the server.
        count: The number of runs.
        beats: Whether they send heartbeats, as the sink does; the runs are there already. Without, they are created.
        over: Set at the end.
    """
    token, sent = os.environ["HOOKLINE_TOKEN"], 0
    runs = [SentRun(f"idle-{number:04d}", 1) for number in range(count)]
    parts = [part for first in range(CONNECTIONS) if (part := runs[first::CONNECTIONS])]

    async def begin(own: list[SentRun]) -> None:
        async with Connection(url, token) as connection:
            for run in own:
                await run.start(connection)
                await run.send(connection, run.batch(1))
                await run.beat(connection, 3600.0)  # live without another one for the whole measurement

    async def beat(own: list[SentRun]) -> None:
        nonlocal sent
        due = [(start + BEAT_SECONDS * number / len(own), number) for number in range(len(own))]
        while due:
            when, number = heapq.heappop(due)
            await asyncio.sleep(max(0.0, when - time.monotonic()))
            # As the sink does: a connection for each, because the server would close one that waits so long.
            async with Connection(url, token) as connection:
                every = await own[number].beat(connection, BEAT_SECONDS)
            heapq.heappush(due, (when + every, number))
            sent += 1

    if not beats:
        await asyncio.gather(*(begin(part) for part in parts))
    start = time.monotonic()
    viewer = asyncio.create_task(follow(url, over))
    beating = [asyncio.create_task(beat(part)) for part in parts if beats]
    print("ready", flush=True)
    await over.wait()
    for task in beating:
        task.cancel()
    ended = await asyncio.gather(*beating, return_exceptions=True)
    errors = [repr(error) for error in ended if isinstance(error, Exception)]
    return {"beats": sent, "events": await viewer, "errors": errors}


async def send(
    url: str, runs: int, rows: int, seconds: float, most_batches: int, values_per_second: float | None
) -> dict[str, Any]:
    """Send runs at once, in batches of rows, for a while or until each has had so many batches.

    Args:
        url: The address of the server.
        runs: The number of runs.
        rows: The number of rows of a batch.
        seconds: How long.
        most_batches: A limit for each run, whatever the time.
        values_per_second: The rate of all runs together; None sends as fast as the server answers.
    """
    token, deadline = os.environ["HOOKLINE_TOKEN"], time.monotonic() + seconds
    pause = 0.0 if values_per_second is None else runs * rows * SCALARS / values_per_second
    sent = [SentRun(f"sender-{number}", SCALARS) for number in range(runs)]
    times: list[float] = []

    async def feed(run: SentRun) -> None:
        async with Connection(url, token) as connection:
            await run.start(connection)
            while time.monotonic() < deadline and run.batches < most_batches:
                lines, start = run.batch(rows), time.perf_counter()
                try:
                    await run.send(connection, lines)
                except RequestError:
                    await run.send_again(connection, lines)
                times.append(time.perf_counter() - start)
                if pause:
                    await asyncio.sleep(max(0.0, began + pause * run.batches - time.monotonic()))
            await run.finish(connection)

    began = time.monotonic()
    await asyncio.gather(*(feed(run) for run in sent))
    return {
        "wall_seconds": time.monotonic() - began,
        "client_cpu_seconds": time.process_time(),
        "rows": {run.name: run.rows for run in sent},
        "values": sum(run.rows * SCALARS for run in sent),
        "batches": sum(run.batches for run in sent),
        "faults": sum(run.faults for run in sent),
        "seconds": times,
    }


async def _until_input_ends(work: Callable[..., Awaitable[dict[str, Any]]], **order: Any) -> dict[str, Any]:
    """Do something until the standard input ends."""
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(over.set)), daemon=True).start()
    return await work(**order, over=over)


def main() -> None:
    """Be the process that the argument describes."""
    order = json.loads(sys.argv[1])
    kind = order.pop("kind")
    if kind == "writers":
        found = write(**order)
    elif kind == "senders":
        found = asyncio.run(send(**order))
    else:
        kinds: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {"viewers": view, "probe": probe, "idle": idle}
        found = asyncio.run(_until_input_ends(kinds[kind], **order))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
