"""What `hookline serve` bears: many machines that send at once, while people look.

A server in a process of its own, on loopback. Writers (runs with their journals and the sink `hookline`, in a few
processes) record rows of ten numbers and now and then a sample; viewers follow the live stream and ask for the list of
runs and for charts. At the end every record is counted in three places: what each writer recorded, what lies in the
server's directories, and what its tables give to SQL. They must be equal for each writer: where they are not, the exit
status is 1.

Printed are what a write took (from handing over a batch to the answer that it is held), how old the oldest row of a
batch was then, and what viewers waited for.
"""

import argparse
import contextlib
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
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure import at_least
from rich.console import Console
from rich.table import Table
from serve_load import PROJECT

from hookline._record.reader import Reader
from hookline.store import runs

LOAD = Path(__file__).with_name("serve_load.py")
COUNTED = """
    SELECT run, count(*) AS records FROM (
        SELECT run FROM metrics WHERE name = 'loss' UNION ALL SELECT run FROM samples UNION ALL SELECT run FROM events
    ) GROUP BY run
"""
"""One of the numbers of a row stands for the row."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much a server has to bear."""

    writers: int = 200
    viewers: int = 50
    seconds: float = 60.0
    rate: float = 10.0
    processes: int = 4


SMALL = Size(writers=6, viewers=3, seconds=2.0, rate=10.0, processes=2)


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs."""

    url: str
    root: Path
    pid: int

    @property
    def most_megabytes(self) -> float:
        """The most memory it had so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024

    @property
    def cpu_seconds(self) -> float:
        """The processor's time that it took so far: what a busy machine does not change much."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def served(root: Path, token: str, log: Path) -> Iterator[Served]:
    """`hookline serve` over a directory, until the context is left; what it complains of goes to a file."""
    code = "from hookline.cli import app; app()"
    command = [sys.executable, "-c", code, "serve", str(root), "--port", "0", "--json"]
    environment = os.environ | {"HOOKLINE_WRITE_TOKEN": token}
    with (
        log.open("w") as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True, env=environment) as process,  # noqa: S603
    ):
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            if not said:
                raise SystemExit(f"The server does not start: {log.read_text()}")
            yield Served(json.loads(said)["url"].rstrip("/"), root, process.pid)
        finally:
            process.send_signal(signal.SIGINT)


def started(order: dict[str, Any], token: str) -> "subprocess.Popen[str]":
    """A process of writers or viewers."""
    return subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, str(LOAD), json.dumps(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"HOOKLINE_TOKEN": token},
    )


def loaded(server: Served, place: Path, size: Size, token: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the writers and the viewers say once the writers are done."""
    viewers = started({"kind": "viewers", "url": server.url, "count": size.viewers}, token)
    writers = [started(order, token) for order in _orders(server, place, size)]
    reports = [report for process in writers for report in _said(process)["writers"]]
    return reports, _said(viewers)


