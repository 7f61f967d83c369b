"""Who this process is among those that train together, and how they agree to stop.

hookline runs no collective that nobody asked for, with two exceptions. The processes of a run agree on
its directory when it begins, and at each step boundary on whether to stop, so that all stop at the
same step. What they logged is exchanged there as well (`RankMeans`). They do so only where
torch.distributed is already in use by more than one process, over a CPU group of its own, so that no
device is waited for. And the processes of a Trainer add up the tokens of their batches (`ProcessShares`).

Metrics that are reduced over the processes of a run: what each asked for, and what comes of it.

The processes need not log the same names, nor log at the same steps: what each has is exchanged where they
meet anyway, and a name is reduced over those that logged it.

The other processes of a run: one that fails ends all of them, with its reason.

A process that fails leaves a note in the run's directory. The others, which may be waiting for it inside of
a collective operation that never completes, look for such notes from a thread. Most collectives fail by
themselves once the process is gone; where one has not after some seconds, the waiting process records why
and ends itself: nothing else gets a thread out of a collective that hangs.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hookline._engine.errors import OptionError
from hookline._engine.metrics import plain

Asked = dict[str, tuple[str, Any]]
"""By name: how to reduce it, and this process's value."""


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


REDUCTIONS: Mapping[str, Callable[[list[float]], float]] = {"mean": _mean, "sum": sum, "min": min, "max": max}


NOT_REDUCED = "none"
"""Says that each process's own value is recorded."""


class Reductions:
    """What this process logged for reduction since the processes last met."""

    def __init__(self) -> None:
        self._asked: Asked = {}

    def __bool__(self) -> bool:
        return bool(self._asked)

    @staticmethod
    def takes(reduce: Any, world_size: int) -> bool:
        """Whether there is something to reduce over.

        Raises:
            OptionError: There is no such reduction.
        """
        if reduce not in REDUCTIONS:
            known = ", ".join(map(repr, (*REDUCTIONS, NOT_REDUCED)))
            raise OptionError(f"log(reduce={reduce!r}): give {known}, or leave it out.")
        return world_size > 1

    def add(self, metrics: Mapping[str, Any], reduce: str) -> None:
        """Keep values until the processes meet; of several under one name the last counts."""
        items = dict.items(metrics) if isinstance(metrics, dict) else metrics.items()
        self._asked.update({name: (reduce, value) for name, value in items})

    def take(self) -> Asked:
        """Hand over what was kept, as plain numbers."""
        asked, self._asked = self._asked, {}
        return {name: (reduce, plain(value)) for name, (reduce, value) in asked.items()}


def reduced(everyones: Iterable[Asked]) -> dict[str, Any]:
    """Each name reduced over the processes that have it; of what is no number the first."""
    gathered: dict[str, tuple[str, list[Any]]] = {}
    for asked in everyones:
        for name, (reduce, value) in asked.items():
            gathered.setdefault(name, (reduce, []))[1].append(value)
    return {name: _reduce(reduce, values) for name, (reduce, values) in gathered.items()}


def _reduce(reduce: str, values: list[Any]) -> Any:
    numbers = all(isinstance(value, int | float) for value in values)
    return REDUCTIONS[reduce](values) if numbers else values[0]


def rank() -> int:
    """This process's index: torch.distributed's where it is in use, otherwise the launcher's."""
    distributed = _distributed()
    return int(distributed.get_rank()) if distributed else _environment("RANK", 0)


def world_size() -> int:
    """How many processes train together."""
    distributed = _distributed()
    return int(distributed.get_world_size()) if distributed else _environment("WORLD_SIZE", 1)


class Agreed(NamedTuple):
    """What the processes of a run settled at a step boundary; the same on all of them, but for who asked."""

    stop_reason: str | None
    reduced: dict[str, Any]
    wishes: tuple[bool, ...]


