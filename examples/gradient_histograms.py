"""The distribution of each parameter's gradients over the steps, as histograms.

Prints how many were recorded, and the last one of each parameter.
"""

from typing import Any

import torch

import hookline as hl


class GradientHistograms(hl.Callback):
    """Records a histogram of the gradients of each parameter, under ``gradients/<parameter>``.

    The values are copied where they are; on a GPU, the counts are computed there. Training waits for neither.
    """

    every = 10

    def on_before_optimizer_step(self, loop: Any, optimizer: Any) -> None:
        """Log the gradients of this step, complete and before they are used."""
        for name, parameter in loop.model.named_parameters():
            if parameter.grad is not None:
                loop.log({f"gradients/{name}": hl.Histogram(parameter.grad)})


def main() -> None:
    """Fit a small network to a line with a bend."""
    torch.manual_seed(0)
    inputs = torch.linspace(-1, 1, 320)[:, None]
    data = list(zip(inputs.split(8), inputs.abs().split(8), strict=True))
    model = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    config = hl.TrainerConfig(name="gradients", epochs=1, learning_rate=0.01, output_dir="runs", summary=False)
    loss, callbacks = torch.nn.functional.mse_loss, [GradientHistograms()]
    trainer = hl.Trainer(model, data, config=config, loss=loss, callbacks=callbacks)
    trainer.fit()
    assert trainer.dir is not None
    found = [record for record in hl.read(trainer.dir) if isinstance(record, hl.sinks.Media)]
    steps = sorted({record.step for record in found})
    print(f"{len(found)} histograms of {len({record.name for record in found})} parameters at steps {steps}")
    for record in found[-4:]:
        print(f"{record.name}: {record.data['count']} values, mean {record.data['mean']:+.4f}")


if __name__ == "__main__":
    main()
