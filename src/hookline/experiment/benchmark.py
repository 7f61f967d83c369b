"""`Benchmark`: the same tasks for every subject, and a score for each output; how benchmarks are named and built.

- A benchmark gives the same tasks each time, with different ids, and at least one.
- A task's tags are what results are broken down by: ``metadata["tags"]``, either a mapping of a kind to a value
  (``{"operator": "+"}``, shown as ``operator=+``) or a list of texts.
- A score that is one number, or a truth value, is the metric ``accuracy``. With several metrics the first is the main
  one. Every task has the same metrics; none is called ``n``, which is the number of tasks in a breakdown.
- An object with ``name``, ``tasks()`` and ``score(task, output)`` is a benchmark too, whatever its class.

    benchmarks:
      - sorting
      - arithmetic: {difficulty: medium, n: 50, every: 100}
      - use: my_package.benchmarks:Capitals
        with: {every: 100}

`BenchmarkCallback`: scores benchmarks within a training, each after every so many steps.

A benchmark is scored at the end of its step, before a checkpoint of the step is saved. It is recorded once the step's
row is written: a checkpoint rule that monitors it finds the step complete, as after a validation.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

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
"""The seed of the libraries while tasks are made and subjects are asked."""
BATCH_SIZE = 64
MAX_TOKENS = 64
OPTIONS = ("name", "every", "batch_size", "max_tokens", "stop")
"""What every benchmark has and a configuration may set, whether or not its constructor takes it."""


class BenchmarkError(HooklineError, RuntimeError):
    """A benchmark that cannot be scored: its tasks, or the score of one of them, are not as they must be."""


class BenchmarkLike(Protocol):
    """What is needed of a benchmark."""

    @property
    def name(self) -> str:
        """What it is called in records and messages; not empty, without ``/``."""
        ...

    def tasks(self) -> Sequence[Task]:
        """The tasks, the same ones each time."""
        ...

    def score(self, task: Task, output: Any) -> float | Mapping[str, float]:
        """How good an output is."""
        ...


class Benchmark(ABC):
    """The base of benchmarks. Options are class attributes, or are given to the constructor.

        class Capitals(Benchmark):
            name = "capitals"
            every = 100

            def tasks(self):
                return [Task("The capital of France is", "Paris", metadata={"tags": {"continent": "Europe"}})]

            def score(self, task, output):
                return task.expected in output

    Attributes:
        name: What it is called in records and messages; not empty, without ``/``.
        every: Score it within the training after every so many completed steps, and after the training; without it
            only after the training.
        batch_size: How many tasks a subject is asked at once; the result does not depend on it.
        max_tokens: The most tokens that a policy writes for a task.
        stop: Texts that end what a policy writes; they are not part of the output.
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
        """The tasks, the same ones each time: held-out ones, drawn with a fixed seed."""

    @abstractmethod
    def score(self, task: Task, output: Any) -> float | Mapping[str, float]:
        """How good an output is: a number, a truth value, or several numbers by name, the main one first."""

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Set some of the options.

        Raises:
            OptionError: A value is not accepted; nothing is set then.
        """
        for key, value in options.items():
            _check_option(key, value)
        for key, value in options.items():
            setattr(self, key, value)


class _Adapted(Benchmark):
    """An object with the methods of a benchmark, and with its options where it has them."""

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
    """A benchmark from an object that has what is needed of one; a `Benchmark` is given back itself.

    Raises:
        OptionError: Something is missing, cannot be called, or has a value that is not accepted.
    """
    if isinstance(given, type):
        raise OptionError(f"{given.__name__} is a class: give a benchmark, {given.__name__}(...).")
    missing = [call for call, arguments in _NEEDED.items() if not _takes(given, call, arguments)]
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
    """`as_benchmark`, with its tasks checked as well: what is wrong is better known before a training than after it.

    Raises:
        OptionError: Something is missing, cannot be called, or has a value that is not accepted.
        BenchmarkError: The tasks are not as they must be.
    """
    benchmark = as_benchmark(given)
    with isolated_random_state():
        checked_tasks(benchmark)
    return benchmark


def checked_tasks(benchmark: Benchmark) -> list[Task]:
    """The tasks of a benchmark: at least one, with different ids, and with tags that results can be broken down by.

    Raises:
        BenchmarkError: They are not so.
    """
    try:
        tasks = list(benchmark.tasks())
    except Exception as error:
        raise BenchmarkError(f"benchmark {benchmark.name!r}: tasks() {describe_error(error)}") from error
    if not tasks:
        raise BenchmarkError(f"benchmark {benchmark.name!r}: tasks() gives none. Give at least one.")
    places: dict[str, int] = {}
    for index, task in enumerate(tasks):
        if not isinstance(task, Task):
            raise BenchmarkError(f"benchmark {benchmark.name!r}: tasks()[{index}] is {task!r:.200}, not a Task.")
        if places.setdefault(task.id, index) != index:
            raise BenchmarkError(
                f"benchmark {benchmark.name!r}: tasks()[{places[task.id]}] and tasks()[{index}] both have the id "
                f"{task.id!r}. Leave one out, or give them ids of their own."
            )
        try:
            tags_of(task)
        except OptionError as error:
            raise BenchmarkError(f"benchmark {benchmark.name!r}: task {task.id!r}: {error}") from error
    return tasks


def tags_of(task: Task) -> list[str]:
    """The tags of a task, each once; a kind without a value is none.

    >>> tags_of(Task("3+4=", "7", metadata={"tags": {"operator": "+", "digits": 1, "source": None}}))
    ['operator=+', 'digits=1']

    Raises:
        OptionError: They are neither a mapping of kinds to values nor a list of texts.
    """
    given = task.metadata.get("tags")
    if given is None:
        return []
    if isinstance(given, Mapping) and all(isinstance(value, str | int | float | None) for value in given.values()):
        return [f"{kind}={value}" for kind, value in given.items() if value is not None]
    if isinstance(given, list | tuple) and all(isinstance(tag, str) and tag for tag in given):
        return list(dict.fromkeys(given))
    raise OptionError(f"tags={given!r:.200}: give a mapping such as {{'operator': '+'}}, or a list of texts.")


@contextmanager
def isolated_random_state() -> Iterator[None]:
    """Whatever is drawn inside is the same each time, and leaves no trace outside."""
    with rng.kept():
        rng.seed(SEED)
        yield


def make_benchmarks(entries: Iterable[Any] | None, *, source: Source | None = None) -> list[Benchmark]:
    """Benchmarks from instances, names (``"sorting"``) and mappings of a name to settings, each of them checked.

    >>> [benchmark.name for benchmark in make_benchmarks(["sorting", {"arithmetic": {"n": 50, "every": 10}}])]
    ['sorting', 'arithmetic']

    Args:
        entries: The entries; None is none.
        source: The configuration that has them under ``benchmarks``, for errors that name its file and line.

    Raises:
        ConfigError: An entry does not fit; the message says which, and what is accepted.
        OptionError: There is no list of entries.
    """
    if entries is None:
        return []
    if isinstance(entries, str | Mapping) or not isinstance(entries, Iterable):
        raise OptionError(f"benchmarks={entries!r:.200}: give a list of benchmarks.")
    source = Source(entries) if source is None else source
    made: list[Benchmark] = []
    for index, entry in enumerate(entries):
        benchmark = _made(entry, source, f"benchmarks[{index}]")
        if benchmark.name in (other.name for other in made):
            problem = f"another benchmark is called {benchmark.name!r} already. Give one of them another name."
            raise source.error(f"benchmarks[{index}]", problem)
        made.append(benchmark)
    return made


def _made(entry: Any, source: Source, path: str) -> Benchmark:
    try:
        if isinstance(entry, str | Mapping):
            name, arguments = split_entry(entry, "a benchmark")
            built = _built(name, arguments, source, f"{path}.{name}")
        else:
            built = entry
        return checked_benchmark(built)
    except ConfigError:
        raise
    except HooklineError as error:
        raise source.error(path, str(error)) from error


def _built(name: str, arguments: Mapping[str, Any], source: Source, path: str) -> Benchmark:
    """The benchmark of a name; options that its constructor does not take are set afterwards."""
    factory = import_class(name, ("tasks", "score")) if ":" in name else BENCHMARKS.find(name)
    own = _own_arguments(factory, arguments)
    checked = checked_arguments(factory, own, source, path)
    try:
        built = factory(**checked)
        if getattr(built, "name", None) is None and ":" not in name:
            built.name = name
        benchmark = as_benchmark(built)
        benchmark.set_options({key: value for key, value in arguments.items() if key not in own})
    except Exception as error:  # whatever a constructor raises, the reader of the configuration needs its place
        raise source.error(path, f"cannot be built: {type(error).__name__}: {error}") from error
    return benchmark


def _own_arguments(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are for the constructor: all but options that it does not take."""
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:
        return dict(arguments)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments)
    return {key: value for key, value in arguments.items() if key in parameters or key not in OPTIONS}