class ProcessGroup:
    """Settles stop requests across processes; alone, it takes a request as it is."""

    def __init__(self) -> None:
        self._group: Any = None
        self._askers: dict[str, tuple[int, str]] = {}
        self.reductions = Reductions()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of the ranks; alone, just this one's."""
        distributed = _connected()
        if distributed is None:
            return [value]
        values: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(values, value, group=self._gloo(distributed))
        return values

    def share(self, value: Any) -> Any:
        """Rank zero's value on all ranks, where they are connected; otherwise each keeps its own."""
        distributed = _connected()
        if distributed is None:
            return value
        held = [value]
        distributed.broadcast_object_list(held, src=0, group=self._gloo(distributed))
        return held[0]

    def from_rank_zero(self, function: Callable[[], Any]) -> Any:
        """What a function returns on rank zero, on all ranks; it is not called on the others. So is its exception."""
        outcome: Any = None
        if rank() == 0:
            try:
                outcome = function()
            except Exception as error:
                outcome = error
        outcome = self.share(outcome)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def all_do(self, function: Callable[[], object]) -> None:
        """Call a function on every rank, and go on when all have; an exception of one of them is raised on all."""
        failure: Exception | None = None
        try:
            function()
        except Exception as error:
            failure = error
        failures = [error for error in self.gather(failure) if error is not None]
        if failures:
            raise failure or failures[0]

    def agree(self, reason: str | None, *wishes: bool) -> "Agreed":
        """What all ranks do now: whether to stop, and why; what was reduced; and which wishes some rank has."""
        distributed = _connected()
        if distributed is None:
            return Agreed(reason, {}, wishes)
        torch = sys.modules["torch"]
        asked = torch.tensor([reason is not None, bool(self.reductions), *wishes], dtype=torch.int32)
        distributed.all_reduce(asked, op=distributed.ReduceOp.MAX, group=self._gloo(distributed))
        stop, reduce, *granted = map(bool, asked.tolist())
        values = reduced(self.gather(self.reductions.take())) if reduce else {}
        return Agreed(self._first_reason(reason) if stop else None, values, tuple(granted))

    def _first_reason(self, reason: str | None) -> str:
        """The lowest rank's reason, and who had it first: a reason that was settled before is still that rank's."""
        own = None if reason is None else self._askers.get(reason, (rank(), reason))
        asker, given = next(asked for asked in self.gather(own) if asked is not None)
        settled = given if asker == rank() else f"{given} (asked by rank {asker})"
        self._askers = {settled: (asker, given)}
        return settled

    def is_connected(self) -> bool:
        """Whether torch.distributed connects this process with others."""
        return _connected() is not None

    def size(self) -> int:
        """How many processes are connected."""
        distributed = _connected()
        return 1 if distributed is None else int(distributed.get_world_size())

    def add_up(self, numbers: list[float]) -> list[float]:
        """The sums over all ranks of numbers that each has; alone, just these."""
        distributed = _connected()
        if distributed is None:
            return numbers
        torch = sys.modules["torch"]
        total = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        distributed.all_reduce(total, group=self._gloo(distributed))
        sums: list[float] = total.tolist()
        return sums

    def group(self) -> Any:
        """The CPU group of the processes, where they are connected; made at the first call, by all of them."""
        distributed = _connected()
        return None if distributed is None else self._gloo(distributed)

    def close(self) -> None:
        """Leave the group: others that wait for this process in it are told so."""
        group, self._group = self._group, None
        distributed = _distributed()
        if group is not None and distributed is not None:
            distributed.destroy_process_group(group)

    def _gloo(self, distributed: Any) -> Any:
        if self._group is None:
            self._group = distributed.new_group(backend="gloo")
        return self._group


def _connected() -> Any:
    """torch.distributed, where it connects this process with others."""
    distributed = _distributed()
    return distributed if distributed is not None and distributed.get_world_size() > 1 else None


def _distributed() -> Any:
    distributed = sys.modules.get("torch.distributed")
    usable = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if usable else None


def _environment(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return default


logger = logging.getLogger("hookline")

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 10.0
EXIT_CODE = 1


class Peers:
    """Watches for the failure of other processes between `watch` and `close`.

    Args:
        run_dir: The directory that all of them share.
        give_up: Called with the reason before this process is ended.
    """

    def __init__(self, run_dir: Path, rank: int, give_up: Callable[[str], None]) -> None:
        self._run_dir, self._rank = run_dir, rank
        self._give_up = give_up
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hookline-peers", daemon=True)

    def watch(self) -> None:
        """Begin to look."""
        self._thread.start()

    def tell(self, error: str) -> None:
        """Let the others know that this process has failed."""
        if self.reason() is not None:
            return  # the first one is the cause
        aside = self._note(self._rank).with_suffix(".partial")
        try:
            aside.write_text(error, encoding="utf-8")
            aside.rename(self._note(self._rank))
        except OSError as failure:  # the disk may be what failed
            logger.warning("The other processes are not told that this one failed: %s", failure)

    def explain(self, own: str) -> str:
        """Why this process fails: its own error, or another's that came first and is not the same."""
        reason = self.reason()
        if reason is None:
            self.tell(own)
            return own
        return own if reason.endswith(f": {own}") else f"{reason} (here: {own})"

    def reason(self) -> str | None:
        """What another process failed of, if one did."""
        for note in sorted(self._run_dir.glob("failed-rank*.txt")):
            if note != self._note(self._rank):
                return f"{note.stem.removeprefix('failed-').replace('rank', 'rank ')}: {note.read_text('utf-8')}"
        return None

    def close(self) -> None:
        """Look no longer."""
        self._closed.set()

    def _note(self, rank: int) -> Path:
        return self._run_dir / f"failed-rank{rank}.txt"

    def _watch(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            reason = self.reason()
            if reason is not None:
                logger.error("Another process failed, so this one ends as well: %s", reason)
                if not self._closed.wait(PATIENCE_SECONDS):
                    self._give_up(reason)
                    os._exit(EXIT_CODE)
                return


def forget(run_dir: Path) -> None:
    """Take away what processes of an earlier session left."""
    for note in run_dir.glob("failed-rank*.txt"):
        note.unlink(missing_ok=True)
