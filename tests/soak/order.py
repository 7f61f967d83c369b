"""`Order`: what a session of the training is to do."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Order:
    """One session of the training.

    Args:
        session: Its number, which stands in each of its rows.
        delivery: Whether sinks are fed from a thread or from a process.
        until: When the training is to be at its end, in seconds since 1970; steps are paced for that.
        is_quiet: Nothing is done to it: no sinks, no pause, another root.
    """

    layout: str
    session: int
    delivery: str = "thread"
    until: float = 0.0
    is_quiet: bool = False
