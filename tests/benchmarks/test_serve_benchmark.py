"""The benchmark of the server that receives runs works, and would see a record that is missing."""

import asyncio
import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hookline.server import Tokens, WebServer

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "serve.py"
TOKEN = "0123456789abcdef0123456789abcdef"


def run_benchmark(*options):
    command = [sys.executable, str(SCRIPT), "--small", "--json", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=os.environ)


@pytest.fixture
def module(monkeypatch):
    """Imports a module of the benchmarks; only here does it find what lies beside it."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module


@pytest.fixture
def serve(module):
    return module("serve")


@pytest.mark.benchmark
def test_serve_benchmark_crowd_counts_every_record_in_three_places():
    done = run_benchmark("--seconds", "1", "--part", "crowd")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    crowd = report["crowd"]
    assert (report["size"]["writers"], report["size"]["viewers"], report["lost"]) == (6, 3, [])
    assert len(set(crowd["records"].values())) == 1
    assert crowd["records"]["recorded"] >= 6 * 3
    for name in ("write_seconds", "age_seconds", "probe_write_seconds"):
        assert 0 < crowd[name]["p50"] <= crowd[name]["p99"] <= crowd[name]["max"]
    assert crowd["viewer_errors"] == []
    latencies = ("write_seconds", "list_seconds", "chart_seconds", "probe_write_seconds")
    assert set(report["bars"]) == {*latencies, "nothing lost"}


@pytest.mark.benchmark
def test_serve_benchmark_other_parts_count_values_and_name_what_is_skipped():
    done = run_benchmark("--part", "idle", "--part", "rate", "--part", "viewed_rate")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    idle, rate = report["idle"], report["rate"]
    assert (idle["silent"]["beats"], idle["silent"]["errors"], idle["beating"]["errors"]) == (0, [], [])
    assert idle["beating"]["beats"] > 0 < idle["silent"]["events"]
    assert rate["values"] == 10 * 100 * (rate["batches"] - 4)  # each run begins and ends with a batch without rows
    assert rate["values_per_core_second"] > 0 < report["viewed_rate"]["values_per_second"]
    assert [name for name, each in rate["others"].items() if each] == ["TensorBoard", "trackio"]
    assert report["bars"]["every value stored"]


def test_serve_benchmark_storage_part_needs_an_option_of_the_server(serve, tmp_path, monkeypatch):
    no_option = subprocess.CompletedProcess([], 0, stdout="--port --token", stderr="")
    monkeypatch.setattr(serve.subprocess, "run", lambda *_, **__: no_option)
    found = serve.measure_storage(serve.Place(tmp_path), serve.SMALL)
    assert found == {"skipped": "`hookline serve` has no option --storage"}


def test_serve_benchmark_names_the_writer_of_which_a_record_is_missing(serve):
    reports = [{"run": "a", "records": 3}, {"run": "b", "records": 3}, {"run": "c", "records": 3}]
    lost = serve.losses(reports, Counter(a=3, b=2, c=3), Counter(a=3, b=3, c=4))
    assert lost == ["b: 3 recorded, 2 held, 3 in SQL", "c: 3 recorded, 3 held, 4 in SQL"]


def test_serve_benchmark_quantiles_are_those_of_the_values(serve):
    assert serve.quantiles([float(n) for n in range(100, 0, -1)]) == {"count": 100, "p50": 51, "p99": 99, "max": 100}


@pytest.fixture
def server(tmp_path):
    with WebServer(tmp_path, tokens=Tokens(write=TOKEN)) as started:
        yield started


def test_sent_run_sends_again_only_what_the_server_lacks(module, server):
    http = module("serve_http")

    async def send():
        run = http.SentRun("again", 2)
        async with http.Connection(server.url, TOKEN) as connection:
            await run.start(connection)
            first, second = run.batch(3), run.batch(2)
            await run.send(connection, first)
            await run._put(connection, second)  # its response is lost: the run does not count it
            await run.send_again(connection, second)
            await run.send_again(connection, run.batch(4))
            return await module("serve_storage").differences(server.url, [run], TOKEN, 30.0), run.faults

    assert asyncio.run(send()) == ([], 2)


def test_storage_differences_name_a_run_with_a_missing_row(module, server):
    http, compare = module("serve_http"), module("serve_storage").differences

    async def send():
        run = http.SentRun("short", 1)
        async with http.Connection(server.url, TOKEN) as connection:
            await run.start(connection)
            await run.send(connection, run.batch(3))
            before = await compare(server.url, [run], TOKEN, 30.0)
            run.batch(1)  # never sent
            return before, await compare(server.url, [run], TOKEN, 0.2)

    assert asyncio.run(send()) == ([], ["short: 4 rows sent, 3 stored, 3 of them different"])


def test_connection_reports_a_refused_request(module, server):
    http = module("serve_http")

    async def send():
        async with http.Connection(server.url, "wrong-token-wrong-token-wrong-token") as connection:
            await http.SentRun("refused", 1).claim(connection)

    with pytest.raises(http.RequestError, match="status 401"):
        asyncio.run(send())


def test_serve_benchmark_tables_have_what_was_measured(serve, capsys):
    some = {"count": 7, "p50": 0.001, "p99": 0.5, "max": 12.0}
    report = {
        "size": {"writers": 200, "viewers": 50, "seconds": 30.0, "rate": 10.0, "idle_runs": 2000, "rate_runs": 4},
        "load": {"before": 1.0, "after": 2.0},
        "crowd": dict.fromkeys([name for name, _, _ in serve.LATENCIES], some)
        | {
            "records": {"recorded": 1000, "held": 1000, "in_sql": 1000},
            "lost": [],
            "faults": 0,
            "viewer_errors": [],
            "server_megabytes": 99.0,
            "server_cpu_seconds": 9.0,
            "server_cpu_at_start": 1.5,
            "server_cpu_by_process": [6.0, 3.0],
        },
        "idle": {"silent_percent": 1.5, "beating_percent": 20.0},
        "rate": {
            "values": 6_000_000,
            "values_per_core_second": 90_000.0,
            "values_per_second": 80_000.0,
            "wall_seconds": 60.0,
            "lost": [],
            "others": {"TensorBoard": 1_000.0, "trackio": 2_000.0, "MLflow": None},
        },
        "storage": {"skipped": "moto is not installed"},
    }
    report["bars"] = serve.bars(report)
    assert report["bars"] == {
        "write_seconds": False,
        "list_seconds": False,
        "chart_seconds": False,
        "probe_write_seconds": False,
        "nothing lost": True,
        "silent_percent": True,
        "beating_percent": False,
        "values_per_core_second": False,
        "every value stored": True,
    }
    serve.Console(width=160).print(*serve.tables(report), sep="\n")
    shown = capsys.readouterr().out
    assert "200 writers of 10 rows a second, 50 viewers, 30 s" in shown
    texts = (
        "12,000",
        "a viewer: a chart",
        "1,000 in SQL",
        "20.0%",
        "90,000",
        "NOT MET",
        "skipped, moto is not installed",
    )
    assert all(text in shown for text in texts)
