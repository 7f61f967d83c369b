"""``hookline mcp``: a server of the Model Context Protocol over standard input and output.

Agents list runs, read their metrics, samples and logs, compare them and query them with SQL, with the functions behind
the other commands. Nothing can be changed, except with ``--allow-control`` by the commands that a live run accepts.

- Runs are named by id, name or part of an id, never by path, so nothing outside of the root is read.
- Every list has a limit, long texts are cut, and an answer of more than `MAX_BYTES` is an error that tells what to
  limit. Queries end after `MAX_SECONDS`.
- Wrong input is the error of the tool, with the message that the command would print.
"""

import functools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import typer

import hookline
from hookline._engine.errors import HooklineError, MissingExtraError, OptionError
from hookline._record.commands import RunControl, new_command
from hookline._record.console_reader import SHOWN, read_console
from hookline._record.records import clean
from hookline._record.run_directory import user_name
from hookline.cli.control import plain_value
from hookline.cli.runs.compare import comparison_document
from hookline.cli.runs.listing import matching_runs
from hookline.cli.runs.reference import Root, all_places, among, opened
from hookline.cli.runs.show import show_document
from hookline.cli.runs.text import run_document
from hookline.cli.sql import described_tables, plain_rows
from hookline.store.alert_book import AlertBook
from hookline.store.run_info import RunLocation
from hookline.store.runs import runs

MAX_ROWS = 1000
"""The largest limit of a list."""
MAX_POINTS = 1000
"""The most points of a line."""
MAX_TEXT = 4000
"""The length to which long texts are cut."""
MAX_BYTES = 400_000
"""The most bytes of an answer."""
MAX_SECONDS = 30.0
"""How long a query may take."""
MAX_WAIT_SECONDS = 60.0
SECTIONS = ("events", "checkpoints", "artifacts", "media", "hooks", "sinks", "environments", "facts")
"""The parts of a run that are only included when they are named."""
_INSTRUCTIONS = """\
Runs of machine learning trainings, recorded by hookline. Begin with list_runs; get_run describes one. A run is named by
its id, its name, a unique part of its id, or "latest". get_series has a metric over time, downsampled; sql has
everything else: call sql_schema first."""

AllowControl = Annotated[
    bool, typer.Option("--allow-control", help="Also offer tools that stop, checkpoint and tune live runs.")
]


def mcp_command(*, root: Root = Path("runs"), allow_control: AllowControl = False) -> None:
    """Serve runs to agents by the Model Context Protocol, on standard input and output."""
    if not root.is_dir():
        all_places(root)  # its error names the directory
    server = make_server(root, allow_control=allow_control)
    # The package has no public way to it; without it, lines that are no messages are not answered.
    protocol = getattr(server, "_lowlevel_server", None)
    if protocol is None:
        server.run("stdio")
    else:
        import anyio  # comes with the package

        anyio.run(_serve, protocol)


async def _serve(protocol: Any) -> None:
    """Serve on standard input and output until the input ends."""
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (received, sent):
        await protocol.run(_Messages(received, sent), sent, protocol.create_initialization_options())


class _Messages:
    """The messages of a client. What is not a message is answered with an error.

    The package passes on the exception of such a line, and its session drops it: the client, whose request is broken,
    would wait for ever.
    """

    def __init__(self, received: Any, sent: Any) -> None:
        self._received, self._sent = received, sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._received, name)

    async def __aenter__(self) -> Self:
        await self._received.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._received.__aexit__(*error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        import anyio

        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> Any:
        while isinstance(item := await self._received.receive(), Exception):
            await self._refuse(item)
        return item

    async def _refuse(self, error: Exception) -> None:
        from mcp.shared.message import SessionMessage
        from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError
        from pydantic import ValidationError

        found: Any = error.errors()[0] if isinstance(error, ValidationError) else {}
        if isinstance(found.get("input"), str) and not found["input"].strip():
            return  # an empty line is no request
        code, text = INVALID_REQUEST, "This is not a message of JSON-RPC 2.0."
        if not found or found["type"] == "json_invalid":
            code, text = PARSE_ERROR, f"This line is not JSON: {found.get('msg', error)}"
        reply = JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=code, message=text))
        await self._sent.send(SessionMessage(reply))


