"""`Lesson`: an environment as a part of a curriculum."""

from typing import Any

from hookline.core.errors import OptionError
from hookline.loops.checked_struct import CheckedStruct
from hookline.rl.environment import make_environment


class Lesson(CheckedStruct):
    """Something to learn, and what has to be learnt before.

    Args:
        id: What it is called in the curriculum and in records.
        environment: An `Environment`, or its name, or a mapping of its name to settings:
            ``{"arithmetic": {"difficulty": "easy"}}``.
        threshold: The success rate from which on it counts as learnt.
        depends_on: The ids of lessons that have to be learnt first.
    """

    id: str
    environment: Any
    threshold: float = 0.9
    depends_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.id.strip():
            raise OptionError(f"Lesson(id={self.id!r}): give a text that is not blank.")
        if not 0 < self.threshold <= 1:
            raise OptionError(f"Lesson {self.id!r}: threshold={self.threshold!r}: give a number above 0, at most 1.")
        self.environment = make_environment(self.environment)
