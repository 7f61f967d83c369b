"""Search: an experiment that chooses its arms with Optuna. `Optuna` has the options, `Search` runs it.

- A trial is an arm, ``<arm>-t<number>``, with the settings that Optuna chose. It is trained like any other arm.
- The study is a journal in the experiment's directory. Only the experiment's process asks for trials and reports their
  results; runs report their evaluations to the same journal from their own processes.
- A trial's result is reported after its runs' results were written. An experiment that was killed in between reports
  it when it is started again; a trial without a result is trained again with the same settings, from its last
  checkpoint. So no trial is lost, and none counts twice.
- A sampler that is given by name draws the settings of a trial from the seed, the trial's number and the results so
  far. A search that was interrupted continues as it would have without the interruption, if it runs one trial at a
  time.
"""

import contextlib
import functools
import hashlib
import inspect
import logging
import math
import os
import random
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hookline._engine.checks import require_integer
from hookline._engine.errors import ConfigError, MissingExtraError, OptionError, closest
from hookline._engine.metrics import find_metric, plain
from hookline._engine.moments import Callback
from hookline._engine.state import RunResult
from hookline._record import files
from hookline._record.settings import describe
from hookline.callbacks.monitoring import direction, require_metric_name
from hookline.experiment.arms import Arm, PlannedRun, Stage, planned_runs
from hookline.experiment.job import PRUNED
from hookline.experiment.results.statistics import value
from hookline.experiment.results.trials import SearchResult, Trial
from hookline.experiment.subscribers import RunSubscribers

logger = logging.getLogger("hookline")

JOURNAL = "search.jsonl"
"""Optuna's journal, in the experiment's directory."""
SAMPLERS = ("tpe", "random")
PRUNERS = ("median", "successive_halving", "hyperband", "none")
_STUDY = "search"
_SIMPLE = (bool, int, float, str)
"""The types of choices that Optuna stores directly; others are stored by their position."""
_RANGE_KEYS = ("low", "high", "log", "step")


def import_optuna(wanted_by: str) -> Any:
    """Import Optuna, without its messages about every trial.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import optuna
        import optuna.storages.journal
    except ModuleNotFoundError as error:
        raise MissingExtraError(wanted_by, "search") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class JournalLock:
    """Optuna's lock of a journal, held by the operating system.

    Optuna's own locks are files, which a killed process leaves behind: the next one waits half a minute for them.

    Args:
        path: The journal.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_suffix(".lock")
        self._held: contextlib.ExitStack | None = None

    def acquire(self) -> bool:
        """Wait for the lock."""
        with contextlib.ExitStack() as stack:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            stack.callback(os.close, descriptor)
            stack.enter_context(files.exclusive(descriptor))
            self._held = stack.pop_all()  # set while the lock is held, so threads do not take each other's
        return True

    def release(self) -> None:
        """Release the lock."""
        held, self._held = self._held, None
        if held is not None:
            held.close()


_PICKLED = re.compile(r"\w*cma\w*:.*optimizer")
"""The system attributes of trials that Optuna's CMA-ES samplers unpickle."""


@functools.cache
def _journal_class() -> Any:
    """Optuna's journal file, without the pickles that others have written to it.

    `optuna.samplers.CmaEsSampler` keeps its state as a pickle in the journal, and unpickling can execute any code. The
    directory of an experiment may be shared or copied, so only attributes that this object appended are returned.
    After a restart the sampler finds none, and starts with a new state.
    """
    from optuna.storages.journal import JournalFileBackend  # here: Optuna is optional

    class Journal(JournalFileBackend):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._own: set[bytes] = set()

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            for log in logs:
                self._own.update(
                    _digest(each) for each in log.get("system_attr", {}).items() if _PICKLED.match(each[0])
                )
            super().append_logs(logs)

        def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
            for log in super().read_logs(log_number_from):
                if not isinstance(log, dict):
                    raise ValueError(f"{str(log)!r:.80} is not an entry of a journal")  # noqa: TRY004 - it is damaged
                for field in ("system_attr", "system_attrs"):
                    if isinstance(given := log.get(field), dict):
                        log[field] = dict(self._readable(*each) for each in given.items())
                yield log

        def _readable(self, key: str, value: Any) -> tuple[str, Any]:
            # Renamed, not removed: each entry has to have its attribute.
            is_foreign = _PICKLED.match(key) is not None and _digest((key, value)) not in self._own
            return (f"ignored:{key}", None) if is_foreign else (key, value)

    return Journal