def _orders(server: Served, place: Path, size: Size) -> Iterator[dict[str, Any]]:
    bounds = [size.writers * part // size.processes for part in range(size.processes + 1)]
    common = {"kind": "writers", "url": server.url, "root": str(place), "seconds": size.seconds, "rate": size.rate}
    for first, last in itertools.pairwise(bounds):
        yield common | {"first": first, "count": last - first}


def _said(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args!r:.200} ended with {process.returncode}")
    said: dict[str, Any] = json.loads(out)
    return said


def counted(root: Path) -> tuple[Counter[str], Counter[str]]:
    """How many records there are of each run: in the journals, and in the tables."""
    journals = Counter(
        {home.name: sum(1 for _ in Reader(home / "journal").new()) for home in (root / PROJECT).iterdir()}
    )
    found = runs(root)
    rows = found.sql(COUNTED, timeout_seconds=None).rows()
    found.close()
    return journals, Counter({row["run"].partition("/")[2]: row["records"] for row in rows})


def losses(reports: list[dict[str, Any]], journals: Counter[str], tables: Counter[str]) -> list[str]:
    """What does not come to the same, in words, by writer."""
    return [
        f"{report['run']}: {report['records']} recorded, {journals[report['run']]} held, {tables[report['run']]} in SQL"
        for report in reports
        if not report["records"] == journals[report["run"]] == tables[report["run"]]
    ]


def measured(size: Size) -> dict[str, Any]:
    """Everything."""
    token = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory(prefix="hookline-serve-") as folder:
        root, place, log = Path(folder) / "server", Path(folder) / "machines", Path(folder) / "server.log"
        with served(root, token, log) as server:
            reports, sight = loaded(server, place, size, token)
            costs = {"server_megabytes": server.most_megabytes, "server_cpu_seconds": server.cpu_seconds}
        journals, tables = counted(root)
        complaints = log.read_text()[-4000:]
        held = sum(file.stat().st_size for file in root.glob(f"{PROJECT}/*/journal/*.jsonl"))
    return {
        "size": asdict(size),
        "records": {
            "recorded": sum(report["records"] for report in reports),
            "held": journals.total(),
            "in_sql": tables.total(),
        },
        "bytes": {"recorded": sum(report["bytes"] for report in reports), "held": held},
        "lost": losses(reports, journals, tables),
        "writes": sum(len(report["seconds"]) for report in reports),
        "faults": sum(report["faults"] for report in reports),
        "write_seconds": quantiles([taken for report in reports for taken in report["seconds"]]),
        "age_seconds": quantiles([age for report in reports for age in report["ages"]]),
        "runs_seconds": quantiles(sight["runs"]),
        "chart_seconds": quantiles(sight["chart"]),
        "stream": {"events": sight["events"], "longest_silence_seconds": sight["longest_silence"]},
        "viewer_errors": sight["errors"],
        "server_log": complaints,
        **costs,
        "load": os.getloadavg()[0],
    }


def quantiles(taken: list[float]) -> dict[str, float]:
    """The number of them, the median, the 99th percentile and the largest."""
    ordered = sorted(taken) or [0.0]
    return {
        "count": len(taken),
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[math.ceil(0.99 * len(ordered)) - 1],
        "max": ordered[-1],
    }


def table(report: dict[str, Any]) -> Table:
    """The figures, as people read them."""
    size, records, held = report["size"], report["records"], report["bytes"]["held"]
    title = (
        f"{size['writers']} writers of {size['rate']:g} rows a second, {size['viewers']} viewers, {size['seconds']:g} s"
    )
    caption = (
        f"{records['recorded']:,} records recorded, {records['held']:,} held, {records['in_sql']:,} in SQL; "
        f"{held / 1e6:.1f} MB; {report['faults']} faults of requests, which were repeated; "
        f"{len(report['viewer_errors'])} errors of viewers; "
        f"the server took {report['server_cpu_seconds']:.1f} s of a processor and {report['server_megabytes']:.0f} MB "
        f"at most; load {report['load']:.1f}"
    )
    shown = Table("milliseconds", title=title, caption=caption)
    for heading in ("count", "p50", "p99", "max"):
        shown.add_column(heading, justify="right")
    for label, name in (
        ("a write, until it is held", "write_seconds"),
        ("age of a batch's oldest row then", "age_seconds"),
        ("a viewer: the list of runs", "runs_seconds"),
        ("a viewer: a chart", "chart_seconds"),
    ):
        row = report[name]
        shown.add_row(label, f"{row['count']:,}", *(f"{1000 * row[key]:,.0f}" for key in ("p50", "p99", "max")))
    return shown


def main() -> None:
    """Measure, and print a table or one JSON object; exit with 1 where something was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=at_least(1), help="how many send at once")
    parser.add_argument("--viewers", type=at_least(0), help="how many look")
    parser.add_argument("--seconds", type=float, help="how long the writers record")
    parser.add_argument("--rate", type=float, help="how many rows each records a second")
    parser.add_argument("--small", action="store_true", help="measure little, to see that it works")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    base = asdict(SMALL if options.small else Size())
    given = {name: getattr(options, name) for name in ("writers", "viewers", "seconds", "rate")}
    report = measured(Size(**base | {name: value for name, value in given.items() if value is not None}))
    if options.json:
        print(json.dumps(report))
    else:
        Console().print(table(report))
    if report["lost"]:
        print(*report["lost"], report["server_log"], sep="\n", file=sys.stderr)
    sys.exit(1 if report["lost"] else 0)


if __name__ == "__main__":
    main()
