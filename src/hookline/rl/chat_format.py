"""`ChatFormat`: messages as tokens, and sampled tokens as messages, by the chat template of a tokenizer.

In rollouts, this is the only place where a chat template is applied. A conversation becomes tokens once: later messages
are appended as tokens to what was sampled, which is never tokenized again, because text decoded from tokens does not
always become the same tokens.

Some templates do not only append. They remove the reasoning of earlier turns, for example, so that the conversation of
the next turn does not begin with the tokens of the previous one. `continuation` detects that by rendering the
conversation with and without the new messages, and returns None: the conversation then continues as a new branch, with
the prompt that the template makes, which is what the model would see in use.

Sampled tokens become a message by the tokenizer's ``response_template`` (`transformers`' ``parse_response``) if it has
one. Otherwise by the format of Hermes and Qwen: ``<think>...</think>`` is reasoning, and
``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` a call. What cannot be parsed is text.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookline._engine.errors import OptionError
from hookline._record.chats import is_chat

Message = dict[str, Any]
"""A message with a ``role`` and a ``content``, as in the APIs of OpenAI and in chat templates."""
Schema = dict[str, Any]
"""The JSON schema of a tool: ``{"type": "function", "function": {"name", "description", "parameters"}}``."""
Parser = Callable[[str, Sequence[Schema]], Mapping[str, Any]]

PREFIX_TOKENS = 256
"""How many tokens before a response are given to its parser: at least those with which the template begins a turn."""

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_REASONING = re.compile(r"\A\s*(?:<think>)?(.*?)</think>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation up to the beginning of the assistant's next turn.

    Attributes:
        text: The text that the template makes of all of it.
        ids: The tokens of this text, or of the part of it that is new.
    """

    text: str
    ids: list[int]