def _digest(attribute: tuple[str, Any]) -> bytes:
    return hashlib.blake2b(repr(attribute).encode(), digest_size=16).digest()


def open_study(path: Path, name: str, *, wanted_by: str, directions: Sequence[str], **parts: Any) -> Any:
    """Open or create a study in a journal file, which several processes may use at once.

    Args:
        path: The journal file.
        name: The name of the study.
        wanted_by: What needs Optuna, for the error if it is not installed.
        directions: ``minimize`` or ``maximize``, for each value of a trial.
        parts: A sampler and a pruner of Optuna.
    """
    optuna = import_optuna(wanted_by)
    backend = _journal_class()(str(path), lock_obj=JournalLock(path))
    return optuna.create_study(
        study_name=name,
        storage=optuna.storages.JournalStorage(backend),
        directions=list(directions),
        load_if_exists=True,
        **parts,
    )


class Optuna:
    """A search for settings with [Optuna](https://optuna.org).

    >>> parameters = {"lr": {"low": 1e-4, "high": 1e-1, "log": True}, "layers": [2, 4]}
    >>> Optuna(parameters, metric="val/loss", trials=20)
    Optuna(lr, layers, trials=20)

    Args:
        parameters: The settings to choose, by their dotted paths. A range is ``{"low": 1, "high": 8}``, of whole
            numbers if both ends are integers, with ``"log": True`` on a logarithmic scale, or with a ``"step"``. A
            list has the values to choose from. A distribution of Optuna is used as given.
        metric: The metric to optimize, a list of several, or by default the experiment's ``metric``. The last value of
            the run counts, and the mean over an arm's repeats.
        mode: Whether smaller (``"min"``) or larger (``"max"``) values are better, if the metric's name does not tell;
            a list for several metrics.
        trials: How many trials, those of earlier starts included.
        sampler: ``"tpe"``, ``"random"``, or a sampler of Optuna.
        pruner: What ends hopeless trials early, by their evaluations: ``"median"``, ``"successive_halving"``,
            ``"hyperband"``, a pruner of Optuna, or ``"none"``.
        seed: The seed of a sampler that is given by name.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        *,
        trials: int,
        metric: str | Sequence[str] | None = None,
        mode: str | Sequence[str] | None = None,
        sampler: Any = "tpe",
        pruner: Any = "median",
        seed: int = 0,
    ) -> None:
        optuna = import_optuna("Optuna(...)")
        if not isinstance(parameters, Mapping) or not parameters:
            raise OptionError(
                f"Optuna(parameters={parameters!r:.120}): give the settings to choose, e.g. "
                "{'lr': {'low': 1e-4, 'high': 1e-1, 'log': True}, 'layers': [2, 4]}."
            )
        self.distributions: dict[str, Any] = {}
        self._choices: dict[str, list[Any]] = {}
        for name, given in parameters.items():
            self._add_parameter(optuna, name, given)
        self.trials, self.seed = require_integer("trials", trials), require_integer("seed", seed, minimum=0)
        self.metrics = None if metric is None else _listed("metric", metric)
        for each in self.metrics or ():
            require_metric_name("metric", each)
        self.modes = None if mode is None else _listed("mode", mode)
        for each in self.modes or ():
            if each not in ("min", "max"):
                raise OptionError(f"mode={mode!r}: give 'min' or 'max'.")
        self.sampler = _checked_part("sampler", sampler, SAMPLERS, optuna.samplers.BaseSampler)
        self.pruner = _checked_part("pruner", pruner, PRUNERS, optuna.pruners.BasePruner)

    def __repr__(self) -> str:
        return f"Optuna({', '.join(self.distributions)}, trials={self.trials})"

    def _add_parameter(self, optuna: Any, name: Any, given: Any) -> None:
        what = f"Optuna: the parameter {name!r}={given!r:.120}"
        if not isinstance(name, str) or not name:
            raise OptionError(f"{what}: give the name of a setting.")
        if isinstance(given, optuna.distributions.BaseDistribution):
            self.distributions[name] = given
        elif isinstance(given, Mapping):
            try:
                self.distributions[name] = _range(optuna, given)
            except (ValueError, TypeError) as error:
                raise OptionError(f"{what}: {error}{'' if str(error).endswith(('.', '?')) else '.'}") from error
        elif isinstance(given, Sequence) and not isinstance(given, str) and given:
            choices = list(given)
            if not all(each is None or isinstance(each, _SIMPLE) for each in choices):
                self._choices[name], choices = choices, list(range(len(choices)))
            self.distributions[name] = optuna.distributions.CategoricalDistribution(choices)
        else:
            raise OptionError(
                f"{what}: give {{'low': ..., 'high': ...}}, a list of values, or a distribution of Optuna."
            )

    def value(self, name: str, stored: Any) -> Any:
        """The value of a parameter that Optuna stores."""
        return self._choices[name][stored] if name in self._choices else stored

    def corners(self) -> list[dict[str, Any]]:
        """Settings at the ends of all ranges, and with each choice: a configuration should accept all of them."""
        ends = {
            name: list(each.choices) if hasattr(each, "choices") else [each.low, each.high]
            for name, each in self.distributions.items()
        }
        most = max(map(len, ends.values()))
        return [
            {name: self.value(name, own[min(index, len(own) - 1)]) for name, own in ends.items()}
            for index in range(most)
        ]

    def make_sampler(self, optuna: Any, number: int) -> Any:
        """The sampler for a trial."""
        if self.sampler not in SAMPLERS:
            return self.sampler
        seed = random.Random(f"{self.seed}/{number}").getrandbits(32)  # noqa: S311 - not for secrets
        if self.sampler == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)

    @property
    def prunes(self) -> bool:
        """Whether trials may be pruned."""
        return self.pruner != "none" and type(self.pruner).__name__ != "NopPruner"


def _make_pruner(optuna: Any, given: Any) -> Any:
    kinds = {
        "median": optuna.pruners.MedianPruner,
        "successive_halving": optuna.pruners.SuccessiveHalvingPruner,
        "hyperband": optuna.pruners.HyperbandPruner,
    }
    return kinds[given]() if isinstance(given, str) else given


def _suggest(trial: Any, name: str, distribution: Any) -> None:
    """Let a trial choose a parameter; one that it has already keeps its value."""
    if hasattr(distribution, "choices"):
        trial.suggest_categorical(name, distribution.choices)
        return
    is_whole = type(distribution).__name__ == "IntDistribution"
    suggest = trial.suggest_int if is_whole else trial.suggest_float
    suggest(name, distribution.low, distribution.high, log=distribution.log, step=distribution.step)


def _listed(option: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Sequence) or not given:
        raise OptionError(f"{option}={given!r:.120}: give one, or a list with at least one.")
    return tuple(given)


def _checked_part(option: str, given: Any, names: Sequence[str], kind: type) -> Any:
    if given is None and "none" in names:
        return "none"
    if isinstance(given, kind) or given in names:
        return given
    known = closest(given, names) if isinstance(given, str) else f"Give one of {', '.join(names)}, or Optuna's."
    raise OptionError(f"{option}={given!r:.120}: there is no such {option}. {known}")


def _range(optuna: Any, given: Mapping[str, Any]) -> Any:
    for key in given:
        if key not in _RANGE_KEYS:
            raise ValueError(f"a range has no {key!r}. {closest(str(key), _RANGE_KEYS)}")
    low, high, log, step = (given.get(key) for key in _RANGE_KEYS)
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end):
            raise ValueError("a range needs the numbers 'low' and 'high'")
    if low >= high:  # type: ignore[operator]
        raise ValueError("'low' has to be below 'high'")
    if isinstance(low, int) and isinstance(high, int):
        return optuna.distributions.IntDistribution(low, high, log=bool(log), step=1 if step is None else step)
    return optuna.distributions.FloatDistribution(low, high, log=bool(log), step=step)


def checked_search(given: Any) -> Optuna | None:
    """The search of an experiment, which a file gives as a mapping of the arguments of `Optuna`."""
    if given is None or isinstance(given, Optuna):
        return given
    if isinstance(given, Mapping):
        known = list(inspect.signature(Optuna).parameters)
        for name in given:
            if name not in known:
                raise OptionError(f"search={dict(given)!r:.120}: it has no {name!r}. {closest(str(name), known)}")
        for name in ("parameters", "trials"):
            if name not in given:
                raise OptionError(f"search={dict(given)!r:.120}: {name!r} is missing.")
        return Optuna(**given)
    raise OptionError(f"search={given!r:.120}: give hl.Optuna(...).")


class Search:
    """The trials of an experiment.

    Args:
        options: What to search for, and how.
        arms: The experiment's arms: one, whose settings are chosen.
        metric: The experiment's metric.
        mode: Its mode.
        directory: The experiment's directory.

    Raises:
        OptionError: The arm has no such settings, or the options do not fit together.
    """

    def __init__(
        self,
        options: Optuna,
        arms: Sequence[Arm],
        *,
        metric: str | None,
        mode: str | None,
        repeats: int,
        stages: Sequence[Stage],
        directory: Path,
    ) -> None:
        if len(arms) != 1:
            raise OptionError(
                f"search={options!r}: {len(arms)} arms were given. Give one arm, whose settings are searched; a "
                "list of values chooses between alternatives."
            )
        self.options, self._arm, self._repeats, self._stages = options, arms[0], repeats, stages
        self._path = directory / JOURNAL
        self.metrics, self.modes = _goals(options, metric, mode)
        if options.prunes and (repeats > 1 or stages or len(self.metrics) > 1):
            what = "repeats" if repeats > 1 else "stages" if stages else "several metrics"
            raise OptionError(f"pruner={options.pruner!r:.80}: trials with {what} are not pruned. Give pruner='none'.")
        for name in options.distributions:
            _check_setting(self._arm, name)
        for corner in options.corners():
            self._trial_arm(0, corner).required_recipe()
        self._study: Any = None
        self._trials: dict[str, int] = {}
        self._is_exhausted = False

    def describe(self) -> dict[str, Any]:
        """What must stay the same for the trials of one study."""
        parameters = {name: describe(repr(each)) for name, each in self.options.distributions.items()}
        return {"parameters": parameters, "metrics": list(self.metrics), "modes": list(self.modes)}

    def open(self) -> list[PlannedRun]:
        """Open the study, and plan the runs of the trials that have begun.

        Raises:
            ConfigError: The study cannot be read.
        """
        optuna = import_optuna("A search")
        try:
            _remove_torn_line(self._path)
            directions = [f"{mode}imize" for mode in self.modes]
            self._study = open_study(self._path, _STUDY, wanted_by="A search", directions=directions)
            # Trials that were enqueued with Optuna wait until they are asked for.
            numbers = [trial.number for trial in self._stored() if trial.state.name != "WAITING"]
            begun = [self._planned(optuna, number) for number in numbers]
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"{self._path} cannot be read: {error}. Give another output_dir, or remove the experiment's directory "
                "to begin again."
            ) from error
        return [planned for runs in begun for planned in runs]

    @property
    def has_more(self) -> bool:
        """Whether more trials can begin."""
        return len(self._trials) < self.options.trials and not self._is_exhausted

    def next(self) -> list[PlannedRun]:
        """Begin a trial, and plan its runs; empty if all have begun."""
        if not self.has_more:
            return []
        optuna = import_optuna("A search")
        number = len(self._trials)
        self._study.sampler = self.options.make_sampler(optuna, number)
        trial = self._study.ask()
        return self._planned(optuna, trial.number, trial)

    def _planned(self, optuna: Any, number: int, trial: Any = None) -> list[PlannedRun]:
        stored = self._stored()[number]
        if trial is None and not stored.state.is_finished():
            # A process may be killed while it draws the settings: the others are drawn now.
            self._study.sampler = self.options.make_sampler(optuna, number)
            trial = optuna.trial.Trial(self._study, stored._trial_id)
        if trial is not None:
            for name, distribution in self.options.distributions.items():
                _suggest(trial, name, distribution)
            stored = self._stored()[number]
        arm = self._trial_arm(number, self._parameters(stored))
        self._trials[arm.name] = number
        return planned_runs([arm], self._repeats, self._stages)

    def _stored(self) -> list[Any]:
        """The trials of the study. They are not copied: a long search reads them once for each run."""
        trials: list[Any] = self._study.get_trials(deepcopy=False)
        return trials

    def _parameters(self, stored: Any) -> dict[str, Any]:
        own = {name: stored.params[name] for name in self.options.distributions if name in stored.params}
        return {name: self.options.value(name, given) for name, given in own.items()}

    def _trial_arm(self, number: int, parameters: Mapping[str, Any]) -> Arm:
        return self._arm.changed(f"{self._arm.name}-t{number}", parameters)

    def facts(self, arm: str) -> dict[str, Any]:
        """The facts of a trial that its runs record."""
        number = self._trials[arm]
        parameters = self._parameters(self._stored()[number])
        return {"trial": number, "parameters": describe(parameters)}

    def is_finished(self, arm: str) -> bool:
        """Whether a trial has its result in the study."""
        return bool(self._stored()[self._trials[arm]].state.is_finished())

    def subscribers(self, planned: PlannedRun, given: RunSubscribers) -> RunSubscribers:
        """The subscribers of a trial's run, with the one that prunes it."""
        if not self.options.prunes:
            return given
        pruning = Pruning(self._path, self._trials[planned.arm], self.metrics[0], self.modes[0], self.options.pruner)
        return replace(given, instances=[*given.instances, pruning])

    def report(self, arm: str, runs: Sequence[RunResult]) -> None:
        """Report the result of a trial, whose runs have all ended. One that a signal stopped is resumed later."""
        if any(run.status in ("stopped", "waiting") for run in runs) or self.is_finished(arm):
            return
        states = import_optuna("A search").trial.TrialState
        number = self._trials[arm]
        if any(run.status == "pruned" for run in runs):
            self._tell(number, state=states.PRUNED)
            return
        values = [self._value(name, runs) for name in self.metrics]
        missing = [name for name, found in zip(self.metrics, values, strict=True) if found is None]
        if missing:
            if all(run.is_trained for run in runs):
                known = {name: None for run in runs for name in run.metrics}
                hint = closest(missing[0], known)
                logger.error("The trial %s has no finite %r and failed. %s", arm, missing[0], hint)
            self._tell(number, state=states.FAIL)
            return
        self._tell(number, values)

    def _tell(self, number: int, *result: Any, **options: Any) -> None:
        try:
            self._study.tell(number, *result, **options)
        except RuntimeError:
            # A grid that is exhausted stops the loop of Optuna, which does not exist here, after it stored the result.
            if not self._stored()[number].state.is_finished():
                raise
            self._is_exhausted = True

    def _value(self, name: str, runs: Sequence[RunResult]) -> float | None:
        """The mean of a metric over the repeats; None if a run has none, or none that is finite."""
        last = self._stages[-1].name if self._stages else None
        own = [value(run, name) if run.is_trained else None for run in runs if run.stage == last]
        known = [each for each in own if each is not None and math.isfinite(each)]
        return math.fsum(known) / len(known) if own and len(known) == len(own) else None

    def arms(self) -> list[Arm]:
        """The arms of the trials that have begun."""
        stored = self._stored()
        return [self._trial_arm(number, self._parameters(stored[number])) for number in self._trials.values()]

    def result(self) -> SearchResult:
        """The trials and their results."""
        begun = [each for each in self._stored() if each.state.name != "WAITING"]
        return SearchResult(self.metrics, self.modes, tuple(map(self._trial, begun)))

    def _trial(self, stored: Any) -> Trial:
        states = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
        state = states.get(stored.state.name, "running")
        return Trial(
            stored.number,
            f"{self._arm.name}-t{stored.number}",
            self._parameters(stored),
            state,
            tuple(stored.values or ()) if state == "complete" else (),
            dict(stored.intermediate_values),
        )


