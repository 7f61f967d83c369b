"""ThroughputMonitor with a clock of its own."""

import pytest

import hookline as hl
from hookline.callbacks import ThroughputMonitor
from hookline.testing import FakeLoop


class Clock:
    """Seconds that the test advances."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def trained(batches, *, seconds=0.5, model=None, options=None, **arguments):
    clock = Clock()
    monitor = ThroughputMonitor(clock=clock, **arguments).configure(**(options or {}))
    with hl.run(root=None, callbacks=[monitor], strict=True, summary=False) as run:
        run.model = model
        for _ in run.steps(batches):
            clock.now += 60.0 if run.step == 0 else seconds
    return [{name.removeprefix("throughput/"): value for name, value in row.metrics.items()} for row in run.history]


def test_throughput_monitor_first_step_is_left_out_and_the_rest_are_rates():
    assert trained([[1, 2, 3, 4]] * 3) == [
        {},
        {"steps_per_second": 2.0, "samples_per_second": 8.0},
        {"steps_per_second": 2.0, "samples_per_second": 8.0},
    ]


def test_throughput_monitor_window_takes_the_last_steps_only():
    clock = Clock()
    loop = FakeLoop(callbacks=[ThroughputMonitor(window=2, clock=clock)])
    rates = []
    for seconds in (0, 4, 1, 1, 1):
        clock.now += seconds
        loop.run_steps(1)
        rates.append(loop.get_metric("throughput/steps_per_second"))
    assert rates == [None, 0.25, 0.4, 1.0, 1.0]


@pytest.mark.parametrize("back_to", [0, 2, 3])
def test_throughput_monitor_after_a_rollback_has_the_rates_of_the_steps_that_are_done_again(back_to):
    clock = Clock()
    loop = FakeLoop(callbacks=[ThroughputMonitor(clock=clock)])
    loop.run_steps(4)
    loop.step, rates = back_to, []
    for seconds in (60.0, 0.5, 0.5):
        clock.now += seconds
        loop.metrics.clear()
        loop.run_steps(1)
        rates.append(loop.get_metric("throughput/steps_per_second"))
    assert rates == [None, 2.0, 2.0]


def test_throughput_monitor_due_now_and_then_has_the_same_rates():
    rates = {"steps_per_second": 2.0, "samples_per_second": 8.0}
    assert trained([[1, 2, 3, 4]] * 6, options={"every": 2}) == [{}, {}, {}, rates, {}, rates]


@pytest.mark.parametrize(
    ("make", "samples", "tokens"),
    [
        (lambda torch: torch.zeros(4, 2), 4, None),
        (lambda torch: [torch.zeros(4, 2), torch.zeros(4)], 4, None),
        (lambda torch: {"input_ids": torch.zeros(4, 8), "labels": torch.zeros(4, 8)}, 4, 32),
        (lambda torch: ({"x": torch.zeros(4, 2)}, torch.zeros(4)), 4, None),
        (lambda torch: [{"x": torch.zeros(2)}, {"x": torch.zeros(2)}, {"x": torch.zeros(2)}], 3, None),
        (lambda torch: {"input_ids": [[1, 2], [3]], "text": ["a b", "c"]}, 2, 3),
        (lambda torch: hl.TrainingBatch(torch.zeros(4, 2), size=7, tokens=70), 7, 70),
        (lambda torch: hl.TrainingBatch(torch.zeros(4, 2)), 4, None),
        (lambda torch: "text", None, None),
    ],
)
def test_throughput_monitor_batch_shows_its_samples_and_tokens(torch, make, samples, tokens):
    counts = {"steps_per_second": 1, "samples_per_second": samples, "tokens_per_second": tokens}
    known = {name: count for name, count in counts.items() if count is not None}
    assert trained([make(torch)] * 2, seconds=1.0)[1] == known


def test_throughput_monitor_counts_can_be_given_as_numbers_or_functions():
    last = trained(["a b c"] * 2, seconds=1.0, batch_size=8, tokens=lambda batch: len(batch.split()))[-1]
    assert last == {"steps_per_second": 1.0, "samples_per_second": 8.0, "tokens_per_second": 3.0}


def test_throughput_monitor_micro_batches_of_a_step_add_up():
    clock = Clock()
    loop = FakeLoop(callbacks=[ThroughputMonitor(clock=clock)])
    for step_idx in range(3):
        for batch_idx in range(2):
            loop.callbacks.on_train_batch_end(loop, {}, [1, 2, 3], batch_idx)
        clock.now += 1.0
        loop.callbacks.on_step_end(loop, step_idx, None, {})
    assert loop.get_metric("throughput/samples_per_second") == 6.0


def test_throughput_monitor_validation_does_not_count():
    clock = Clock()
    with hl.run(root=None, callbacks=[ThroughputMonitor(clock=clock)], strict=True, summary=False) as run:
        for _ in run.steps(3):
            clock.now += 0.5
            with run.validate():
                clock.now += 30.0
    assert run.get_metric("throughput/steps_per_second") == 2.0


@pytest.mark.parametrize(
    ("arguments", "mfu"),
    [
        ({"flops_per_step": 50.0}, 0.5),
        ({"flops_per_token": 2.0, "tokens": 5}, 0.1),
        ({"tokens": 2}, 0.24),
        ({}, None),
    ],
)
def test_throughput_monitor_mfu_is_what_is_known_of_the_peak(torch, arguments, mfu):
    model = torch.nn.Linear(1, 1)
    assert trained(["text"] * 2, seconds=1.0, model=model, peak_flops=100.0, **arguments)[-1].get("mfu") == mfu


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 0}, "window=0: give a whole number of at least 1."),
        ({"batch_size": "8"}, "batch_size='8': give a whole number of at least 1, or a function of the batch."),
        ({"peak_flops": -1.0}, "peak_flops=-1.0: give a finite number greater than 0, or None."),
    ],
)
def test_throughput_monitor_refuses_what_makes_no_sense(arguments, message):
    with pytest.raises(hl.OptionError) as refused:
        ThroughputMonitor(**arguments)
    assert str(refused.value) == message
