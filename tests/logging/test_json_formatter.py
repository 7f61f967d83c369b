"""Log records as lines of JSON."""

import json
import logging
import math
from datetime import datetime

import pytest

from hookline._engine.errors import OptionError
from hookline.logging import JsonFormatter


def record(message="hello %s", *arguments, **attributes):
    made = logging.LogRecord("hookline.model", logging.INFO, __file__, 1, message, arguments or ("you",), None)
    vars(made).update(attributes)
    return made


def line(formatter, made):
    text = formatter.format(made)
    assert "\n" not in text
    return json.loads(text)


def test_json_formatter_writes_the_fields_named_in_their_order():
    written = line(JsonFormatter(["timestamp", "level", "name", "message"]), record())
    assert list(written) == ["timestamp", "level", "name", "message"]
    assert list(written.values())[1:] == ["INFO", "hookline.model", "hello you"]
    assert datetime.fromisoformat(written["timestamp"]).tzinfo is not None


def test_json_formatter_without_fields_adds_the_data():
    written = line(JsonFormatter(), record(step=3, hookline={"loss": math.nan}))
    assert {key: written[key] for key in ("message", "step", "loss")} == {
        "message": "hello you",
        "step": 3,
        "loss": "NaN",
    }


def test_json_formatter_fields_may_name_data_and_attributes():
    written = line(JsonFormatter(["loss", "lineno", "logger", "missing"]), record(hookline={"loss": 0.5}))
    assert written == {"loss": 0.5, "lineno": 1, "logger": "hookline.model", "missing": None}


def test_json_formatter_datefmt_makes_the_timestamp():
    made = record(created=0.0)
    assert line(JsonFormatter(["timestamp"], datefmt="%Y"), made)["timestamp"] in ("1969", "1970")


def test_json_formatter_keeps_an_exception():
    try:
        raise ValueError("wrong")
    except ValueError as error:
        made = record(exc_info=(ValueError, error, error.__traceback__))
    assert "ValueError: wrong" in line(JsonFormatter(["message"]), made)["exception"]


def test_json_formatter_writes_what_json_cannot_hold_as_text():
    written = line(JsonFormatter(), record(thing=object, text="line\nbreak é \ud800"))
    assert written["thing"] == "<class 'object'>"
    assert written["text"] == "line\nbreak é ?"


def test_json_formatter_with_fields_that_are_no_list_is_an_error():
    with pytest.raises(OptionError, match="give a list of names"):
        JsonFormatter("message")
