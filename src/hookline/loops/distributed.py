"""The processes that train together: which one this is, what they exchange, and how a failure of one ends all.

hookline runs no collective that nobody asked for, with these exceptions. The processes of a run agree on its directory
when it begins, and at each step boundary on stops, checkpoints and validations, so that all act at the same step. What
they logged is exchanged there too (`hookline.loops.rank_means`), and the processes of a Trainer add up the tokens of
their batches. They do so only where torch.distributed already connects several processes, over a CPU group of their
own, so that no device is waited for.

`PeerWatch` ends a process whose peer failed. A failing process leaves a note in the run's directory. The others, which
may be blocked in a collective that never completes, look for such notes from a thread. Most collectives fail by
themselves once the process is gone. Where one has not after some seconds, the waiting process records the reason and
exits: nothing else gets a thread out of a collective that hangs.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hookline._record.files import write_atomically

logger = logging.getLogger("hookline")

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 10.0
EXIT_CODE = 1


def rank() -> int:
    """Return this process's index: torch.distributed's where it is in use, otherwise the launcher's."""
    distributed = _initialized()
    return int(distributed.get_rank()) if distributed else _environment("RANK", 0)


def world_size() -> int:
    """Return how many processes train together."""
    distributed = _initialized()
    return int(distributed.get_world_size()) if distributed else _environment("WORLD_SIZE", 1)


class Agreed(NamedTuple):
    """What the processes agreed on at a step boundary; the same on all of them, but for who asked."""

    stop_reason: str | None
    wishes: tuple[bool, ...]


class ProcessGroup:
    """The collectives of a run's processes, over a CPU group; a process alone keeps its own values."""

    def __init__(self) -> None:
        self._group: Any = None
        self._requesters: dict[str, tuple[int, str]] = {}

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of the ranks."""
        distributed = _connected()
        if distributed is None:
            return [value]
        values: list[Any] = [None] * distributed.get_world_size()
        # Pickles and sends sizes first: for rare messages. What is exchanged in every step goes through `agree` and
        # `add_up`.
        distributed.all_gather_object(values, value, group=self._gloo(distributed))
        return values

    def share(self, value: Any) -> Any:
        """Return rank zero's value on all ranks."""
        distributed = _connected()
        if distributed is None:
            return value
        held = [value]
        distributed.broadcast_object_list(held, src=0, group=self._gloo(distributed))
        return held[0]

    def from_rank_zero(self, function: Callable[[], Any]) -> Any:
        """Call a function on rank zero only, and return its result, or raise its exception, on all ranks."""
        outcome: Any = None
        if rank() == 0:
            try:
                outcome = function()
            except Exception as error:
                # Sent, not raised: the others wait in the broadcast below. An interrupt is not caught: it ends this
                # process, and `PeerWatch` ends the others.
                outcome = error
        outcome = self.share(outcome)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def all_do(self, function: Callable[[], object]) -> None:
        """Call a function on every rank and wait for all; the exception of one is raised on all."""
        failure: Exception | None = None
        try:
            function()
        except Exception as error:
            failure = error
        # Also the ranks that succeeded: they must not continue to the next stage, where a failed rank never arrives.
        failures = [error for error in self.gather(failure) if error is not None]
        if failures:
            raise failure or failures[0]

    def agree(self, reason: str | None, *wishes: bool) -> Agreed:
        """Agree on whether to stop, and on which wishes any rank has."""
        distributed = _connected()
        if distributed is None:
            return Agreed(reason, wishes)
        torch = sys.modules["torch"]
        # One small all-reduce per step boundary. The reasons are texts, and are only gathered when there is one.
        flags = torch.tensor([reason is not None, *wishes], dtype=torch.int32, device="cpu")  # whatever the default is
        distributed.all_reduce(flags, op=distributed.ReduceOp.MAX, group=self._gloo(distributed))
        stop, *granted = map(bool, flags.tolist())
        return Agreed(self._first_reason(reason) if stop else None, tuple(granted))

    def _first_reason(self, reason: str | None) -> str:
        """Return the lowest rank's reason; one agreed on before still counts as that of the rank that gave it."""
        own = None if reason is None else self._requesters.get(reason, (rank(), reason))
        requester, given = next(each for each in self.gather(own) if each is not None)
        agreed = given if requester == rank() else f"{given} (requested by rank {requester})"
        self._requesters = {agreed: (requester, given)}
        return agreed

    def is_connected(self) -> bool:
        """Whether torch.distributed connects this process with others."""
        return _connected() is not None

    def size(self) -> int:
        """Return how many processes are connected."""
        distributed = _connected()
        return 1 if distributed is None else int(distributed.get_world_size())

    def add_up(self, numbers: list[float]) -> list[float]:
        """Return the sums over all ranks of numbers that each has."""
        distributed = _connected()
        if distributed is None:
            return numbers
        torch = sys.modules["torch"]
        # Python's precision, so the mean of equal numbers is that number. The program may have set another default
        # device.
        total = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        distributed.all_reduce(total, group=self._gloo(distributed))
        sums: list[float] = total.tolist()
        return sums

    def group(self) -> Any:
        """Return the CPU group; None for a process alone. The first call creates it and is itself a collective."""
        distributed = _connected()
        return None if distributed is None else self._gloo(distributed)

    def close(self) -> None:
        """Leave the group; the collectives of others that wait for this process fail."""
        group, self._group = self._group, None
        distributed = _initialized()
        if group is not None and distributed is not None:
            distributed.destroy_process_group(group)

    def _gloo(self, distributed: Any) -> Any:
        # A group of our own: the default one may be NCCL's, which needs device tensors, and the order of collectives
        # in it is the program's.
        if self._group is None:
            self._group = distributed.new_group(backend="gloo")
        return self._group


