"""`importance`: which settings separate the best runs from the others, by PED-ANOVA (Watanabe et al., IJCAI 2023).

The method compares the values of a setting in the best runs with its values in all runs. The Pearson divergence of the
two distributions, scaled by its maximum, is the share of the variance of "is among the best" that the setting explains
by itself. It needs no model and takes milliseconds per setting. This implementation differs from the paper in three
ways:

- Numbers are replaced by their ranks, so the result is the same for a linear and a logarithmic scale. A number with few
  different values, and anything else, is a category; a missing value is one too.
- The divergence that a random choice of equally many runs would have is subtracted: few runs, or a setting with as many
  values as runs, otherwise look important. The same random choices give the p-value.
- Both distributions are smoothed with the kernel of the best runs, so smoothing alone never separates them.

Limits: it sees each setting by itself, so a setting that matters only together with another one is rated too low; of
two settings that always change together, both get the same rating. It describes the recorded runs: a search that
stopped trying bad values early has less evidence about them.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, overload

from hookline._engine import notebook
from hookline._record.records import clean
from hookline._record.terminal import plural
from hookline.store.columns import as_float
from hookline.store.filters import ATTRIBUTES, FilterError, flattened, parse_field
from hookline.store.query import require_package
from hookline.store.query_limits import check_limits
from hookline.store.run_info import RunInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray["np.int64"]
    Floats = NDArray["np.float64"]
    import numpy as np

Mode = Literal["min", "max"]
MIN_RUNS = 10
"""With fewer runs, chance decides which settings look important."""
FEW_RUNS = 30
MOST_SETTINGS = 2000
_BEST_SHARE, _BEST_RUNS = 0.1, 10
"""The best tenth of the runs, but at least ten of them, or a quarter of all if they are fewer than forty."""
_GRID = 50
_MAX_LEVELS = 8
"""A number with at most this many different values is a category: ranks of a grid search have no density."""
_SHUFFLES = 200
_MIN_SIGMA = 0.5 / 1.64
_RESULT_STATUSES = ("finished", "stopped")

Setting = float | str | bool | None
"""A value of a setting: a number, a text, true or false, or none."""


@dataclass(frozen=True, slots=True)
class SettingImportance:
    """How important a setting is.

    Attributes:
        setting: The setting, as a filter names it.
        importance: Its share of what all settings explain; the shares add up to 1.
        explained: The share of the variance of "is among the best" that it explains by itself, beyond chance.
        p_value: How often a random choice of runs differs from all runs at least as much as the best ones do.
        correlation: Spearman's rank correlation with the metric; None unless the setting is a number or a switch.
        values: How many different values it has.
        missing: How many runs do not have it.
    """

    setting: str
    importance: float
    explained: float
    p_value: float
    correlation: float | None
    values: int
    missing: int


@dataclass(frozen=True, slots=True)
class Importance(Sequence[SettingImportance]):
    """The settings of runs, the most important first.

    Attributes:
        runs: How many runs were compared.
        best: How many of them count as the best.
        diverged: How many have NaN or infinity, which counts as the worst result.
        left_out: How many were left out: without the metric, not over yet, failed or killed.
        problem: Why no setting can be rated; empty if one can.
        note: A caveat about the result; empty if there is none.
    """

    metric: str
    mode: Mode
    settings: list[SettingImportance] = field(default_factory=list)
    runs: int = 0
    best: int = 0
    diverged: int = 0
    left_out: int = 0
    problem: str = ""
    note: str = ""

    @overload
    def __getitem__(self, key: int) -> SettingImportance: ...
    @overload
    def __getitem__(self, key: slice) -> list[SettingImportance]: ...
    def __getitem__(self, key: int | slice) -> SettingImportance | list[SettingImportance]:
        return self.settings[key]

    def __len__(self) -> int:
        return len(self.settings)

    def __repr__(self) -> str:
        lines = [f"<Importance of {plural(len(self), 'setting')} for {self.metric}>"]
        lines += [
            f"  {each.setting}  {each.importance:.0%}  p {each.p_value:.2f}  {_signed(each.correlation)}"
            for each in self.settings
        ]
        return "\n".join([*lines, *(f"  {text}" for text in (self.problem, self.note) if text)])

    def _repr_html_(self) -> str:
        return notebook.display(self._html)

    def _html(self) -> str:
        better = "lower" if self.mode == "min" else "higher"
        about = f"Importance of settings for {self.metric} ({better} is better), {plural(self.runs, 'run')}"
        rows = [
            (
                notebook.text(each.setting),
                notebook.share_bar(each.importance),
                f"{each.importance:.0%}",
                f"{each.explained:.2f}",
                f"{each.p_value:.2f}",
                _signed(each.correlation),
            )
            for each in self.settings
        ]
        columns = ("setting", "", "importance", "explained", "p", "rank correlation")
        return "".join(
            [
                notebook.note(about),
                notebook.table(columns, rows, numbers=range(2, 6)) if rows else "",
                *([notebook.note(self.problem, is_problem=True)] if self.problem else ()),
                *([notebook.note(self.note)] if self.note else ()),
            ]
        )

    def rows(self) -> list[dict[str, Any]]:
        """The settings as dicts."""
        return [asdict(each) for each in self.settings]

    def to_pandas(self) -> Any:
        """A pandas data frame with one row per setting.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        require_package("pandas")
        return import_module("pandas").DataFrame(self.rows(), columns=list(SettingImportance.__slots__))

    def to_polars(self) -> Any:
        """A polars data frame with the rows of `to_pandas`.

        Raises:
            MissingExtraError: polars is not installed.
        """
        require_package("polars")
        rows = self.rows()
        columns = {name: [row[name] for row in rows] for name in SettingImportance.__slots__}
        return import_module("polars").DataFrame(columns)


