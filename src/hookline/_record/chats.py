"""Chats: prompts and completions given as lists of messages, as text and as the structure that is recorded.

A message is a mapping with a ``role`` and a ``content``, as in the APIs of OpenAI and Anthropic and in TRL: text, a
list of parts, or nothing beside ``tool_calls``. The text of a chat is what reward functions and text columns get. The
structure keeps every key; images in it become media, and what JSON cannot represent becomes text.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any

MAX_MESSAGES = 2000
"""How many messages of a chat are recorded: the last ones of a longer one."""
_DATA_URL = "data:image/"


def is_chat(value: Any) -> bool:
    """Return whether a value is a list of messages."""
    return isinstance(value, list | tuple) and all(map(_is_message, value))


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and ("content" in value or ("role" in value and "tool_calls" in value))


def as_chat(value: Any) -> list[Mapping[str, Any]] | None:
    """Return the messages of a chat or of a single message; None for any other value, and for an empty list."""
    if _is_message(value):
        return [value]
    return list(value) if is_chat(value) and value else None


def prompt_text(prompt: Any) -> str:
    """Return a prompt as text: a chat of several messages with their roles, any other value by `str`."""
    if is_chat(prompt):
        if len(prompt) == 1:
            return content_text(prompt[0].get("content"))
        return "\n".join(f"{message.get('role', '')}: {content_text(message.get('content'))}" for message in prompt)
    return content_text(prompt["content"]) if isinstance(prompt, Mapping) and "content" in prompt else _text(prompt)


def completion_text(completion: Any) -> str:
    """Return a completion as text: the assistant's messages of a chat, any other value by `str`."""
    if is_chat(completion):
        own = [message for message in completion if message.get("role") == "assistant"]
        return "\n".join(content_text(message.get("content")) for message in own or completion)
    is_message = isinstance(completion, Mapping) and "content" in completion
    return content_text(completion["content"]) if is_message else _text(completion)


def content_text(content: Any) -> str:
    """Return the content of a message as text; parts that are not text are named by their type."""
    if isinstance(content, list | tuple):  # parts: texts, images
        return "".join(str(p.get("text", f"[{p.get('type')}]")) if isinstance(p, Mapping) else str(p) for p in content)
    return _text(content)


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else str(value)


def recorded_messages(chat: list[Mapping[str, Any]], record_image: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """Return the messages of a chat as they are recorded.

    Args:
        record_image: Called with an image, as an object or as the bytes of a file; returns what is recorded for it.
    """
    return [_message(message, record_image) for message in chat[-MAX_MESSAGES:]]


def _message(message: Mapping[str, Any], record_image: Callable[[Any], Any]) -> dict[str, Any]:
    # TRL's datasets have every key in every message: those without a value say nothing.
    made = {str(key): value for key, value in message.items() if value is not None or key == "content"}
    content = made.get("content")
    if isinstance(content, list | tuple):
        made["content"] = [_part(part, record_image) if isinstance(part, Mapping) else part for part in content]
    if isinstance(made.get("tool_calls"), list | tuple):
        made["tool_calls"] = [_tool_call(call) for call in made["tool_calls"]]
    return made


def _tool_call(call: Any) -> Any:
    """Return a call with its arguments as structure: most APIs give them as a text of JSON."""
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _tool_call(call["function"])}
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            return dict(call)
        if isinstance(parsed, dict | list):
            return {**call, "arguments": parsed}
    return dict(call)


def _part(part: Mapping[str, Any], record_image: Callable[[Any], Any]) -> dict[str, Any]:
    image = image_in(part)
    if image is None:
        return {str(key): value for key, value in part.items() if value is not None}
    return {"type": "image", "media": record_image(image)}


def image_in(part: Mapping[str, Any]) -> Any:
    """Return the image of a part: an object, or the bytes of its file; None for text, and for an image elsewhere."""
    value = part.get("image", part.get("image_url", part.get("source")))
    if isinstance(value, Mapping):
        if value.get("type") == "base64":
            return _decoded(value.get("data"))
        value = value.get("url", value.get("bytes"))
    if isinstance(value, str):
        head, _, data = value.partition(",")
        return _decoded(data) if head.startswith(_DATA_URL) and head.endswith(";base64") else None
    return value


def _decoded(data: Any) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, TypeError, ValueError):
        return None
