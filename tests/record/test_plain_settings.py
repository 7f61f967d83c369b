"""The configuration of a run in plain values, as `run.json` has it."""

import argparse
import json
import sys
from array import array
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import msgspec
import numpy as np
import pydantic
import pytest

import hookline as hl
from hookline._record.settings import describe, plain_settings
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


class Precision(Enum):
    BF16 = "bf16"
    FULL = 32


class Size(int, Enum):
    SMALL = 8


class Text(str, Enum):  # noqa: UP042 - whose str() is not its text
    PLAIN = "plain"


@attrs.define
class AttrsSettings:
    lr: float = 0.1
    where: Path = Path("data")
    key: str = attrs.field(default="secret-key", repr=False)


class PydanticSettings(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", arbitrary_types_allowed=True)
    lr: float = 0.1
    where: Path = Path("data")
    inner: AttrsSettings = AttrsSettings()
    key: str = pydantic.Field(default="secret-key", repr=False)


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


def test_sinks_of_another_owner_stay_unchanged():
    assert plain_settings(Inner(sinks=[{"kitchen": {"depth": 3}}]))["sinks"] == [{"kitchen": {"depth": 3}}]


def test_long_lists_of_settings_and_large_arrays_are_recorded_by_their_size():
    many = ["x"] * 101
    said = recorded({"data": Inner(stop=many), "own": many, "table": np.zeros((20, 30)), "betas": np.array([0.5, 1])})
    assert said["data"]["stop"] == "101 items"
    assert (said["own"], said["table"], said["betas"]) == (many, "ndarray of shape (20, 30)", [0.5, 1])


def test_configuration_inside_itself_is_cut_off():
    endless = {"lr": 0.1}
    endless["again"] = endless  # type: ignore[assignment]
    said = recorded(endless)
    assert (said["lr"], "(nested too deeply)" in json.dumps(said)) == (0.1, True)


def test_array_without_a_shape_is_recorded_with_its_values():
    assert recorded({"sizes": array("i", [1, 2])}) == {"sizes": [1, 2]}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (argparse.Namespace(lr=0.1, out=Path("a/b")), {"lr": 0.1, "out": "a/b"}),
        (SimpleNamespace(lr=0.1, nested=SimpleNamespace(k=3)), {"lr": 0.1, "nested": {"k": 3}}),
        (AttrsSettings(), {"lr": 0.1, "where": "data"}),
        (PydanticSettings(more=1), {"lr": 0.1, "where": "data", "inner": {"lr": 0.1, "where": "data"}, "more": 1}),  # type: ignore[call-arg]
        ({"a": Precision.BF16, "b": Precision.FULL}, {"a": "bf16", "b": "FULL"}),
        ({"size": Size.SMALL, "text": Text.PLAIN}, {"size": 8, "text": "plain"}),
        ({"loss": np.mean, "make": Model}, {"loss": "numpy:mean", "make": f"{__name__}:Model"}),
    ],
)
def test_config_of_every_usual_kind_is_recorded_as_data(given, expected):
    assert recorded(given) == expected


def test_namespace_inside_a_configuration_is_described_by_its_settings():
    assert describe({"args": argparse.Namespace(lr=0.1)}) == {"args": {"lr": 0.1}}


class DictConfig(MutableMapping):
    """A configuration of OmegaConf, as far as it is used: reading a value that is missing raises."""

    def __init__(self, content, resolved):
        self.content, self.resolved = content, resolved

    def __getitem__(self, key):
        raise LookupError(f"Missing mandatory value: {key}")

    __setitem__ = __delitem__ = __getitem__  # type: ignore[assignment]

    def __iter__(self):
        return iter(self.content)

    def __len__(self):
        return len(self.content)


DictConfig.__module__ = "omegaconf.dictconfig"


@pytest.mark.parametrize("resolves", [True, False])
def test_omegaconf_configuration_is_recorded_resolved_where_that_is_possible(monkeypatch, resolves):
    def to_container(config, *, resolve=False):
        if resolve and config.resolved is None:
            raise LookupError("Interpolation key 'nowhere' not found")
        return config.resolved if resolve else config.content

    module = ModuleType("omegaconf")
    module.OmegaConf = SimpleNamespace(to_container=to_container)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "omegaconf", module)
    written = {"lr": "${base.lr}", "data": "???"}
    config = DictConfig(written, {"lr": 0.1, "data": "???"} if resolves else None)
    assert recorded(config) == ({"lr": 0.1, "data": "???"} if resolves else written)
