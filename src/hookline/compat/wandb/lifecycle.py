"""`init` and related functions: active runs, the program's exit, `login`, `setup` and `teardown`.

`init` returns the active run if there is one, as wandb does in scripts; in notebooks, and with
``reinit="finish_previous"``, it finishes that run first. The run's `log`, `config` and so on become functions and
objects of the package (``wandb.log``), until it is finished.

A run that the program does not finish ends with it: finished, or failed after an uncaught exception or an exit code.
"""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO, Unpack

from hookline._engine.defaults import NAME_VARIABLE
from hookline._record import run_directory
from hookline._record.run_directory import read_metadata
from hookline.compat.wandb import recording, saved_files
from hookline.compat.wandb.active import (
    active_run,
    current_project,
    current_root,
    global_run,
    make_settings,
    package,
    root_of,
    state,
)
from hookline.compat.wandb.configuration import Config, config_from_file, is_artifact, parse_config
from hookline.compat.wandb.errors import Error, UnsupportedError, UsageError
from hookline.compat.wandb.history import Replayed, replay
from hookline.compat.wandb.settings import RunMoment, Settings, default_project
from hookline.compat.wandb.terminal import ignored, termlog, termsetup, termwarn
from hookline.compat.wandb.wandb_run import Run, attached, is_notebook
from hookline.loops.options import RunOptions
from hookline.loops.session import Session

FUNCTIONS = (
    *("log", "save", "use_artifact", "log_artifact", "define_metric", "alert", "watch", "unwatch", "mark_preempting"),
    *("log_model", "use_model", "link_model", "pin_config_keys"),
)
"""The methods of the active run that are functions of the package."""


class PreInitObject:
    """``wandb.config`` and ``wandb.summary`` before `init`: using them is an error."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __getitem__(self, key: str) -> NoReturn:
        raise Error(f"You must call wandb.init() before {self._name}[{key!r}]")

    def __setitem__(self, key: str, value: Any) -> NoReturn:
        raise Error(f"You must call wandb.init() before {self._name}[{key!r}]")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise Error(f"You must call wandb.init() before {self._name}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise Error(f"You must call wandb.init() before {self._name}.{name}")


def before_init(name: str) -> Callable[..., NoReturn]:
    """Return a function that raises: it needs a run."""

    def function(*args: Any, **kwargs: Any) -> NoReturn:
        raise Error(f"You must call wandb.init() before wandb.{name}()")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = getattr(Run, name).__doc__
    return function


def inactive_names() -> dict[str, Any]:
    """Return the package's names while there is no run."""
    functions = {name: before_init(name) for name in FUNCTIONS}
    objects = {name: PreInitObject(f"wandb.{name}") for name in ("config", "summary")}
    return {"run": None, **objects, **functions}


def _set_names(names: Mapping[str, Any]) -> None:
    for name, value in names.items():
        setattr(package(), name, value)


def _set_global(run: Run) -> None:
    functions = {name: getattr(run, name) for name in FUNCTIONS}
    _set_names({"run": run, "config": run.config, "summary": run.summary, **functions})


def configure(**options: Unpack[RunOptions]) -> None:
    """Set options of hookline for the runs that `init` begins: ``configure(root="/data/runs", sinks=["csv"])``.

    Args:
        options: As of `hookline.run`: ``root``, ``sinks``, ``callbacks``, ``console``, ``redact``, ``delivery``,
            ``control``, ... What `init` knows itself (the project, the configuration, tags and notes) is refused.

    Raises:
        UsageError: An option is not one of these.
    """
    known = set(RunOptions.__annotations__) - {"project", "config", "tags", "notes", "summary"} | {"callbacks"}
    unknown = set(options) - known
    if unknown:
        raise UsageError(f"configure({sorted(unknown)[0]}=...): give options of hookline: {', '.join(sorted(known))}.")
    state.options = RunOptions(**{**state.options, **options})


