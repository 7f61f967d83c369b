"""Measures `hookline serve` under load, on two cores and loopback, with the server in a process of its own.

- ``crowd``: writers (runs with their journals and the sink `hookline`, in a few processes) record rows of ten numbers
  and now and then a sample; viewers hold the live stream and request the list of runs and charts. A probe, a light
  process of its own, does the same ten times a second: writers and viewers partly wait for each other, the probe waits
  for the server. At the end every record is counted in three places: as recorded, in the server's directories, and by
  SQL. Where they differ for a writer, the exit status is 1.
- ``idle``: live runs that record nothing, with one viewer: the server's share of a core, without heartbeats and with
  those of their sinks, as often as the server wants them. The bar is for both.
- ``rate``: values per second that one server stores, by the clock and per second of its CPU time, that is, per core.
  Every row is counted at the end. Beside it, what TensorBoard's writer, trackio and MLflow store without a server, per
  second of CPU time.
- ``viewed_rate``: values at the rate of the bar, with a viewer, for whom the server also reads the runs into its index.
- ``storage``: three servers over one object store (moto's S3), of which one is killed every few seconds. Every batch
  must be stored exactly once. Skipped where `hookline serve` has no option ``--storage``, or moto is not installed.

A write takes from handing over a batch to the answer that it is stored.
"""

import argparse
import contextlib
import importlib.util
import itertools
import json
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from measure import at_least, met
from rich.console import Console
from rich.table import Table
from serve_http import PROJECT
from store_trackers import values_per_second

import hookline as hl
from hookline.sinks import Metrics

LOAD = Path(__file__).with_name("serve_load.py")
STORAGE = Path(__file__).with_name("serve_storage.py")
SECTIONS = ("crowd", "idle", "rate", "viewed_rate", "storage")
CORES = 2
COUNTED = """
    SELECT run, count(*) AS records FROM (
        SELECT run FROM metrics WHERE name = 'loss' UNION ALL SELECT run FROM samples UNION ALL SELECT run FROM events
    ) GROUP BY run
"""
"""One of the numbers of a row stands for the row."""
CHART_BAR, LIST_BAR, WRITE_BAR, PROBE_BAR = 0.35, 0.35, 0.2, 0.1
"""Seconds at most, 99 times of 100."""
IDLE_BAR = 5.0
"""Percent of a core at most."""
RATE_BAR = 100_000
"""Values per second and core, at least."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much a server has to bear."""

    writers: int = 200
    viewers: int = 50
    seconds: float = 30.0
    rate: float = 10.0
    processes: int = 4
    idle_runs: int = 2000
    idle_seconds: float = 40.0
    settle_seconds: float = 30.0
    rate_runs: int = 4
    rate_rows: int = 4000
    rate_seconds: float = 60.0
    rate_batches: int = 1200
    other_rows: int = 2000
    storage_seconds: float = 30.0
    storage_kill_seconds: float = 3.0
    storage_runs: int = 8


