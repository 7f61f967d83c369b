"""Tools: their schemas, the arguments that a policy gives, and what it sees of a call."""

import asyncio
import copy
import functools
import pickle
import threading
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pytest

from hookline import rl
from hookline._engine.errors import OptionError
from hookline.rl.environments.tools import as_tools, call_tools, tools_of

transformers = pytest.importorskip("transformers")
from transformers.utils import get_json_schema  # noqa: E402


def weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius", days: int | None = None) -> str:
    """Get the weather of a city.

    It may be wrong.

    Args:
        city: The name of the city.
        unit: The unit of
            the temperature.
        days: How many days ahead.

    Returns:
        A sentence.
    """
    return f"{city} {unit} {days}"


def search(words: list[str], weights: dict[str, float], exact: bool, limit: int = 3, above: float = 0.5) -> list[str]:
    """Search documents.

    Args:
        words: The words.
        weights: The weight of each.
        exact: Whether case matters.
        limit: How many.
        above: The least score.
    """
    return words[:limit]


def no_arguments() -> str:
    """Return the time."""
    return "noon"


def anything(value: Any, either: int | str, nested: list[list[int]]) -> str:
    """Take anything.

    Args:
        value: A value.
        either: One of two.
        nested: Numbers.
    """
    return repr(value)


@rl.tool
def decorated(text: str) -> str:
    """Repeat a text.

    Args:
        text: The text.
    """
    return text


@pytest.mark.parametrize("function", [weather, search, no_arguments, anything])
def test_schema_is_that_of_transformers(function):
    expected = get_json_schema(function)["function"]
    expected.pop("return", None)
    assert rl.Tool(function).schema == {"type": "function", "function": expected}


@dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict):
    deep: bool


def test_schema_of_dataclasses_and_typed_dicts_has_no_references():
    def draw(points: list[Point], options: Options) -> str:
        """Draw."""
        return f"{points[0].x} {options}"

    made = rl.Tool(draw)
    properties = made.schema["function"]["parameters"]["properties"]
    assert properties["points"]["items"]["properties"]["x"] == {"type": "integer"}
    assert properties["options"]["required"] == ["deep"]
    assert made.checked_arguments({"points": [{"x": 1}], "options": {"deep": True}})["points"] == [Point(1)]


def untyped(a, b: int = 1):
    return a


def of_many(*numbers: int) -> int:
    return sum(numbers)


def of_a_lock(lock: threading.Thread) -> int:
    return 1


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (untyped, "untyped(a, b: int = 1) is not a tool: the parameter a needs a name and a type hint"),
        (of_many, "the parameter *numbers: int needs a name"),
        (of_a_lock, "Use the types of JSON"),
        (int, "<class 'int'> is not a tool: give a function"),
        (4, "4 is not a tool: give a function"),
    ],
)
def test_function_that_cannot_be_a_tool_raises(function, problem):
    with pytest.raises(OptionError) as caught:
        rl.Tool(function)
    assert problem in str(caught.value)


def test_two_tools_of_one_name_raise():
    with pytest.raises(OptionError, match="Two tools are called 'weather'"):
        as_tools([weather, rl.Tool(weather)])


# Calls


async def slow(seconds: float) -> str:
    """Wait.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(0)
    return f"{seconds} s"


def broken() -> str:
    """Fail."""
    raise LookupError("no such page")


def structured() -> dict[str, Any]:
    """Return a structure."""
    return {"a": [1, None], "b": Point(2)}


def picture() -> list[dict[str, Any]]:
    """Return an image."""
    return [{"type": "image", "image": b"png"}, {"type": "text", "text": "a cat"}]


TOOLS = as_tools([weather, slow, broken, structured, picture, decorated, functools.partial(no_arguments)])


def result_of(name, arguments):
    call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}}
    (result,) = asyncio.run(call_tools([call], TOOLS, asyncio.to_thread))
    assert (result.message["role"], result.message["name"]) == ("tool", name)
    assert result.message["tool_call_id"] == "call00001"
    return result.message["content"], result.is_error


@pytest.mark.parametrize(
    ("name", "arguments", "content"),
    [
        ("weather", {"city": "Rome"}, "Rome celsius None"),
        ("weather", {"city": "Rome", "unit": "fahrenheit", "days": 2}, "Rome fahrenheit 2"),
        ("slow", {"seconds": 2}, "2.0 s"),
        ("decorated", {"text": "a"}, "a"),
        ("structured", {}, '{"a":[1,null],"b":{"x":2,"y":0}}'),
        ("picture", {}, picture()),
        ("no_arguments", {}, "noon"),
    ],
)
def test_call_returns_the_result_as_content(name, arguments, content):
    assert result_of(name, arguments) == (content, False)


@pytest.mark.parametrize(
    ("name", "arguments", "content"),
    [
        ("wether", {}, "Error: There is no tool 'wether'. Did you mean 'weather'?"),
        ("weather", {}, "Error: weather: Object missing required field `city`. Arguments: city, unit, days."),
        ("weather", {"city": 4}, "Error: weather: Expected `str`, got `int` - at `city`. Arguments: city, unit, days."),
        ("weather", {"city": "a", "unit": "kelvin"}, "Error: weather: Invalid enum value 'kelvin' - at `unit`."),
        ("weather", {"city": "a", "hours": 4}, "Error: weather: Object contains unknown field `hours`."),
        ("weather", ["Rome"], "Error: weather: the arguments are ['Rome'], where an object is expected."),
        ("broken", {}, "Error: LookupError: no such page"),
    ],
)
def test_call_that_fails_tells_the_policy_why(name, arguments, content):
    text, is_error = result_of(name, arguments)
    assert is_error
    assert text.startswith(content)


def test_calls_of_a_message_run_at_the_same_time_and_keep_their_order():
    both = threading.Barrier(2, timeout=60)

    def meet(name: str) -> str:
        """Wait for the other call."""
        both.wait()
        return name

    calls = [{"function": {"name": "meet", "arguments": {"name": name}}} for name in ("a", "b")]
    results = asyncio.run(call_tools(calls, as_tools([meet]), asyncio.to_thread))
    assert [each.message["content"] for each in results] == ["a", "b"]


# Tools of objects


class Counter:
    def __init__(self, count=0):
        self.count = count
        self.tools = [weather]

    @rl.tool
    def add(self, number: int) -> int:
        """Add to the count.

        Args:
            number: What to add.
        """
        self.count += number
        return self.count

    @rl.tool
    async def reset(self) -> str:
        """Set the count to 0."""
        self.count = 0
        return "done"


def test_tools_of_an_object_are_those_listed_and_its_marked_methods():
    counter = Counter(4)
    tools = tools_of(counter)
    assert list(tools) == ["weather", "add", "reset"]
    assert "self" not in str(tools["add"].schema)
    assert (tools["add"].is_async, tools["reset"].is_async) == (False, True)
    assert (counter.add(3), counter.count, Counter().add(1)) == (7, 7, 1)


@pytest.mark.parametrize("copied", [lambda each: pickle.loads(pickle.dumps(each)), copy.deepcopy])
def test_tools_can_be_sent_to_another_process(copied):
    assert copied(decorated) is decorated
    assert copied(rl.Tool(weather)).schema == rl.Tool(weather).schema
    counter = Counter(4)
    bound = copied([counter, counter.add])
    assert (bound[1](1), bound[0].count, counter.count) == (5, 5, 4)
