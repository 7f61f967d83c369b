"""Values of NumPy, torch and JAX in `log()`: the path by exact type, and the general path for everything else."""

import math
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hookline as hl
from hookline._engine.metrics import collect
from hookline._record.records import Metrics

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
from_dtype = pytest.importorskip("hypothesis.extra.numpy").from_dtype

# Threads that earlier tests left behind may draw from the global generator, which strategies are warned not to do.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")

SETTINGS = settings(max_examples=200, deadline=None, derandomize=True)
NUMPY_TYPES = [*"efdgbBhHiIlLqQ?FD", "U3", "S3", "m8[s]", "M8[s]"]
TENSOR_TYPES = ["float16", "bfloat16", "float32", "float64", "uint8", "int32", "int64", "bool", "complex64"]
SHAPES = [(), (), (), (1,), (1, 1), (2,), (0,)]


class OneItem:
    """A number of a library whose types are not known."""

    def __init__(self, number):
        self.number = number

    def __repr__(self):  # without an address: it is part of a test's name
        return f"OneItem({self.number})"

    def item(self):
        return self.number


class Celsius(float):
    pass


class Level(int):
    pass


class Label(str):
    __slots__ = ()


class Ratio(np.float64):  # type: ignore[name-defined]
    pass


class Readings(np.ndarray):  # type: ignore[name-defined]
    pass


class Loss(torch.Tensor):  # type: ignore[name-defined]
    pass


class Scores(dict):
    pass


def tensor_of(name, shape, number, is_parameter):
    dtype = getattr(torch, name)
    if not dtype.is_floating_point:
        return torch.full(shape, int(number) if math.isfinite(number) else 1).remainder(2).to(dtype)
    tensor = torch.full(shape, number, dtype=dtype, requires_grad=not is_parameter)
    return torch.nn.Parameter(tensor) if is_parameter else tensor


numpy_scalars = st.sampled_from(NUMPY_TYPES).flatmap(lambda name: from_dtype(np.dtype(name)))
shapes = st.sampled_from(SHAPES)
values = st.one_of(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    numpy_scalars,
    st.builds(np.full, shapes, numpy_scalars | st.builds(OneItem, st.floats())),
    st.builds(tensor_of, st.sampled_from(TENSOR_TYPES), shapes, st.floats(width=16), st.booleans()),
    st.builds(OneItem, st.floats() | st.integers()),
    st.builds(Celsius, st.floats()) | st.builds(Ratio, st.floats()) | st.builds(Label, st.text(max_size=3)),
    st.sampled_from([[], [1.0], b"bytes", object]),
)


def outcome(metrics):
    """What `collect` returns or raises, in a form that can be compared: NaN equals itself, and 1 is not 1.0."""
    try:
        collected = collect((metrics,), {})
    except Exception as error:
        return type(error), str(error).replace("'row/", "'")
    return [(name.removeprefix("row/"), type(value), repr(value)) for name, value in collected.items()]


@given(st.dictionaries(st.sampled_from("abcdef"), values, min_size=1))
@SETTINGS
def test_collect_by_exact_type_equals_the_general_path(row):
    # The values of a nested dict take the general path.
    assert outcome(row) == outcome({"row": row})


CASES = [
    *((np.dtype(name).type(3), 3) for name in "bBhHiIlLqQ"),
    *[(np.float16(0.1), 0.0999755859375), (np.float32(0.1), 0.10000000149011612), (np.float64(0.1), 0.1)],
    *[(np.bool_(False), False), (np.str_("text"), "text"), (np.float64("-inf"), -math.inf)],
    *[(np.uint64(2**64 - 1), 2**64 - 1), (np.array(0.1), 0.1), (np.array([[7]]), 7), (np.array("a"), "a")],
    (np.array(None), None),
    *[(torch.tensor(0.1), 0.10000000149011612), (torch.tensor([[7]]), 7), (torch.tensor(True), True)],
    *[(torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True), 0.5), (torch.tensor(math.inf), math.inf)],
    *[(torch.nn.Parameter(torch.tensor(2.5)), 2.5), (torch.tensor([2.5, 3.5])[1], 3.5)],
    *[(Celsius(21.5), 21.5), (Level(3), 3), (Label("warm"), "warm"), (Ratio(0.25), 0.25), (OneItem(2), 2)],
    *[(np.array([0.5]).view(Readings), 0.5), (torch.tensor(0.75).as_subclass(Loss), 0.75)],
]


@pytest.mark.parametrize(("value", "expected"), CASES, ids=[f"{type(value).__name__}={value}" for value, _ in CASES])
def test_log_of_a_value_of_each_type_records_its_plain_value(value, expected, tmp_path):
    with hl.run(root=tmp_path / "runs", console=False, code=False, summary=False) as run:
        for _ in run.steps(1):
            run.log(value=value, loss=0.5)
    recorder = hl.Recorder(tmp_path / "direct")
    recorder.log({"value": value, "loss": 0.5}, step=1)
    recorder.close()
    rows = [record for place in (run.dir, tmp_path / "direct") for record in hl.read(place)]
    found = [row.values for row in rows if isinstance(row, Metrics)]
    assert found == [{"value": expected, "loss": 0.5}] * 2
    assert [type(row["value"]) for row in found] == [type(expected)] * 2


