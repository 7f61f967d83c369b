"""Sweeps: their configuration, and the settings that Optuna chooses for each run.

A sweep is a folder ``<root>/<project>/.sweeps/<id>/`` with its configuration and a journal of Optuna, so agents in
several processes share it, and it continues after a kill. ``random`` draws, ``grid`` takes each combination once, and
``bayes`` is Optuna's TPE. ``early_terminate`` with ``hyperband`` is Optuna's successive halving, with wandb's brackets.
"""

import contextlib
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

from hookline._engine.errors import closest
from hookline._record.files import write_atomically
from hookline.compat.wandb.errors import CommError, UsageError
from hookline.compat.wandb.util import generate_id

FOLDER = ".sweeps"
"""The folder of a project with its sweeps."""
CONFIG, JOURNAL = "sweep.json", "optuna.jsonl"
METHODS = ("random", "grid", "bayes")
GOALS = ("minimize", "maximize")
_EDGE = 1e-9
"""How close a draw for a distribution without bounds may come to 0 and 1."""

_BASES = ("uniform", "log_uniform", "inv_log_uniform", "log_uniform_values", "inv_log_uniform_values")
_RANGES = ("int_uniform", *_BASES, "q_uniform", "q_log_uniform", "q_log_uniform_values")
"""Distributions between min and max."""
_OTHERS = ("constant", "categorical", "categorical_w_probabilities", "normal", "q_normal", "log_normal", "q_log_normal")
DISTRIBUTIONS: tuple[str, ...] = (*_RANGES, *_OTHERS, "beta", "q_beta")


def distribution_of(name: str, parameter: Mapping[str, Any]) -> str:
    """Return the distribution of a parameter, which its keys may imply.

    Raises:
        UsageError: It has none, or a required key is missing.
    """
    given = parameter.get("distribution") or _implied(parameter)
    if given is None:
        raise UsageError(f"sweep: {name!r} needs value, values, or min and max: {dict(parameter)!r:.200}")
    if given not in DISTRIBUTIONS:
        raise UsageError(f"sweep: {name!r} has the distribution {given!r}. {closest(str(given), DISTRIBUTIONS)}")
    if given.startswith("categorical") and not parameter.get("values"):
        raise UsageError(f"sweep: {name!r} needs a list of values.")
    if given in _RANGES:
        low, high = parameter.get("min"), parameter.get("max")
        if not isinstance(low, int | float) or not isinstance(high, int | float) or low > high:
            raise UsageError(
                f"sweep: {name!r} with the distribution {given!r} needs numbers min and max in this order."
            )
        if given.endswith("_values") and low <= 0:
            raise UsageError(f"sweep: {name!r} with the distribution {given!r} needs min above 0.")
    return str(given)


def _implied(parameter: Mapping[str, Any]) -> str | None:
    if "value" in parameter:
        return "constant"
    if "values" in parameter:
        return "categorical_w_probabilities" if parameter.get("probabilities") else "categorical"
    if "min" in parameter and "max" in parameter:
        is_whole = all(isinstance(parameter[bound], int) for bound in ("min", "max"))
        return "int_uniform" if is_whole else "uniform"
    return "normal" if "mu" in parameter or "sigma" in parameter else None


