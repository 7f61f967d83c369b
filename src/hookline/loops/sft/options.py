"""How examples for supervised fine-tuning are cut, masked and put together."""

from pathlib import Path
from typing import Literal, get_args

import msgspec

from hookline.core.errors import OptionError, closest

Truncate = Literal["right", "left", "drop", "error"]


class SFTOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """The options of supervised fine-tuning, as they stand in a YAML file.

    Args:
        max_length: The most tokens of an example, and of a packed row.
        packing: Put several short examples into one row, without attention between them.
        train_on_prompt: Train on every token, not only on completions and the assistant's turns.
        truncate: What happens to a longer example: its end (``right``) or its beginning (``left``) is cut off,
            it is left out (``drop``), or it is an error. What is cut or left out is counted and said once.
        pad_to_multiple_of: Pad batches to a multiple of this, e.g. 8 for tensor cores.
        chat_template: For rows with ``messages``: a Jinja template, or a file with one; the tokenizer's by default.
    """

    max_length: int = 512
    packing: bool = False
    train_on_prompt: bool = False
    truncate: Truncate = "right"
    pad_to_multiple_of: int | None = None
    chat_template: str | None = None

    def __post_init__(self) -> None:
        require_length("max_length", self.max_length, least=2)
        if self.pad_to_multiple_of is not None:
            require_length("pad_to_multiple_of", self.pad_to_multiple_of, least=1)
        for name in ("packing", "train_on_prompt"):
            if not isinstance(value := getattr(self, name), bool):
                raise OptionError(f"{name}={value!r}: give true or false.")
        if self.truncate not in get_args(Truncate):
            ways = get_args(Truncate)
            raise OptionError(
                f"truncate={self.truncate!r}: give one of {', '.join(ways)}. {closest(str(self.truncate), ways)}"
            )


def require_length(name: str, value: object, *, least: int) -> None:
    """Refuse what is not a number of tokens."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name}={value!r}: give a whole number of at least {least}.")


def template_text(given: str) -> str:
    """A chat template as it stands in the options, or in a file that they name."""
    if "{" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except OSError as error:
        message = f"chat_template={given!r} is neither a Jinja template nor a file that can be read: {error.strerror}."
        raise OptionError(message) from None
