"""`sweep`, `agent` and `controller`: create a sweep, and run a function or a program with the settings that it chooses.

In a function that an agent calls, ``wandb.init()`` begins a run with the sweep's settings, which are locked. A run
that ``early_terminate`` ends is interrupted in `log`. A program is started with the settings as arguments, and its
`init` finds them in the file that ``WANDB_SWEEP_PARAM_PATH`` names.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hookline._engine.defaults import ROOT_VARIABLE
from hookline.compat.wandb import recording
from hookline.compat.wandb.active import active_run, current_project, current_root, state
from hookline.compat.wandb.errors import RunStopped, UnsupportedError, UsageError
from hookline.compat.wandb.history import replay
from hookline.compat.wandb.sweeps import StoredSweep, load_sweep
from hookline.compat.wandb.terminal import ignored, termerror, termlog
from hookline.compat.wandb.util import generate_id

MOST_FIRST_FAILURES = 3
"""An agent gives up when its first runs fail, this many in a row."""
COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")


def _home(project: str | None) -> Path:
    name = project or current_project()
    return current_root() / name


def sweep(
    sweep: Any, entity: str | None = None, project: str | None = None, prior_runs: list[str] | None = None
) -> str:
    """Create a sweep, and return its id.

    Args:
        sweep: Its configuration, or a function that returns it.
        entity: Accepted.
        project: Its project; that of the configuration, or the present one by default.
        prior_runs: Accepted.
    """
    config = sweep() if callable(sweep) else sweep
    if prior_runs:
        ignored("sweep(prior_runs=...)")
    given = project or (config.get("project") if isinstance(config, Mapping) else None)
    created = StoredSweep.create(_home(given), config)
    if given:
        os.environ["WANDB_PROJECT"] = given
    termlog(f"Created the sweep {created.id} in {created.folder}")
    return created.id


def agent(
    sweep_id: str,
    function: Callable[[], object] | None = None,
    entity: str | None = None,
    project: str | None = None,
    count: int | None = None,
    forward_signals: bool = False,
) -> None:
    """Run a function, or the sweep's program, with settings of a sweep until there are no more.

    Args:
        sweep_id: ``[entity/][project/]id``.
        function: The function; the sweep's ``program`` by default.
        entity: Accepted.
        project: The sweep's project.
        count: How many runs, at most.
        forward_signals: Accepted.
    """
    parts = sweep_id.strip("/").split("/")
    name = parts[-2] if len(parts) > 1 else project or current_project()
    found = load_sweep(_home(name), parts[-1])
    if function is None and not found.config.get("program"):
        raise UsageError(f"agent({sweep_id!r}): give a function, or a sweep with a program.")
    study = found.study()
    failures = done = 0
    while count is None or done < count:
        asked = found.ask(study)
        if asked is None:
            termlog(f"The sweep {found.id} has no more runs.")
            return
        trial, settings = asked
        try:
            if function is not None:
                outcome = _call(function, found, name, trial, settings)
            else:
                outcome = _start_program(found, name, settings)
        except BaseException:  # Ctrl-C: no result for the trial, and the agent ends
            found.tell(study, trial, None)
            raise
        found.tell(study, trial, outcome.value, is_pruned=outcome.is_pruned)
        done += 1
        failures = failures + 1 if outcome.has_failed else -MOST_FIRST_FAILURES
        if failures >= MOST_FIRST_FAILURES and not os.environ.get("WANDB_AGENT_DISABLE_FLAPPING"):
            termerror(f"The first {failures} runs of the sweep {found.id} failed: the agent ends.")
            return


class Outcome(NamedTuple):
    """How a run of a sweep ended."""

    value: float | None
    is_pruned: bool = False
    has_failed: bool = False


def _call(
    function: Callable[[], object], found: StoredSweep, project: str, trial: Any, settings: Mapping[str, Any]
) -> Outcome:
    """Call a function, in which `init` begins a run with the settings."""
    reported: list[float] = []
    followed: list[Any] = []

    def follow(step: int, row: Mapping[str, Any]) -> None:
        run = active_run()
        followed[:] = [run]
        value = found.result_in(row)
        if value is None:
            return
        reported.append(value)
        trial.report(value, len(reported))
        if trial.should_prune():
            run.request_stop(f"the sweep {found.id} ended it early")
            raise RunStopped

    is_pruned = has_failed = False
    summary: Mapping[str, Any] = {}
    with _sweep_run(found, project, settings, follow):
        try:
            function()
        except RunStopped:
            is_pruned = True
        except Exception:
            has_failed = True
            traceback.print_exc()
            termerror(f"A run of the sweep {found.id} failed.")
        finally:
            run = active_run() or (followed[0] if followed else None)
            if run is not None:
                summary = run._values.shown()
                run.finish(1 if has_failed else 0)
    value = found.result_in(summary)
    return Outcome(None if has_failed else value, is_pruned, has_failed)


@contextmanager
def _sweep_run(
    found: StoredSweep, project: str, settings: Mapping[str, Any], follow: Callable[[int, Mapping[str, Any]], None]
) -> Iterator[None]:
    """Let `init` begin a run of the sweep."""
    names = {"WANDB_SWEEP_ID": found.id, "WANDB_PROJECT": project, "WANDB_RUN_ID": generate_id()}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    state.sweep_config, state.row_hook = dict(settings), follow if found.metric is not None else None
    try:
        yield
    finally:
        state.sweep_config = state.row_hook = None
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _start_program(found: StoredSweep, project: str, settings: Mapping[str, Any]) -> Outcome:
    """Start the sweep's program, and read the result that its run recorded."""
    root = found.folder.parents[2]
    if found.config.get("early_terminate"):
        ignored("early_terminate of a sweep's program", "it ends functions only")
    with tempfile.TemporaryDirectory(prefix="hookline-sweep-") as folder:
        import yaml

        path = Path(folder, "settings.yaml")
        document = {"wandb_version": 1, **{name: {"value": value} for name, value in settings.items()}}
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        names = {"WANDB_SWEEP_ID": found.id, "WANDB_PROJECT": project, "WANDB_RUN_ID": generate_id()}
        names |= {"WANDB_SWEEP_PARAM_PATH": str(path), ROOT_VARIABLE: str(root)}
        words = command_of(found.config, settings, Path(folder))
        termlog(f"Starting {' '.join(words)}")
        done = subprocess.run(words, env={**os.environ, **names}, check=False)  # noqa: S603 - the user's own command
    there = recording.run_directories(root / project, names["WANDB_RUN_ID"])
    value = found.result_in(replay(there[0]).summary.shown()) if there else None
    return Outcome(value if done.returncode == 0 else None, has_failed=done.returncode != 0)