@pytest.mark.parametrize(
    "value",
    [
        *[np.zeros(2), np.zeros(0), np.complex64(1j), np.longdouble(1), np.array(1j), np.datetime64("2020-01-01")],
        *[torch.zeros(2), torch.zeros(0), torch.tensor(1j), torch.nn.Parameter(torch.zeros(2, 2)), b"bytes", [1.0]],
        object(),
    ],
    ids=lambda value: type(value).__name__ if type(value) is object else f"{type(value).__name__}={value}",
)
def test_log_of_what_is_not_one_number_names_it_and_records_nothing(value, tmp_path):
    recorder, kind = hl.Recorder(tmp_path), type(value).__name__
    article = "an" if kind == "object" else "a"
    with pytest.raises(hl.OptionError, match=rf"'wrong' is {article} {kind}; give a number"):
        recorder.log(loss=0.5, wrong=value)
    recorder.close()
    assert list(hl.read(tmp_path)) == []


def test_log_of_nested_and_subclassed_dicts_of_tensors_keeps_names_and_order(tmp_path):
    recorder = hl.Recorder(tmp_path)
    scores = Scores(b=np.float32(2.0), c=Scores(d=torch.tensor(3)))
    recorder.log({"a": torch.tensor(1.0), "s": scores, "e": np.int8(5)})
    recorder.log(scores)
    recorder.close()
    first, second = (record.values for record in hl.read(tmp_path))
    assert list(first.items()) == [("a", 1.0), ("s/b", 2.0), ("s/c/d", 3), ("e", 5)]
    assert list(second.items()) == [("b", 2.0), ("c/d", 3)]


def test_log_of_a_tensor_that_is_changed_afterwards_records_the_value_of_the_call(tmp_path):
    recorder = hl.Recorder(tmp_path)
    tensor, array = torch.tensor(1.0), np.array(1.0)
    recorder.log(tensor=tensor, array=array)
    tensor += 1
    array += 1
    recorder.close()
    assert [record.values for record in hl.read(tmp_path)] == [{"tensor": 1.0, "array": 1.0}]


def test_collect_defers_only_tensors_on_a_device():
    # Tensors on the meta device have no number: reading one raises.
    on_device = torch.tensor(2.0, device="meta")
    deferred = {}

    def defer(found):
        deferred.update(found)
        found.update(dict.fromkeys(found, "later"))

    row = collect(({"a": torch.tensor(1.0), "b": on_device, "c": np.float32(3.0), "d": 4},), {}, defer)
    assert deferred == {"b": on_device}
    assert list(dict.items(row)) == [("a", 1.0), ("b", "later"), ("c", 3.0), ("d", 4)]
    with pytest.raises(RuntimeError, match="meta"):
        collect(({"b": on_device},), {})


@pytest.mark.parametrize("last", [2.0, np.float32(2.0), torch.tensor(2.0)])
def test_collect_with_a_name_twice_keeps_the_last_value(last):
    given = {"a/b": torch.tensor(1.0, device="meta"), "a": {"b": last}}
    assert repr(collect((given,), {}, lambda found: None)) == "{'a/b': 2.0}"


def test_log_of_tensors_from_several_threads_records_all(tmp_path):
    recorder = hl.Recorder(tmp_path)

    def log(number):
        for step in range(50):
            recorder.log({"value": torch.tensor(float(number)), "other": np.int64(step)}, step=step)

    threads = [threading.Thread(target=log, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    found = sorted((record.values["value"], record.values["other"]) for record in hl.read(tmp_path))
    assert found == [(float(number), step) for number in range(4) for step in range(50)]


IMPORTS = """
import sys, types
import hookline as hl

recorder = hl.Recorder("run")
recorder.log(a=1.0, b={"c": 2})
assert not {"numpy", "torch", "jax"} & set(sys.modules), "imported by plain values"
import numpy as np
sys.modules["torch"] = types.ModuleType("torch")  # as while it is being imported
recorder.log(a=np.float32(0.5))
assert "jax" not in sys.modules, "imported by a NumPy value"
del sys.modules["torch"]
import torch
recorder.log(a=torch.tensor(0.25), b=np.int64(2))
recorder.close()
print([record.values for record in hl.read("run")])
"""


def test_log_imports_no_library_and_knows_those_that_are_imported_later(tmp_path):
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[{'a': 1.0, 'b/c': 2}, {'a': 0.5}, {'a': 0.25, 'b': 2}]\n"


def test_log_of_jax_arrays_is_recorded_beside_other_values(tmp_path):
    jax = pytest.importorskip("jax")
    recorder = hl.Recorder(tmp_path)
    recorder.log({"a": jax.numpy.float32(0.5), "b": np.float32(0.25), "c": jax.numpy.ones((1,), int), "d": "text"})
    with pytest.raises(hl.OptionError, match="'wrong' is an ArrayImpl"):
        recorder.log(wrong=jax.numpy.ones(2))
    recorder.close()
    (record,) = hl.read(tmp_path)
    assert list(record.values.items()) == [("a", 0.5), ("b", 0.25), ("c", 1), ("d", "text")]
