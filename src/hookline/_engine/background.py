"""Work off the training thread: worker queues, snapshots, a watch on slow calls, and a ticker.

- `WorkerQueue`: one per background or async subscriber; its calls run in order, on a thread (``background = True``) or
  on one shared event loop (``async def``). A full queue drops calls of repeating moments and counts them, because it
  may neither stall training nor grow without bound. Starts, ends, checkpoints and failures are few and never dropped.
- Snapshots: a queued call gets the counters and metrics of the moment that fired. Models, tensors and batches are
  passed by reference.
- `SlowCalls`: warns about a call that takes long while it is still running.
- `Ticker`: calls a function at a fixed interval on a thread of its own.

All threads are daemons: none keeps a program from ending.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from hookline._engine.metrics import MetricsRow, copied, find_metric

if TYPE_CHECKING:
    import asyncio


logger = logging.getLogger("hookline")


class Joinable(Protocol):
    """The part of a thread that the engine uses."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it ends, at most ``timeout`` seconds."""
        ...

    def is_alive(self) -> bool:
        """Return whether it is running."""
        ...


def start_thread(target: Callable[[], None], name: str) -> Joinable:
    """Start a daemon thread: a subscriber that hangs must not keep the process from ending."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


StartThread = Callable[[Callable[[], None], str], Joinable]


class WorkerQueue(ABC):
    """The calls of one subscriber, run in order; at most ``size`` of those that may be dropped wait or run."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.dropped = 0
        self.error: BaseException | None = None
        self._size = size
        # No lock: each is written by one thread only, the first by the loop's, the second by the queue's.
        self._submitted = 0
        self._done = 0

    def submit(self, job: Callable[[], Any], *, droppable: bool) -> None:
        """Queue a job; if the queue is full and the job may be dropped, drop and count it."""
        # The running job counts as well: it is what makes the queue full while a subscriber hangs.
        if not droppable or self.unfinished() < self._size:
            self._submitted += 1
            self._put(job)
            return
        if not self.dropped:
            logger.warning(
                "%s is slower than the loop: its queue is full, so some of its calls are dropped. "
                "Give it a cadence (every=) or less to do.",
                self.name,
            )
        self.dropped += 1

    def raise_pending(self) -> None:
        """Raise, once, the exception of a subscriber whose errors propagate."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def unfinished(self) -> int:
        """Return how many jobs wait or run."""
        return self._submitted - self._done

    @property
    def stopping(self) -> bool:
        """Whether running jobs are being cancelled."""
        return False

    @abstractmethod
    def is_current(self) -> bool:
        """Return whether the caller runs on this queue, and so must not wait for it."""

    @abstractmethod
    def _put(self, job: Callable[[], Any]) -> None:
        """Append a job."""

    @abstractmethod
    def drain(self, seconds: float) -> None:
        """Wait for all submitted jobs, at most this long."""


class ThreadQueue(WorkerQueue):
    """Runs calls on a thread that the first call starts."""

    def __init__(self, name: str, size: int, start_thread: StartThread) -> None:
        super().__init__(name, size)
        self._start_thread = start_thread
        self._jobs: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._thread: Joinable | None = None
        # A thread must not end between the check that it is alive and the job that relies on it. Reentrant: a
        # signal handler may fire a moment on the same thread.
        self._ending = threading.RLock()
        self._here = threading.local()

    def is_current(self) -> bool:
        return getattr(self._here, "runs", False)

    def _put(self, job: Callable[[], Any]) -> None:
        with self._ending:
            self._jobs.put(job)
            if self._thread is None or not self._thread.is_alive():
                self._thread = self._start_thread(self._run, f"hookline-{self.name}")

    def drain(self, seconds: float) -> None:
        # A local name: the thread clears the attribute when it ends.
        thread = self._thread
        if thread is not None and thread.is_alive():
            # Jobs run in order, so the thread ends after all that were queued before. Waiting for its end needs no
            # further lock, and a closed collection leaves no idle thread. The price is a new thread if calls follow.
            self._jobs.put(None)
            thread.join(seconds)

    def _run(self) -> None:
        self._here.runs = True
        try:
            while True:
                job = self._jobs.get()
                if job is not None:
                    # A job does not raise: DeferredCall catches everything. Otherwise `_done` would fall behind for
                    # good.
                    job()
                    self._done += 1
                    continue
                with self._ending:
                    if self._jobs.empty():  # otherwise the drain timed out and more jobs came after it
                        self._thread = None
                        return
        finally:
            self._here.runs = False


class EventLoop:
    """An event loop on a thread of its own, shared by all async subscribers of a collection."""

    def __init__(self, start_thread: StartThread) -> None:
        self._start_thread = start_thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Joinable | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.stopping = False

    def call(self, function: Callable[[], None]) -> None:
        """Run ``function`` on the loop, which is started if necessary."""
        import asyncio  # takes 30 ms, which only users of async moments pay

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = self._start_thread(self._loop.run_forever, "hookline-async")
        self._loop.call_soon_threadsafe(function)

    def is_current(self) -> bool:
        """Return whether the caller runs on the loop."""
        if self._loop is None:
            return False
        import asyncio

        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine; call it on the loop only. The loop itself keeps weak references to tasks."""
        if self._loop is not None:
            task = self._loop.create_task(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Cancel running tasks and end the loop and its thread; a later call starts a new one."""
        if self._loop is None or self._thread is None:
            return
        loop, thread = self._loop, self._thread
        # Before the cancellation: a call that is cancelled now has not failed and must not be reported as failed.
        self.stopping = True
        loop.call_soon_threadsafe(lambda: loop.create_task(self._finish(loop)))
        # A task that ignores its cancellation must not keep the program from ending. Its loop cannot be closed while it
        # runs; it is abandoned with its daemon thread, and a later call starts another loop.
        thread.join(1.0)
        if not thread.is_alive():
            loop.close()
        self._loop = self._thread = None
        self.stopping = False

    async def _finish(self, loop: "asyncio.AbstractEventLoop") -> None:
        import asyncio

        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        # Exceptions are returned: the first one must not keep the loop from being stopped.
        await asyncio.gather(*tasks, return_exceptions=True)
        loop.stop()


class AsyncQueue(WorkerQueue):
    """Awaits calls one after another on the shared event loop."""

    def __init__(self, name: str, size: int, loop: EventLoop) -> None:
        super().__init__(name, size)
        self._loop = loop
        self._jobs: deque[Callable[[], Coroutine[Any, Any, None]]] = deque()
        self._working = False

    @property
    def stopping(self) -> bool:
        return self._loop.stopping

    def is_current(self) -> bool:
        return self._loop.is_current()

    def _put(self, job: Callable[[], Any]) -> None:
        async def counted() -> None:
            await job()
            self._done += 1

        self._append(counted)

    def drain(self, seconds: float) -> None:
        # Without work there is nothing to wait for, and appending would start the event loop.
        if self.unfinished():
            reached = threading.Event()

            async def reach() -> None:
                reached.set()

            self._append(reach)
            reached.wait(seconds)

    def _append(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # No lock: appending to a deque is atomic, and `_working` is read and written on the event loop only.
        self._jobs.append(job)
        self._loop.call(self._wake)

    def _wake(self) -> None:
        if self._jobs and not self._working:
            self._working = True
            self._loop.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._jobs:
                await self._jobs.popleft()()
        except BaseException:  # cancelled at the end of the run, after waiting jobs were reported as unfinished
            # Reset, or a queue that is used again would look full.
            self._jobs.clear()
            self._submitted = self._done
            raise
        finally:
            self._working = False


class LoopSnapshot:
    """A loop with the counters and metrics of a moment; everything else (`log`, `request_stop`, ...) is the loop's."""

    _DATA = ("step", "current_step", "num_steps", "total_steps", "epoch", "current_epoch", "num_epochs", "in_step")

    def __init__(self, loop: Any) -> None:
        # Through vars(): assignment goes to the loop, see `__setattr__`.
        vars(self).update({name: getattr(loop, name) for name in self._DATA if hasattr(loop, name)})
        for name in ("metrics", "validation_metrics"):
            vars(self)[name] = copied(getattr(loop, name, {}))
        vars(self)["_loop"] = loop

    def get_metric(self, name: str) -> Any:
        """Return the value of a metric at the moment, or None."""
        return find_metric(self.metrics, name)

    def log(self, *args: Any, step: int | None = None, **values: Any) -> None:
        """Record metrics at the step of the snapshot rather than the current one."""
        self._loop.log(*args, step=self._step_of_moment() if step is None else step, **values)

    def log_samples(self, rows: Iterable[Mapping[str, Any]], *, step: int | None = None) -> None:
        """Record samples at the step of the snapshot rather than the current one."""
        self._loop.log_samples(rows, step=self._step_of_moment() if step is None else step)

    def _step_of_moment(self) -> int:
        """The step during which the moment fired, or the last one if it fired between two."""
        return int(self.step) + bool(vars(self).get("in_step", False))

    def __getattr__(self, name: str) -> Any:
        # Not self._loop: on an object without it, such as one being unpickled, that would recurse without end.
        return getattr(vars(self)["_loop"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loop, name, value)


def snapshot_subject(subject: Any) -> Any:
    """Snapshot a moment's first argument: by its own `snapshot()` if it has one, otherwise as a loop."""
    own = getattr(type(subject), "snapshot", None)
    return own(subject) if callable(own) else LoopSnapshot(subject)


def snapshot(value: Any) -> Any:
    """Copy plain dicts and lists; return anything else unchanged."""
    # Exact types: a batch may be a subclass of dict with its own constructor, and copying its contents may be
    # expensive.
    if type(value) is MetricsRow:
        return value.copy()
    if type(value) is dict:
        return {key: snapshot(item) for key, item in value.items()}
    return list(value) if type(value) is list else value


SLOW_SECONDS = 5.0
"""The duration of a call that is warned about; the warning is repeated after twice the time."""
LOOK_SECONDS = 1.0
IDLE_SECONDS = 60.0
"""How long the watching thread waits for another call before it ends."""


class _Call:
    __slots__ = ("advice", "began", "name", "step", "warn_after")

    def __init__(self, name: str, step: int, advice: str) -> None:
        self.name, self.step, self.advice = name, step, advice
        self.began = time.monotonic()
        self.warn_after = SLOW_SECONDS


class SlowCalls:
    """Watches all running calls of a process on one thread, once a second. A call costs two dict operations."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def begin(self, owner: Any, name: str, step: int, advice: str) -> None:
        """Watch a call.

        Args:
            owner: The called object; it has one call at a time.
            name, step, advice: For the warning.
        """
        # No lock: single operations on a dict are atomic, and this is on the path of every logged step.
        self._calls[id(owner)] = _Call(name, step, advice)
        if self._thread is None or not self._thread.is_alive():  # a forked child has the object, not the thread
            self._wake.clear()
            self._thread = threading.Thread(target=self._watch, name="hookline-slow-calls", daemon=True)
            self._thread.start()

    def end(self, owner: Any) -> None:
        """Stop watching the call, which has returned or raised."""
        self._calls.pop(id(owner), None)

    def close(self) -> None:
        """End the thread unless a call is running; another call starts it again."""
        self._wake.set()

    def _watch(self) -> None:
        last_seen = time.monotonic()
        while True:
            woken = self._wake.wait(LOOK_SECONDS)
            self._wake.clear()
            now = time.monotonic()
            # A copy: calls begin and end on other threads meanwhile.
            for call in list(self._calls.values()):
                last_seen = now
                seconds = now - call.began
                if seconds >= call.warn_after:
                    # Doubled, so that a call that hangs overnight is a dozen lines, not thousands.
                    call.warn_after = 2 * seconds
                    logger.warning(
                        "%s has been running for %.0f s at step %d. %s", call.name, seconds, call.step, call.advice
                    )
            if not self._calls and (woken or now - last_seen >= IDLE_SECONDS):
                # Cleared before the last check: a call that begins now is either seen here or starts another thread.
                self._thread = None
                if not self._calls:
                    return
                self._thread = threading.current_thread()


SLOW_CALLS = SlowCalls()

CLOSE_SECONDS = 5.0
"""How long `Ticker.close` waits for a running call."""


class Ticker:
    """Calls a function at a fixed interval until it is closed. The first exception is logged and ends nothing.

    Args:
        name: The name of the thread, and in the log.
        seconds: The time before the first call and between two calls.
    """

    def __init__(self, name: str, seconds: float, action: Callable[[], object]) -> None:
        self.name, self.seconds, self._action = name, seconds, action
        self._ended = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name=f"hookline-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread after a running call. May be called again, and by the function itself."""
        self._ended.set()
        # A thread cannot join itself. The limit is for an action that hangs: it must not hold up the end of the run.
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(self.seconds):
            try:
                self._action()
            except Exception:
                # Once: a failing action would otherwise log a traceback at every tick.
                if not self._has_failed:
                    self._has_failed = True
                    logger.exception("%s failed on its thread; it continues.", self.name)