class ChatFormat:
    """Converts messages to tokens and back.

    Args:
        tokenizer: A tokenizer of transformers with a chat template, and a response template if it has one.
        template_options: Further variables of the template, such as ``{"enable_thinking": False}``.
        parser: Makes a message of a response, given its text and the schemas of the tools; by default the tokenizer's
            response template, or the format of Hermes and Qwen.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        template_options: Mapping[str, Any] | None = None,
        parser: Parser | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template_options = dict(template_options or {})
        self._parser = parser
        self._special = frozenset(getattr(tokenizer, "all_special_ids", ()))
        self._has_template = parser is None and getattr(tokenizer, "response_template", None) is not None
        if self._has_template:
            try:
                tokenizer.get_response_parser(prefix="")
            except (ValueError, TypeError) as error:
                raise OptionError(f"tokenizer.response_template is not valid: {error}") from error

    def with_options(self, template_options: Mapping[str, Any]) -> "ChatFormat":
        """Return a format with further variables of the template."""
        if not template_options:
            return self
        options = {**self.template_options, **template_options}
        return ChatFormat(self.tokenizer, template_options=options, parser=self._parser)

    def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Schema] = ()) -> RenderedChat:
        """Return a conversation as the prompt of the assistant's next turn.

        Raises:
            OptionError: There is no chat template, or it does not accept these messages.
        """
        text = self._render(messages, tools, is_prompt=True)
        return RenderedChat(text, self._encode(text))

    def continuation(
        self,
        before: str,
        sampled: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        new: Sequence[Mapping[str, Any]],
        tools: Sequence[Schema] = (),
    ) -> RenderedChat | None:
        """Return what follows a sampled turn: the tokens of new messages, and the beginning of the next turn.

        Args:
            before: The text of the conversation when the turn was sampled.
            sampled: The tokens of the turn.
            messages: The conversation up to and including the turn.
            new: The messages after it.

        Returns:
            The tokens to append to the sampled ones; None if the template does not append, but changes what precedes.
        """
        ended, text = (
            self._render(messages, tools, is_prompt=False),
            self._render([*messages, *new], tools, is_prompt=True),
        )
        end = self._end_of_turn(before, sampled, ended)
        if end is None or not ended.startswith(before) or not text.startswith(ended[:end]):
            return None
        # With the last token of the turn in front: some tokenizers treat the first token of a text differently.
        last = self._decode(sampled[-1:]) if sampled and sampled[-1] in self._special else ""
        ids = self._encode(last + text[end:])
        if last:
            if ids[:1] != list(sampled[-1:]):
                return None
            ids = ids[1:]
        return RenderedChat(text, ids)

    def message(
        self, sampled: Sequence[int], *, prompt_ids: Sequence[int] = (), tools: Sequence[Schema] = ()
    ) -> Message:
        """Return sampled tokens as a message with ``content``, and reasoning and ``tool_calls`` if there are any.

        Args:
            prompt_ids: The tokens before them: a template may begin the message, e.g. with ``<think>``.
        """
        ids = list(sampled)
        parsed: Any = None
        try:
            if self._parser is not None:
                parsed = self._parser(self._decode(self._without_end(ids)), tools)
            elif self._has_template:
                prefix = list(prompt_ids[-PREFIX_TOKENS:])
                parsed = self.tokenizer.parse_response(ids, prefix=prefix, tools=list(tools) or None)
            else:
                parsed = parse_hermes(self._decode(self._without_end(ids)))
            return _checked(parsed, self.tokenizer)
        except (ValueError, TypeError, KeyError, AttributeError):  # the model wrote something that is no valid message
            text = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            return {"role": "assistant", "content": str(text)}

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Schema], *, is_prompt: bool) -> str:
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise OptionError(
                f"{type(self.tokenizer).__name__} has no chat template, so messages cannot become a prompt: set "
                "tokenizer.chat_template, or use the tokenizer of a model that was trained for chats."
            )
        from jinja2 import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(
                [_for_template(message) for message in messages],
                tools=list(tools) or None,
                add_generation_prompt=is_prompt,
                tokenize=False,
                **self.template_options,
            )
        except (TemplateError, TypeError, KeyError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages[-8:])
            raise OptionError(f"The chat template does not accept messages with the roles {roles}: {error}") from error
        return str(text)

    def _end_of_turn(self, before: str, sampled: Sequence[int], ended: str) -> int | None:
        """Return where the sampled turn ends in the text of the conversation; what follows has to be appended."""
        if sampled and sampled[-1] in self._special:
            last = self._decode(sampled[-1:])
            place = ended.rfind(last, len(before))
            if place >= 0:
                return place + len(last)
        # Ended by a stop text or by a token that the template does not write: the end of the turn is missing.
        content = self._decode(sampled)
        return len(before) + len(content) if ended.startswith(content, len(before)) else None

    def _without_end(self, ids: list[int]) -> list[int]:
        return ids[:-1] if ids and ids[-1] in self._special else ids

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def parse_hermes(text: str) -> Message:
    """Return a response in the format of Hermes and Qwen as a message.

    >>> parse_hermes('<think>Hm.</think>Yes.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')["content"]
    'Yes.'

    Raises:
        ValueError: A call is not valid JSON with a name and arguments.
    """
    message: Message = {"role": "assistant"}
    if reasoning := _REASONING.match(text):
        message["reasoning_content"] = reasoning.group(1).strip()
        text = text[reasoning.end() :]
    calls = [json.loads(call) for call in _CALL.findall(text)]
    message["content"] = _CALL.sub("", text).strip()
    if calls:
        message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return message


def _checked(parsed: Mapping[str, Any], tokenizer: Any) -> Message:
    """Return a parsed message in one form: a text as content, and calls with a name and a dict of arguments.

    Raises:
        TypeError, KeyError, ValueError: It is not a message.
    """
    message = {name: value for name, value in parsed.items() if value is not None and value != []}
    content = message.get("content", "")
    if not isinstance(content, str):
        raise TypeError("the content is not a text")
    # A response template may leave the end-of-text token in the content.
    message |= {"role": "assistant", "content": content.removesuffix(getattr(tokenizer, "eos_token", None) or "\0")}
    if "tool_calls" in message:
        message["tool_calls"] = [_checked_call(call) for call in message["tool_calls"]]
    return message


def _checked_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function", call)
    name, arguments = function["name"], function.get("arguments")
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    arguments = {} if arguments is None else arguments
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise TypeError("a call has no name, or its arguments are not an object")
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _for_template(message: Mapping[str, Any]) -> Message:
    """Return a message in the form that templates expect: arguments as a dict, and texts not as lists of parts."""
    made = dict(message)
    content = made.get("content")
    if content is None:
        made["content"] = ""
    elif isinstance(content, list | tuple) and all(isinstance(p, Mapping) and p.get("type") == "text" for p in content):
        made["content"] = "".join(str(part.get("text", "")) for part in content)
    calls = made.get("tool_calls")
    if isinstance(calls, list | tuple):
        made["tool_calls"] = [_call_for_template(call) for call in calls]
    return made


def _call_for_template(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
        try:
            arguments = json.loads(function["arguments"])
        except ValueError:
            return call
        return {**call, "function": {**function, "arguments": arguments}}
    return call


def check_messages(value: Any, name: str) -> list[Message]:
    """Return a conversation as a list of messages: a text is a message of the user.

    Raises:
        OptionError: It is not a list of messages.
    """
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    messages = [value] if isinstance(value, Mapping) else value
    if not is_chat(messages) or not messages:
        raise OptionError(
            f"{name} is {value!r:.200}: give a text, a message {{'role': ..., 'content': ...}}, or a list of messages."
        )
    for message in messages:
        if not isinstance(message.get("role"), str):
            raise OptionError(f"{name} has the message {message!r:.200} without a role: give 'user', 'tool', ...")
    return [dict(message) for message in messages]
