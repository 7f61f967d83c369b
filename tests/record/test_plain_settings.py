"""The configuration of a run in plain values, as `run.json` has it."""

import json
from array import array
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import hookline as hl
from hookline.record.description import describe
from hookline.record.plain_settings import plain_settings
from hookline.sinks import HooklineSink


class Inner(msgspec.Struct):
    kl: float = 0.1
    stop: list[str] = []
    sinks: Any = ()


@dataclass
class Outer:
    grpo: Inner
    where: Path = Path("data")
    key: str = field(default="secret-key", repr=False)


class Model:
    pass


def recorded(config):
    with hl.run(config=config, summary=False) as run:
        pass
    return json.loads((run.dir / "run.json").read_text())["config"]


def test_settings_classes_become_mappings_without_what_they_hide():
    said = recorded(Outer(Inner(stop=["\n"])))
    assert said == {"grpo": {"kl": 0.1, "stop": ["\n"], "sinks": []}, "where": "data"}


def test_objects_become_short_texts_that_are_the_same_each_time():
    class Watches(hl.Callback):
        pass

    odd = {"model": Model(), "loss": recorded, "kind": Model, "watch": [Watches()], "exact": Decimal("0.1")}
    here = __name__
    assert recorded(odd) == {
        "model": f"{here}:Model",
        "loss": f"{here}:recorded",
        "kind": f"{here}:Model",
        "watch": [f"{here}:{Watches.__qualname__}"],
        "exact": "Decimal('0.1')",
    }


@pytest.mark.parametrize("given", [{"hookline": {"url": "http://host", "token": "secret-key"}}, "sink"])
def test_token_that_a_sink_hides_is_not_recorded(given):
    sink = HooklineSink("http://host", token="secret-key") if given == "sink" else given
    said = plain_settings(Inner(sinks=["csv", sink]))
    assert said["sinks"] == ["csv", {"use": "hookline", "with": {"url": "http://host"}}]


def test_token_that_a_sink_hides_is_not_described():
    said = describe({"sinks": [HooklineSink("http://host", token="secret-key")]})
    assert (said["sinks"][0]["url"], "secret-key" in str(said)) == ("http://host", False)


def test_sinks_of_somebody_else_stay_as_they_were_given():
    assert plain_settings(Inner(sinks=[{"kitchen": {"depth": 3}}]))["sinks"] == [{"kitchen": {"depth": 3}}]


def test_long_lists_of_settings_and_large_arrays_are_recorded_by_their_size():
    many = ["x"] * 101
    said = recorded({"data": Inner(stop=many), "own": many, "table": np.zeros((20, 30)), "betas": np.array([0.5, 1])})
    assert said["data"]["stop"] == "101 items"
    assert (said["own"], said["table"], said["betas"]) == (many, "ndarray of shape (20, 30)", [0.5, 1])


def test_configuration_inside_itself_is_cut_off():
    endless = {"lr": 0.1}
    endless["again"] = endless
    said = recorded(endless)
    assert (said["lr"], "(nested too deeply)" in json.dumps(said)) == (0.1, True)


def test_array_without_a_shape_is_recorded_with_its_values():
    assert recorded({"sizes": array("i", [1, 2])}) == {"sizes": [1, 2]}
