"""Values on a device, fetched without the training thread ever waiting for it.

`defer` gathers the device values of a row by one operation on their device, behind what the device
has been told to do so far; so a later change in place does not change what is recorded. On CUDA the
rows gather in a `Block`, and whoever looks for the numbers, usually the thread that writes, has many
rows copied at a time to pinned memory. Arrays of JAX cannot change and are copied by their own
asynchronous copy. On devices without such copies (MPS) a row stays there until it is read.

`Waiting` holds the records whose values are on their way. A thread of its own looks at the oldest
every few milliseconds and writes what has arrived; nobody wakes it, because waking a thread costs the
one that does it. A value that cannot be fetched (its array was deleted) is recorded as None, and said.

The hot path is `defer`: one look at each value, one launch for each kind of number.
"""

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hookline.core.values import Deferred, Source, is_on_device
from hookline.record.records import Metrics, Record, Rewards, Sample

logger = logging.getLogger("hookline")

POLL_SECONDS = 0.05


def defer(*dicts: dict[Any, Any]) -> None:
    """Replace, in these dicts, what is on a device by `Deferred` values, and start fetching all of it."""
    places: dict[Any, list[tuple[dict[Any, Any], Any, Any]]] = {}
    for values in dicts:
        for key, value in values.items():
            if type(value) is Deferred or not is_on_device(value):
                continue
            if hasattr(value, "copy_to_host_async"):
                values[key] = Deferred(ArrayCopy(value))
            else:
                places.setdefault((value.dtype, value.get_device()), []).append((values, key, value))
    for same in places.values():
        source = _gather([value for _, _, value in same])
        for index, (values, key, _) in enumerate(same):
            values[key] = Deferred(source, index)


def _gather(tensors: list[Any]) -> "LateCopy | BlockRow":
    """Tensors of one device and one kind, gathered by one operation."""
    torch = sys.modules["torch"]
    with torch.no_grad():
        flat = [tensor if tensor.ndim == 0 else tensor.reshape(()) for tensor in tensors]
        return _add_to_block(torch, flat) if tensors[0].is_cuda else LateCopy(torch.stack(flat))


class LateCopy:
    """Numbers that are copied when they are asked for, by whoever asks."""

    arrives = False

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self._numbers: Sequence[Any] | None = None

    def number(self, index: int) -> Any:
        """One of them, waiting for the device if need be."""
        if self._numbers is None:
            self._numbers = self._tensor.tolist()
        return self._numbers[index]

    def ready(self) -> bool:
        """Whether `number` would not wait."""
        return self._numbers is not None


class Block:
    """Rows of numbers of one kind on a CUDA device, each gathered by one launch, copied many at a time."""

    ROWS = 256

    def __init__(self, torch: Any, like: Any, width: int, stream: Any) -> None:
        with torch.inference_mode(False):  # else it could not be written to outside of it
            self._table = torch.empty((self.ROWS, width), dtype=like.dtype, device=like.device)
            self._host = torch.empty((self.ROWS, width), dtype=like.dtype, pin_memory=True)
            self._rows = self._table.unbind(0)
        self._torch, self._stream = torch, stream
        self._event = torch.cuda.Event()
        self._numbers: list[Sequence[Any]] = []
        self._used = self._copied = 0
        self._lock = threading.Lock()

    def add(self, tensors: list[Any]) -> "BlockRow | None":
        """The tensors as a row of the block; None when it is full."""
        with self._lock:
            row = self._used
            if row == self.ROWS:
                return None
            self._torch.stack(tensors, out=self._rows[row])
            self._used = row + 1
        return BlockRow(self, row)

    def has(self, row: int) -> bool:
        """Whether a row has arrived; if it is not even on its way, it is sent."""
        with self._lock:
            self._take_in(wait=False)
            return row < len(self._numbers)

    def row(self, row: int) -> Sequence[Any]:
        """The numbers of a row, waiting for the device if need be."""
        with self._lock:
            while row >= len(self._numbers):
                self._take_in(wait=True)
            return self._numbers[row]

    def _take_in(self, *, wait: bool) -> None:
        """Read the rows whose copy has arrived, and send those that came since."""
        if self._copied > len(self._numbers):
            if wait:
                self._event.synchronize()
            elif not self._event.query():
                return
            self._numbers += self._host[len(self._numbers) : self._copied].tolist()
        if self._used > self._copied:
            new = slice(self._copied, self._used)
            with self._torch.no_grad(), self._torch.cuda.stream(self._stream):
                self._host[new].copy_(self._table[new], non_blocking=True)
                self._event.record(self._stream)
            self._copied = self._used


