"""The options that every recorded run takes, whichever loop or framework drives it.

`Session` documents them and holds their defaults. Loops and hosts take them as ``**options: Unpack[...]`` and pass them
on, so an option that is added here exists everywhere at once.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TypedDict

from hookline._record.console_capture import ConsoleMode
from hookline._record.journal import Durability
from hookline._record.redaction import Redact
from hookline._record.source_code import Code
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
    console: ConsoleMode
    code: Code | Literal[False]
    redact: Redact


class RunOptions(RecordOptions, total=False):
    """The options of a run that has subscribers; what they are is given separately."""

    strict: bool
    summary: bool
    control: bool | Literal["own"]
    resume_commands: Literal["apply", "drop"]


class LoopOptions(RunOptions, total=False):
    """The options of a loop of the user's own, as of `hl.run`."""

    callbacks: Iterable[Any]
    resume: str | Path | None
    save: Callable[[Path], object] | None
    load: Callable[[Path], object] | None


def options_of(config: Any) -> dict[str, Any]:
    """Return the options of a session from settings that have a field for each; the root is called ``output_dir``."""
    fields = RunOptions.__annotations__.keys() - {"root", "config"} | {"resume"}
    return {name: getattr(config, name) for name in fields} | {"root": config.output_dir, "config": config}
