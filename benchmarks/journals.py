"""Writes recorded runs for benchmarks, without recording them: run directories with journals in the recorder's format.

Every line has its number and its checksum, so a reader verifies it as it does any other. Journals are written in files
of 4 MiB, as a recorder does. A few bodies are shared by many runs: a million lines take seconds instead of a minute.

A `LiveRun` is as another process sees a running one: locked by this process, its last file preallocated with zeros.
"""

import fcntl
import json
import os
import random
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

SEGMENT_BYTES = 4 << 20
WRITER = "main-0000-1-abcdef"
START = 1.7e9
"""The time of the first record."""
NEEDLE = "Needle In"
"""A text that one sample in a thousand has."""
LESSONS = [f"lesson-{number}" for number in range(20)]
_WORDS = ("sum", "the", "digits", "of", "each", "number", "then", "sort", "them", "and", "give", "only", "a", "list")


def sealed(line: bytes, number: int) -> bytes:
    """A line of a journal: a record as JSON, with its number and its checksum."""
    return line[:-1] + b',"#":%d,"crc":"%x"}\n' % (number, zlib.crc32(line, number))


def status_line(status: str, step: int, number: int, *, num_steps: int | None = None) -> bytes:
    """The record of a run's status."""
    data = "" if num_steps is None else f'"data":{{"num_steps":{num_steps}}},'
    when = START + step / 10
    return sealed(f'{{"kind":"status","status":"{status}","step":{step},{data}"time":{when:.4f}}}'.encode(), number)


def metric_line(step: int, values: str, number: int, *, time: float | None = None) -> bytes:
    """A row of metrics; ``values`` are the members of its JSON object. Steps take a tenth of a second by default."""
    when = START + step / 10 if time is None else time
    return sealed(f'{{"kind":"metrics","step":{step},"values":{{{values}}},"time":{when:.4f}}}'.encode(), number)


def metric_journal(
    points: int, *, seed: int = 0, names: Sequence[str] = ("loss",), is_finished: bool = True
) -> list[bytes]:
    """The files of a journal with one row per step, each with a value of each name; an unfinished one ends now."""
    noise = random.Random(seed)
    start = START if is_finished else time.time() - points / 10
    rows = (
        metric_line(step, ",".join([f'"{name}":{noise.random():.9f}' for name in names]), step, time=start + step / 10)
        for step in range(1, points + 1)
    )
    return _files(rows, points, is_finished=is_finished)


def named_journal(count: int, per_row: int) -> list[bytes]:
    """The files of a journal with so many distinct metrics, each with two values."""
    rows = count // per_row
    lines = (
        metric_line(
            step,
            ",".join(f'"layer{name}/norm":{name / count:.6f}' for name in _names_of(step, rows, per_row)),
            step,
        )
        for step in range(1, 2 * rows + 1)
    )
    return _files(lines, 2 * rows)


def _names_of(step: int, rows: int, per_row: int) -> range:
    first = (step - 1) % rows * per_row
    return range(first, first + per_row)


def sample_journal(count: int, *, seed: int = 0) -> list[bytes]:
    """The files of a journal with samples of about 500 bytes."""
    noise = random.Random(seed)

    def lines() -> Iterator[bytes]:
        for number in range(count):
            text = " ".join(noise.choices(_WORDS, k=50))
            completion = f"{text} {NEEDLE} it {number}" if number % 1000 == 7 else text
            reward = noise.random()
            record = (
                f'{{"kind":"sample","step":{number // 64},"prompt":"{text[:120]} {number}","completion":"{completion}",'
                f'"rewards":{{"exact":{reward:.4f},"format":0.5}},"total":{reward + 0.5:.4f},'
                f'"advantage":{reward - 0.5:.4f},"group":"g{number // 8}",'
                f'"lesson":"{noise.choice(LESSONS)}","time":{START + number / 50:.3f}}}'
            )
            yield sealed(record.encode(), number + 1)

    return _files(lines(), count)


