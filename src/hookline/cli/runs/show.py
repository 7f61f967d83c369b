"""``hookline runs show``: everything about one run, and the checkpoints in its directory."""

import json
import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from hookline._engine.costs import duration
from hookline._record.console_reader import CrashReport, crash_reports
from hookline._record.delivery import SinkState
from hookline._record.environment import Environment, read_environments, read_rank_environments
from hookline._record.reader import EVERY_AXIS, MAIN, resumed_steps
from hookline._record.records import BOOKKEEPING, Event, clean
from hookline._record.terminal import one_line, plural, printable
from hookline.cli.output import AsJson, console, indented, print_facts, print_json, table, width_of, wrong_input
from hookline.cli.runs.environment import environment_rows, rank_rows
from hookline.cli.runs.log import terminal_text
from hookline.cli.runs.media import summaries, summary_table
from hookline.cli.runs.reference import Root, RunArgument, locate, opened
from hookline.cli.runs.text import (
    belongs_to,
    bytes_text,
    clock_text,
    how_long,
    marks_for,
    number,
    run_document,
    seconds_of,
    sparkline,
    status_text,
    steps_text,
)
from hookline.store.index import sql_quote
from hookline.store.outcomes import Metric, Outcome, better_mode, main_metrics, outcomes
from hookline.store.run_contents import SavedCheckpoint, artifact_uses, saved_checkpoints
from hookline.store.run_info import RunInfo
from hookline.store.runs import Runs
from hookline.store.series import Series

_WIDTH = 40
"""The width of a curve in characters."""
_CURVES = 8
_EVENTS = 10
_LAST_LINES = 10
_BAD_ENDS = ("failed", "killed", "stopped")
_KEPT_EVENTS = 100
"""How many events the JSON document has."""
_LEFT_OUT = ("heartbeat", "eval", *sorted(BOOKKEEPING))
_RECENT = f"SELECT * FROM events WHERE name NOT IN ({', '.join(map(sql_quote, _LEFT_OUT))}) ORDER BY time DESC"  # noqa: S608
_LOUD = ("error", "alert", "failed", "not_finite", "hang", "lost")


@dataclass(frozen=True, slots=True)
class _View:
    """The data that is shown."""

    info: RunInfo
    outcomes: dict[Metric, Outcome]
    curves: list[Series]
    hooks: list[dict[str, Any]]
    hook_errors: list[dict[str, Any]]
    order: list[dict[str, Any]]
    events: list[dict[str, Any]]
    event_count: int
    media: list[dict[str, Any]]
    checkpoints: list[SavedCheckpoint]
    artifacts: list[dict[str, Any]]
    sinks: list[SinkState]
    failures: list[CrashReport]


def show_command(run: RunArgument, *, root: Root = Path("runs"), as_json: AsJson = False) -> None:
    """Show a run: status, settings, summary, metrics, media, checkpoints, artifacts, hooks, sinks, events, problems."""
    with wrong_input(as_json=as_json):
        view = _view(opened([locate(root, run)]))
    if as_json:
        print_json(_document(view))
    else:
        _print(console(), view)


def _view(found: Runs) -> _View:
    found.ingest()
    info = found.refresh().latest()  # damage inside files is known once they are read
    results = outcomes(found)[info.id]
    first = main_metrics(dict.fromkeys(metric.name for metric in results))[:_CURVES]
    curves = [curve for curve in found.series(first, max_points=_WIDTH) if curve.points > 1] if first else []
    recent = found.sql(_RECENT, limit=_KEPT_EVENTS)
    events = recent.rows()[::-1]
    count = recent.total() if len(events) == _KEPT_EVENTS else len(events)
    return _View(
        info=info,
        outcomes=results,
        curves=sorted(curves, key=lambda curve: (first.index(curve.name), curve.axis)),
        hooks=found.hooks().rows(),
        hook_errors=found.hook_errors().rows(),
        order=[row | {"moments": _moments(row["moments"])} for row in found.hook_order()],
        events=events,
        event_count=count,
        media=summaries(found),
        checkpoints=saved_checkpoints(info.directory),
        artifacts=artifact_uses(found, info),
        sinks=info.sinks(),
        failures=failures_of(info),
    )


def show_document(found: Runs) -> dict[str, Any]:
    """Everything about a run as JSON-compatible values."""
    return _document(_view(found))


