"""Moments off the training thread: one lane per subscriber, in order, bounded, drained at the end.

A lane is a thread of its own (``background = True``) or a queue on one shared event loop
(``async def``). A lane that is full drops calls of repeating moments and counts them, because it may
neither stall the training nor grow without bound; starts, ends, checkpoints and failures are few
and always get in. What is handed over is a snapshot: the counters and metrics are those of the
moment that fired; models, tensors and batches are handed over as they are.

`SlowCalls`: warns about a call that takes long while it is still running.

One thread watches all calls of a process. It is started by the first one, looks once a second, and ends when nothing
is watched any more; a call itself costs two entries in a dict. A warning is repeated after twice the time.

`Ticker`: calls a function at a fixed pace on a thread of its own, until it is closed.

An exception of the function is logged the first time and does not end the thread. The thread is a
daemon's: it never keeps a program from ending.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from hookline._engine.errors import OptionError
from hookline._engine.metrics import MetricsRow, copied, find_metric
from hookline._engine.policy import Joinable, Policy

if TYPE_CHECKING:
    import asyncio


logger = logging.getLogger("hookline")


class WorkerQueue(ABC):
    """A place where one subscriber's calls wait and run in order."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self.dropped = 0
        self.error: BaseException | None = None
        self._policy = policy
        # Each is written by one thread only: the first by the loop's, the second by the lane's.
        self._submitted = 0
        self._done = 0

    def submit(self, job: Callable[[], Any], *, droppable: bool) -> None:
        """Take a job, or drop and count it when the lane is full and the job may be dropped."""
        if not droppable or self.undone() < self._policy.queue_size:
            self._submitted += 1
            self.take(job)
            return
        if not self.dropped:
            logger.warning(
                "%s is slower than the loop: its queue is full, so some of its calls are dropped. "
                "Give it a cadence (every=) or less to do.",
                self.name,
            )
        self.dropped += 1

    def raise_waiting(self) -> None:
        """Raise, once, the exception of a subscriber whose errors propagate."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def undone(self) -> int:
        """How many jobs wait or are under way."""
        return self._submitted - self._done

    @property
    def stopping(self) -> bool:
        """Whether what still runs is being ended."""
        return False

    @abstractmethod
    def is_current(self) -> bool:
        """Whether who asks is on the thread that makes this lane's calls, and so must not wait for them."""

    @abstractmethod
    def take(self, job: Callable[[], Any]) -> None:
        """Put a job at the end of the queue."""

    @abstractmethod
    def drain(self, seconds: float) -> None:
        """Wait for what was submitted, but no longer than this."""


class ThreadQueue(WorkerQueue):
    """One thread that runs one subscriber's calls in order; it is started by the first of them."""

    def __init__(self, name: str, policy: Policy) -> None:
        super().__init__(name, policy)
        self._jobs: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._thread: Joinable | None = None
        self._leaving = threading.RLock()  # a thread that leaves, and a job that comes, must know of each other
        self._here = threading.local()

    def is_current(self) -> bool:
        return getattr(self._here, "runs", False)

    def take(self, job: Callable[[], Any]) -> None:
        with self._leaving:
            self._jobs.put(job)
            if self._thread is None or not self._thread.is_alive():
                self._thread = self._policy.start_thread(self._run, f"hookline-{self.name}")

    def drain(self, seconds: float) -> None:
        thread = self._thread
        if thread is not None and thread.is_alive():
            self._jobs.put(None)
            thread.join(seconds)

    def _run(self) -> None:
        self._here.runs = True
        try:
            while not self._leaves(job := self._jobs.get()):
                if job is not None:
                    job()
                    self._done += 1
        finally:
            self._here.runs = False

    def _leaves(self, job: Callable[[], Any] | None) -> bool:
        """Whether the thread is to end: not where a drain ran out of time and more came behind it."""
        if job is not None:
            return False
        with self._leaving:
            if self._jobs.empty():
                self._thread = None
                return True
        return False


