"""The arms of an experiment file: `ExperimentFile` is its schema, `FileArms` makes its arms.

A file has named arms, a grid, or just its base as the only arm. An arm's settings override the base's. A training that
replaces an arm in a stage has a configuration of its own, without the base. The base's replacements apply to all arms;
an arm may have another one for a stage, or ``null`` to train there itself.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import msgspec

from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import ConfigError, HooklineError, MissingExtraError, closest
from hookline._engine.factories import Source, build_subscriber, import_object
from hookline._record.sink import make_sink
from hookline.config.loading import to_struct
from hookline.config.sources import Layer, LayeredSource, merge_layers
from hookline.experiment.arms import Arm, Stage, grid


class ExperimentFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The schema of an experiment file.

    Args:
        name: The experiment's name; by default the file's.
        output_dir: Its directory; ``runs/<name>`` by default.
        repeats: How often each arm is run, each time with another seed.
        retries: How many times a failed run is retried.
        metric: The metric of the tables.
        mode: Whether smaller (``min``) or larger (``max``) is better, if the metric's name does not tell.
        executor: ``local``, ``{local: {processes: 4}}``, ``ray`` or ``{ray: {num_gpus: 1}}``.
        base: The training that arms and the grid modify: one of ``sft``, ``rl`` and ``function``. Its ``stages`` map
            stage names to trainings that replace each arm there, again one of the three.
        arms: For each arm's name, settings that override the base's, or a training of its own; its ``stages``
            override the base's.
        grid: Values of settings; each combination of them is an arm.
        stages: Trainings that follow one another in each arm, each with a name and settings that override the arm's.
        benchmarks: Benchmarks that score every run, by name or as ``{name: {setting: value}}``.
        callbacks: Callbacks of every run, by name or as ``{name: {setting: value}}``.
        sinks: Destinations for the records of every run, by name or as ``{name: {setting: value}}``.
        search: Chooses settings of the only arm: the arguments of `Optuna`.
        strict: Let exceptions of callbacks propagate.
    """

    name: str | None = None
    output_dir: str | None = None
    repeats: Annotated[int, msgspec.Meta(ge=1)] = 1
    retries: Annotated[int, msgspec.Meta(ge=0)] = 0
    metric: str | None = None
    mode: Literal["min", "max"] | None = None
    executor: str | dict[str, dict[str, Any] | None] = "local"
    base: dict[str, Any] | None = None
    arms: dict[str, dict[str, Any] | None] | None = None
    grid: dict[str, Any] | None = None
    stages: list[str | dict[str, Any]] | None = None
    benchmarks: list[Any] | None = None
    callbacks: list[Any] | None = None
    sinks: list[Any] | None = None
    search: dict[str, Any] | None = None
    strict: bool = False

    def stage_names(self) -> list[str]:
        """The names of its stages."""
        names = (given if isinstance(given, str) else given.get("name") for given in self.stages or ())
        return [name for name in names if isinstance(name, str)]


KINDS = ("sft", "rl", "function")
_MISSING = "Nothing trains: give sft, rl or function."


@dataclass(frozen=True, slots=True)
class Training:
    """A training: one of `KINDS`, with its functions."""

    kind: str
    function: Callable[..., Any] | None = None
    answers: Callable[..., Any] | None = None

    def config(self, layers: Sequence[Layer], source: Source) -> Any:
        """Merge the layers into a checked configuration.

        Raises:
            ConfigError: A setting is unknown or wrong; the message says where.
        """
        values, place = merge_layers(layers), LayeredSource({}, source.file, source=source, layers=layers)
        if self.kind == "function":
            _check_settings(layers, source)
            return values
        config = to_struct(values, config_type(self.kind), source=place)
        check_callbacks(config.train.callbacks, place, "train.callbacks")
        check_sinks(config.train.sinks, place, "train.sinks")
        if self.kind == "sft":
            _check_rows(config.data, place)
        return config


class StageChanges(dict[str, Any]):
    """The changes of a stage, with their place in the file."""

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        super().__init__(values)
        self.origin = origin


