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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline._engine.errors import CheckpointError, HooklineError, OptionError, UnknownNameError
from hookline._engine.failures import Failure
from hookline._engine.subscriber_list import SubscriberList
from hookline._record import run_directory
from hookline._record.console import ConsoleWriter
from hookline._record.console_capture import Attachment, ConsoleMode, attach, checked_mode
from hookline._record.console_rest import redact_leftovers
from hookline._record.crash import failure_document, interrupt_document
from hookline._record.environment import EnvironmentGathering, RankEnvironmentGathering, shared_facts
from hookline._record.journal import Durability, checked_durability
from hookline._record.recorder import Recorder, checked_step
from hookline._record.records import FAILURE, HOOKS_COST, HOOKS_PLAN, INTERRUPT
from hookline._record.redaction import as_redactor
from hookline._record.source_code import checked_code
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
        console: Whether and how what the process prints is recorded.
        sinks: The destinations of the record.
        code: How much of the code is recorded.
        redact: How texts are redacted.
    """

    def __init__(
        self,
        session: "Session",
        *,
        project: str,
        root: str | Path | None,
        durability: Durability,
        console: ConsoleMode,
        sinks: RunSinks,
        code: Any = "diff",
        redact: Any = None,
    ) -> None:
        if sinks and root is None:
            raise OptionError("sinks= with root=None: sinks are fed from the record. Give a root.")
        self._session = session
        self.project, self.root, self.sinks = project, root, sinks
        self.durability = checked_durability(durability)
        self.console_mode = checked_mode(console)
        self._console: Attachment | None = None
        self.code = checked_code(code)
        self.redactor = as_redactor(redact)
        """Redacts everything that the session records; a function of a text, for other threads too."""
        self._environment: EnvironmentGathering | None = None
        self.owner: Session | None = None
        """The session whose run this one records into; None where it has a run of its own."""
        self.is_joined = False
        """Whether rank zero's session records into another one's run; the same on all ranks."""
        self._source = ""
        self.journal_position: dict[str, Any] = {}
        """The journal and the number of its lines when `secure` was last called, for checkpoints."""

    def join(self, owner: "Session", source: str = "") -> None:
        """Record into the run of another session of this process, which begins before this one and ends after it.

        Directory, console, environment, sinks and ending are the owner's.

        Args:
            source: Comes before names that other sessions of the run use already; see `JoinedRecorder`.
        """
        self.owner, self.is_joined, self._source = owner, True, source
        self.root, self.project = owner.root, owner.project
        self.redactor = owner.recording.redactor
        self.sinks = RunSinks((), delivery="thread", drain_seconds=0.0)

    def continue_steps(self, step: int) -> None:
        """Count on from the last step of the run that is joined, where another training starts from the beginning."""
        if isinstance(self._session.recorder, JoinedRecorder):
            self._session.recorder.continue_steps(step)

    def begin(self) -> None:
        """Find or create the run's directory, open the journal, resume if asked to, and start delivery."""
        session = self._session
        if self.root is None:
            return
        found, facts = session.processes.share(self._place_and_facts(self.root))
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
        session.control.open()
        try:
            if session.resume_from is not None:
                session.facts.restore(run_directory.read_metadata(directory))
                session.checkpointing.resume(saved)
            self._gather_environment(directory, recorder, facts)
            if session.rank == 0:
                self.sinks.open(directory)
        # A session that did not begin is never finished, so the lock and the journal are released here.
        except BaseException as error:
            session.control.close()
            reason = session.explain(error)
            self.record_failure(error)
            recorder.status("failed", reason)
            self._close(directory, recorder)
            raise

    def end(self) -> None:
        """Record how the session ended, finish the journal, and release the directory."""
        session = self._session
        if session.recorder is None or session.output_dir is None:
            return
        # Artifacts come before the ending in the journal. What saving them logs is in the console.
        session.recorder.finish_artifacts()
        # Before the ending: a sink that sees it finds all lines.
        self._close_console()
        # Rows that wait for a device come before the ending in the journal.
        session.recorder.flush()
        if self._environment is not None:
            self._environment.finish()
            self._environment = None
        if self.redactor.failures:
            session.recorder.event("redaction_failed", step=session.step, count=self.redactor.failures)
        if session.hook_record is not None:
            session.hook_record.close(session.callbacks)
        session.control.close()
        if session.stop_reason is not None:
            session.recorder.event("stop", step=session.step, reason=session.stop_reason)
        if self.owner is not None:
            self._leave(session.recorder)
            return
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
            recorder.finish_artifacts()
            recorder.flush()
            self._record_ending(recorder)
            self._close(directory, recorder)

    def secure(self) -> None:
        """Bring everything recorded so far to the disk: a resume continues after the checkpoint that is saved next.

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
            raise CheckpointError(f"The record before the checkpoint cannot be synced to the disk: {error}") from error

    def record_failure(self, error: BaseException) -> None:
        """Record the traceback of an error with the last console lines; of an interrupt, only where it came."""
        recorder, step = self._session.recorder, self._session.step
        if recorder is None or self.owner is not None:  # the owner records it, unless the program handles it
            return
        if isinstance(error, KeyboardInterrupt | SystemExit):
            recorder.event(INTERRUPT, step=step, **interrupt_document(error))
            return
        lines = [] if self._console is None else self._console.last_lines()  # they often say why
        recorder.event(FAILURE, step=step, **failure_document(error, lines))

    def _open(self, directory: Path) -> Recorder:
        rank = self._session.rank
        if self.owner is not None:
            assert self.owner.recorder is not None
            return JoinedRecorder(self.owner.recorder, self._source)
        try:
            name = "main" if rank == 0 else f"rank{rank}"
            recorder = Recorder(directory, name=name, durability=self.durability, redact=self.redactor)
        except BaseException:
            # The lock was taken before, and no other place would release it.
            if rank == 0:
                run_directory.release(directory)
            raise
        self._redact_leftovers(directory)
        writer = ConsoleWriter(directory, rank=rank, step=lambda: self._session.step, redact=self.redactor)
        self._console = attach(writer, self.console_mode)
        return recorder

    def _gather_environment(self, directory: Path, recorder: Recorder, facts: dict[str, Any]) -> None:
        """Start gathering the environment: all of it on rank zero, what differs from its facts on others."""
        if self.owner is not None:
            return
        if self._session.rank == 0:
            self._environment = EnvironmentGathering(directory, self.redactor, code=self.code)
        elif facts:
            self._environment = RankEnvironmentGathering(directory, self.redactor, facts, recorder.event)
        if self._environment is not None:
            self._environment.start()

    def _redact_leftovers(self, directory: Path) -> None:
        """Redact what killed sessions of the run printed last, which only other processes could save."""
        if self._session.rank == 0 and self.redactor.is_active:
            redact_leftovers(directory, self.redactor)

    def _record_ending(self, recorder: Recorder) -> None:
        session = self._session
        recorder.status(session.ending, session.ctx.error or session.stop_reason or "", step=session.step)

    def _leave(self, recorder: Recorder) -> None:
        recorder.flush()
        if self._session.peers is not None:
            self._session.peers.close()

    def _close(self, directory: Path, recorder: Recorder) -> None:
        if self.owner is not None:  # the session did not begin
            self._leave(recorder)
            return
        if self._environment is not None:  # the session did not begin
            self._environment.finish(0.0)
            self._environment = None
        # The journal first: sinks deliver what is in it. The directory last: another process may resume the run as
        # soon as it is released.
        self._close_console()
        # Again: the pump of a session that was killed just before this one may have written since.
        self._redact_leftovers(directory)
        recorder.close()
        try:
            self.sinks.close()
        finally:
            if self._session.peers is not None:
                self._session.peers.close()
            run_directory.release(directory)

    def _close_console(self) -> None:
        console, self._console = self._console, None
        if console is not None:
            console.close()

    def _place_and_facts(self, root: str | Path) -> tuple[tuple[Path, Path | None] | Exception | None, dict[str, Any]]:
        """Return the run's directory and rank zero's facts; on the other ranks nothing."""
        # Only rank zero looks: two processes that search for the latest run, or create one, may find different ones.
        # Its error is a value here, because the other ranks already wait in the broadcast.
        if self._session.rank != 0:
            return None, {}
        return self._find_or_create(root), shared_facts() if self._session.world_size > 1 else {}

    def _find_or_create(self, root: str | Path) -> tuple[Path, Path | None] | Exception:
        """Return the run's directory, locked, and the checkpoint to resume from; or the error, for all ranks."""
        session = self._session
        if self.owner is not None:
            return self._joined_directory(self.owner)
        try:
            directory, saved = (None, None) if session.resume_from is None else self._find(root, session.resume_from)
            if directory is None:
                known = session.facts.initial(session.recorded_config)
                known |= {"project": self.project, "parents": session.ctx.ids, **session.description}
                directory = run_directory.create(
                    root, self.project, known, run_id=session.run_id, redactor=self.redactor
                )
            if not run_directory.acquire(directory):  # another process resumed it at the same moment
                raise run_directory.still_running_error(directory)
            # Under the lock, and before the other ranks learn of the directory: they would take an old note for a new
            # failure.
            remove_failure_notes(directory)
        except (HooklineError, OSError) as error:
            return error
        return directory, saved

    def _joined_directory(self, owner: "Session") -> tuple[Path, Path | None] | Exception:
        """Return the directory of the run that is joined, and add this session's settings to it."""
        if owner.output_dir is None or owner.has_ended:
            return OptionError(f"The run {owner.name!r} has ended, and cannot be joined.")
        found = self._session.facts.initial(self._session.recorded_config)["config"]
        if isinstance(found, Mapping) and found:
            owner.update_config(dict(found))
        return owner.output_dir, None

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