def init(
    entity: str | None = None,
    project: str | None = None,
    dir: str | os.PathLike[str] | None = None,  # noqa: A002 - wandb's names
    id: str | None = None,  # noqa: A002
    name: str | None = None,
    notes: str | None = None,
    tags: Sequence[str] | None = None,
    config: Any = None,
    config_exclude_keys: list[str] | None = None,
    config_include_keys: list[str] | None = None,
    allow_val_change: bool | None = None,
    group: str | None = None,
    job_type: str | None = None,
    mode: str | None = None,
    force: bool | None = None,
    reinit: Any = None,
    resume: bool | str | None = None,
    resume_from: str | None = None,
    fork_from: str | None = None,
    save_code: bool | None = None,
    tensorboard: bool | None = None,
    sync_tensorboard: bool | None = None,
    monitor_gym: bool | None = None,
    settings: Any = None,
    anonymous: Any = None,
    magic: Any = None,
) -> Run:
    """Begin a run, or return the active one.

    Args:
        entity: Kept; hookline has no users or teams.
        project: The folder of the root that contains the run; by default the git repository's name, or
            ``uncategorized``.
        dir: Runs are recorded in ``<dir>/runs``; in ``runs`` by default.
        id: The run's id, and the name of its directory.
        name: Its name.
        notes: A text about it.
        tags: Words that it is found by; at a resume they replace the earlier ones.
        config: Its configuration: a dict, a namespace of argparse, flags of absl, a dataclass, or the path of a YAML
            file of wandb's form.
        config_exclude_keys: Keys to leave out of ``config``.
        config_include_keys: The only keys to take from ``config``.
        allow_val_change: Whether settings may be changed later.
        group: The group of runs that it belongs to.
        job_type: What it does in its group; a stage in hookline.
        mode: ``online``, ``offline`` and ``shared`` record here; ``disabled`` records nothing. With ``shared``,
            processes that give the id of a running run record to it.
        force: Accepted; no login is needed.
        reinit: With an active run: ``return_previous``, ``finish_previous`` or ``create_new``.
        resume: What to do with an earlier run of this id: ``allow``, ``must``, ``never``. ``auto`` (or True) continues
            the last run below the root that did not finish.
        resume_from: ``<id>?_step=<step>``: continue a run after a step, without its later rows.
        fork_from: Refused: hookline does not copy the history of another run.
        save_code: Record the code with untracked files; False records none.
        tensorboard: An older name of ``sync_tensorboard``.
        sync_tensorboard: Also record what is written with SummaryWriter.
        monitor_gym: Accepted.
        settings: A `Settings`, or a dict of settings.
        anonymous: Accepted.
        magic: Accepted.

    Raises:
        UsageError: An argument is not accepted, or there is a run, or none, with this id.
    """
    if isinstance(config, int | float | list):
        raise TypeError("config must be a dict or have a __dict__ attribute.")
    chosen = make_settings(
        settings,
        entity=entity,
        project=project,
        root_dir=None if dir is None else os.fspath(dir),
        run_id=id,
        run_name=name,
        run_notes=notes,
        run_tags=tags,
        allow_val_change=allow_val_change,
        run_group=group,
        run_job_type=job_type,
        mode=mode,
        reinit=reinit,
        resume=resume,
        resume_from=resume_from,
        fork_from=fork_from,
        save_code=save_code,
        sync_tensorboard=sync_tensorboard if sync_tensorboard is not None else tensorboard,
        anonymous=anonymous if anonymous not in ("must", "allow", "never") else None,
    )
    termsetup(chosen)
    for what, given in (("init(monitor_gym=...)", monitor_gym), ("init(magic=...)", magic)):
        if given:
            ignored(what)
    _check_branching(chosen)
    parsed = parse_config(config or {}, exclude=config_exclude_keys, include=config_include_keys)
    sync = _tensorboard_sync() if chosen.sync_tensorboard or state.syncs_tensorboard else None
    with state.lock:
        run = _disabled_run(chosen, parsed) if chosen.is_disabled else _kept_run(chosen)
        if run is None:
            run = _begin(chosen, parsed)
            state.runs.append(run)
            exits.install()
        elif not chosen.is_disabled:
            return run
        if chosen.reinit != "create_new":
            _set_global(run)
    # The run of a whole script records what is written with SummaryWriter already.
    if sync is not None and not any(each is run and own.recording.owner is not None for own, each in run_of):
        run.record_tensorboard(sync)
    return run


