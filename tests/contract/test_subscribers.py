"""The contract that every registered callback and hook keeps."""

import pytest

from hookline._engine.registry import REGISTRY
from hookline.testing import check_callback

NEEDS_ARGUMENTS: dict[str, dict] = {
    "composite_hook": {"hooks": [{"logging_hook": {"frequency": 1}}]},
    "metrics_hook": {"frequency": 1, "metrics_fn": lambda context: {"step": context.step}},
}
"""Constructor arguments for those that cannot be made without."""


def built_in():
    return sorted(name for name in REGISTRY.names() if REGISTRY.find(name).__module__.startswith("hookline."))


@pytest.mark.parametrize("name", built_in())
def test_subscriber_keeps_the_contract(name):
    factory = REGISTRY.find(name)
    check_callback(lambda: factory(**NEEDS_ARGUMENTS.get(name, {})))


def test_contract_covers_all_that_is_built_in():
    import hookline.callbacks

    classes = {REGISTRY.find(name) for name in built_in()}
    public = {getattr(hookline.callbacks, name) for name in hookline.callbacks.__all__}
    assert public - classes == {hookline.callbacks.Callback, hookline.callbacks.CallbackCollection}
