"""The trainings that `integrations` compares: two models, and two hosts that train them in each of its cases.

A host is given everything that is the same in all cases: the model, the optimizer, and the data, which read the clock.
What a case recorded is read back from its directory by `check_record`.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measure import fresh
from recorders import TensorBoard, Wandb, names
from torch import nn
from torch.nn.functional import cross_entropy

import hookline as hl
from hookline._record.records import Metrics

PEERS = {"tensorboard": TensorBoard, "wandb": Wandb}
"""The hosts' own integrations that are measured, and who reads back what they recorded."""
LOGS = ("logging", *PEERS)
"""Where the host itself is asked to log."""
NAMES = names(10)

Batch = dict[str, Any]


class WorkError(RuntimeError):
    """A training was not what it was timed for."""


def scalars(step: int) -> dict[str, float]:
    """What is recorded at a step, counted from one."""
    return {name: scalar(number, step) for number, name in enumerate(NAMES)}


def scalar(number: int, step: int) -> float:
    """One of them."""
    return step / (number + 3)


class Transformer(nn.Module):  # type: ignore[misc]
    """The ordinary model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(256, 256)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(self.embed(x)))


def tokens() -> Batch:
    """A batch for it."""
    rows = torch.randint(256, (4, 17))
    return {"x": rows[:, :-1], "y": rows[:, 1:]}


def layers() -> nn.Module:
    """The tiny model."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def points() -> Batch:
    """A batch for it."""
    return {"x": torch.randn(32, 64), "y": torch.randint(10, (32,))}


def loss_of(model: Any, batch: Batch) -> Any:
    """The forward pass, the same for everybody."""
    return cross_entropy(model(batch["x"]).flatten(0, -2), batch["y"].flatten())


@dataclass(frozen=True, slots=True)
class Model:
    """What is trained.

    Attributes:
        warm_up: Steps of each training before the clock is read.
        times: How many times the steps of the ordinary model are timed.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    warm_up: int
    times: int


MODELS = {"ordinary": Model(Transformer, tokens, 5, 1), "tiny": Model(layers, points, 20, 10)}


class Time(NamedTuple):
    """Nanoseconds, by the clock on the wall and of the CPU, which all threads of the process used together."""

    wall: float
    cpu: float


NEVER = Time(0, 0)


def now() -> Time:
    """Read both clocks."""
    return Time(time.perf_counter_ns(), time.process_time_ns())


class Batches:
    """The loader that everybody gets: ready-made batches, the clock read before and after those that are timed."""

    def __init__(self, batches: Iterable[Batch], warm_up: int, steps: int) -> None:
        self._batches = list(islice(cycle(batches), warm_up + steps + 1))
        self._warm_up, self._steps = warm_up, steps
        self._start = self._end = NEVER

    @property
    def step_time(self) -> Time:
        """What a step took."""
        if not NEVER < self._start < self._end:
            raise WorkError("The data were not gone through once, from the first batch to the last.")
        wall, cpu = ((end - start) / self._steps for start, end in zip(self._start, self._end, strict=True))
        return Time(wall, cpu)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        yield from self._batches[: self._warm_up]
        self._start = now()
        yield from self._batches[self._warm_up : -1]
        self._end = now()
        yield self._batches[-1]


@dataclass(frozen=True, slots=True)
class Task:
    """One training: all that a host needs for it."""

    case: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: Batches
    directory: Path

    @property
    def logs(self) -> bool:
        """Whether the host logs the scalars by itself."""
        return self.case in LOGS


Train = Callable[[Task], Iterable[Any]]
"""Trains, and gives back hookline's callbacks, each with its ``count``."""


