"""`FileArm`: an arm that a file describes: a configuration of SFT or RL or a function, with settings on top of it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hookline.core.collection import CallbackCollection
from hookline.core.config import checked_plan, import_object
from hookline.core.config_source import Source
from hookline.core.errors import ConfigError, HooklineError, MissingExtraError, closest
from hookline.experiment.arm import Arm
from hookline.experiment.files.config_layers import ExperimentSource, Layer, LayeredSource, merged
from hookline.experiment.stage import Stage
from hookline.loops.config_struct import to_struct
from hookline.record.sink import make_sink

KINDS = ("sft", "rl", "function")
_MISSING = "Nothing trains: give sft, rl or function."


@dataclass(frozen=True, slots=True)
class Trained:
    """What trains: the one of `KINDS` that it is, and the functions that go with it."""

    kind: str
    function: Callable[..., Any] | None = None
    answers: Callable[..., Any] | None = None

    def config(self, layers: Sequence[Layer], source: ExperimentSource) -> Any:
        """The configuration that the layers make, with everything in it checked.

        Raises:
            ConfigError: Something in it is unknown or wrong; the message says where it stands.
        """
        values, place = merged(layers), LayeredSource({}, source.file, source=source, layers=layers)
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
        trained: Trained,
        layers: Sequence[Layer],
        source: ExperimentSource,
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
    def trained(self) -> Trained:
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


def whole(
    given: Mapping[str, Any], path: str, source: ExperimentSource, *, besides: Sequence[str] = ()
) -> tuple[Trained, Layer]:
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
        return Trained(kind, function, answers), _settings(given.get("config"), f"{path}.config", source)
    return Trained(kind, None, answers), _settings(given[kind], f"{path}.{kind}", source)


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
        from hookline.rl.rl_config import RLConfig

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
        checked_plan(entry, source, f"{path}[{index}]").build(source)
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


def _check_settings(layers: Sequence[Layer], source: ExperimentSource) -> None:
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


def _settings(given: Any, path: str, source: ExperimentSource) -> Layer:
    if given is None:
        return Layer({}, path)
    if not isinstance(given, Mapping):
        raise source.error(path, f"{given!r:.200} was given, a mapping of settings is accepted.")
    return Layer(given, path)


def _function(given: Any, path: str, source: ExperimentSource) -> Callable[..., Any] | None:
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