def command_of(config: Mapping[str, Any], settings: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the words of the command that a sweep starts.

    Args:
        config: The sweep's configuration.
        settings: The settings of the run.
        folder: A folder for ``${args_json_file}``.
    """
    flags = [f"--{name}={value}" for name, value in settings.items()]
    text = json.dumps(settings)
    switches = [
        f"--{name}" if value is True else f"--{name}={value}" for name, value in settings.items() if value is not False
    ]
    macros: dict[str, list[str]] = {
        "${env}": ["/usr/bin/env"],
        "${interpreter}": [sys.executable],
        "${program}": [str(config["program"])],
        "${args}": flags,
        "${args_no_hyphens}": [flag.removeprefix("--") for flag in flags],
        "${args_no_boolean_flags}": switches,
        "${args_json}": [text],
    }
    words: list[str] = []
    for word in config.get("command") or COMMAND:
        if word == "${args_json_file}":
            path = folder / "settings.json"
            path.write_text(text, encoding="utf-8")
            words.append(str(path))
        elif word in macros:
            words += macros[word]
        else:
            words.append(re.sub(r"\$\{envvar:(\w+)\}", lambda match: os.environ.get(match[1], ""), str(word)))
    return words


class Controller:
    """A sweep that is configured step by step, as with ``wandb.controller()``.

    Agents choose their settings themselves, so there is nothing to schedule: `run` waits until the sweep is over.

    Args:
        sweep_id_or_config: The id of a sweep, or its configuration.
        entity: Accepted.
        project: Its project.
    """

    def __init__(self, sweep_id_or_config: Any = None, entity: str | None = None, project: str | None = None) -> None:
        self._project = project
        self._created: StoredSweep | None = None
        self._config: dict[str, Any] = {"method": "random", "parameters": {}}
        if isinstance(sweep_id_or_config, str):
            self._created = load_sweep(_home(project), sweep_id_or_config)
        elif sweep_id_or_config is not None:
            self.configure(sweep_id_or_config)
            self.create()

    @property
    def sweep_id(self) -> str | None:
        """The id of the created sweep."""
        return None if self._created is None else self._created.id

    @property
    def sweep_config(self) -> dict[str, Any]:
        """The configuration."""
        return dict(self._config if self._created is None else self._created.config)

    def configure(self, sweep_dict_or_config: Mapping[str, Any]) -> None:
        """Set the whole configuration."""
        self._require_open()
        self._config = dict(sweep_dict_or_config)

    def configure_search(self, search: str) -> None:
        """Set the method: ``random``, ``grid`` or ``bayes``."""
        self._require_open()
        self._config["method"] = search

    def configure_stopping(self, stopping: str, **kwargs: Any) -> None:
        """Set the early stopping of runs: ``hyperband``, with ``min_iter``, ..."""
        self._require_open()
        self._config["early_terminate"] = {"type": stopping, **kwargs}

    def configure_metric(self, metric: str, goal: str | None = None) -> None:
        """Set the metric."""
        self._require_open()
        self._config["metric"] = {"name": metric, "goal": goal or "minimize"}

    def configure_program(self, program: str) -> None:
        """Set the program."""
        self._require_open()
        self._config["program"] = program

    def configure_parameter(self, name: str, **parameter: Any) -> None:
        """Set a parameter.

        Args:
            name: Its name.
            parameter: ``values``, ``value``, ``distribution``, ``min``, ``max``, ``mu``, ``sigma``, ``q``.
        """
        self._require_open()
        self._config["parameters"] = {**self._config["parameters"], name: parameter}

    def configure_controller(self, type: str) -> None:  # noqa: A002 - wandb's name
        """Accept the type of the controller."""

    def create(self) -> str:
        """Create the sweep, and return its id."""
        self._require_open()
        self._created = StoredSweep.create(_home(self._project), self._config)
        return self._created.id

    def done(self) -> bool:
        """Return whether the sweep is over."""
        sweep = self._require_created()
        limit = sweep.expected_run_count
        if limit is not None and sum(trial.state.is_finished() for trial in sweep.study().trials) >= limit:
            return True
        return sweep.is_over()

    def step(self) -> None:
        """Do nothing: agents choose their settings themselves."""
        self._require_created()

    def print_status(self) -> None:
        """Print the state of the sweep."""
        sweep = self._require_created()
        termlog(f"The sweep {sweep.id} is {sweep.state.lower()}: {len(sweep.study().trials)} runs.")

    def run(self, verbose: bool = False, poll_seconds: float = 1.0) -> None:
        """Wait until the sweep is over.

        Args:
            verbose: Print its state.
            poll_seconds: How often to look.
        """
        while not self.done():
            if verbose:
                self.print_status()
            time.sleep(poll_seconds)

    def search(self, *_: Any) -> Any:
        """Raise an error: agents choose their settings themselves."""
        raise UnsupportedError(
            "controller.search: agents of hookline choose their settings themselves. Use wandb.agent."
        )

    schedule = stopping = stop_runs = search

    def _require_open(self) -> None:
        if self._created is not None:
            raise UsageError("The sweep has been created: it can no longer be configured.")

    def _require_created(self) -> StoredSweep:
        if self._created is None:
            raise UsageError("Call create() first.")
        return self._created


controller = Controller
