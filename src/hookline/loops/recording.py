"""The record of a session besides its rows: its directory, its journal, its sinks, its subscribers' order and cost.

All ranks share one directory, which rank zero finds or creates and locks; each writes a journal of its own. Sinks are
fed on rank zero only.

`HookRecord` records the order of the subscribers per moment as an event when training starts, and again when one is
added, removed, moved or disabled; after the first few changes at a low rate, with the last order at the end. Their
costs are one event at the end, however the run ends. Both events are bounded in size and count what they leave out.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline._engine.errors import CheckpointError, HooklineError, OptionError, UnknownNameError
from hookline._engine.policy import Failure
from hookline._engine.subscriber_list import SubscriberList
from hookline._record import run_directory
from hookline._record.journal import Durability, checked_durability
from hookline._record.recorder import Recorder
from hookline._record.records import HOOKS_COST, HOOKS_PLAN
from hookline.loops import checkpoint
from hookline.loops.distributed import PeerWatch, remove_failure_notes
from hookline.loops.run_sinks import RunSinks

if TYPE_CHECKING:
    from hookline.loops.session import Session

logger = logging.getLogger("hookline")

BENCHMARK_AXIS = "benchmark"
"""The axis of benchmarks within a training whose evaluations do not count its steps."""
AT_ONCE = 8
"""How many changes of the subscribers' order are written at once."""
CHANGE_SECONDS = 60.0
"""How long later changes wait after the last one that was written."""
PLAN_CHARACTERS = 64 << 10
"""How many characters the names in an order may have in all."""
MOST_COSTS = 500


