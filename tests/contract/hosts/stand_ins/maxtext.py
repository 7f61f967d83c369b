"""A stand-in for MaxText 0.2.5: its training loop, with its `MetricLogger` and its checkpoints.

MaxText itself requires Python 3.12 and libraries for accelerators.
"""

import contextlib
import datetime
import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hosts.regression import HELD_OUT, LEARNING_RATE, START, TRAIN
from hosts.stand_ins import importable
from hosts.stand_ins.levanter import batches, loss_of


class StopTraining(Exception):
    """Ends a training in an orderly way."""


class MetricLogger:
    """Buffers metrics for one step, since the device is still computing them."""

    def __init__(self, config: Any, learning_rate_schedule: Any, start_step: int = 0) -> None:
        self.config, self.learning_rate_schedule, self.start_step = config, learning_rate_schedule, start_step
        self.buffered_metrics: list[Any] = []
        self._pending_eval_step_count = 0
        self.reset_eval_metrics()

    def reset_eval_metrics(self) -> None:
        self.cumulative_eval_metrics: Any = {"scalar": defaultdict(float)}
        self._pending_eval_step_count = 0

    def write_metrics(self, metrics: Any, step: int, metric_type: str = "train") -> None:
        if metric_type == "train":
            self.config.written.append((step, float(metrics["scalar"]["learning/loss"])))

    def buffer_and_write_metrics(
        self, metrics: Any, step: int, step_time_delta: Any = None, is_training: bool = True
    ) -> None:
        if self.buffered_metrics:
            self._flush_one_buffered_entry(self.buffered_metrics.pop(0))
        if is_training:
            self.record_train_metrics(metrics, step, step_time_delta.total_seconds())
            self.buffered_metrics.append(("train", step, metrics))
            if self._pending_eval_step_count > 0:
                self._flush_one_buffered_entry(self.buffered_metrics.pop(0))
                self._finalize_eval_metrics(step)
        else:
            self._pending_eval_step_count += 1
            self.buffered_metrics.append(("eval", step, metrics))

    def record_train_metrics(self, metrics: Any, step: int, step_time: float) -> None:
        metrics["scalar"]["perf/step_time_seconds"] = step_time
        metrics["scalar"]["learning/current_learning_rate"] = self.learning_rate_schedule(step)

    def _flush_one_buffered_entry(self, entry: Any) -> None:
        kind, step, metrics = entry
        if kind == "train":
            self.write_metrics(metrics, step)
        else:
            self.cumulative_eval_metrics["scalar"]["eval/total_loss"] += float(
                metrics["scalar"]["evaluation/total_loss"]
            )
            self.write_metrics({"scalar": {}}, step, metric_type="running_eval")

    def _finalize_eval_metrics(self, train_step: int) -> None:
        cumulative = self.cumulative_eval_metrics["scalar"]
        cumulative["eval/avg_loss"] = cumulative["eval/total_loss"] / self._pending_eval_step_count
        cumulative["eval/avg_perplexity"] = float(np.exp(cumulative["eval/avg_loss"]))
        self.write_metrics(self.cumulative_eval_metrics, train_step, metric_type="eval")
        self._pending_eval_step_count = 0
        target = self.config.target_eval_loss
        if target and cumulative["eval/avg_loss"] <= target:
            raise StopTraining(f"Target loss {target} is achieved.")

    def flush_metrics_and_cleanup(self) -> None:
        for entry in self.buffered_metrics:
            self._flush_one_buffered_entry(entry)
        self.buffered_metrics = []


def latest_step(checkpoint_manager: Path) -> int | None:
    """The index of the last step that was saved."""
    saved = [int(each.name) for each in checkpoint_manager.glob("[0-9]*")]
    return max(saved, default=None)


def wait_until_finished(checkpoint_manager: Path) -> None:
    """Wait for checkpoints that are being saved."""


def maybe_save_checkpoint(
    checkpoint_manager: Any, state: Any, config: Any, data_iterator: Any, step: int | None = None
) -> None:
    """Save a checkpoint if one is due."""
    is_enabled = checkpoint_manager is not None and step is not None and config.checkpoint_period
    if is_enabled and step % config.checkpoint_period == 0:
        save_checkpoint(checkpoint_manager, step, state, config, data_iterator)


