"""Tools: typed functions that a policy can call in an episode.

A tool's JSON schema is made of its signature and its docstring in Google's style, in the form that chat templates and
servers expect: that of ``transformers.utils.get_json_schema``. Arguments are checked against the type hints before a
call. Nothing that a policy writes or a tool raises ends an episode: unknown names, wrong arguments and exceptions are
reported to the policy, as the tool's result.
"""

import asyncio
import contextlib
import inspect
import operator
import re
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self, get_args, get_origin

import msgspec

from hookline._engine.errors import OptionError, closest

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function on another thread, and returns its result."""

MAX_ERROR_CHARACTERS = 1000
"""How much of an error is reported to the policy."""

_SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^(\s*)\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


class Tool:
    """A function that a policy can call.

    Attributes:
        name: The function's name.
        schema: Its JSON schema: ``{"type": "function", "function": {"name", "description", "parameters"}}``.

    >>> def add(a: int, b: int = 1) -> int:
    ...     '''Add two numbers.
    ...
    ...     Args:
    ...         a: The first number.
    ...         b: The second number.
    ...     '''
    ...     return a + b
    >>> Tool(add).schema["function"]["parameters"]["properties"]["a"]
    {'type': 'integer', 'description': 'The first number.'}
    """

    def __init__(self, function: Callable[..., Any], *, name: str | None = None) -> None:
        if not callable(function) or isinstance(function, type):
            raise OptionError(f"{function!r:.200} is not a tool: give a function with type hints and a docstring.")
        inner: Any = function
        while isinstance(inner, partial):  # which has no name and no docstring of its own
            inner = inner.func
        self.function = function
        self.__module__, self.__qualname__ = getattr(inner, "__module__", ""), getattr(inner, "__qualname__", "")
        self.name = str(name or getattr(inner, "__name__", type(inner).__name__))
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
        )
        signature = _signature(self.name, function)
        description, descriptions = _parsed_docstring(inspect.getdoc(inner) or "")
        self._takes_self = _takes_self(function, signature)
        parameters = list(signature.parameters.values())[1 if self._takes_self else 0 :]
        hints = _hints(self.name, inner)
        fields: list[Any] = []
        for each in parameters:
            if each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL, each.VAR_KEYWORD) or each.name not in hints:
                raise OptionError(
                    f"{self.name}{signature} is not a tool: the parameter {each} needs a name and a type hint, such as "
                    f"'{each.name}: str', since the policy gives its arguments by name."
                )
            # A default is the function's own: only whether there is one matters here.
            default = () if each.default is each.empty else (None,)
            fields.append((each.name, hints[each.name], *default))
        try:
            self._arguments: Any = msgspec.defstruct(self.name, fields, kw_only=True, forbid_unknown_fields=True)
            properties = {each.name: _json_schema(hints[each.name]) for each in parameters}
        except (TypeError, ValueError) as error:
            raise OptionError(
                f"{self.name}{signature} is not a tool: {error}. Use the types of JSON (str, int, float, bool, list, "
                "dict, Literal, and unions with None), dataclasses or TypedDicts."
            ) from error
        for each_name, text in descriptions.items():
            if each_name in properties:
                properties[each_name]["description"] = text
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if required := [each.name for each in parameters if each.default is each.empty]:
            schema["required"] = required
        self.schema: dict[str, Any] = {
            "type": "function",
            "function": {"name": self.name, "description": description, "parameters": schema},
        }

    def __get__(self, instance: Any, owner: type | None = None) -> Self | "Tool":
        """Bind a tool that is a method, like a function."""
        if instance is None or not self._takes_self:
            return self
        bound = object.__new__(Tool)
        bound.__dict__ |= self.__dict__
        bound.function, bound._takes_self = self.function.__get__(instance, owner), False
        return bound

    def __reduce__(self) -> Any:
        """Be sent to another process like a function: by name, where the name is known there."""
        if inspect.ismethod(self.function):
            return getattr, (self.function.__self__, self.function.__name__)
        with contextlib.suppress(AttributeError):
            if operator.attrgetter(self.__qualname__)(sys.modules.get(self.__module__)) is self:
                return self.__qualname__
        return partial(Tool, name=self.name), (self.function,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, without any checks."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    def checked_arguments(self, arguments: Any) -> dict[str, Any]:
        """Return arguments in the types of the parameters.

        Raises:
            OptionError: They do not fit the schema; the message is for the policy.
        """
        if not isinstance(arguments, Mapping):
            raise OptionError(f"{self.name}: the arguments are {arguments!r:.200}, where an object is expected.")
        try:
            converted = msgspec.convert(dict(arguments), self._arguments)
        except msgspec.ValidationError as error:
            expected = ", ".join(self.schema["function"]["parameters"]["properties"]) or "none"
            raise OptionError(f"{self.name}: {str(error).replace('$.', '')}. Arguments: {expected}.") from None
        return {name: getattr(converted, name) for name in arguments}


def tool(function: Callable[..., Any]) -> Tool:
    """Make a tool of a function or a method; as a decorator.

    The name, the type hints and the docstring, with a description of each argument under ``Args:``, become the schema
    that the policy sees. A tool may be ``async``.

    Raises:
        OptionError: A parameter has no type hint, or one that is not a type of JSON.
    """
    return Tool(function)


def as_tools(given: Iterable[Any]) -> dict[str, Tool]:
    """Return functions and tools as tools by name.

    Raises:
        OptionError: Two have the same name, or one cannot be a tool.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise OptionError(f"tools={given!r:.200}: give a list of functions with type hints.")
    tools: dict[str, Tool] = {}
    for each in given:
        made = each if isinstance(each, Tool) else Tool(each)
        if made.name in tools:
            raise OptionError(f"Two tools are called {made.name!r}: rename one of the functions.")
        tools[made.name] = made
    return tools


