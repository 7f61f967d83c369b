"""The other processes of a run: one that fails ends all of them, with its reason.

A process that fails leaves a note in the run's directory. The others, which may be waiting for it inside of
a collective operation that never completes, look for such notes from a thread. Most collectives fail by
themselves once the process is gone; where one has not after some seconds, the waiting process records why
and ends itself: nothing else gets a thread out of a collective that hangs.
"""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

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
