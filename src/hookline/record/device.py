"""Values on a device, fetched without the training thread ever waiting for it.

`defer` gathers the device values of a row by one operation on their device, behind what the device
has been told to do so far; so a later change in place does not change what is recorded. On CUDA the
rows gather in a `Block`, and whoever looks for the numbers, usually the thread that writes, has many
rows copied at a time to pinned memory. Arrays of JAX cannot change, but a later step may donate them:
they are gathered as well, and fetched by JAX's own asynchronous copy. On devices without such
copies (MPS) a row stays there until it is read.

The hot path is `defer`: one look at each value, one launch for each kind of number.
"""

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hookline.core.errors import OptionError
from hookline.core.values import Deferred, Source, is_on_device


def defer(*dicts: dict[Any, Any]) -> None:
    """Replace, in these dicts, what is on a device by `Deferred` values, and start fetching all of it."""
    places: dict[Any, list[tuple[dict[Any, Any], Any, Any]]] = {}
    arrays: dict[Any, list[tuple[dict[Any, Any], Any, Any]]] = {}
    for values in dicts:
        for key, value in values.items():
            if type(value) is Deferred or not is_on_device(value):
                continue
            if hasattr(value, "copy_to_host_async"):
                arrays.setdefault(_kind(value), []).append((values, key, value))
            else:
                places.setdefault((value.dtype, value.get_device()), []).append((values, key, value))
    gathered: list[tuple[list[tuple[dict[Any, Any], Any, Any]], Callable[[list[Any]], Source]]]
    gathered = [(same, _gather) for same in places.values()]
    gathered += [(part, _gather_arrays) for same in arrays.values() for part in _parts(same)]
    for same, gather in gathered:
        source = gather([value for _, _, value in same])
        for index, (values, key, _) in enumerate(same):
            values[key] = Deferred(source, index)


def _gather(tensors: list[Any]) -> "LateCopy | BlockRow":
    """Tensors of one device and one kind, gathered by one operation."""
    torch = sys.modules["torch"]
    with torch.no_grad():
        if not frozenset({torch.Tensor, torch.nn.Parameter}).issuperset(map(type, tensors)):
            tensors = [_local(tensor) for tensor in tensors]
        flat = [tensor if tensor.ndim == 0 else tensor.reshape(()) for tensor in tensors]
        return _add_to_block(torch, flat) if tensors[0].is_cuda else LateCopy(torch.stack(flat))


def _local(tensor: Any) -> Any:
    """This process's part of a distributed tensor, where that is all of it; nobody here runs a collective."""
    if not callable(getattr(tensor, "to_local", None)):
        return tensor
    if all(placement.is_replicate() for placement in tensor.placements):
        return tensor.to_local()
    raise OptionError(f"log(): a tensor is spread over processes ({tensor.placements}); give its full_tensor().")


def _kind(array: Any) -> Any:
    """What arrays of JAX have in common that can be gathered by one operation."""
    return (array.dtype, array.shape, array.sharding) if hasattr(array, "sharding") else id(array)


def _parts(arrays: list[Any]) -> Iterator[list[Any]]:
    """The list in pieces of 32, 16, 8, ...: JAX compiles for each number of arrays."""
    while arrays:
        size = min(32, 1 << (len(arrays).bit_length() - 1))
        yield arrays[:size]
        arrays = arrays[size:]


def _gather_arrays(arrays: list[Any]) -> "ArrayCopy | ArrayRow":
    """Arrays of JAX as one that nobody else can donate or delete; no process waits for another."""
    jax = sys.modules.get("jax")
    if jax is None or not all(isinstance(array, jax.Array) for array in arrays):
        return ArrayCopy(arrays[0])
    return ArrayRow(_stack()([a if a.is_fully_addressable else a.addressable_data(0) for a in arrays]))