def _signed(correlation: float | None) -> str:
    return "" if correlation is None else f"{correlation:+.2f}"


def varying_settings(infos: Sequence[RunInfo]) -> dict[str, list[Setting]]:
    """The settings with different values, by the field that a filter names them with, in the order of the runs.

    Of more than `MOST_SETTINGS`, those that the fewest runs have are left out.
    """
    configs = [{name: _setting(value) for name, value in flattened(info.config)} for info in infos]
    names = Counter(name for config in configs for name in config)
    if len(names) > MOST_SETTINGS:  # a configuration of thousands would be a column of all runs for each of them
        names = Counter(dict(names.most_common(MOST_SETTINGS)))
    columns = {name: [config.get(name) for config in configs] for name in names}
    varying = {name: values for name, values in columns.items() if len(set(map(_key, values))) > 1}
    fields = {name: field_text("config", name, ATTRIBUTES) for name in varying}
    return {text: varying[name] for name, text in fields.items() if text is not None}


def _setting(value: Any) -> Setting:
    if value is None or value == "":
        return None
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        number = as_float(value)
        return number if number is not None and math.isfinite(number) else str(number)
    return json.dumps(clean(value), ensure_ascii=False)


def _key(value: Setting) -> tuple[str, Setting]:
    """Distinguishes true from 1, which are equal in Python."""
    return type(value).__name__, value


def field_text(kind: str, name: str, taken: Iterable[str]) -> str | None:
    """A name as a filter has to write it: with a prefix if it means something else by itself; None if it cannot."""
    meant = f"{kind}.{name}" if name in taken else name
    for text in (meant, f"`{meant}`"):
        try:
            parsed = parse_field(text)
        except FilterError:
            continue
        if parsed.name == meant and not parsed.function:
            return text
    return None


