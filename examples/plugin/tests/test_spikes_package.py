"""The package's own tests: with `hookline.testing`, in a bare loop, and in a recorded run."""

# ruff: noqa: D103 - tests say what they do by their names

import math
import random
from pathlib import Path

import pytest
from hookline_spikes import BestMetric, LossSpikes, MarkdownSink, Reversing

import hookline as hl
from hookline.hooks import HookContext
from hookline.testing import FakeLoop, check_callback


@pytest.mark.parametrize("factory", [LossSpikes, BestMetric])
def test_subscriber_behaves_as_any_must(factory: type[hl.Callback] | type[hl.Hook]) -> None:
    check_callback(factory)


def test_loss_spikes_counts_what_is_far_above_the_mean_and_nan() -> None:
    losses = [1.0, 1.1, 5.0, 1.0, math.nan]
    loop = FakeLoop(callbacks=[LossSpikes(factor=2.0)])
    loop.run_steps(len(losses), lambda step_idx: {"loss": losses[step_idx]})
    assert [row.metrics["loss_spikes/count"] for row in loop.history] == [0, 0, 1, 1, 2]


def test_loss_spikes_factor_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(hl.OptionError, match="factor=1"):
        LossSpikes(factor=1)


@pytest.mark.parametrize(("mode", "best"), [("min", 0.5), ("max", 3.0)])
def test_best_metric_keeps_the_best_of_what_it_saw(mode: str, best: float) -> None:
    hook = BestMetric(mode=mode, frequency=1)  # type: ignore[arg-type]
    for step, loss in enumerate([1.0, math.nan, 0.5, 3.0], start=1):
        hook.run(HookContext(worker=None, step=step, metadata={"loss": loss}))
    assert hook.best == best


def test_markdown_sink_writes_a_table_of_its_columns(tmp_path: Path) -> None:
    sink = MarkdownSink(columns=("loss", "accuracy"))
    with hl.run("table", root=tmp_path, sinks=[sink], summary=False) as run:
        for step in run.steps(2):
            run.log(loss=1.0 / (step + 1))
    assert run.dir is not None
    assert (run.dir / "metrics.md").read_text() == (
        "| step | loss | accuracy |\n|---|---|---|\n| 1 | 1 |  |\n| 2 | 0.5 |  |\n"
    )


def test_markdown_sink_opened_with_its_state_cuts_off_what_lies_behind(tmp_path: Path) -> None:
    sink = MarkdownSink()
    size = sink.open(tmp_path, None)
    with (tmp_path / "metrics.md").open("a") as file:
        file.write("| 1 | half a row")
    assert sink.open(tmp_path, size) == size
    assert (tmp_path / "metrics.md").read_text() == "| step | loss |\n|---|---|\n"


def test_reversing_task_is_solved_by_the_word_backwards() -> None:
    environment = Reversing(length=4)
    (task,) = environment.sample(1, random.Random(0))
    right = task.prompt.removesuffix(">")[::-1]
    assert (environment.score(task, right), environment.score(task, "x")) == ({"exact": 1.0}, {"exact": 0.0})
