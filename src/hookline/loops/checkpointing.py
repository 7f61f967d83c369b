"""`Checkpointing`: how a session saves, announces, loads and resumes its checkpoints.

What a checkpoint holds is the session's: its state (``_checkpoint_state``, ``_restore_position``) and its files
(``_save_common_files``, ``_save_rank_files``, ``_load_files``). This module decides who writes them and when. Where all
processes save together, a file that one of them cannot write fails on all, and leaves no partial checkpoint behind.
How a checkpoint lies on the disk is `hookline.loops.checkpoint`'s business.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import CheckpointError
from hookline._engine.metrics import find_metric, plain
from hookline._engine.state import LoopState, ManifestRow
from hookline._engine.torch_models import is_sharded
from hookline._record.reader import JOURNAL, count_missing_lines
from hookline.loops import checkpoint
from hookline.loops.recording import BENCHMARK_AXIS

if TYPE_CHECKING:
    from hookline.loops.session import Session

logger = logging.getLogger("hookline")


@runtime_checkable
class CheckpointRule(Protocol):
    """A subscriber that decides when checkpoints are saved, such as `CheckpointCallback`.

    Where several processes train together, each has its own instance, and they may have seen different metrics. Before
    a checkpoint that any of them requested is saved on all, the instances exchange what they know, so that all of them
    treat it alike.
    """

    @property
    def monitor(self) -> str | None:
        """The metric that decides which checkpoint is best, if one does."""

    @property
    def best_path(self) -> Path | None:
        """The best checkpoint that is kept."""

    @property
    def save_last(self) -> bool:
        """Whether it saves a checkpoint at the end of every training."""

    def save_at_end(self, loop: LoopState, /) -> None:
        """Save the final checkpoint if one is due, when training ends or stops."""

    def checkpoint_request(self) -> Any:
        """Return what this process's instance has requested and knows; anything that can be pickled."""

    def agree_on_checkpoint(self, step: int, requests: list[Any], /) -> None:
        """Apply what the instances of all processes have requested and know to the checkpoint of a step."""


def all_callbacks(callbacks: CallbackCollection) -> Iterator[Any]:
    """Yield the callbacks of a collection in their order, with those of nested collections."""
    for callback in callbacks:
        if isinstance(callback, CallbackCollection):
            yield from all_callbacks(callback)
        else:
            yield callback


