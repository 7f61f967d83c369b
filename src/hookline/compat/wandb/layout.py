"""wandb's module layout: ``wandb.sdk.lib.config_util``, ``wandb.apis.public`` and other modules programs import from.

The modules are made from a table when they are first used: their names are objects of this package, so a class is the
same wherever it is imported from. Modules for other frameworks (``wandb.integration``) say what to use instead.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from hookline.compat.wandb import (
    active,
    artifacts,
    configuration,
    data_types,
    env,
    errors,
    lifecycle,
    metrics,
    run_summary,
    settings,
    table,
    terminal,
    util,
    values,
    wandb_run,
)
from hookline.compat.wandb import plot as plots
from hookline.compat.wandb.agents import agent, controller, sweep

PACKAGE = active.PACKAGE
Names = Mapping[str, Any]


class RunDisabled:
    """The run of old versions with ``mode="disabled"``; only its name is used."""


class SummaryDisabled(dict[str, Any]):
    """The summary of a run of old versions with ``mode="disabled"``; only its name is used."""


class InternalApi:
    """``wandb.api``, as far as programs use it before `init`.

    Attributes:
        api_key: The key of the environment; hookline needs none.
    """

    @property
    def api_key(self) -> str | None:
        """The key of the environment."""
        import os

        return os.environ.get(env.API_KEY)

    @property
    def default_entity(self) -> str | None:
        """The entity of the environment."""
        return env.get_entity()

    def settings(self, key: str | None = None, *_: Any) -> Any:
        """Return the project, the entity and so on, or one of them."""
        found = {"project": active.current_project(), "entity": env.get_entity(), "base_url": "", "mode": "online"}
        return found if key is None else found.get(key)

    def set_setting(self, key: str, value: Any) -> None:
        """Set the project or the entity of the environment."""
        setter = {"project": env.set_project, "entity": env.set_entity}.get(key)
        if setter is not None:
            setter(str(value))


def _public(module: ModuleType) -> Names:
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


def _refused(name: str, instead: str) -> Callable[[str], NoReturn]:
    def missing(attribute: str) -> NoReturn:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise AttributeError(f"hookline's drop-in has no wandb.{name}.{attribute}. {instead}")

    return missing


_INTEGRATIONS = {
    "catboost": "Use hookline.integrations.catboost.",
    "gym": "Log videos with wandb.Video.",
    "keras": "Use hookline.integrations.keras.HooklineCallback.",
    "lightgbm": "Use hookline.integrations.lightgbm.HooklineCallback.",
    "sacred": "Log with wandb.log.",
    "sb3": "Use hookline.integrations.stable_baselines3.HooklineCallback.",
    "sklearn": "Use wandb.plot, or hookline.integrations.sklearn.HooklineCallback.",
    "tensorboard": "Use wandb.init(sync_tensorboard=True), or wandb.tensorboard.patch().",
    "tensorflow": "Log with wandb.log.",
    "ultralytics": "Log with wandb.log in a callback of ultralytics.",
    "xgboost": "Use hookline.integrations.xgboost.HooklineCallback.",
}
"""Modules of wandb for other frameworks, and what to use instead."""


def _lazy_public_api() -> Names:
    return _public(import_module(f"{PACKAGE}.public_api"))


_DATA = _public(data_types)
_TENSORBOARD = {"patch": lifecycle.patch_tensorboard, "unpatch": lifecycle.unpatch_tensorboard}
_TABLE: dict[str, Names | Callable[[], Names]] = {
    "apis": {"InternalApi": InternalApi},
    "apis.internal": {"Api": InternalApi},
    "apis.public": _lazy_public_api,
    "apis.public.api": _lazy_public_api,
    "apis.public.runs": _lazy_public_api,
    "data_types": _DATA,
    "env": _public(env),
    "errors": _public(errors),
    "errors.errors": _public(errors),
    "errors.term": _public(terminal),
    "integration": {},
    "plot": {name: getattr(plots, name) for name in plots.__all__},
    "sdk": {
        "AlertLevel": wandb_run.AlertLevel,
        "Artifact": artifacts.Artifact,
        "Config": configuration.Config,
        "Settings": settings.Settings,
        "controller": controller,
        "finish": lifecycle.finish,
        "init": lifecycle.init,
        "login": lifecycle.login,
        "require": lifecycle.require,
        "setup": lifecycle.setup,
        "sweep": sweep,
        "teardown": lifecycle.teardown,
    },
    "sdk.artifacts": {"Artifact": artifacts.Artifact},
    "sdk.artifacts.artifact": {"Artifact": artifacts.Artifact},
    "sdk.artifacts.exceptions": {"ArtifactNotLoggedError": artifacts.ArtifactNotLoggedError},
    "sdk.data_types": _DATA,
    "sdk.data_types.base_types": {},
    "sdk.data_types.base_types.media": _DATA,
    "sdk.data_types.base_types.wb_value": {"WBValue": values.WBValue},
    "sdk.data_types.histogram": {"Histogram": data_types.Histogram},
    "sdk.data_types.html": {"Html": data_types.Html},
    "sdk.data_types.image": {"Image": data_types.Image},
    "sdk.data_types.table": _public(table),
    "sdk.data_types.video": {"Video": data_types.Video},
    "sdk.lib": {"RunDisabled": RunDisabled},
    "sdk.lib.config_util": {
        "ConfigError": errors.ConfigError,
        "dict_from_config_file": configuration.config_from_file,
    },
    "sdk.lib.disabled": {"RunDisabled": RunDisabled, "SummaryDisabled": SummaryDisabled},
    "sdk.lib.ipython": {"in_jupyter": wandb_run.is_notebook, "in_notebook": wandb_run.is_notebook},
    "sdk.lib.runid": {"generate_id": util.generate_id},
    "sdk.lib.telemetry": {},
    "sdk.wandb_alerts": {"AlertLevel": wandb_run.AlertLevel},
    "sdk.wandb_artifacts": {"Artifact": artifacts.Artifact},
    "sdk.wandb_config": {"Config": configuration.Config, "ConfigStatic": configuration.ConfigStatic},
    "sdk.wandb_helper": {"parse_config": configuration.parse_config},
    "sdk.wandb_init": {"init": lifecycle.init},
    "sdk.wandb_login": {"login": lifecycle.login},
    "sdk.wandb_metric": {"Metric": metrics.Metric},
    "sdk.wandb_require": {"require": lifecycle.require},
    "sdk.wandb_run": _public(wandb_run),
    "sdk.wandb_settings": {"Settings": settings.Settings},
    "sdk.wandb_setup": {"setup": lifecycle.setup, "teardown": lifecycle.teardown},
    "sdk.wandb_summary": {"Summary": run_summary.Summary, "SummarySubDict": run_summary.SummarySubDict},
    "sdk.wandb_sweep": {"controller": controller, "sweep": sweep},
    "util": _public(util),
    "wandb_agent": {"agent": agent},
    "wandb_controller": {"Controller": controller},
    "wandb_run": _public(wandb_run),
    **{f"plot.{name}": {name: getattr(plots, name)} for name in plots.__all__ if name.islower()},
    **{f"integration.{name}": {} for name in _INTEGRATIONS},
    **{name: {} for name in _INTEGRATIONS if name not in ("sb3", "ultralytics")},
    **dict.fromkeys(("tensorboard", "integration.tensorboard"), _TENSORBOARD),
}
"""The names in each module of wandb."""
_made: dict[str, ModuleType] = {}


def has_module(name: str) -> bool:
    """Return whether wandb has a module of a name, as far as the drop-in knows."""
    return name in _TABLE


def module(name: str) -> ModuleType:
    """Return a module of wandb by its name in the package, such as ``sdk.lib``."""
    found = _made.get(name)
    if found is not None:
        return found
    names = _TABLE[name]
    made = _made[name] = ModuleType(f"wandb.{name}", f"The names of wandb.{name}, in hookline's drop-in.")
    made.__path__ = []
    vars(made).update(names() if callable(names) else names)
    last = name.rpartition(".")[2]
    if last in _INTEGRATIONS:
        made.__getattr__ = _refused(name, _INTEGRATIONS[last])  # type: ignore[method-assign]
    for child in _TABLE:
        parent, _, own = child.rpartition(".")
        if parent == name and own not in vars(made):
            setattr(made, own, module(child))
    return made
