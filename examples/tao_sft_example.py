"""Supervised fine-tuning that reports to a monitor in TAO's format: metrics, heartbeats, validations, the end.

    python examples/tao_sft_example.py --config examples/sft.yaml

The monitor's address is in STATUS_ENDPOINT. Reports are sent in the background: training does not wait for a monitor
that is slow or down, and the next start delivers what it missed.
"""

import os

import hookline
from hookline.status import TAOStatusLogger


def main() -> None:
    """Train with the given configuration, and report to the monitor."""
    tao_logger = TAOStatusLogger(
        status_endpoint=os.environ.get("STATUS_ENDPOINT", "http://localhost:8080/status"),
        experiment_name="sft-experiment-001",
    )
    result = hookline.main(
        custom_logger_fns=[tao_logger.log_status],
        hook_fns=tao_logger.get_hooks(),
    )
    print(f"trained {result.step} steps, validation loss {result.metrics.get('val/loss')}")


if __name__ == "__main__":
    main()
