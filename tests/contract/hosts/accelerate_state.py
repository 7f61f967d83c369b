"""The process-wide state of Accelerate."""

from accelerate.state import AcceleratorState, GradientState, PartialState


def fresh_state() -> None:
    """Reset it for the next training."""
    for kind in (AcceleratorState, GradientState, PartialState):
        kind._reset_state()
