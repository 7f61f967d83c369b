"""Plain functions as subscribers: one moment (`on`), a logger function, a dict of hook functions.

`on("step_end", fn)` calls ``fn`` with the moment's arguments. A logger function is called ``fn(report_data, step)``
once per step and once per validation, with plain Python numbers. A dict of hook functions has up to eight names; each
function is called ``fn(worker, report_data)``.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

from hookline._engine.background import SLOW_CALLS
from hookline._engine.binding import bind_function, is_async
from hookline._engine.errors import MomentError, UnknownNameError, closest
from hookline._engine.metrics import Deferred, MetricsRow, find_metric, plain
from hookline._engine.moments import MOMENTS, Callback
from hookline._engine.subscriber import WRITER_PRIORITY

Function = Callable[..., Any]


class FunctionCallback(Callback):
    """A function that subscribes to one moment; it can still be called as a function."""

    def __init__(self, moment: str, function: Function) -> None:
        name = _moment_name(moment)
        # Checked here too, not only by add(): the error then points at the line with on().
        bind_function(function, MOMENTS[name], who=f"on({moment!r})")
        self.function = function
        self._default_name = function_name(function, otherwise=name)
        # On the instance: the class subscribes to nothing, each object to one moment.
        vars(self)[name] = function
        # Without __dict__: attributes of the function must not become attributes, and so options, of the subscriber.
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle one that replaces its function in a module, as a decorator does, by that name."""
        name = getattr(self.function, "__qualname__", "")
        module = sys.modules.get(getattr(self.function, "__module__", ""))
        # Pickle finds the decorated object under the function's name and would refuse the function itself as another
        # object.
        return name if getattr(module, name, None) is self else (_rebuild, (type(self), dict(vars(self))))


def _moment_name(moment: Any) -> str:
    if not isinstance(moment, str):
        raise MomentError(f"on({moment!r}): give the moment first, e.g. hl.on('step_end', fn).")
    name = moment if moment.startswith("on_") else f"on_{moment}"
    if name not in MOMENTS:
        raise MomentError(f"{moment!r} is not a moment. {closest(name, MOMENTS)}")
    return name


def _rebuild(kind: type[FunctionCallback], attributes: dict[str, Any]) -> FunctionCallback:
    callback = kind.__new__(kind)
    vars(callback).update(attributes)
    return callback


@overload
def on(moment: str, function: Function, **options: Any) -> FunctionCallback: ...
@overload
def on(moment: str, function: None = None, **options: Any) -> Callable[[Function], FunctionCallback]: ...
def on(
    moment: str, function: Function | None = None, **options: Any
) -> FunctionCallback | Callable[[Function], FunctionCallback]:
    """Subscribe a function to a moment: ``on("step_end", fn, every=10)``, or as a decorator ``@on("step_end")``.

    Args:
        moment: A moment's name, with or without ``on_``.
        function: Called with the moment's arguments; it may leave off trailing ones.
        **options: Those of any subscriber: ``every``, ``start``, ``when``, ``priority``, ``name``, ...
    """
    _moment_name(moment)  # a mistake in a decorator shows where it is written

    def subscribe(subscribed: Function) -> FunctionCallback:
        return FunctionCallback(moment, subscribed).configure(**options)

    return subscribe if function is None else subscribe(function)


_SLOW_ADVICE = "Training waits for it unless it was added with background=True. A function in sinks= delays nothing."


class LoggerFunction(Callback):
    """A function called ``fn(report_data, step)`` after each step and each validation, on rank zero."""

    priority = WRITER_PRIORITY
    ranks = "zero"

    def __init__(self, function: Function) -> None:
        require_two_arguments(function, "a logger function", "(report_data, step)")
        self.function = function
        self._default_name = function_name(function, otherwise="logger_function")
        # Binding looks at the function to decide whether to await it, so an async logger needs async methods.
        if is_async(function):
            vars(self).update(on_step_end=self._log_async, on_eval=self._log_async)

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: Mapping[str, Any], /) -> None:
        self._log(report_of(metrics), step_idx + 1)

    def on_eval(self, loop: Any, step_idx: int, eval_name: str, metrics: Mapping[str, Any], /) -> None:
        self._log(report_of(metrics), step_idx + 1)

    def close(self) -> None:
        SLOW_CALLS.close()

    def _log(self, report: dict[str, Any], step: int) -> None:
        SLOW_CALLS.begin(self, self.name, step, _SLOW_ADVICE)
        try:
            self.function(report, step)
        finally:
            SLOW_CALLS.end(self)

    async def _log_async(self, loop: Any, step_idx: int, what: Any, values: Mapping[str, Any], /) -> None:
        # Not watched for slowness: nothing waits for it.
        await self.function(report_of(values), step_idx + 1)