@functools.cache
def _stack() -> Callable[[list[Any]], Any]:
    jax = sys.modules["jax"]
    stack: Callable[[list[Any]], Any] = jax.jit(lambda arrays: jax.numpy.stack([a.reshape(()) for a in arrays]))
    return stack


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
    NUMBERS = 16384
    """How many numbers a block has room for: with wide rows (the rewards of a batch) it has fewer of them."""

    def __init__(self, torch: Any, like: Any, width: int, stream: Any) -> None:
        self._size = max(1, min(self.ROWS, self.NUMBERS // width))
        with torch.inference_mode(False):  # else it could not be written to outside of it
            self._table = torch.empty((self._size, width), dtype=like.dtype, device=like.device)
            # The device is said because torch.set_default_device() would be asked for it.
            self._host = torch.empty((self._size, width), dtype=like.dtype, device="cpu", pin_memory=True)
            self._rows = self._table.unbind(0)
        self._torch, self._stream = torch, stream
        self._event = torch.cuda.Event()
        self._numbers: list[Sequence[Any]] = []
        self._used = self._copied = 0
        self._adding = False
        self._lock = threading.RLock()  # re-entrant: a signal handler may log, or read, in the middle of anything

    def add(self, tensors: list[Any]) -> "BlockRow | None":
        """The tensors as a row of the block; None when it is full, or interrupted in this very place."""
        with self._lock:
            row = self._used
            if row == self._size or self._adding:
                return None
            self._adding = True
            try:
                self._torch.stack(tensors, out=self._rows[row])
                self._used = row + 1
            finally:
                self._adding = False
        return BlockRow(self, row)

    def has(self, row: int) -> bool:
        """Whether a row has arrived; if it is not even on its way, it is sent."""
        with self._lock:
            self._take_in()
            return row < len(self._numbers)

    def row(self, row: int) -> Sequence[Any]:
        """The numbers of a row, waiting for the device if need be."""
        while True:
            with self._lock:
                self._take_in()
                if row < len(self._numbers):
                    return self._numbers[row]
            with beside_captures():
                self._event.synchronize()  # without the lock: who logs meanwhile must not wait for the device

    def _take_in(self) -> None:
        """Read the rows whose copy has arrived, and send those that came since. Interrupted, it may do it twice."""
        arrived, copied, used = len(self._numbers), self._copied, self._used
        with beside_captures():
            if copied > arrived:
                if not self._event.query():
                    return
                self._numbers[arrived:copied] = self._host[arrived:copied].tolist()
            if used > copied:
                with self._torch.no_grad(), self._torch.cuda.stream(self._stream):
                    self._host[copied:used].copy_(self._table[copied:used], non_blocking=True)
                    self._event.record(self._stream)
                self._copied = used


@contextlib.contextmanager
def beside_captures() -> Iterator[None]:
    """Ask a device how far it is without breaking the capture of a CUDA graph on another thread."""
    exchange = _exchange_capture_mode()
    if exchange is None:
        yield
        return
    mode = ctypes.c_int(2)  # cudaStreamCaptureModeRelaxed
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@functools.cache
def _exchange_capture_mode() -> Any:
    """The function of the CUDA runtime that torch has loaded, or None."""
    version = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    if version is None:
        return None
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(f"libcudart.so.{version.partition('.')[0]}", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return library.cudaThreadExchangeStreamCaptureMode
    return None


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
_MOST_BLOCKS = 64


def _add_to_block(torch: Any, tensors: list[Any]) -> BlockRow:
    first = tensors[0]
    device = first.get_device()
    # The number of the stream is had in a fraction of the time that its object takes.
    key = (torch._C._cuda_getCurrentRawStream(device), device, first.dtype, len(tensors))
    block = _BLOCKS.get(key)
    row = block.add(tensors) if block is not None else None
    if row is None and torch.cuda.is_current_stream_capturing():
        raise OptionError("log() while a CUDA graph is captured: log what the graph gives, after its replay.")
    if row is None and len(_BLOCKS) >= _MOST_BLOCKS:
        _BLOCKS.clear()  # rows of ever other widths; what is on its way keeps its block
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


class ArrayRow(LateCopy):
    """Numbers in one array of JAX, copied by JAX."""

    arrives = True

    def __init__(self, array: Any) -> None:
        array.copy_to_host_async()
        super().__init__(array)

    def ready(self) -> bool:
        """Whether they are there."""
        return self._numbers is not None or bool(self._tensor.is_ready())
