"""``hookline runs compare``: what differs between runs in settings, metrics, environment and code."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from hookline._engine.costs import duration
from hookline._engine.errors import OptionError
from hookline._record.records import clean
from hookline._record.terminal import one_line, printable
from hookline.cli.output import AsJson, console, print_json, table, wrong_input
from hookline.cli.runs.reference import Root, complete, locate, opened
from hookline.cli.runs.text import how_long, number, status_text
from hookline.store.code_comparison import CodeComparison, FileDifference, compare_code, unified
from hookline.store.comparison import ArmValue, ComparedMetric, ComparedRun, Comparison, Difference, compare_runs
from hookline.store.outcomes import Metric, Outcome, outcomes
from hookline.store.run_info import RunInfo, RunLocation

_MAX_DIFFERENCES = 20
_MAX_LINES = 40

Compared = Annotated[
    list[str],
    typer.Argument(
        metavar="A B [C]...",
        help="Two or more runs: ids, names, parts of ids, directories, or 'latest'.",
        show_default=False,
        autocompletion=complete,
    ),
]


def compare_command(
    given: Compared,
    *,
    code: Annotated[bool, typer.Option("--code", help="Print the whole difference of the code.")] = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also list the settings, facts and packages that are the same.")
    ] = False,
    root: Root = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Compare runs with the first one: what differs in settings, environment and code, and their metrics.

    Each metric is listed with its last and its best value, and, where several runs are repeats of an arm, with the mean
    and the standard deviation of each arm. The code is compared file by file if the runs have the same commit.
    """
    with wrong_input(as_json=as_json):
        chosen = _checked([locate(root, reference) for reference in given])
        infos, comparison = _read(chosen, show_all=show_all)
        codes = [compare_code(infos[0], info) for info in infos[1:]]
    if as_json:
        print_json(_document(infos, comparison, codes))
    else:
        _print(console(), infos, comparison, codes, whole_code=code, show_all=show_all)


def comparison_document(chosen: Sequence[RunLocation], *, show_all: bool = False) -> dict[str, Any]:
    """The differences between runs, as JSON-compatible values.

    Raises:
        OptionError: There are fewer than two, or one twice.
    """
    infos, comparison = _read(_checked(chosen), show_all=show_all)
    return _document(infos, comparison, [compare_code(infos[0], info) for info in infos[1:]])


def _checked(chosen: Sequence[RunLocation]) -> Sequence[RunLocation]:
    if len(chosen) < 2 or len({place.directory for place in chosen}) < len(chosen):
        raise OptionError(f"{' '.join(place.id for place in chosen)}: give two or more runs, each once.")
    return chosen


def _read(chosen: Sequence[RunLocation], *, show_all: bool) -> tuple[list[RunInfo], Comparison]:
    """The runs in the order given; they may have different roots."""
    compared: list[tuple[RunInfo, dict[Metric, Outcome]]] = []
    for place in chosen:
        found = opened([place])
        info = found.latest()
        compared.append((info, outcomes(found)[info.id]))
    return [info for info, _ in compared], compare_runs(compared, everything=show_all)


def _document(infos: list[RunInfo], found: Comparison, codes: list[CodeComparison]) -> dict[str, Any]:
    names = ("id", "name", "status", "step", "seconds", "seconds_per_step")
    facts = [
        {name: getattr(run, name) for name in names} | {"directory": str(info.directory)}
        for run, info in zip(found.runs, infos, strict=True)
    ]
    arms = [msgspec.to_builtins(arm) for arm in found.arms]
    document: dict[str, Any] = clean(
        {
            "runs": facts,
            "arms": arms,
            "config": {each.name: each.values for each in found.config},
            "environment": {each.name: each.values for each in (*found.environment, *found.packages)},
            "metrics": [msgspec.to_builtins(metric) for metric in found.metrics],
            "code": [msgspec.to_builtins(each) for each in codes],
        }
    )
    return document


def _print(
    out: Console,
    infos: list[RunInfo],
    found: Comparison,
    codes: list[CodeComparison],
    *,
    whole_code: bool,
    show_all: bool,
) -> None:
    labels = _labels(infos)
    listing = table("", *labels, whole=("",))
    listing.add_row("name", *(one_line(run.name) for run in found.runs))
    listing.add_row("status", *(status_text(run.status) for run in found.runs))
    listing.add_row("steps", *map(_steps, found.runs))
    listing.add_row("time", *(how_long(_float(run.seconds)) for run in found.runs))
    paces = [_float(run.seconds_per_step) for run in found.runs]
    if any(paces):
        listing.add_row("time per step", *("-" if pace is None else duration(pace) for pace in paces))
    out.print(listing)
    _print_settings(out, infos, found, labels, show_all=show_all)
    facts = [*found.environment, *found.packages]
    _print_differences(out, "environment", facts, labels, most=len(facts) if show_all else _MAX_DIFFERENCES)
    _print_metrics(out, found, labels)
    for label, code in zip(labels[1:], codes, strict=True):
        _print_code(out, code, labels[0], label, is_whole=whole_code)


def _labels(infos: list[RunInfo]) -> list[str]:
    """The shortest unique names of the runs: directory names, ids or paths."""
    names = [one_line(info.directory.name) for info in infos]
    if len(set(names)) == len(names):
        return names
    ids = [one_line(info.id) for info in infos]
    return ids if len(set(ids)) == len(ids) else [one_line(info.directory) for info in infos]


def _steps(run: ComparedRun) -> str:
    return f"{run.step:,}" if run.num_steps is None else f"{run.step:,}/{run.num_steps:,}"