def _check_setting(arm: Arm, path: str) -> None:
    """Check that a mapping of settings has one, because any name can be set in a mapping."""
    inside = arm.required_recipe().config
    for part in path.split("."):
        if not isinstance(inside, Mapping) or not inside:
            return
        if part not in inside:
            raise OptionError(f"Optuna: the arm {arm.name!r} has no setting {path!r}. {closest(part, inside)}")
        inside = inside[part]


def _goals(options: Optuna, metric: str | None, mode: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The metrics of a search and their modes."""
    metrics = options.metrics or (() if metric is None else (metric,))
    if not metrics:
        raise OptionError("search: give the metric to optimize, e.g. hl.Optuna(..., metric='val/loss').")
    modes: Sequence[Any] = options.modes or [mode if each == metric else None for each in metrics]
    if len(modes) != len(metrics):
        raise OptionError(f"search: metric={list(metrics)!r}, mode={list(modes)!r}: give one mode for each metric.")
    return tuple(metrics), tuple(direction(each, own) for each, own in zip(metrics, modes, strict=True))


def _remove_torn_line(path: Path) -> None:
    """Remove a last line torn by a full disk or a power cut, which would make later lines unreadable."""
    if not path.exists():
        return
    lock = JournalLock(path)
    lock.acquire()  # another process may be writing a line
    try:
        # The directory may be shared: never truncate the target of a link.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), "rb+") as file:
            content = file.read()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                file.truncate(whole)
                os.fsync(file.fileno())
    finally:
        lock.release()


class Pruning(Callback):
    """Reports a run's evaluations to its trial, and stops the run when the pruner decides so.

    Args:
        path: The journal of the study.
        number: The trial's number.
        pruner: The name of a pruner, or one of Optuna.
    """

    name = "search_pruning"

    def __init__(self, path: Path, number: int, metric: str, mode: str, pruner: Any) -> None:
        self._path, self._number, self._metric, self._mode, self._pruner = path, number, metric, mode, pruner
        self._trial: Any = None

    def on_eval(self, loop: Any, step_idx: int, eval_name: str, metrics: dict[str, Any]) -> None:
        """Report the metric, if the evaluation has it."""
        found = plain(find_metric(metrics, self._metric))
        if isinstance(found, bool) or not isinstance(found, int | float):
            return
        trial, step = self._live_trial(), step_idx + 1
        reported = trial.study.get_trials(deepcopy=False)[self._number].intermediate_values
        if step not in reported:  # a run that was killed repeats evaluations
            trial.report(float(found), step)
        if step >= max(reported, default=step) and trial.should_prune():
            loop.request_stop(f"{PRUNED}: {self._metric} was {found:.6g} after step {step}")

    def _live_trial(self) -> Any:
        if self._trial is None:
            optuna = import_optuna("A search")
            study = open_study(
                self._path,
                _STUDY,
                wanted_by="A search",
                directions=[f"{self._mode}imize"],
                sampler=optuna.samplers.RandomSampler(),
                pruner=_make_pruner(optuna, self._pruner),
            )
            self._trial = optuna.trial.Trial(study, study.get_trials(deepcopy=False)[self._number]._trial_id)
        return self._trial
