"""`Scheduler`: executes an experiment's runs and fires the experiment's moments.

In this process, with any executor, it fires `on_experiment_start`; for each group `on_group_start` before its first run
and `on_group_end` after its last; for each run `on_run_start`, `on_benchmark_eval` for its benchmarks, and
`on_run_end`; and finally `on_experiment_end`. A run that completed in an earlier start is neither executed nor
announced again.
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
from hookline._record.terminal import plural
from hookline.experiment.arms import PlannedRun
from hookline.experiment.control import ExperimentControl, skip_reason
from hookline.experiment.directory import ExperimentStore, read_run_ids, write_run_ids
from hookline.experiment.executors import Executor, InlineExecutor, ProcessExecutor
from hookline.experiment.job import NOT_STARTED, Assignment, BenchmarkScored, Message, Outcome, lost_outcome
from hookline.experiment.results.tables import error_line
from hookline.experiment.search import Search
from hookline.experiment.subscribers import RunSubscribers, Subscribers
from hookline.loops.signals import StopSignals

logger = logging.getLogger("hookline")

RETRIED = {"failed": "failed", "incomplete": "is incomplete"}
"""The statuses of runs that are retried, with the verb for log messages."""
Watch = Callable[[str, Any], None]
"""Receives run events: ``started`` with the planned run, ``message`` with the message, ``ended`` with the result."""


@dataclass(frozen=True)
class Schedule:
    """The runs of an experiment, and everything that executing them takes.

    Attributes:
        retries: How many times a failed run is retried.
        more_repeats: Returns all runs for a number of repeats, for a command that adds some.
        search: Chooses further runs, while there is room for them.
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
    more_repeats: Callable[[int], list[PlannedRun]] = lambda count: []
    search: Search | None = None


@dataclass(slots=True)
class _ActiveRun:
    planned: PlannedRun
    ctx: LogContext
    attempt: int
    failure: str | None = None
    """The traceback of a critical subscriber, which fails the run."""


