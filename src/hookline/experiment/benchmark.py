"""`Benchmark`: fixed tasks with a score for each output, and how benchmarks are named, built and scheduled.

- A benchmark returns the same tasks each time, at least one, with unique ids.
- Results are broken down by a task's tags: ``metadata["tags"]``, either a mapping of a kind to a value
  (``{"operator": "+"}``, shown as ``operator=+``) or a list of strings.
- A score that is a single number or a boolean is the metric ``accuracy``. Of several metrics the first is the main
  one. Every task has the same metrics; none is called ``n``, which is the number of tasks in a breakdown.
- Any object with ``name``, ``tasks()`` and ``score(task, output)`` is a benchmark.

    benchmarks:
      - sorting
      - arithmetic: {difficulty: medium, n: 50, every: 100}
      - use: my_package.benchmarks:Capitals
        with: {every: 100}
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from hookline._engine.checks import require_integer
from hookline._engine.errors import ConfigError, HooklineError, OptionError
from hookline._engine.factories import Source, checked_arguments, import_class, split_entry
from hookline._engine.moments import Callback
from hookline._engine.registry import Registry
from hookline.loops import rng
from hookline.rl.environments.base import describe_error
from hookline.rl.types import Task

BENCHMARKS = Registry(builtin_modules=("hookline.experiment.builtin_benchmarks",), group="hookline.benchmarks")
register_benchmark = BENCHMARKS.register

SEED = 0
"""The seed of all random states while tasks are made and answered."""
BATCH_SIZE = 64
MAX_TOKENS = 64
OPTIONS = ("name", "every", "batch_size", "max_tokens", "stop")
"""Options of every benchmark; a configuration may set them even if the constructor does not take them."""


class BenchmarkError(HooklineError, RuntimeError):
    """A benchmark cannot be scored: its tasks or a score are invalid."""


class BenchmarkLike(Protocol):
    """The interface that a benchmark needs to have."""

    @property
    def name(self) -> str:
        """The name in records and messages; not empty, without ``/``."""
        ...

    def tasks(self) -> Sequence[Task]:
        """Return the tasks, the same ones each time."""
        ...

    def score(self, task: Task, output: Any) -> float | Mapping[str, float]:
        """Score an output."""
        ...


class Benchmark(ABC):
    """The base class of benchmarks. Options are class attributes or constructor arguments.

        class Capitals(Benchmark):
            name = "capitals"
            every = 100

            def tasks(self):
                return [Task("The capital of France is", "Paris", metadata={"tags": {"continent": "Europe"}})]

            def score(self, task, output):
                return task.expected in output

    Attributes:
        name: The name in records and messages; not empty, without ``/``.
        every: Also score it during training, every N steps; by default only after training.
        batch_size: How many tasks a subject gets at once; the result does not depend on it.
        max_tokens: The most tokens that a policy generates for a task.
        stop: Strings that end a policy's output; they are not part of it.
    """

    name: str
    every: int | None = None
    batch_size: int = BATCH_SIZE
    max_tokens: int = MAX_TOKENS
    stop: Sequence[str] = ()

    def __init__(
        self,
        *,
        name: str | None = None,
        every: int | None = None,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
    ) -> None:
        given = (name, every, batch_size, max_tokens, stop)
        self.set_options({key: value for key, value in zip(OPTIONS, given, strict=True) if value is not None})

    @abstractmethod
    def tasks(self) -> Sequence[Task]:
        """Return the tasks, the same ones each time: held-out ones, drawn with a fixed seed."""

    @abstractmethod
    def score(self, task: Task, output: Any) -> float | Mapping[str, float]:
        """Score an output: a number, a boolean, or several numbers by name, the main one first."""

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Set some of the options.

        Raises:
            OptionError: A value is invalid; then nothing is set.
        """
        for key, value in options.items():
            _check_option(key, value)
        for key, value in options.items():
            setattr(self, key, value)


class _Adapted(Benchmark):
    """Wraps an object with the methods of a benchmark, using the options it has."""

    def __init__(self, given: Any) -> None:
        self.given = given
        self.set_options({key: getattr(given, key) for key in OPTIONS if hasattr(given, key)})

    def tasks(self) -> Sequence[Task]:
        tasks: Sequence[Task] = self.given.tasks()
        return tasks

    def score(self, task: Task, output: Any) -> float | Mapping[str, float]:
        score: float | Mapping[str, float] = self.given.score(task, output)
        return score