def _float(value: float | str | None) -> float | None:
    """A number of a comparison, which are texts only in JSON."""
    return value if isinstance(value, int | float) else None


def _print_settings(
    out: Console, infos: list[RunInfo], found: Comparison, labels: list[str], *, show_all: bool
) -> None:
    if not any(each.differs for each in found.config):
        without = [label for label, info in zip(labels, infos, strict=True) if info.config is None]
        reason = f" ({', '.join(without)}: none was recorded)" if without else ""
        out.print(f"The configuration is the same{reason}.", soft_wrap=True)
    if found.config:
        _print_differences(out, "setting" if show_all else "setting that differs", found.config, labels)


def _print_differences(
    out: Console, title: str, found: list[Difference], labels: list[str], most: int | None = None
) -> None:
    if not found:
        return
    listing = table(title if most is None else f"{title} that differs", *labels)
    for each in islice(found, most):
        values = ("-" if place in each.missing else one_line(value) for place, value in enumerate(each.values))
        listing.add_row(one_line(each.name), *values)
    out.print(listing)
    if most is not None and len(found) > most:
        out.print(f"  {len(found) - most} more packages differ: use --all or --json", style="dim")


def _print_metrics(out: Console, found: Comparison, labels: list[str]) -> None:
    if not found.metrics:
        out.print("No metrics were recorded.")
        return
    listing = table("metric", "", *labels, numbers=labels)
    for metric in found.metrics:
        label = one_line(Metric(metric.name, metric.axis).label)
        listing.add_row(label, "last", *_cells(metric.last, metric.last_difference, metric))
        if metric.better is not None:
            listing.add_row("", "best", *_cells(metric.best, metric.best_difference, metric))
    out.print(listing)
    out.print("In brackets: the difference from the first run; green is better, by the metric's name.", style="dim")
    if found.arms:
        _print_arms(out, found)


def _cells(values: list[Any], differences: list[Any], metric: ComparedMetric) -> list[Text]:
    cells = [Text("-" if values[0] is None else number(values[0]))]
    for value, more in zip(values[1:], differences[1:], strict=True):
        if value is None or more is None:
            cells.append(Text("-" if value is None else number(value)))
        else:
            cells.append(Text.assemble(number(value), (f" ({more:+.3g})", _style(more, metric))))
    return cells


def _style(more: float, metric: ComparedMetric) -> Literal["", "green", "red"]:
    if metric.better is None or more == 0:
        return ""
    return "green" if (more < 0) == (metric.better == "min") else "red"


def _print_arms(out: Console, found: Comparison) -> None:
    """The mean and the spread of each arm, where runs are repeats."""
    names = [one_line(f"{arm.name} ({len(arm.runs)})") for arm in found.arms]
    listing = table("mean over repeats", "", *names, numbers=names)
    for metric in found.metrics:
        rows = (("last", metric.arms), ("best", metric.best_arms))
        shown = [(word, arms) for word, arms in rows if arms]
        for place, (word, arms) in enumerate(shown):
            label = "" if place else one_line(Metric(metric.name, metric.axis).label)
            listing.add_row(label, word, *(_arm_cell(arm, metric) for arm in arms))
    out.print(listing)
    note = "±: the standard deviation over repeats. In brackets: the difference from the mean of the first arm."
    out.print(note, style="dim")


def _arm_cell(arm: ArmValue, metric: ComparedMetric) -> Text:
    mean, std, more = _float(arm.mean), _float(arm.std), _float(arm.difference)
    if mean is None:
        return Text("-")
    text = Text(number(mean) + ("" if std is None else f" ± {std:.2g}"))
    if more is not None:
        text.append(f" ({more:+.3g})", _style(more, metric))
    return text


def _print_code(out: Console, code: CodeComparison, first: str, label: str, *, is_whole: bool) -> None:
    """The difference of the code of two runs; without ``--code`` its first lines."""
    if not code.before.commit and not code.after.commit:
        return
    if not code.same_commit:
        commits = " -> ".join(one_line(state.commit[:10]) or "unknown" for state in (code.before, code.after))
        out.print(f"\nCode from {first} to {label}: commits {commits}", style="bold", soft_wrap=True, markup=False)
        note = "git diff of these commits shows what lies between them. Below: changes that were not committed."
        out.print(note, style="dim", soft_wrap=True)
    elif not code.files:
        return
    else:
        out.print(f"\nCode from {first} to {label}", style="bold", soft_wrap=True, markup=False)
    for state in (code.before, code.after):
        if state.problem:
            out.print(f"{one_line(state.run)}: {one_line(state.problem)}", style="yellow", soft_wrap=True, markup=False)
    lines = [line for file in code.files for line in _file_lines(file)]
    for text, style in lines if is_whole else lines[:_MAX_LINES]:
        out.print(Text(printable(text), style), soft_wrap=True)
    if len(lines) > _MAX_LINES and not is_whole:
        out.print(f"  {len(lines) - _MAX_LINES:,} more lines: use --code", style="dim")
    if code.left_out:
        out.print(f"  {code.left_out:,} more files differ.", style="dim")


def _file_lines(file: FileDifference) -> list[tuple[str, str]]:
    kinds = {"before": ", only in the first", "after": ", only in the second", "changed": ""}
    what = kinds.get(file.kind, f", {file.kind}") + (", as changes against other commits" if file.is_patch else "")
    styles = {"+": "green", "-": "red", "@": "cyan"}
    return [(f"{file.path}{what}", "bold"), *((line, styles.get(line[:1], "")) for line in unified(file))]