class Scheduler:
    """Executes the runs of a schedule.

    Args:
        watch: Receives run events, for a display. It is dropped when it raises; the experiment continues.
    """

    def __init__(self, schedule: Schedule, watch: Watch | None = None) -> None:
        self._schedule, self._watch = schedule, watch
        self._store, self._subscribers, self._executor = schedule.store, schedule.subscribers, schedule.executor
        self._search = schedule.search
        self._ctx = LogContext(output_dir=self._store.directory, config=schedule.config, store=self._store)
        self._ctx.ids = {"experiment_id": self._store.id, **self._store.ids}
        self.results: dict[str, RunResult] = {}
        self._waiting = deque(schedule.runs)
        self._active: dict[str, _ActiveRun] = {}
        self._attempts: dict[str, int] = {}
        self._contexts: dict[str, LogContext] = {}
        """Contexts of runs whose `on_run_start` was fired and whose `on_run_end` was not."""
        self._open_groups: set[str] = set()
        self._arm_runs: dict[str, list[PlannedRun]] = {}
        for planned in schedule.runs:
            self._arm_runs.setdefault(planned.arm, []).append(planned)
        self._positions = {arm: position for position, arm in enumerate(self._arm_runs)}
        self._unfinished = {arm: len(runs) for arm, runs in self._arm_runs.items()}
        self.stop_reason: str | None = None
        self._signals = StopSignals(self._request_stop)
        self._skipped: dict[str, str] = {}
        """Why the waiting runs of an arm are not executed."""
        repeats = 1 + max((planned.repeat for planned in schedule.runs), default=0)
        self._control = ExperimentControl(self._store.directory, self._arm_runs, repeats, self._running)

    def run(self) -> None:
        """Execute every run that is not complete, unless a signal asks to stop."""
        self._skip_completed()
        self._ctx.extras["resumed"] = any(self._has_begun(planned) for planned in self._schedule.runs)
        self._signals.install()
        try:
            self._executor.open()
            self._subscribers.notify_experiment("on_experiment_start", self._ctx)
            self._write_ids()
            self._control.open()
            while self._apply_commands() or self._waiting or self._active or self._has_more_trials():
                self._start_ready_runs()
                for outcome in self._executor.wait(self._receive):
                    self._apply_commands()  # first: a repeat that is added now belongs to the group that would end
                    self._end(outcome)
                if self.stop_reason is not None and not self._active:
                    break
        finally:
            self._control.close()
            self._executor.close()
            self._signals.restore()

    def runs(self) -> list[PlannedRun]:
        """All runs so far, those that were added included."""
        return [planned for runs in self._arm_runs.values() for planned in runs]

    def finish(self, result: Any) -> None:
        """Fire `on_experiment_end`."""
        self._ctx.status = result.status
        self._subscribers.notify_experiment("on_experiment_end", self._ctx, result)

    def _request_stop(self, reason: str) -> None:
        # Called by a signal handler, at any point of this thread: the runs are ended in `run`.
        self.stop_reason = self.stop_reason or reason
        self._executor.stop(reason)

    def _running(self, arm: str) -> list[Path]:
        # On the thread of the control: `list` copies without giving up the interpreter's lock.
        running = [run.planned for run in list(self._active.values())]
        return [self._store.run_directory(planned.key) for planned in running if planned.arm == arm]

    def _apply_commands(self) -> bool:
        """Apply the commands sent to the experiment; returns whether there were any."""
        was_any = False
        while (command := self._control.received()) is not None:
            was_any = True
            if command.name == "repeats" and self._search is not None:
                self._control.answer(command, "refused", "The trials of a search keep their repeats.")
                continue
            if command.name == "repeats":
                added = self._add_repeats(command.arguments["count"])
                self._control.answer(command, "applied", f"Added {plural(added, 'run')}.")
                continue
            arm = command.arguments["arm"]
            self._skipped[arm] = skip_reason(command)
            count = sum(planned.arm == arm for planned in self._waiting)
            self._control.answer(command, "applied", f"Skipped {plural(count, 'waiting run')} of {arm}.")
        return was_any

    def _add_repeats(self, count: int) -> int:
        known = {planned.key for runs in self._arm_runs.values() for planned in runs}
        added = [planned for planned in self._schedule.more_repeats(count) if planned.key not in known]
        for planned in added:
            self._arm_runs[planned.arm].append(planned)
            if self._unfinished[planned.arm] == 0:
                self._open_groups.discard(planned.arm)  # it has ended, and starts again
            self._unfinished[planned.arm] += 1
        self._waiting.extend(added)
        self._control.set_repeats(count)
        return len(added)

    def _skip_completed(self) -> None:
        for planned in self._schedule.runs:
            found = self._store.result(planned.key)
            if found is not None and found.status in ("completed", "pruned"):
                self._settle(planned, found)
            elif self._search is not None and self._search.is_finished(planned.arm):
                gone = "The search has the result of this trial, but its run no longer has one."
                self._settle(planned, found or unfinished_result(planned, status="skipped", error=gone))
            elif found is not None:
                # A stopped run resumes the same attempt; a failed one starts counting again.
                self._attempts[planned.key] = found.attempts - 1 if found.status == "stopped" else 0
        self._waiting = deque(planned for planned in self._waiting if planned.key not in self.results)
        for arm in self._arm_runs:  # a process may be killed between the result of a run and that of its trial
            self._report_trial(arm)

    def _has_begun(self, planned: PlannedRun) -> bool:
        return (self._store.run_directory(planned.key) / run_directory.METADATA).is_file()

    def _settle(self, planned: PlannedRun, result: RunResult) -> None:
        self.results[planned.key] = result
        self._unfinished[planned.arm] -= 1

    def _has_more_trials(self) -> bool:
        return self._search is not None and self._search.has_more and self.stop_reason is None

    def _begin_trial(self) -> bool:
        """Add the runs of the search's next trial; returns whether there is one."""
        runs = [] if self._search is None else self._search.next()
        for planned in runs:
            self._arm_runs.setdefault(planned.arm, []).append(planned)
            self._positions.setdefault(planned.arm, len(self._positions))
            self._unfinished[planned.arm] = self._unfinished.get(planned.arm, 0) + 1
        self._waiting.extend(runs)
        return bool(runs)

    def _report_trial(self, arm: str) -> None:
        if self._search is not None and self._unfinished[arm] == 0:
            self._search.report(arm, [self.results[planned.key] for planned in self._arm_runs[arm]])

    def _start_ready_runs(self) -> None:
        """Start waiting runs in order, while there is room and the run they depend on is complete."""
        not_ready: list[PlannedRun] = []
        while self.stop_reason is None and self._executor.has_room and (self._waiting or self._begin_trial()):
            planned = self._waiting.popleft()
            before = None if planned.after is None else self.results.get(planned.after)
            if planned.arm in self._skipped:
                result = unfinished_result(planned, status="skipped", error=self._skipped[planned.arm])
                self._settle(planned, result)
                self._show("ended", result)
                self._close_group(planned.arm)
            elif planned.after is not None and before is None:
                not_ready.append(planned)
            elif before is not None and not before.is_trained:
                error = f"{before.run_key}, which it starts from, {before.status}."
                result = unfinished_result(planned, status="skipped", error=error)
                self._settle(planned, result)
                self._show("ended", result)
                self._close_group(planned.arm)
            else:
                self._start(planned)
        self._waiting.extendleft(reversed(not_ready))

    def _start(self, planned: PlannedRun) -> None:
        self._open_group(planned.arm)
        directory = self._store.run_directory(planned.key)
        attempt = self._attempts[planned.key] = self._attempts.get(planned.key, 0) + 1
        ctx = self._contexts.get(planned.key) or self._run_context(planned, directory)
        ctx.extras |= {"attempt": attempt, "resumed": self._has_begun(planned)}
        # Reuse the ids of an earlier start or attempt, but not the experiment's own, which may have changed since.
        ctx.ids |= {name: id_ for name, id_ in read_run_ids(directory).items() if name not in self._ctx.ids}
        run = self._active[planned.key] = _ActiveRun(planned, ctx, attempt)
        self._show("started", planned)
        if planned.key not in self._contexts:  # once, however many attempts
            self._contexts[planned.key] = ctx
            self._notify(run, "on_run_start")
            write_run_ids(directory, ctx.ids)
        assignment = self._assignment(planned, ctx, directory, attempt)
        if self.stop_reason is not None:  # a signal came during on_run_start
            self._end(lost_outcome(assignment, NOT_STARTED, status="stopped", began=False))
            return
        failure = run.failure
        if failure is None:
            try:
                self._executor.start(assignment)
            except (OptionError, OSError) as error:  # e.g. a subscriber put something unpicklable into the context
                failure = f"{type(error).__name__}: {error}"
        if failure is not None:
            self._end(lost_outcome(assignment, failure, began=False))

    def _notify(self, run: _ActiveRun, moment: str, *arguments: Any, **named: Any) -> None:
        """Fire a moment of a run; the exception of a critical subscriber fails that run and no other."""
        try:
            self._subscribers.notify_run(moment, run.ctx, *arguments, **named)
        except Exception:
            if self._schedule.strict:
                raise
            run.failure = run.failure or traceback.format_exc()

    def _run_context(self, planned: PlannedRun, directory: Path) -> LogContext:
        # Of the group ids only the run's own: an experiment may have many groups.
        own = f"group:{planned.arm}"
        ids = {name: id_ for name, id_ in self._ctx.ids.items() if name == own or not name.startswith("group:")}
        about = {"arm": planned.arm, "repeat": planned.repeat, "stage": planned.stage, "seed": planned.seed}
        return replace(
            self._ctx,
            output_dir=directory,
            run_key=planned.key,
            run_config=planned.recipe.config,
            group_name=planned.arm,
            ids={**ids, "run_id": planned.key},
            extras={**self._ctx.extras, **about},
            status="running",
            error=None,
            metrics={},
        )

    def _assignment(self, planned: PlannedRun, ctx: LogContext, directory: Path, attempt: int) -> Assignment:
        experiment: dict[str, Any] = {
            "name": self._schedule.name,
            "id": self._store.id,
            "group": planned.arm,
            "run_key": planned.key,
            "group_id": ctx.ids[f"group:{planned.arm}"],
            "arm": planned.arm,
            "repeat": planned.repeat,
            "stage": planned.stage,
            "seed": planned.seed,
            "position": self._positions[planned.arm],
            **({} if self._search is None else self._search.facts(planned.arm)),
        }
        start = planned.start_from
        return Assignment(
            planned=planned,
            # A copy, also where the run executes in this process.
            ctx=replace(ctx, ids=dict(ctx.ids), extras=dict(ctx.extras), metrics=dict(ctx.metrics)),
            directory=directory,
            subscribers=self._run_subscribers(planned),
            benchmarks=self._schedule.benchmarks,
            sinks=self._schedule.sinks,
            facts={"experiment": experiment, "git": self._store.facts.get("git")},
            start_from=self._store.run_directory(start) if isinstance(start, str) else start,
            strict=self._schedule.strict,
            attempt=attempt,
            earlier=tuple(self.results[each.key] for each in self._arm_runs[planned.arm] if each.key in self.results),
        )

    def _run_subscribers(self, planned: PlannedRun) -> RunSubscribers:
        own = self._subscribers.for_run()
        return own if self._search is None else self._search.subscribers(planned, own)

    def _show(self, event: str, about: Any) -> None:
        try:
            if self._watch is not None:
                self._watch(event, about)
        except Exception:
            self._watch = None
            logger.exception("The experiment's watch callback failed and is dropped. The experiment continues.")

    def _receive(self, message: Message) -> None:
        run = self._active[message.key]
        self._show("message", message)
        if isinstance(message, BenchmarkScored):
            self._notify(run, "on_benchmark_eval", message.eval_result, message.predictions, step=message.step)

    def _end(self, outcome: Outcome) -> None:
        run, result = self._active.pop(outcome.key), outcome.result
        self.stop_reason = self.stop_reason or outcome.signal
        if run.failure is not None and result.is_trained:
            result = replace(result, status="failed", error=run.failure)
        if result.status in RETRIED:
            error, verb = error_line(result.error), RETRIED[result.status]
            if run.attempt <= self._schedule.retries and self.stop_reason is None:
                run.ctx.ids.update(outcome.ids)
                logger.warning("%s %s and is tried again: %s", outcome.key, verb, error)
                self._waiting.appendleft(run.planned)
                self._show("ended", replace(result, status="retried"))
                return
            logger.error("%s %s: %s", outcome.key, verb, error)
        if result.status == "stopped" and self.stop_reason is None:
            self.stop_reason = (result.artifacts.stop_reason if result.artifacts is not None else None) or "a signal"
        result = self._notify_end(run, result, outcome)
        del self._contexts[outcome.key]
        self._settle(run.planned, result)
        try:
            self._store.write_result(result)
        except OSError as error:  # the run is executed again when the experiment restarts
            logger.error("The result of %s cannot be written: %s. The experiment continues.", result.run_key, error)  # noqa: TRY400
        self._show("ended", result)
        self._close_group(run.planned.arm)

    def _notify_end(self, run: _ActiveRun, result: RunResult, outcome: Outcome) -> RunResult:
        """Fire `on_run_end`; a critical subscriber can still fail the run."""
        planned, directory = run.planned, self._store.run_directory(run.planned.key)
        run.ctx.ids.update(read_run_ids(directory) if outcome.died else outcome.ids)
        write_run_ids(directory, run.ctx.ids)
        run.ctx.status, run.ctx.error = result.status, error_line(result.error) or None
        run.failure = None
        known = ChainMap({planned.key: result}, self.results)
        ended = tuple(known[each.key] for each in self._arm_runs[planned.arm] if each.key in known)
        arm = ArmResult(planned.arm, planned.recipe.config, ended)
        self._notify(run, "on_run_end", result, arm)
        if outcome.died:
            self._subscribers.notify_run_died(run.ctx, result, arm)
        return result if run.failure is None else replace(result, status="failed", error=run.failure)

    def _open_group(self, name: str) -> None:
        if name in self._open_groups:
            return
        self._open_groups.add(name)
        self._ctx.ids.setdefault(f"group:{name}", f"{self._store.id}/{name}")
        self._subscribers.notify_experiment("on_group_start", replace(self._ctx, group_name=name), name)
        self._write_ids()

    def _close_group(self, name: str) -> None:
        self._report_trial(name)
        if self._unfinished[name] == 0 and name in self._open_groups:
            self._subscribers.notify_experiment("on_group_end", replace(self._ctx, group_name=name), name)

    def _write_ids(self) -> None:
        try:
            self._store.write_ids(self._ctx.ids)
        except OSError as error:  # they are written with the next ones
            logger.error("The experiment's ids cannot be written: %s. The experiment continues.", error)  # noqa: TRY400


