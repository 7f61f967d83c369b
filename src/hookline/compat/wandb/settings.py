"""`Settings`: the settings of `init` and of environment variables, under wandb's names.

Settings that apply to a local record have an effect. Those of wandb's own service (its network, its process, its
telemetry) are accepted and kept, so that a script reads back what it set. A name that no version of wandb knows is an
error. `WANDB_<NAME>` sets a setting; arguments of `init` win over `Settings`, and these over the environment.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from hookline._engine.defaults import PROJECT_VARIABLE, mode
from hookline._engine.errors import closest
from hookline.compat.wandb.errors import UsageError
from hookline.compat.wandb.terminal import termwarn

MODES = ("online", "offline", "disabled", "shared", "dryrun", "run")
RESUMES = ("allow", "must", "never", "auto")
REINITS = (True, False, None, "default", "return_previous", "finish_previous", "create_new")
CONSOLES = ("auto", "off", "wrap", "redirect", "wrap_raw", "wrap_emu")
MAX_TAG = 64
_TRUE, _FALSE = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off", "")

_FLAGS = (  # noqa: SIM905
    "allow_val_change disable_code disable_git force insecure_disable_ssl label_disable launch quiet relogin resumed "
    "silent strict table_raise_on_max_row_limit_exceeded x_disable_meta x_disable_stats"
).split()
_UNSET = (  # noqa: SIM905
    "api_key code_dir config_paths entity fork_from git_root host program program_abspath program_relpath project "
    "resume resume_from run_group run_id run_job_type run_name run_notes run_tags save_code stop_fn sweep_id "
    "sweep_param_path sync_tensorboard username x_label x_start_time"
).split()
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(_FLAGS, False),
    **dict.fromkeys(("show_errors", "show_info", "show_warnings", "symlink", "x_primary"), True),
    **dict.fromkeys(_UNSET),
    "anonymous": None,
    "base_url": "",
    "console": "auto",
    "ignore_globs": (),
    "mode": "online",
    "reinit": "default",
    "root_dir": "",
}
"""The settings with an effect, or that programs read, and their defaults."""

_KEPT = frozenset(
    (  # noqa: SIM905
        "allow_media_symlink allow_offline_artifacts app_url app_url_override azure_account_url_to_access_key "
        "capture_loggers config_static console_chunk_max_bytes console_chunk_max_seconds console_multipart "
        "credentials_file deployment disable_git_fork_point disable_job_creation docker email files_dir "
        "finish_timeout finish_timeout_raises git_commit git_remote git_remote_url heartbeat_seconds "
        "history_value_encoding http_proxy https_proxy identity_token_file init_timeout job_name job_source "
        "launch_config_path log_dir login_timeout manager max_end_of_run_history_metrics "
        "max_end_of_run_summary_metrics notebook_name organization sagemaker_disable service_wait settings_system "
        "show_colors show_emoji start_method stop_on_fatal_error summary_errors summary_timeout summary_warnings "
        "system_sample system_sample_seconds use_dot_wandb"
    ).split()
)
"""Settings of this or an earlier wandb without effect on a local record."""
_ENVIRONMENT = {
    "WANDB_DIR": "root_dir",
    "WANDB_JOB_TYPE": "run_job_type",
    "WANDB_NAME": "run_name",
    "WANDB_NOTES": "run_notes",
    "WANDB_TAGS": "run_tags",
}
"""Variables with another name than their setting."""


class RunMoment(NamedTuple):
    """A step of an earlier run, given as ``<run id>?_step=<step>``."""

    run: str
    step: int

    @classmethod
    def parse(cls, given: Any) -> "RunMoment":
        """Parse ``<run id>?_step=<step>``.

        Raises:
            UsageError: It has another form.
        """
        if isinstance(given, RunMoment):
            return given
        match = re.fullmatch(r"([^?]+)\?_step=(\d+)", str(given))
        if match is None:
            raise UsageError(f"{given!r:.200} is not a moment of a run. Give '<run id>?_step=<step>'.")
        return cls(match[1], int(match[2]))


def _boolean(name: str, given: Any) -> Any:
    if given is None or isinstance(given, bool):
        return given
    text = str(given).strip().lower()
    if text not in (*_TRUE, *_FALSE):
        raise UsageError(f"{name}={given!r}: give true or false.")
    return text in _TRUE


def _mode(name: str, given: Any) -> Any:
    if given not in MODES:
        raise UsageError(f"mode={given!r} is not a mode of wandb. {closest(str(given), MODES)}")
    return {"dryrun": "offline", "run": "online"}.get(given, given)


def _resume(name: str, given: Any) -> Any:
    given = {"true": "auto", "false": None, "": None}.get(str(given).lower(), given) if given is not None else None
    if given is not None and given not in RESUMES:
        raise UsageError(f"resume={given!r}: give one of {', '.join(RESUMES)}, True or False.")
    return given


def _reinit(name: str, given: Any) -> Any:
    if isinstance(given, str) and given.lower() in (*_TRUE, *_FALSE):
        given = given.lower() in _TRUE
    if given not in REINITS:
        known = ", ".join(str(each) for each in REINITS)
        raise UsageError(f"reinit={given!r}: give one of {known}.")
    return "default" if given is None else given


def _console(name: str, given: Any) -> Any:
    if given not in CONSOLES:
        raise UsageError(f"console={given!r}: give one of {', '.join(CONSOLES)}.")
    return given


def _project(name: str, given: Any) -> Any:
    if given is not None and (len(str(given)) > 128 or set(str(given)) & set("/\\#?%:")):
        raise UsageError(f"Invalid project name {given!r:.200}: give at most 128 characters, none of /\\#?%:")
    return None if given is None else str(given)


def _run_id(name: str, given: Any) -> Any:
    if given is None:
        return None
    text = str(given)
    if not text or text != text.strip() or set(text) & set(":;,#?/'\\\0") or text[0] == "." or len(text) > 128:
        raise UsageError(
            f"Invalid run id {given!r:.200}: give 1 to 128 characters without :;,#?/'\\, not beginning with a dot or a "
            "space."
        )
    return text


def _tags(name: str, given: Any) -> Any:
    if given is None:
        return None
    tags = tuple(str(tag) for tag in ((given,) if isinstance(given, str) else given))
    for tag in tags:
        if not 0 < len(tag) <= MAX_TAG:
            raise UsageError(f"The tag {tag!r:.80} has {len(tag)} characters; give 1 to {MAX_TAG}.")
    return tags


def _text(name: str, given: Any) -> Any:
    return None if given is None else str(given)


def _moment(name: str, given: Any) -> Any:
    return None if given is None else RunMoment.parse(given)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys((name for name, default in _DEFAULTS.items() if isinstance(default, bool)), _boolean),
    **dict.fromkeys(("save_code", "sync_tensorboard"), _boolean),
    **dict.fromkeys(("entity", "root_dir", "run_group", "run_job_type", "run_name", "run_notes"), _text),
    **dict.fromkeys(("fork_from", "resume_from"), _moment),
    "console": _console,
    "mode": _mode,
    "project": _project,
    "reinit": _reinit,
    "resume": _resume,
    "run_id": _run_id,
    "run_tags": _tags,
}


class Settings:
    """Settings of a run, as ``wandb.init(settings=wandb.Settings(...))`` takes them.

    Args:
        settings: Settings by name, such as ``mode``, ``console`` or ``silent``; an unknown name is an error.

    Raises:
        UsageError: A name or a value is not accepted.
    """

    def __init__(self, **settings: Any) -> None:
        object.__setattr__(self, "_given", {})
        for name, value in settings.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        # wandb once called its internal settings _name, and calls them x_name now.
        name = f"x{name}" if name.startswith("_") else name
        if name not in _DEFAULTS and name not in _KEPT and not name.startswith("x_"):
            raise UsageError(f"{name!r} is not a setting of wandb. {closest(name, [*_DEFAULTS, *_KEPT])}")
        if name == "anonymous" and value is not None:
            termwarn("The anonymous setting has no effect.", repeat=False)
        self._given[name] = _CHECKS[name](name, value) if name in _CHECKS else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_given":
            raise AttributeError(name)
        name = f"x{name}" if name.startswith("_") else name
        given = self.__dict__["_given"]
        if name in given:
            return given[name]
        if name in _DEFAULTS:
            return _DEFAULTS[name]
        if name in _KEPT or name.startswith("x_"):
            return None
        raise AttributeError(f"{name!r} is not a setting of wandb. {closest(name, [*_DEFAULTS, *_KEPT])}")

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self._given.items() if name != 'api_key')})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self._given == other._given

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_disabled(self) -> bool:
        """Whether nothing is recorded."""
        return self.mode == "disabled" or mode() == "disabled"

    @property
    def is_offline(self) -> bool:
        """Whether ``mode="offline"`` was asked for."""
        return bool(self.mode == "offline")

    @property
    def is_shared(self) -> bool:
        """Whether several processes record one run."""
        return bool(self.mode == "shared")

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting, or the default where it was not given."""
        return self._given.get(name, default)

    def keys(self) -> Iterable[str]:
        """Return the names of the settings that were given."""
        return list(self._given)

    def model_dump(self) -> dict[str, Any]:
        """Return all settings by name."""
        return {**_DEFAULTS, **self._given}

    def model_copy(self, **options: Any) -> Self:
        """Return a copy.

        Args:
            options: ``update``: settings to change in it; ``deep`` is accepted.
        """
        copy = type(self)(**self._given)
        copy.update_from_dict(options.get("update") or {})
        return copy

    def update_from_dict(self, settings: Mapping[str, Any]) -> None:
        """Take over settings by name; None leaves one alone."""
        for name, value in settings.items():
            if value is not None:
                setattr(self, name, value)

    def update_from_settings(self, settings: "Settings") -> None:
        """Take over the settings that were given in another object."""
        self.update_from_dict(settings._given)

    def update_from_environment(self, environment: Mapping[str, str] | None = None) -> None:
        """Take over the variables ``WANDB_...``.

        Args:
            environment: The variables; those of the process by default.

        Raises:
            UsageError: A variable has a value that is not accepted.
        """
        variables = os.environ if environment is None else environment
        for variable, value in variables.items():
            name = _ENVIRONMENT.get(variable, variable.removeprefix("WANDB_").lower())
            is_known = variable.startswith("WANDB_") and name in _DEFAULTS
            if not is_known or (variable not in _ENVIRONMENT and name in _ENVIRONMENT.values()):
                continue
            if value == "" and name not in _FLAGS:
                continue
            listed = [part.strip() for part in value.split(",")] if name in ("run_tags", "ignore_globs") else value
            try:
                setattr(self, name, listed)
            except UsageError as error:
                raise UsageError(f"{variable}: {error}") from None
        # Names that settings do not have: an older one, and two with the opposite sense.
        if _boolean("WANDB_DISABLED", variables.get("WANDB_DISABLED", "")):
            self.mode = "disabled"
        if _boolean("WANDB_DISABLE_CODE", variables.get("WANDB_DISABLE_CODE", "")):
            self.save_code = False


def default_project(directory: Path | None = None, program: str | None = None) -> str:
    """Return the project of a run that names none: that of the environment, or the git repository's name.

    The name of the program's folder in the repository is added to it.

    Args:
        directory: Where to look for the repository; the working directory by default.
        program: The program's file.
    """
    if chosen := os.environ.get(PROJECT_VARIABLE, "").strip():
        return chosen
    here = Path.cwd() if directory is None else directory
    root = next((each for each in (here, *here.parents) if (each / ".git").exists()), None)
    if root is None:
        return "uncategorized"
    folder = (here / (program or sys.argv[0] or "x")).resolve().parent
    inside = folder.relative_to(root).as_posix() if folder.is_relative_to(root) else "."
    name = root.name if inside == "." else f"{root.name}-{inside.replace('/', '_')}"
    return re.sub(r"[/\\#?%:]", "_", name)[:128]
