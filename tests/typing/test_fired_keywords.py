"""What type checkers are told of a collection's moments that have a keyword is what the catalogue says."""

import inspect

from hookline.core.callback import MOMENTS, Callback
from hookline.core.fired import Fired


def parameters(function):
    return list(inspect.signature(function).parameters.values())


def test_fired_moments_with_keywords_are_those_of_the_catalogue_with_the_same_arguments():
    with_keywords = [name for name, moment in MOMENTS.items() if moment.keywords]
    told = {name: parameters(getattr(Fired, name)) for name in with_keywords}
    assert told == {name: parameters(getattr(Callback, name)) for name in with_keywords}
    assert list(told) == ["on_benchmark_eval"]
