"""Values on a device: logging never waits for them, reading does, and the record has them."""

import contextlib
import gc
import itertools
import json
import logging
import subprocess
import sys
import threading
import weakref

import pytest

import hookline as hl
from hookline._engine.metrics import Deferred, MetricsRow, collect, readable
from hookline._record import device
from hookline._record.device import defer
from hookline._record.records import Metrics, Rewards, Sample


class Array:
    """An array of one number whose device is done when the gate opens; it counts how often it was read."""

    size = 1

    def __init__(self, number, gate):
        self.number, self.gate, self.reads, self.copies = number, gate, 0, 0

    def copy_to_host_async(self):
        self.copies += 1

    def is_ready(self):
        return self.gate.is_set()

    def item(self):
        assert self.gate.wait(30), "the device never came"
        self.reads += 1
        return self.number


@pytest.fixture
def gate():
    opened = threading.Event()
    yield opened
    opened.set()


@pytest.fixture
def recorder(tmp_path):
    recorder = hl.Recorder(tmp_path)
    yield recorder
    recorder.close()


def records(path, kind=Metrics):
    return [record for record in hl.read(path) if isinstance(record, kind)]


def test_log_of_a_device_value_does_not_wait_and_is_recorded_when_it_arrives(recorder, gate, tmp_path):
    array = Array(0.5, gate)
    recorder.log(loss=array, lr=0.1, step=1)
    recorder.log(loss=1.5, step=2)
    assert ([record.step for record in records(tmp_path)], array.reads, array.copies) == ([2], 0, 1)
    gate.set()
    recorder.flush()
    found = sorted((record.step, record.time, record.values) for record in records(tmp_path))
    assert [(step, values) for step, _, values in found] == [(1, {"loss": 0.5, "lr": 0.1}), (2, {"loss": 1.5})]
    assert found[0][1] < found[1][1]  # the time is that of the log


def test_record_arrives_without_anybody_asking_for_it(recorder, gate, tmp_path):
    gate.set()
    recorder.log(loss=Array(0.5, gate), step=1)
    arrived = list(itertools.islice(hl.follow(tmp_path, poll_seconds=0.01, idle_seconds=30), 1))
    assert [(record.step, record.values) for record in arrived] == [(1, {"loss": 0.5})]


def test_close_waits_for_what_is_on_its_way(recorder, gate, tmp_path):
    recorder.log(loss=Array(0.5, gate), step=1)
    opener = threading.Thread(target=gate.set)
    opener.start()
    recorder.close()
    opener.join()
    assert [record.values for record in records(tmp_path)] == [{"loss": 0.5}]


def test_metrics_in_a_callback_are_numbers_when_they_are_read_and_only_then(gate, tmp_path):
    array, unread, seen = Array(0.5, gate), Array(2.0, gate), []

    def look(loop, step_idx, batch, metrics):
        assert (array.reads, "loss" in metrics, sorted(metrics)) == (0, True, ["loss", "other"])
        gate.set()
        seen.append((metrics["loss"], metrics.get("loss"), metrics.get("nothing"), loop.metrics["loss"]))

    with hl.run(root=tmp_path, callbacks=[hl.on("step_end", look)], summary=False, strict=True) as run:
        for _ in run.steps(1):
            run.log(loss=array, other=unread)
    assert seen == [(0.5, 0.5, None, 0.5)]
    assert [row.metrics for row in run.history] == [{"loss": 0.5, "other": 2.0}]


def test_background_subscriber_reads_on_its_own_thread(gate, tmp_path):
    class Slow(hl.Callback):
        background = True
        seen: list = []  # noqa: RUF012 - one test

        def on_step_end(self, loop, step_idx, batch, metrics, /):
            self.seen.append(
                (metrics["loss"], loop.metrics["loss"], threading.current_thread() is threading.main_thread())
            )

    with hl.run(root=tmp_path, callbacks=[Slow()], summary=False) as run:
        for _ in run.steps(3):
            run.log(loss=Array(0.5, gate))
        gate.set()  # all steps are done, and nobody waited
    assert Slow.seen == [(0.5, 0.5, False)] * 3


