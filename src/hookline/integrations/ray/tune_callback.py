"""`HooklineTuneCallback`: each trial of Ray Tune becomes a run of hookline, all of them one experiment.

A trial's configuration is its run's, and each result a row at its ``training_iteration``. A run is ``finished`` when
the trial's function returned or a stopping criterion was reached, ``stopped`` when Tune ended it before (a scheduler,
the end of the experiment), and otherwise ``failed``, with the error. A trial that Tune starts again goes on in its run,
behind the result that it starts from; so do those of an experiment that is restored.

It runs where the `Tuner` does, and is told by it. What a trial itself records, with `hl.run`, is a run of its own.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from ray import cloudpickle
from ray.tune import Callback as TuneCallback

from hookline._engine.encoding import decode, encode
from hookline._engine.errors import CheckpointError, OptionError
from hookline._record import run_directory
from hookline._record.settings import settings
from hookline.integrations.passive_run import PassiveRun
from hookline.loops import recording
from hookline.loops.options import RecordOptions

logger = logging.getLogger("hookline")

ITERATION = "training_iteration"
BOOKKEEPING = frozenset(
    "config date done experiment_id experiment_tag hostname iterations_since_restore node_ip pid should_checkpoint "
    "checkpoint_dir_name time_since_restore time_this_iter_s timestamp timesteps_since_restore trial_id warmup_time "
    f"{ITERATION}".split()
)
"""What Tune adds to each result, and is no metric of the trial."""


class HooklineTuneCallback(TuneCallback):
    """Records each trial: ``RunConfig(callbacks=[HooklineTuneCallback()])``.

    Args:
        options: As for every run of hookline, for each trial. ``project`` is the experiment's name by default;
            ``sinks`` are names and mappings, of which each trial makes its own; a trial's settings are added to
            ``config``.
    """

    def __init__(self, **options: Unpack[RecordOptions]) -> None:
        root = options.get("root", "runs")
        if root is None:
            raise OptionError("root=None: trials are recorded in directories. Give one.")
        sinks = list(options.get("sinks", ()))
        for sink in sinks:
            if not isinstance(sink, str | Mapping):
                raise OptionError(f"sinks=[{sink!r}]: give names or mappings, of which each trial makes its own.")
        self._options: RecordOptions = {**options, "root": Path(root).resolve(), "sinks": sinks}
        PassiveRun("trial", **self._options)  # what is wrong with the options is seen now, not at the first trial
        self._runs: dict[str, PassiveRun] = {}
        self._states: dict[str, dict[str, Any]] = {}  # of trials that are to go on
        self._ended_by_tune: dict[str, str | None] = {}

    @property
    def directories(self) -> dict[str, Path]:
        """The directory of each trial's run, by the trial's id."""
        return {trial_id: run.dir for trial_id, run in self._runs.items() if run.dir is not None}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial starts, or starts again: then its run goes on with its first result, which says from where."""
        if trial.trial_id not in self._runs and trial.trial_id not in self._states:
            self._begin_new(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """A trial reports a result."""
        step = int(result.get(ITERATION, 0))
        run = self._running(trial, behind=step - 1)
        if step <= run.step and run.step > 0:  # it went back, to another trial's checkpoint or its own
            self._pause(run)
            run = self._running(trial, behind=step - 1)
        run.tell({name: value for name, value in result.items() if name not in BOOKKEEPING}, step)
        self._ended_by_tune[trial.trial_id] = _why_ended(trial, result) if result.get("done") else None

    def on_checkpoint(self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        """A trial's checkpoint was saved."""
        run = self._running(trial)
        run.checkpoint_saved(checkpoint.path)
        try:
            run.secure_record()
        except CheckpointError as error:  # Tune has saved the checkpoint all the same
            logger.warning("%s", error)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial is over, or was ended."""
        run = self._running(trial)
        reason = self._ended_by_tune.get(trial.trial_id)
        if reason is not None:
            run.request_stop(reason)
        run.train_end()

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial failed and will be tried again."""
        self.on_trial_error(iteration, trials, trial)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial failed."""
        self._running(trial).failed(_error_of(trial))

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """The experiment is over; what has not ended by itself ends with it."""
        for run in self._runs.values():
            if run.is_running:
                run.request_stop("the experiment ended")
                run.train_end()

    def get_state(self) -> dict[str, Any]:
        """Which runs there are, for an experiment that is restored."""
        return {**self._states, **{trial_id: encode(run.state_dict()) for trial_id, run in self._runs.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on with these runs."""
        self._states = dict(state)

    def _begin_new(self, trial: Any) -> None:
        experiment = trial.experiment_dir_name
        run = self._made(trial)
        facts = recording.facts(run.name, run.config, run.tags, run.notes) | {
            "project": run.project,
            "parents": {"experiment_id": experiment, "trial_id": trial.trial_id},
            "experiment": {"id": experiment, "name": experiment, "arm": _arm(trial), "run_key": run.name},
        }
        run.resume_from = run_directory.create(run.root or "", run.project, facts)
        try:
            run.begin()
        finally:
            run.resume_from = None
        run.train_start()

    def _running(self, trial: Any, behind: int | None = None) -> PassiveRun:
        """The run of a trial; one that had ended goes on behind a step."""
        run = self._runs.get(trial.trial_id)
        if trial.trial_id in self._states:
            self._go_on(trial, decode(self._states.pop(trial.trial_id)), behind)
        elif run is None:
            self._begin_new(trial)
        elif not run.is_running:
            self._go_on(trial, run.state_dict(), behind)
        return self._runs[trial.trial_id]

    def _go_on(self, trial: Any, state: dict[str, Any], behind: int | None) -> None:
        run = self._runs.get(trial.trial_id) or self._made(trial)
        step = state["step"] if behind is None else min(behind, state["step"])
        run.begin(state={**state, "step": step})
        run.train_start(step=step)

    def _pause(self, run: PassiveRun) -> None:
        run.request_stop("went back to an earlier result")
        run.train_end()

    def _made(self, trial: Any) -> PassiveRun:
        options: RecordOptions = {
            "project": trial.experiment_dir_name,
            **self._options,
            "config": {**settings(self._options.get("config")), **trial.config},
        }
        run = PassiveRun(str(trial), native=trial, summary=False, **options)
        self._runs[trial.trial_id] = run
        return run


def _arm(trial: Any) -> str:
    """What the trial tries: repeats of one choice have the same."""
    chosen = trial.evaluated_params or {}
    return ",".join(f"{name}={value}" for name, value in chosen.items()) or str(trial.trial_id)


def _why_ended(trial: Any, result: Mapping[str, Any]) -> str | None:
    """Why Tune ends a trial whose function has not returned; None where it was to end here."""
    criteria = trial.stopping_criterion or {}
    if any(name in result and result[name] >= limit for name, limit in criteria.items()):
        return None
    return f"ended by Tune after {result.get(ITERATION)} results"


def _error_of(trial: Any) -> BaseException:
    """What a trial failed of, as its worker had it; Tune has just written it down beside the trial."""
    try:
        error = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    except Exception:  # whatever a user's exception does when it is read back
        return RuntimeError(f"{trial} failed; its error.txt says why")
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error
