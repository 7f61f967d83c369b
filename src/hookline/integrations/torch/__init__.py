"""Loops written by hand in torch, in one process or in several with DDP.

    from hookline.integrations.torch import run

    with run(model, optimizer, scheduler, name="warmup", resume="auto", callbacks=["checkpoint"]) as loop:
        for inputs, targets in loop.steps(loader, epochs=3):
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loop.log(loss=loss)

It is `hl.run` that knows the model, the optimizer and the schedule: callbacks find them, `on_before_optimizer_step` is
fired, and checkpoints hold all of them together with the random states and the place in the data.
"""

# ruff: noqa: E402 - what is needed is checked before it is imported

from hookline.integrations.requirement import require

require("torch", ">=2.4", extra="torch", what=__name__)

from hookline.integrations.torch.torch_run import TorchRun, run

__all__ = ["TorchRun", "run"]