def importance(infos: Sequence[RunInfo], results: Sequence[Any], metric: str, mode: Mode) -> Importance:
    """The importance of the settings of runs for a metric.

    Args:
        results: The value of the metric in each run.
    """
    usable: list[RunInfo] = []
    values: list[float] = []
    for info, value in zip(infos, results, strict=True):
        number = as_float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        # A diverged run shows that its settings are bad, whatever its status. A finite value of a run that has not
        # ended, or crashed, belongs to an unfinished training.
        if number is None or not info.is_over or (math.isfinite(number) and info.status not in _RESULT_STATUSES):
            continue
        usable.append(info)
        values.append(number)
    about: dict[str, Any] = {"runs": len(usable), "left_out": len(infos) - len(usable)}
    about["diverged"] = sum(not math.isfinite(value) for value in values)
    if len(usable) < MIN_RUNS:
        have = f"{plural(len(usable), 'completed run')} {'has' if len(usable) == 1 else 'have'}"
        problem = f"{have} a value of {metric}; at least {MIN_RUNS} are needed to rate settings."
        return Importance(metric, mode, problem=problem, **about)
    settings = varying_settings(usable)
    if not settings:
        return Importance(metric, mode, problem="No setting differs between these runs.", **about)
    costs = _costs(values, mode)
    is_best = _best(costs)
    if is_best.all():
        return Importance(metric, mode, problem=f"All runs have the same value of {metric}.", **about)
    rated = rate(settings, values, mode)
    about["best"] = int(is_best.sum())
    few = f"Only {len(usable)} runs: settings with a p-value above 0.05 may be important by chance."
    return Importance(metric, mode, rated, note=few if len(usable) < FEW_RUNS else "", **about)


def rate(settings: Mapping[str, Sequence[Setting]], values: Sequence[float], mode: Mode) -> list[SettingImportance]:
    """The importance of settings for results, the most important first.

    Args:
        settings: For each setting, its value in each run.
        values: The result of each run; one that is not finite is the worst.
    """
    import numpy as np

    costs = _costs(values, mode)
    is_best = _best(costs)
    count, best = len(costs), int(is_best.sum())
    # The same choices for all settings, and the same in each call: a rating does not change when it is repeated.
    generator = np.random.default_rng(0)
    chosen = [np.flatnonzero(is_best)]
    chosen += [generator.permutation(count)[:best] for _ in range(_SHUFFLES)]
    found = {}
    for name, own in settings.items():
        check_limits()  # of hundreds of settings, it takes seconds
        found[name] = _explained(own, chosen)
    total = math.fsum(explained for explained, _ in found.values())
    sign = 1 if mode == "min" else -1
    rated = [
        SettingImportance(
            setting=name,
            importance=explained / total if total else 0.0,
            explained=explained,
            p_value=p_value,
            correlation=_rank_correlation(settings[name], sign * costs),
            values=len({_key(value) for value in settings[name]} - {_key(None)}),
            missing=sum(value is None for value in settings[name]),
        )
        for name, (explained, p_value) in found.items()
    ]
    return sorted(rated, key=lambda each: (-each.importance, each.p_value, each.setting))


def _costs(values: Sequence[float], mode: Mode) -> "Floats":
    """The results as numbers of which the smallest is the best; those that are not finite are infinite."""
    import numpy as np

    costs = np.array(values, dtype=float) * (1 if mode == "min" else -1)
    return np.where(np.isfinite(costs), costs, np.inf)


def _best(costs: "Floats") -> "NDArray[np.bool_]":
    """Which runs are among the best; equal results are all in or all out."""
    import numpy as np

    count = len(costs)
    best = max(math.ceil(_BEST_SHARE * count), min(_BEST_RUNS, math.ceil(count / 4)))
    return np.asarray(costs <= np.partition(costs, best - 1)[best - 1])