def flattened(parameters: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each parameter with its path; nested ones are below ``parameters``."""
    for name, parameter in parameters.items():
        if not isinstance(parameter, Mapping):
            raise UsageError(f"sweep: the parameter {name!r} is {parameter!r:.100}; give a dict, e.g. {{'value': 1}}.")
        if "parameters" in parameter:
            yield from flattened(parameter["parameters"], (*prefix, name))
        else:
            yield (*prefix, name), parameter


def checked_config(config: Any) -> dict[str, Any]:
    """Return the configuration of a sweep.

    Raises:
        UsageError: It is not accepted.
    """
    if not isinstance(config, Mapping):
        raise UsageError(f"sweep: {config!r:.200} is not a dict.")
    found = json.loads(json.dumps(dict(config), default=str))
    assert isinstance(found, dict)
    method = found.get("method")
    if method not in METHODS:
        raise UsageError(f"sweep: method={method!r}: give one of {', '.join(METHODS)}.")
    parameters = found.get("parameters")
    if not isinstance(parameters, dict) or not parameters:
        raise UsageError("sweep: give parameters, e.g. {'lr': {'min': 1e-5, 'max': 1e-2}}.")
    metric = _checked_metric(found.get("metric"))
    if metric is None and (method == "bayes" or "early_terminate" in found):
        raise UsageError("sweep: this needs a metric, e.g. {'name': 'val/loss', 'goal': 'minimize'}.")
    for path, parameter in flattened(parameters):
        kind = distribution_of(".".join(path), parameter)
        if method == "grid" and _grid_values(kind, parameter) is None:
            raise UsageError(f"sweep: a grid needs values for {'.'.join(path)!r}, not the distribution {kind!r}.")
    _check_stops(found.get("early_terminate"))
    return found


def _checked_metric(metric: Any) -> dict[str, Any] | None:
    if metric is None:
        return None
    if not isinstance(metric, dict) or not isinstance(metric.get("name"), str):
        raise UsageError("sweep: metric is a dict with 'name' and 'goal'.")
    if metric.setdefault("goal", "minimize") not in GOALS:
        raise UsageError(f"sweep: goal={metric['goal']!r}: give one of {', '.join(GOALS)}.")
    return metric


def _check_stops(stops: Any) -> None:
    if stops is None:
        return
    if not isinstance(stops, dict) or stops.get("type") != "hyperband":
        raise UsageError("sweep: early_terminate is {'type': 'hyperband', ...}.")
    if not stops.get("min_iter") and not (stops.get("max_iter") and stops.get("s")):
        raise UsageError("sweep: early_terminate needs min_iter, or max_iter and s.")


def _grid_values(kind: str, parameter: Mapping[str, Any]) -> list[Any] | None:
    """Return the values of a parameter in a grid; None if it has no list of them."""
    if kind == "constant":
        return [parameter["value"]]
    if kind.startswith("categorical"):
        return list(parameter["values"])
    if kind == "int_uniform":
        return list(range(parameter["min"], parameter["max"] + 1))
    if kind == "q_uniform":
        q = parameter.get("q", 1)
        count = int((parameter["max"] - parameter["min"]) / q + 1e-9) + 1
        return [_quantized(parameter["min"] + index * q, parameter) for index in range(count)]
    return None


def _quantized(value: float, parameter: Mapping[str, Any]) -> Any:
    q = parameter.get("q", 1)
    found = round(value / q) * q
    return int(found) if isinstance(q, int) else found


def suggested(trial: Any, name: str, parameter: Mapping[str, Any]) -> Any:
    """Return a value of a parameter that a trial of Optuna chooses."""
    kind = distribution_of(name, parameter)
    base = kind.removeprefix("q_")
    if kind == "constant":
        return parameter["value"]
    if kind == "categorical":
        # By position: Optuna only takes simple values.
        return parameter["values"][trial.suggest_categorical(name, list(range(len(parameter["values"]))))]
    if kind == "categorical_w_probabilities":
        weights = list(itertools.accumulate(parameter["probabilities"]))
        at = trial.suggest_float(name, 0.0, weights[-1])
        return parameter["values"][next(index for index, limit in enumerate(weights) if at <= limit)]
    if kind == "int_uniform":
        return trial.suggest_int(name, parameter["min"], parameter["max"])
    if base in ("log_uniform_values", "inv_log_uniform_values"):
        value = trial.suggest_float(name, parameter["min"], parameter["max"], log=parameter["min"] < parameter["max"])
    elif base in _RANGES:
        value = trial.suggest_float(name, parameter["min"], parameter["max"])
        value = math.exp(value) if base == "log_uniform" else math.exp(-value) if base == "inv_log_uniform" else value
    else:
        value = _inverse(base, parameter, trial.suggest_float(name, _EDGE, 1 - _EDGE))
    return _quantized(value, parameter) if kind.startswith("q_") else value


def _inverse(kind: str, parameter: Mapping[str, Any], share: float) -> float:
    """Return the value of a distribution without bounds for a draw between 0 and 1."""
    if kind == "beta":
        # Python has no inverse for it. The draw seeds a random generator instead, which is as good for a random search.
        return random.Random(share).betavariate(parameter["a"], parameter["b"])  # noqa: S311 - not for secrets
    value = NormalDist(parameter.get("mu", 0.0), parameter.get("sigma", 1.0)).inv_cdf(share)
    return math.exp(value) if kind == "log_normal" else value


def _set_path(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


class StoredSweep:
    """A sweep on disk.

    Args:
        folder: Its folder.

    Attributes:
        config: Its configuration.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.id = folder, folder.name
        try:
            document = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            self.config = checked_config(document["config"])
            self.state = str(document.get("state", "RUNNING"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CommError(f"Could not find sweep {folder.name!r} in {folder.parent}: {error}") from error
        self._parameters = list(flattened(self.config["parameters"]))

    @classmethod
    def create(cls, home: Path, config: Mapping[str, Any], sweep_id: str | None = None) -> "StoredSweep":
        """Create a sweep in a project's folder."""
        checked = checked_config(config)
        folder = home / FOLDER / (sweep_id or generate_id())
        folder.mkdir(parents=True)
        write_atomically(folder / CONFIG, json.dumps({"config": checked, "state": "RUNNING"}, indent=1).encode())
        return cls(folder)

    @property
    def metric(self) -> str | None:
        """The name of its metric."""
        return self.config["metric"]["name"] if self.config.get("metric") else None

    @property
    def is_maximized(self) -> bool:
        """Whether larger values are better."""
        return bool(self.config.get("metric")) and self.config["metric"]["goal"] == "maximize"

    @property
    def grid(self) -> list[tuple[Any, ...]] | None:
        """All combinations, in order; None if the method is not ``grid``."""
        if self.config["method"] != "grid":
            return None
        values = [_grid_values(distribution_of(path[-1], each), each) or [] for path, each in self._parameters]
        return list(itertools.product(*values))

    @property
    def expected_run_count(self) -> int | None:
        """How many runs it has at most; None if there is no end."""
        limits = [limit for limit in (self.config.get("run_cap"), self.grid and len(self.grid)) if limit]
        return min(limits) if limits else None

    def set_state(self, state: str) -> None:
        """Record that it is finished, or stopped."""
        self.state = state
        write_atomically(self.folder / CONFIG, json.dumps({"config": self.config, "state": state}, indent=1).encode())

    def is_over(self) -> bool:
        """Return whether no further run will start."""
        with contextlib.suppress(OSError, ValueError):
            self.state = str(json.loads((self.folder / CONFIG).read_text(encoding="utf-8"))["state"])
        return self.state in ("FINISHED", "STOPPED", "CANCELED")

    def study(self) -> Any:
        """Return its study of Optuna, which other processes may use as well.

        Raises:
            MissingExtraError: Optuna is not installed.
        """
        from hookline.experiment.search import import_optuna, open_study  # imported here: most scripts have no sweep

        optuna = import_optuna("wandb.sweep")
        if self.config["method"] == "bayes":
            sampler: Any = optuna.samplers.TPESampler(constant_liar=True)
        else:
            sampler = optuna.samplers.RandomSampler()
        return open_study(
            self.folder / JOURNAL,
            self.id,
            wanted_by="wandb.sweep",
            directions=["maximize" if self.is_maximized else "minimize"],
            sampler=sampler,
            pruner=self._pruner(optuna),
        )

    def _pruner(self, optuna: Any) -> Any:
        stops = self.config.get("early_terminate")
        if stops is None:
            return optuna.pruners.NopPruner()
        eta = int(stops.get("eta", 3))
        first = stops.get("min_iter") or max(1, int(stops["max_iter"] / eta ** int(stops["s"])))
        return optuna.pruners.SuccessiveHalvingPruner(
            min_resource=int(first), reduction_factor=eta, min_early_stopping_rate=0
        )

    def ask(self, study: Any) -> tuple[Any, dict[str, Any]] | None:
        """Return a trial and its settings; None if there are no more."""
        if self.is_over():
            return None
        trial = study.ask()
        limit = self.expected_run_count
        if limit is not None and trial.number >= limit:
            study.tell(trial, state=_states().FAIL)
            return None
        settings: dict[str, Any] = {}
        grid = self.grid
        if grid is not None:
            for (path, _), value in zip(self._parameters, grid[trial.number], strict=True):
                _set_path(settings, path, value)
        else:
            for path, parameter in self._parameters:
                _set_path(settings, path, suggested(trial, ".".join(path), parameter))
        return trial, settings

    def tell(self, study: Any, trial: Any, value: float | None, *, is_pruned: bool = False) -> None:
        """Report the result of a trial; None if there is none."""
        states = _states()
        if is_pruned:
            study.tell(trial, state=states.PRUNED)
        elif value is None or not math.isfinite(value):
            # A sweep without a metric has no results to compare, but its runs are complete.
            is_complete = self.metric is None
            study.tell(trial, 0.0 if is_complete else None, state=states.COMPLETE if is_complete else states.FAIL)
        else:
            study.tell(trial, value)
            target = self.config["metric"].get("target")
            if target is not None and (value >= target if self.is_maximized else value <= target):
                self.set_state("FINISHED")

    def result_in(self, summary: Mapping[str, Any]) -> float | None:
        """Return the value of its metric in a summary; None if there is none."""
        name = self.metric
        found: Any = summary.get(name) if name is not None else None
        if found is None and name is not None and "." in name:
            outer, _, inner = name.rpartition(".")
            nested = summary.get(outer)
            found = nested.get(inner) if isinstance(nested, Mapping) else None
        if isinstance(found, Mapping):
            kinds = ("best", "max", "last") if self.is_maximized else ("best", "min", "last")
            found = next((found[kind] for kind in kinds if kind in found), None)
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _states() -> Any:
    from optuna.trial import TrialState

    return TrialState


def load_sweep(home: Path, sweep_id: str) -> StoredSweep:
    """Return a sweep of a project.

    Raises:
        CommError: There is none.
    """
    name = sweep_id.strip("/").rpartition("/")[2]
    if not name or name[0] == "." or not (home / FOLDER / name / CONFIG).is_file():
        known = sweep_ids(home)
        raise CommError(f"Could not find sweep {sweep_id!r} in {home}. {closest(name, known)}")
    return StoredSweep(home / FOLDER / name)


def sweep_ids(home: Path) -> list[str]:
    """Return the ids of a project's sweeps."""
    return sorted(path.parent.name for path in (home / FOLDER).glob(f"*/{CONFIG}"))
