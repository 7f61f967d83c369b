"""Custom loggers and hooks in supervised fine-tuning, in addition to those that report to a monitor.

    python examples/custom_loggers_and_hooks.py --config examples/sft.yaml

A logger function gets the metrics of each step and of each validation. A hook function gets the worker, with its
trainer, configuration and data, and a report of the training's progress. The monitor's address is STATUS_ENDPOINT.
"""

import os
from typing import Any

import hookline
from hookline.status import create_status_logger, create_training_hooks, create_validation_hooks

ENDPOINT = os.environ.get("STATUS_ENDPOINT", "http://localhost:8080/status")


def print_losses(report_data: dict[str, Any], step: int) -> None:
    """A logger: prints the loss of every fifth step, and that of every validation."""
    if "val/loss" in report_data:
        print(f"step {step}: validation loss {report_data['val/loss']:.2f}")
    elif step % 5 == 0:
        print(f"step {step}: loss {report_data['loss']:.2f}")


def describe(worker: hookline.SFTPolicyWorker, report_data: dict[str, Any]) -> None:
    """A hook before training: prints the name, the parameter count and the number of steps."""
    parameters = sum(parameter.numel() for parameter in worker.trainer.model.parameters())
    print(f"{worker.config.train.name}: {parameters} parameters, {report_data['total_steps']} steps")


def stop_when_learned(worker: hookline.SFTPolicyWorker, report_data: dict[str, Any]) -> None:
    """A hook after each step: stops the training at the loss that the configuration names."""
    if report_data["loss"] < worker.config.custom["target_loss"]:
        worker.trainer.request_stop(f"the loss is below {worker.config.custom['target_loss']}")


def main() -> None:
    """Train with the given configuration and all loggers and hooks."""
    logger_fn = create_status_logger(endpoint=ENDPOINT, component_name="Training Monitor")
    training_hooks = create_training_hooks(status_endpoint=ENDPOINT, heartbeat_interval=5)
    validation_hooks = create_validation_hooks(status_endpoint=ENDPOINT)

    # Merging dicts keeps the last function of a name; a list runs all of them, in order.
    all_hooks = {
        **training_hooks,
        **validation_hooks,
        "pre_training_hook": [training_hooks["pre_training_hook"], describe],
        "post_training_step_hook": [training_hooks["post_training_step_hook"], stop_when_learned],
    }
    result = hookline.main(custom_logger_fns=[logger_fn, print_losses], hook_fns=all_hooks)
    print(f"ended after {result.step} steps: {result.stop_reason or 'complete'}")


if __name__ == "__main__":
    main()