class Recording:
    """Where and how a session is recorded, from `begin` to `end`.

    Args:
        session: The session.
        project, root: Where its directory is; nothing is recorded where the root is None.
        durability: What survives a power cut.
        sinks: The destinations of the record.
    """

    def __init__(
        self, session: "Session", *, project: str, root: str | Path | None, durability: Durability, sinks: RunSinks
    ) -> None:
        if sinks and root is None:
            raise OptionError("sinks= with root=None: sinks are fed from the record. Give a root.")
        self._session = session
        self.project, self.root, self.sinks = project, root, sinks
        self.durability = checked_durability(durability)
        self.journal_position: dict[str, Any] = {}
        """The journal and the number of its lines when `secure` was last called, for checkpoints."""

    def begin(self) -> None:
        """Find or create the run's directory, open the journal, resume if asked to, and start delivery."""
        session = self._session
        if self.root is None:
            return
        # Only rank zero looks: two processes that search for the latest run, or create one, may find different ones.
        # Its error is a value here, because the other ranks already wait in the broadcast.
        found = session.processes.share(self._find_or_create(self.root) if session.rank == 0 else None)
        if isinstance(found, Exception):  # rank zero's, raised on all
            raise found
        if found is None:
            logger.warning("Rank %d records nothing: torch.distributed is not in use yet.", session.rank)
            return
        directory, saved = found
        recorder = session.recorder = self._open(directory)
        session.output_dir = session.ctx.output_dir = directory
        session.callbacks.health.on_failure = partial(record_failure, recorder)
        session.hook_record = HookRecord(recorder, lambda: session.step)
        if session.rank == 0:
            session.hook_record.follow(session.callbacks)
        # Before the resume: if that fails on one rank, the others have to learn of it.
        if session.world_size > 1:
            session.peers = PeerWatch(directory, session.rank, partial(recorder.status, "failed"))
            session.peers.start()
        try:
            if session.resume_from is not None:
                session.facts.restore(run_directory.read_metadata(directory))
                session.checkpointing.resume(saved)
            if session.rank == 0:
                self.sinks.open(directory)
        # A session that did not begin is never finished, so the lock and the journal are released here.
        except BaseException as error:
            recorder.status("failed", session.explain(error))
            self._close(directory, recorder)
            raise

    def end(self) -> None:
        """Record how the session ended, finish the journal, and release the directory."""
        session = self._session
        if session.recorder is None or session.output_dir is None:
            return
        # Rows that wait for a device come before the ending in the journal.
        session.recorder.flush()
        if session.hook_record is not None:
            session.hook_record.close(session.callbacks)
        if session.stop_reason is not None:
            session.recorder.event("stop", step=session.step, reason=session.stop_reason)
        self._record_ending(session.recorder)
        self._close(session.output_dir, session.recorder)

    @contextmanager
    def reopened(self) -> Iterator[None]:
        """Open the record of an ended session once more, for an evaluation of what was trained.

        A session that is live, or has no record, is left alone.
        """
        session = self._session
        if not session.has_ended or session.output_dir is None or session.recorder is None:
            yield
            return
        directory = session.output_dir
        # On all ranks or on none: one that raised alone would leave the others in the collectives of the evaluation.
        if not session.processes.from_rank_zero(lambda: run_directory.acquire(directory)):
            raise run_directory.still_running_error(directory)
        recorder = session.recorder = self._open(directory)
        session.hook_record = session.peers = None  # those of the training are closed
        recorder.status("running", "evaluating", step=session.step)
        if session.rank == 0:
            self.sinks.open(directory)
        # `log` records nothing in a session that has ended.
        session.has_ended = False
        try:
            yield
        finally:
            session.has_ended = True
            recorder.flush()
            self._record_ending(recorder)
            self._close(directory, recorder)

    def secure(self) -> None:
        """Bring everything recorded so far to the disk: a resume continues behind the checkpoint that is saved next.

        Raises:
            CheckpointError: The disk fails.
        """
        recorder = self._session.recorder
        if recorder is None:
            return
        recorder.flush()
        journal = recorder.journal
        # Becomes part of the checkpoint: a resume compares it with the journal that it finds, and reports lost lines.
        self.journal_position = {"writer": journal.writer, "lines": journal.lines_written}
        try:
            # The sync is the slow part. It is made once per checkpoint, not per row.
            if self.durability != "process":
                journal.sync()
        except OSError as error:
            raise CheckpointError(f"The record before the checkpoint cannot be brought to the disk: {error}") from error

    def _open(self, directory: Path) -> Recorder:
        rank = self._session.rank
        try:
            return Recorder(directory, name="main" if rank == 0 else f"rank{rank}", durability=self.durability)
        except BaseException:
            # The lock was taken before, and no other place would release it.
            if rank == 0:
                run_directory.release(directory)
            raise

    def _record_ending(self, recorder: Recorder) -> None:
        session = self._session
        recorder.status(session.ending, session.ctx.error or session.stop_reason or "", step=session.step)

    def _close(self, directory: Path, recorder: Recorder) -> None:
        # The journal first: sinks deliver what is in it. The directory last: another process may resume the run as
        # soon as it is released.
        recorder.close()
        try:
            self.sinks.close()
        finally:
            if self._session.peers is not None:
                self._session.peers.close()
            run_directory.release(directory)

    def _find_or_create(self, root: str | Path) -> tuple[Path, Path | None] | Exception:
        """Return the run's directory, locked, and the checkpoint to resume from; or the error, for all ranks."""
        session = self._session
        try:
            directory, saved = (None, None) if session.resume_from is None else self._find(root, session.resume_from)
            if directory is None:
                known = session.facts.initial(session.recorded_config)
                known |= {"project": self.project, "parents": session.ctx.ids}
                directory = run_directory.create(root, self.project, known)
            if not run_directory.acquire(directory):  # another process resumed it at the same moment
                raise run_directory.still_running_error(directory)
            # Under the lock, and before the other ranks learn of the directory: they would take an old note for a new
            # failure.
            remove_failure_notes(directory)
        except (HooklineError, OSError) as error:
            return error
        return directory, saved

    def _find(self, root: str | Path, resume: str | Path) -> tuple[Path | None, Path | None]:
        """Resolve ``resume``: a checkpoint, with the run that contains it, or a run, with its latest checkpoint."""
        reference, name = Path(resume), self._session.name
        # A process that was killed while it replaced this checkpoint has left it under another name.
        checkpoint.recover(reference)
        if checkpoint.is_checkpoint(reference) and not (reference / run_directory.METADATA).is_file():
            homes = (parent for parent in reference.resolve().parents if (parent / run_directory.METADATA).is_file())
            home = next(homes, None)
            return None if home is None else run_directory.require_resumable(home), reference
        if resume == "last":
            for directory in run_directory.runs_named(root, self.project, name):
                saved = checkpoint.last(directory)
                if saved is not None:
                    return run_directory.require_resumable(directory), saved
            raise UnknownNameError(
                f"resume='last': no run called {name!r} in {Path(root).resolve() / self.project} has a checkpoint. "
                "Start one without resume, or with resume='auto', which resumes a run only if there is one."
            )
        if len(reference.parts) > 1 and not reference.exists() and not (Path(root) / self.project / reference).exists():
            hint = checkpoint.beside(reference)
            raise UnknownNameError(f"resume={str(reference)!r}: there is no such checkpoint or run. {hint}")
        found = run_directory.find(root, self.project, resume, name=name)
        return found, None if found is None else checkpoint.last(found)


