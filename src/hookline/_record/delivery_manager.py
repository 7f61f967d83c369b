"""Delivers a run's journals to its sinks while the run trains, and afterwards.

The training thread hands nothing over: it writes to the journal, and deliveries read that. Each sink has a thread of
its own, so a sink that hangs delays no other. At the end, what is left is delivered within a time limit; what remains
stays in the journal, and `sync` or the next start of the run delivers it.

- `DeliveryManager` uses threads of the training process. Its `start` opens the sinks and waits for that, within
  limits, so a sink that refuses (bad credentials, a bad address) is an error at the start. One that is merely
  unreachable is not.
- `DeliveryProcess` runs a `DeliveryManager` in a process of its own, which costs the training process nothing but the
  start and outlives it. It notices within a heartbeat that the training process died, by ``kill -9`` as well: its
  standard input ends, or it has another parent. Then it stops sending heartbeats, records the run as failed, delivers
  what is left, and exits. The two communicate over that process's standard input: first a pickled `_Order`, then a
  line ``close <seconds>`` at an orderly end. It answers once, after it has tried to open the sinks.
- `sync` delivers what a run that ended left behind; `record_death` notes that a run's process died.
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
from hookline._record.console_rest import redact_leftovers
from hookline._record.delivery import SINKS_FOLDER, Delivery, Pace, Progress, SinkState, sink_states
from hookline._record.reader import DELIVERY_WRITER, FINAL, last_status, last_step
from hookline._record.recorder import Recorder
from hookline._record.sink import Sink, can_repair, external_access, make_sink

logger = logging.getLogger("hookline")

START_SECONDS = 5.0
DRAIN_SECONDS = 10.0
CLOSE_SECONDS = 10.0
"""The least time that `sync` gives sinks to close."""
HEARTBEAT_SECONDS = 1.0
"""How often a delivery process checks that the training process lives."""
ORPHAN_SECONDS = 300.0
"""How long a delivery process keeps trying after the training process died."""


class DeliveryManager:
    """Delivers to sinks from threads of this process.

    Args:
        run_dir: The run's directory.
        sinks: The sinks by name.
        pace: How often it polls the journal, and how long it waits after failures.
        untrusted: The names of sinks with settings from files without a valid signature.
        check: Whether to check the sinks' settings; False if the caller has done so.
    """

    def __init__(
        self,
        run_dir: str | Path,
        sinks: Mapping[str, Sink],
        *,
        pace: Pace | None = None,
        untrusted: Collection[str] = (),
        check: bool = True,
    ) -> None:
        self.run_dir = Path(run_dir)
        # All of them before the first `Delivery`, which creates files.
        for sink in sinks.values() if check else ():
            sink.check()
        self.deliveries = [
            Delivery(self.run_dir, name, sink, pace, is_trusted=name not in untrusted) for name, sink in sinks.items()
        ]
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Start a thread for each sink."""
        for delivery in self.deliveries:
            self._start_thread(delivery)

    def run(self) -> None:
        """Deliver until `close` is called: to the first sink from this thread, to the others from threads."""
        # The caller has a thread to give: that of an `Outbox`.
        first, *others = self.deliveries
        for delivery in others:
            self._start_thread(delivery)
        first.run()
        for thread in self._threads:
            thread.join()

    def _start_thread(self, delivery: Delivery) -> None:
        thread = threading.Thread(target=delivery.run, name=f"hookline-sink-{delivery.name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def start(self, seconds: float = START_SECONDS) -> None:
        """Start the threads, and wait at most this long until each sink was opened or failed to open.

        Raises:
            RefusedError: A sink refuses. Nothing is delivered to any of them.
        """
        for delivery in self.deliveries:
            delivery.starting = True
        self.begin()
        # One limit for all: sinks that hang do not add up.
        deadline = time.monotonic() + seconds
        for delivery in self.deliveries:
            delivery.opened.wait(max(0.0, deadline - time.monotonic()))
            delivery.starting = False
        refused = next((delivery for delivery in self.deliveries if delivery.refusal is not None), None)
        if refused is not None:
            # The others may have been opened: nothing is delivered to any sink of a run that does not start.
            self.close(0.0)
            raise RefusedError(f"{refused.name}: {refused.refusal}") from refused.refusal

    def close(self, seconds: float = DRAIN_SECONDS) -> None:
        """Deliver what is left, for at most this long. May be called again."""
        for delivery in self.deliveries:
            delivery.close(seconds)
        # A thread in a sink that hangs is left behind: it is a daemon, and its lock keeps later deliveries out.
        # A moment longer than the deliveries have, for closing their sinks.
        deadline = time.monotonic() + seconds + 0.5
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def is_done(self) -> bool:
        """Return whether everything in the journal has been delivered to every sink."""
        return all(delivery.is_done() for delivery in self.deliveries)

    def has_tried(self) -> bool:
        """Return whether each sink was opened or failed to open."""
        return all(delivery.opened.is_set() for delivery in self.deliveries)

    def has_failed(self) -> bool:
        """Return whether a sink that was tried in this process lags or refuses."""
        return any(delivery.opened.is_set() and delivery.progress.status != "ok" for delivery in self.deliveries)

    def stop_beating(self) -> None:
        """Send no more heartbeats: the training process is dead."""
        for delivery in self.deliveries:
            delivery.beats = False

    def states(self) -> list[SinkState]:
        """Return the saved state of each sink."""
        return sink_states(self.run_dir)


def sync(
    run_dir: str | Path,
    *,
    seconds: float,
    repair: bool = False,
    trusted: bool = False,
    progress: Callable[[list[SinkState]], object] = lambda states: None,
    pace: Pace | None = None,
) -> list[SinkState]:
    """Deliver what a run that ended left behind, for at most this long, and return the states of its sinks.

    Files of sinks that were deleted, truncated or replaced are delivered again. A sink that cannot be built is
    reported as refused, with the reason.

    Args:
        repair: Also open sinks that can tell what their destination has lost, and deliver that again.
        trusted: Obey and sign every sink's file in the directory. Otherwise a file that no process of this user wrote
            is refused if it asks for environment variables, imports, addresses, or paths outside of the run's
            directory; the other sinks are delivered to.
        progress: Called repeatedly with the states.

    Raises:
        ConfigError: The run is still running.
    """
    directory = Path(run_dir)
    if run_directory.is_alive(directory):
        raise ConfigError(f"{directory} is still running: its records are delivered as they are written.")
    found = sink_states(directory)
    if not found:
        redact_leftovers(directory)
        return []
    if trusted:
        found = _sign_files(directory, found)
    else:
        try:
            trust.reject_outside_links(directory, but_own=all(state.is_own for state in found))
        except ConfigError as error:  # nothing is written to such a directory
            return [replace(state, status="refused", error=str(error)) for state in found]
    redact_leftovers(directory)
    # Before delivering: sinks must also receive the end of the run.
    record_death(directory)
    sinks, unbuilt = _rebuild(directory, found, repair=repair)
    manager = DeliveryManager(
        directory, sinks, pace=pace, untrusted=[state.name for state in found if not state.is_own]
    )
    # The training process is dead: a heartbeat would report it as alive.
    manager.stop_beating()
    manager.begin()
    deadline = time.monotonic() + seconds
    while not (manager.has_tried() and manager.is_done()) and time.monotonic() < deadline:
        progress(manager.states())
        time.sleep(0.1)
    # Some sinks have work left when they are closed: a finished delivery gets time for it. For others it is up.
    manager.close(max(CLOSE_SECONDS, deadline - time.monotonic()) if manager.is_done() else 0.0)
    again = {name: sink.sent_again_bytes for name, sink in sinks.items()}
    states = [replace(state, sent_again_bytes=again.get(state.name, 0)) for state in manager.states()]
    return [unbuilt.get(state.name, state) for state in states]


def find_lost_outputs(run_dir: str | Path) -> dict[str, str]:
    """Return the sinks whose files have lost what was delivered to them, each with the reason. Changes nothing.

    Only checks hookline's own sinks and, for settings that no process of this user wrote, only files in the run's
    directory.
    """
    directory, found = Path(run_dir), {}
    for state in sink_states(directory):
        # Only settings that are known to import and call nothing of the user's.
        use = str(state.spec.get("use"))
        with contextlib.suppress(HooklineError, KeyError, TypeError, AttributeError, OSError):  # a forged state
            if ":" in use or use == "function" or (not state.is_own and external_access(state.spec, directory)):
                continue
            saved = Progress.load(directory / SINKS_FOLDER / f"{state.name}.json", state.spec).state
            loss = make_sink(state.spec).find_loss(directory, saved) if saved is not None else ""
            if loss:
                found[state.name] = loss
    return found


def _rebuild(directory: Path, found: list[SinkState], *, repair: bool) -> tuple[dict[str, Sink], dict[str, SinkState]]:
    """Build the sinks that have something to do from their saved settings; returns the states of the others, too."""
    sinks: dict[str, Sink] = {}
    unbuilt: dict[str, SinkState] = {}
    lost = find_lost_outputs(directory)
    for state in found:
        try:
            needs_repair = repair and state.is_own and can_repair(state.spec)
            if not state.behind_bytes and state.name not in lost and not needs_repair:
                continue
            if not state.is_own and (access := external_access(state.spec, directory)):  # before importing anything
                raise RefusedError(
                    f"{SINKS_FOLDER}/{state.name}.json was not written by a process of this user, and asks for: "
                    f"{', '.join(access)}. If you trust this directory: hookline runs sync {directory} --trust"
                )
            sink = make_sink(state.spec)
            sink.check()
        except HooklineError as error:
            unbuilt[state.name] = replace(state, status="refused", error=str(error))
        else:
            sinks[state.name] = sink
    return sinks, unbuilt


def _sign_files(directory: Path, found: list[SinkState]) -> list[SinkState]:
    """Sign the files of sinks that the user has declared trusted."""
    for state in found:
        if not state.is_own:
            Progress.load(directory / SINKS_FOLDER / f"{state.name}.json", state.spec).save()
    return [replace(state, is_own=True) for state in found]


def record_death(run_dir: str | Path) -> bool:
    """Record that a run failed if its process died without recording an end; returns whether it did."""
    directory = Path(run_dir)
    last, noted = last_status(directory), last_status(directory, DELIVERY_WRITER)
    began = last is not None or (directory / run_directory.METADATA).is_file()
    if not began or (last is not None and last.status in FINAL) or run_directory.is_alive(directory):
        return False
    # Compared with the last status: a resumed run that dies again is recorded again, the same death is not.
    if noted is not None and (last is None or noted.time >= last.time):
        return False
    recorder = Recorder(directory, name=DELIVERY_WRITER)  # which also reclaims what the dead process preallocated
    recorder.status("failed", "The training process died without saying why.", step=last_step(directory))
    recorder.close()
    return True


@dataclass(frozen=True, slots=True)
class _Order:
    """The arguments of the delivery process."""

    run_dir: Path
    sinks: Mapping[str, Sink]
    pace: Pace | None
    start_seconds: float
    orphan_seconds: float
    parent: int


class DeliveryProcess:
    """Delivers to sinks from another process, with the interface of `DeliveryManager`."""

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
            Delivery(self.run_dir, name, sink)  # creates the sink's file before the process starts
        self._process: subprocess.Popen[bytes] | None = None
        # A forked child inherits this object and must not end its parent's deliveries.
        self._owner = os.getpid()

    @property
    def pid(self) -> int | None:
        """The pid of the process, once it is started."""
        return self._process.pid if self._process else None

    def start(self, seconds: float = START_SECONDS) -> None:
        """Start the process, and wait at most this long until each sink was opened or failed to open.

        Raises:
            RefusedError: A sink refuses. Nothing is delivered to any of them.
            ConfigError: A sink cannot be sent to another process.
        """
        # Before anything is started: a sink that cannot be pickled leaves no process behind.
        order = _pickled(_Order(self.run_dir, self._sinks, self._pace, seconds, self._orphan_seconds, os.getpid()))
        answer, theirs = os.pipe()
        command = [sys.executable, "-m", __name__, str(theirs)]
        # The modules of the user's sinks must be found there as well; '' means the current directory.
        path = os.pathsep.join(entry or "." for entry in sys.path)
        self._process = subprocess.Popen(  # noqa: S603 - this module
            command,
            stdin=subprocess.PIPE,
            pass_fds=[theirs],
            start_new_session=True,  # Ctrl-C is for the training
            env=os.environ | {"PYTHONPATH": path},
        )
        # Otherwise the pipe would not end when the process dies, and the answer would be waited for in vain.
        os.close(theirs)
        assert self._process.stdin is not None
        self._process.stdin.write(order)
        self._process.stdin.flush()
        # Beyond what the sinks get: the interpreter has to start and import first.
        self._await_answer(answer, seconds + 10.0)

    def close(self, seconds: float = DRAIN_SECONDS) -> None:
        """Deliver what is left, for at most this long. May be called again."""
        process = self._process
        if process is None or process.stdin is None or process.stdin.closed or os.getpid() != self._owner:
            return
        try:
            process.stdin.write(f"close {seconds}\n".encode())
            process.stdin.close()
            process.wait(seconds + 2.0)
        # It died, or a sink hangs. What was not delivered is in the journal.
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
        """Return the saved state of each sink."""
        return sink_states(self.run_dir)

    def _await_answer(self, answer: int, seconds: float) -> None:
        with os.fdopen(answer, "rb") as pipe:
            ready, _, _ = select.select([pipe], [], [], seconds)
            # No answer in time is no error: sinks that merely hang must not stop a training.
            line = pipe.readline() if ready else b"{}"
        message = json.loads(line or b'{"error": "the process that delivers to the sinks could not be started"}')
        if "refused" in message or "error" in message:
            self.close(0.0)
            raise RefusedError(message["refused"]) if "refused" in message else ConfigError(message["error"])


def _pickled(order: _Order) -> bytes:
    # One by one, so that the error can name the sink.
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
    """Run the delivery process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # for the training process; its end is noticed
        signal.signal(number, signal.SIG_IGN)
    answer = os.fdopen(int(sys.argv[1]), "w")
    try:
        order: _Order = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
        manager = DeliveryManager(order.run_dir, order.sinks, pace=order.pace)
        manager.start(order.start_seconds)
    except RefusedError as error:
        _reply(answer, {"refused": str(error)})
        return
    except (HooklineError, AttributeError, ImportError, pickle.UnpicklingError) as error:
        _reply(answer, {"error": f"The sinks cannot be set up in another process: {error}. Use delivery='thread'."})
        return
    _reply(answer, {})
    seconds = _wait_for_end(order.parent)
    if seconds is None:
        # First: no heartbeat may follow the record of the death.
        manager.stop_beating()
        record_death(order.run_dir)
        seconds = order.orphan_seconds
    manager.close(seconds)


def _reply(pipe: TextIO, message: dict[str, str]) -> None:
    with contextlib.suppress(BrokenPipeError), pipe:  # the parent died meanwhile
        pipe.write(json.dumps(message) + "\n")


def _wait_for_end(parent: int) -> float | None:
    """Return the time limit of an orderly end, or None if the parent died."""
    # The pid as well as the pipe: forked data loaders of a dead parent keep the pipe open.
    while os.getppid() == parent:
        ready, _, _ = select.select([sys.stdin], [], [], HEARTBEAT_SECONDS)
        if ready:
            words = sys.stdin.readline().split()
            return float(words[1]) if words else None
    return None


if __name__ == "__main__":
    main()
