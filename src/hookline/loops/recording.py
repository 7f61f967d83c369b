"""The record of a session besides its rows: where it lies, how it is taken up, how it ended.

All ranks share one directory, which rank zero finds or makes; each writes a journal of its own.

`RecordedDict`: the settings or the summary of a run, as a dict whose changes are written down.

What the record says of a run's subscribers: in which order they run, and what each of them has cost.

The order per moment is an event when training starts, and again when somebody comes, goes, moves or is disabled; after
the first few such changes at a low rate, and what was held back is written at the end. The costs are an event at the
end, however the run ends, once. Both are bounded in size: what does not fit is counted.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from hookline._engine.errors import CheckpointError, HooklineError, OptionError, UnknownNameError
from hookline._engine.policy import Failure
from hookline._engine.subscriber_list import SubscriberList
from hookline._record import run_directory
from hookline._record.reader import JOURNAL, count_missing_lines
from hookline._record.recorder import Recorder
from hookline._record.records import HOOKS_COST, HOOKS_PLAN
from hookline._record.run_directory import checked_notes, checked_tags
from hookline._record.settings import plain_settings, settings
from hookline.loops import checkpoint
from hookline.loops.distributed import Peers, forget

if TYPE_CHECKING:
    from hookline.loops.session import Session


Record = Callable[[Mapping[str, Any], Iterable[str]], None]
"""Told the items that changed, and the names of those that were removed."""


class RecordedDict(dict[str, Any]):
    """A dict that tells what changes in it; items are attributes too: ``run.config.lr`` is ``run.config["lr"]``.

    A name that is a method of `dict`, such as ``items``, can only be used in brackets. Copies are plain dicts.

    Args:
        values: What it begins with, which is not told.
        record: Told each change.
    """

    __slots__ = ("_record",)

    def __init__(self, values: Mapping[str, Any], record: Record) -> None:
        super().__init__(values)
        object.__setattr__(self, "_record", record)

    def update(self, *given: Any, **values: Any) -> None:
        """Add settings: a mapping, pairs, a namespace or another object of settings, and keywords."""
        changes: dict[str, Any] = {}
        for each in given:
            changes |= dict(each) if isinstance(each, list | tuple) else settings(each)
        changes |= values
        super().update(changes)
        self._record(changes, ())

    def setdefault(self, key: str, default: Any = None, /) -> Any:
        """The value of a name, which is set first where there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str, /, *default: Any) -> Any:
        """Remove a name and return its value."""
        there = key in self
        value = super().pop(key, *default)
        if there:
            self._record({}, (key,))
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last item and return it."""
        key, value = super().popitem()
        self._record({}, (key,))
        return key, value

    def clear(self) -> None:
        """Remove all items."""
        names = tuple(self)
        super().clear()
        self._record({}, names)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self._record({key: value}, ())

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self._record({}, (key,))

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]
        self.update(other)
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"There is no {name!r}; there is: {', '.join(map(str, self)) or 'nothing'}.") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(f"There is no {name!r}.")
        del self[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        from copy import deepcopy

        return deepcopy(dict(self), memo)


AT_ONCE = 8
"""How many changes of the order are written as they come."""
CHANGE_SECONDS = 60.0
"""How long the ones behind these wait after the last that was written."""
PLAN_CHARACTERS = 64 << 10
"""How many characters the names in an order may have in all."""
MOST_COSTS = 500


class HookRecord:
    """Writes the order and the costs of the subscribers of one run.

    Args:
        recorder: Of the writer that these subscribers run in.
        step: Says how many steps are complete.
        clock: Seconds that only go forward.
    """

    def __init__(
        self, recorder: Recorder, step: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._recorder, self._step, self._clock = recorder, step, clock
        self._began = clock()
        self._rosters: list[tuple[SubscriberList, Collection[str] | None]] = []
        self._is_open = False
        self._written: dict[str, list[str]] = {}
        self._changes = 0
        self._changed_at = self._began

    def follow(self, roster: SubscriberList, moments: Collection[str] | None = None) -> None:
        """Have the order of these subscribers in the record, at all moments or at some."""
        self._rosters.append((roster, moments))
        roster.on_change = self._note_change
        self._note_change()

    def open(self) -> None:
        """Write the order; from now on its changes are written."""
        self._is_open = True
        self._write_order()

    def close(self, roster: SubscriberList | None = None) -> None:
        """Write the order, if it is not in the record as it is, and what the subscribers of a roster have cost."""
        self._write_order()
        self._is_open = False
        for each, _ in self._rosters:
            if each.on_change == self._note_change:  # another run may have taken the roster over
                each.on_change = None
        if roster is not None:
            self._write_costs(roster)

    def _note_change(self) -> None:
        if not self._is_open:
            return
        if self._changes < AT_ONCE or self._clock() - self._changed_at >= CHANGE_SECONDS:
            self._write_order()

    def _write_order(self) -> None:
        order: dict[str, list[str]] = {}
        for roster, moments in self._rosters:
            for moment, names in roster.plan().items():
                if moments is None or moment in moments:
                    order.setdefault(moment, []).extend(names)
        if order == self._written:
            return
        self._written = order
        self._changes += 1
        self._changed_at = self._clock()
        self._recorder.event(HOOKS_PLAN, step=self._step(), **_bounded(order))

    def _write_costs(self, roster: SubscriberList) -> None:
        costs = roster.costs()
        if costs:
            facts: dict[str, Any] = {"seconds": self._clock() - self._began}
            facts["costs"] = [asdict(cost) for cost in costs[:MOST_COSTS]]
            left_out = len(costs) - len(facts["costs"])
            facts |= {"left_out": left_out} if left_out else {}
            self._recorder.event(HOOKS_COST, step=self._step(), **facts)


def _bounded(order: dict[str, list[str]]) -> dict[str, Any]:
    """What of an order is written, and how many names are not."""
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
    return {"moments": kept} | ({"left_out": left_out} if left_out else {})


logger = logging.getLogger("hookline")

BENCHMARK_AXIS = "benchmark"
"""What benchmarks within a training are recorded on where its evaluations count something else than its steps."""
Place: TypeAlias = tuple[Path, Path | None]
"""A run's directory, and the checkpoint in it or elsewhere that it goes on from."""


