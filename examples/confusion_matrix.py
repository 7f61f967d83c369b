"""Which classes a model mixes up: a confusion matrix and a precision-recall curve after each validation.

Prints the matrix after the first and the last one.
"""

from typing import Any

import torch

import hookline as hl

CLASSES = ["left", "middle", "right"]


class ConfusionMatrix(hl.Callback):
    """Collects the predictions of a validation, and records what they were taken for."""

    def __init__(self, labels: list[str]) -> None:
        self.labels = labels
        self.targets: list[Any] = []
        self.scores: list[Any] = []

    def on_validation_start(self, loop: Any) -> None:
        """Forget the previous validation."""
        self.targets, self.scores = [], []

    def on_validation_batch_end(self, loop: Any, outputs: dict[str, Any], batch: Any, batch_idx: int) -> None:
        """Keep the predictions of a batch; they stay on their device."""
        self.scores.append(outputs["predictions"].softmax(-1))
        self.targets.append(batch[1])

    def on_validation_end(self, loop: Any) -> None:
        """Log both plots; the counts are computed off the training thread."""
        targets, scores = torch.cat(self.targets), torch.cat(self.scores)
        loop.log(
            {
                "val/confusion": hl.plots.confusion_matrix(targets, scores.argmax(-1), labels=self.labels),
                "val/precision_recall": hl.plots.pr_curve(targets, scores, labels=self.labels),
            }
        )


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Points on a line, in three classes that overlap."""
    classes = torch.randint(3, (count, 32))
    points = classes - 1.0 + 0.4 * torch.randn(count, 32)
    return list(zip(points[..., None], classes, strict=True))


def main() -> None:
    """Train a classifier, and validate it after each epoch."""
    torch.manual_seed(0)
    config = hl.TrainerConfig(name="confusion", epochs=3, learning_rate=0.05, output_dir="runs", summary=False)
    trainer = hl.Trainer(
        torch.nn.Linear(1, 3),
        batches(20),
        batches(5),
        config=config,
        loss=torch.nn.functional.cross_entropy,
        callbacks=[ConfusionMatrix(CLASSES)],
    )
    trainer.fit()
    assert trainer.dir is not None
    recorded = [record for record in hl.read(trainer.dir) if isinstance(record, hl.sinks.Media)]
    found = [record for record in recorded if record.name == "val/confusion"]
    for record in (found[0], found[-1]):
        right = sum(row[number] for number, row in enumerate(record.data["counts"]))
        print(f"step {record.step}: {right} of 160 right, {record.data['labels']}: {record.data['counts']}")


if __name__ == "__main__":
    main()
