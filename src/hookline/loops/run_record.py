"""The record of a bare loop's run besides its rows: where it lies, how it is taken up, how it ended.

All ranks share one directory, which rank zero finds or makes; each writes a journal of its own.
"""

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hookline.core.errors import HooklineError
from hookline.core.policy import Failure
from hookline.loops import checkpoint
from hookline.record import run_directory
from hookline.record.recorder import Recorder

if TYPE_CHECKING:
    from hookline.loops.run import Run

logger = logging.getLogger("hookline")


def begin(run: "Run") -> None:
    """Find or make the run's directory, begin to record, and take up what is to be resumed."""
    if run.root is None:
        return
    shared = run.agreement.share(_find_or_make(run, run.root) if run.rank == 0 else None)
    if isinstance(shared, Exception):
        raise shared
    if shared is None:
        logger.warning("Rank %d records nothing: torch.distributed is not in use yet.", run.rank)
        return
    if run.rank == 0:
        run_directory.hold(shared)
    run.output_dir = run.ctx.output_dir = shared
    run.recorder = Recorder(shared, name="main" if run.rank == 0 else f"rank{run.rank}")
    run.callbacks.health.on_failure = partial(_record_failure, run.recorder)
    try:
        if run.resume_from is not None:
            _take_up(run, shared, run.recorder)
        if run.rank == 0:
            run.outlets.open(shared)
    except BaseException as error:
        run.recorder.status("failed", str(error))
        _let_go(run, shared, run.recorder)
        raise


def end(run: "Run", word: str) -> None:
    """Say how it ended, finish the journal, and let go of the directory."""
    if run.recorder is None or run.output_dir is None:
        return
    run.recorder.flush()
    if run.stop_reason is not None:
        run.recorder.event("stop", step=run.step, reason=run.stop_reason)
    run.recorder.status(word, run.ctx.error or run.stop_reason or "", step=run.step)
    _let_go(run, run.output_dir, run.recorder)


def _find_or_make(run: "Run", root: str | Path) -> Path | Exception:
    """The run's directory, or what is wrong, for all ranks to hear."""
    try:
        if run.resume_from is not None:
            found = run_directory.find(root, run.project, run.resume_from, name=run.name)
            if found is not None:
                return found
        facts = {"name": run.name, "project": run.project, "config": run.config, "parents": run.ctx.ids}
        return run_directory.create(root, run.project, facts)
    except HooklineError as error:
        return error


def _take_up(run: "Run", directory: Path, recorder: Recorder) -> None:
    """Go on from the last checkpoint; what was recorded past it is done again."""
    last = checkpoint.last(directory)
    if last is None:
        recorder.resume(-1)
        return
    run.load_checkpoint(last)
    row = checkpoint.load(last)["open_row"]
    if row:  # the checkpoint was saved in the body of its last step, whose row may not have been written
        recorder.resume(run.step, train=run.step - 1)
        recorder.metrics(row, run.step)
    else:
        recorder.resume(run.step)


def _record_failure(recorder: Recorder, failure: Failure) -> None:
    error = f"{type(failure.error).__name__}: {failure.error}"
    facts = {"subscriber": failure.subscriber, "moment": failure.moment, "disabled": failure.disabled}
    recorder.event("hook_error", step=failure.step, error=error, **facts)


def _let_go(run: "Run", directory: Path, recorder: Recorder) -> None:
    recorder.close()
    try:
        run.outlets.close()
    finally:
        run_directory.let_go(directory)