def recording_callbacks() -> list[Any]:
    """Ten callbacks of ten classes: each records one scalar at each step."""

    def record(self: Any, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        self.count += 1
        loop.log(NAMES[self.number], scalar(self.number, loop.step))

    def make(number: int) -> Any:
        members = {"on_step_end": fresh(record), "count": 0, "number": number}
        return type(f"Recording{number}", (hl.Callback,), members)()

    return [make(number) for number in range(len(NAMES))]


def hugging_face() -> Train:
    """Its `Trainer`, which logs what a trainer made from it adds in `log`, as those of TRL do."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    from hookline.integrations.transformers import attach

    class LoaderTrainer(Trainer):  # type: ignore[misc]
        loader: Batches

        def get_train_dataloader(self) -> Any:
            return self.loader

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return loss_of(model, inputs)

        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            if "loss" in logs:  # its integrations put "train/" before each name
                own = scalars(self.state.global_step)
                logs |= {name.removeprefix("train/"): value for name, value in own.items()}
            super().log(logs, *args, **kwargs)

    def train(task: Task) -> Iterable[Any]:
        args = TrainingArguments(
            output_dir=str(task.directory),
            max_steps=len(task.data),
            lr_scheduler_type="constant",
            logging_strategy="steps" if task.logs else "no",
            logging_steps=1,
            save_strategy="no",
            report_to=task.case if task.case in PEERS else "none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = LoaderTrainer(task.model, args, optimizers=(task.optimizer, None))
        trainer.remove_callback(PrinterCallback)
        trainer.loader = task.data
        listeners = recording_callbacks() if task.case == "hookline" else []
        if listeners:
            attach(trainer, listeners, root=task.directory, summary=False)
        trainer.train()
        return listeners

    return train


def lightning() -> Train:
    """Its `Trainer`, with automatic optimization; what is logged is logged by the module's `log_dict`."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

    from hookline.integrations.lightning import HooklineCallback

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self, task: Task) -> None:
            super().__init__()
            self.model = task.model
            self._optimizer, self._logs = task.optimizer, task.logs

        def configure_optimizers(self) -> Any:
            return self._optimizer

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self._logs:
                self.log_dict(scalars(self.global_step + 1))
            return loss_of(self.model, batch)

    loggers = {"tensorboard": TensorBoardLogger, "wandb": WandbLogger}

    def train(task: Task) -> Iterable[Any]:
        listeners = recording_callbacks() if task.case == "hookline" else []
        logger = loggers.get(task.case)
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=logger(save_dir=task.directory) if logger is not None else False,
            log_every_n_steps=1,
            callbacks=[HooklineCallback(listeners, root=task.directory, summary=False)] if listeners else None,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=task.directory,
        )
        trainer.fit(Module(task), task.data)
        return listeners

    return train


class Host(NamedTuple):
    """A trainer that hookline is attached to; ``training`` raises ImportError where it is missing."""

    name: str
    package: str
    training: Callable[[], Train]


HOSTS = (Host("Hugging Face", "transformers", hugging_face), Host("Lightning", "lightning", lightning))


@contextlib.contextmanager
def peer_run(case: str, directory: Path) -> Iterator[None]:
    """A run of W&B where the case needs one: its integrations record into the one that is open."""
    if case != "wandb":
        yield
        return
    run = Wandb(directory)
    try:
        yield
    finally:
        run.close()


def check_record(case: str, directory: Path, steps: int) -> None:
    """See that what a case records can be read back from a directory: ten scalars for each step."""
    found = list(_recorded(case, directory))
    first = found[0] if found else 0
    if case in (*PEERS, "hookline") and found != list(range(first, first + steps)):
        raise WorkError(f"{case} recorded {len(found)} whole rows in {steps} steps: there must be one for each step.")


def _recorded(case: str, directory: Path) -> Iterable[int]:
    if case == "hookline":
        records = (record for journal in directory.rglob("journal") for record in hl.read(journal.parent))
        return [each.step for each in records if isinstance(each, Metrics) and _is_whole(each)]
    if case == "tensorboard":
        folders = {file.parent for file in directory.rglob("events.*")}
        return [step for folder in folders for step in TensorBoard.recorded(folder)]
    return Wandb.recorded(directory) if case == "wandb" else ()


def _is_whole(row: Metrics) -> bool:
    return "loss" in row.values and scalars(row.step).items() <= row.values.items()
