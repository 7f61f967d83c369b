"""Functions of `wandb.util` that programs call."""

import json

import pytest

import hookline.compat.wandb as wandb
from hookline.compat.wandb import util


def test_get_module_returns_a_module_none_or_the_error_that_is_asked_for():
    assert util.get_module("json", lazy=False) is json
    assert util.get_module("no_such_module") is None
    with pytest.raises(wandb.Error, match="^needed$"):
        util.get_module("no_such_module", required="needed")


@pytest.mark.parametrize(
    ("name", "safe"), [("a b/c", "a_b_c"), ("run-1_model.pt", "run-1_model.pt"), ("x" * 200, f"{'x' * 63}..{'x' * 63}")]
)
def test_make_artifact_name_safe_leaves_what_names_may_hold(name, safe):
    assert util.make_artifact_name_safe(name) == safe


def test_json_functions_return_plain_values():
    assert util.json_friendly((1, 2)) == ([1, 2], True)
    assert util.json_friendly(3) == (3, False)
    assert util.json_friendly_val({1}) == [1]
    assert util.json_dumps_safer({"b": (1,), "a": 2}, sort_keys=True) == '{"a": 2, "b": [1]}'


def test_generate_id_has_as_many_letters_as_are_asked_for():
    assert (len(util.generate_id()), len(util.generate_id(length=5))) == (8, 5)