def test_logger_function_gets_a_dict_that_reads_lazily(gate, tmp_path):
    given = []
    with hl.run(
        root=tmp_path, callbacks=[lambda report_data, step: given.append((report_data, step))], summary=False
    ) as run:
        for _ in run.steps(1):
            run.log(loss=Array(0.5, gate))
        gate.set()
    assert [(dict(report_data), step) for report_data, step in given] == [({"loss": 0.5}, 1)]


def test_validation_of_device_values_averages_them_once_they_are_there(gate, tmp_path):
    with hl.run(root=tmp_path, summary=False) as run:
        for _ in run.steps(1):
            pass
        with run.validate() as validation:
            for number in validation.batches([1.0, 2.0, 6.0]):
                validation.log(loss=Array(number, gate))
        gate.set()
    assert [record.values for record in records(run.dir) if record.axis == "eval"] == [{"val/loss": 3.0}]


def test_samples_and_rewards_on_a_device_are_recorded(recorder, gate, tmp_path):
    rows = [{"completion": "a", "rewards": {"right": Array(1.0, gate)}, "total": Array(2.0, gate)}, {"completion": "b"}]
    recorder.samples(rows, step=1)
    recorder.rewards("right", [Array(1.0, gate), 0.5, None], step=1)
    gate.set()
    recorder.flush()
    samples = [
        (s.completion, s.rewards, s.total) for s in sorted(records(tmp_path, Sample), key=lambda s: s.completion)
    ]
    assert samples == [("a", {"right": 1.0}, 2.0), ("b", {}, None)]
    assert [r.values for r in records(tmp_path, Rewards)] == [[1.0, 0.5, None]]


def test_value_that_cannot_be_fetched_is_none_and_said(recorder, gate, tmp_path, caplog):
    array = Array(0.5, gate)
    array.item = lambda: exec("raise RuntimeError('Array has been deleted')")
    gate.set()
    recorder.log(loss=array, lr=0.1, step=1)
    with caplog.at_level(logging.WARNING, logger="hookline"):
        recorder.flush()
    assert [record.values for record in records(tmp_path)] == [{"loss": None, "lr": 0.1}]
    assert "'loss' could not be fetched from its device and is recorded as None: Array has been deleted" in caplog.text


FORKING = """
import os, sys, threading
import hookline as hl

class Array:
    size = 1
    def __init__(self, number, gate): self.number, self.gate = number, gate
    def copy_to_host_async(self): pass
    def is_ready(self): return self.gate.is_set()
    def item(self): self.gate.wait(30); return self.number

gate = threading.Event()
recorder = hl.Recorder(sys.argv[1])
recorder.log(loss=Array(0.5, gate), step=1)
child = os.fork()
gate.set()
if child == 0:
    recorder.log(loss=Array(9.0, gate), step=9)
    recorder.flush()
    os._exit(0)
os.waitpid(child, 0)
recorder.close()
"""


def test_forked_child_does_not_write_what_its_parent_waits_for(tmp_path):
    subprocess.run([sys.executable, "-c", FORKING, tmp_path], check=True, timeout=200)
    assert sorted((r.step, r.values["loss"]) for r in records(tmp_path)) == [(1, 0.5), (9, 9.0)]


def test_array_of_several_numbers_on_a_device_is_an_error_that_names_it(recorder):
    array = Array(0.5, threading.Event())
    array.size, array.ndim = 3, 1  # type: ignore[attr-defined]
    with pytest.raises(hl.OptionError, match="'loss' is an Array; give a number"):
        recorder.log(loss=array)


def test_jax_array_is_recorded(recorder, tmp_path):
    jnp = pytest.importorskip("jax.numpy")
    values = jnp.arange(4.0)
    recorder.log({"sum": values.sum(), "one": values[1:2], "count": values.argmax()}, step=1)
    recorder.flush()
    assert [record.values for record in records(tmp_path)] == [{"sum": 6.0, "one": 1.0, "count": 3}]