class JoinedRecorder(Recorder):
    """Writes to the journal of another recorder of this process, for a session that joins its run.

    Several sessions may record one training: a trainer's callback, and a tracker that the trainer logs to. A name
    belongs to the session that uses it first. Another one's values get its source before the name, so they are neither
    lost nor mixed in one series with others that may count steps differently.

    Args:
        recorder: The recorder of the session that owns the run.
        source: Comes before names that belong to another source: ``tensorboard/loss``.
    """

    __slots__ = ("_latest", "_names", "_offset", "_own_names", "_source")

    def __init__(self, recorder: Recorder, source: str) -> None:
        # One journal, one media writer and one queue of values on a device for both, whichever method is called. What
        # differs is in slots, which are not part of the shared dict.
        self.__dict__ = recorder.__dict__
        self._source, self._offset = source, 0
        self._names: dict[str, str] = self.__dict__.setdefault("joined_names", {})
        self._latest: dict[str, int] = self.__dict__.setdefault("joined_steps", {})
        self._own_names: dict[str, str] = {}

    @property
    def last_step(self) -> int:
        """The last step of any source."""
        return max(self._latest.values(), default=0)

    def continue_steps(self, step: int) -> None:
        """Count on from the last step of this source, if a training starts before it."""
        last = self._latest.get(self._source, 0)
        self._offset = last if step < last else 0

    def metrics(self, values: dict[str, Any], step: int, axis: str = "train", *, has_texts: bool = True) -> None:
        """Record flat, plain values."""
        super().metrics(self._named(values), self._placed(step), axis, has_texts=has_texts)

    def metrics_at(self, time: float, values: dict[str, Any], step: int, axis: str = "train") -> None:
        """Record flat, plain values as of a time in seconds since 1970."""
        super().metrics_at(time, self._named(values), self._placed(step), axis)

    def media(self, media: Mapping[str, Sequence[Any]], step: int, axis: str = "train", **options: Any) -> None:
        """Record captured media."""
        super().media(self._named(dict(media)), self._placed(step), axis, **options)

    def samples(self, rows: Iterable[Mapping[str, Any]], step: int = 0, axis: str = "train") -> None:
        """Record samples."""
        offset = self._offset
        placed = [{**row, "step": row["step"] + offset} if offset and "step" in row else row for row in rows]
        super().samples(placed, self._placed(step), axis)

    def event(self, name: str, /, *, step: int | None = None, **data: Any) -> None:
        """Record something that happened."""
        super().event(name, step=None if step is None else step + self._offset, **data)

    def status(self, status: str, /, message: str = "", *, step: int | None = None, **data: Any) -> None:
        """Record the status of the run."""
        super().status(status, message, step=None if step is None else step + self._offset, **data)

    def close(self) -> None:
        """Do nothing: the owner closes the journal."""

    def _placed(self, step: int) -> int:
        placed = checked_step(step) + self._offset
        if placed > self._latest.get(self._source, 0):
            self._latest[self._source] = placed
        return placed

    def _named(self, values: dict[str, Any]) -> dict[str, Any]:
        own = self._own_names
        for name in values:
            if name not in own:
                owner = self._names.setdefault(name, self._source)
                own[name] = name if owner == self._source else f"{self._source or 'training'}/{name}"
        return {own[name]: value for name, value in dict.items(values)}


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