def save_checkpoint(
    checkpoint_manager: Path, step: int, state: Any, config: Any = None, data_iterator: Any = None, force: bool = False
) -> bool:
    """Save a checkpoint."""
    folder = checkpoint_manager / str(step)
    folder.mkdir(parents=True)
    np.savez(folder / "arrays.npz", **state)
    (folder / "step.json").write_text(json.dumps(step))
    return True


def settings(**given: Any) -> Any:
    """The configuration of a training."""
    defaults = {"steps": 8, "eval_interval": 1, "checkpoint_period": 0, "target_eval_loss": 0.0, "breaks_at": None}
    config = SimpleNamespace(**{**defaults, "checkpoint_dir": None, **given}, written=[])
    config.get_keys = lambda: {name: value for name, value in vars(config).items() if name in defaults}
    return config


@jax.jit
def p_train_step(state: Any, batch: Any) -> Any:
    """An update, with its metrics."""
    loss, slope = jax.value_and_grad(loss_of)(state, batch)
    return jax.tree.map(lambda old, by: old - LEARNING_RATE * by, state, slope), {"scalar": {"learning/loss": loss}}


def train_loop(config: Any, recorder: Any = None) -> Any:
    """MaxText's training loop; what it calls is looked up in modules, as there."""
    checkpointing, metric_logger = (
        sys.modules[f"maxtext.common.{name}"] for name in ("checkpointing", "metric_logger")
    )
    manager = None if config.checkpoint_dir is None else Path(config.checkpoint_dir)
    state: Any = {"weight": jnp.array(START).T, "bias": jnp.zeros(1)}
    start_step = 0
    if manager is not None and (last := latest_step(manager)) is not None:
        start_step = last + 1
        with np.load(manager / str(last) / "arrays.npz") as saved:
            state = {name: jnp.array(saved[name]) for name in state}
    schedule = lambda step: LEARNING_RATE  # noqa: E731
    logger = metric_logger.MetricLogger(config=config, learning_rate_schedule=schedule, start_step=start_step)
    data = batches(TRAIN)
    try:
        for step in range(start_step, config.steps):
            if step == config.breaks_at:
                raise RuntimeError("the batch is broken")
            state, metrics = p_train_step(state, data[step % len(data)])
            checkpointing.maybe_save_checkpoint(manager, state, config, None, step)
            if config.eval_interval > 0 and step % config.eval_interval == 0:
                logger.reset_eval_metrics()
                for number, batch in enumerate(batches(HELD_OUT)):
                    scalars = {"evaluation/total_loss": loss_of(state, batch)}
                    logger.buffer_and_write_metrics(
                        {"scalar": scalars}, number, step_time_delta=datetime.timedelta(), is_training=False
                    )
            logger.buffer_and_write_metrics(metrics, step, datetime.timedelta(seconds=1))
    except StopTraining:
        pass
    finally:
        logger.flush_metrics_and_cleanup()
    return state


def initialize(argv: list[str]) -> tuple[Any, Any]:
    """The configuration of a command line: ``train.py base.yml steps=4``."""
    given = dict(each.split("=", 1) for each in argv if "=" in each)
    return settings(**{name: int(text) if text.isdigit() else text for name, text in given.items()}), None


def run(config: Any, recorder: Any) -> None:
    """Train."""
    train_loop(config, recorder)


CHECKPOINTING = {
    each.__name__: each for each in (latest_step, wait_until_finished, maybe_save_checkpoint, save_checkpoint)
}
"""What is in ``maxtext.common.checkpointing``."""


def installed() -> contextlib.AbstractContextManager[None]:
    """Let hookline import what it observes of MaxText."""
    return importable(
        {
            "maxtext.common.metric_logger": {"MetricLogger": MetricLogger},
            "maxtext.common.checkpointing": CHECKPOINTING,
            "maxtext.utils.exceptions": {"StopTraining": StopTraining},
        }
    )