def test_tensors_of_a_device_without_asynchronous_copies_are_read_by_the_thread_that_writes(torch, recorder, tmp_path):
    class Elsewhere(torch.Tensor):  # type: ignore[name-defined]
        is_cpu = False
        readers: list = []  # noqa: RUF012 - one test

        def tolist(self):
            self.readers.append(threading.current_thread() is threading.main_thread())
            return super().tolist()

    loss, norms = torch.tensor(0.5).as_subclass(Elsewhere), torch.tensor([1, 2]).as_subclass(Elsewhere)
    recorder.log(loss=loss, first=norms[0], again=loss * 2, step=1)
    loss += 100  # what was recorded is the value at the time
    arrived = list(itertools.islice(hl.follow(tmp_path, poll_seconds=0.01, idle_seconds=30), 1))
    assert [record.values for record in arrived] == [{"loss": 0.5, "first": 1, "again": 1.0}]
    assert Elsewhere.readers == [False, False]  # one for each kind of number


def test_jax_array_that_the_next_step_is_given_for_good_is_recorded(tmp_path):
    jax = pytest.importorskip("jax")
    advance = jax.jit(lambda step: step + 1, donate_argnums=0)
    step = jax.numpy.zeros(())
    with hl.run(root=tmp_path, summary=False) as run:
        for _ in run.steps(5):
            run.log(step_of_jax=step)
            step = advance(step)
    assert [row.metrics["step_of_jax"] for row in run.history] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_value_whose_state_cannot_be_asked_for_does_not_stop_those_behind_it(recorder, gate, tmp_path):
    gate.set()
    broken = Array(0.5, gate)
    broken.is_ready = broken.item = lambda: exec("raise RuntimeError('Array has been deleted')")
    recorder.log(loss=broken, step=1)
    recorder.log(loss=Array(1.5, gate), step=2)
    arrived = itertools.islice(hl.follow(tmp_path, poll_seconds=0.01, idle_seconds=30), 2)
    assert [(record.step, record.values) for record in arrived] == [(1, {"loss": None}), (2, {"loss": 1.5})]


def test_run_with_a_value_that_cannot_be_fetched_ends_well(gate, tmp_path):
    gate.set()
    broken = Array(0.5, gate)
    broken.item = lambda: exec("raise RuntimeError('Array has been deleted')")
    with hl.run(root=tmp_path, summary=False) as run:
        for _ in run.steps(1):
            run.log(loss=broken)
    assert (run.state, run.metrics["loss"]) == ("completed", None)


def test_rewards_given_in_one_dict_again_and_again_are_those_of_the_time(recorder, gate, tmp_path):
    rewards = {}
    for step in range(3):
        rewards["right"] = float(step)
        recorder.samples([{"completion": "a", "rewards": rewards, "total": Array(9.0, gate)}], step)
    gate.set()
    recorder.flush()
    assert [sample.rewards for sample in records(tmp_path, Sample)] == [{"right": 0.0}, {"right": 1.0}, {"right": 2.0}]


def test_subscriber_that_adds_to_a_row_on_its_way_loses_nothing(gate, tmp_path):
    def add(loop, step, metrics):
        metrics["more"] = 1.0

    with hl.run(root=tmp_path, callbacks=[hl.on("log", add)], summary=False) as run:
        for _ in run.steps(3):
            run.log(loss=Array(0.5, gate))
        gate.set()
    assert [row.step for row in run.history] == [1, 2, 3]