class FileArm(Arm):
    """An arm made of layers of settings; a stage of the file adds another layer.

    Raises:
        ConfigError: A setting is unknown or wrong; the message says where.
    """

    def __init__(
        self,
        name: str,
        training: Training,
        layers: Sequence[Layer],
        source: Source,
        path: str,
        *,
        stages: Mapping[str, "FileArm"] | None = None,
    ) -> None:
        self._training, self._layers, self._source = training, layers, source
        self.path = path
        """Its place in the file."""
        self._with_stage: dict[tuple[str, str], FileArm] = {}
        try:
            config = training.config(layers, source)
            super().__init__(name, config, train=training.function, answers=training.answers, stages=stages)
        except (ConfigError, MissingExtraError):
            raise
        except HooklineError as error:
            raise source.error(path, str(error)) from error

    @property
    def training(self) -> Training:
        """Its own training."""
        return self._training

    def in_stage(self, stage: Stage) -> "FileArm":
        """The arm, or its replacement, as it trains in a stage."""
        return cast("FileArm", super().in_stage(stage))

    def changed(self, name: str, changes: Mapping[str, Any]) -> Arm:
        """The arm with the settings of a stage; see `Arm.changed`."""
        if not isinstance(changes, StageChanges):
            return super().changed(name, changes)
        key = name, changes.origin
        if key not in self._with_stage:  # each repeat asks again
            layers = [*self._layers, Layer(dict(changes), changes.origin)]
            self._with_stage[key] = FileArm(name, self._training, layers, self._source, self.path)
        return self._with_stage[key]


def parse_training(
    given: Mapping[str, Any], path: str, source: Source, *, besides: Sequence[str] = ()
) -> tuple[Training, Layer]:
    """Parse a mapping with one of `KINDS` into a training and its settings.

    Args:
        besides: Other keys that it may have.

    Raises:
        ConfigError: It has none or several of the kinds, or an unknown key.
    """
    kinds = [kind for kind in KINDS if kind in given]
    if not kinds:
        key = next((key for key in given if key not in besides), None)
        raise source.error(path if key is None else f"{path}.{key}", f"{_MISSING} {_meant(key, KINDS)}".strip())
    if len(kinds) > 1:
        raise source.error(f"{path}.{kinds[1]}", f"{kinds[0]} is given already: one of {', '.join(KINDS)} trains.")
    kind = kinds[0]
    accepted = [kind, *(["config"] if kind == "function" else []), "answers", *besides]
    for key in given:
        if key not in accepted:
            inside = "config" if kind == "function" else kind
            raise source.error(
                f"{path}.{key}", f"unknown key. {_meant(key, accepted)} Its settings go inside {inside}."
            )
    answers = _function(given.get("answers"), f"{path}.answers", source)
    if kind == "function":
        function = _function(given["function"], f"{path}.function", source)
        if function is None:
            raise source.error(f"{path}.function", "give the function that trains, as package.module:name.")
        return Training(kind, function, answers), _settings(given.get("config"), f"{path}.config", source)
    return Training(kind, None, answers), _settings(given[kind], f"{path}.{kind}", source)