def as_benchmark(given: Any) -> Benchmark:
    """Wrap an object with a benchmark's methods; a `Benchmark` is returned unchanged.

    Raises:
        OptionError: A method or the name is missing, or an option is invalid.
    """
    if isinstance(given, type):
        raise OptionError(f"{given.__name__} is a class: give a benchmark, {given.__name__}(...).")
    missing = [call for call, arguments in _METHODS.items() if not _accepts(given, call, arguments)]
    if getattr(given, "name", None) is None:
        missing.insert(0, "name")
    if missing:
        raise OptionError(
            f"{given!r:.200} is not a benchmark, it has no {', no '.join(missing)}: give an object with a name, "
            "tasks() and score(task, output), or a subclass of Benchmark."
        )
    if not isinstance(given, Benchmark):
        return _Adapted(given)
    for key in OPTIONS:
        _check_option(key, getattr(given, key))
    return given


def checked_benchmark(given: Any) -> Benchmark:
    """`as_benchmark`, and check its tasks before any training.

    Raises:
        OptionError: A method or the name is missing, or an option is invalid.
        BenchmarkError: The tasks are invalid.
    """
    benchmark = as_benchmark(given)
    with isolated_random_state():
        checked_tasks(benchmark)
    return benchmark


def checked_tasks(benchmark: Benchmark) -> list[Task]:
    """The tasks of a benchmark: at least one, with unique ids and valid tags.

    Raises:
        BenchmarkError: The tasks are invalid.
    """
    try:
        tasks = list(benchmark.tasks())
    except Exception as error:
        raise BenchmarkError(f"benchmark {benchmark.name!r}: tasks() {describe_error(error)}") from error
    if not tasks:
        raise BenchmarkError(f"benchmark {benchmark.name!r}: tasks() returned none. Return at least one.")
    seen: dict[str, int] = {}
    for index, task in enumerate(tasks):
        if not isinstance(task, Task):
            raise BenchmarkError(f"benchmark {benchmark.name!r}: tasks()[{index}] is {task!r:.200}, not a Task.")
        if seen.setdefault(task.id, index) != index:
            raise BenchmarkError(
                f"benchmark {benchmark.name!r}: tasks()[{seen[task.id]}] and tasks()[{index}] both have the id "
                f"{task.id!r}. Remove one, or give each its own id."
            )
        try:
            tags_of(task)
        except OptionError as error:
            raise BenchmarkError(f"benchmark {benchmark.name!r}: task {task.id!r}: {error}") from error
    return tasks


def tags_of(task: Task) -> list[str]:
    """The tags of a task, without duplicates; kinds with the value None are left out.

    >>> tags_of(Task("3+4=", "7", metadata={"tags": {"operator": "+", "digits": 1, "source": None}}))
    ['operator=+', 'digits=1']

    Raises:
        OptionError: They are neither a mapping of kinds to values nor a list of strings.
    """
    given = task.metadata.get("tags")
    if given is None:
        return []
    if isinstance(given, Mapping) and all(isinstance(value, str | int | float | None) for value in given.values()):
        return [f"{kind}={value}" for kind, value in given.items() if value is not None]
    if isinstance(given, list | tuple) and all(isinstance(tag, str) and tag for tag in given):
        return list(dict.fromkeys(given))
    raise OptionError(f"tags={given!r:.200}: give a mapping such as {{'operator': '+'}}, or a list of strings.")


@contextmanager
def isolated_random_state() -> Iterator[None]:
    """Seed all random states inside, and restore them afterwards."""
    with rng.kept():
        rng.seed(SEED)
        yield