_NEEDED = {"tasks()": 0, "score(task, output)": 2}
"""What can be called, and with how many arguments."""


def _takes(given: Any, call: str, arguments: int) -> bool:
    method = getattr(given, call.partition("(")[0], None)
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:  # of something built in, nothing can be known before it is called
        return True
    return True


def _check_option(key: str, value: Any) -> None:
    if key == "name":
        accepted = isinstance(value, str) and bool(value.strip()) and "/" not in value
        wanted = "a text that is not empty and has no '/'"
    elif key == "stop":
        accepted = isinstance(value, list | tuple) and all(isinstance(text, str) and text for text in value)
        wanted = "a list of texts that are not empty"
    else:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        accepted = whole or (key == "every" and value is None)
        wanted = "a whole number of at least 1"
    if not accepted:
        raise OptionError(f"{key}={value!r:.200}: give {wanted}.")


LAST = -1000
"""It scores when everybody else has had the step."""


class BenchmarkCallback(Callback):
    """Has benchmarks scored when they are due.

    Args:
        benchmarks: Those with an ``every``.
        score: Called with a benchmark; returns its result and the predictions, or None where it failed.
        record: Called with the loop, the result and the predictions.
    """

    name = "benchmarks"
    priority = LAST
    critical = True
    """A benchmark that fails is dealt with where it is scored; what else is raised is somebody's who is critical."""

    def __init__(
        self, benchmarks: Sequence[Any], score: Callable[[Any], Any], record: Callable[[Any, Any, Any], None]
    ) -> None:
        self._benchmarks, self._score, self._record = list(benchmarks), score, record
        self._scored: list[tuple[Any, Any]] = []

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        """Score those that are due after this step."""
        due = [benchmark for benchmark in self._benchmarks if loop.step % benchmark.every == 0]
        self._scored = [scored for scored in map(self._score, due) if scored is not None]

    def on_log(self, loop: Any, step: int, metrics: Any) -> None:
        """Record what was scored: this is the row of its step."""
        scored, self._scored = self._scored, []
        for result, predictions in scored:
            self._record(loop, result, predictions)