def test_first_values_of_several_threads_are_all_recorded(recorder, gate, tmp_path):
    barrier = threading.Barrier(8)

    def log(step):
        barrier.wait(30)
        recorder.log(loss=Array(0.5, gate), step=step)

    threads = [threading.Thread(target=log, args=(step,)) for step in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gate.set()
    recorder.flush()
    assert sorted(record.step for record in records(tmp_path)) == list(range(8))


def test_checkpoint_waits_for_the_rows_before_it(gate, tmp_path):
    gate.set()
    with hl.run(root=tmp_path, summary=False) as run:
        for _ in run.steps(1):
            run.log(loss=Array(0.5, gate))
        run.save_checkpoint()
        names = [type(record).__name__ for record in hl.read(run.dir)]
    assert names == ["Status", "Metrics", "Event"]


class FakeEvent:
    """An event of a fake device: the copies before it are made when it is asked and the gate is open, no sooner."""

    def __init__(self, device):
        self._device, self._copies = device, []

    def record(self, stream):
        self._copies, self._device.queued = self._device.queued, []

    def query(self):
        self._device.on_query()
        if self._device.gate.is_set():
            for target, source in self._copies:
                target.copy_(source)
        return self._device.gate.is_set()

    def synchronize(self):
        assert self._device.gate.wait(30), "the device never came"


class FakeCuda:
    """A CUDA device on the CPU. Only functions of torch are replaced; rings and their positions are the real ones."""

    def __init__(self, torch, gate, monkeypatch):
        self.gate, self.stream, self.is_capturing, self.queued = gate, 0, False, []
        self.launches = self.tables = 0
        self.on_launch = self.on_query = lambda: None
        self._torch, self._copy, self._zeros, self._empty = torch, torch._foreach_copy_, torch.zeros, torch.empty
        self._kind, self._pinned = self._tensor_types(torch)
        monkeypatch.setattr(device, "_RINGS", {})
        for name, value in {"_foreach_copy_": self._launch, "zeros": self._table, "empty": self._host}.items():
            monkeypatch.setattr(torch, name, value)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: self.stream, raising=False)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda index: self.stream)
        monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: self.is_capturing, raising=False)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "Event", lambda: FakeEvent(self))

    def _tensor_types(self, torch):
        class OnDevice(torch.Tensor):  # type: ignore[name-defined]
            is_cpu, is_cuda, index = False, True, 0

            def get_device(self):
                return self.index

        fake = self

        class Pinned(torch.Tensor):  # type: ignore[name-defined]
            def copy_(self, source, non_blocking=False):
                fake.queued.append((self.as_subclass(torch.Tensor), source))

        return OnDevice, Pinned

    def _launch(self, slots, tensors):
        self.launches += 1
        self.on_launch()
        self._copy(slots, tensors)

    def _table(self, *shape, **options):
        self.tables += 1
        return self._zeros(*shape, **options)

    def _host(self, *shape, pin_memory=False, **options):
        made = self._empty(*shape, **options)
        return made.as_subclass(self._pinned) if pin_memory else made

    def tensor(self, value, index=0, **options):
        made = self._torch.tensor(value, **options).as_subclass(self._kind)
        made.index = index
        return made


@pytest.fixture
def cuda(torch, gate, monkeypatch):
    return FakeCuda(torch, gate, monkeypatch)


def test_log_of_cuda_scalars_launches_once_for_each_kind_of_number(cuda, recorder, gate, tmp_path):
    floats = {f"norm/{i}": cuda.tensor(i / 2) for i in range(20)}
    recorder.log({**floats, "lr": 0.1, "first": cuda.tensor(7), "second": cuda.tensor([8])}, step=1)
    assert cuda.launches == 2
    gate.set()
    recorder.flush()
    expected = {f"norm/{i}": i / 2 for i in range(20)} | {"lr": 0.1, "first": 7, "second": 8}
    assert [(record.values, list(record.values)) for record in records(tmp_path)] == [(expected, list(expected))]


def test_log_of_cuda_scalars_changed_in_place_afterwards_has_the_values_of_the_call(cuda, recorder, gate, tmp_path):
    static = cuda.tensor(0.0)  # as a CUDA graph's replays write to
    for step in range(3):
        static += 1
        recorder.log({"loss": static, "twice": static * 2}, step=step)
    gate.set()
    recorder.flush()
    assert [record.values for record in records(tmp_path)] == [{"loss": n, "twice": 2 * n} for n in (1.0, 2.0, 3.0)]


def test_log_of_cuda_scalars_whose_kinds_change_from_row_to_row_keeps_each_value(torch, cuda, recorder, gate, tmp_path):
    big = 2**53 + 1
    others = [0.5, cuda.tensor(1 / 3, dtype=torch.float64), cuda.tensor(big), cuda.tensor([7.0]), torch.tensor(2.0)]
    for step, other in enumerate([*others, "text", None, True, cuda.tensor(True), cuda.tensor(8.0, index=1)]):
        recorder.log({"loss": cuda.tensor(float(step)), "other": other, "lr": 0.1}, step=step)
    gate.set()
    recorder.flush()
    expected = [0.5, 1 / 3, big, 7.0, 2.0, "text", None, True, True, 8.0]
    read = [(type(record.values["other"]), list(record.values.items())) for record in records(tmp_path)]
    assert read == [
        (type(other), [("loss", step), ("other", other), ("lr", 0.1)]) for step, other in enumerate(expected)
    ]


