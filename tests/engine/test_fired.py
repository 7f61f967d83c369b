"""What type checkers know of a collection is what the catalogue defines."""

import inspect

from hookline._engine.collection import Fired
from hookline._engine.moments import MOMENTS, Callback


def parameters(function):
    return [(each.name, each.kind, each.annotation) for each in inspect.signature(function).parameters.values()]


def test_fired_moments_are_those_of_the_catalogue_with_the_same_arguments():
    reported = {name: parameters(function) for name, function in vars(Fired).items() if name.startswith("on_")}
    assert reported == {name: parameters(getattr(Callback, name)) for name in MOMENTS}
