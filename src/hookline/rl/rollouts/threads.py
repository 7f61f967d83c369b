"""`DaemonThreadPool`: an executor for functions that may hang; also the default executor of the episodes' event loop.

At most ``limit`` threads are working. A thread cannot be killed: if a caller is cancelled while its function runs, the
thread is abandoned and another one takes its place. Abandoned threads are daemons, so they never keep the program from
exiting, and they end when their function returns. While `MAX_ABANDONED_THREADS` are still running, no further function
is started.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

MAX_ABANDONED_THREADS = 256


class ThreadsBusyError(RuntimeError):
    """Too many abandoned functions are still running."""


class _Job(Future[Any]):
    """A function to run, and its future.

    Attributes:
        is_settled: It has returned, or was abandoned.
    """

    def __init__(self, pool: "DaemonThreadPool", function: Callable[[], Any]) -> None:
        super().__init__()
        self.pool, self.function = pool, function
        self.is_settled = False

    def cancel(self) -> bool:
        """Abandon the function if it runs already."""
        if super().cancel():
            return True
        self.pool.abandon(self)
        return False


class DaemonThreadPool(ThreadPoolExecutor):
    """Runs functions on a bounded number of daemon threads, which are started when they are needed.

    It is a `ThreadPoolExecutor` because event loops accept no other default executor; only its interface is used.

    Args:
        limit: The largest number of functions that run at the same time.
        name: The beginning of the threads' names.
    """

    def __init__(self, limit: int, *, name: str) -> None:
        super().__init__(limit)
        self._limit, self._name = limit, name
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._working = self._idle = self._abandoned = self._started = 0
        self._is_closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function on a thread.

        Raises:
            ThreadsBusyError: Too many functions that were abandoned are still running.
        """
        job = _Job(self, lambda: fn(*args, **kwargs))
        with self._changed:
            if self._is_closed:
                raise RuntimeError("The pool is closed.")
            if self._abandoned >= MAX_ABANDONED_THREADS:
                raise ThreadsBusyError(f"not called, since {self._abandoned} calls that took too long still run")
            self._waiting.append(job)
            self._start_threads()
        return job

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let idle threads end, and start no more functions; nothing is waited for."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def abandon(self, job: _Job) -> None:
        """Let another thread take the place of the one that runs a function."""
        with self._changed:
            if job.running() and not job.is_settled:
                job.is_settled = True
                self._abandoned += 1
                self._working -= 1
                self._start_threads()

    def _start_threads(self) -> None:
        """Wake or start a thread for each waiting function, with the lock held."""
        self._changed.notify(len(self._waiting))
        for _ in range(min(len(self._waiting) - self._idle, self._limit - self._working)):
            self._working += 1
            self._idle += 1  # until it takes a function: otherwise the next caller would start one more for the same
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = job.function()
            except StopIteration as raised:  # which no asyncio future accepts
                error = RuntimeError(f"raised StopIteration: {raised}")
            except BaseException as raised:  # e.g. sys.exit() in user code, which would end the thread silently
                error = raised
            with self._changed:
                if job.is_settled:
                    self._abandoned -= 1
                    return
                job.is_settled = True
                self._idle += 1
            if error is None:
                job.set_result(result)
            else:
                job.set_exception(error)

    def _next(self) -> _Job | None:
        """Wait for a function to run; None if the pool is closed."""
        with self._changed:
            while True:
                while self._waiting:
                    job = self._waiting.popleft()
                    if job.set_running_or_notify_cancel():
                        self._idle -= 1
                        return job
                if self._is_closed:
                    self._idle -= 1
                    self._working -= 1
                    return None
                self._changed.wait()
