"""What `serve.py` has a server bear: a process of writers, or one of viewers. Each prints one JSON object.

A writer is a run as every run is: a journal, and a delivery with the sink `hookline` on a thread of its own. Only the
training is left out; a clock logs the rows instead. A viewer is a browser's page as the server sees it: a live stream,
the list of runs and a chart of one of them, again and again.
"""

import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from hookline._record import run_directory
from hookline._record.delivery import Delivery
from hookline._record.reader import JournalEntry
from hookline._record.recorder import Recorder
from hookline.sinks import HooklineSink

PROJECT = "load"
SCALARS = 10
SAMPLE_EVERY = 10
"""How many rows there are to a sample."""
LOOK_SECONDS = 2.0
"""How long a viewer looks at what it got."""
START_SECONDS, DRAIN_SECONDS = 60.0, 120.0
_TEXT = "a sample has a prompt and a completion of a few hundred characters, as most have; " * 6


class TimedSink(HooklineSink):
    """The sink, and what its writes took: each of them, and the age of the oldest row when it was held."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seconds: list[float] = []
        self.ages: list[float] = []
        self.opened = 0

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        """Begin, or begin again after a fault."""
        self.opened += 1
        return super().open(run_dir, state)

    def write(self, parcels: Sequence[JournalEntry]) -> dict[str, Any]:
        """Send a batch, and note what it took."""
        start = time.perf_counter()
        state = super().write(parcels)
        self.seconds.append(time.perf_counter() - start)
        self.ages.append(time.time() - parcels[0].record.time)
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
        """Say that it begins, once the server was asked: every run waits for that, if not for so long."""
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
        """Say that it ended, and have the rest sent."""
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
            "behind_bytes": self.delivery.progress.cursor.behind(self.directory / "journal"),
            "faults": self.sink.opened - 1,
            "error": self.delivery.progress.error,
            "seconds": self.sink.seconds,
            "ages": self.sink.ages,
        }


def write(url: str, root: Path, numbers: range, *, seconds: float, rate: float) -> dict[str, Any]:
    """Have some writers record for a while, and send it all."""
    writers = [Writer(root, number, url) for number in numbers]
    for writer in writers:
        writer.thread.start()
    for writer in writers:
        writer.begin()
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


async def _view_until_told(url: str, count: int) -> dict[str, Any]:
    """Look until the standard input ends."""
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(over.set)), daemon=True).start()
    return await view(url, count, over)


def main() -> None:
    """Be a process of writers or viewers."""
    order = json.loads(sys.argv[1])
    if order["kind"] == "viewers":
        found = asyncio.run(_view_until_told(order["url"], order["count"]))
    else:
        numbers = range(order["first"], order["first"] + order["count"])
        found = write(order["url"], Path(order["root"]), numbers, seconds=order["seconds"], rate=order["rate"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
