"""`compare_runs`: the differences between runs in settings, environment and packages, and their metrics side by side.

Where several of the runs are repeats of an arm, each metric also has the mean and the spread of every arm, and the
difference of its mean from that of the baseline's arm. The command line, the page and `Runs.compare` share this.

Texts are returned as recorded and may come from anywhere: callers that show them must escape and shorten them.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hookline._record.environment import Environment, read_environments
from hookline.experiment.results.statistics import Spread, spread, welch_interval
from hookline.store.outcomes import Metric, Outcome, better_mode, main_metrics
from hookline.store.run_info import RunInfo

Number = float | str | None
"""A number; in JSON, ``NaN``, ``Infinity`` and ``-Infinity`` are strings."""


class ComparedRun(msgspec.Struct):
    """A run of a comparison.

    Attributes:
        arm: The place of its arm in `Comparison.arms`; None if no arm has repeats.
        has_environment: Whether its environment was recorded.
    """

    id: str
    name: str
    status: str
    step: int
    num_steps: int | None
    seconds: Number
    seconds_per_step: Number
    arm: int | None = None
    has_environment: bool = False


class ComparedArm(msgspec.Struct):
    """The runs that are repeats of an arm, by their places."""

    name: str
    runs: list[int]


class Difference(msgspec.Struct):
    """A setting, a fact about the environment, or a package, with its value in each run.

    Attributes:
        missing: The places of the runs without it: their value is None.
        differs: Whether runs differ in it.
    """

    name: str
    values: list[Any]
    missing: list[int]
    differs: bool


class ArmValue(msgspec.Struct):
    """A metric over the repeats of an arm.

    Attributes:
        std: The sample standard deviation; None for a single value.
        difference: The mean minus that of the baseline's arm.
        interval: The 95% interval of the difference (Welch); None with fewer than two values of either arm.
    """

    n: int
    mean: Number
    std: Number
    difference: Number
    interval: list[Number] | None


class ComparedMetric(msgspec.Struct):
    """A metric of the compared runs, in their order; None where a run has none.

    Attributes:
        better: ``min`` or ``max``; None if the name does not tell, so that there is no best value.
        last_difference: The last value minus that of the baseline.
        arms: Over the last values of each arm; empty if no arm has repeats.
        best_arms: Over the best values.
    """

    name: str
    axis: str
    better: str | None
    last: list[Number]
    best: list[Number]
    last_difference: list[Number]
    best_difference: list[Number]
    arms: list[ArmValue]
    best_arms: list[ArmValue]


class Comparison(msgspec.Struct):
    """The differences between runs; see `Runs.compare`.

    Attributes:
        baseline: The place of the run that others are compared with.
        config: Settings by their dotted paths.
        environment: The commit, the command, Python, the machine, variables.
        packages: The installed versions.
    """

    baseline: int
    runs: list[ComparedRun]
    arms: list[ComparedArm]
    config: list[Difference]
    environment: list[Difference]
    packages: list[Difference]
    metrics: list[ComparedMetric]


Compared = tuple[RunInfo, Mapping[Metric, Outcome]]


def compare_runs(compared: Sequence[Compared], *, baseline: int = 0, everything: bool = False) -> Comparison:
    """Compare runs, which may have different roots, with the outcomes of their metrics.

    Args:
        baseline: The place of the run that the others are compared with.
        everything: Include the settings, facts and packages that all runs share.
    """
    infos = [info for info, _ in compared]
    sessions = [latest_environment(info.directory) for info in infos]
    arms = _arms(infos)
    arm_of = {place: number for number, arm in enumerate(arms) for place in arm.runs}
    now = time.time()
    runs = [
        ComparedRun(
            info.id,
            info.name,
            info.status,
            info.step,
            info.num_steps,
            None if info.started is None else (info.ended or now) - info.started,
            info.seconds_per_step,
            arm_of.get(place),
            session is not None,
        )
        for place, (info, session) in enumerate(zip(infos, sessions, strict=True))
    ]
    facts = [None if each is None else environment_facts(each) for each in sessions]
    packages = [None if each is None else dict(_package(text) for text in each.packages) for each in sessions]
    return Comparison(
        baseline,
        runs,
        arms,
        _differences([dict(flat(info.config)) for info in infos], everything=everything),
        _differences(facts, everything=everything),
        sorted(_differences(packages, everything=everything), key=lambda each: each.name),
        [_metric(metric, compared, baseline, arms) for metric in _metrics(compared)],
    )


def latest_environment(directory: Path) -> Environment | None:
    """The environment of the latest session of a run; None if none was recorded."""
    sessions = read_environments(directory)
    return sessions[-1] if sessions else None


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


def environment_facts(environment: Environment) -> dict[str, Any]:
    """Return the known facts of an environment, without its packages, by name."""
    git, host, hardware = environment.git, environment.host, environment.hardware
    diff, gpus, memory = git.get("diff"), hardware.get("gpus"), hardware.get("memory_bytes")
    names = Counter(str(gpu.get("name")) for gpu in gpus if isinstance(gpu, dict)) if isinstance(gpus, list) else {}
    facts = {
        **{name: git.get(name) for name in ("commit", "branch", "remote")},
        "changes": str(diff.get("blob") or "")[:12] if isinstance(diff, dict) else "",
        "command": " ".join(environment.command),
        "directory": environment.directory,
        "python": environment.python.get("version"),
        "host": host.get("name"),
        "system": host.get("os") or host.get("platform"),
        "cpu": hardware.get("cpu"),
        "cores": hardware.get("cores"),
        "memory": f"{memory / 1e9:.1f} GB" if isinstance(memory, int) and 0 <= memory < 1 << 63 else None,
        "gpus": ", ".join(name if count == 1 else f"{count} x {name}" for name, count in names.items()),
        "container": environment.container.get("id") or environment.container.get("kind"),
        **environment.variables,
    }
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _package(text: str) -> tuple[str, str]:
    name, _, version = text.partition("==")
    return name, version


def _differences(known: Sequence[Mapping[str, Any] | None], *, everything: bool) -> list[Difference]:
    """Return the values by name; unknown runs (None) lack all of them, but do not count as different."""
    names = dict.fromkeys(name for facts in known for name in facts or ())
    found = []
    for name in names:
        missing = [place for place, facts in enumerate(known) if facts is None or name not in facts]
        values = [None if facts is None else facts.get(name) for facts in known]
        present = [(name in facts, facts.get(name)) for facts in known if facts is not None]
        differs = any(not _is_same(present[0], other) for other in present[1:])
        if differs or everything:
            found.append(Difference(name, values, missing, differs))
    return found


def _is_same(one: tuple[bool, Any], other: tuple[bool, Any]) -> bool:
    if one[0] != other[0]:
        return False
    both_nan = all(isinstance(value, float) and math.isnan(value) for _, value in (one, other))
    return bool(one[1] == other[1]) or both_nan


def _arms(infos: Sequence[RunInfo]) -> list[ComparedArm]:
    """The arms of the runs in the order of their first ones; none if no arm has repeats among them."""
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for place, info in enumerate(infos):
        arm = info.arm or info.group
        own = (info.id,) if arm is None else (info.project, info.experiment, arm, info.stage)
        groups.setdefault(own, []).append(place)
    if max(map(len, groups.values())) < 2:
        return []
    made = []
    for places in groups.values():
        first = infos[places[0]]
        parts = (first.arm or first.group or first.name, first.stage)
        made.append(ComparedArm(" · ".join(part for part in parts if part), places))
    return made


def _metrics(compared: Sequence[Compared]) -> list[Metric]:
    found = dict.fromkeys(metric for _, own in compared for metric in own)
    order = {name: place for place, name in enumerate(main_metrics(dict.fromkeys(each.name for each in found)))}
    return sorted((each for each in found if each.name in order), key=lambda each: (order[each.name], each.axis))


def _metric(metric: Metric, compared: Sequence[Compared], baseline: int, arms: Sequence[ComparedArm]) -> ComparedMetric:
    mode = better_mode(metric.name)
    own = [outcomes.get(metric) for _, outcomes in compared]
    last = [None if outcome is None else outcome.last for outcome in own]
    best = [None if outcome is None or mode is None else outcome.best(mode) for outcome in own]
    return ComparedMetric(
        metric.name,
        metric.axis,
        mode,
        list(last),
        list(best),
        list(_to_baseline(last, baseline)),
        list(_to_baseline(best, baseline)),
        _arm_values(last, baseline, arms),
        _arm_values(best, baseline, arms) if mode is not None else [],
    )


def _to_baseline(values: Sequence[float | None], baseline: int) -> list[float | None]:
    base = values[baseline]
    return [None if value is None or base is None else value - base for value in values]


def _arm_values(values: Sequence[float | None], baseline: int, arms: Sequence[ComparedArm]) -> list[ArmValue]:
    """Return the spread of each arm over finite values, so that one diverged repeat does not erase a mean."""
    spreads = []
    for arm in arms:
        own = [value for place in arm.runs if (value := values[place]) is not None]
        spreads.append(spread([value for value in own if math.isfinite(value)]))
    base = next((found for arm, found in zip(arms, spreads, strict=True) if baseline in arm.runs), Spread())
    made = []
    for found in spreads:
        is_base = found is base
        gap = None if found.mean is None or base.mean is None or is_base else found.mean - base.mean
        interval = None if is_base else welch_interval(base, found)
        made.append(ArmValue(found.n, found.mean, found.std, gap, None if interval is None else list(interval)))
    return made
