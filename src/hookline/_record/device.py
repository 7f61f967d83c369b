"""Fetches values from a device without the training thread ever waiting for it.

`defer` copies the device values of a row with one launch for each dtype, after everything that the current stream has
been given so far, so a later change in place (an optimizer, the replay of a CUDA graph) does not change what is
recorded. On CUDA the copies go into a `Ring` of preallocated slots, from which many rows at a time are copied to pinned
memory, usually by the thread that writes them. A slot is reused once its number is on the host; a ring without a free
slot is replaced by a larger one, so memory is bounded by what is on its way.

JAX arrays cannot change, but a later step may donate them: they are gathered as well, and fetched by JAX's own
asynchronous copy. On devices without such copies (MPS), a row stays on the device until it is read.
"""

import contextlib
import ctypes
import functools
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hookline._engine.errors import OptionError
from hookline._engine.metrics import PLAIN, Deferred, Source, is_on_device


def defer_uniform(values: dict[str, Any]) -> dict[str, Any] | None:  # noqa: C901 - after a step a call costs 2 us
    """Do what `defer` does, at two thirds of its price, for the usual row of a loop on a GPU.

    That is one of CUDA scalars of one kind, and otherwise plain values.

    Returns:
        The row with its `Deferred` values, or None where it is not such a one.
    """
    if not _RINGS:  # nothing was logged from a CUDA device so far: `defer` makes the first ring
        return None
    torch = sys.modules.get("torch")
    kind: Any = next((kind for kind in map(type, values.values()) if kind not in PLAIN), None)
    # A distributed tensor (`to_local`) needs the checks that `defer` makes.
    if torch is None or kind is None or not issubclass(kind, torch.Tensor) or hasattr(kind, "to_local"):
        return None
    found: list[Any] = []
    dtype = device = None
    for value in values.values():
        if type(value) is kind:
            if value.dtype is not dtype or value.get_device() != device:
                if found or not value.is_cuda:
                    return None
                dtype, device = value.dtype, value.get_device()
            found.append(value)
        elif type(value) not in PLAIN:
            return None
    # One ring per stream: the stream's own order guarantees that a slot is read after it was written, without an event.
    ring = _RINGS.get((torch._C._cuda_getCurrentRawStream(device), device, dtype))
    if ring is None or torch._C._cuda_isCurrentStreamCapturing():  # `defer` makes a ring, or refuses the row
        return None
    try:
        source = ring.add(found)
    except RuntimeError:  # not all are 0-d: torch refuses to copy them
        return None
    if source is None:
        return None
    if len(found) == len(values):
        return dict(zip(values, [Deferred(source, index) for index in range(len(found))], strict=True))
    indices = itertools.count()
    return {n: Deferred(source, next(indices)) if type(v) is kind else v for n, v in values.items()}


def defer(*dicts: dict[Any, Any]) -> None:
    """Replace values on a device, in these dicts, by `Deferred` ones, and start fetching all of them."""
    # By dtype and device: where the values are (a dict and a key), and the values.
    tensors: dict[Any, tuple[list[tuple[dict[Any, Any], Any]], list[Any]]] = {}
    arrays: dict[Any, tuple[list[tuple[dict[Any, Any], Any]], list[Any]]] = {}
    places: list[tuple[dict[Any, Any], Any]] = []
    found: list[Any] = []
    kind = dtype = device = None
    for values in dicts:
        for key, value in values.items():
            # Attributes of tensors are slow, so most are only compared with the previous one. A CPU's device is -1.
            if type(value) is not kind or value.dtype is not dtype or value.get_device() != device:
                if type(value) in PLAIN or type(value) is Deferred or not is_on_device(value):
                    continue
                # JAX arrays have no `is_cpu`, and torch tensors on the CPU were sorted out above.
                if getattr(value, "is_cpu", True):
                    places, found = arrays.setdefault(_kind(value), ([], []))
                    kind = None
                else:
                    kind, dtype, device = type(value), value.dtype, value.get_device()
                    places, found = tensors.setdefault((dtype, device), ([], []))
            places.append((values, key))
            found.append(value)
    for places, found in tensors.values():
        _replace(places, _gather(found))
    for places, found in arrays.values():
        for begin, end in _pieces(len(found)):
            _replace(places[begin:end], _gather_arrays(found[begin:end]))