class BlockRow:
    """The numbers of one row of a block."""

    __slots__ = ("_block", "_row")
    arrives = True

    def __init__(self, block: Block, row: int) -> None:
        self._block, self._row = block, row

    def number(self, index: int) -> Any:
        """One of them, waiting for the device if need be."""
        return self._block.row(self._row)[index]

    def ready(self) -> bool:
        """Whether they have arrived."""
        return self._block.has(self._row)


_BLOCKS: dict[Any, Block] = {}
"""The block in use for each stream, kind and number of values."""


def _add_to_block(torch: Any, tensors: list[Any]) -> BlockRow:
    first = tensors[0]
    device = first.get_device()
    # The number of the stream is had in a fraction of the time that its object takes.
    key = (torch._C._cuda_getCurrentRawStream(device), device, first.dtype, len(tensors))
    block = _BLOCKS.get(key)
    row = block.add(tensors) if block is not None else None
    while row is None:
        block = _BLOCKS[key] = Block(torch, first, len(tensors), torch.cuda.current_stream(device))
        row = block.add(tensors)
    return row


class ArrayCopy:
    """The number in an array of JAX, copied by JAX."""

    arrives = True

    def __init__(self, array: Any) -> None:
        array.copy_to_host_async()
        self._array = array

    def number(self, index: int) -> Any:
        """The number, waiting for the device if need be."""
        return self._array.item()

    def ready(self) -> bool:
        """Whether it is there."""
        return bool(self._array.is_ready())


class Waiting:
    """Records whose values are on their way, written in their order by a thread of its own.

    Args:
        write: Called with a record once all of its values are numbers.
        poll_seconds: How often the thread looks whether the oldest has arrived.
    """

    def __init__(self, write: Callable[[Record], None], *, poll_seconds: float = POLL_SECONDS) -> None:
        self._write = write
        self._poll_seconds = poll_seconds
        self._records: deque[tuple[Record, set[Source]]] = deque()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._process = os.getpid()

    def add(self, record: Record) -> None:
        """Take a record; it is written when its values have arrived."""
        if os.getpid() != self._process:  # forked: what waits is the parent's to write
            self._records, self._thread, self._process = deque(), None, os.getpid()
            self._writing, self._ended = threading.Lock(), threading.Event()
        self._records.append((record, sources_of(record)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hookline-device-values", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Write everything that waits, and wait for it."""
        with self._writing:
            while self._records and self._process == os.getpid():
                self._write_first()

    def close(self) -> None:
        """Write everything that waits, and end the thread."""
        self.flush()
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._poll_seconds):
            with self._writing:
                while self._records and self._has_arrived():
                    self._write_first()

    def _has_arrived(self) -> bool:
        """Whether the oldest can be written. What does not arrive by itself is waited for: this thread has time."""
        return all(source.ready() or not source.arrives for source in self._records[0][1])

    def _write_first(self) -> None:
        record, _ = self._records[0]
        try:
            self._write(with_numbers(record))
        except Exception:
            logger.exception("A record with values from a device could not be written.")
        self._records.popleft()


def sources_of(record: Record) -> set[Source]:
    """Where the values of a record that are on their way come from."""
    return {value.source for value in _values_of(record) if type(value) is Deferred}


def with_numbers(record: Record) -> Record:
    """The record with every value that was on its way as a number."""
    match record:
        case Metrics():
            record.values = {key: _number(key, value) for key, value in dict.items(record.values)}
        case Sample():
            record.rewards = {key: _number(key, value) for key, value in dict.items(record.rewards)}
            record.total, record.advantage = _number("total", record.total), _number("advantage", record.advantage)
        case Rewards():
            record.values = [_number(record.name, value) for value in record.values]
    return record


def _values_of(record: Record) -> Iterable[Any]:
    match record:
        case Metrics():
            return dict.values(record.values)
        case Sample():
            return [*dict.values(record.rewards), record.total, record.advantage]
        case Rewards():
            return record.values
    return ()


def _number(name: str, value: Any) -> Any:
    if type(value) is not Deferred:
        return value
    try:
        return value.get()
    except Exception as error:
        logger.warning("%r could not be fetched from its device and is recorded as None: %s", name, error)
        return None