def make_server(root: Path, *, allow_control: bool = False) -> Any:
    """Make the server.

    Raises:
        MissingExtraError: The package of the protocol is not installed.
    """
    try:
        from mcp.server import MCPServer
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise MissingExtraError("hookline mcp", "mcp") from error
    server = MCPServer("hookline", version=hookline.__version__, instructions=_INSTRUCTIONS, log_level="WARNING")
    own = Tools(root)
    for function in (
        own.list_runs,
        own.get_run,
        own.list_metrics,
        own.get_series,
        own.get_samples,
        own.compare_runs,
        own.sql,
        own.sql_schema,
        own.get_log,
        own.list_alerts,
    ):
        server.add_tool(_answering(function), annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    if allow_control:
        control = Control(root)
        for change in (control.show_control, control.stop_run, control.save_checkpoint, control.set_parameter):
            hints = ToolAnnotations(read_only_hint=change == control.show_control, open_world_hint=False)
            server.add_tool(_answering(change), annotations=hints)
    return server


def _answering(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A tool whose errors reach the agent, and whose answer has a limited size."""
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(function)
    def answer(*args: Any, **given: Any) -> dict[str, Any]:
        try:
            document: dict[str, Any] = clean(function(*args, **given))
        except HooklineError as error:
            raise ToolError(str(error)) from error
        size = len(msgspec.json.encode(document))
        if size > MAX_BYTES:
            raise ToolError(
                f"The answer has {size:,} bytes, and at most {MAX_BYTES:,} are sent. Ask for less: a smaller limit, "
                "fewer runs or columns, or a filter."
            )
        return document

    return answer


class _Root:
    """Finds runs below a root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _place(self, run: str) -> RunLocation:
        """Find a run by name: other than in the commands, paths are no names."""
        return among(all_places(self._root), run, self._root)


class Tools(_Root):
    """The tools that read; their docstrings are what agents read of them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._reading = threading.Lock()  # the server calls tools on several threads

    def list_runs(
        self,
        where: str | None = None,
        status: str | None = None,
        project: str | None = None,
        experiment: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        sort: str | None = None,
        limit: int = 50,
        archived: bool = False,
    ) -> dict[str, Any]:
        """List runs, the latest first, with status, step, settings and last metrics.

        `where` is a filter over attributes, settings and metrics: `lr > 1e-4 and min(val/loss) < 1.5`. `status` is one
        of running, stalled, finished, stopped, failed, killed. `sort` is a field such as `min(val/loss)`; `-` before it
        sorts descending. `*` in project, experiment, name and tag matches anything.
        """
        _check_limit(limit)
        with self._reading:
            found = matching_runs(
                self._root,
                where=where,
                sort=sort,
                archived=archived,
                status=status,
                project=project,
                experiment=experiment,
                name=name,
                tag=tag,
            )
            shown = [_cut(run_document(info)) for info in found[:limit]]
            return {"runs": shown, "more": max(0, len(found) - limit)}

    def get_run(self, run: str, include: list[str] | None = None) -> dict[str, Any]:
        """Describe a run: status, settings, summary, the last and best value of each metric, and failures.

        `include` adds events, checkpoints, artifacts, media, hooks, sinks, environments (packages, hardware, git) or
        facts (everything recorded about the run).
        """
        for section in include or ():
            if section not in SECTIONS:
                raise OptionError(f"include={section!r:.80}: give some of {', '.join(SECTIONS)}.")
        with self._reading:
            whole = show_document(opened([self._place(run)]))
        every = {"ranks", "order", "hook_errors", *SECTIONS}
        left_out = every - set(include or ())
        document: dict[str, Any] = _cut({key: value for key, value in whole.items() if key not in left_out})
        return document

    def list_metrics(self, run: str) -> dict[str, Any]:
        """List the metrics of a run with their axis, number of points, and first and last step."""
        with self._reading:
            found = opened([self._place(run)])
            return {"run": found[0].id, "metrics": found.metric_names().rows()}

    def get_series(
        self,
        runs: list[str],
        metric: str,
        x: str = "step",
        axis: str | None = None,
        max_points: int = 100,
        smoothing: float = 0.0,
        first_x: float | None = None,
        last_x: float | None = None,
    ) -> dict[str, Any]:
        """Get a metric of some runs over steps, downsampled without losing a peak.

        `x` is step, time, elapsed (seconds), or another metric. `axis` is train, eval, rollout, ... `smoothing` is the
        weight of earlier values in an exponential moving average over all points. `first_x` and `last_x` zoom in.
        """
        if not 4 <= max_points <= MAX_POINTS:
            raise OptionError(f"max_points={max_points}: give a whole number from 4 to {MAX_POINTS:,}.")
        with self._reading:
            options: dict[str, Any] = {"x": x, "axis": axis, "max_points": max_points, "smoothing": smoothing}
            found = opened(self._places(runs)).series([metric], between=(first_x, last_x), **options)
            return {"lines": [asdict(line) for line in found]}

    def get_samples(
        self,
        run: str,
        text: str | None = None,
        lesson: str | None = None,
        min_reward: float | None = None,
        max_reward: float | None = None,
        first_step: int | None = None,
        last_step: int | None = None,
        axis: str | None = None,
        order: str = "step",
        limit: int = 10,
        offset: int = 0,
    ) -> dict[str, Any]:
        """Get completions of a run with prompts and rewards.

        `order` is step, reward, advantage, length or version; `-` before it sorts descending. Long texts are cut.
        """
        _check_limit(limit)
        with self._reading:
            found = opened([self._place(run)]).samples(
                text=text,
                lesson=lesson,
                min_reward=min_reward,
                max_reward=max_reward,
                steps=(first_step, last_step),
                axis=axis,
                order=order,
                limit=limit,
                offset=offset,
            )
            return {"samples": [_cut(row) for row in plain_rows(found)], "total": found.total()}

    def compare_runs(self, runs: list[str]) -> dict[str, Any]:
        """Compare runs with the first one: what differs in settings, environment and code, and their metrics."""
        with self._reading:
            document: dict[str, Any] = _cut(comparison_document(self._places(runs)))
        return document

    def sql(self, query: str, limit: int = 100) -> dict[str, Any]:
        """Run one read-only SELECT (DuckDB) over the records of all runs; `sql_schema` lists tables and columns."""
        _check_limit(limit)
        with self._reading:
            found = runs(self._root)
            result = found.sql(query, limit=limit + 1, timeout_seconds=MAX_SECONDS)
            rows = plain_rows(result)
            return {"rows": [_cut(row) for row in rows[:limit]], "has_more": len(rows) > limit}

    def sql_schema(self) -> dict[str, Any]:
        """List the tables for `sql`, with their columns and types."""
        with self._reading:
            return {"tables": described_tables(runs(self._root))}

    def get_log(
        self, run: str, search: str | None = None, stderr_only: bool = False, rank: int | None = None, limit: int = 100
    ) -> dict[str, Any]:
        """Get the last lines that a run printed, of standard output and error; `search` ignores case."""
        _check_limit(limit)
        place = self._place(run)
        streams = ("stderr",) if stderr_only else SHOWN
        rows = deque(read_console(place.directory, streams=streams, rank=rank, search=search), maxlen=limit)
        return {"run": place.id, "lines": [_cut(msgspec.to_builtins(row)) for row in rows]}

    def list_alerts(self, acknowledged: bool = False, limit: int = 50) -> dict[str, Any]:
        """List raised alerts, the latest first; with `acknowledged`, also those that were acknowledged."""
        _check_limit(limit)
        alerts = AlertBook(self._root).read().alerts.values()
        found = [alert for alert in alerts if acknowledged or not alert.acknowledged]
        found.sort(key=lambda alert: alert.time, reverse=True)
        shown = [_cut(msgspec.to_builtins(alert) | {"state": alert.state}) for alert in found[:limit]]
        return {"alerts": shown, "more": max(0, len(found) - limit)}

    def _places(self, given: list[str]) -> list[RunLocation]:
        if not 1 <= len(given) <= MAX_ROWS:
            raise OptionError(f"runs: {len(given)} were given; give from 1 to {MAX_ROWS:,}.")
        return [self._place(run) for run in given]


class Control(_Root):
    """The tools that send commands to live runs, by the same checks as ``hookline control``."""

    def show_control(self, run: str) -> dict[str, Any]:
        """Show what a live run accepts: its parameters with bounds, its subscribers, and the commands sent before."""
        target = RunControl(self._place(run).directory)
        return {"offer": target.offer(), "commands": msgspec.to_builtins(target.history())}

    def stop_run(self, run: str, reason: str = "", wait: float = 10.0) -> dict[str, Any]:
        """Stop a live run at its next step; it saves a checkpoint if it can. `wait` is in seconds."""
        return self._send(run, "stop", {"reason": reason} if reason else {}, wait)

    def save_checkpoint(self, run: str, wait: float = 10.0) -> dict[str, Any]:
        """Save a checkpoint of a live run at its next step."""
        return self._send(run, "checkpoint", {}, wait)

    def set_parameter(self, run: str, name: str, value: float | bool | str, wait: float = 10.0) -> dict[str, Any]:
        """Set a parameter of a live run, such as the learning rate; `show_control` lists them with their bounds."""
        given = value
        if isinstance(value, str):
            offered = RunControl(self._place(run).directory).require_offer().get("tunables", {}).get(name, {})
            given = value if offered.get("type") == "str" else plain_value(value)
        return self._send(run, "set", {"name": name, "value": given}, wait)

    def _send(self, run: str, name: str, arguments: dict[str, Any], wait: float) -> dict[str, Any]:
        if not 0 <= wait <= MAX_WAIT_SECONDS:
            raise OptionError(f"wait={wait}: give a number from 0 to {MAX_WAIT_SECONDS:g}.")
        command = new_command(name, arguments, author=user_name(), via="mcp")
        outcome = RunControl(self._place(run).directory).deliver(command, wait=wait)
        document: dict[str, Any] = msgspec.to_builtins(outcome)
        return document


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_ROWS:
        raise OptionError(f"limit={limit}: give a whole number from 1 to {MAX_ROWS:,}.")


def _cut(value: Any) -> Any:
    """A document with long texts cut."""
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"{value[:MAX_TEXT]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        return {key: _cut(item) for key, item in value.items()}
    return [_cut(item) for item in value] if isinstance(value, list | tuple) else value
