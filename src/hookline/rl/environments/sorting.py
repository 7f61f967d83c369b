"""Sorting digits: ``3142>`` expects ``1234``."""

from hookline.rl.environment import register_environment
from hookline.rl.task_space import HELD_OUT_SHARE, TaskSpace, require_whole
from hookline.rl.types import Task


@register_environment("sorting")
class Sorting(TaskSpace):
    """Digits to put in ascending order, repeats included; each is one character, which suits a small model.

    Args:
        length: How many digits.
        held_out_share: The share of tasks that is never trained on.
    """

    name = "sorting"

    def __init__(self, length: int = 4, *, held_out_share: float = HELD_OUT_SHARE) -> None:
        require_whole("length", length, least=1, most=100)
        self.length = length
        super().__init__(held_out_share)

    @property
    def size(self) -> int:
        return int(10**self.length)

    def task(self, index: int) -> Task:
        digits = f"{index:0{self.length}d}"
        return Task(f"{digits}>", "".join(sorted(digits)))