def _replace(places: list[tuple[dict[Any, Any], Any]], source: Source) -> None:
    for index, (values, key) in enumerate(places):
        values[key] = Deferred(source, index)


def _gather(tensors: list[Any]) -> Source:
    """Gather tensors of one device and dtype with one operation."""
    torch = sys.modules["torch"]
    # One look at all types suffices for nearly every row; attributes of single tensors are slow.
    if not {torch.Tensor, torch.nn.Parameter}.issuperset(map(type, tensors)):
        tensors = [_local(tensor) for tensor in tensors]
    if tensors[0].is_cuda:
        return _add_to_ring(torch, [tensor if tensor.ndim == 0 else tensor.reshape(()) for tensor in tensors])
    return LateCopy(_stack_tensors(torch, tensors))


def _stack_tensors(torch: Any, tensors: list[Any]) -> Any:
    return torch.stack([tensor.detach().reshape(()) for tensor in tensors])


def _local(tensor: Any) -> Any:
    """Return this process's part of a replicated distributed tensor: recording never runs a collective."""
    if not callable(getattr(tensor, "to_local", None)):
        return tensor
    if all(placement.is_replicate() for placement in tensor.placements):
        return tensor.to_local()
    raise OptionError(f"log(): a tensor is sharded over processes ({tensor.placements}); give its full_tensor().")


def _kind(array: Any) -> Any:
    """Return a key that JAX arrays share if one operation can gather them."""
    return (array.dtype, array.shape, array.sharding) if hasattr(array, "sharding") else id(array)


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    """Split a count into pieces of 32, 16, 8, ...: JAX compiles once for each number of arrays."""
    begin = 0
    while begin < count:
        end = begin + min(32, 1 << ((count - begin).bit_length() - 1))
        yield begin, end
        begin = end


def _gather_arrays(arrays: list[Any]) -> "ArrayCopy | ArrayRow":
    """Gather JAX arrays into one that no other code can donate or delete; no process waits for another."""
    jax = sys.modules.get("jax")
    if jax is None or not all(isinstance(array, jax.Array) for array in arrays):
        return ArrayCopy(arrays[0])
    return ArrayRow(_jax_stack()([a if a.is_fully_addressable else a.addressable_data(0) for a in arrays]))


@functools.cache
def _jax_stack() -> Callable[[list[Any]], Any]:
    jax = sys.modules["jax"]
    stack: Callable[[list[Any]], Any] = jax.jit(lambda arrays: jax.numpy.stack([a.reshape(()) for a in arrays]))
    return stack


class LateCopy:
    """Numbers that are copied when they are read, by the thread that reads them."""

    arrives = False

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self._numbers: Sequence[Any] | None = None

    def number(self, index: int) -> Any:
        """Return one of the numbers; waits for the device if necessary."""
        if self._numbers is None:
            self._numbers = self._tensor.tolist()
        return self._numbers[index]

    def ready(self) -> bool:
        """Return whether `number` would not wait."""
        return self._numbers is not None


