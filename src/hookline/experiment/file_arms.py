"""`ExperimentFile`: what the file of an experiment holds, before any of it is made.

`FileArm`: an arm that a file describes: a configuration of SFT or RL or a function, with settings on top of it.

`FileArms`: the arms of a file: those that it names and those of its grid, or its base alone.

An arm's settings go on top of the base's. What trains in a stage in place of an arm is a configuration of its own, on
top of nothing. The base's are those of all arms; an arm may have another one for a stage, or ``null``: then it trains
there itself.
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
from hookline.config.layers import Layer, LayeredSource, merge_layers
from hookline.config.structs import to_struct
from hookline.experiment.arms import Arm, Stage, grid


class ExperimentFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the file of an experiment holds.

    Args:
        name: What the experiment is called; as its file by default.
        output_dir: Its directory, ``runs/<name>`` by default.
        repeats: How often each arm is run, with a seed of its own each time.
        retries: How often a run that fails is tried again.
        metric: What the tables are about.
        mode: Whether that is better when it is smaller (``min``) or larger (``max``), where its name does not say.
        executor: ``local``, ``{local: {processes: 4}}``, ``ray`` or ``{ray: {num_gpus: 1}}``.
        base: What the settings of arms and of the grid go on top of: one of ``sft``, ``rl`` and ``function``. Its
            ``stages`` are what trains in a stage, by the stage's name, in place of each arm: one of the three as well.
        arms: Settings on top of the base by the name of their arm, or a configuration of the arm's own; ``stages``
            among them are put in the place of the base's.
        grid: Values of settings; each combination of them is an arm.
        stages: Trainings that follow one another in each arm, each with a name and settings on top of what trains in
            it.
        benchmarks: What every run is scored on, by name or as ``{name: {setting: value}}``.
        callbacks: Callbacks of every run, by name or as ``{name: {setting: value}}``.
        sinks: Where the record of every run is delivered to, by name or as ``{name: {setting: value}}``.
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
    strict: bool = False

    def stage_names(self) -> list[str]:
        """What its stages are called, as far as they have names."""
        names = (given if isinstance(given, str) else given.get("name") for given in self.stages or ())
        return [name for name in names if isinstance(name, str)]


KINDS = ("sft", "rl", "function")
_MISSING = "Nothing trains: give sft, rl or function."


@dataclass(frozen=True, slots=True)
class Training:
    """What trains: the one of `KINDS` that it is, and the functions that go with it."""

    kind: str
    function: Callable[..., Any] | None = None
    answers: Callable[..., Any] | None = None

    def config(self, layers: Sequence[Layer], source: Source) -> Any:
        """The configuration that the layers make, with everything in it checked.

        Raises:
            ConfigError: Something in it is unknown or wrong; the message says where it stands.
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
    """The changes of a stage, which know where in the file they stand."""

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        super().__init__(values)
        self.origin = origin


class FileArm(Arm):
    """An arm made of layers of settings; the stages of the file put another one on top.

    Raises:
        ConfigError: Something in it is unknown or wrong; the message says where it stands.
    """

    def __init__(
        self,
        name: str,
        trained: Training,
        layers: Sequence[Layer],
        source: Source,
        path: str,
        *,
        stages: Mapping[str, "FileArm"] | None = None,
    ) -> None:
        self._trained, self._layers, self._source = trained, layers, source
        self.path = path
        """Where in the file it stands."""
        self._with_stage: dict[tuple[str, str], FileArm] = {}
        try:
            config = trained.config(layers, source)
            super().__init__(name, config, train=trained.function, answers=trained.answers, stages=stages)
        except (ConfigError, MissingExtraError):
            raise
        except HooklineError as error:
            raise source.error(path, str(error)) from error

    @property
    def trained(self) -> Training:
        """What trains it."""
        return self._trained

    def in_stage(self, stage: Stage) -> "FileArm":
        """What trains in a stage, which the file describes too."""
        return cast("FileArm", super().in_stage(stage))

    def changed(self, name: str, changes: Mapping[str, Any]) -> Arm:
        """The arm in a stage, or as `Arm` says."""
        if not isinstance(changes, StageChanges):
            return super().changed(name, changes)
        key = name, changes.origin
        if key not in self._with_stage:  # asked for again with each repeat
            layers = [*self._layers, Layer(dict(changes), changes.origin)]
            self._with_stage[key] = FileArm(name, self._trained, layers, self._source, self.path)
        return self._with_stage[key]


