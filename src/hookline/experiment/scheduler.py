"""`Conductor`: brings an experiment's runs through, and tells its subscribers of them.

It fires, in this process and for whatever executor: `on_experiment_start`, for each group `on_group_start` before its
first run and `on_group_end` after its last, for each run `on_run_start`, the `on_benchmark_eval` of its benchmarks and
`on_run_end`, and `on_experiment_end`. A run that is complete from an earlier start is neither made nor told again.
"""

import logging
import traceback
from collections import ChainMap, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hookline._engine.errors import OptionError, closest
from hookline._engine.state import ArmResult, LogContext, RunResult
from hookline._record import run_directory
from hookline.experiment.directory import ExperimentStore, keep_run_ids, run_ids
from hookline.experiment.executors import Executor, InlineExecutor
from hookline.experiment.job import NEVER_BEGUN, Assignment, Message, Outcome, Scored, lost_outcome
from hookline.experiment.plan import PlannedRun
from hookline.experiment.results.tables import error_line
from hookline.experiment.subscribers import Subscribers
from hookline.loops.signals import StopSignals

logger = logging.getLogger("hookline")

NOT_WELL = {"failed": "failed", "incomplete": "is incomplete"}
"""The statuses of runs that are tried again, with what is said of them."""
Watch = Callable[[str, Any], None]
"""Told what happens to runs: ``started``, ``heard`` or ``ended``, with the run, the message or the result."""


@dataclass(slots=True)
class _Run:
    """A run under way."""

    planned: PlannedRun
    ctx: LogContext
    attempt: int
    failure: str | None = None


@dataclass(frozen=True)
class Work:
    """What is to be done, and how.

    Attributes:
        retries: How often a run that fails is tried again.
    """

    name: str
    runs: Sequence[PlannedRun]
    store: ExperimentStore
    subscribers: Subscribers
    executor: Executor
    config: Any = None
    benchmarks: list[Any] = field(default_factory=list)
    sinks: list[Any] = field(default_factory=list)
    retries: int = 0
    strict: bool = False


