"""Attaches hookline to the trainers that a script uses, through the extension point that each library offers.

| library | place |
|---|---|
| transformers, TRL, sentence-transformers | `attach`, at the first ``train()`` or ``evaluate()`` of a trainer |
| Lightning | the entry points ``lightning.pytorch.callbacks_factory`` |
| Keras | the callbacks of each ``fit`` and ``evaluate`` |
| XGBoost | the callbacks of each training |

A trainer that already has a callback of hookline is left alone. If attaching fails, the trainer runs without it.
"""

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from hookline._exec.script_run import current, join_script
from hookline.compat.patches import AfterImport

logger = logging.getLogger("hookline")

_OPTIONS: dict[str, Any] = {"summary": False}


def watch() -> None:
    """Attach the trainers of libraries when the script imports them."""
    AfterImport(
        {
            "transformers.trainer": _watch_transformers,
            "transformers.integrations.integration_utils": _register_reporting,
            "accelerate.tracking": _register_tracker,
            "keras.src.callbacks.callback_list": _watch_keras,
            "xgboost.callback": _watch_xgboost,
        }
    ).install()


def _is_trained_here() -> bool:
    """Whether a training on this thread can be recorded: a run's moments fire on the main thread only."""
    is_alive = current.run is None or not current.run.has_ended
    return current.is_attached and is_alive and threading.current_thread() is threading.main_thread()


def _tried(what: str, make: Callable[[], Any]) -> Any:
    """Return the result of `make`; log an error and return None, because the script must not fail."""
    try:
        return make()
    except Exception:
        logger.exception("hookline exec: %s is not recorded.", what)
        return None


def _watch_transformers(module: ModuleType) -> None:
    trainer_class = module.Trainer
    for name in ("train", "evaluate"):
        setattr(trainer_class, name, _attached_first(name, getattr(trainer_class, name)))


def _attached_first(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_trained_here() or _has_callback(trainer.callback_handler.callbacks):
            _join_reporting(trainer)
            return method(trainer, *args, **kwargs)
        callback = _tried(type(trainer).__name__, lambda: _attach_transformers(trainer))
        if callback is None:
            return method(trainer, *args, **kwargs)
        # Not through the trainer's own method, which led here: a subclass may have overridden it.
        observe = getattr(callback.attachment, f"_{name}")
        return observe(functools.partial(method, trainer), *args, **kwargs)

    return call


def _join_reporting(trainer: Any) -> None:
    """Make the callback of ``report_to="hookline"`` record into the script's run."""
    for each in trainer.callback_handler.callbacks:
        if type(each).__name__ == "ReportCallback" and each.loop.state == "created":
            join_script(each.loop)


def _attach_transformers(trainer: Any) -> Any:
    from hookline.integrations.transformers import attach

    callback = attach(trainer, **_OPTIONS)
    join_script(callback.loop)
    return callback


def _has_callback(callbacks: Sequence[Any]) -> bool:
    """Whether one of a trainer's callbacks is hookline's, added by the script or by an earlier call."""
    return any(type(each).__module__.startswith("hookline.") for each in callbacks)


def lightning_callbacks() -> list[Any]:
    """Return the callback for a new Lightning trainer, which calls this."""
    if not _is_trained_here():
        return []
    made = _tried("Lightning's trainer", _lightning_callback)
    return [] if made is None else [made]


def _lightning_callback() -> Any:
    from hookline._exec.lightning_callback import ScriptCallback

    callback = ScriptCallback(**_OPTIONS)
    join_script(callback.loop)
    return callback


_KERAS_CALLBACKS: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()
"""The callback of each model: a second ``fit`` may continue the first."""


def _register_reporting(module: ModuleType) -> None:
    class Reporting:
        """Makes the callback when a trainer asks for it: its class needs modules that are still being imported."""

        def __new__(cls) -> Any:
            from hookline.integrations.transformers.reporting import ReportCallback

            return ReportCallback(**_OPTIONS)

    module.INTEGRATION_TO_CALLBACK["hookline"] = Reporting


def _register_tracker(module: ModuleType) -> None:
    class Tracker(module.GeneralTracker):  # type: ignore[name-defined,misc]
        """Makes the tracker when an accelerator asks for it."""

        name, requires_logging_directory, main_process_only = "hookline", False, True

        def __new__(cls, run_name: str, **options: Any) -> Any:
            from hookline._exec.accelerate_tracker import ScriptTracker

            return ScriptTracker(run_name, **{**_OPTIONS, **options})

    module.LOGGER_TYPE_TO_CLASS["hookline"] = Tracker


def _watch_keras(module: ModuleType) -> None:
    list_class: Any = module.CallbackList
    construct = list_class.__init__

    @functools.wraps(construct)
    def init(self: Any, callbacks: Any = None, *args: Any, model: Any = None, **kwargs: Any) -> None:
        given = list(callbacks) if isinstance(callbacks, list | tuple) else [] if callbacks is None else [callbacks]
        if model is not None and _is_trained_here() and not _has_callback(given):
            own = _tried("Keras's model", lambda: _keras_callback(model))
            callbacks = callbacks if own is None else [*given, own]
        construct(self, callbacks, *args, model=model, **kwargs)

    list_class.__init__ = init


def _keras_callback(model: Any) -> Any:
    callback = _KERAS_CALLBACKS.get(model)
    if callback is None:
        from hookline.integrations.keras import HooklineCallback

        callback = _KERAS_CALLBACKS[model] = HooklineCallback(**_OPTIONS)
        join_script(callback.loop)
    return callback


def _watch_xgboost(module: ModuleType) -> None:
    container_class: Any = module.CallbackContainer
    construct = container_class.__init__

    @functools.wraps(construct)
    def init(self: Any, callbacks: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        if _is_trained_here() and not _has_callback(callbacks):
            own = _tried("XGBoost's training", _xgboost_callback)
            callbacks = callbacks if own is None else [*callbacks, own]
        construct(self, callbacks, *args, **kwargs)

    container_class.__init__ = init


def _xgboost_callback() -> Any:
    from hookline.integrations.xgboost import HooklineCallback

    callback = HooklineCallback(**_OPTIONS)
    join_script(callback.loop)
    return callback