def _document(view: _View) -> dict[str, Any]:
    results = [{**metric._asdict(), **asdict(outcome)} for metric, outcome in view.outcomes.items()]
    events = [event | {"data": json.loads(event["data"])} for event in view.events]
    document = {
        **run_document(view.info),
        "facts": view.info.facts,
        "environments": [msgspec.to_builtins(each) for each in read_environments(view.info.directory)],
        "ranks": [msgspec.to_builtins(each) for each in read_rank_environments(view.info.directory)],
        "results": results,
        "media": view.media,
        "checkpoints": [asdict(saved) | {"path": str(saved.path)} for saved in view.checkpoints],
        "artifacts": view.artifacts,
        "hooks": view.hooks,
        "hook_errors": view.hook_errors,
        "order": view.order,
        "sinks": [asdict(state) for state in view.sinks],
        "events": events,
        "failures": [msgspec.to_builtins(report) for report in view.failures],
    }
    cleaned: dict[str, Any] = clean(document)
    return cleaned


def _print(out: Console, view: _View) -> None:
    _print_head(out, view.info)
    _print_failures(out, view.failures)
    if any(not report.is_interrupt for report in view.failures):
        out.print()
    _print_facts(out, view.info)
    _print_tree(out, "Configuration", view.info.config)
    _print_tree(out, "Summary", view.info.summary)
    _print_curves(out, view)
    _print_metrics(out, view)
    if view.media:
        out.print("\nMedia", style="bold")
        out.print(summary_table(view.media))
    _print_checkpoints(out, view.checkpoints)
    _print_artifacts(out, view.artifacts)
    _print_hooks(out, view)
    _print_order(out, view.order)
    _print_sinks(out, view)
    _print_events(out, view.events, view.event_count)
    _print_problems(out, view.info)


def _print_head(out: Console, info: RunInfo) -> None:
    now = time.time()
    line = Text.assemble((one_line(info.name), "bold"), "  ", status_text(info.status), f"  step {steps_text(info)}")
    if (seconds := seconds_of(info, now)) is not None:
        line.append(f" in {how_long(seconds)}")
    if info.eta_seconds is not None:
        line.append(f", {how_long(info.eta_seconds)} to go")
    if not info.is_over and info.last_seen is not None:
        line.append(f", last seen {how_long(now - info.last_seen)} ago")
    out.print(line, soft_wrap=True)
    if info.message:
        out.print(indented(one_line(info.message)), style="red" if info.status == "failed" else "yellow")


def failures_of(info: RunInfo) -> list[CrashReport]:
    """Why a run that did not end well failed; one that was resumed since may have failed earlier."""
    return crash_reports(info.directory) if info.status in _BAD_ENDS else []


def _print_failures(out: Console, failures: list[CrashReport]) -> None:
    for report in failures:
        if report.is_interrupt:
            where = f" at {report.place.get('file')}:{report.place.get('line')}" if report.place else ""
            out.print(indented(one_line(f"interrupted by {report.type}{where}")), style="yellow")
            continue
        title = "\nFailure" if report.rank == 0 else f"\nFailure of rank {report.rank}"
        out.print(title, style="bold red")
        for line in report.traceback.rstrip().split("\n"):
            out.print(Text(f"  {printable(line)}"), soft_wrap=True)
        if report.console:
            lines = report.console[-_LAST_LINES:]
            out.print(
                "\nThe last line before it" if len(lines) == 1 else f"\nThe last {len(lines)} lines before it",
                style="bold",
            )
            for line in lines:
                out.print(Text(f"  {terminal_text(line, 'plain')}", style="dim"), soft_wrap=True)


def _print_facts(out: Console, info: RunInfo) -> None:
    facts = info.facts
    command, git, packages = facts.get("command"), facts.get("git"), facts.get("packages")
    environment = next(reversed(read_environments(info.directory)), Environment())
    installed = f" ({len(environment.packages)} installed)" if environment.packages else ""
    rows = {
        "run": info.id,
        "directory": info.directory,
        "experiment": belongs_to(info) + (f", repeat {info.repeat}" if info.repeat is not None else ""),
        "tags": ", ".join(info.tags),
        "notes": info.notes,
        "started": f"{clock_text(info.started)} on {info.host or 'an unknown host'}",
        "command": shlex.join(map(str, command)) if isinstance(command, list) else command or "",
        "in": facts.get("cwd") or "",
        "git": _git_text(git),
        "python": facts.get("python") or "",
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items()) + installed
        if isinstance(packages, dict)
        else "",
        **environment_rows(environment),
        **rank_rows(read_rank_environments(info.directory)),
    }
    print_facts(out, rows.items())


def _git_text(git: Any) -> str:
    if not isinstance(git, dict) or not git.get("commit"):
        return ""
    branch = f" ({git['branch']})" if git.get("branch") else ""
    return f"{git['commit']}{branch}{' and changes in git.diff' if git.get('changed') else ''}"