@pytest.mark.parametrize("width", [1, 3, 7, 40])
def test_log_with_every_slot_taken_neither_waits_nor_loses_a_value(width, cuda, recorder, gate, tmp_path, monkeypatch):
    monkeypatch.setattr(device.Ring, "SLOTS", 16)
    rows = [{f"m{i}": float(100 * step + i) for i in range(width)} for step in range(50)]
    for step, row in enumerate(rows):
        recorder.log({name: cuda.tensor(value) for name, value in row.items()}, step=step)
    assert (cuda.launches, gate.is_set()) == (50, False)
    gate.set()
    recorder.flush()
    assert [record.values for record in records(tmp_path)] == rows


def test_log_of_rows_nobody_reads_uses_its_slots_again(cuda, gate, monkeypatch):
    monkeypatch.setattr(device.Ring, "SLOTS", 64)
    gate.set()
    rows = [collect(({"a": cuda.tensor(float(n)), "b": cuda.tensor(n + 0.5)},), {}, defer) for n in range(1000)]
    assert cuda.tables == 1
    assert [dict(row) for row in rows] == [{"a": n, "b": n + 0.5} for n in range(1000)]


def test_log_of_rows_of_many_widths_shares_one_ring(cuda, gate):
    gate.set()
    rows = [collect(({f"m{i}": cuda.tensor(float(i)) for i in range(width)},), {}, defer) for width in range(1, 200)]
    assert cuda.tables <= 3  # a ring, and larger ones while the first is on its way
    assert [list(row.values()) for row in rows] == [list(range(width)) for width in range(1, 200)]


def test_log_on_several_streams_and_devices_keeps_them_apart(cuda, recorder, gate, tmp_path):
    for step in range(6):
        cuda.stream = step % 2
        recorder.log(loss=cuda.tensor(float(step)), other=cuda.tensor(step + 0.5, index=1), step=step)
    gate.set()
    recorder.flush()
    assert [record.values for record in records(tmp_path)] == [{"loss": n, "other": n + 0.5} for n in range(6)]
    assert cuda.tables == 4


def test_log_while_a_cuda_graph_is_captured_is_refused_also_on_a_stream_that_logged(cuda, recorder, gate, tmp_path):
    recorder.log(loss=cuda.tensor(1.0), step=1)
    cuda.is_capturing = True
    with pytest.raises(hl.OptionError, match="log the graph's outputs after its replay"):
        recorder.log(loss=cuda.tensor(2.0), step=2)
    cuda.is_capturing = False
    gate.set()
    recorder.flush()
    assert ([record.values for record in records(tmp_path)], cuda.launches) == ([{"loss": 1.0}], 1)


def test_log_of_a_cuda_loss_does_not_keep_its_graph(cuda, recorder, gate, tmp_path):
    weight = cuda.tensor(3.0, requires_grad=True)
    loss = weight * 2
    recorder.log(loss=loss, step=1)
    graph = weakref.ref(loss)
    del loss
    gc.collect()
    assert graph() is None
    gate.set()
    recorder.flush()
    assert [record.values for record in records(tmp_path)] == [{"loss": 6.0}]


def test_log_of_cuda_scalars_within_and_outside_of_inference_mode_is_recorded(torch, cuda, recorder, gate, tmp_path):
    with torch.inference_mode():
        recorder.log(loss=cuda.tensor(1.0), step=1)
    recorder.log(loss=cuda.tensor(2.0, requires_grad=True), step=2)
    gate.set()
    recorder.flush()
    assert [record.values for record in records(tmp_path)] == [{"loss": 1.0}, {"loss": 2.0}]


def test_log_of_cuda_scalars_while_another_thread_waits_for_a_number_does_not_wait(cuda, gate):
    row = collect(({"loss": cuda.tensor(7.0)},), {}, defer)
    read = []
    reader = threading.Thread(target=lambda: read.append(row["loss"]))
    reader.start()
    later = collect(({"loss": cuda.tensor(8.0)},), {}, defer)
    assert read == []
    gate.set()
    reader.join(30)
    assert (read, later["loss"]) == ([7.0], 8.0)