def _check_branching(settings: Settings) -> None:
    if settings.sweep_id is not None or state.sweep_config is not None:
        _leave_to_sweep(settings)
    if settings.fork_from is not None:
        raise UnsupportedError("fork_from: hookline does not copy the history of another run. Use resume_from.")
    if settings.resume_from is not None and settings.resume is not None:
        raise UsageError("`resume` and `resume_from` cannot be used together.")


def _leave_to_sweep(settings: Settings) -> None:
    """Take the project and the id of a run of a sweep from its agent, with a warning where the script gives others."""
    agents = make_settings(None)
    for name in ("project", "run_id"):
        given, chosen = getattr(settings, name), getattr(agents, name)
        if chosen is not None and given != chosen:
            termwarn(f"Ignoring {name} {given!r} when running a sweep.")
            setattr(settings, name, chosen)


def _kept_run(settings: Settings) -> Run | None:
    """Return the active run, or finish it, as ``reinit`` says; None to begin another one."""
    earlier: Run | None = active_run()
    reinit = settings.reinit
    if earlier is None or reinit == "create_new":
        return None
    if reinit in (True, "finish_previous") or (reinit == "default" and is_notebook()):
        while (run := active_run()) is not None:
            run.finish()
        return None
    if settings.resume == "must":
        raise Error(
            "Cannot resume a run while another run is active. You must either finish it using run.finish(), or use "
            "reinit='create_new' when calling wandb.init()."
        )
    termlog(
        f"wandb.init() called while a run is active and reinit is set to {reinit!r}, so returning the previous run."
    )
    return earlier


def _disabled_run(settings: Settings, config: Mapping[str, Any]) -> Run:
    from hookline.compat.wandb.util import generate_id

    settings.run_id = settings.run_id or generate_id()
    settings.run_name = settings.run_name or f"dummy-{settings.run_id}"
    settings.project = settings.project or "dummy"
    settings.entity = settings.entity or "dummy"
    made = _config(config)
    return Run(settings, made, None, on_finish=_forget)


