"""`Size`: how much the demo trains."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """How much is trained; as it is, it takes about two minutes on two cores.

    Attributes:
        prompts: How many sums are asked in a step of GRPO, each eight times.
        held_out: How many sums that were never trained on the benchmark asks.
        processes: How many runs are made at a time; one makes them in this process.
    """

    repeats: int = 2
    sft_steps: int = 300
    grpo_steps: int = 250
    prompts: int = 32
    held_out: int = 200
    processes: int = 2


STANDARD = Size()
