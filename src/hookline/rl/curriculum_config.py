"""`CurriculumConfig`: the lessons of a curriculum and how it treats them, from Python or from a file."""

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Self

from hookline.core.errors import OptionError, closest
from hookline.loops.checked_struct import CheckedStruct
from hookline.rl.lesson import Lesson

_LEAST = {
    "micro_eval_frequency": 0,
    "micro_eval_n_examples": 1,
    "eval_frequency": 0,
    "eval_n_examples": 1,
    "window": 1,
    "min_results": 1,
}


class CurriculumConfig(CheckedStruct):
    """The settings of a `Curriculum`.

    Args:
        lessons: The lessons, as `Lesson` or as mappings of its arguments.
        micro_eval_frequency: Evaluate the current lesson after every so many rollout steps; 0 never does.
        micro_eval_n_examples: On how many tasks.
        eval_frequency: Evaluate all lessons after every so many rollout steps; 0 never does.
        eval_n_examples: On how many tasks of each.
        window: How many of its latest results a lesson's success rate is the mean of.
        min_results: How many of them there have to be before a lesson is learnt, or forgotten.
        regression_margin: How far below its threshold a learnt lesson counts as forgotten; at most half of
            that.
        review_share: The share of draws that goes to learnt lessons while there are others; at 0 nobody notices
            that one was forgotten, since evaluations are only recorded.
    """

    lessons: list[Lesson]
    micro_eval_frequency: int = 10
    micro_eval_n_examples: int = 16
    eval_frequency: int = 100
    eval_n_examples: int = 64
    window: int = 200
    min_results: int = 50
    regression_margin: float = 0.1
    review_share: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise self._refused(name, f"give a whole number of at least {least}")
        if self.min_results > self.window:
            raise self._refused("min_results", f"give at most the window, which is {self.window}")
        for name in ("regression_margin", "review_share"):
            if not 0 <= getattr(self, name) < 1:
                raise self._refused(name, "give a number of at least 0, and below 1")
        _require_order(self.lessons)

    @classmethod
    def from_file(cls, path: str | Path, overrides: Sequence[str] = ()) -> Self:
        """The settings in a YAML, TOML or JSON file, with overrides such as ``"window=50"`` on top."""
        from hookline.loops.config_file import load_config

        return load_config(path, cls, overrides)

    from_yaml = from_file

    def _refused(self, name: str, wanted: str) -> OptionError:
        return OptionError(f"CurriculumConfig({name}={getattr(self, name)!r}): {wanted}.")


def _require_order(lessons: Sequence[Lesson]) -> None:
    """Refuse lessons that could never all be reached."""
    if not lessons:
        raise OptionError("CurriculumConfig(lessons=[]): give at least one lesson.")
    dependencies: dict[str, tuple[str, ...]] = {}
    for lesson in lessons:
        if lesson.id in dependencies:
            raise OptionError(f"Two lessons have the id {lesson.id!r}. Give each its own.")
        dependencies[lesson.id] = lesson.depends_on
    for lesson_id, needed in dependencies.items():
        for other in needed:
            if other not in dependencies:
                raise OptionError(
                    f"Lesson {lesson_id!r} depends on {other!r}, which is no lesson. {closest(other, dependencies)}"
                )
    try:
        TopologicalSorter(dependencies).prepare()
    except CycleError as error:
        cycle = " -> ".join(map(repr, reversed(error.args[1])))
        raise OptionError(
            f"Lessons depend on each other in a circle, {cycle}, so none of them could begin: take one "
            "dependency out. At least one lesson of a curriculum depends on no other."
        ) from None