@pytest.mark.parametrize("interrupted", ["on_launch", "on_query"])
def test_log_and_read_in_a_signal_handler_within_log_lose_nothing(interrupted, cuda, gate, monkeypatch):
    monkeypatch.setattr(device.Ring, "SLOTS", 16)
    gate.set()
    rows, nested = [], []

    def handle():
        setattr(cuda, interrupted, lambda: None)
        rows.append((-len(rows), collect(({"loss": cuda.tensor(-float(len(rows)))},), {}, defer)))
        nested.append([row["loss"] for _, row in rows])

    for number in range(200):
        if number % 7 == 0:
            setattr(cuda, interrupted, handle)
        rows.append((number, collect(({"loss": cuda.tensor(float(number)), "more": cuda.tensor(0.0)},), {}, defer)))
    assert [row["loss"] for _, row in rows] == [number for number, _ in rows]
    assert len(nested) > 10


def test_defer_leaves_plain_values_alone(gate):
    values = {"a": 1.0, "b": Array(2.0, gate)}
    defer(values)
    assert (values["a"], type(values["b"])) == (1.0, Deferred)


def test_metrics_row_copies_and_merges_without_waiting_and_compares_by_number(gate):
    row = collect(({"loss": Array(0.5, gate), "lr": 0.1},), {}, defer)
    assert isinstance(row, MetricsRow)
    other = row.copy()
    other |= {"more": 1.0}
    gate.set()
    assert (row == {"loss": 0.5, "lr": 0.1}, other, row | {"x": 1}) == (
        True,
        {"loss": 0.5, "lr": 0.1, "more": 1.0},
        {"loss": 0.5, "lr": 0.1, "x": 1},
    )
    assert (repr(row), {**row}, dict(row), row.pop("loss"), list(row)) == (
        "{'loss': 0.5, 'lr': 0.1}",
        {"loss": 0.5, "lr": 0.1},
        {"loss": 0.5, "lr": 0.1},
        0.5,
        ["lr"],
    )


def test_readable_metrics_are_those_that_need_no_waiting(gate):
    row = collect(({"loss": Array(0.5, gate), "lr": 0.1},), {}, defer)
    before = readable(row)
    gate.set()
    assert (before, readable(row)) == ({"lr": 0.1}, {"loss": 0.5, "lr": 0.1})


def test_metrics_row_is_fetched_once_and_may_grow_while_it_is_gone_through(gate):
    gate.set()
    array = Array(0.5, gate)
    row = collect(({"loss": array},), {}, defer)
    for name in row:
        row[f"{name}/twice"] = 2 * row[name]
    for name in row.keys():  # noqa: SIM118 - the keys are what is tested
        row[f"{name}/again"] = row.setdefault(name, 9.0)
    assert (array.reads, len(row), row["loss/again"]) == (1, 4, 0.5)


def test_dict_that_is_changed_after_it_was_logged_changes_nothing(tmp_path):
    seen = []
    metrics = {"loss": 1.0}
    with hl.run(
        root=None, callbacks=[hl.on("log", lambda loop, step, row: row.update(more=1.0))], summary=False
    ) as run:
        run.log(metrics, step=1)
        for _ in run.steps(1):
            run.log(metrics)
            metrics["loss"] = 2.0
            seen.append(dict(metrics))
    assert [row.metrics["loss"] for row in run.history] == [1.0, 1.0]
    assert seen == [{"loss": 2.0}]


def test_history_has_the_rows_that_are_on_their_way(gate, tmp_path):
    gate.set()
    with hl.run(root=tmp_path, summary=False) as run:
        for _ in run.steps(3):
            run.log(loss=Array(0.5, gate))
        assert [row.metrics for row in run.history] == [{"loss": 0.5}] * 3


def test_status_at_the_end_comes_behind_every_row(gate, tmp_path):
    gate.set()
    with hl.run(root=tmp_path, summary=False) as run:
        for _ in run.steps(3):
            run.log(loss=Array(0.5, gate))
    (file,) = (run.dir / "journal").glob("*.jsonl")
    kinds = [json.loads(line)["kind"] for line in file.read_text().splitlines()]
    assert kinds == ["status", "metrics", "metrics", "metrics", "status"]