def parse_training(
    given: Mapping[str, Any], path: str, source: Source, *, besides: Sequence[str] = ()
) -> tuple[Training, Layer]:
    """What trains, from a mapping with one of the kinds in it, and the settings that it is given there.

    Args:
        besides: What may stand there too.

    Raises:
        ConfigError: It has none or several of them, or something else beside them.
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
    """The struct of a kind.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        import torch  # noqa: F401 - so that what is missing is named
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
    """Refuse settings that nothing of these kinds has; those of a function are its own matter.

    Args:
        besides: What can be given in their place, for the closest name.

    Raises:
        ConfigError: There is one.
    """
    if "function" in kinds:
        return
    known = {name for kind in kinds for name in config_type(kind).__struct_fields__}
    for key in given:
        if key not in known:
            raise source.error(f"{path}.{key}", f"unknown key. {_meant(key, [*known, *besides])}")


def check_callbacks(entries: Any, source: Source, path: str) -> None:
    """Build the callbacks of a list, to see whether they can be.

    Raises:
        ConfigError: One cannot, or they do not go together.
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
    """Make the sinks of a list, to see whether they can be and take records.

    Raises:
        ConfigError: One cannot, or does not.
    """
    if not isinstance(entries, list | tuple):
        raise source.error(path, f"{entries!r:.200} was given, a list of sinks is accepted.")
    for index, entry in enumerate(entries):
        try:
            make_sink(entry).check()
        except HooklineError as error:
            raise source.error(f"{path}[{index}]", str(error).removeprefix("sinks: ")) from error


def _check_settings(layers: Sequence[Layer], source: Source) -> None:
    """A function's settings are those that its configuration has: anything else would be read by nobody."""
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
        raise source.error(path, f"{given!r} is {found!r:.120}, which is no function.")
    function: Callable[..., Any] = found
    return function


def _meant(key: Any, known: Any) -> str:
    return closest(str(key), map(str, known))


BASE = "base"
"""What the one arm of a file with neither arms nor a grid is called."""
STAGES = "stages"
"""The key of an arm, and of the base, with what trains in stages in their place."""


