"""``hookline runs compare``: the differences between runs in settings and metrics."""

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from hookline._engine.costs import duration
from hookline._engine.errors import OptionError
from hookline._record.records import clean
from hookline._record.terminal import one_line
from hookline.cli.output import AsJson, console, print_json, table, wrong_input
from hookline.cli.runs.reference import Root, complete, locate, opened
from hookline.cli.runs.text import (
    Metric,
    Outcome,
    better_mode,
    how_long,
    main_metrics,
    number,
    outcomes,
    seconds_of,
    status_text,
    steps_text,
)
from hookline.store.run_info import RunInfo

_UNSET = object()

Compared = Annotated[
    list[str],
    typer.Argument(
        metavar="A B [C]...",
        help="Two or more runs: ids, names, parts of ids, directories, or 'latest'.",
        show_default=False,
        autocompletion=complete,
    ),
]
Results = dict[str, dict[Metric, Outcome]]


def compare_command(given: Compared, *, root: Root = Path("runs"), as_json: AsJson = False) -> None:
    """Compare runs: settings that differ, and each metric's last and best value beside those of the first run."""
    with wrong_input(as_json=as_json):
        infos, results = _read(root, given)
    if as_json:
        print_json(_document(infos, results))
    else:
        _print(console(), infos, results)


def _read(root: Path, given: list[str]) -> tuple[list[RunInfo], Results]:
    """The runs in the order given; they may have different roots."""
    chosen = [locate(root, reference) for reference in given]
    if len(chosen) < 2 or len({place.directory for place in chosen}) < len(chosen):
        raise OptionError(f"{' '.join(given)}: give two or more runs, each once.")
    infos: list[RunInfo] = []
    results: Results = {}
    for place in chosen:
        found = opened([place])
        info = found.latest()
        infos.append(info)
        results[str(info.directory)] = outcomes(found)[info.id]
    return infos, results


def flat(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a configuration with their dotted paths.

    >>> list(flat({"train": {"lr": 0.1, "betas": [0.9, 0.99]}}))
    [('train.lr', 0.1), ('train.betas', [0.9, 0.99])]
    """
    if isinstance(config, dict) and config:
        for key, value in config.items():
            yield from flat(value, f"{path}.{key}" if path else str(key))
    elif isinstance(config, list) and any(isinstance(item, dict | list) for item in config):
        for index, value in enumerate(config):
            yield from flat(value, f"{path}[{index}]")
    elif config is not None or path:
        yield path, config


def differences(infos: list[RunInfo]) -> dict[str, list[Any]]:
    """The settings that differ between runs; `_UNSET` if a run lacks one."""
    configs = [dict(flat(info.config)) for info in infos]
    paths = dict.fromkeys(path for config in configs for path in config)
    values = {path: [config.get(path, _UNSET) for config in configs] for path in paths}
    return {path: own for path, own in values.items() if any(a is not b and a != b for a, b in pairwise(own))}


def _metrics(results: Results) -> list[Metric]:
    found = dict.fromkeys(metric for own in results.values() for metric in own)
    names = main_metrics(dict.fromkeys(metric.name for metric in found))
    return sorted((m for m in found if m.name in names), key=lambda m: (names.index(m.name), m.axis))


def _document(infos: list[RunInfo], results: Results) -> dict[str, Any]:
    now = time.time()
    facts = [
        {
            "id": info.id,
            "directory": str(info.directory),
            "name": info.name,
            "status": info.status,
            "step": info.step,
            "seconds": seconds_of(info, now),
            "seconds_per_step": info.seconds_per_step,
        }
        for info in infos
    ]
    settings = {
        path: [None if value is _UNSET else value for value in values] for path, values in differences(infos).items()
    }
    metrics = [_metric_document(metric, infos, results) for metric in _metrics(results)]
    document: dict[str, Any] = clean({"runs": facts, "config": settings, "metrics": metrics})
    return document


def _metric_document(metric: Metric, infos: list[RunInfo], results: Results) -> dict[str, Any]:
    mode = better_mode(metric.name)
    own = [results[str(info.directory)].get(metric) for info in infos]
    last = [None if outcome is None else outcome.last for outcome in own]
    best = [None if outcome is None or mode is None else outcome.best(mode) for outcome in own]
    return {
        "name": metric.name,
        "axis": metric.axis,
        "better": mode,
        "last": last,
        "last_difference": _to_first(last),
        "best": best,
        "best_difference": _to_first(best),
    }


def _to_first(values: list[float | None]) -> list[float | None]:
    first = values[0]
    return [None if value is None or first is None else value - first for value in values]


def _print(out: Console, infos: list[RunInfo], results: Results) -> None:
    labels = _labels(infos)
    now = time.time()
    listing = table("", *labels, whole=("",))
    listing.add_row("name", *(one_line(info.name) for info in infos))
    listing.add_row("status", *(status_text(info.status) for info in infos))
    listing.add_row("steps", *(steps_text(info) for info in infos))
    listing.add_row("time", *(how_long(seconds_of(info, now)) for info in infos))
    paces = [info.seconds_per_step for info in infos]
    if any(paces):
        listing.add_row("time per step", *("-" if pace is None else duration(pace) for pace in paces))
    out.print(listing)
    _print_settings(out, infos, labels)
    _print_results(out, infos, results, labels)


def _labels(infos: list[RunInfo]) -> list[str]:
    """The shortest unique names of the runs: directory names, ids or paths."""
    names = [one_line(info.directory.name) for info in infos]
    if len(set(names)) == len(names):
        return names
    ids = [one_line(info.id) for info in infos]
    return ids if len(set(ids)) == len(ids) else [one_line(info.directory) for info in infos]


def _print_settings(out: Console, infos: list[RunInfo], labels: list[str]) -> None:
    differ = differences(infos)
    if not differ:
        without = [label for label, info in zip(labels, infos, strict=True) if info.config is None]
        reason = f" ({', '.join(without)}: none was recorded)" if without else ""
        out.print(f"The configuration is the same{reason}.", soft_wrap=True)
        return
    listing = table("setting that differs", *labels)
    for path, values in differ.items():
        listing.add_row(one_line(path), *("-" if value is _UNSET else one_line(value) for value in values))
    out.print(listing)


def _print_results(out: Console, infos: list[RunInfo], results: Results, labels: list[str]) -> None:
    metrics = _metrics(results)
    if not metrics:
        out.print("No metrics were recorded.")
        return
    listing = table("metric", "", *labels, numbers=labels)
    for metric in metrics:
        found = _metric_document(metric, infos, results)
        mode: Literal["min", "max"] | None = found["better"]
        listing.add_row(one_line(metric.label), "last", *_cells(found["last"], mode))
        if mode is not None:
            listing.add_row("", "best", *_cells(found["best"], mode))
    out.print(listing)
    out.print("In brackets: the difference from the first run; green is better, by the metric's name.", style="dim")


def _cells(values: list[float | None], mode: Literal["min", "max"] | None) -> list[Text]:
    differ = _to_first(values)
    cells = [Text("-" if values[0] is None else number(values[0]))]
    for value, more in zip(values[1:], differ[1:], strict=True):
        if value is None or more is None:
            cells.append(Text("-" if value is None else number(value)))
            continue
        style = "" if mode is None or more == 0 else "green" if (more < 0) == (mode == "min") else "red"
        cells.append(Text.assemble(number(value), (f" ({more:+.3g})", style)))
    return cells
