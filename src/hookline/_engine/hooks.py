"""Hooks: objects that decide (`should_run`) and act (`run`) on a context.

A hook can be registered with a `HookManager`, which a worker runs once per step, or added to any `CallbackCollection`,
which runs it after each step. Order, isolation, cadence, background work and costs are those of any subscriber. A
mistake in a hook's definition is an error when it is added, not at a later step.

A context holds a random generator of Python, NumPy, torch or JAX and splits it. The library is recognized by the
generator's module, so splitting imports nothing.
"""

import importlib
import inspect
import logging
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from hookline._engine.background import LoopSnapshot
from hookline._engine.binding import is_async
from hookline._engine.errors import MomentError, OptionError
from hookline._engine.factories import import_function
from hookline._engine.metrics import copied, plain
from hookline._engine.registry import register
from hookline._engine.schedules import Every
from hookline._engine.subscriber import Subscriber

logger = logging.getLogger("hookline.hooks")


@dataclass
class HookContext:
    """The arguments of a hook: the worker, the step, a random generator, the lesson, and metadata of the step."""

    worker: Any
    step: int
    rng: Any = None
    lesson_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The worker's rank."""
        return int(getattr(self.worker, "rank", 0))

    def split_rng(self) -> tuple[Any, Any]:
        """Return two new generators, different from each other and from all earlier ones."""
        self.rng, first, second = split_generator(self.rng)
        return first, second

    def snapshot(self) -> "HookContext":
        """Return a copy for a hook that runs later on another thread."""
        rng = None if self.rng is None else self.split_rng()[0]
        return replace(self, rng=rng, metadata=copied(self.metadata))


class Hook(Subscriber, ABC):
    """Decides whether to run at a step, and runs. ``run`` may be ``async`` and may return a dict of metrics."""

    @abstractmethod
    def should_run(self, context: HookContext) -> bool:
        """Return whether to run at this step."""

    @abstractmethod
    def run(self, context: HookContext) -> Any:
        """Act; a returned dict is recorded."""


class PeriodicHook(Hook):
    """Runs every ``frequency`` steps, after the first ``start_step`` steps.

    Args:
        frequency: In steps.
        start_step: How many steps to skip at the beginning.
    """

    _required_attributes = ("frequency", "start_step")

    def __init__(self, frequency: int, start_step: int = 0) -> None:
        try:
            every = Every(frequency, start_step)
        except OptionError:
            raise OptionError(
                f"{type(self).__name__}(frequency={frequency!r}, start_step={start_step!r}): "
                "frequency is a whole number of at least 1, start_step one of at least 0. "
                "To leave a hook out, do not register it."
            ) from None
        self.frequency, self.start_step = every.n, every.start

    def should_run(self, context: HookContext) -> bool:
        return self.due(context.step)

    def due(self, step: int) -> bool:
        """Return whether the hook is due at a step."""
        return step > self.start_step and step % self.frequency == 0


@register("logging_hook")
class LoggingHook(PeriodicHook):
    """Logs the step, the lesson, and the numbers in the context's metadata.

    The lines go to the logger ``hookline.hooks``. Python does not show INFO by default; enable it, e.g. with
    ``logging.basicConfig(level=logging.INFO)``.

    Args:
        level: The logging level of the lines.
    """

    def __init__(self, frequency: int = 100, start_step: int = 0, *, level: int = logging.INFO) -> None:
        super().__init__(frequency, start_step)
        self.level = level

    def run(self, context: HookContext) -> None:
        facts = [f"step {context.step}"]
        if context.lesson_id is not None:
            facts.append(f"lesson {context.lesson_id}")
        for key, value in context.metadata.items():
            value = plain(value)
            facts.append(f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}")
        logger.log(self.level, "%s", ", ".join(facts))


@register("metrics_hook")
class MetricsHook(PeriodicHook):
    """Collects custom metrics: ``metrics_fn(context)`` returns a dict, which is recorded.

    Args:
        metrics_fn: The function, or its import path: ``"package.module:function"``, as in a configuration file.
    """

    def __init__(
        self, frequency: int, metrics_fn: Callable[[HookContext], Mapping[str, Any]] | str, start_step: int = 0
    ) -> None:
        super().__init__(frequency, start_step)
        if isinstance(metrics_fn, str):
            metrics_fn = import_function(metrics_fn)
        if not callable(metrics_fn):
            raise OptionError(f"metrics_fn={metrics_fn!r}: give a function that takes the context and returns a dict.")
        _require_callable_with_context(metrics_fn, "metrics_fn")
        self.metrics_fn = metrics_fn

    def run(self, context: HookContext) -> dict[str, Any]:
        return dict(self.metrics_fn(context))


@register("checkpoint_hook")
class CheckpointHook(PeriodicHook):
    """Asks the worker for a checkpoint at the next step boundary."""

    def __init__(self, frequency: int = 1000, start_step: int = 0) -> None:
        super().__init__(frequency, start_step)

    def unsupported(self, loop: Any) -> str:
        """Return why it cannot work in a loop; empty if it can."""
        return getattr(loop, "no_checkpoints", None) or ""

    def run(self, context: HookContext) -> None:
        context.worker.request_checkpoint()