class Ring:
    """Slots for numbers of one dtype on a CUDA device, filled by one stream and read by any thread.

    Positions increase over all laps: slots are filled up to ``_head``, their copies to the host are launched up to
    ``_copied``, and rows have their numbers up to ``_arrived``. A slot is free once its number has arrived.
    """

    SLOTS = 2048
    """The least number of slots. Few, so that their views stay in the processor's cache."""

    def __init__(self, torch: Any, like: Any, slots: int, stream: Any) -> None:
        with torch.inference_mode(False):  # inference tensors cannot be written to outside of inference mode
            self._table = torch.zeros(slots, dtype=like.dtype, device=like.device)
            # With an explicit device: torch.set_default_device() must not apply.
            self._host = torch.empty(slots, dtype=like.dtype, device="cpu", pin_memory=True)
            self._views = self._table.unbind(0)
        self.slots = slots
        self._torch, self._stream = torch, stream
        # One event is enough: a copy is launched only when the numbers of the one before have arrived.
        self._event = torch.cuda.Event()
        self._head = self._copied = self._arrived = 0
        self._advance_at = slots // 2
        self._pending: deque[RingRow] = deque()
        self.is_adding = False
        self._lock = threading.RLock()  # re-entrant: a signal handler may log, or read, in the middle of anything

    def add(self, tensors: list[Any]) -> "RingRow | None":
        """Copy 0-d tensors into the next slots; None if there are too few, or if it interrupts itself (a signal)."""
        with self._lock:
            if self.is_adding:
                return None
            self.is_adding, torch = True, self._torch
            try:
                start, width = self._head, len(tensors)
                offset = start % self.slots
                # So its numbers are one slice of the host's memory. The slots that are left out count as used.
                if offset + width > self.slots:  # a row does not wrap around
                    start, offset = start + self.slots - offset, 0
                end = start + width
                if end > self._advance_at:  # so that slots become free even if no thread reads the numbers
                    self._advance()
                if end - self._arrived > self.slots:
                    self._advance()
                    # Waiting would be a synchronization of the training thread: the caller makes a larger ring instead.
                    if end - self._arrived > self.slots:
                        return None
                views = self._views[offset : offset + width]
                if torch.is_grad_enabled():  # as torch.no_grad() does, at a fifth of its price
                    torch._C._set_grad_enabled(False)
                    try:
                        torch._foreach_copy_(views, tensors)
                    finally:
                        torch._C._set_grad_enabled(True)
                else:
                    torch._foreach_copy_(views, tensors)
                row = RingRow(self, start, end)
                self._pending.append(row)
                # After the launch: `_advance` copies what is below the head, later on the same stream.
                self._head = end
                return row
            finally:
                self.is_adding = False

    def advance(self) -> None:
        """Give rows the numbers that have arrived, and launch the copy of later ones. Never waits for the device."""
        with self._lock:
            self._advance()

    def wait_for(self, row: "RingRow") -> None:
        """Wait until a row has its numbers."""
        while True:
            self.advance()
            if row.numbers is not None:
                return
            with relaxed_capture_mode():
                self._event.synchronize()  # without the lock: a thread that logs must not wait for the device

    def _advance(self) -> None:
        # A signal handler that logs or reads may run this whole method in the middle of it (at a call; nothing is
        # interrupted between calls). So positions only advance from where they were read, and numbers are complete
        # before a row gets them: doing a part twice has the same result.
        arrived, copied = self._arrived, self._copied
        self._advance_at = self._head + self.slots // 2
        with relaxed_capture_mode():
            if copied > arrived:
                # Without a wait: the training thread runs this, too.
                if not self._event.query():
                    return
                begin = arrived % self.slots
                numbers = self._host[begin : begin + copied - arrived].tolist()
                while self._pending and self._pending[0].end <= copied:
                    row = self._pending[0]
                    if row.numbers is None:
                        row.numbers = numbers[row.start - arrived : row.end - arrived]
                    row.ring = None  # the row may outlive the ring, if that is replaced
                    if self._pending and self._pending[0] is row:
                        self._pending.popleft()
                if self._arrived == arrived:
                    self._arrived = copied
            copied, head = self._copied, self._head
            if head > copied:
                begin = copied % self.slots
                count = min(head - copied, self.slots - begin)  # contiguous: the rest is copied next time
                # On the stream that filled the slots, not this thread's: the copy is ordered after them.
                with self._torch.no_grad(), self._torch.cuda.stream(self._stream):
                    sent = self._table[begin : begin + count]
                    self._host[begin : begin + count].copy_(sent, non_blocking=True)
                    self._event.record(self._stream)
                if self._copied == copied:
                    self._copied = copied + count