def make_benchmarks(entries: Iterable[Any] | None, *, source: Source | None = None) -> list[Benchmark]:
    """Make benchmarks from instances, names (``"sorting"``) and mappings of a name to settings, and check them.

    >>> [benchmark.name for benchmark in make_benchmarks(["sorting", {"arithmetic": {"n": 50, "every": 10}}])]
    ['sorting', 'arithmetic']

    Args:
        source: The configuration with ``benchmarks``, for errors with its file and line.

    Raises:
        ConfigError: An entry is invalid; the message says which, and what is accepted.
        OptionError: It is not a list of entries.
    """
    if entries is None:
        return []
    if isinstance(entries, str | Mapping) or not isinstance(entries, Iterable):
        raise OptionError(f"benchmarks={entries!r:.200}: give a list of benchmarks.")
    source = Source(entries) if source is None else source
    made: list[Benchmark] = []
    for index, entry in enumerate(entries):
        path = f"benchmarks[{index}]"
        try:
            if isinstance(entry, str | Mapping):
                name, arguments = split_entry(entry, "a benchmark")
                entry = _build(name, arguments, source, f"{path}.{name}")
            benchmark = checked_benchmark(entry)
        except ConfigError:
            raise
        except HooklineError as error:
            raise source.error(path, str(error)) from error
        if benchmark.name in (other.name for other in made):
            problem = f"another benchmark is called {benchmark.name!r} already. Give one of them another name."
            raise source.error(path, problem)
        made.append(benchmark)
    return made


def _build(name: str, arguments: Mapping[str, Any], source: Source, path: str) -> Benchmark:
    factory = import_class(name, ("tasks", "score")) if ":" in name else BENCHMARKS.find(name)
    own = _constructor_arguments(factory, arguments)
    checked = checked_arguments(factory, own, source, path)
    try:
        built = factory(**checked)
        if getattr(built, "name", None) is None and ":" not in name:
            built.name = name
        benchmark = as_benchmark(built)
        benchmark.set_options({key: value for key, value in arguments.items() if key not in own})
    except Exception as error:  # a constructor may raise anything; add the place in the file
        raise source.error(path, f"cannot be built: {type(error).__name__}: {error}") from error
    return benchmark


def _constructor_arguments(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without the `OPTIONS` that the constructor does not take; those are set afterwards."""
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:
        return dict(arguments)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments)
    return {key: value for key, value in arguments.items() if key in parameters or key not in OPTIONS}


_METHODS = {"tasks()": 0, "score(task, output)": 2}
"""The required methods, with their numbers of arguments."""


def _accepts(given: Any, call: str, arguments: int) -> bool:
    method = getattr(given, call.partition("(")[0], None)
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature
        return True
    return True


def _check_option(key: str, value: Any) -> None:
    if key == "name":
        accepted = isinstance(value, str) and bool(value.strip()) and "/" not in value
        wanted = "a non-empty string without '/'"
    elif key == "stop":
        accepted = isinstance(value, list | tuple) and all(isinstance(text, str) and text for text in value)
        wanted = "a list of non-empty strings"
    else:
        require_integer(key, value, optional=key == "every")
        return
    if not accepted:
        raise OptionError(f"{key}={value!r:.200}: give {wanted}.")


class BenchmarkCallback(Callback):
    """Scores benchmarks during training, each every N steps.

    A benchmark is scored at the end of its step, before a checkpoint of the step is saved. It is recorded after the
    step's row: a checkpoint rule that monitors it sees a complete step, as after a validation.

    Args:
        benchmarks: Benchmarks with an ``every``.
        score: Called with a benchmark; returns its result and the predictions, or None if it failed.
        record: Called with the loop, the result and the predictions.
    """

    name = "benchmarks"
    priority = -1000  # after all other subscribers of the step
    critical = True  # `score` handles failing benchmarks, so any exception is a critical subscriber's

    def __init__(
        self, benchmarks: Sequence[Any], score: Callable[[Any], Any], record: Callable[[Any, Any, Any], None]
    ) -> None:
        self._benchmarks, self._score, self._record = list(benchmarks), score, record
        self._scored: list[tuple[Any, Any]] = []

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        """Score the benchmarks that are due after this step."""
        due = [benchmark for benchmark in self._benchmarks if loop.step % benchmark.every == 0]
        self._scored = [scored for scored in map(self._score, due) if scored is not None]

    def on_log(self, loop: Any, step: int, metrics: Any) -> None:
        """Record the scores: the step's row is written."""
        scored, self._scored = self._scored, []
        for result, predictions in scored:
            self._record(loop, result, predictions)
