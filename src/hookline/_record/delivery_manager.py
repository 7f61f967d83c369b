"""`Courier`: delivers a run's journals to its sinks, beside the training.

The training thread hands it nothing: it writes to the journal, and the courier reads that. Each sink
has a thread of its own, so one that hangs holds up none of the others. At the end what is left is
delivered within a time limit; what is still left then stays in the journal, and `sync` or the next
start of the run delivers it.

`start` opens the sinks and waits for that, within limits, so that one that refuses (bad credentials,
a bad address) is an error at the start. One that is merely unreachable is not.

`ProcessCourier`: a courier in a process of its own, which outlives the training by a little.

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
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from hookline._engine.errors import ConfigError, HooklineError, RefusedError
from hookline._record import run_directory, trust
from hookline._record.delivery import SINKS_FOLDER, Delivery, Pace, Progress, SinkState, sink_states
from hookline._record.reader import DELIVERY_WRITER, FINAL, last_status, last_step
from hookline._record.recorder import Recorder
from hookline._record.sink import Sink, can_repair, external_access, make_sink

START_SECONDS = 5.0
DRAIN_SECONDS = 10.0
CLOSE_SECONDS = 10.0
"""How long `sync` leaves sinks at least to close."""


class DeliveryManager:
    """Delivers to sinks from threads of this process.

    Args:
        run_dir: The run's directory.
        sinks: The sinks by name.
        pace: How often it looks for news, and how it waits after faults.
        untrusted: The names of those whose settings come from files that nobody vouches for.
    """

    def __init__(
        self,
        run_dir: str | Path,
        sinks: Mapping[str, Sink],
        *,
        pace: Pace | None = None,
        untrusted: Collection[str] = (),
    ) -> None:
        self.run_dir = Path(run_dir)
        for sink in sinks.values():
            sink.check()
        self.deliveries = [
            Delivery(self.run_dir, name, sink, pace, is_trusted=name not in untrusted) for name, sink in sinks.items()
        ]
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Begin to deliver."""
        for delivery in self.deliveries:
            thread = threading.Thread(target=delivery.run, name=f"hookline-sink-{delivery.name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def start(self, seconds: float = START_SECONDS) -> None:
        """Begin, and wait until every sink was tried once, for so long at most.

        Raises:
            RefusedError: A sink refuses; none is delivered to.
        """
        for delivery in self.deliveries:
            delivery.starting = True
        self.begin()
        deadline = time.monotonic() + seconds
        for delivery in self.deliveries:
            delivery.opened.wait(max(0.0, deadline - time.monotonic()))
            delivery.starting = False
        refused = next((delivery for delivery in self.deliveries if delivery.refusal is not None), None)
        if refused is not None:
            self.close(0.0)
            raise RefusedError(f"{refused.name}: {refused.refusal}") from refused.refusal

    def close(self, seconds: float = DRAIN_SECONDS) -> None:
        """Deliver what is left, for so long at most. May be called again."""
        for delivery in self.deliveries:
            delivery.close(seconds)
        deadline = time.monotonic() + seconds + 0.5
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def is_done(self) -> bool:
        """Whether nothing waits to be delivered."""
        return all(delivery.is_done() for delivery in self.deliveries)

    def has_tried(self) -> bool:
        """Whether each sink was opened, or that was tried."""
        return all(delivery.opened.is_set() for delivery in self.deliveries)

    def stop_beating(self) -> None:
        """Send no more heartbeats: the training process is dead."""
        for delivery in self.deliveries:
            delivery.beats = False

    def states(self) -> list[SinkState]:
        """How each sink stands."""
        return sink_states(self.run_dir)


def sync(
    run_dir: str | Path,
    *,
    seconds: float,
    mend: bool = False,
    trusts: bool = False,
    progress: Callable[[list[SinkState]], object] = lambda states: None,
    pace: Pace | None = None,
) -> list[SinkState]:
    """Deliver what a run that is over left behind, for so long at most, and say how its sinks stand.

    Files of sinks that are gone, cut or replaced are delivered again.

    A sink that cannot be built again is left as it is, with the reason. A run without sinks is left as it is.

    Args:
        mend: Also have sinks that can find it out look for what was delivered and got lost there, and bring it again.
        trusts: Obey every sink's file in the directory, and sign it. Otherwise a file that was not written by this
            user's own process is refused where it asks for variables of the environment, imports, addresses or paths
            outside of the run's directory; the other sinks are delivered to.
        progress: Called with the states now and then.
    """
    directory = Path(run_dir)
    if run_directory.is_alive(directory):
        raise ConfigError(f"{directory} is still running: what it records is delivered as it goes.")
    found = sink_states(directory)
    if not found:
        return []
    if trusts:
        found = _adopted(directory, found)
    else:
        try:
            trust.reject_outside_links(directory, but_own=all(state.is_own for state in found))
        except ConfigError as error:  # nothing at all is written there
            return [replace(state, status="refused", error=str(error)) for state in found]
    record_death(directory)
    sinks, unbuilt = _rebuilt(directory, found, mend=mend)
    courier = DeliveryManager(
        directory, sinks, pace=pace, untrusted=[state.name for state in found if not state.is_own]
    )
    courier.stop_beating()
    courier.begin()
    deadline = time.monotonic() + seconds
    while not (courier.has_tried() and courier.is_done()) and time.monotonic() < deadline:
        progress(courier.states())
        time.sleep(0.1)
    courier.close(max(CLOSE_SECONDS, deadline - time.monotonic()) if courier.is_done() else 0.0)
    again = {name: sink.sent_again_bytes for name, sink in sinks.items()}
    states = [replace(state, sent_again_bytes=again.get(state.name, 0)) for state in courier.states()]
    return [unbuilt.get(state.name, state) for state in states]


def find_lost_outputs(run_dir: str | Path) -> dict[str, str]:
    """The sinks whose files do not have any more what was delivered to them, with what is known about it.

    Only sinks of hookline's own are looked at, and of a file that this user did not write, only what lies in the run's
    directory. Nothing is changed.
    """
    directory, found = Path(run_dir), {}
    for state in sink_states(directory):
        use = str(state.spec.get("use"))
        with contextlib.suppress(HooklineError, KeyError, TypeError, AttributeError, OSError):  # of a planted state
            if ":" in use or use == "function" or (not state.is_own and external_access(state.spec, directory)):
                continue
            saved = Progress.load(directory / SINKS_FOLDER / f"{state.name}.json", state.spec).state
            loss = make_sink(state.spec).find_loss(directory, saved) if saved is not None else ""
            if loss:
                found[state.name] = loss
    return found


def _rebuilt(directory: Path, found: list[SinkState], *, mend: bool) -> tuple[dict[str, Sink], dict[str, SinkState]]:
    """The sinks of a run, made from what it wrote down; and the states of those that cannot be."""
    sinks: dict[str, Sink] = {}
    unbuilt: dict[str, SinkState] = {}
    lost = find_lost_outputs(directory)
    for state in found:
        try:
            is_asked = mend and state.is_own and can_repair(state.spec)
            if not state.behind_bytes and state.name not in lost and not is_asked:
                continue
            if not state.is_own:  # before anything that the file names is looked for
                _refuse_wishes(state, directory)
            sink = make_sink(state.spec)
            sink.check()
        except HooklineError as error:
            unbuilt[state.name] = replace(state, status="refused", error=str(error))
        else:
            sinks[state.name] = sink
    return sinks, unbuilt


def _adopted(directory: Path, found: list[SinkState]) -> list[SinkState]:
    """The states of the sinks, whose files are signed now: the user said that they are trusted."""
    for state in found:
        if not state.is_own:
            Progress.load(directory / SINKS_FOLDER / f"{state.name}.json", state.spec).save()
    return [replace(state, is_own=True) for state in found]


def _refuse_wishes(state: SinkState, directory: Path) -> None:
    wishes = external_access(state.spec, directory)
    if wishes:
        raise RefusedError(
            f"{SINKS_FOLDER}/{state.name}.json was not written by a process of this user, and asks for: "
            f"{', '.join(wishes)}. If you trust this directory: hookline runs sync {directory} --trust"
        )


def record_death(run_dir: str | Path) -> bool:
    """Record that a run failed if its process died without saying how it ended; whether it did."""
    directory = Path(run_dir)
    last, noted = last_status(directory), last_status(directory, DELIVERY_WRITER)
    began = last is not None or (directory / run_directory.METADATA).is_file()
    if not began or (last is not None and last.status in FINAL) or run_directory.is_alive(directory):
        return False
    if noted is not None and (last is None or noted.time >= last.time):
        return False
    recorder = Recorder(directory, name=DELIVERY_WRITER)  # which also tidies up after the dead
    recorder.status("failed", "The training process died without saying why.", step=last_step(directory))
    recorder.close()
    return True


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


class DeliveryProcess:
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
        courier = DeliveryManager(order.run_dir, order.sinks, pace=order.pace)
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
        record_death(order.run_dir)
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