def _print_tree(out: Console, title: str, values: Any) -> None:
    if values in (None, {}, []):
        return
    out.print()
    out.print(_branch(Tree(Text(title, style="bold"), guide_style="dim"), values))


def _branch(tree: Tree, value: Any) -> Tree:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        tree.add(Text(one_line(value)))
        return tree
    for key, item in items:
        is_flat = not isinstance(item, dict | list) or not item or _is_short_list(item)
        if is_flat:
            tree.add(Text.assemble((f"{one_line(key)}: ", "cyan"), one_line(item)))
        else:
            _branch(tree.add(Text(one_line(key), style="cyan")), item)
    return tree


def _is_short_list(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 8 and not any(isinstance(item, dict | list) for item in value)


def _print_curves(out: Console, view: _View) -> None:
    if not view.curves:
        return
    out.print("\nCurves", style="bold")
    marks = marks_for(out.encoding)
    names = [Metric(curve.name, curve.axis).label for curve in view.curves]
    width = min(max(map(len, names)), 32)
    for name, curve in zip(names, view.curves, strict=True):
        ends = f"{number(curve.y[0])} -> {number(curve.y[-1])}  ({number(min(curve.y))} to {number(max(curve.y))})"
        lost = f"  {curve.not_finite:,} not finite" if curve.not_finite else ""
        drawn = sparkline(curve.y, marks).ljust(_WIDTH)
        out.print(
            Text.assemble(f"  {one_line(name):<{width}}  ", (drawn, "cyan"), f"  {ends}", (lost, "red")),
            soft_wrap=True,
        )


def _print_metrics(out: Console, view: _View) -> None:
    wanted = main_metrics(dict.fromkeys(metric.name for metric in view.outcomes))
    if not wanted:
        return
    out.print("\nMetrics", style="bold")
    listing = table("metric", "last", "at step", "best", numbers=("last", "at step", "best"))
    for metric in sorted(view.outcomes, key=lambda metric: metric.axis):
        if metric.name not in wanted:
            continue
        outcome, mode = view.outcomes[metric], better_mode(metric.name)
        best = outcome.best(mode) if mode is not None else None
        shown = "" if best is None else number(best)
        listing.add_row(one_line(metric.label), number(outcome.last), f"{outcome.step:,}", shown)
    out.print(listing)
    hidden = len({metric.name for metric in view.outcomes} - set(wanted))
    if hidden:
        out.print(f"  {hidden} more about hooks and the machine: use --json or hookline sql", style="dim")


def _print_checkpoints(out: Console, saved: list[SavedCheckpoint]) -> None:
    if not saved:
        return
    out.print("\nCheckpoints", style="bold")
    for one in saved:
        state = (f"damaged: {one.damage}", "red") if one.damage else ("intact", "green")
        out.print(Text.assemble(f"  {one_line(one.path.name)}  {bytes_text(one.bytes)}  ", state), soft_wrap=True)


def _print_artifacts(out: Console, artifacts: list[dict[str, Any]]) -> None:
    if not artifacts:
        return
    count = len(artifacts)
    out.print(f"\nArtifacts{f' (the last {_EVENTS} of {count:,})' if count > _EVENTS else ''}", style="bold")
    for each in artifacts[-_EVENTS:]:
        name = one_line(f"{each['artifact']}:{each['version']}")
        out.print(
            Text.assemble((f"  {each['role']:<5}  ", "dim"), name, (f"  {one_line(each['kind'])}", "dim")),
            soft_wrap=True,
        )


def _print_hooks(out: Console, view: _View) -> None:
    if not view.hooks and not view.hook_errors:
        return
    out.print("\nHooks", style="bold")
    if view.hooks:
        out.print(_costs(out, view.hooks))
    for failed in view.hook_errors:
        step = "" if failed["step"] is None else f", step {failed['step']:,}"
        word = ("  DISABLED ", "bold red") if failed["disabled"] else "  "
        where = f"{one_line(failed['name'])} at {one_line(failed['moment'] or 'an unknown moment')}{step}: "
        out.print(Text.assemble(word, where, (one_line(failed["error"] or ""), "red")), soft_wrap=True)


def _costs(out: Console, hooks: list[dict[str, Any]]) -> Table:
    """The cost of each subscriber; on a narrow terminal without the least important columns."""
    rows = [_cost_cells(hook) for hook in hooks]
    left_out = [name for name in ("share", "errors") if not any(row[name] for row in rows)]
    for name in ("max", "mean", "p95", "share"):
        listing = _cost_table(hooks, rows, left_out)
        if width_of(out, listing) <= out.width:
            return listing
        left_out.append(name)
    return _cost_table(hooks, rows, left_out)


def _cost_table(hooks: list[dict[str, Any]], rows: list[dict[str, str]], left_out: list[str]) -> Table:
    columns = [name for name in rows[0] if name not in left_out]
    listing = table(*columns, whole=columns, numbers=columns[1:])
    for hook, row in zip(hooks, rows, strict=True):
        style = "red" if hook["disabled"] else "yellow" if hook["errors"] else ""
        listing.add_row(*(row[name] for name in columns), style=style)
    return listing


def _cost_cells(hook: dict[str, Any]) -> dict[str, str]:
    name = hook["name"] if hook["writer"] == MAIN else f"{hook['writer']}: {hook['name']}"
    return {
        "hook": one_line(name),
        "calls": f"{hook['calls'] or 0:,}",
        **{name: _milliseconds(hook[f"{name}_ms"]) for name in ("total", "mean", "p95", "max")},
        "share": "" if hook["share"] is None else f"{hook['share']:.2%}",
        "errors": f"{hook['errors']:,}" if hook["errors"] else "",
    }


def _print_order(out: Console, order: list[dict[str, Any]]) -> None:
    """The order of subscribers, one line for all moments with the same order."""
    for row in order:
        together: dict[tuple[str, ...], list[str]] = {}
        for moment, names in row["moments"].items():
            together.setdefault(tuple(names), []).append(moment)
        out.print("\nOrder" + ("" if row["writer"] == MAIN else f" of {one_line(row['writer'])}"), style="bold")
        for names, moments in together.items():
            who = ", ".join(map(one_line, names))
            out.print(Text.assemble(f"  {who}  ", (", ".join(map(one_line, moments)), "dim")), soft_wrap=True)


def _moments(text: str | None) -> dict[str, list[str]]:
    given = json.loads(text) if text else {}
    items = given.items() if isinstance(given, dict) else ()
    return {moment: [str(name) for name in names] for moment, names in items if isinstance(names, list)}


def _milliseconds(value: float | None) -> str:
    return "" if value is None else duration(value / 1000)


def _print_sinks(out: Console, view: _View) -> None:
    if not view.sinks:
        return
    out.print("\nSinks", style="bold")
    for state in view.sinks:
        colour = {"ok": "green", "lagging": "yellow"}.get(state.status, "red")
        waits = f", {bytes_text(state.behind_bytes)} wait" if state.behind_bytes else ""
        line = Text.assemble(
            f"  {one_line(state.name)}  ", (state.status, colour), f"  {plural(state.delivered, 'record')}{waits}"
        )
        out.print(line, soft_wrap=True)
        if state.error:
            out.print(indented(one_line(state.error), 4), style=colour)
    if view.info.is_over and any(state.behind_bytes for state in view.sinks):
        out.print(f"  the rest is delivered by: hookline runs sync {view.info.directory}", style="dim", soft_wrap=True)


def _print_events(out: Console, events: list[dict[str, Any]], count: int) -> None:
    if not events:
        return
    out.print(f"\nEvents{f' (the last {_EVENTS} of {count:,})' if count > _EVENTS else ''}", style="bold")
    for event in events[-_EVENTS:]:
        step = "" if event["step"] is None else f"  step {event['step']:,}"
        name, details = _event_words(event)
        style = "bold red" if any(word in event["name"] for word in _LOUD) else ""
        when = f"  {clock_text(event['time'])}{step}  "
        out.print(Text.assemble((when, "dim"), (one_line(name), style), f"  {one_line(details)}"), soft_wrap=True)


def _event_words(event: dict[str, Any]) -> tuple[str, str]:
    """An event's name and text; for a resume, the steps it continues from."""
    data = json.loads(event["data"])
    is_mark = event["name"] == "resume" and isinstance(data, dict)
    steps = resumed_steps(Event(name="resume", data=data)) if is_mark else {}
    if steps.get(EVERY_AXIS, 0) < 0:
        return "began again at step 0", ""
    if EVERY_AXIS in steps:
        return f"resumed at step {steps[EVERY_AXIS]:,}", ""
    if steps:
        return f"resumed at {', '.join(f'{axis} step {max(step, 0):,}' for axis, step in steps.items())}", ""
    return event["name"], event["message"] or _facts_text(event["data"])


def _facts_text(data: str) -> str:
    facts = json.loads(data)
    return "  ".join(f"{name}={number(value)}" for name, value in facts.items()) if isinstance(facts, dict) else data


def _print_problems(out: Console, info: RunInfo) -> None:
    if not info.problems:
        return
    out.print("\nProblems", style="bold red")
    for problem in info.problems:
        out.print(indented(one_line(problem)), style="red")
    out.print(f"  what they mean: hookline runs verify {info.directory}", style="dim", soft_wrap=True)
