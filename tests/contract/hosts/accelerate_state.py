"""What Accelerate keeps in a process about the first training that it was used for."""

from accelerate.state import AcceleratorState, GradientState, PartialState


def fresh_state() -> None:
    """Let the next training begin anew."""
    for kind in (AcceleratorState, GradientState, PartialState):
        kind._reset_state()