def checkpoint_rules(callbacks: CallbackCollection) -> list[CheckpointRule]:
    """Return the checkpoint rules among the callbacks."""
    return [callback for callback in all_callbacks(callbacks) if isinstance(callback, CheckpointRule)]


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A checkpoint that rank zero has begun to write, and that all processes complete at the step boundary."""

    partial: Path
    path: Path
    step: int
    metrics: dict[str, Any]


class Checkpointing:
    """Saves and loads the checkpoints of a session.

    Attributes:
        resumed_from: The checkpoint that was loaded last, if one was.
        loaded: The row of a checkpoint that was loaded before `on_train_start`, until `on_checkpoint_load` fires.
        pending: Evaluated weights that rank zero wrote in the body of a step, until the step boundary.
    """

    def __init__(self, session: "Session") -> None:
        self._session = session
        self.resumed_from: Path | None = None
        self.loaded: ManifestRow | None = None
        self.pending: PendingCheckpoint | None = None

    @property
    def rules(self) -> list[CheckpointRule]:
        """The session's checkpoint rules."""
        return checkpoint_rules(self._session.callbacks)

    @property
    def best(self) -> Path | None:
        """The best checkpoint by the metric that a rule monitors."""
        return next((rule.best_path for rule in self.rules if rule.monitor is not None), None)

    @property
    def is_sharded(self) -> bool:
        """Whether each of several processes has a part of the model."""
        session = self._session
        return session.world_size > 1 and session.model is not None and is_sharded(session.model)

    def path_for(self, path: str | Path | None, step: int) -> Path:
        """Return where the checkpoint of a step is saved."""
        session = self._session
        if path is not None:
            return Path(path)
        if session.output_dir is None:
            if session.rank != 0:
                return Path("checkpoints") / f"step-{step:08d}"  # rank zero writes
            why = "Nothing is recorded (root=None)" if session.root is None else "It has no directory before it begins"
            raise CheckpointError(f"{why}, so a checkpoint needs a path: give save_checkpoint(path).")
        return session.output_dir / "checkpoints" / f"step-{step:08d}"

    def save(self, path: str | Path | None, *, kind: str) -> ManifestRow:
        """Save a checkpoint now, record it, and fire `on_checkpoint`."""
        session = self._session
        # In the body of a step the weights include its update, so the step counts as done.
        step = session.step + session.in_step
        place = self.path_for(path, step)
        # The rows first: a checkpoint on the disk whose rows a power cut took would leave a gap in the record.
        self.secure_record()
        if session.saves_together:
            return self.announce(self._write_together(place, step, kind))
        # The moment fires on all ranks, so their callbacks stay alike; this one has nothing to write or to wait for.
        if session.rank != 0:
            return self.announce(ManifestRow(step=step, path=place, metrics=dict(session.metrics), kind=kind))
        session.callbacks.drain()  # background subscribers finish first: their states are part of the checkpoint
        state = session._checkpoint_state(step)
        return self.announce(checkpoint.save(place, state, session._save_common_files, step=step, kind=kind))

    def secure_record(self) -> None:
        """Bring the record so far to the disk; where the processes save together, the failure of one is all's."""
        session = self._session
        if session.saves_together:
            session.processes.all_do(session.recording.secure)
        else:
            session.recording.secure()

    def _write_together(self, path: Path, step: int, kind: str) -> ManifestRow:
        session, processes = self._session, self._session.processes
        session.callbacks.drain()
        # Also a barrier: the directory exists before another rank writes into it.
        partial: Path = processes.from_rank_zero(lambda: checkpoint.make_partial(path))
        try:
            # Each stage ends on all processes before the next begins. Otherwise one that failed in its own files would
            # leave the others waiting in the collectives of theirs.
            if self.is_sharded:
                from hookline.loops.sharded import write_callback_shards

                states = session.callbacks.state_dict
                processes.all_do(lambda: write_callback_shards(states(), partial, processes.group()))
            processes.all_do(lambda: session._save_common_files(partial) if session.rank == 0 else None)
            processes.all_do(lambda: session._save_rank_files(partial))
        # An interrupt too: a partial checkpoint may fill the disk.
        except BaseException:
            checkpoint.discard(partial)
            raise
        # Last, when the files of all ranks are there: the manifest lists each with its digest.
        row: ManifestRow = processes.from_rank_zero(
            lambda: checkpoint.complete(partial, path, session._checkpoint_state(step), step=step, kind=kind)
        )
        return row

    def announce(self, row: ManifestRow) -> ManifestRow:
        """Record a checkpoint that was written, and fire `on_checkpoint`."""
        session = self._session
        session.checkpoints.append(row)
        if session.recorder is not None and session.rank == 0:
            facts: dict[str, Any] = {"path": str(row.path), "bytes": row.bytes, "kind": row.kind}
            monitors = dict.fromkeys(rule.monitor for rule in self.rules if rule.monitor is not None)
            values = {name: value for name in monitors if (value := find_metric(row.metrics, name)) is not None}
            session.recorder.event("checkpoint", step=row.step, **facts | ({"values": values} if values else {}))
        session.callbacks.on_checkpoint(session, row)
        session.control.saved(row)
        return row

    def base_state(self, step: int) -> dict[str, Any]:
        """Return the state in every checkpoint: counters, metrics, the callbacks' states, the journal's position."""
        session = self._session
        states = session.callbacks.state_dict()
        if self.is_sharded:
            from hookline.loops.sharded import taken_from

            states = taken_from(states, "callbacks", {})  # every process has written its own shards
        state = {"step": step, "epoch": session.epoch, "metrics": plain(dict(session.metrics)), "callbacks": states}
        extra = {"journal": session.recording.journal_position, "control": session.control.state_dict()}
        return state | {name: value for name, value in extra.items() if value}

    def write_pending(self) -> None:
        """Have rank zero write the present weights now; `complete_pending` makes a checkpoint of them.

        Several processes can complete a checkpoint only at the step boundary, when the weights have moved on.
        """
        session = self._session
        if session.rank != 0:
            # Only a note: this rank may be the only one that evaluates, so no collective is possible here.
            self.pending = PendingCheckpoint(Path(), Path(), session.step, {})
            return
        path = self.path_for(None, session.step)
        # A name of its own: the checkpoint of the step boundary may be written before this one is complete.
        partial = checkpoint.make_partial(path, name=f".evaluated-{path.name}")
        session.callbacks.drain()
        session._save_common_files(partial)
        state = session._checkpoint_state(session.step)
        checkpoint.write_state(partial, path, state)
        self.pending = PendingCheckpoint(partial, path, session.step, plain(dict(state["metrics"])))

    def complete_pending(self) -> None:
        """Add every process's files to the weights that rank zero wrote, and put the checkpoint in place."""
        session, processes = self._session, self._session.processes
        own, self.pending = self.pending, None
        # All ranks are here because one of them has a pending checkpoint. Only that of rank zero has files.
        pending: PendingCheckpoint | None = processes.share(own)
        if pending is None:
            if own is not None:
                logger.warning(
                    "The weights evaluated at step %d are not saved: rank zero, which writes checkpoints, did not "
                    "evaluate them. Evaluate on rank zero, or after the update.",
                    own.step,
                )
            return
        self.share_requests(pending.step)
        self.secure_record()
        partial = pending.partial
        try:
            # With the random states of the beginning of the step: the weights in it do not include the step's update.
            processes.all_do(lambda: session._save_rank_files(partial, before_step=True))
        except BaseException:
            checkpoint.discard(partial)
            raise
        row: ManifestRow = processes.from_rank_zero(
            lambda: checkpoint.seal(partial, pending.path, pending.metrics, step=pending.step, kind="step")
        )
        self.announce(row)

    def share_requests(self, step: int) -> None:
        """Let the rules of all processes agree on the checkpoint that all are about to save; a collective."""
        session = self._session
        if session.world_size == 1:
            return
        rules = self.rules
        everyones = session.processes.gather([rule.checkpoint_request() for rule in rules])
        for index, rule in enumerate(rules):
            # Rules are matched by position. A rank with other callbacks is left out rather than misread.
            rule.agree_on_checkpoint(step, [requests[index] for requests in everyones if len(requests) == len(rules)])

    def save_at_end(self) -> None:
        """Save what the rules want saved at the end, before `on_train_end`, whose subscribers look for it."""
        for rule in self.rules:
            rule.save_at_end(self._session)

    def load(self, path: str | Path) -> ManifestRow:
        """Restore counters, metrics, the callbacks' states, and the session's own files."""
        session, path = self._session, Path(path)
        with checkpoint.unpacked(path) as directory:
            state = checkpoint.load(directory)
            # First: a subscriber that a command had added has a state in the checkpoint, too.
            session.control.restore(state.get("control", {}))
            session.callbacks.check_state_dict(callback_states(state))  # before anything else is changed
            if (directory / checkpoint.CALLBACK_SHARDS).is_dir():
                from hookline.loops.sharded import read_callback_shards

                state["callbacks"] = read_callback_shards(state["callbacks"], directory, session.model)
            # Before the counters: files of another training are refused here, and nothing has changed by then.
            session._load_files(directory)
            session._restore_position(state)
            session.metrics.update(state["metrics"])
            session.callbacks.load_state_dict(callback_states(state))
            # The path that was given: a checkpoint in one file is unpacked in a directory that is gone below.
            row = replace(checkpoint.row_of(directory, state), path=path)
        self.resumed_from = path
        if session.has_started:
            session.callbacks.on_checkpoint_load(session, row)
        else:
            self.loaded = row  # the first moment is on_train_start
        return row

    def resume(self, saved: Path | None) -> None:
        """Load the checkpoint that a session resumes from, and mark the rows recorded after it as obsolete."""
        session = self._session
        recorder, directory = session.recorder, session.output_dir
        if recorder is None or directory is None:
            return
        if saved is None:
            if session.step:
                raise CheckpointError(
                    f"{directory} has no checkpoint to go back to from step {session.step}: begin a new run."
                )
            if recorder.journal.session:  # rows of an earlier session are there, and will be recorded again
                recorder.resume(-1)
                session.control.resumed(-1)
                if session.rank == 0:
                    logger.warning(
                        "%r has no checkpoint: it starts over at step 0. %s", session.name, session.resume_hint
                    )
            return
        session.load_checkpoint(saved)
        session.control.resumed(session.step)
        if session.rank == 0:
            self._report_missing_lines(directory, saved)
        if session.resumed_row or session.rows_are_indexed:
            # The checkpoint was saved in the body of its last step, whose row may not have been written; or the next
            # step's row has this number.
            # The row of the last step is withdrawn too, and then recorded once more, from the checkpoint.
            recorder.resume(session.step, train=session.step - 1)
            if session.resumed_row:
                recorder.metrics(session.resumed_row, session.step)
        elif session.other_axes:
            recorder.resume(**{session.axis: session.step, BENCHMARK_AXIS: session.step, **session.other_axes})
        else:
            recorder.resume(session.step)

    def _report_missing_lines(self, directory: Path, saved: Path) -> None:
        session = self._session
        noted = checkpoint.recorded_lines(saved)
        if session.recorder is None or noted is None or directory not in saved.resolve().parents:
            return  # saved by version 0.1, or in another run
        writer, lines = noted
        missing = count_missing_lines(directory, writer, lines)
        if missing:
            logger.warning(
                "%d of the %d lines that %s recorded before the checkpoint of step %d are missing from %s.",
                *(missing, lines, writer, session.step, directory / JOURNAL),
            )
            session.recorder.event("records_missing", step=session.step, count=missing, lines=lines, writer=writer)


def callback_states(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the callbacks' states in a checkpoint; version 0.1 listed those that it could not save, as empty."""
    left_out = state.get("left_out", ())
    return {name: own for name, own in state["callbacks"].items() if name not in left_out}