class EventLoop:
    """One managed event loop in one thread, shared by all async subscribers of a collection."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Joinable | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.stopping = False

    def call(self, function: Callable[[], None]) -> None:
        """Run ``function`` on the loop, starting it first if need be."""
        import asyncio  # 30 ms that only users of async moments pay

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = self._policy.start_thread(self._loop.run_forever, "hookline-async")
        self._loop.call_soon_threadsafe(function)

    def is_current(self) -> bool:
        """Whether who asks is called by the loop."""
        if self._loop is None:
            return False
        import asyncio

        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine; only from within the loop, which itself keeps but weak references to tasks."""
        if self._loop is not None:
            task = self._loop.create_task(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Cancel what still runs, end the loop and its thread; a later call starts a fresh one."""
        if self._loop is None or self._thread is None:
            return
        loop, thread = self._loop, self._thread
        self.stopping = True
        loop.call_soon_threadsafe(lambda: loop.create_task(self._finish(loop)))
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
        await asyncio.gather(*tasks, return_exceptions=True)
        loop.stop()


class AsyncQueue(WorkerQueue):
    """One async subscriber's calls, awaited one after another on the shared event loop."""

    def __init__(self, name: str, policy: Policy, loop: EventLoop) -> None:
        super().__init__(name, policy)
        self._loop = loop
        self._jobs: deque[Callable[[], Coroutine[Any, Any, None]]] = deque()
        self._working = False

    @property
    def stopping(self) -> bool:
        return self._loop.stopping

    def is_current(self) -> bool:
        return self._loop.is_current()

    def take(self, job: Callable[[], Any]) -> None:
        async def counted() -> None:
            await job()
            self._done += 1

        self._append(counted)

    def drain(self, seconds: float) -> None:
        if self.undone():
            reached = threading.Event()

            async def reach() -> None:
                reached.set()

            self._append(reach)
            reached.wait(seconds)

    def _append(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
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
        except BaseException:  # cancelled at the end of the run: what still waits was reported as undone
            self._jobs.clear()
            self._submitted = self._done
            raise
        finally:
            self._working = False


class LoopSnapshot:
    """A loop as it was when a moment fired; what is not data (`log`, `request_stop`, ...) is the loop's own."""

    _DATA = ("step", "current_step", "num_steps", "total_steps", "epoch", "current_epoch", "num_epochs", "in_step")

    def __init__(self, loop: Any) -> None:
        vars(self).update({name: getattr(loop, name) for name in self._DATA if hasattr(loop, name)})
        for name in ("metrics", "validation_metrics"):
            vars(self)[name] = copied(getattr(loop, name, {}))
        vars(self)["_loop"] = loop

    def get_metric(self, name: str) -> Any:
        """The value that a metric had then, or None."""
        return find_metric(self.metrics, name)

    def log(self, *args: Any, step: int | None = None, **values: Any) -> None:
        """Record metrics at the step of the snapshot rather than at the one under way."""
        self._loop.log(*args, step=self._under_way() if step is None else step, **values)

    def log_samples(self, rows: Iterable[Mapping[str, Any]], *, step: int | None = None) -> None:
        """Record samples at the step of the snapshot rather than at the one under way."""
        self._loop.log_samples(rows, step=self._under_way() if step is None else step)

    def _under_way(self) -> int:
        """The step that the moment fired in, or the last one if it fired between two."""
        return int(self.step) + bool(vars(self).get("in_step", False))

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_loop"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loop, name, value)


def snapshot_subject(subject: Any) -> Any:
    """A moment's first argument as it is now: what has its own `snapshot()` gives it, a loop is wrapped."""
    own = getattr(type(subject), "snapshot", None)
    return own(subject) if callable(own) else LoopSnapshot(subject)


def snapshot(value: Any) -> Any:
    """A further argument as it is now: plain dicts and lists are copied, the rest is handed over as it is."""
    if type(value) is MetricsRow:
        return value.copy()
    if type(value) is dict:
        return {key: snapshot(item) for key, item in value.items()}
    return list(value) if type(value) is list else value


SLOW_SECONDS = 5.0
"""After how long a call is warned about."""
LOOK_SECONDS = 1.0
IDLE_SECONDS = 60.0
"""How long the thread waits for another call before it ends."""


class _Call:
    __slots__ = ("advice", "began", "name", "step", "warn_after")

    def __init__(self, name: str, step: int, advice: str) -> None:
        self.name, self.step, self.advice = name, step, advice
        self.began = time.monotonic()
        self.warn_after = SLOW_SECONDS


class SlowCalls:
    """The calls that are under way."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def begin(self, owner: Any, name: str, step: int, advice: str) -> None:
        """Watch a call from now on.

        Args:
            owner: Who is called; it has one call under way at a time.
            name: What it is called in the warning.
            step: The step that it is called for.
            advice: What to do about it, for the warning.
        """
        self._calls[id(owner)] = _Call(name, step, advice)
        if self._thread is None or not self._thread.is_alive():  # a forked child has the object, not the thread
            self._wake.clear()
            self._thread = threading.Thread(target=self._watch, name="hookline-slow-calls", daemon=True)
            self._thread.start()

    def end(self, owner: Any) -> None:
        """The call has returned, or raised."""
        self._calls.pop(id(owner), None)

    def close(self) -> None:
        """End the thread, unless a call is under way; another call starts it again."""
        self._wake.set()

    def _watch(self) -> None:
        last_seen = time.monotonic()
        while True:
            woken = self._wake.wait(LOOK_SECONDS)
            self._wake.clear()
            now = time.monotonic()
            for call in list(self._calls.values()):
                last_seen = now
                seconds = now - call.began
                if seconds >= call.warn_after:
                    call.warn_after = 2 * seconds
                    logger.warning(
                        "%s has been running for %.0f s at step %d. %s", call.name, seconds, call.step, call.advice
                    )
            if not self._calls and (woken or now - last_seen >= IDLE_SECONDS):
                # Unset before the last look: a call that begins now either is seen here or starts another thread.
                self._thread = None
                if not self._calls:
                    return
                self._thread = threading.current_thread()


SLOW_CALLS = SlowCalls()
"""Those of this process."""


CLOSE_SECONDS = 5.0
"""How long `Ticker.close` waits for a call that is under way."""


def require_seconds(name: str, value: float) -> float:
    """A pace or a time limit: a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise OptionError(f"{name}={value!r}: give a number of seconds above 0.")
    return float(value)


class Ticker:
    """Runs from the moment that it is made.

    Args:
        name: What the thread and its errors go by.
        seconds: The time between two calls; the first comes after as long.
    """

    def __init__(self, name: str, seconds: float, action: Callable[[], object]) -> None:
        self.name, self.seconds, self._action = name, seconds, action
        self._ended = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name=f"hookline-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, after the call that is under way. May be called again, and by the function itself."""
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(self.seconds):
            try:
                self._action()
            except Exception:
                if not self._has_failed:
                    self._has_failed = True
                    logger.exception("%s failed on its thread; it goes on.", self.name)