SMALL = Size(
    writers=6,
    viewers=3,
    seconds=2.0,
    processes=2,
    idle_runs=20,
    idle_seconds=1.0,
    settle_seconds=1.0,
    rate_runs=2,
    rate_rows=100,
    rate_seconds=1.0,
    rate_batches=20,
    other_rows=20,
    storage_seconds=4.0,
    storage_kill_seconds=1.5,
    storage_runs=2,
)


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs."""

    url: str
    root: Path
    pid: int

    @property
    def pids(self) -> list[int]:
        """Its processes: the server, and the one that answers queries."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    @property
    def most_megabytes(self) -> float:
        """The most memory its processes had so far."""
        statuses = [Path(f"/proc/{pid}/status").read_text() for pid in self.pids]
        return sum(int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) for status in statuses) / 1024

    @property
    def cpu_by_process(self) -> list[float]:
        """The CPU time that each of its processes took so far: what a busy machine does not change much."""
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids]
        return [(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") for fields in stats]

    @property
    def cpu_seconds(self) -> float:
        """The CPU time that its processes took so far."""
        return sum(self.cpu_by_process)


@contextlib.contextmanager
def served(root: Path, token: str, log: Path, *, cores: Sequence[int] = ()) -> Iterator[Served]:
    """`hookline serve` over a directory, until the context is left; its messages go to a file."""
    command = [sys.executable, "-m", "hookline", "serve", str(root), "--port", "0", "--json"]
    environment = os.environ | {"HOOKLINE_WRITE_TOKEN": token}
    with (
        log.open("w") as messages,
        _on(cores),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True, env=environment) as process,  # noqa: S603
    ):
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            if not said:
                raise SystemExit(f"The server does not start: {log.read_text()}")
            yield Served(json.loads(said)["url"].rstrip("/"), root, process.pid)
        finally:
            process.send_signal(signal.SIGINT)


@contextlib.contextmanager
def _on(cores: Sequence[int]) -> Iterator[None]:
    """Run this process, and those that it starts, on these cores; anywhere if there are none."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def two_cores() -> list[int]:
    """The cores that a benchmark uses."""
    return sorted(os.sched_getaffinity(0))[:CORES] if hasattr(os, "sched_getaffinity") else []


def started(order: dict[str, Any], token: str) -> "subprocess.Popen[str]":
    """A process of load."""
    return subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, str(LOAD), json.dumps(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"HOOKLINE_TOKEN": token},
    )


def _said(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """End the input of a process, and read its report."""
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args!r:.200} ended with {process.returncode}")
    said: dict[str, Any] = json.loads(out)
    return said


class Place:
    """A directory of one part, and its server's token.

    Args:
        folder: An empty directory.
    """

    def __init__(self, folder: Path) -> None:
        self.root, self.machines, self.log = folder / "server", folder / "machines", folder / "server.log"
        self.token = secrets.token_urlsafe(32)

    def served(self, cores: Sequence[int] = ()) -> contextlib.AbstractContextManager[Served]:
        """Its server."""
        return served(self.root, self.token, self.log, cores=cores)

    def started(self, kind: str, server: Served, **order: Any) -> "subprocess.Popen[str]":
        """A process of load on its server."""
        return started({"kind": kind, "url": server.url, **order}, self.token)

    @property
    def messages(self) -> str:
        """The end of the server's messages."""
        return self.log.read_text()[-4000:]


def measure_crowd(place: Place, size: Size) -> dict[str, Any]:
    """Many writers and viewers at once."""
    bounds = [size.writers * part // size.processes for part in range(size.processes + 1)]
    with place.served() as server:
        at_start = server.cpu_seconds
        common = {"root": str(place.machines), "seconds": size.seconds, "rate": size.rate}
        writers = [
            place.started("writers", server, first=first, count=last - first, **common)
            for first, last in itertools.pairwise(bounds)
        ]
        # Starting the writers takes both cores for seconds, which viewers are not to measure.
        for process in writers:
            assert process.stdout is not None
            process.stdout.readline()
        viewers = place.started("viewers", server, count=size.viewers)
        probe = place.started("probe", server)
        reports = [report for process in writers for report in _said(process)["writers"]]
        sight, probed = _said(viewers), _said(probe)
        used = server.cpu_by_process
        costs = {
            "server_megabytes": server.most_megabytes,
            "server_cpu_seconds": sum(used),
            "server_cpu_by_process": used,
            "server_cpu_at_start": at_start,
        }
    journals, tables = counted(place.root)
    recorded = [*reports, {"run": probed["run"], "records": probed["records"]}]
    return {
        "records": {
            "recorded": sum(report["records"] for report in recorded),
            "held": journals.total(),
            "in_sql": tables.total(),
        },
        "bytes_recorded": sum(report["bytes"] for report in reports),
        "lost": losses(recorded, journals, tables),
        "writes": sum(len(report["seconds"]) for report in reports),
        "faults": sum(report["faults"] for report in reports),
        "write_seconds": quantiles([taken for report in reports for taken in report["seconds"]]),
        "age_seconds": quantiles([age for report in reports for age in report["ages"]]),
        "list_seconds": quantiles(sight["runs"]),
        "chart_seconds": quantiles(sight["chart"]),
        "probe_write_seconds": quantiles(probed["write"]),
        "probe_list_seconds": quantiles(probed["runs"]),
        "probe_chart_seconds": quantiles(probed["chart"]),
        "stream": {"events": sight["events"], "longest_silence_seconds": sight["longest_silence"]},
        "viewer_errors": [*sight["errors"], *probed["errors"]],
        "server_log": place.messages,
        **costs,
    }


def counted(root: Path) -> tuple[Counter[str], Counter[str]]:
    """How many records there are of each run: in the journals, and in the tables."""
    journals = Counter({home.name: sum(1 for _ in hl.read(home)) for home in (root / PROJECT).iterdir()})
    found = hl.runs(root)
    rows = found.sql(COUNTED, timeout_seconds=None).rows()
    found.close()
    return journals, Counter({row["run"].partition("/")[2]: row["records"] for row in rows})


def losses(reports: list[dict[str, Any]], journals: Counter[str], tables: Counter[str]) -> list[str]:
    """The writers whose counts differ."""
    return [
        f"{report['run']}: {report['records']} recorded, {journals[report['run']]} held, {tables[report['run']]} in SQL"
        for report in reports
        if not report["records"] == journals[report["run"]] == tables[report["run"]]
    ]


def measure_idle(place: Place, size: Size) -> dict[str, Any]:
    """Live runs that record nothing, and a viewer."""
    found: dict[str, Any] = {}
    with place.served() as server:
        for name, beats in (("silent", False), ("beating", True)):
            process = place.started("idle", server, count=size.idle_runs, beats=beats)
            assert process.stdout is not None
            process.stdout.readline()
            # Not counted: the first event of the stream, with all runs, and heartbeats before the server wants fewer.
            time.sleep(size.settle_seconds if beats else min(2.0, size.idle_seconds))
            used, start = server.cpu_seconds, time.monotonic()
            time.sleep(size.idle_seconds)
            found[f"{name}_percent"] = 100 * (server.cpu_seconds - used) / (time.monotonic() - start)
            found[name] = _said(process)
        found["server_megabytes"] = server.most_megabytes
    return found | {"server_log": place.messages}


def measure_rate(
    place: Place, size: Size, *, viewers: int = 0, values_per_second: float | None = None
) -> dict[str, Any]:
    """Values as fast as one server, on one core, stores them, or at a rate; senders and viewers have the other core."""
    cores = two_cores()
    with place.served(cores[:1]) as server:
        before = server.cpu_seconds
        with _on(cores[1:]):
            senders = place.started(
                "senders",
                server,
                runs=size.rate_runs,
                rows=size.rate_rows,
                seconds=size.rate_seconds,
                most_batches=size.rate_batches,
                values_per_second=values_per_second,
            )
            looking = place.started("viewers", server, count=viewers)
        sent, sight = _said(senders), _said(looking)
        used = server.cpu_seconds - before
        megabytes = server.most_megabytes
    held = {home.name: _steps(home) for home in (place.root / PROJECT).iterdir()}
    lost = [
        f"{run}: {rows} rows sent, {len(held.get(run, []))} stored"
        for run, rows in sent["rows"].items()
        if held.get(run) != list(range(1, rows + 1))
    ]
    return {
        "values": sent["values"],
        "values_per_second": sent["values"] / sent["wall_seconds"],
        "values_per_core_second": sent["values"] / max(used, 0.01),
        "server_cpu_seconds": used,
        "client_cpu_seconds": sent["client_cpu_seconds"],
        "server_megabytes": megabytes,
        "wall_seconds": sent["wall_seconds"],
        "batches": sent["batches"],
        "faults": sent["faults"],
        "batch_seconds": quantiles(sent["seconds"]),
        "list_seconds": quantiles(sight["runs"]),
        "chart_seconds": quantiles(sight["chart"]),
        "viewer_errors": sight["errors"],
        "lost": lost,
        "server_log": place.messages,
    }


def _steps(home: Path) -> list[int]:
    return [record.step for record in hl.read(home) if isinstance(record, Metrics)]


def measure_storage(place: Place, size: Size) -> dict[str, Any]:
    """Three servers over one object store, in a process of their own; or the reason why it is left out."""
    help_text = subprocess.run(
        [sys.executable, "-m", "hookline", "serve", "--help"], capture_output=True, text=True, check=False
    ).stdout
    if "--storage" not in help_text:
        return {"skipped": "`hookline serve` has no option --storage"}
    if importlib.util.find_spec("moto") is None:
        return {"skipped": "moto is not installed"}
    order = {
        "folder": str(place.root.parent),
        "token": place.token,
        "runs": size.storage_runs,
        "seconds": size.storage_seconds,
        "kill_seconds": size.storage_kill_seconds,
    }
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(STORAGE)], input=json.dumps(order), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"The part storage ended with {done.returncode}: {done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measured(size: Size, sections: Sequence[str] = SECTIONS, *, mlflow: bool = True) -> dict[str, Any]:
    """The parts that are wanted, and whether the bars are met."""
    report: dict[str, Any] = {"size": asdict(size), "load": {"before": os.getloadavg()[0]}}
    measures: dict[str, Callable[[Place, Size], dict[str, Any]]] = {
        "crowd": measure_crowd,
        "idle": measure_idle,
        "rate": measure_rate,
        "viewed_rate": partial(measure_rate, viewers=1, values_per_second=RATE_BAR),
        "storage": measure_storage,
    }
    with _on(two_cores()):
        for section in sections:
            with tempfile.TemporaryDirectory(prefix="hookline-serve-") as folder:
                report[section] = measures[section](Place(Path(folder)), size)
        if "rate" in sections:
            with tempfile.TemporaryDirectory(prefix="hookline-serve-") as folder:
                report["rate"]["others"] = values_per_second(Path(folder), size.other_rows, 10, mlflow=mlflow)
    report["load"]["after"] = os.getloadavg()[0]
    report["lost"] = [line for section in sections for line in report[section].get("lost", ())]
    report["bars"] = bars(report)
    return report


def quantiles(taken: list[float]) -> dict[str, float]:
    """The number of them, the median, the 99th percentile and the largest."""
    ordered = sorted(taken) or [0.0]
    return {
        "count": len(taken),
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[math.ceil(0.99 * len(ordered)) - 1],
        "max": ordered[-1],
    }


LATENCIES = (
    ("write_seconds", "a writer: a write, until it is stored", WRITE_BAR),
    ("age_seconds", "a writer: age of a batch's oldest row then", None),
    ("list_seconds", "a viewer: the list of runs", LIST_BAR),
    ("chart_seconds", "a viewer: a chart", CHART_BAR),
    ("probe_write_seconds", "the probe: a write", PROBE_BAR),
    ("probe_list_seconds", "the probe: the list of runs", None),
    ("probe_chart_seconds", "the probe: a chart", None),
)


def bars(report: dict[str, Any]) -> dict[str, bool]:
    """Whether each bar is met, of the parts that were measured."""
    found: dict[str, bool] = {}
    if "crowd" in report:
        crowd = report["crowd"]
        found |= {name: crowd[name]["p99"] <= bar for name, _, bar in LATENCIES if bar is not None}
        found["nothing lost"] = not crowd["lost"]
    if "idle" in report:
        found |= {name: report["idle"][name] <= IDLE_BAR for name in ("silent_percent", "beating_percent")}
    if "rate" in report:
        found["values_per_core_second"] = report["rate"]["values_per_core_second"] >= RATE_BAR
    lost = [report[part]["lost"] for part in ("rate", "viewed_rate") if part in report]
    if lost:
        found["every value stored"] = not any(lost)
    if "storage" in report and "skipped" not in report["storage"]:
        found["every batch exactly once"] = not report["storage"]["lost"]
    return found


def tables(report: dict[str, Any]) -> Iterator[Table]:
    """The figures, as people read them."""
    if "crowd" in report:
        yield _crowd_table(report)
    others = ("TensorBoard", "trackio", "MLflow")
    shown = Table("", title="One server", caption="the others: values stored per second of CPU time, without a server")
    for heading in ("hookline", "bar", "", *others):
        shown.add_column(heading, justify="right")
    size, marks = report["size"], report["bars"]
    if "idle" in report:
        for name, label in (("silent_percent", "no heartbeats"), ("beating_percent", "with heartbeats")):
            what = f"{size['idle_runs']:,} idle live runs, one viewer, {label}: share of a core"
            shown.add_row(what, f"{report['idle'][name]:.1f}%", f"{IDLE_BAR:g}%", met(marks[name]))
    if "rate" in report:
        rate = report["rate"]
        theirs = ("" if rate["others"][name] is None else f"{rate['others'][name]:,.0f}" for name in others)
        shown.add_row(
            f"values per second of the server's CPU time, for {rate['wall_seconds']:.0f} s",
            f"{rate['values_per_core_second']:,.0f}",
            f"{RATE_BAR:,}",
            met(marks["values_per_core_second"]),
            *theirs,
        )
        shown.add_row("values per second by the clock, the server on one core", f"{rate['values_per_second']:,.0f}")
        what = f"{rate['values']:,} values in {size['rate_runs']} runs: runs with a loss"
        shown.add_row(what, f"{len(rate['lost'])}", "0", met(not rate["lost"]))
    if "viewed_rate" in report:
        rate = report["viewed_rate"]
        percent, chart = 100 * rate["server_cpu_seconds"] / rate["wall_seconds"], rate["chart_seconds"]
        at = f"{rate['values_per_second']:,.0f} values per second and a viewer"
        shown.add_row(f"{at}: share of a core", f"{percent:.0f}%")
        median = f"{1000 * chart['p50']:,.0f}" if chart["count"] else "none came"
        shown.add_row(f"{at}: median of {chart['count']} charts, milliseconds", median)
        what = f"{at}: of {size['rate_runs']} runs, those with a loss"
        shown.add_row(what, f"{len(rate['lost'])}", "0", met(not rate["lost"]))
    if "storage" in report:
        _add_storage(shown, report["storage"])
    if shown.row_count:
        yield shown


def _crowd_table(report: dict[str, Any]) -> Table:
    size, crowd, load = report["size"], report["crowd"], report["load"]
    records = crowd["records"]
    title = (
        f"{size['writers']} writers of {size['rate']:g} rows a second, {size['viewers']} viewers, {size['seconds']:g} s"
    )
    caption = (
        f"{records['recorded']:,} records recorded, {records['held']:,} held, {records['in_sql']:,} in SQL: "
        f"{len(crowd['lost'])} runs with losses ({met(not crowd['lost'])}); {crowd['faults']} failed requests, which "
        f"were repeated; {len(crowd['viewer_errors'])} errors of viewers; the server used "
        f"{crowd['server_cpu_seconds']:.1f} s of CPU time ({crowd['server_cpu_at_start']:.1f} of it to start; "
        f"{' and '.join(f'{each:.1f}' for each in crowd['server_cpu_by_process'])} s in its processes) "
        f"and at most {crowd['server_megabytes']:.0f} MB; "
        f"load {load['before']:.1f} before and {load['after']:.1f} after"
    )
    shown = Table("milliseconds", title=title, caption=caption)
    for heading in ("count", "p50", "p99", "max", "bar of p99", ""):
        shown.add_column(heading, justify="right")
    for name, label, bar in LATENCIES:
        row = crowd[name]
        marks = ("", "") if bar is None else (f"{1000 * bar:,.0f}", met(report["bars"][name]))
        shown.add_row(label, f"{row['count']:,}", *(f"{1000 * row[key]:,.0f}" for key in ("p50", "p99", "max")), *marks)
    return shown


def _add_storage(shown: Table, storage: dict[str, Any]) -> None:
    what = "three servers over one S3 store, one killed again and again"
    if "skipped" in storage:
        shown.add_row(f"{what}: skipped, {storage['skipped']}")
        return
    shown.add_row(f"{what}: batches per second", f"{storage['batches_per_second']:,.1f}")
    lost = f"{what}: {storage['kills']} kills, {storage['batches']:,} batches: runs not stored exactly once"
    shown.add_row(lost, f"{len(storage['lost'])}", "0", met(not storage["lost"]))


def main() -> None:
    """Measure, and print tables or one JSON object; exit with 1 where something was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=at_least(1), help="how many send at once")
    parser.add_argument("--viewers", type=at_least(0), help="how many look")
    parser.add_argument("--seconds", type=float, help="how long the writers record")
    parser.add_argument("--rate", type=float, help="how many rows each records a second")
    parser.add_argument("--part", action="append", choices=SECTIONS, help="measure only this; may be repeated")
    parser.add_argument("--small", action="store_true", help="measure little, to see that it works")
    parser.add_argument("--mlflow", action="store_true", help="with --small: measure MLflow too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in ("writers", "viewers", "seconds", "rate")}
    size = replace(
        SMALL if options.small else Size(), **{name: each for name, each in given.items() if each is not None}
    )
    report = measured(size, options.part or SECTIONS, mlflow=options.mlflow or not options.small)
    if options.json:
        print(json.dumps(report))
    else:
        Console().print(*tables(report), sep="\n")
    if report["lost"]:
        logs = [report[section].get("server_log", "") for section in options.part or SECTIONS]
        print(*report["lost"], *logs, sep="\n", file=sys.stderr)
    sys.exit(1 if report["lost"] else 0)


if __name__ == "__main__":
    main()
