"""The text of prompts and completions, given as strings or chats, and the parts that tags mark in them."""

from collections.abc import Mapping, Sequence
from typing import Any

from hookline._engine.errors import OptionError


def extract_reasoning_and_answer(output: str) -> tuple[str | None, str | None]:
    """Return the content of ``<reasoning>`` (or ``<think>``) and of the last ``<answer>``; None for a missing one.

    >>> extract_reasoning_and_answer("<reasoning>2 + 2</reasoning><answer>4</answer>")
    ('2 + 2', '4')
    """
    reasonings = [found for tag in ("reasoning", "think") if (found := _between(output, tag))]
    answer, position = None, 0
    while (found := _between(output, "answer", position)) is not None:
        _, answer, position = found
    return min(reasonings)[1].strip() if reasonings else None, None if answer is None else answer.strip()


def _between(text: str, tag: str, start: int = 0) -> tuple[int, str, int] | None:
    """Return where a tag opens, its content, and where it ends; None if it is not closed."""
    # `str.find`, not a pattern: that takes quadratic time for a policy that repeats an opening tag.
    opened = text.find(f"<{tag}>", start)
    closed = -1 if opened < 0 else text.find(f"</{tag}>", opened)
    return None if closed < 0 else (opened, text[opened + len(tag) + 2 : closed], closed + len(tag) + 3)


def prompt_text(prompt: Any) -> str:
    """Return a prompt as text: a chat of several messages with their roles, any other value by `str`."""
    if is_chat(prompt):
        if len(prompt) == 1:
            return _content(prompt[0])
        return "\n".join(f"{message.get('role', '')}: {_content(message)}" for message in prompt)
    return _content(prompt) if isinstance(prompt, Mapping) and "content" in prompt else _text(prompt)


def completion_text(completion: Any) -> str:
    """Return a completion as text: the assistant's messages of a chat, any other value by `str`."""
    if is_chat(completion):
        own = [message for message in completion if message.get("role") == "assistant"]
        return "\n".join(_content(message) for message in own or completion)
    return _content(completion) if isinstance(completion, Mapping) and "content" in completion else _text(completion)


def generation_texts(generations: Any) -> list[str]:
    """Return the texts of a batch of completions.

    Raises:
        OptionError: It is not a sequence, or one of them is not a string, a chat or None.
    """
    if isinstance(generations, str | bytes | Mapping) or not isinstance(generations, Sequence):
        raise OptionError(f"generations={generations!r:.200}: give a list of strings, or of chats as in TRL.")
    for index, each in enumerate(generations):
        if not (each is None or isinstance(each, str) or is_chat(each)):
            raise OptionError(
                f"generations[{index}]={each!r:.200}: give a string, or a list of messages with a content."
            )
    return [completion_text(each) for each in generations]


def is_chat(value: Any) -> bool:
    """Return whether a value is a list of messages."""
    return isinstance(value, list | tuple) and all(isinstance(each, Mapping) and "content" in each for each in value)


def _content(message: Mapping[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, list | tuple):  # parts: texts, images
        return "".join(str(p.get("text", f"[{p.get('type')}]")) if isinstance(p, Mapping) else str(p) for p in content)
    return _text(content)


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else str(value)