def config_type(kind: str) -> Any:
    """The configuration struct of a kind of training.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        import torch  # noqa: F401 - for an error that names what is missing
    except ImportError as error:
        raise MissingExtraError(f"An arm with {kind}", "hf") from error
    if kind == "rl":
        from hookline.rl.learner.config import RLConfig

        return RLConfig
    from hookline.loops.worker_config import WorkerConfig

    return WorkerConfig


def check_keys(
    given: Mapping[str, Any], kinds: Collection[str], path: str, source: Source, *, besides: Sequence[str]
) -> None:
    """Refuse settings that no training of these kinds has; a function may have any.

    Args:
        besides: Other keys to suggest.

    Raises:
        ConfigError: A setting is unknown.
    """
    if "function" in kinds:
        return
    known = {name for kind in kinds for name in config_type(kind).__struct_fields__}
    for key in given:
        if key not in known:
            raise source.error(f"{path}.{key}", f"unknown key. {_meant(key, [*known, *besides])}")


def check_callbacks(entries: Any, source: Source, path: str) -> None:
    """Check that a list of callbacks can be built.

    Raises:
        ConfigError: One of them cannot, or they conflict.
    """
    if not isinstance(entries, list | tuple):
        raise source.error(path, f"{entries!r:.200} was given, a list of callbacks is accepted.")
    for index, entry in enumerate(entries):
        build_subscriber(entry, source, f"{path}[{index}]")
    try:
        CallbackCollection(list(entries)).close()
    except HooklineError as error:
        raise source.error(path, str(error)) from error


def check_sinks(entries: Any, source: Source, path: str) -> None:
    """Check that the sinks of a list can be built and accept records.

    Raises:
        ConfigError: One of them does not.
    """
    if not isinstance(entries, list | tuple):
        raise source.error(path, f"{entries!r:.200} was given, a list of sinks is accepted.")
    for index, entry in enumerate(entries):
        try:
            make_sink(entry).check()
        except HooklineError as error:
            raise source.error(f"{path}[{index}]", str(error).removeprefix("sinks: ")) from error


def _check_settings(layers: Sequence[Layer], source: Source) -> None:
    """Refuse settings that the function's configuration lacks: the function would not read them."""
    known = layers[0].values
    for layer in layers[1:] if known else ():
        for key in layer.tree():
            if key not in known and key != "seed":
                place = layer.origin if layer.at else f"{layer.origin}.{key}"
                message = f"unknown setting. {_meant(key, known)} A new one needs a default in {layers[0].origin}."
                raise source.error(place, message)


def _check_rows(data: Any, source: Source) -> None:
    from hookline.loops.sft import read_rows

    for name in ("train", "validation"):
        given = getattr(data, name)
        if isinstance(given, str):
            try:
                read_rows(given)
            except HooklineError as error:
                raise source.error(f"data.{name}", str(error)) from error


def _settings(given: Any, path: str, source: Source) -> Layer:
    if given is None:
        return Layer({}, path)
    if not isinstance(given, Mapping):
        raise source.error(path, f"{given!r:.200} was given, a mapping of settings is accepted.")
    return Layer(given, path)


def _function(given: Any, path: str, source: Source) -> Callable[..., Any] | None:
    if given is None:
        return None
    if not isinstance(given, str) or ":" not in given:
        raise source.error(path, f"{given!r:.200} was given, a function is accepted, as package.module:name.")
    try:
        found: Any = import_object(given)
    except ConfigError:
        raise
    except HooklineError as error:
        raise source.error(path, str(error)) from error
    if not callable(found) or isinstance(found, type):
        raise source.error(path, f"{given!r} is {found!r:.120}, which is not a function.")
    function: Callable[..., Any] = found
    return function


def _meant(key: Any, known: Any) -> str:
    return closest(str(key), map(str, known))


BASE = "base"
"""The name of the only arm of a file with neither arms nor a grid."""
STAGES = "stages"
"""The key, of an arm and of the base, of trainings that replace them in stages."""


