"""`FlippedBits`: single bits of a finished run are flipped, one at a time, and each has to be found with its place."""

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import hookline as hl
from hookline._record.records import Metrics
from hookline.cli.runs.verify import verify
from hookline.store.run_info import RunLocation


@dataclass(frozen=True)
class Flip:
    """A bit that was flipped: in which file, at which byte, and what is not as promised."""

    file: str
    byte: int
    wrong: str = ""


class FlippedBits:
    """Flips bits in a copy of a run: of journals, of their digests, of checkpoints.

    Args:
        run_dir: A run that has ended.
        copy: Where the copy is made.
        rng: Chooses the bits.
    """

    def __init__(self, run_dir: Path, copy: Path, rng: random.Random) -> None:
        self.found: list[Flip] = []
        self._rng = rng
        self._place = RunLocation("flipped", Path(shutil.copytree(run_dir, copy)))
        self._files = sorted(
            path for name in ("journal", "checkpoints") for path in (copy / name).rglob("*") if path.is_file()
        )
        self._rows = self._count_rows()
        assert not verify(self._place).is_damaged, "the run was damaged before"

    def flip(self) -> Flip:
        """Flip a bit, look whether `verify` reports the file and how many rows are left, and flip it back."""
        path = self._rng.choice(self._files)
        data = bytearray(path.read_bytes())
        byte, bit = self._rng.randrange(len(data)), 1 << self._rng.randrange(8)
        data[byte] ^= bit
        path.write_bytes(data)
        try:
            wrong = self._examine(path)
        finally:
            data[byte] ^= bit
            path.write_bytes(data)
        self.found.append(Flip(path.relative_to(self._place.directory).as_posix(), byte, wrong))
        return self.found[-1]

    def _examine(self, path: Path) -> str:
        damage = [finding.what for finding in verify(self._place).findings if finding.kind == "damage"]
        # The name of a file that has a digest may be what changed; a checkpoint is reported by its directory's name.
        folder, name, *_ = path.relative_to(self._place.directory).parts
        named = folder if path.suffix == ".sha256" else f"{folder}/{name}"
        if not any(what.startswith(named) for what in damage):
            return f"verify reports {damage}"
        lost = self._rows - self._count_rows()
        most = 2 if path.suffix == ".jsonl" else 0  # the end of a line separates two
        return f"{lost} rows cannot be read" if lost > most else ""

    def _count_rows(self) -> int:
        return sum(isinstance(record, Metrics) for record in hl.read(self._place.directory))
