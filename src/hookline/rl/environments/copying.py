"""Copying a text: ``abca>`` expects ``abca``. The easiest task there is, for a first lesson or a test."""

import string

from hookline.core.errors import OptionError
from hookline.rl.environment import register_environment
from hookline.rl.task_space import HELD_OUT_SHARE, TaskSpace, require_whole
from hookline.rl.types import Task

MARK = ">"


@register_environment("copying")
class Copying(TaskSpace):
    """A text to write once more.

    Args:
        length: How many characters.
        alphabet: The characters that it is made of.
        held_out_share: The share of tasks that is never trained on.
    """

    name = "copying"

    def __init__(
        self, length: int = 4, *, alphabet: str = string.ascii_lowercase, held_out_share: float = HELD_OUT_SHARE
    ) -> None:
        require_whole("length", length, least=1, most=100)
        if not alphabet or len(set(alphabet)) < len(alphabet) or MARK in alphabet or alphabet.split() != [alphabet]:
            raise OptionError(f"alphabet={alphabet!r}: give different characters, without white space and {MARK!r}.")
        self.length = length
        self.alphabet = alphabet
        super().__init__(held_out_share)

    @property
    def size(self) -> int:
        return int(len(self.alphabet) ** self.length)

    def task(self, index: int) -> Task:
        text = ""
        for _ in range(self.length):
            index, place = divmod(index, len(self.alphabet))
            text += self.alphabet[place]
        return Task(text + MARK, text)