def begin(run: "Session") -> None:
    """Find or make the run's directory, begin to record, and take up what is to be resumed."""
    if run.root is None:
        return
    shared = run.processes.share(_find_or_make(run, run.root) if run.rank == 0 else None)
    if isinstance(shared, Exception):
        raise shared
    if shared is None:
        logger.warning("Rank %d records nothing: torch.distributed is not in use yet.", run.rank)
        return
    directory, saved = shared
    recorder = run.recorder = _recorder(run, directory)
    run.output_dir = run.ctx.output_dir = directory
    run.callbacks.health.on_failure = partial(record_failure, recorder)
    run.hook_record = HookRecord(recorder, lambda: run.step)
    if run.rank == 0:
        run.hook_record.follow(run.callbacks)
    if run.world_size > 1:
        run.peers = Peers(directory, run.rank, partial(recorder.status, "failed"))
        run.peers.watch()
    try:
        if run.resume_from is not None:
            run.restore_facts(run_directory.read_metadata(directory))
            _take_up(run, directory, saved, recorder)
        if run.rank == 0:
            run.outlets.open(directory)
    except BaseException as error:
        recorder.status("failed", run.explain(error))
        _let_go(run, directory, recorder)
        raise


def _recorder(run: "Session", directory: Path) -> Recorder:
    try:
        name = "main" if run.rank == 0 else f"rank{run.rank}"
        return Recorder(directory, name=name, durability=run.durability)
    except BaseException:
        if run.rank == 0:
            run_directory.release(directory)
        raise


def end(run: "Session", word: str) -> None:
    """Say how it ended, finish the journal, and let go of the directory."""
    if run.recorder is None or run.output_dir is None:
        return
    run.recorder.flush()
    if run.hook_record is not None:
        run.hook_record.close(run.callbacks)
    if run.stop_reason is not None:
        run.recorder.event("stop", step=run.step, reason=run.stop_reason)
    run.recorder.status(word, run.ctx.error or run.stop_reason or "", step=run.step)
    _let_go(run, run.output_dir, run.recorder)


def facts(name: str, config: Any, tags: Iterable[str] = (), notes: str = "") -> dict[str, Any]:
    """The part of ``run.json`` that the user decides, in plain values; tags and notes only where there are some."""
    optional: dict[str, Any] = {"tags": list(checked_tags(tags)), "notes": checked_notes(notes)}
    known = {"name": name, "config": plain_settings(config)}
    return known | {key: value for key, value in optional.items() if value}


@contextmanager
def reopened(run: "Session") -> Iterator[None]:
    """The record of a run that has ended, open once more: for an evaluation of what was trained.

    A run that has not ended, or has no record, is left alone.
    """
    if not run._ended or run.output_dir is None or run.recorder is None:
        yield
        return
    directory = run.output_dir
    if not run.processes.from_rank_zero(lambda: run_directory.acquire(directory)):
        raise run_directory.still_running_error(directory)
    recorder = run.recorder = _recorder(run, directory)
    run.hook_record = run.peers = None  # those of the training have said what they had to say
    recorder.status("running", "evaluating", step=run.step)
    if run.rank == 0:
        run.outlets.open(directory)
    run._ended = False
    try:
        yield
    finally:
        run._ended = True
        recorder.flush()
        recorder.status(run.ending, run.ctx.error or run.stop_reason or "", step=run.step)
        _let_go(run, directory, recorder)


