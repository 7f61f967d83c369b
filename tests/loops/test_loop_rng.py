"""The random states from which a training resumes."""

import io
import random
import sys

import numpy as np
import pytest

from hookline.loops import rng

torch = pytest.importorskip("torch")


def draws():
    """Numbers from all libraries; the Gaussian ones are drawn in pairs, of which one waits."""
    return (
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        torch.rand(2).tolist(),
    )


@pytest.fixture(autouse=True)
def _states_stay():
    with rng.kept():
        yield


def test_restored_states_draw_the_same_again():
    draws()
    state = rng.capture()
    first = draws()
    draws()
    rng.restore(state)
    assert draws() == first


def test_captured_states_can_be_saved_and_read_without_running_code():
    state = rng.capture()
    first = draws()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    rng.restore(torch.load(file, weights_only=True))
    assert draws() == first


def test_captured_states_do_not_change_with_later_draws():
    state = rng.capture()
    before = state["torch"].tolist(), state["numpy"][1][:5], state["python"][1][:5]
    draws()
    assert (state["torch"].tolist(), state["numpy"][1][:5], state["python"][1][:5]) == before


@pytest.mark.parametrize("number", [0, 1, 2**32, 2**63 - 1])
def test_seed_makes_all_libraries_draw_the_same(number):
    rng.seed(number)
    first = draws()
    draws()
    rng.seed(number)
    assert draws() == first


def test_seeds_differ():
    results = set()
    for number in range(3):
        rng.seed(number)
        results.add(str(draws()))
    assert len(results) == 3


def test_what_is_drawn_inside_of_kept_leaves_no_trace():
    state = rng.capture()
    expected = draws()
    rng.restore(state)
    with rng.kept():
        draws()
    assert draws() == expected


def test_what_is_drawn_inside_of_kept_leaves_no_trace_after_an_error_either():
    state = rng.capture()
    expected = draws()
    rng.restore(state)
    with pytest.raises(KeyboardInterrupt), rng.kept():
        draws()
        raise KeyboardInterrupt
    assert draws() == expected


@pytest.mark.parametrize("missing", ["numpy", "torch"])
def test_what_is_not_loaded_is_left_alone(monkeypatch, missing):
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, missing)
        state = rng.capture()
        rng.seed(1)
        rng.restore(state)
    assert missing not in state
    before = draws()[2:]
    rng.restore(state)  # now that it is loaded, the checkpoint has nothing for it
    assert draws()[2:] != before


def test_captured_states_of_what_is_not_loaded_any_more_are_left_out(monkeypatch):
    state = rng.capture()
    expected = random.random()
    for name in ("numpy", "torch"):
        monkeypatch.delitem(sys.modules, name)
    rng.restore(state)
    assert random.random() == expected
