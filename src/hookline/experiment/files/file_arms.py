"""`FileArms`: the arms of a file: those that it names and those of its grid, or its base alone.

An arm's settings go on top of the base's. What trains in a stage in place of an arm is a configuration of its own, on
top of nothing. The base's are those of all arms; an arm may have another one for a stage, or ``null``: then it trains
there itself.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from hookline.core.errors import HooklineError, closest
from hookline.experiment.files.config_layers import ExperimentSource, Layer
from hookline.experiment.files.experiment_file import ExperimentFile
from hookline.experiment.files.file_arm import KINDS, FileArm, Trained, check_keys, whole
from hookline.experiment.grid import grid

BASE = "base"
"""What the one arm of a file with neither arms nor a grid is called."""
STAGES = "stages"
"""The key of an arm, and of the base, with what trains in stages in their place."""


class FileArms:
    """The arms of a file, in their order.

    Raises:
        ConfigError: One of them cannot be made; the message says where it stands.
    """

    def __init__(self, file: ExperimentFile, source: ExperimentSource) -> None:
        self._file, self._source = file, source
        self._stage_names = file.stage_names()
        self._base = None if file.base is None else whole(file.base, BASE, source, besides=(STAGES,))
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

    def _layers(self, settings: Mapping[str, Any], path: str) -> tuple[Trained, list[Layer]]:
        """What trains a named arm, and what its configuration is made of."""
        if is_whole(settings, self._file.base):
            trained, layer = whole(settings, path, self._source, besides=(STAGES,))
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
        trained, layer = whole(entry or {}, path, self._source)
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


def is_whole(arm: Mapping[str, Any], base: Any) -> bool:
    """Whether an arm has a configuration of its own; otherwise it has settings on top of the base.

    A configuration of SFT has a part that is called ``sft`` too. What has none of the other parts is settings of that.
    """
    kinds = [kind for kind in KINDS if kind in arm]
    if kinds != ["sft"] or not isinstance(base, Mapping) or "sft" not in base:
        return bool(kinds)
    return not isinstance(arm["sft"], Mapping) or bool({"model", "data", "train"} & set(arm["sft"]))