def check_resume(reference: Any) -> None:
    """Refuse a value that can mean neither a run nor a checkpoint."""
    if not isinstance(reference, str | os.PathLike):
        raise OptionError(
            f"resume={reference!r}: give 'last', 'auto', a run's id, or the directory of a run or of a checkpoint."
        )


def record_failure(recorder: Recorder, failure: Failure) -> None:
    """Record that a subscriber failed."""
    error = f"{type(failure.error).__name__}: {failure.error}"
    facts = {"subscriber": failure.subscriber, "moment": failure.moment, "disabled": failure.disabled}
    recorder.event("hook_error", step=failure.step, error=error, **facts)


class HookRecord:
    """Records the order and the costs of the subscribers of one run.

    Args:
        recorder: The recorder of the process that these subscribers run in.
        step: Returns the number of completed steps.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self, recorder: Recorder, step: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._recorder, self._step, self._clock = recorder, step, clock
        self._began = clock()
        self._followed: list[tuple[SubscriberList, Collection[str] | None]] = []
        self._is_open = False
        self._written: dict[str, list[str]] = {}
        self._changes = 0
        self._changed_at = self._began

    def follow(self, subscribers: SubscriberList, moments: Collection[str] | None = None) -> None:
        """Record the order of these subscribers, at all moments or at some."""
        self._followed.append((subscribers, moments))
        subscribers.on_change = self._note_change
        self._note_change()

    def open(self) -> None:
        """Record the order, and its changes from now on."""
        self._is_open = True
        self._write_order()

    def close(self, subscribers: SubscriberList | None = None) -> None:
        """Record the latest order, if it is not recorded yet, and the costs of these subscribers."""
        self._write_order()
        self._is_open = False
        for each, _ in self._followed:
            if each.on_change == self._note_change:  # another run may follow the same list by now
                each.on_change = None
        costs = () if subscribers is None else subscribers.costs()
        if costs:
            facts: dict[str, Any] = {"seconds": self._clock() - self._began}
            facts["costs"] = [asdict(cost) for cost in costs[:MOST_COSTS]]
            left_out = len(costs) - len(facts["costs"])
            facts |= {"left_out": left_out} if left_out else {}
            self._recorder.event(HOOKS_COST, step=self._step(), **facts)

    def _note_change(self) -> None:
        if not self._is_open:
            return
        # A program that adds and removes subscribers in every step would fill the journal with orders.
        if self._changes < AT_ONCE or self._clock() - self._changed_at >= CHANGE_SECONDS:
            self._write_order()

    def _write_order(self) -> None:
        order: dict[str, list[str]] = {}
        for subscribers, moments in self._followed:
            for moment, names in subscribers.plan().items():
                if moments is None or moment in moments:
                    order.setdefault(moment, []).extend(names)
        if order == self._written:
            return
        self._written = order
        self._changes += 1
        self._changed_at = self._clock()
        kept: dict[str, list[str]] = {}
        room, left_out = PLAN_CHARACTERS, 0
        for moment, names in order.items():
            kept[moment] = []
            for name in names:
                if len(name) < room:
                    room -= len(name)
                    kept[moment].append(name)
                else:
                    left_out += 1
        facts = {"moments": kept} | ({"left_out": left_out} if left_out else {})
        self._recorder.event(HOOKS_PLAN, step=self._step(), **facts)