class FileArms:
    """The arms of a file, in their order.

    Raises:
        ConfigError: One of them is invalid; the message says where.
    """

    def __init__(self, file: ExperimentFile, source: Source) -> None:
        self._file, self._source = file, source
        self._stage_names = file.stage_names()
        self._base = None if file.base is None else parse_training(file.base, BASE, source, besides=(STAGES,))
        self._stages = self._replacements(BASE, file.base or {}, BASE, below={})

    def __iter__(self) -> Iterator[FileArm]:
        seen: set[str] = set()
        for arm in itertools.chain(self._named_arms(), self._grid_arms()):
            if arm.name in seen:
                raise self._source.error(arm.path, f"two arms are called {arm.name!r}. Give each a different name.")
            seen.add(arm.name)
            yield arm
        if not seen and self._base is None:
            raise self._source.error("", "there is nothing to run: give a base, arms or a grid.")
        if not seen and self._base is not None:
            yield FileArm(BASE, self._base[0], [self._base[1]], self._source, BASE, stages=self._stages)

    def _named_arms(self) -> Iterator[FileArm]:
        for name, given in (self._file.arms or {}).items():
            path, settings = f"arms.{name}", given or {}
            training, layers = self._layers(settings, path)
            stages = self._replacements(name, settings, path, below=self._stages)
            yield FileArm(name, training, layers, self._source, path, stages=stages)

    def _layers(self, settings: Mapping[str, Any], path: str) -> tuple[Training, list[Layer]]:
        if has_training(settings, self._file.base):
            training, layer = parse_training(settings, path, self._source, besides=(STAGES,))
            return training, [layer]
        if self._base is None:
            message = "nothing trains it: give it sft, rl or function, or give the file a base."
            raise self._source.error(path, message)
        training, layer = self._base
        own = {key: value for key, value in settings.items() if key != STAGES}
        check_keys(own, {training.kind}, path, self._source, besides=(STAGES,))
        return training, [layer, Layer(own, path)]

    def _replacements(
        self, name: str, given: Mapping[str, Any], path: str, *, below: Mapping[str, FileArm]
    ) -> dict[str, FileArm]:
        """The trainings that replace an arm (or, for the base, all arms) in stages."""
        inside, made, path = given.get(STAGES), dict(below), f"{path}.{STAGES}"
        if inside is not None and not isinstance(inside, Mapping):
            message = f"{inside!r:.200} was given, a mapping is accepted, of a stage's name to what trains in it."
            raise self._source.error(path, message)
        for stage, entry in (inside or {}).items():
            place, known = f"{path}.{stage}", self._stage_names
            if stage not in known:
                none = "The file has none: give it a list of them under stages."
                hint = closest(str(stage), known) if known else none
                raise self._source.error(place, f"there is no stage {stage!r}. {hint}")
            if entry is None and stage in made:
                del made[stage]
                continue
            if entry is not None and not isinstance(entry, Mapping):
                message = f"{entry!r:.200} was given, a mapping with one of {', '.join(KINDS)} is accepted."
                raise self._source.error(place, message)
            training, layer = parse_training(entry or {}, place, self._source)
            made[stage] = FileArm(name, training, [layer], self._source, place)
        return made

    def _grid_arms(self) -> Iterator[FileArm]:
        axes = dict(self._axes(self._file.grid or {}, "grid"))
        if not axes:
            return
        if self._base is None:
            raise self._source.error("grid", "a grid needs a base, whose settings it varies: give the file a base.")
        try:
            points = grid(**axes)
        except HooklineError as error:
            raise self._source.error("grid", str(error)) from error
        training, base = self._base
        choices = itertools.product(*(range(len(values)) for values in axes.values()))
        for point, choice in zip(points, choices, strict=True):
            layers = [
                Layer(axes[path][index], f"grid.{path}[{index}]", tuple(path.split(".")))
                for path, index in zip(axes, choice, strict=True)
            ]
            yield FileArm(point.name, training, [base, *layers], self._source, "grid", stages=self._stages)

    def _axes(self, inside: Mapping[str, Any], path: str) -> Iterator[tuple[str, list[Any]]]:
        """The dotted paths of settings, and their values."""
        for key, given in inside.items():
            place = f"{path}.{key}"
            if isinstance(given, Mapping):
                yield from self._axes(given, place)
            elif not isinstance(given, list) or not given:
                raise self._source.error(place, f"{given!r:.200} was given, a list of at least one value is accepted.")
            else:
                yield place.removeprefix("grid."), given


def has_training(arm: Mapping[str, Any], base: Any) -> bool:
    """Whether an arm has a training of its own; otherwise its settings override the base's.

    An SFT configuration has a section called ``sft`` too. A mapping without its other sections is that section.
    """
    kinds = [kind for kind in KINDS if kind in arm]
    if kinds != ["sft"] or not isinstance(base, Mapping) or "sft" not in base:
        return bool(kinds)
    return not isinstance(arm["sft"], Mapping) or bool({"model", "data", "train"} & set(arm["sft"]))
