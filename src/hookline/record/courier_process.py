"""`ProcessCourier`: a courier in a process of its own, which outlives the training by a little.

It costs the training process nothing but the start. It notices within a heartbeat that the training
process is dead, also by ``kill -9``: by the end of its standard input, or by having got another parent.
Then it sends no more heartbeats, records the run as failed, delivers what is left, and exits.

The two talk over the standard input of the courier: first a pickled `Order`, then a line
``close <seconds>`` at an orderly end. It answers once, when the sinks were tried.
"""

import contextlib
import json
import logging
import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from hookline.core.errors import ConfigError, HooklineError, RefusedError
from hookline.record.courier import DRAIN_SECONDS, START_SECONDS, Courier, note_death
from hookline.record.delivery import Delivery, Pace, SinkState, sink_states
from hookline.record.sink import Sink

logger = logging.getLogger("hookline")

HEARTBEAT_SECONDS = 1.0
ORPHAN_SECONDS = 300.0
"""How long a courier goes on trying after the training process died."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the process is told at its start."""

    run_dir: Path
    sinks: Mapping[str, Sink]
    pace: Pace | None
    start_seconds: float
    orphan_seconds: float
    parent: int


class ProcessCourier:
    """Delivers to sinks from another process; the face of `Courier`."""

    def __init__(
        self,
        run_dir: str | Path,
        sinks: Mapping[str, Sink],
        *,
        pace: Pace | None = None,
        orphan_seconds: float = ORPHAN_SECONDS,
    ) -> None:
        self.run_dir, self._sinks = Path(run_dir).resolve(), sinks
        self._pace, self._orphan_seconds = pace, orphan_seconds
        for name, sink in sinks.items():
            sink.check()
            Delivery(self.run_dir, name, sink)  # its file is there before the process is
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    @property
    def pid(self) -> int | None:
        """The process, once it was started."""
        return self._process.pid if self._process else None

    def start(self, seconds: float = START_SECONDS) -> None:
        """Begin, and wait until every sink was tried once, for so long at most.

        Raises:
            RefusedError: A sink refuses; none is delivered to.
            ConfigError: A sink cannot be sent to another process.
        """
        order = _pickled(Order(self.run_dir, self._sinks, self._pace, seconds, self._orphan_seconds, os.getpid()))
        answer, theirs = os.pipe()
        command = [sys.executable, "-m", __name__, str(theirs)]
        path = os.pathsep.join(entry or "." for entry in sys.path)
        self._process = subprocess.Popen(  # noqa: S603 - this very module
            command,
            stdin=subprocess.PIPE,
            pass_fds=[theirs],
            start_new_session=True,  # Ctrl-C is for the training
            env=os.environ | {"PYTHONPATH": path},
        )
        os.close(theirs)
        assert self._process.stdin is not None
        self._process.stdin.write(order)
        self._process.stdin.flush()
        self._await_answer(answer, seconds + 10.0)

    def close(self, seconds: float = DRAIN_SECONDS) -> None:
        """Deliver what is left, for so long at most. May be called again."""
        process = self._process
        if process is None or process.stdin is None or process.stdin.closed or os.getpid() != self._owner:
            return
        try:
            process.stdin.write(f"close {seconds}\n".encode())
            process.stdin.close()
            process.wait(seconds + 2.0)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        if process.returncode != 0:
            logger.warning(
                "The process that delivers to the sinks ended early (%d). Deliver the rest with: hookline runs sync %s",
                process.returncode,
                self.run_dir,
            )

    def states(self) -> list[SinkState]:
        """How each sink stands."""
        return sink_states(self.run_dir)

    def _await_answer(self, answer: int, seconds: float) -> None:
        with os.fdopen(answer, "rb") as pipe:
            ready, _, _ = select.select([pipe], [], [], seconds)
            said = pipe.readline() if ready else b"{}"
        message = json.loads(said or b'{"error": "the process that delivers to the sinks could not be started"}')
        if "refused" in message or "error" in message:
            self.close(0.0)
            raise RefusedError(message["refused"]) if "refused" in message else ConfigError(message["error"])


def _pickled(order: Order) -> bytes:
    for name, sink in order.sinks.items():
        try:
            pickle.dumps(sink)
        except Exception as error:
            raise ConfigError(
                f"The sink {name!r} cannot be sent to another process ({error}). Use functions that are defined at the "
                "top of a module, or delivery='thread'."
            ) from error
    return pickle.dumps(order)


def main() -> None:
    """Be the process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # both are for the training, whose end is noticed
        signal.signal(number, signal.SIG_IGN)
    answer = os.fdopen(int(sys.argv[1]), "w")
    try:
        order: Order = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
        courier = Courier(order.run_dir, order.sinks, pace=order.pace)
        courier.start(order.start_seconds)
    except RefusedError as error:
        _answer(answer, {"refused": str(error)})
        return
    except (HooklineError, AttributeError, ImportError, pickle.UnpicklingError) as error:
        _answer(answer, {"error": f"The sinks cannot be set up in another process: {error}. Use delivery='thread'."})
        return
    _answer(answer, {})
    seconds = _wait_for_the_end(order.parent)
    if seconds is None:
        courier.stop_beating()
        note_death(order.run_dir)
        seconds = order.orphan_seconds
    courier.close(seconds)


def _answer(pipe: TextIO, message: dict[str, str]) -> None:
    with contextlib.suppress(BrokenPipeError), pipe:  # the training died while the sinks were opened
        pipe.write(json.dumps(message) + "\n")


def _wait_for_the_end(parent: int) -> float | None:
    """The seconds that an orderly end leaves, or None when the parent died."""
    while os.getppid() == parent:
        ready, _, _ = select.select([sys.stdin], [], [], HEARTBEAT_SECONDS)
        if ready:
            words = sys.stdin.readline().split()
            return float(words[1]) if words else None
    return None


if __name__ == "__main__":
    main()
