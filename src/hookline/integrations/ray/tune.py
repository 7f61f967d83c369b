"""`HooklineTuneCallback`: records each trial of Ray Tune as a run of hookline, all of them as one experiment.

A trial's configuration is its run's, and each result is a row at its ``training_iteration``. A run is ``finished`` when
the trial's function returned or a stopping criterion was met, ``stopped`` when Tune ended it earlier (a scheduler, the
end of the experiment), and otherwise ``failed``, with the error. A trial that Tune starts again continues its run after
the result that it starts from; so do the trials of a restored experiment.

The callback runs in the process of the `Tuner`. What a trial itself records with `hl.run` is a separate run.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from ray import cloudpickle
from ray.tune import Callback as TuneCallback

from hookline._engine.defaults import ROOT, resolved
from hookline._engine.errors import CheckpointError, OptionError
from hookline._engine.state_encoding import decode, encode
from hookline._record import run_directory
from hookline._record.settings import settings
from hookline.integrations.passive_run import PassiveRun
from hookline.loops import run_facts
from hookline.loops.options import RecordOptions

logger = logging.getLogger("hookline")

ITERATION = "training_iteration"
BOOKKEEPING = frozenset(
    "config date done experiment_id experiment_tag hostname iterations_since_restore node_ip pid should_checkpoint "
    "checkpoint_dir_name time_since_restore time_this_iter_s timestamp timesteps_since_restore trial_id warmup_time "
    f"{ITERATION}".split()
)
"""Values that Tune adds to each result, which are not the trial's metrics."""


class HooklineTuneCallback(TuneCallback):
    """Records each trial: ``RunConfig(callbacks=[HooklineTuneCallback()])``.

    Args:
        options: As for every run of hookline, for each trial. ``project`` is the experiment's name by default;
            ``sinks`` are names or mappings, from which each trial creates its own; a trial's settings are added to
            ``config``. ``console`` is False by default: trials run in processes of their own, and what the driver
            prints is about all of them.
    """

    def __init__(self, **options: Unpack[RecordOptions]) -> None:
        root = resolved(options.get("root", ROOT))
        if root is None:
            raise OptionError("root=None: trials are recorded in directories. Give one.")
        sinks = list(options.get("sinks", ()))
        for sink in sinks:
            if not isinstance(sink, str | Mapping):
                raise OptionError(f"sinks=[{sink!r}]: give names or mappings, from which each trial creates its own.")
        self._options: RecordOptions = {"console": False, **options, "root": Path(root).resolve(), "sinks": sinks}
        PassiveRun("trial", **self._options)  # refuses wrong options now, not at the first trial
        self._runs: dict[str, PassiveRun] = {}
        self._states: dict[str, dict[str, Any]] = {}  # of restored trials that have not continued yet
        self._end_reasons: dict[str, str | None] = {}

    @property
    def directories(self) -> dict[str, Path]:
        """The directory of each trial's run, by the trial's id."""
        return {trial_id: run.dir for trial_id, run in self._runs.items() if run.dir is not None}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        # A trial that starts again continues its run with the first result, which has the step it continues from.
        if trial.trial_id not in self._runs and trial.trial_id not in self._states:
            self._begin_new(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        step = int(result.get(ITERATION, 0))
        run = self._running(trial, after=step - 1)
        if step <= run.step and run.step > 0:  # it restarted from an earlier checkpoint, its own or another trial's
            run.request_stop("went back to an earlier result")
            run.train_end()
            run = self._running(trial, after=step - 1)
        run.record({name: value for name, value in result.items() if name not in BOOKKEEPING}, step)
        self._end_reasons[trial.trial_id] = _end_reason(trial, result) if result.get("done") else None

    def on_checkpoint(self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        run = self._running(trial)
        run.checkpoint_saved(checkpoint.path)
        try:
            run.recording.secure()
        except CheckpointError as error:  # Tune has saved the checkpoint anyway
            logger.warning("%s", error)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        run = self._running(trial)
        reason = self._end_reasons.get(trial.trial_id)
        if reason is not None:
            run.request_stop(reason)
        run.train_end()

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.on_trial_error(iteration, trials, trial)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._running(trial).failed(_error_of(trial))

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        for run in self._runs.values():
            if run.is_running:
                run.request_stop("the experiment ended")
                run.train_end()

    def get_state(self) -> dict[str, Any]:
        """Return the states of the runs, to continue them in a restored experiment."""
        return {**self._states, **{trial_id: encode(run.state_dict()) for trial_id, run in self._runs.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        self._states = dict(state)

    def _begin_new(self, trial: Any) -> None:
        experiment = trial.experiment_dir_name
        run = self._create_run(trial)
        facts = run_facts.user_facts(run.name, run.config, run.tags, run.notes) | {
            "project": run.project,
            "parents": {"experiment_id": experiment, "trial_id": trial.trial_id},
            "experiment": {"id": experiment, "name": experiment, "arm": _arm(trial), "run_key": run.name},
        }
        run.resume_from = run_directory.create(run.root or "", run.project, facts, redactor=run.recording.redactor)
        try:
            run.begin()
        finally:
            run.resume_from = None
        run.train_start()

    def _running(self, trial: Any, after: int | None = None) -> PassiveRun:
        """Return the run of a trial; one that has ended continues after a step."""
        run = self._runs.get(trial.trial_id)
        if trial.trial_id in self._states:
            self._continue(trial, decode(self._states.pop(trial.trial_id)), after)
        elif run is None:
            self._begin_new(trial)
        elif not run.is_running:
            self._continue(trial, run.state_dict(), after)
        return self._runs[trial.trial_id]

    def _continue(self, trial: Any, state: dict[str, Any], after: int | None) -> None:
        run = self._runs.get(trial.trial_id) or self._create_run(trial)
        step = state["step"] if after is None else min(after, state["step"])
        run.begin(state={**state, "step": step})
        run.train_start(step=step)

    def _create_run(self, trial: Any) -> PassiveRun:
        options: RecordOptions = {
            "project": trial.experiment_dir_name,
            **self._options,
            "config": {**settings(self._options.get("config")), **trial.config},
        }
        run = PassiveRun(str(trial), native=trial, summary=False, **options)
        self._runs[trial.trial_id] = run
        return run


def _arm(trial: Any) -> str:
    """Return the trial's sampled parameters, which are the same for repeats of one choice."""
    chosen = trial.evaluated_params or {}
    return ",".join(f"{name}={value}" for name, value in chosen.items()) or str(trial.trial_id)


def _end_reason(trial: Any, result: Mapping[str, Any]) -> str | None:
    """Return why Tune ends a trial whose function has not returned; None if a stopping criterion is met."""
    criteria = trial.stopping_criterion or {}
    if any(name in result and result[name] >= limit for name, limit in criteria.items()):
        return None
    return f"ended by Tune after {result.get(ITERATION)} results"


def _error_of(trial: Any) -> BaseException:
    """Return the error that ended a trial, which Tune has just saved in the trial's directory."""
    try:
        error = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    except Exception:  # unpickling a user's exception can fail in any way
        return RuntimeError(f"{trial} failed; see its error.txt")
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error