def as_hook_list(hooks: Any) -> list[Hook]:
    """Return the hooks of a list or another iterable; refuse a single hook."""
    if isinstance(hooks, str | Mapping | type | Hook) or not isinstance(hooks, Iterable):
        raise MomentError(f"hooks={hooks!r}: give a list of hooks, e.g. [LoggingHook(100)].")
    return list(hooks)


def require_valid_hook(hook: Any) -> None:
    """Refuse a hook whose methods cannot be called, or whose base class was not initialized."""
    if not isinstance(hook, Hook):
        raise MomentError(f"{hook!r} is not a hook: give an instance of a subclass of hookline.hooks.Hook.")
    who = type(hook).__name__
    for method in ("should_run", "run"):
        _require_callable_with_context(getattr(hook, method), f"{who}.{method}")
        # The class whose method is used may need attributes that its own __init__ sets.
        owner = next((kind for kind in type(hook).__mro__ if method in vars(kind)), type(hook))
        for name in vars(owner).get("_required_attributes", ()):
            if not hasattr(hook, name):
                call = f"its __init__ must call that of {owner.__name__}, super().__init__(...)"
                raise MomentError(f"{who} has no {name}: {call}.")
    if is_async(hook.should_run):
        raise MomentError(f"{who}.should_run is async, so it would always hold: write def should_run. Only run may be.")


def _require_callable_with_context(function: Callable[..., Any], name: str) -> None:
    if not callable(function):
        raise MomentError(f"{name} is {function!r}; give a function that takes a context.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-ins have none
        return
    try:
        signature.bind(None)
    except TypeError:
        raise MomentError(
            f"{name} cannot be called with a context.\n"
            f"    it is defined as    {name}{signature}\n"
            f"    it is called as     {name}(context)"
        ) from None


class _StepContext(HookContext):
    """A context that creates its generator on first use: seeding one costs more than most hooks."""

    _rng: Any = None
    seed = ""

    @property
    def rng(self) -> Any:
        """A generator seeded from the step: the same after a resume, and independent of the loop's own."""
        if self._rng is None:
            self._rng = random.Random(self.seed)
        return self._rng

    @rng.setter
    def rng(self, value: Any) -> None:
        self._rng = value


def step_context(loop: Any, step: int, name: str = "") -> HookContext:
    """Return the context that all hooks of a loop share at a step.

    A hook on another thread gets one of its own, seeded by its ``name``: the order of threads must not decide which
    random numbers it draws.
    """
    alone = isinstance(loop, LoopSnapshot)
    context = None if alone else getattr(loop, "_hook_context", None)
    if context is None or context.step != step:
        metadata = copied(getattr(loop, "metrics", {}))
        context = _StepContext(loop, step, None, getattr(loop, "lesson_id", None), metadata)
        context.seed = f"hookline/{step}/{name}" if alone else f"hookline/{step}"
        if not alone:
            loop._hook_context = context
    return context


GeneratorKind = Literal["python", "numpy", "torch", "jax"]
"""The libraries whose generators `make_generator` and `split_generator` support."""


def make_generator(kind: GeneratorKind, seed: str) -> Any:
    """Return a generator of a library, or a JAX key, that depends on the seed only."""
    if kind == "python":
        return random.Random(seed)
    if kind not in get_args(GeneratorKind):
        raise OptionError(f"rng={kind!r}: give one of {', '.join(map(repr, get_args(GeneratorKind)))}.")
    number = random.Random(seed).getrandbits(31)
    try:
        library = importlib.import_module(kind)
    except ImportError as error:
        raise OptionError(f"rng={kind!r} needs the package {kind}, which is not installed.") from error
    if kind == "numpy":
        return library.random.default_rng(number)
    return library.Generator().manual_seed(number) if kind == "torch" else library.random.PRNGKey(number)


def split_generator(rng: Any) -> tuple[Any, Any, Any]:
    """Return the advanced generator and two new ones of its kind, all different."""
    library = type(rng).__module__.partition(".")[0]
    if isinstance(rng, random.Random):
        return rng, random.Random(rng.getrandbits(64)), random.Random(rng.getrandbits(64))
    if library == "numpy" and hasattr(rng, "spawn"):
        first, second = rng.spawn(2)
        return rng, first, second
    if library == "torch" and hasattr(rng, "manual_seed"):
        return rng, _torch_child(rng), _torch_child(rng)
    if "jax" in sys.modules and _is_jax_key(rng):
        return tuple(sys.modules["jax"].random.split(rng, 3))
    raise OptionError(
        f"rng={rng!r} cannot be split; give a numpy.random.Generator, a torch.Generator, a JAX key or a random.Random."
    )


def _torch_child(rng: Any) -> Any:
    torch = sys.modules["torch"]
    seed = torch.empty((), dtype=torch.int64, device=rng.device).random_(generator=rng).item()
    return torch.Generator(device=rng.device).manual_seed(seed)


def _is_jax_key(rng: Any) -> bool:
    """Whether it is a typed key, or the older form: an array of unsigned integers whose last axis has length two."""
    jax = sys.modules["jax"]
    if isinstance(rng, jax.Array) and jax.numpy.issubdtype(rng.dtype, jax.dtypes.prng_key):
        return True
    return str(getattr(rng, "dtype", "")) == "uint32" and getattr(rng, "shape", ())[-1:] == (2,)
