"""Finds and delivers what handlers of `hookline.logging` recorded and had not written when their process died.

A handler's journal lies beside the file or directory that it writes (see `Spool`). One that a living process delivers
from is not left over. The journal says which kind of handler wrote it and its columns; the place to write to follows
from where the journal lies, so that a journal from elsewhere cannot name another. One that this user's own process did
not write needs explicit trust: it would add its rows to the file beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline.core.errors import HooklineError, OptionError, RefusedError
from hookline.logging.csv_handler import CSVHandler
from hookline.logging.spool import SETTINGS
from hookline.logging.spool_handler import SpoolHandler, spool_directory
from hookline.logging.tensorboard_handler import TensorBoardHandler
from hookline.record import lock, trust
from hookline.record.delivery import SinkState

DEPTH = 2
"""How many levels below a directory journals are looked for: a program's ``logs/`` and one below."""
_JOURNALS = ".*.journal"
_HANDLERS: dict[str, Callable[[Path, Any], SpoolHandler]] = {
    "csv": lambda path, settings: CSVHandler(path, settings["columns"]),
    "tensorboard": lambda path, settings: TensorBoardHandler(path),
}


@dataclass(frozen=True, slots=True)
class LeftOver:
    """A journal that a dead process left.

    Args:
        directory: The journal.
        path: The file or directory that its handler writes.
    """

    directory: Path
    path: Path

    def deliver(
        self, seconds: float, progress: Callable[[list[SinkState]], object], *, trusts: bool = False
    ) -> list[SinkState]:
        """Deliver it for so long at most; how its sink stands then.

        Args:
            trusts: Deliver also what was not left by one of this user's own processes.
        """
        try:
            handler = self._handler(trusts=trusts)
        except HooklineError as error:
            return [SinkState(self.path.name, "refused", error=str(error))]
        states = handler.spool.deliver_left_over(seconds, progress)
        handler.close()
        return states

    def _handler(self, *, trusts: bool) -> SpoolHandler:
        saved, is_own = trust.read(self.directory / SETTINGS)
        if not (trusts or is_own):
            raise RefusedError(
                f"{self.directory} was not left by a process of this user, and asks for: path {self.path}. If you "
                f"trust it: hookline runs sync {self.directory} --trust"
            )
        if not trusts:
            trust.require_no_links_out(self.directory)
        try:
            make = _HANDLERS[saved["handler"]]
            return make(self.path, saved["settings"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise OptionError(f"{self.directory / SETTINGS} cannot be used: {type(error).__name__}: {error}") from error


def find(place: Path) -> list[LeftOver]:
    """The journals left over at a place.

    Args:
        place: A file or directory that a handler writes, its journal, or a directory that such lie in or below.
    """
    place = place.resolve()
    if place.match(_JOURNALS):
        found = [place]
    elif place.name and spool_directory(place).is_dir():
        found = [spool_directory(place)]
    else:
        found = [each for depth in range(DEPTH + 1) for each in sorted(place.glob("[!.]*/" * depth + _JOURNALS))]
    journals = [each for each in found if (each / SETTINGS).is_file() and not lock.is_held(each / "turn")]
    return [LeftOver(each, each.with_name(each.name[1:].removesuffix(".journal"))) for each in journals]
