"""``hookline mcp``: the SDK's own client talks to the installed program over its standard input and output."""

import contextlib
import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import anyio
import pytest
from finished_runs import record
from mcp import Client, StdioServerParameters

import hookline as hl
from hookline.cli import mcp

SCRIPT = Path(sysconfig.get_path("scripts")) / "hookline"
READING = [
    "list_runs",
    "get_run",
    "list_metrics",
    "get_series",
    "get_samples",
    "compare_runs",
    "sql",
    "sql_schema",
    "get_log",
    "list_alerts",
]
CONTROL = ["show_control", "stop_run", "save_checkpoint", "set_parameter"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    home = tmp_path_factory.mktemp("mcp")
    with contextlib.chdir(home):
        record("first", range(2000, 0, -1), config={"lr": 0.1}, tags=["a"])
        with hl.run("second", config={"lr": 0.2}, summary=False) as run:
            for loss in run.steps((5.0, 2.0)):
                run.log(loss=loss)
                run.log_samples([{"prompt": "1+1", "completion": "x" * 10_000, "total": loss}])
    (home / "secret.txt").write_text("not for agents")
    return home / "runs"


async def talk(root, wanted, options):
    # Its standard error goes to a file: that of a test has no descriptor.
    server = StdioServerParameters(command=str(SCRIPT), args=["mcp", "--root", str(root), *options])
    async with Client(server) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        return tools, [await client.call_tool(name, given) for name, given in wanted]


def ask(root, *wanted, options=()):
    """The names of the tools, and the answer of each call: a document, or the text of the error."""
    tools, answers = anyio.run(talk, root, wanted, options)
    return tools, [answer.content[0].text if answer.is_error else answer.structured_content for answer in answers]


def test_mcp_lists_describes_and_compares_runs(root):
    tools, (listed, filtered, described, metrics, compared) = ask(
        root,
        ("list_runs", {"limit": 1}),
        ("list_runs", {"where": "lr < 0.15", "status": "finished", "tag": "a"}),
        ("get_run", {"run": "first", "include": ["checkpoints"]}),
        ("list_metrics", {"run": "first"}),
        ("compare_runs", {"runs": ["first", "second"]}),
    )
    assert tools == READING
    assert ([run["name"] for run in listed["runs"]], listed["more"]) == (["second"], 1)
    assert [run["name"] for run in filtered["runs"]] == ["first"]
    assert (described["config"], described["status"], described["checkpoints"]) == ({"lr": 0.1}, "finished", [])
    assert [(row["name"], row["last"]) for row in described["results"] if row["name"] == "loss"] == [("loss", 1.0)]
    assert "environments" not in described
    assert [row["points"] for row in metrics["metrics"] if row["name"] == "loss"] == [2000]
    assert compared["config"]["lr"] == [0.1, 0.2]


def test_mcp_reads_series_samples_and_sql_within_limits(root):
    _, (lines, samples, rows, schema, log, alerts) = ask(
        root,
        ("get_series", {"runs": ["first", "second"], "metric": "loss", "max_points": 50}),
        ("get_samples", {"run": "second", "max_reward": 2.0, "limit": 1}),
        ("sql", {"query": "SELECT step, value FROM metrics WHERE name = 'loss' ORDER BY value DESC", "limit": 2}),
        ("sql_schema", {}),
        ("get_log", {"run": "first"}),
        ("list_alerts", {}),
    )
    first, second = sorted(lines["lines"], key=lambda line: -line["points"])
    assert second["y"] == [5.0, 2.0]
    assert (first["points"], len(first["x"]) <= 50, first["y"][0], first["y"][-1]) == (2000, True, 2000.0, 1.0)
    assert ([row["step"] for row in samples["samples"]], samples["total"]) == ([2], 1)
    assert samples["samples"][0]["completion"] == "x" * mcp.MAX_TEXT + "… (10,000 characters)"
    assert rows == {"rows": [{"step": 1, "value": 2000.0}, {"step": 2, "value": 1999.0}], "has_more": True}
    assert schema["tables"]["metrics"]["value"] == "DOUBLE"
    assert (log["lines"], alerts) == ([], {"alerts": [], "more": 0})


@pytest.mark.parametrize(
    ("tool", "given", "problem"),
    [
        ("get_run", {"run": "frist"}, "There is no run 'frist'"),
        ("get_run", {"run": "first", "include": ["all"]}, "include='all': give some of events, checkpoints"),
        ("list_runs", {"where": "lr >"}, "lr >"),
        ("list_runs", {"status": "done"}, "status='done': there is no such status"),
        ("list_runs", {"limit": 0}, "limit=0: give a whole number from 1 to 1,000"),
        ("list_runs", {"limit": "many"}, "limit"),
        ("get_series", {"runs": ["first"], "metric": "loss", "max_points": 10**9}, "max_points=1000000000: give a"),
        ("get_series", {"runs": [], "metric": "loss"}, "runs: 0 were given"),
        ("compare_runs", {"runs": ["first"]}, "give two or more runs, each once"),
        ("sql", {"query": "DROP TABLE metrics"}, "SELECT"),
        ("sql", {"query": "SELECT 1 +"}, "syntax error"),
        ("sql", {"query": "SELECT repeat('x', 5000) AS x FROM range(1000)", "limit": 1000}, "at most 400,000 are sent"),
    ],
)
def test_mcp_wrong_input_is_an_error_of_the_tool(root, tool, given, problem):
    from mcp.server.mcpserver.exceptions import ToolError

    server = mcp.make_server(root)
    with pytest.raises(ToolError) as caught:
        anyio.run(server.call_tool, tool, given)
    assert problem in str(caught.value)


def test_mcp_paths_are_no_runs_and_sql_reads_no_files(root):
    paths = ["..", "../secret.txt", "/etc", str(root.parent), str(next((root / "default").iterdir()))]
    query = f"SELECT * FROM read_text('{root.parent / 'secret.txt'}')"
    calls = [(tool, {"run": path}) for path in paths for tool in ("get_run", "get_log")]
    _, answers = ask(root, *calls, ("sql", {"query": query}), ("list_runs", {}))
    assert [isinstance(answer, str) for answer in answers] == [True] * 11 + [False]
    assert all("There is no run" in answer for answer in answers[:10])
    assert "not for agents" not in json.dumps(answers)


TRAINING = """
import threading
import hookline as hl

with hl.run("live", root="runs", summary=False) as run:
    rate = run.tunable("rate", 0.5, min=0.0, max=1.0)
    print("ready", flush=True)
    for step in run.steps(10**9):
        run.log(rate=float(rate.value))
        threading.Event().wait(0.005)
"""


def test_mcp_control_changes_and_stops_a_live_run_where_it_is_allowed(tmp_path):
    command = [sys.executable, "-c", TRAINING]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as training:
        try:
            assert training.stdout is not None
            assert training.stdout.readline() == "ready\n"
            tools, (offer, refused, applied, stopped) = ask(
                tmp_path / "runs",
                ("show_control", {"run": "live"}),
                ("set_parameter", {"run": "live", "name": "rate", "value": 7, "wait": 30}),
                ("set_parameter", {"run": "live", "name": "rate", "value": 0.25, "wait": 30}),
                ("stop_run", {"run": "live", "reason": "enough", "wait": 30}),
                options=["--allow-control"],
            )
            assert training.wait(60) == 0
        finally:
            training.kill()
    assert tools == READING + CONTROL
    assert offer["offer"]["tunables"]["rate"]["max"] == 1.0
    assert [answer if isinstance(answer, str) else answer["state"] for answer in (refused, applied, stopped)] == [
        refused,
        "applied",
        "applied",
    ]
    assert "rate" in str(refused)
    info = hl.runs(tmp_path / "runs")[0]
    assert info.message.startswith("enough")
    assert {each.command.via for each in hl.control(info.directory).history() if each.command} == {"mcp"}


def test_mcp_control_is_not_offered_by_default(root):
    _, (answer,) = ask(root, ("stop_run", {"run": "first"}))
    assert "stop_run" in answer


def test_mcp_without_the_package_or_the_root_says_what_to_do(cli, monkeypatch, root):
    missing = cli("mcp", "--root", "nowhere")
    assert (missing.exit_code, "nowhere" in missing.stderr) == (2, True)
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    result = cli("mcp", "--root", root)
    assert result.exit_code == 1
    assert "pip install 'hookline[mcp]'" in result.stderr


def test_mcp_page_lists_the_tools():
    page = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == READING + CONTROL
    numbers = (mcp.MAX_ROWS, mcp.MAX_POINTS, mcp.MAX_TEXT, mcp.MAX_SECONDS, mcp.MAX_BYTES)
    assert all(f"{number:,.0f}" in page for number in numbers)


def test_mcp_answers_lines_that_are_no_messages(root):
    lines = [b"{broken", b"", b'{"jsonrpc": "2.0"}', b"[1, 2]", b'{"jsonrpc": "2.0", "id": 7, "method": "ping"}']
    command = [SCRIPT, "mcp", "--root", root]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"\n".join([*lines, b""]))
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(4)]
        process.stdin.close()
    assert [(each["id"], each["error"]["code"]) for each in answers if each["id"] is None] == [
        (None, -32700),
        (None, -32600),
        (None, -32600),
    ]
    assert sum(each["id"] == 7 for each in answers) == 1