def unfinished_result(planned: PlannedRun, *, status: str, error: str | None = None) -> RunResult:
    """The result of a run that was not executed."""
    facts: dict[str, Any] = {"repeat": planned.repeat, "stage": planned.stage, "seed": planned.seed}
    return RunResult(planned.key, status=status, error=error, attempts=0, **facts)


def make_executor(given: Any) -> Executor:
    """Make an executor from ``"local"``, ``"ray"``, ``{"local": {"processes": 4}}``, or an `Executor`.

    Raises:
        OptionError: There is no such executor, or it does not accept such an option.
    """
    if isinstance(given, Executor):
        return given
    name, options = next(iter(given.items())) if isinstance(given, Mapping) and len(given) == 1 else (given, None)
    accepted = {"local": ("processes",), "ray": ("num_cpus", "num_gpus", "resources", "max_runs")}
    if not isinstance(name, str) or name not in accepted:
        known = closest(name, accepted) if isinstance(name, str) else "Give 'local' or 'ray'."
        raise OptionError(f"executor={given!r}: there is no such executor. {known}")
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"executor={given!r}: the options of {name!r} are a mapping.")
    options = dict(options or {})
    for option in options:
        if option not in accepted[name]:
            raise OptionError(f"executor={given!r}: it has no {option!r}. {closest(str(option), accepted[name])}")
    if name == "ray":
        from hookline.experiment.ray_executor import RayExecutor

        return RayExecutor(**options)
    processes = options.get("processes")
    return InlineExecutor() if processes is None else ProcessExecutor(processes)