def schemas_of(given: Iterable[Any] | Mapping[str, Tool]) -> list[dict[str, Any]]:
    """Return the JSON schemas of tools and functions; schemas are returned as they are."""
    if isinstance(given, Mapping):
        return [each.schema for each in given.values()]
    listed = list(given)
    if listed and all(isinstance(each, Mapping) for each in listed):
        return [dict(each) for each in listed]
    return [each.schema for each in as_tools(listed).values()]


def tools_of(owner: Any) -> dict[str, Tool]:
    """Return the tools of an environment or an episode: those in ``tools``, and its methods marked with `tool`."""
    listed = [*(getattr(owner, "tools", None) or ())]
    # Not inspect.getattr_static(), which takes half a millisecond for a class: this runs for every episode.
    found = {name: value for kind in reversed(type(owner).__mro__) for name, value in vars(kind).items()}
    found |= {name: value for name, value in getattr(owner, "__dict__", {}).items() if name in found}
    marked = [getattr(owner, name) for name, value in found.items() if isinstance(value, Tool)]
    known = {each.name for each in listed if isinstance(each, Tool)}
    return as_tools([*listed, *(each for each in marked if each.name not in known)])


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call.

    Attributes:
        message: What the policy sees.
        name: The name of the tool in the call, which may be unknown.
        is_error: Whether the call failed.
        seconds: How long it took.
    """

    message: dict[str, Any]
    name: str
    is_error: bool
    seconds: float


async def call_tools(
    calls: Sequence[Mapping[str, Any]], tools: Mapping[str, Tool], in_thread: InThread
) -> list[ToolResult]:
    """Run the calls of a message, all at the same time, and return the results in the order of the calls."""
    return list(await asyncio.gather(*(_call(call, tools, in_thread) for call in calls)))


async def _call(call: Mapping[str, Any], tools: Mapping[str, Tool], in_thread: InThread) -> ToolResult:
    function = call["function"]
    name, began = str(function["name"]), asyncio.get_running_loop().time()
    is_error = True
    try:
        found = _find(name, tools)
        arguments = found.checked_arguments(function["arguments"])
        if found.is_async:
            value = await found.function(**arguments)
        else:
            value = await in_thread(lambda: found.function(**arguments))
            if inspect.isawaitable(value):  # e.g. of a functools.partial of an async function
                value = await value
        content, is_error = _content(value), False
    except OptionError as error:
        content = f"Error: {error}"
    except Exception as error:  # user code: the policy sees what went wrong
        content = f"Error: {type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS]
    message = {"role": "tool", "name": name, "content": content}
    if "id" in call:
        message["tool_call_id"] = call["id"]
    return ToolResult(message, name, is_error, asyncio.get_running_loop().time() - began)


def _find(name: str, tools: Mapping[str, Tool]) -> Tool:
    if name not in tools:
        raise OptionError(f"There is no tool {name!r}. {closest(name, tools)}")
    return tools[name]


def _content(value: Any) -> Any:
    """Return the result of a tool as the content of a message: a text, or a list of parts such as images."""
    if isinstance(value, str):
        return value
    is_parts = isinstance(value, list) and value and all(isinstance(p, Mapping) and "type" in p for p in value)
    if is_parts:
        return value
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _signature(name: str, function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{name} is not a tool: its signature is unknown ({error}). Wrap it in a function.") from None


def _hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        own = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
        return typing.get_type_hints(own, include_extras=True)
    except NameError as error:
        raise OptionError(f"{name} is not a tool: a type hint names something unknown ({error}).") from error


def _takes_self(function: Callable[..., Any], signature: inspect.Signature) -> bool:
    """Whether a function is a method that is not bound: its first parameter is ``self`` and has no type hint."""
    first = next(iter(signature.parameters.values()), None)
    return (
        inspect.isfunction(function) and first is not None and first.name == "self" and first.annotation is first.empty
    )


def _parsed_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description of a docstring in Google's style, and those of the arguments."""
    sections = _SECTION.split(text)
    described: dict[str, str] = {}
    for title, body in zip(sections[1::2], sections[2::2], strict=True):
        if title in ("Args", "Arguments"):
            described = _parsed_arguments(body)
    return sections[0].strip(), described