class Scheduler:
    """Brings runs through.

    Args:
        watch: Told what happens, for a display. One that raises is told no more, and the experiment goes on.
    """

    def __init__(self, work: Work, watch: Watch) -> None:
        self._work = work
        self._watch: Watch | None = watch
        self._ctx = LogContext(output_dir=work.store.directory, config=work.config, store=work.store)
        self._ctx.ids = {"experiment_id": work.store.id, **work.store.ids}
        self.results: dict[str, RunResult] = {}
        self._waiting = deque(work.runs)
        self._running: dict[str, _Run] = {}
        self._attempts: dict[str, int] = {}
        self._told: dict[str, LogContext] = {}
        self._open_groups: set[str] = set()
        self._of_arm = _by_arm(work.runs)
        self._positions = {arm: position for position, arm in enumerate(self._of_arm)}
        self._unfinished = {arm: len(runs) for arm, runs in self._of_arm.items()}
        self.stop_reason: str | None = None
        self._signals = StopSignals(self._request_stop)

    def run(self) -> None:
        """Make every run that is not complete, unless a signal asks to stop."""
        self._skip_complete()
        self._ctx.extras["resumed"] = any(self._has_begun(planned) for planned in self._work.runs)
        self._signals.install()
        try:
            self._work.executor.open()
            self._work.subscribers.experiment("on_experiment_start", self._ctx)
            self._keep_ids()
            while self._waiting or self._running:
                self._start_what_can()
                for outcome in self._work.executor.wait(self._hear):
                    self._end(outcome)
                if self.stop_reason is not None and not self._running:
                    break
        finally:
            self._work.executor.close()
            self._signals.restore()

    def finish(self, result: Any) -> None:
        """Say that the experiment is over."""
        self._ctx.status = result.status
        self._work.subscribers.experiment("on_experiment_end", self._ctx, result)

    def _request_stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason
        self._work.executor.stop(reason)

    def _skip_complete(self) -> None:
        for planned in self._work.runs:
            found = self._work.store.result(planned.key)
            if found is not None and found.status == "completed":
                self._settle(planned, found)
            elif found is not None:
                self._attempts[planned.key] = found.attempts - 1 if found.status == "stopped" else 0  # it goes on
        self._waiting = deque(planned for planned in self._waiting if planned.key not in self.results)

    def _has_begun(self, planned: PlannedRun) -> bool:
        """Whether a run was begun before, in an earlier start of the experiment or in an earlier attempt."""
        return (self._work.store.run_directory(planned.key) / run_directory.METADATA).is_file()

    def _settle(self, planned: PlannedRun, result: RunResult) -> None:
        self.results[planned.key] = result
        self._unfinished[planned.arm] -= 1

    def _start_what_can(self) -> None:
        """Start runs in their order, as far as what they go on from is complete and there is room."""
        too_early: list[PlannedRun] = []
        while self._waiting and self.stop_reason is None and self._work.executor.has_room:
            planned = self._waiting.popleft()
            before = None if planned.after is None else self.results.get(planned.after)
            if planned.after is not None and before is None:
                too_early.append(planned)
            elif before is not None and not before.is_trained:
                self._skip(planned, before)
            else:
                self._start(planned)
        self._waiting.extendleft(reversed(too_early))

    def _skip(self, planned: PlannedRun, before: RunResult) -> None:
        why = f"{before.run_key}, which it starts from, {before.status}."
        facts: dict[str, Any] = {"repeat": planned.repeat, "stage": planned.stage, "seed": planned.seed}
        result = RunResult(planned.key, status="skipped", error=why, attempts=0, **facts)
        self._settle(planned, result)
        self._show("ended", result)
        self._close_group(planned.arm)

    def _start(self, planned: PlannedRun) -> None:
        self._open_group(planned.arm)
        directory = self._work.store.run_directory(planned.key)
        attempt = self._attempts[planned.key] = self._attempts.get(planned.key, 0) + 1
        ctx = self._told.get(planned.key) or self._run_context(planned, directory)
        ctx.extras |= {"attempt": attempt, "resumed": self._has_begun(planned)}
        # Those that an earlier start or an attempt that died has set; the experiment's own may have changed since.
        ctx.ids |= {name: id_ for name, id_ in run_ids(directory).items() if name not in self._ctx.ids}
        self._running[planned.key] = _Run(planned, ctx, attempt)
        self._show("started", planned)
        if planned.key not in self._told:  # once, however often it is tried
            self._told[planned.key] = ctx
            self._tell(self._running[planned.key], "on_run_start")
            keep_run_ids(directory, ctx.ids)
        assignment = self._assignment(planned, ctx, directory, attempt)
        if self.stop_reason is not None:  # somebody asked for it while subscribers were told
            self._end(lost_outcome(assignment, NEVER_BEGUN, status="stopped", began=False))
            return
        failure = self._running[planned.key].failure or self._started(assignment)
        if failure is not None:
            self._end(lost_outcome(assignment, failure, began=False))

    def _started(self, assignment: Assignment) -> str | None:
        """Start a run; why that is not possible, if it is not: somebody put into the context what cannot be sent."""
        try:
            self._work.executor.start(assignment)
        except (OptionError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def _tell(self, run: "_Run", moment: str, *arguments: Any, **named: Any) -> None:
        """Tell subscribers of a run's moment; what a critical one raises makes that run fail, and no other."""
        try:
            self._work.subscribers.run(moment, run.ctx, *arguments, **named)
        except Exception:
            if self._work.strict:
                raise
            run.failure = run.failure or traceback.format_exc()

    def _run_context(self, planned: PlannedRun, directory: Path) -> LogContext:
        about = {"arm": planned.arm, "repeat": planned.repeat, "stage": planned.stage, "seed": planned.seed}
        return replace(
            self._ctx,
            output_dir=directory,
            run_key=planned.key,
            run_config=planned.recipe.config,
            group_name=planned.arm,
            ids={**self._ids_of(planned.arm), "run_id": planned.key},
            extras={**self._ctx.extras, **about},
            status="running",
            error=None,
            metrics={},
        )

    def _ids_of(self, group: str) -> dict[str, Any]:
        """The ids that concern a group: not those of others, of which there may be many."""
        own = f"group:{group}"
        return {name: id_ for name, id_ in self._ctx.ids.items() if name == own or not name.startswith("group:")}

    def _assignment(self, planned: PlannedRun, ctx: LogContext, directory: Path, attempt: int) -> Assignment:
        work = self._work
        experiment: dict[str, Any] = {
            "name": work.name,
            "id": work.store.id,
            "group": planned.arm,
            "run_key": planned.key,
        }
        experiment |= {"group_id": ctx.ids[f"group:{planned.arm}"], "arm": planned.arm, "repeat": planned.repeat}
        experiment |= {"stage": planned.stage, "seed": planned.seed, "position": self._positions[planned.arm]}
        start = planned.start_from
        return Assignment(
            planned=planned,
            # its own, in whichever process it runs
            ctx=replace(ctx, ids=dict(ctx.ids), extras=dict(ctx.extras), metrics=dict(ctx.metrics)),
            directory=directory,
            subscribers=work.subscribers.of_runs(),
            benchmarks=work.benchmarks,
            sinks=work.sinks,
            facts={"experiment": experiment, "git": work.store.facts.get("git")},
            start_from=work.store.run_directory(start) if isinstance(start, str) else start,
            strict=work.strict,
            attempt=attempt,
            earlier=tuple(self.results[each.key] for each in self._of_arm[planned.arm] if each.key in self.results),
        )

    def _show(self, what: str, about: Any) -> None:
        """Tell whoever watches; nothing that it does concerns the runs."""
        try:
            if self._watch is not None:
                self._watch(what, about)
        except Exception:
            self._watch = None
            logger.exception("What watches the experiment failed, and is told no more. The experiment goes on.")

    def _hear(self, message: Message) -> None:
        run = self._running[message.key]
        self._show("heard", message)
        if isinstance(message, Scored):
            self._tell(run, "on_benchmark_eval", message.eval_result, message.predictions, step=message.step)

    def _end(self, outcome: Outcome) -> None:
        run, result = self._running.pop(outcome.key), outcome.result
        self.stop_reason = self.stop_reason or outcome.signal
        if run.failure is not None and result.is_trained:
            result = replace(result, status="failed", error=run.failure)
        if result.status in NOT_WELL and run.attempt <= self._work.retries and self.stop_reason is None:
            run.ctx.ids.update(outcome.ids)
            logger.warning(
                "%s %s and is tried again: %s", outcome.key, NOT_WELL[result.status], error_line(result.error)
            )
            self._waiting.appendleft(run.planned)
            self._show("ended", replace(result, status="retried"))
            return
        if result.status in NOT_WELL:
            logger.error("%s %s: %s", outcome.key, NOT_WELL[result.status], error_line(result.error))
        if result.status == "stopped":
            self.stop_reason = self.stop_reason or _reason_of(result)
        result = self._told_end(run, result, outcome)
        del self._told[outcome.key]
        self._settle(run.planned, result)
        self._keep(result)
        self._show("ended", result)
        self._close_group(run.planned.arm)

    def _told_end(self, run: _Run, result: RunResult, outcome: Outcome) -> RunResult:
        """Tell everybody how a run ended; one of them that is critical can still make it fail."""
        run.ctx.ids.update(run_ids(self._work.store.run_directory(outcome.key)) if outcome.died else outcome.ids)
        keep_run_ids(self._work.store.run_directory(run.planned.key), run.ctx.ids)
        run.ctx.status, run.ctx.error = result.status, error_line(result.error) or None
        run.failure = None
        arm = self._arm_result(run.planned, result)
        self._tell(run, "on_run_end", result, arm)
        if outcome.died:
            self._work.subscribers.run_died(run.ctx, result, arm)
        return result if run.failure is None else replace(result, status="failed", error=run.failure)

    def _keep(self, result: RunResult) -> None:
        """Write a result down; where that fails, the run is made again when the experiment is started again."""
        try:
            self._work.store.keep_result(result)
        except OSError as error:
            logger.error("The result of %s cannot be written: %s. The experiment goes on.", result.run_key, error)  # noqa: TRY400

    def _arm_result(self, planned: PlannedRun, result: RunResult) -> ArmResult:
        """The arm as far as it is: the runs of it that have ended, in their order."""
        known = ChainMap({planned.key: result}, self.results)
        runs = [known[each.key] for each in self._of_arm[planned.arm] if each.key in known]
        return ArmResult(planned.arm, planned.recipe.config, tuple(runs))

    def _open_group(self, name: str) -> None:
        if name in self._open_groups:
            return
        self._open_groups.add(name)
        self._ctx.ids.setdefault(f"group:{name}", f"{self._work.store.id}/{name}")
        self._work.subscribers.experiment("on_group_start", replace(self._ctx, group_name=name), name)
        self._keep_ids()

    def _close_group(self, name: str) -> None:
        if self._unfinished[name] == 0 and name in self._open_groups:
            self._work.subscribers.experiment("on_group_end", replace(self._ctx, group_name=name), name)

    def _keep_ids(self) -> None:
        """Write ids down; where that fails, they are written with the next ones."""
        try:
            self._work.store.keep_ids(self._ctx.ids)
        except OSError as error:
            logger.error("The ids of the experiment cannot be written: %s. The experiment goes on.", error)  # noqa: TRY400


def _reason_of(result: RunResult) -> str:
    reason = None if result.artifacts is None else result.artifacts.stop_reason
    return reason or "a signal"


def _by_arm(runs: Sequence[PlannedRun]) -> dict[str, list[PlannedRun]]:
    arms: dict[str, list[PlannedRun]] = {}
    for planned in runs:
        arms.setdefault(planned.arm, []).append(planned)
    return arms


def make_executor(given: Any) -> Executor:
    """The executor that is meant: ``"local"``, ``"ray"``, ``{"local": {"processes": 4}}``, or one.

    Raises:
        OptionError: There is no such executor, or it does not take such an option.
    """
    if isinstance(given, Executor):
        return given
    if isinstance(given, Mapping) and len(given) == 1:
        ((name, options),) = given.items()
    else:
        name, options = given, {}
    options_of = {"local": ("processes",), "ray": ("num_cpus", "num_gpus", "resources", "max_runs")}
    if not isinstance(name, str) or name not in options_of:
        known = closest(name, options_of) if isinstance(name, str) else "Give 'local' or 'ray'."
        raise OptionError(f"executor={given!r}: there is no such executor. {known}")
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"executor={given!r}: the options of {name!r} are a mapping.")
    for option in options or ():
        if option not in options_of[name]:
            raise OptionError(f"executor={given!r}: it has no {option!r}. {closest(str(option), options_of[name])}")
    return (_ray if name == "ray" else _local)(**(options or {}))


def _local(*, processes: int | None = None) -> Executor:
    if processes is None:
        return InlineExecutor()
    from hookline.experiment.process_executor import ProcessExecutor

    return ProcessExecutor(processes)


def _ray(**options: Any) -> Executor:
    from hookline.experiment.ray_executor import RayRuns

    return RayRuns(**options)
