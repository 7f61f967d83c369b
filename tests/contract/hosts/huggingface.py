"""The `Trainer` of Hugging Face."""

from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from hookline.integrations.transformers import attach
from hosts.accelerate_state import fresh_state
from hosts.base import Host
from hosts.language_model import SETTINGS
from hosts.regression import HELD_OUT, TRAIN, line, loss_of, optimizer_of


class Regression(torch.nn.Module):
    """Computes its own loss, as the models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.line = line()

    def forward(self, inputs: Any, labels: Any) -> dict[str, Any]:
        return {"loss": loss_of(self.line, inputs, labels), "logits": self.line(inputs)}


class Unshuffled(Trainer):
    """Takes the data as they come."""

    def _get_train_sampler(self, *args: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


class HuggingFace(Host):
    """`transformers.Trainer`."""

    name = "huggingface"
    several_data_sets = False
    """Whether it evaluates two of them."""

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        fresh_state()
        model = Regression()
        trainer = Unshuffled(
            model,
            TrainingArguments(str(self.directory / "out"), lr_scheduler_type="constant", max_grad_norm=0, **SETTINGS),
            train_dataset=rows(TRAIN),
            eval_dataset={name: rows(HELD_OUT) for name in "ab"} if self.several_data_sets else rows(HELD_OUT),
            optimizers=(optimizer_of(model.parameters()), None),
        )
        self.loop = attach(trainer, callbacks, name=self.name, **self.options).loop
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))


def rows(data: tuple[torch.Tensor, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The numbers as Hugging Face takes them."""
    return [{"inputs": inputs, "labels": targets} for inputs, targets in zip(*data, strict=True)]