def _config(given: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration of a run: earlier settings, files, those of `init`, and those of a sweep, locked."""
    config = Config()
    if known:
        config._update(dict(known), True)
    settings = make_settings(None)
    for path in str(settings.config_paths or "").split(","):
        if path:
            config._update(config_from_file(path) or {}, True)
    config._update({key: value for key, value in given.items() if not is_artifact(value)}, True)
    sweep = state.sweep_config
    if sweep is None and settings.sweep_param_path:
        sweep = config_from_file(settings.sweep_param_path, must_exist=True)
    if sweep:
        config.merge_locked(sweep, user="sweep")
    return config


class _Place(NamedTuple):
    """Where a run is recorded, and an earlier run there.

    Attributes:
        directory: The directory of an earlier run; None for a new one.
        step: Rows of later steps are withdrawn; None keeps all.
    """

    directory: Path | None
    step: int | None = None


def _begin(settings: Settings, config: Mapping[str, Any]) -> Run:
    if state.owner is not None and settings.resume is None and settings.resume_from is None:
        return _begin_joined(settings, config, state.owner)
    settings.project = settings.project or default_project()
    root = root_of(settings)
    home = root / settings.project
    with recording.errors_as_usage():
        place = _find_place(settings, root, home)
        alive = place.directory is not None and run_directory.is_alive(place.directory)
        if settings.is_shared and place.directory is not None and alive:
            return attached(place.directory, is_shared=True)
        earlier = None if place.directory is None else replay(place.directory, until=place.step)
        facts = {} if place.directory is None else read_metadata(place.directory)
        settings.resumed = place.directory is not None
        _take_over(settings, facts)
        settings.run_name = settings.run_name or os.environ.get(NAME_VARIABLE) or None
        known = facts.get("config")
        made = _config(config, known if isinstance(known, dict) else None)
        own = _recorded_run(settings, root, made)
        if place.directory is None:
            if settings.run_id is not None:
                own.run_id = recording.claim_directory(home, settings.run_id).name
            own.begin()
        else:
            _resume(own, place, earlier)
    own.train_start(step=own.step)
    assert own.output_dir is not None
    backend = recording.OwnBackend(own)
    settings.run_id = settings.run_id or own.output_dir.name
    if settings.run_name is None:
        settings.run_name = _name_of(settings.run_id)
        backend.set_fact("name", settings.run_name)
    backend.set_fact(recording.MEMBERSHIP, _membership(settings))
    if place.directory is not None:
        _update_resumed(backend, settings, made, facts)
    next_step = None if place.step is None else place.step + 1
    run = Run(settings, made, backend, earlier=earlier, next_step=next_step, on_finish=_forget)
    own.step = run.step
    run_of.append((own, run))
    if state.row_hook is not None:
        run.add_row_hook(state.row_hook)
    run.config.update({key: value for key, value in config.items() if is_artifact(value)}, allow_val_change=True)
    if settings.resume == "auto":
        recording.write_last_run(root, recording.LastRun(settings.project, settings.run_id))
    _announce(run, root)
    return run


def _begin_joined(settings: Settings, config: Mapping[str, Any], owner: Session) -> Run:
    """Begin a run that records into that of the whole script; a later run of the script is one of its own."""
    state.owner = None
    settings.project = owner.project
    root = Path(owner.root or "runs").absolute()
    with recording.errors_as_usage():
        made = _config(config)
        own = _recorded_run(settings, root, made)
        own.recording.join(owner, "wandb")
        own.begin()
    own.train_start(step=own.step)
    assert own.output_dir is not None
    backend = recording.OwnBackend(own)
    settings.run_id = settings.run_id or own.output_dir.name
    # A name that the user gave for the script wins.
    if settings.run_name is not None and not os.environ.get(NAME_VARIABLE):
        own.description["name"] = settings.run_name
    settings.run_name = settings.run_name or owner.name
    facts = {**own.description, "notes": settings.run_notes, recording.MEMBERSHIP: _membership(settings)}
    for name, value in facts.items():
        if value:
            backend.set_fact(name, value)
    run = Run(settings, made, backend, on_finish=_forget)
    run_of.append((own, run))
    if state.row_hook is not None:
        run.add_row_hook(state.row_hook)
    run.config.update({key: value for key, value in config.items() if is_artifact(value)}, allow_val_change=True)
    return run


def _name_of(run_id: str) -> str:
    """Return the name of a run that has none: its id, without the date of a readable one."""
    words = run_id.split("-", 3)
    return words[3] if len(words) == 4 and words[0].isdigit() else run_id


def _announce(run: Run, root: Path) -> None:
    if run.settings.quiet:
        return
    verb = "Resuming" if run.resumed else "Recording"
    command = f"hookline ui --root {shlex.quote(_short(root))}"
    termlog(f"{verb} {run.name} in {_short(run.directory)}. View it with: {command}")


run_of: list[tuple[recording.RecordedRun, Run]] = []
"""The unfinished runs of hookline, with wandb's object for each."""


def _find_place(settings: Settings, root: Path, home: Path) -> _Place:
    if settings.resume == "auto" and settings.run_id is None:
        last = recording.read_last_run(root)
        if last is not None and last.project == settings.project:
            settings.run_id = last.run_id
    moment: RunMoment | None = settings.resume_from
    if moment is not None:
        settings.run_id = moment.run
    if settings.run_id is None:
        return _Place(None)
    there = recording.run_directories(home, settings.run_id)
    found = there[0] if there else None
    if moment is not None:
        if found is None:
            raise UsageError(f"resume_from: there is no run {moment.run!r} in {home}.")
        return _Place(found, moment.step)
    if settings.resume == "never" and found is not None:
        raise UsageError(_invalid_resume(settings, "already exists. Provide a new id, or resume='allow'"))
    if settings.resume == "must" and found is None:
        raise UsageError(_invalid_resume(settings, f"does not exist. Provide the id of a run in {home}"))
    return _Place(found if settings.is_shared or settings.resume in ("allow", "must", "auto") else None)


def _invalid_resume(settings: Settings, why: str) -> str:
    return (
        f"You provided an invalid value for the `resume` argument. The value {settings.resume!r} is not a valid option "
        f"for resuming a run ({settings.run_id}) that {why}."
    )


def _take_over(settings: Settings, facts: Mapping[str, Any]) -> None:
    """Take over facts of an earlier session that this one does not set."""
    for setting, fact in (("run_name", "name"), ("run_notes", "notes"), ("run_group", "group")):
        if getattr(settings, setting) is None and isinstance(facts.get(fact), str):
            setattr(settings, setting, facts[fact])
    if settings.run_job_type is None and isinstance(facts.get("job_type"), str):
        settings.run_job_type = facts["job_type"]
    tags = facts.get("tags")
    if settings.run_tags is None and isinstance(tags, list) and tags:
        settings.run_tags = tuple(str(tag)[:64] for tag in tags)


def _membership(settings: Settings) -> dict[str, Any]:
    facts = {"id": settings.run_id, "entity": settings.entity, "sweep": settings.sweep_id}
    return {name: value for name, value in facts.items() if value is not None}


def _recorded_run(settings: Settings, root: Path, config: Config) -> recording.RecordedRun:
    code = "all" if settings.save_code else "none" if settings.save_code is False or settings.disable_git else "diff"
    options: dict[str, Any] = {"console": settings.console != "off", "code": code, **state.options}
    own = recording.RecordedRun(
        settings.run_name or settings.run_id or "run",
        at_exit=_end_at_exit,
        stop=settings.stop_fn,
        project=settings.project,
        config={key: value for key, value in config.items() if not is_artifact(value)},
        notes=settings.run_notes or "",
        **{**options, "root": root},
    )
    # A sweep is a group in lists and charts, unless the script sets another group.
    described = {"group": settings.run_group or settings.sweep_id, "job_type": settings.run_job_type}
    described |= {"tags": list(settings.run_tags) if settings.run_tags else None}
    own.description = {name: value for name, value in described.items() if value}
    return own


def _resume(own: recording.RecordedRun, place: _Place, earlier: Replayed | None) -> None:
    """Continue an earlier run after its last row, or after a step."""
    last = place.step if place.step is not None else earlier.last_step if earlier is not None else None
    saved = own._checkpoint_state(0) | {"step": 0 if last is None else last, "run": str(place.directory)}
    own.begin(state=saved)


def _update_resumed(
    backend: recording.OwnBackend, settings: Settings, config: Config, facts: Mapping[str, Any]
) -> None:
    """Record the facts that this session of a resumed run changes."""
    for setting, fact in (("run_name", "name"), ("run_group", "group"), ("run_job_type", "job_type")):
        value = getattr(settings, setting)
        if value is not None and value != facts.get(fact):
            backend.set_fact(fact, value)
    if settings.run_tags is not None and list(settings.run_tags) != facts.get("tags"):
        backend.set_fact("tags", list(settings.run_tags))
    known = facts.get("config")
    before = known if isinstance(known, dict) else {}
    changed = {key: value for key, value in config.items() if key not in before or before[key] != value}
    if changed:
        backend.update_config(changed)


def _short(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def patch_tensorboard(*_: Any, **__: Any) -> None:
    """Record events of TensorBoard's writers in the active run, or in the next one."""
    sync, run = _tensorboard_sync(), active_run()
    if run is None:
        state.syncs_tensorboard = True
    else:
        run.record_tensorboard(sync)


def unpatch_tensorboard() -> None:
    """Stop recording TensorBoard events, beginning with the next run."""
    state.syncs_tensorboard = False


def _tensorboard_sync() -> Callable[[Any], Any]:
    try:
        return import_module("hookline.compat.tensorboard").sync  # type: ignore[no-any-return]
    except (ModuleNotFoundError, AttributeError) as error:
        raise UnsupportedError(
            "sync_tensorboard=True needs hookline.compat.tensorboard, which this version of hookline does not have."
        ) from error


def _forget(run: Run) -> None:
    """Remove a finished run from the process's state."""
    with state.lock:
        if run in state.runs:
            state.runs.remove(run)
        run_of[:] = [pair for pair in run_of if pair[1] is not run]
        if global_run() is run:
            _set_names(inactive_names())
        if not run._exit_code and not run.disabled and run._settings.resume == "auto":
            recording.write_last_run(run.directory.parent.parent, None)
        if active_run() is None:
            exits.remove()


class Exits:
    """Captures the program's exit code while a run is active."""

    def __init__(self) -> None:
        self.code: int | None = None
        self._before: Callable[..., NoReturn] | None = None

    def install(self) -> None:
        """Watch ``sys.exit``."""
        if self._before is None:
            self._before, self.code = sys.exit, None
            sys.exit = self._exit

    def remove(self) -> None:
        """Stop watching, unless something else has replaced ``sys.exit`` since."""
        if self._before is not None and sys.exit == self._exit:
            sys.exit, self._before = self._before, None

    def _exit(self, status: Any = None, /) -> NoReturn:
        self.code = status if isinstance(status, int) else 0 if status is None else 1
        before = self._before or type(self)._raise
        before(status)

    @staticmethod
    def _raise(status: Any = None) -> NoReturn:
        raise SystemExit(status)


exits = Exits()


def _end_at_exit() -> None:
    """End the runs that the program did not finish."""
    error = None if hasattr(sys, "ps1") or is_notebook() else getattr(sys, "last_value", None)
    failure = error if isinstance(error, BaseException) else None
    code = 1 if failure is not None else exits.code
    for run in [run for run in state.runs if run.process == os.getpid()]:
        run.end_at_exit(code, failure)


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """Finish the active run.

    Args:
        exit_code: 0 for success; any other marks the run as failed.
        quiet: Accepted.
    """
    run = global_run()
    if run is not None:
        run.finish(exit_code)


def _attach(attach_id: str | None = None, run_id: str | None = None, *, run: Run | None = None) -> Run:
    """Return a run that another process owns, to record to it.

    Args:
        attach_id: Its ``_attach_id``: its directory.
        run_id: Its id, in the present project.
        run: A run that was loaded from a pickle.
    """
    if run is not None:
        return run
    known = attach_id or run_id
    if known is None:
        raise UsageError("Either `attach_id` or `run_id` or `run` must be specified")
    directory = Path(known)
    if not directory.is_dir():
        there = recording.run_directories(current_root() / current_project(), known)
        if not there:
            raise UsageError(f"Unable to attach to run {known}")
        directory = there[0]
    for own, mine in run_of:
        if own.output_dir == directory and mine.process == os.getpid():
            return mine
    found = attached(directory)
    _set_global(found)
    return found


class SetupState:
    """The result of `setup`: the settings for all runs of the process.

    Attributes:
        settings: The settings.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings


def setup(settings: Any = None) -> SetupState:
    """Set settings for all runs of the process.

    Args:
        settings: A `Settings`, or a dict of settings.
    """
    if settings is not None:
        state.settings.update_from_settings(make_settings(settings) if isinstance(settings, Mapping) else settings)
        termsetup(state.settings)
    return SetupState(make_settings(None))


def teardown(exit_code: int | None = None) -> None:
    """Finish all runs of the process, and forget the settings of `setup`.

    Args:
        exit_code: As of `finish`.
    """
    while (run := active_run()) is not None:
        run.finish(exit_code)
    state.settings = Settings()


def login(
    key: str | None = None,
    relogin: bool | None = None,
    host: str | None = None,
    force: bool | None = None,
    timeout: int | None = None,
    verify: bool = True,
    referrer: str | None = None,
    prompt: bool = True,
    anonymous: Any = None,
) -> bool:
    """Return True: hookline has no accounts, and needs no key.

    Args:
        key, relogin, host, force, timeout, verify, referrer, prompt, anonymous: Accepted; the key is not kept.
    """
    if global_run() is not None:
        termwarn("Calling wandb.login() after wandb.init() has no effect.")
    return not make_settings(None).is_disabled


def ensure_configured() -> None:
    """Do nothing; programs call it before `init`."""


def require(requirement: Any = None, experiment: Any = None) -> None:
    """Accept features of wandb that a program requires.

    Args:
        requirement: The name of a feature, or several.
        experiment: An older name.
    """


def restore(
    name: str, run_path: str | None = None, replace: bool = False, root: str | os.PathLike[str] | None = None
) -> TextIO | None:
    """Copy a saved file of a run to a directory, and open it; None if there is none.

    Args:
        name: Its name.
        run_path: ``[entity/]project/id``; the active run by default.
        replace: Replace a file that is there.
        root: The directory; that of the active run, or this one.

    Raises:
        ValueError: No run is given, and none is active.
    """
    run = global_run()
    if run_path is None and (run is None or run.disabled):
        raise ValueError("run_path required when calling wandb.restore before wandb.init")
    folder = Path(root if root is not None else run.dir if run is not None else ".")
    path = str(run_path if run_path is not None else run.path)
    return saved_files.restore(
        name, path, home=current_root(), project=current_project(), folder=folder, replace=replace
    )