@contextlib.contextmanager
def relaxed_capture_mode() -> Iterator[None]:
    """Allow queries of a device that would otherwise break the capture of a CUDA graph on another thread."""
    exchange = _exchange_capture_mode()
    if exchange is None:
        yield
        return
    # Exchanged, not set: the call returns the earlier mode, which the second call puts back.
    mode = ctypes.c_int(2)  # cudaStreamCaptureModeRelaxed
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@functools.cache
def _exchange_capture_mode() -> Any:
    """Return the function of the CUDA runtime that torch has loaded, or None."""
    version = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    if version is None:
        return None
    with contextlib.suppress(OSError, AttributeError):
        # Only the runtime that torch has loaded: the mode belongs to it, and a second one must not be loaded.
        library = ctypes.CDLL(f"libcudart.so.{version.partition('.')[0]}", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return library.cudaThreadExchangeStreamCaptureMode
    return None


class RingRow:
    """The numbers of one row, in a ring until they have arrived."""

    __slots__ = ("end", "numbers", "ring", "start")
    arrives = True

    def __init__(self, ring: Ring, start: int, end: int) -> None:
        self.ring: Ring | None = ring
        self.start, self.end = start, end
        self.numbers: list[Any] | None = None

    def number(self, index: int) -> Any:
        """Return one of the numbers; waits for the device if necessary."""
        # A row gets its numbers before it loses its ring, so without a ring the next look finds them.
        while (numbers := self.numbers) is None:
            if (ring := self.ring) is not None:
                ring.wait_for(self)
        return numbers[index]

    def ready(self) -> bool:
        """Return whether the numbers have arrived; launches their copy if that has not happened."""
        if self.numbers is None and (ring := self.ring) is not None:
            ring.advance()
        return self.numbers is not None


_RINGS: dict[Any, Ring] = {}
"""The current ring for each stream, device and dtype."""
_MAX_RINGS = 64
_WITHOUT_SLOTS = frozenset({"torch.uint16", "torch.uint32", "torch.uint64"})
"""Dtypes without a `torch._foreach_copy_`."""


def _add_to_ring(torch: Any, tensors: list[Any]) -> Source:
    if torch._C._cuda_isCurrentStreamCapturing():  # each replay would write into slots that other rows use by then
        raise OptionError("log() while a CUDA graph is captured: log the graph's outputs after its replay.")
    first = tensors[0]
    device = first.get_device()
    # The stream's number costs a fraction of what its object does.
    key = (torch._C._cuda_getCurrentRawStream(device), device, first.dtype)
    ring = _RINGS.get(key)
    row = ring.add(tensors) if ring is not None else None
    if ring is None and str(first.dtype) in _WITHOUT_SLOTS:
        return LateCopy(_stack_tensors(torch, tensors))
    while row is None:
        stream, width = torch.cuda.current_stream(device), len(tensors)
        # The interrupted `add` holds the current ring, and continues only after the handler has returned.
        if ring is not None and ring.is_adding:  # in a signal handler: a ring for this row alone
            ring = Ring(torch, first, width, stream)
        else:
            if len(_RINGS) >= _MAX_RINGS:
                _RINGS.clear()  # a program with ever new streams; rows on their way keep their ring
            slots = max(Ring.SLOTS if ring is None else 2 * ring.slots, 4 * width)
            ring = _RINGS[key] = Ring(torch, first, slots, stream)
        row = ring.add(tensors)
    return row


class ArrayCopy:
    """The number in a JAX array, copied by JAX."""

    arrives = True

    def __init__(self, array: Any) -> None:
        array.copy_to_host_async()
        self._array = array

    def number(self, index: int) -> Any:
        """Return the number; waits for the device if necessary."""
        return self._array.item()

    def ready(self) -> bool:
        """Return whether it has arrived."""
        return bool(self._array.is_ready())


class ArrayRow(LateCopy):
    """Numbers in one JAX array, copied by JAX."""

    arrives = True

    def __init__(self, array: Any) -> None:
        array.copy_to_host_async()
        super().__init__(array)

    def ready(self) -> bool:
        """Return whether they have arrived."""
        return self._numbers is not None or bool(self._tensor.is_ready())