def report_of(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics as a dict of plain numbers; values on a device are read when the function reads them."""
    # Values that have arrived become a plain dict, which a function may pass on to anything, e.g. json.
    if not isinstance(metrics, MetricsRow) or not metrics.is_waiting():
        return dict(plain(metrics))
    row = MetricsRow()
    row.update({name: value if type(value) is Deferred else plain(value) for name, value in dict.items(metrics)})
    return row


class HookFunction(Callback):
    """One of the eight hook functions, called ``fn(worker, report_data)``."""

    def __init__(self, hook_name: str, function: Function) -> None:
        if hook_name not in HOOK_FUNCTIONS:
            raise UnknownNameError(f"{hook_name!r} is not a hook function. {closest(str(hook_name), HOOK_FUNCTIONS)}")
        require_two_arguments(function, f"hook function {hook_name!r}", "(worker, report_data)")
        moment, report = HOOK_FUNCTIONS[hook_name]
        self.function, self.report = function, report
        self._default_name = hook_name
        vars(self)[moment] = self._call_async if is_async(function) else self._call

    def _call(self, loop: Any, *arguments: Any) -> Any:
        return self.function(getattr(loop, "worker", loop), self.report(loop, *arguments))

    async def _call_async(self, loop: Any, *arguments: Any) -> Any:
        return await self._call(loop, *arguments)


def hook_functions(functions: Mapping[str, Function | Iterable[Function]]) -> list[HookFunction]:
    """Return the subscribers for a dict of hook functions; a name may have one function or several."""
    made = []
    for name, given in functions.items():
        several: Iterable[Any] = given if isinstance(given, list | tuple) else [given]
        made += [HookFunction(name, function) for function in several]
    return made


def _pre_training(loop: Any) -> dict[str, Any]:
    return {
        "total_epochs": loop.num_epochs,
        "total_steps": loop.num_steps,
        "start_epoch": getattr(loop, "next_epoch", loop.epoch),
        "start_step": loop.step,
    }


def _pre_step(loop: Any, step_idx: int) -> dict[str, Any]:
    return {"current_epoch": loop.epoch, "current_step": loop.step, "total_steps": loop.num_steps}


def _post_step(loop: Any, step_idx: int, batch: Any, metrics: Mapping[str, Any]) -> dict[str, Any]:
    report = report_of(metrics)
    report.update(_pre_step(loop, step_idx))
    return report


def _post_training(loop: Any, artifacts: Any) -> dict[str, Any]:
    return {
        "final_epoch": loop.epoch,
        "final_step": loop.step,
        "total_steps": loop.num_steps,
        "final_val_loss": _validation_loss(loop),
    }


def _pre_validation(loop: Any) -> dict[str, Any]:
    # `step` counts completed steps; a validation inside of a step belongs to the one that is not complete yet.
    current = loop.step + bool(getattr(loop, "in_step", False))
    return {"current_epoch": loop.epoch, "is_last_step": loop.num_steps is not None and current >= loop.num_steps}


def _pre_validation_batch(loop: Any, batch: Any, batch_idx: int) -> dict[str, Any]:
    return {"current_epoch": loop.epoch, "batch_index": batch_idx}


def _post_validation_batch(loop: Any, outputs: Any, batch: Any, batch_idx: int) -> dict[str, Any]:
    # The loss or score if the outputs name one.
    if isinstance(outputs, Mapping):
        outputs = next((outputs[key] for key in ("loss", "val/loss", "val_loss", "score") if key in outputs), None)
    return {"current_epoch": loop.epoch, "batch_index": batch_idx, "val_score": plain(outputs)}


def _post_validation(loop: Any) -> dict[str, Any]:
    return {"current_epoch": loop.epoch, "val_avg_loss": _validation_loss(loop)}


HOOK_FUNCTIONS: Mapping[str, tuple[str, Callable[..., dict[str, Any]]]] = {
    "pre_training_hook": ("on_train_start", _pre_training),
    "pre_training_step_hook": ("on_step_start", _pre_step),
    "post_training_step_hook": ("on_step_end", _post_step),
    "post_training_hook": ("on_train_end", _post_training),
    "pre_validation_hook": ("on_validation_start", _pre_validation),
    "pre_per_step_validation_hook": ("on_validation_batch_start", _pre_validation_batch),
    "post_per_step_validation_hook": ("on_validation_batch_end", _post_validation_batch),
    "post_validation_hook": ("on_validation_end", _post_validation),
}
"""The names of hook functions, with the moment at which each is called and the function that makes its report_data."""


def _validation_loss(loop: Any) -> Any:
    """Return the loss of the latest validation under any prefix; None before the first."""
    for name, value in getattr(loop, "validation_metrics", {}).items():
        if name.rpartition("/")[2] == "loss":
            return plain(value)
    return plain(find_metric(loop.metrics, "val/loss"))


def function_name(function: Function, *, otherwise: str) -> str:
    """Return a function's name as a subscriber's name; lambdas and partials have none."""
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else otherwise


def require_two_arguments(function: Any, what: str, wanted: str) -> None:
    """Refuse a function that cannot be called with two arguments."""
    # A class can be called with two arguments as well, and would be: the instance would be made and thrown away.
    if isinstance(function, type) or not callable(function):
        raise MomentError(f"{function!r} is not {what}: give a function {wanted}.")
    try:
        signature = inspect.signature(function)
        signature.bind(None, None)
    except ValueError:
        return  # some built-ins have no signature
    except TypeError:
        raise MomentError(
            f"{getattr(function, '__name__', function)}{signature} cannot be {what}: it is called with two arguments, "
            f"{wanted}. To call a function at one moment, use hl.on('step_end', fn)."
        ) from None