def _connected() -> Any:
    """Return torch.distributed where it connects this process with others."""
    distributed = _initialized()
    return distributed if distributed is not None and distributed.get_world_size() > 1 else None


def _initialized() -> Any:
    # Not imported: where the program has not loaded torch.distributed, there is nobody to talk to.
    distributed = sys.modules.get("torch.distributed")
    usable = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if usable else None


def _environment(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return default


class PeerWatch:
    """Watches for failures of the run's other processes between `start` and `close`.

    Args:
        run_dir: The directory that all of them share.
        rank: This process's rank.
        give_up: Called with the reason before this process exits.
    """

    def __init__(self, run_dir: Path, rank: int, give_up: Callable[[str], None]) -> None:
        self._run_dir, self._rank = run_dir, rank
        self._give_up = give_up
        self._closed = threading.Event()
        # A daemon: it must not keep a process alive whose training has ended.
        self._thread = threading.Thread(target=self._watch, name="hookline-peers", daemon=True)

    def start(self) -> None:
        """Start to watch."""
        self._thread.start()

    def explain(self, own: str) -> str:
        """Return why this process fails: its own error, which the others learn of, or another's that came first."""
        # Most errors here follow from another process's: collectives fail when a peer is gone. The first note is the
        # cause.
        reason = self.reason()
        if reason is not None:
            return own if reason.endswith(f": {own}") else f"{reason} (here: {own})"
        try:  # atomically: the others read a note as soon as its name exists
            write_atomically(self._note(self._rank), own.encode(), sync=False)
        except OSError as failure:  # the disk may be what failed
            logger.warning("The other processes are not notified that this one failed: %s", failure)
        return own

    def reason(self) -> str | None:
        """Return the failure of another process, if there is one."""
        for note in sorted(self._run_dir.glob("failed-rank*.txt")):
            if note != self._note(self._rank):
                return f"{note.stem.removeprefix('failed-').replace('rank', 'rank ')}: {note.read_text('utf-8')}"
        return None

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def _note(self, rank: int) -> Path:
        return self._run_dir / f"failed-rank{rank}.txt"

    def _watch(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            reason = self.reason()
            if reason is not None:
                logger.error("Another process failed, so this one ends as well: %s", reason)
                # Most collectives fail by themselves in this time. Then the main thread ends in an orderly way, with
                # on_exception.
                if not self._closed.wait(PATIENCE_SECONDS):
                    self._give_up(reason)
                    # Not sys.exit(), which only ends this thread: the main one is blocked inside a collective.
                    os._exit(EXIT_CODE)
                return


def remove_failure_notes(run_dir: Path) -> None:
    """Remove the notes that processes of an earlier session left."""
    for note in run_dir.glob("failed-rank*.txt"):
        note.unlink(missing_ok=True)