def _parsed_arguments(body: str) -> dict[str, str]:
    described: dict[str, str] = {}
    indent: int | None = None
    name = ""
    for line in body.splitlines():
        found = _ARGUMENT.match(line)
        if found and (indent is None or len(found.group(1)) <= indent):
            indent, name = len(found.group(1)), found.group(2)
            described[name] = found.group(3).strip()
        elif name and line.strip():
            described[name] = f"{described[name]} {line.strip()}".strip()
    return described


_BASIC = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _json_schema(hint: Any) -> dict[str, Any]:
    """Return the schema of a type hint, as ``transformers.utils.get_json_schema`` writes it for the types it knows.

    Raises:
        TypeError: It is not a type of JSON.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _BASIC:
        return {"type": _BASIC[hint]}
    if hint is Any:
        return {}
    if origin in (typing.Union, types.UnionType):
        given = [_json_schema(each) for each in arguments if each is not type(None)]
        made = given[0] if len(given) == 1 else _union(given)
        return made | ({"nullable": True} if type(None) in arguments else {})
    if origin is Literal:
        kinds = list(dict.fromkeys(_BASIC[type(value)] for value in arguments))
        return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(arguments)}
    if hint in (list, tuple) or origin is list:
        return {"type": "array"} | ({"items": _json_schema(arguments[0])} if arguments else {})
    if hint is dict or origin is dict:
        return {"type": "object"} | ({"additionalProperties": _json_schema(arguments[1])} if arguments else {})
    (schema,), components = msgspec.json.schema_components([hint], ref_template="{name}")
    inlined: dict[str, Any] = _inlined(schema, components)
    return inlined


def _union(given: list[dict[str, Any]]) -> dict[str, Any]:
    if all(each.keys() == {"type"} for each in given):
        names = sorted({each["type"] for each in given})
        return {"type": names[0] if len(names) == 1 else names}
    return {"anyOf": given}


def _inlined(schema: Any, components: Mapping[str, Any], depth: int = 0) -> Any:
    """Replace references by what they refer to: chat templates do not resolve them."""
    if depth > 20:
        raise TypeError("a type refers to itself")
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            return _inlined(components[schema["$ref"]], components, depth + 1)
        return {key: _inlined(value, components, depth + 1) for key, value in schema.items()}
    return [_inlined(each, components, depth + 1) for each in schema] if isinstance(schema, list) else schema
