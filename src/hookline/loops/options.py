"""The options that every recorded run takes, whichever loop or framework drives it.

`Session` documents them and holds their defaults. Loops and hosts take them as ``**options: Unpack[...]`` and pass them
on, so an option that is added here exists everywhere at once.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypedDict

from hookline._record.journal import Durability
from hookline.loops.run_sinks import DeliveryMode


class RecordOptions(TypedDict, total=False):
    """Where and how a run is recorded and delivered."""

    project: str
    root: str | Path | None
    sinks: Iterable[Any]
    config: Any
    tags: Iterable[str]
    notes: str
    delivery: DeliveryMode
    drain_seconds: float
    durability: Durability


class RunOptions(RecordOptions, total=False):
    """The options of a run that has subscribers; what they are is given separately."""

    strict: bool
    summary: bool


class LoopOptions(RunOptions, total=False):
    """The options of a loop of the user's own, as of `hl.run`."""

    callbacks: Iterable[Any]
    resume: str | Path | None
    save: Callable[[Path], object] | None
    load: Callable[[Path], object] | None