def used_sample_journal(count: int, tokens: Sequence[str], uses: Sequence[str], *, seed: int = 0) -> list[bytes]:
    """The files of a journal with samples that have tokens, 64 in a step, each used by the two steps that follow.

    Args:
        tokens: What the samples say about their tokens, as JSON; they take turns.
        uses: The same of the second use.
    """
    noise = random.Random(seed)

    def lines() -> Iterator[bytes]:
        line = 1
        for first in range(0, count, 64):
            step, numbers = 2 * (first // 64), range(first, min(count, first + 64))
            names = [f"0-{step}-{number % 64}" for number in numbers]
            for number, name in zip(numbers, names, strict=True):
                text = " ".join(noise.choices(_WORDS, k=50))
                record = (
                    f'{{"kind":"sample","step":{step},"prompt":"{text[:120]} {number}","completion":"{text}",'
                    f'"axis":"rollout","rewards":{{"exact":{noise.random():.4f}}},"total":0.5,"group":"g{number // 8}",'
                    f'"lesson":"{noise.choice(LESSONS)}","finish":"stop","version":{step},"length":200,'
                    f'"prompt_length":40,"rollout":"{name}","timings":{{"generate":0.5,"score":0.1}},'
                    f'"tokens":{tokens[number % len(tokens)]},"time":{START + number / 50:.3f}}}'
                )
                yield sealed(record.encode(), line)
                line += 1
            listed = ",".join(f'"{name}"' for name in names)
            columns = ",".join(
                f'"{name}":{uses[number % len(uses)]}' for number, name in zip(numbers, names, strict=True)
            )
            for use, blobs in ((step + 1, ""), (step + 2, f',"tokens":{{{columns}}}')):
                when = START + numbers[-1] / 50
                record = f'{{"kind":"sample_use","step":{use},"rollouts":[{listed}]{blobs},"time":{when:.3f}}}'
                yield sealed(record.encode(), line)
                line += 1

    return _files(lines(), count + 2 * -(-count // 64))


def _files(lines: Iterator[bytes], steps: int, *, is_finished: bool = True) -> list[bytes]:
    """Lines between a first and a last status, split where a file is full."""
    files, current = [], bytearray(status_line("running", 0, 0, num_steps=steps))
    for line in lines:
        if len(current) + len(line) > SEGMENT_BYTES:
            files.append(bytes(current))
            current.clear()
        current += line
    if is_finished:
        current += status_line("finished", steps, steps + 1)
    return [*files, bytes(current)]


def write_run(root: Path, project: str, number: int, files: Sequence[bytes]) -> Path:
    """One run with a journal."""
    name = f"run-{number:05d}"
    directory = root / project / name
    journal = directory / "journal"
    journal.mkdir(parents=True)
    facts = {
        "id": name,
        "name": name,
        "project": project,
        "started": START + number,
        "git": None,
        "config": {"lr": 10.0 ** -(number % 5), "seed": number},
        "tags": [f"tag-{number % 7}"],
    }
    (directory / "run.json").write_text(json.dumps(facts, indent=2))
    for position, content in enumerate(files):
        (journal / f"{WRITER}-{position:06d}.jsonl").write_bytes(content)
    return directory


def write_runs(root: Path, project: str, count: int, bodies: Sequence[Sequence[bytes]]) -> None:
    """Many finished runs, whose journals take turns."""
    for number in range(count):
        write_run(root, project, number, bodies[number % len(bodies)])


class LiveRun:
    """A run that this process holds, and that gets more rows.

    Args:
        root: The directory of the runs.
        project: The project.
        number: Its name.
        files: The journal so far.
        points: The steps in it.
    """

    def __init__(self, root: Path, project: str, number: int, files: Sequence[bytes], points: int) -> None:
        directory = write_run(root, project, number, files)
        self.step = points
        self._position = len(files[-1])
        self._journal = os.open(directory / "journal" / f"{WRITER}-{len(files) - 1:06d}.jsonl", os.O_RDWR)
        os.ftruncate(self._journal, self._position + SEGMENT_BYTES)
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def append(self, count: int = 1) -> None:
        """Record more rows of the metric ``loss``, all of them now."""
        first, self.step = self.step + 1, self.step + count
        now = time.time()
        lines = b"".join(
            metric_line(step, f'"loss":{step % 97 / 97:.9f}', step, time=now) for step in range(first, self.step + 1)
        )
        os.pwrite(self._journal, lines, self._position)
        self._position += len(lines)

    def close(self) -> None:
        """Release the run."""
        os.close(self._journal)
        os.close(self._lock)