class FileArms:
    """The arms of a file, in their order.

    Raises:
        ConfigError: One of them cannot be made; the message says where it stands.
    """

    def __init__(self, file: ExperimentFile, source: Source) -> None:
        self._file, self._source = file, source
        self._stage_names = file.stage_names()
        self._base = None if file.base is None else parse_training(file.base, BASE, source, besides=(STAGES,))
        self._stages = self._stages_of(BASE, file.base or {}, BASE, below={})

    def __iter__(self) -> Iterator[FileArm]:
        """All arms, with names that differ."""
        seen: set[str] = set()
        for arm in itertools.chain(self._named(), self._of_grid()):
            if arm.name in seen:
                raise self._source.error(arm.path, f"two arms are called {arm.name!r}. Give each a name of its own.")
            seen.add(arm.name)
            yield arm
        if not seen and self._base is None:
            raise self._source.error("", "there is nothing to run: give a base, arms or a grid.")
        if not seen and self._base is not None:
            yield FileArm(BASE, self._base[0], [self._base[1]], self._source, BASE, stages=self._stages)

    def _named(self) -> Iterator[FileArm]:
        for name, given in (self._file.arms or {}).items():
            path, settings = f"arms.{name}", given or {}
            trained, layers = self._layers(settings, path)
            stages = self._stages_of(name, settings, path, below=self._stages)
            yield FileArm(name, trained, layers, self._source, path, stages=stages)

    def _layers(self, settings: Mapping[str, Any], path: str) -> tuple[Training, list[Layer]]:
        """What trains a named arm, and what its configuration is made of."""
        if has_training(settings, self._file.base):
            trained, layer = parse_training(settings, path, self._source, besides=(STAGES,))
            return trained, [layer]
        if self._base is None:
            message = "nothing trains it: give it sft, rl or function, or give the file a base."
            raise self._source.error(path, message)
        trained, layer = self._base
        own = {key: value for key, value in settings.items() if key != STAGES}
        check_keys(own, {trained.kind}, path, self._source, besides=(STAGES,))
        return trained, [layer, Layer(own, path)]

    def _stages_of(
        self, name: str, given: Mapping[str, Any], path: str, *, below: Mapping[str, FileArm]
    ) -> dict[str, FileArm]:
        """What trains in stages in place of an arm, or of all arms where it is the base that is given."""
        inside, made, path = given.get(STAGES), dict(below), f"{path}.{STAGES}"
        if inside is not None and not isinstance(inside, Mapping):
            message = f"{inside!r:.200} was given, a mapping is accepted, of a stage's name to what trains in it."
            raise self._source.error(path, message)
        for stage, entry in (inside or {}).items():
            self._require_stage(stage, f"{path}.{stage}")
            if entry is None and stage in made:
                del made[stage]
            else:
                made[stage] = self._stage_arm(name, entry, f"{path}.{stage}")
        return made

    def _require_stage(self, name: Any, path: str) -> None:
        if name not in self._stage_names:
            known = self._stage_names
            hint = closest(str(name), known) if known else "The file has none: give it a list of them under stages."
            raise self._source.error(path, f"there is no stage {name!r}. {hint}")

    def _stage_arm(self, name: str, entry: Any, path: str) -> FileArm:
        if entry is not None and not isinstance(entry, Mapping):
            message = f"{entry!r:.200} was given, a mapping with one of {', '.join(KINDS)} is accepted."
            raise self._source.error(path, message)
        trained, layer = parse_training(entry or {}, path, self._source)
        return FileArm(name, trained, [layer], self._source, path)

    def _of_grid(self) -> Iterator[FileArm]:
        axes = dict(self._axes(self._file.grid or {}, "grid"))
        if not axes:
            return
        if self._base is None:
            raise self._source.error("grid", "a grid is of settings of a base: give the file a base.")
        try:
            points = grid(**axes)
        except HooklineError as error:
            raise self._source.error("grid", str(error)) from error
        trained, base = self._base
        choices = itertools.product(*(range(len(values)) for values in axes.values()))
        for point, choice in zip(points, choices, strict=True):
            layers = [
                Layer(axes[path][index], f"grid.{path}[{index}]", tuple(path.split(".")))
                for path, index in zip(axes, choice, strict=True)
            ]
            yield FileArm(point.name, trained, [base, *layers], self._source, "grid", stages=self._stages)

    def _axes(self, inside: Mapping[str, Any], path: str) -> Iterator[tuple[str, list[Any]]]:
        """The paths of settings, and the values that they have in turn."""
        for key, given in inside.items():
            place = f"{path}.{key}"
            if isinstance(given, Mapping):
                yield from self._axes(given, place)
            elif not isinstance(given, list) or not given:
                raise self._source.error(place, f"{given!r:.200} was given, a list of at least one value is accepted.")
            else:
                yield place.removeprefix("grid."), given


def has_training(arm: Mapping[str, Any], base: Any) -> bool:
    """Whether an arm has a configuration of its own; otherwise it has settings on top of the base.

    A configuration of SFT has a part that is called ``sft`` too. What has none of the other parts is settings of that.
    """
    kinds = [kind for kind in KINDS if kind in arm]
    if kinds != ["sft"] or not isinstance(base, Mapping) or "sft" not in base:
        return bool(kinds)
    return not isinstance(arm["sft"], Mapping) or bool({"model", "data", "train"} & set(arm["sft"]))
