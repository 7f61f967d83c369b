"""Values of metrics: both spellings of a name, and plain Python numbers from whatever holds one."""

import json
from types import MappingProxyType

import pytest

from hookline._engine.metrics import find_metric, plain


class OneItem:
    """A scalar of some library that only has `item()`."""

    def item(self):
        return 2.5


class NotAScalar:
    ndim = 1

    def item(self):
        raise ValueError("more than one")


@pytest.mark.parametrize("name", ["val/loss", "val_loss"])
@pytest.mark.parametrize("stored", ["val/loss", "val_loss"])
def test_find_metric_takes_either_spelling(name, stored):
    assert find_metric({"loss": 1.0, stored: 0.5}, name) == 0.5


def test_find_metric_prefers_the_spelling_that_was_asked_for():
    metrics = {"val/loss": 1.0, "val_loss": 2.0}
    assert [find_metric(metrics, "val/loss"), find_metric(metrics, "val_loss")] == [1.0, 2.0]


def test_find_metric_changes_the_first_separator_only():
    metrics = {"val/top_5": 0.9, "eval_set/loss_mean": 0.1}
    assert find_metric(metrics, "val_top_5") == 0.9
    assert find_metric(metrics, "eval/set/loss_mean") == 0.1


def test_find_metric_that_is_not_there_is_none():
    assert find_metric({"loss": 0.0}, "reward") is None


def test_find_metric_zero_and_nan_are_found():
    assert find_metric({"val/loss": 0.0}, "val_loss") == 0.0
    assert find_metric({"val/loss": float("nan")}, "val_loss") != 0.0


@pytest.mark.parametrize("value", [None, True, 3, 2.5, "text", b"bytes"])
def test_plain_of_plain_values_is_the_value(value):
    assert plain(value) is value


def test_plain_reaches_into_mappings_and_sequences():
    given = MappingProxyType({"loss": OneItem(), "nested": {"rewards": (OneItem(), 1, [None])}})
    assert plain(given) == {"loss": 2.5, "nested": {"rewards": [2.5, 1, [None]]}}


def test_plain_leaves_what_is_not_a_scalar():
    value = NotAScalar()
    assert plain(value) is value


def test_plain_does_not_change_what_was_given():
    item = OneItem()
    given = {"loss": item, "list": [item]}
    plain(given)
    assert given == {"loss": item, "list": [item]}


@pytest.mark.parametrize(
    ("dtype", "kind"), [("float64", float), ("float32", float), ("int64", int), ("uint8", int), ("bool", bool)]
)
def test_plain_numpy_scalars_and_0d_arrays_are_python_numbers(dtype, kind):
    numpy = pytest.importorskip("numpy")
    scalar = numpy.ones(1, dtype)[0]
    values = [plain(scalar), plain(numpy.array(1, dtype))]
    assert [(value, type(value)) for value in values] == [(1, kind), (1, kind)]


def test_plain_numpy_string_is_a_python_string():
    numpy = pytest.importorskip("numpy")
    assert type(plain(numpy.str_("text"))) is str


def test_plain_torch_scalars_are_python_numbers(torch):
    loss = torch.tensor(1.5, requires_grad=True, dtype=torch.bfloat16)
    values = plain({"loss": loss, "count": torch.tensor(3), "done": torch.tensor(True)})
    assert [(value, type(value)) for value in values.values()] == [(1.5, float), (3, int), (True, bool)]


def test_plain_jax_scalar_is_a_python_number():
    jax = pytest.importorskip("jax")
    assert type(plain(jax.numpy.float32(1.5))) is float


def test_plain_leaves_arrays_with_axes_as_they_are(torch):
    numpy = pytest.importorskip("numpy")
    array, tensor = numpy.ones(1), torch.ones(2, 2)
    assert plain([array, tensor])[0] is array
    assert plain([array, tensor])[1] is tensor


def test_plain_metrics_survive_json(torch):
    numpy = pytest.importorskip("numpy")
    metrics = {"loss": torch.tensor(0.5), "accuracy": numpy.float32(0.25), "step": numpy.int64(3), "note": "text"}
    assert json.loads(json.dumps(plain(metrics))) == {"loss": 0.5, "accuracy": 0.25, "step": 3, "note": "text"}