def _find_or_make(run: "Session", root: str | Path) -> Place | Exception:
    """The run's directory, held, and the checkpoint to go on from, or what is wrong, for all ranks to hear."""
    try:
        directory, saved = _find(run, root) if run.resume_from is not None else (None, None)
        if directory is None:
            config = run.config if run.recorded_config is None else run.recorded_config
            config = {**settings(config), **run.added_config} if run.added_config else config
            config = None if isinstance(config, RecordedDict) and not config else config
            known = facts(run.name, config, run.tags, run.notes) | {"project": run.project, "parents": run.ctx.ids}
            directory = run_directory.create(root, run.project, known)
        if not run_directory.acquire(directory):  # somebody else was as quick to take it up
            raise run_directory.still_running_error(directory)
        forget(directory)
    except (HooklineError, OSError) as error:
        return error
    return directory, saved


def _find(run: "Session", root: str | Path) -> tuple[Path | None, Path | None]:
    """What ``resume`` means: a checkpoint, whose run is taken up if it lies in one, or a run."""
    reference = Path(run.resume_from or "")
    checkpoint.recover(reference)
    if checkpoint.is_checkpoint(reference) and not (reference / run_directory.METADATA).is_file():
        homes = (parent for parent in reference.resolve().parents if (parent / run_directory.METADATA).is_file())
        home = next(homes, None)
        return None if home is None else run_directory.require_resumable(home), reference
    if run.resume_from == "last":
        return _latest(run, root)
    if len(reference.parts) > 1 and not reference.exists() and not (Path(root) / run.project / reference).exists():
        hint = checkpoint.beside(reference)
        raise UnknownNameError(f"resume={str(reference)!r}: there is no such checkpoint or run. {hint}")
    found = run_directory.find(root, run.project, run.resume_from or "", name=run.name)
    return found, None if found is None else checkpoint.last(found)


def checked_resume(reference: Any) -> None:
    """Refuse what can mean neither a run nor a checkpoint."""
    if not isinstance(reference, str | os.PathLike):
        raise OptionError(
            f"resume={reference!r}: give 'last', 'auto', a run's id, or the directory of a run or of a checkpoint."
        )


def _latest(run: "Session", root: str | Path) -> tuple[Path, Path]:
    for directory in run_directory.runs_named(root, run.project, run.name):
        saved = checkpoint.last(directory)
        if saved is not None:
            return run_directory.require_resumable(directory), saved
    raise UnknownNameError(
        f"resume='last': no run called {run.name!r} in {Path(root).resolve() / run.project} has a checkpoint. "
        "Start one without resume, or with resume='auto', which takes up one if there is one."
    )


def _take_up(run: "Session", directory: Path, saved: Path | None, recorder: Recorder) -> None:
    """Go on from a checkpoint; what was recorded past it is done again. A run that is new has nothing to mark."""
    if saved is None:
        if run.step:
            raise CheckpointError(f"{directory} has no checkpoint to go back to from step {run.step}: begin a new run.")
        if recorder.journal.session:  # rows of an earlier session are there, and will be made again
            recorder.resume(-1)
            if run.rank == 0:
                logger.warning("%r has no checkpoint: it begins again at step 0. %s", run.name, run.how_to_be_taken_up)
        return
    run.load_checkpoint(saved)
    if run.rank == 0:
        _report_missing(directory, saved, recorder, run.step)
    row = run.resumed_row
    if row or getattr(run, "rows_are_indexed", False):
        # The checkpoint was saved in the body of its last step, whose row may not have been written; or the next step
        # has this number for its row.
        recorder.resume(run.step, train=run.step - 1)
        if row:
            recorder.metrics(row, run.step)
    elif run.other_axes:
        recorder.resume(**{run.axis: run.step, BENCHMARK_AXIS: run.step, **run.other_axes})
    else:
        recorder.resume(run.step)


def _report_missing(directory: Path, saved: Path, recorder: Recorder, step: int) -> None:
    """Report and record that lines are missing which were there when a checkpoint was saved."""
    noted = checkpoint.recorded_lines(saved)
    if noted is None or directory not in saved.resolve().parents:  # of version 0.1, or of another run
        return
    writer, lines = noted
    missing = count_missing_lines(directory, writer, lines)
    if missing:
        said = "%d of the %d lines that %s recorded before the checkpoint of step %d are missing from %s."
        logger.warning(said, missing, lines, writer, step, directory / JOURNAL)
        recorder.event("records_missing", step=step, count=missing, lines=lines, writer=writer)


def record_failure(recorder: Recorder, failure: Failure) -> None:
    """Record that a subscriber failed."""
    error = f"{type(failure.error).__name__}: {failure.error}"
    facts = {"subscriber": failure.subscriber, "moment": failure.moment, "disabled": failure.disabled}
    recorder.event("hook_error", step=failure.step, error=error, **facts)


def _let_go(run: "Session", directory: Path, recorder: Recorder) -> None:
    recorder.close()
    try:
        run.outlets.close()
    finally:
        if run.peers is not None:
            run.peers.close()
        run_directory.release(directory)
