"""The training that is abused: deterministic, with checkpoints, and resumed automatically at every start.

A session notes in a separate file what it has recorded: one line after each row, written when the row's `log` has
returned. It goes on training when the disk is full and rows are lost, but saves no checkpoint after a lost row: it
ends instead, and the next session records those rows again. That is what makes the audit exact.
"""

import json
import os
import time
from pathlib import Path

import torch

import hookline as hl
from hookline._record.journal import Journal
from soak.layout import PROJECT, Layout
from soak.order import Order

NAME = "abused"
SEGMENT_BYTES = 4096
"""The smallest: a session uses many, and a full disk is felt soon."""
LONGEST_PAUSE_SECONDS = 0.25
EVALUATION_STEP = 10**6
LAST_STEPS = 5
"""How many steps are left until the abuse is over."""


class GapError(RuntimeError):
    """Rows were lost, so later state must not be saved."""


class Witness(hl.Callback):
    """Reports recorded rows, and prevents checkpoints after a gap."""

    priority = 100
    critical = True

    def __init__(self, path: Path, checkpoint_every: int) -> None:
        path.parent.mkdir(exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._every = checkpoint_every

    def on_log(self, loop, step, metrics, /):
        lost = loop.recorder.journal.lost
        line = json.dumps({"step": step, "names": sorted(metrics), "lost": lost})
        os.write(self._file, f"{line}\n".encode())
        if loop.step % self._every == 0:
            self._require_no_gap(lost)

    def on_train_end(self, loop, artifacts, /):
        self._require_no_gap(loop.recorder.journal.lost)

    def _require_no_gap(self, lost: int) -> None:
        if lost:
            raise GapError(f"{lost} records were lost: they are recorded again from the last checkpoint on")


class Learner:
    """A small network that learns a fixed function; every loss depends on all steps before, and on random states."""

    def __init__(self, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.seed = seed
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(self.seed * 7_000_003 + step))
        return inputs, torch.sin(inputs.sum(1, keepdim=True))

    def learn(self, step: int) -> tuple[float, float]:
        """One step; the loss, and the norm of the gradients."""
        self.model.train()
        inputs, targets = self.batch(step)
        loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item(), norm.item()

    def evaluate(self) -> float:
        self.model.eval()
        inputs, targets = self.batch(EVALUATION_STEP)
        with torch.no_grad():
            return torch.nn.functional.mse_loss(self.model(inputs), targets).item()

    def save(self, directory: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }
        with (directory / "learner.pt").open("wb") as file:
            torch.save(state, file)

    def load(self, directory: Path) -> None:
        state = torch.load(directory / "learner.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])


def log_row(report_data: dict, step: int) -> None:
    """The logger function of the sink `function`: a line in a file."""
    line = json.dumps({"step": step, "values": report_data}) + "\n"
    path = os.environ["SOAK_FUNCTION_FILE"]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def sinks(layout: Layout) -> list:
    """The sinks that are on, as a user gives them."""
    made = {
        "console": {"console": {"stream": "stdout", "every_seconds": 0, "sample_seconds": None}},
        "csv": "csv",
        "jsonl": "jsonl",
        "tensorboard": "tensorboard",
        "prometheus": "prometheus",
        "function": log_row,
        "trackio": {"trackio": {"directory": str(layout.root / "trackio")}},
        "wandb": {"wandb": {"mode": "offline"}},
    }
    served = {
        "mlflow": lambda url: {"mlflow": {"tracking_uri": url}},
        "status": lambda url: {"status": {"endpoint": f"{url}/status", "metrics": "all", "timeout_seconds": 2.0}},
        "hookline": lambda url: {"hookline": {"url": url, "timeout_seconds": 4.0}},
    }
    return [made[name] if name in made else served[name](layout.url(name)) for name in layout.sinks]


def train(order: Order) -> int:
    """One session; 0 where the training is complete, 3 where it was stopped before."""
    layout = Layout.load(order.layout)
    Journal.__init__.__kwdefaults__["segment_bytes"] = SEGMENT_BYTES  # type: ignore[index]
    learner = Learner(layout.seed)
    reported = layout.reported / ("quiet" if order.is_quiet else f"{order.session:04d}")
    run = hl.run(
        NAME,
        project=PROJECT,
        root=layout.quiet_root if order.is_quiet else layout.root,
        callbacks=[
            Witness(reported, layout.checkpoint_every),
            hl.callbacks.CheckpointCallback(every_n_steps=layout.checkpoint_every, save_top_k=3),
        ],
        sinks=[] if order.is_quiet else sinks(layout),
        resume="auto",
        save=learner.save,
        load=learner.load,
        delivery=order.delivery,
        drain_seconds=3.0,
        summary=False,
    )
    with run:
        for step in run.steps(layout.steps):
            loss, norm = learner.learn(step)
            run.log(loss=loss, grad_norm=norm, attempt=order.session)
            if (step + 1) % layout.evaluate_every == 0:
                with run.validate() as validation:
                    validation.log(loss=learner.evaluate(), attempt=order.session)
            if not order.is_quiet:
                _pause(order.until, layout.steps - step)
            while step == layout.steps - LAST_STEPS and not (order.is_quiet or layout.is_over.exists()):
                if run.stop_requested:
                    break
                time.sleep(LONGEST_PAUSE_SECONDS)
    return 0 if run.step == layout.steps else 3


def _pause(until: float, left: int) -> None:
    """Wait so long that the rest of the steps ends in time."""
    time.sleep(min(LONGEST_PAUSE_SECONDS, max(0.0, (until - time.time()) / left)))