def _explained(values: Sequence[Setting], chosen: "Sequence[Ints]") -> tuple[float, float]:
    """The share of variance that a setting explains beyond chance, and its p-value.

    Args:
        chosen: The positions of the best runs, followed by random choices of as many.
    """
    import numpy as np

    bins, ordered = _bins(values)
    everywhere = np.bincount(bins, minlength=ordered) / len(bins)
    divergences = np.array([_divergence(bins[each], everywhere, ordered) for each in chosen])
    own, by_chance = divergences[0], divergences[1:]
    expected = float(by_chance.mean())
    most = len(bins) / len(chosen[0]) - 1
    # Rounding must not make a setting with as many values as runs important: all its divergences are equal.
    margin = 1e-9 * most
    explained = max(0.0, float(own) - expected) / (most - expected) if most - expected > margin else 0.0
    p_value = (1 + int((by_chance >= own - margin).sum())) / (1 + len(by_chance))
    return (explained if explained > 1e-9 else 0.0), p_value


def _bins(values: Sequence[Setting]) -> "tuple[Ints, int]":
    """The bin of each value, and how many of the first bins are in the order of their numbers."""
    import numpy as np

    is_number = np.array([isinstance(value, float) for value in values])
    numbers = np.array([value for value in values if isinstance(value, float)])
    ordered = _GRID if len(np.unique(numbers)) > _MAX_LEVELS else 0
    bins = np.zeros(len(values), dtype=np.int64)
    if ordered:
        bins[is_number] = np.minimum(_GRID - 1, (_ranks(numbers) - 0.5) / len(numbers) * _GRID).astype(np.int64)
    levels: dict[tuple[str, Setting], int] = {}
    for place, value in enumerate(values):
        if not (ordered and is_number[place]):
            bins[place] = ordered + levels.setdefault(_key(value), len(levels))
    return bins, ordered


def _divergence(best: "Ints", everywhere: "Floats", ordered: int) -> float:
    """Pearson's divergence of the distribution in the best runs from that in all runs."""
    import numpy as np

    counts = np.bincount(best, minlength=len(everywhere)).astype(float)
    top, whole = counts / len(best), everywhere
    if ordered and counts[:ordered].any():
        smooth = _kernel(round(_bandwidth(counts[:ordered]), 2))
        whole = whole.copy()
        top[:ordered] = top[:ordered] @ smooth
        whole[:ordered] = whole[:ordered] @ smooth
    present = whole > 0
    return float(((top[present] - whole[present]) ** 2 / whole[present]).sum())


def _bandwidth(counts: "Floats") -> float:
    """Scott's rule for values on a grid, at least wide enough to fill a cell."""
    import numpy as np

    number = counts.sum()
    places = np.arange(len(counts))
    mean = (places @ counts) / number
    deviation = math.sqrt(((places - mean) ** 2 @ counts) / max(1.0, number - 1))
    low, high = np.searchsorted(np.cumsum(counts), [number * 0.25, number * 0.75])
    return float(max(1.059 * min((high - low) / 1.34, deviation) * number**-0.2, _MIN_SIGMA))


@lru_cache(maxsize=512)
def _kernel(sigma: float) -> "Floats":
    """How a value in a cell of the grid spreads over all cells: a normal distribution, cut at the ends."""
    import numpy as np

    reach = np.arange(-_GRID, _GRID + 1) - 0.5
    normal = np.array([math.erf(each / sigma / math.sqrt(2)) for each in reach])
    mass = np.diff(normal)
    cells = np.arange(_GRID)
    made = mass[cells[None, :] - cells[:, None] + _GRID]
    spread: Floats = made / made.sum(axis=1, keepdims=True)
    return spread


def _ranks(values: "Floats") -> "Floats":
    """Ranks from 1; equal values share their mean rank."""
    import numpy as np

    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2)[places]
    return ranks


def _rank_correlation(settings: Sequence[Setting], results: "Floats") -> float | None:
    """Spearman's correlation over the runs that have the setting."""
    import numpy as np

    has = [value is not None for value in settings]
    held = [value for value in settings if value is not None]
    if len(held) < MIN_RUNS or not all(isinstance(value, float | bool) for value in held):
        return None
    first, second = _ranks(np.array(held, dtype=float)), _ranks(results[has])
    if not (first.std() and second.std()):
        return None
    return float(np.corrcoef(first, second)[0, 1])
