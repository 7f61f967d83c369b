"""Splitting random generators: of every library, into fresh ones that differ, and the original moves on."""

import random

import pytest

import hookline as hl
from hookline._engine.hooks import split_generator


def python_generator(seed):
    return random.Random(seed)


def numpy_generator(seed):
    return pytest.importorskip("numpy").random.default_rng(seed)


def torch_generator(seed):
    return pytest.importorskip("torch").Generator().manual_seed(seed)


def jax_typed_key(seed):
    return pytest.importorskip("jax").random.key(seed)


def jax_raw_key(seed):
    return pytest.importorskip("jax").random.PRNGKey(seed)


def draws(rng):
    """A few numbers that tell a generator from others."""
    if isinstance(rng, random.Random):
        return [rng.random() for _ in range(4)]
    if type(rng).__module__.startswith("numpy"):
        return rng.random(4).tolist()
    if type(rng).__module__.startswith("torch"):
        import torch

        return torch.rand(4, generator=rng).tolist()
    import jax

    return jax.random.uniform(rng, (4,)).tolist()


every_library = pytest.mark.parametrize(
    "make", [python_generator, numpy_generator, torch_generator, jax_typed_key, jax_raw_key]
)


@every_library
def test_split_gives_generators_that_differ_from_one_another_and_the_original(make):
    kept, first, second = split_generator(make(0))
    numbers = [draws(kept), draws(first), draws(second), draws(make(0))]
    assert [number for i, number in enumerate(numbers[:3]) if number in numbers[i + 1 : 3]] == []
    assert numbers[1] != numbers[3]
    assert numbers[2] != numbers[3]


@every_library
def test_split_is_of_the_same_kind(make):
    given = make(0)
    assert [type(each) for each in split_generator(given)] == [type(given)] * 3


@every_library
def test_split_again_gives_others(make):
    kept, first, second = split_generator(make(0))
    _, third, fourth = split_generator(kept)
    numbers = [draws(each) for each in (first, second, third, fourth)]
    assert len({tuple(number) for number in numbers}) == 4


@every_library
def test_split_from_the_same_seed_gives_the_same(make):
    assert [draws(each) for each in split_generator(make(3))] == [draws(each) for each in split_generator(make(3))]
    assert draws(split_generator(make(3))[1]) != draws(split_generator(make(4))[1])


@every_library
def test_context_split_rng_never_repeats_a_generator(make):
    context = hl.HookContext(worker=None, step=1, rng=make(0))
    numbers = [tuple(draws(rng)) for _ in range(5) for rng in context.split_rng()]
    assert len(set(numbers)) == 10


@pytest.mark.parametrize("make", [jax_typed_key, jax_raw_key])
def test_context_split_rng_of_immutable_key_keeps_the_advanced_one(make):
    given = make(0)
    context = hl.HookContext(worker=None, step=1, rng=given)
    context.split_rng()
    assert draws(context.rng) != draws(given)


@pytest.mark.parametrize("rng", [None, 42, "seed", [1, 2], object()])
def test_split_of_something_else_is_refused_with_what_is_accepted(rng):
    with pytest.raises(hl.OptionError) as caught:
        split_generator(rng)
    assert str(caught.value) == (
        f"rng={rng!r} cannot be split; give a numpy.random.Generator, a torch.Generator, a JAX key or a random.Random."
    )


def test_split_of_numpy_array_that_is_no_key_is_refused():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(hl.OptionError, match="cannot be split"):
        split_generator(numpy.zeros(3))


def test_split_of_numpy_legacy_state_is_refused():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(hl.OptionError, match="cannot be split"):
        split_generator(numpy.random.RandomState(0))
