"""Errors: one family, each also of the built-in type that it resembles, and suggestions of close names."""

import pickle

import pytest

import hookline as hl
from hookline._engine import errors
from hookline._engine.errors import closest

FAMILY = {
    "MomentError": TypeError,
    "OptionError": ValueError,
    "OrderError": ValueError,
    "DuplicateError": ValueError,
    "UnknownNameError": LookupError,
    "ConfigError": ValueError,
    "CheckpointError": RuntimeError,
    "ArtifactError": RuntimeError,
    "NonFiniteError": ArithmeticError,
    "NotOfferedError": AttributeError,
    "MissingExtraError": ImportError,
    "RefusedError": PermissionError,
}


@pytest.mark.parametrize(("name", "resembles"), FAMILY.items())
def test_error_is_a_hookline_error_and_the_builtin_it_resembles(name, resembles):
    error = getattr(hl, name)
    assert error.__mro__[1:3] == (hl.HooklineError, resembles)
    assert str(error("what to do")) == "what to do"


def test_errors_of_the_module_are_all_public_and_drawn_in_its_tree():
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    defined = {error.__name__ for error in classes if issubclass(error, Exception)}
    assert defined == {"HooklineError", *FAMILY}
    assert [name for name in sorted(defined) if name not in (errors.__doc__ or "") or name not in hl.__all__] == []


def test_missing_extra_has_the_command_that_installs_it_also_after_a_pickle():
    error = pickle.loads(pickle.dumps(hl.MissingExtraError("The sink 'wandb'", "wandb")))
    assert str(error) == (
        "The sink 'wandb' needs a package that is not installed. Install it with: pip install 'hookline[wandb]'"
    )


def test_closest_names_the_nearest_spelling():
    assert closest("on_step_ends", ["on_train_end", "on_step_end"]) == "Did you mean 'on_step_end'?"


def test_closest_with_nothing_near_lists_all_sorted():
    assert closest("zzz", ["beta", "alpha"]) == "Known: alpha, beta."


def test_closest_with_nothing_at_all_says_so():
    assert closest("zzz", []) == "There are none."


def test_closest_takes_any_iterable():
    assert closest("alpah", iter({"alpha": 1})) == "Did you mean 'alpha'?"


def test_closest_of_a_name_that_is_near_none_lists_only_some():
    known = ["one", "two", "three", "four"]
    assert closest("zzz", known, listed=["four", "three"]) == "Known: four, three and 2 more."
    assert closest("thre", known, listed=["four"]) == "Did you mean 'three'?"
