"""`Courier`: delivers a run's journals to its sinks, beside the training.

The training thread hands it nothing: it writes to the journal, and the courier reads that. Each sink
has a thread of its own, so one that hangs holds up none of the others. At the end what is left is
delivered within a time limit; what is still left then stays in the journal, and `sync` or the next
start of the run delivers it.

`start` opens the sinks and waits for that, within limits, so that one that refuses (bad credentials,
a bad address) is an error at the start. One that is merely unreachable is not.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from hookline.core.errors import ConfigError, HooklineError, RefusedError
from hookline.record import run_directory, trust
from hookline.record.delivery import SINKS_FOLDER, Delivery, Pace, Progress, SinkState, sink_states
from hookline.record.reader import COURIER, FINAL, last_status, last_step
from hookline.record.recorder import Recorder
from hookline.record.sink import Sink, can_mend, foreign_wishes, make_sink

START_SECONDS = 5.0
DRAIN_SECONDS = 10.0
CLOSE_SECONDS = 10.0
"""How long `sync` leaves sinks at least to close."""


class Courier:
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
            trust.require_no_links_out(directory, but_own=all(state.is_own for state in found))
        except ConfigError as error:  # nothing at all is written there
            return [replace(state, status="refused", error=str(error)) for state in found]
    note_death(directory)
    sinks, unbuilt = _rebuilt(directory, found, mend=mend)
    courier = Courier(directory, sinks, pace=pace, untrusted=[state.name for state in found if not state.is_own])
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


def lost_outputs(run_dir: str | Path) -> dict[str, str]:
    """The sinks whose files do not have any more what was delivered to them, with what is known about it.

    Only sinks of hookline's own are looked at, and of a file that this user did not write, only what lies in the run's
    directory. Nothing is changed.
    """
    directory, found = Path(run_dir), {}
    for state in sink_states(directory):
        use = str(state.spec.get("use"))
        with contextlib.suppress(HooklineError, KeyError, TypeError, AttributeError, OSError):  # of a planted state
            if ":" in use or use == "function" or (not state.is_own and foreign_wishes(state.spec, directory)):
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
    lost = lost_outputs(directory)
    for state in found:
        try:
            is_asked = mend and state.is_own and can_mend(state.spec)
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
    wishes = foreign_wishes(state.spec, directory)
    if wishes:
        raise RefusedError(
            f"{SINKS_FOLDER}/{state.name}.json was not written by a process of this user, and asks for: "
            f"{', '.join(wishes)}. If you trust this directory: hookline runs sync {directory} --trust"
        )


def note_death(run_dir: str | Path) -> bool:
    """Record that a run failed if its process died without saying how it ended; whether it did."""
    directory = Path(run_dir)
    last, noted = last_status(directory), last_status(directory, COURIER)
    began = last is not None or (directory / run_directory.FACTS).is_file()
    if not began or (last is not None and last.status in FINAL) or run_directory.is_alive(directory):
        return False
    if noted is not None and (last is None or noted.time >= last.time):
        return False
    recorder = Recorder(directory, name=COURIER)  # which also tidies up after the dead
    recorder.status("failed", "The training process died without saying why.", step=last_step(directory))
    recorder.close()
    return True
