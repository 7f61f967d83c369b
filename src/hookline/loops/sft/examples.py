"""Rows as token ids and labels.

**Masking is exact.** The tokens of a prompt are those that the model sees when it is asked that prompt alone: a
token never lies across the border, and the label of every token before it is -100. A text is tokenized as a whole
where that leaves the prompt's tokens as they are, and in two pieces where it does not.

**Beginnings and ends.** An example begins with BOS where the tokenizer adds one; prompt and completion, and text,
end with EOS, which is trained on, so that the model learns to stop. With messages the chat template has the word on
both. The label of an example's first token is always -100, as nothing comes before it that could predict it.

**Which turns of a conversation are the assistant's** is asked of the template: of its ``{% generation %}`` marks
where it has them, otherwise by rendering the conversation up to each turn.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hookline.core.errors import OptionError
from hookline.loops.sft.rows import Row, row_format

IGNORED = -100
"""The label of a token that is not trained on."""

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")

Piece = tuple[str, bool]
"""Text, and whether it is trained on."""


class Tokens(NamedTuple):
    """An example before it is cut: ids, and for each whether it is trained on."""

    ids: list[int]
    trained: list[bool]

    def labels(self) -> list[int]:
        """What to predict: the ids that are trained on, except the first."""
        chosen = [token if trained else IGNORED for token, trained in zip(self.ids, self.trained, strict=True)]
        return [IGNORED, *chosen[1:]] if chosen else []


class RowEncoder:
    """Turns rows into tokens with any Hugging Face tokenizer."""

    def __init__(self, tokenizer: Any, *, train_on_prompt: bool = False) -> None:
        if not callable(tokenizer) or not hasattr(tokenizer, "eos_token_id"):
            raise OptionError(f"tokenizer={tokenizer!r}: give a Hugging Face tokenizer.")
        self.tokenizer = tokenizer
        self.train_on_prompt = train_on_prompt
        self._adds_bos = tokenizer.bos_token_id is not None and _first(tokenizer("a")) == tokenizer.bos_token_id

    def encode(self, row: Row, index: int) -> Tokens:
        """The tokens of a row; ``index`` is its number for errors."""
        match row_format(row, index):
            case "messages":
                tokens = self._conversation(row, index)
            case "prompt":
                tokens = self._closed([(row["prompt"], False), (row["completion"], True)])
            case _:
                tokens = self._closed([(row["text"], True)])
        return Tokens(tokens.ids, [True] * len(tokens.ids)) if self.train_on_prompt else tokens

    def _closed(self, pieces: Sequence[Piece]) -> Tokens:
        """The pieces with BOS and EOS around them, unless the text has them already."""
        ids, trained = self._joined(pieces)
        bos, eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        if eos is None:
            raise OptionError("The tokenizer has no EOS token, so a model could not learn to stop: set its eos_token.")
        if self._adds_bos and ids[:1] != [bos]:
            ids, trained = [bos, *ids], [False, *trained]
        if not trained or not trained[-1] or ids[-1] != eos:
            ids, trained = [*ids, eos], [*trained, True]
        return Tokens(ids, trained)

    def _joined(self, pieces: Sequence[Piece]) -> Tokens:
        text, ids, trained = "", list[int](), list[bool]()
        for piece, is_trained in pieces:
            whole = self._ids(text + piece)
            added = whole[len(ids) :] if whole[: len(ids)] == ids else self._ids(piece)
            text, ids = text + piece, ids + added
            trained += [is_trained] * len(added)
        return Tokens(ids, trained)

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) if text else []

    def _conversation(self, row: Row, index: int) -> Tokens:
        if not getattr(self.tokenizer, "chat_template", None):
            raise OptionError(
                f"row {index}: has messages, but the tokenizer has no chat template: set sft.chat_template or "
                "tokenizer.chat_template, or give rows with 'prompt' and 'completion'."
            )
        if self.train_on_prompt:
            return self._joined([(self._rendered(row, index), True)])
        if _MARKS.search(self.tokenizer.get_chat_template(tools=row.get("tools"))):
            marked = self._rendered(row, index, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
            return Tokens(list(marked["input_ids"]), [bool(mark) for mark in marked["assistant_masks"]])
        return self._joined(self._turns(row, index))

    def _turns(self, row: Row, index: int) -> list[Piece]:
        """The rendered conversation in pieces: what the assistant says, and what stands between."""
        messages, whole = list(row["messages"]), self._rendered(row, index)
        pieces, at = list[Piece](), 0
        for number in (n for n, message in enumerate(messages) if message["role"] == "assistant"):
            before = self._rendered(row, index, messages[:number], add_generation_prompt=True)
            after = self._rendered(row, index, messages[: number + 1])
            if not (whole.startswith(before) and whole.startswith(after) and at <= len(before) <= len(after)):
                raise OptionError(
                    f"row {index}: the chat template renders messages[{number}] differently once more follow, so its "
                    "tokens cannot be told from the others. Mark what the assistant says in the template with "
                    "{% generation %} ... {% endgeneration %}, or set train_on_prompt."
                )
            pieces += [(whole[at : len(before)], False), (whole[len(before) : len(after)], True)]
            at = len(after)
        return [*pieces, (whole[at:], False)]

    def _rendered(self, row: Row, index: int, messages: Sequence[Any] | None = None, **how: Any) -> Any:
        chosen = list(row["messages"] if messages is None else messages)
        try:
            return self.tokenizer.apply_chat_template(chosen, tools=row.get("tools"), **{"tokenize": False, **how})
        except ImportError:
            raise  # jinja2 is missing, which is no fault of the row
        except Exception as error:  # templates refuse in ways of their own
            raise OptionError(
                f"row {index}: the chat template refuses its messages: {type(error).__name__}: {error}"
            ) from error


def _first(encoded: Mapping[str, Any]) -> int | None:
    return next(iter(encoded["input_ids"]), None)
