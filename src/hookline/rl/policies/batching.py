"""`as_async`: wraps any `Policy` as an `AsyncPolicy`; requests that wait at the same time are generated together.

`BatchedPolicy` runs on the event loop of its callers, and generates on one thread. A policy with ``open_batch``, such
as `HFPolicy`, generates all requests in one batch that changes as it runs: a finished request is answered at once, and
waiting ones take its place. Any other policy generates one request after another, except that requests without a seed
or at temperature 0 share a call.

Which requests share a batch depends on their order alone, not on time, as long as callers do not wait for anything but
completions: before it continues, the batch waits until every caller that was answered has sent its next request, ended,
or turned to something else. Thus the same episodes give the same batches, and the same numbers to the last bit. Callers
that wait for something else (a thread, a server) join when they are ready. Tokens never depend on the batch, up to
rounding: each request has a seed of its own.
"""

import asyncio
import contextvars
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from hookline._engine.errors import OptionError
from hookline.rl.policies.base import AsyncPolicy, Policy, PolicyError, SampleRequest
from hookline.rl.types import Completion, Sampling

QUIET_PASSES = 10
"""How many passes of the event loop without a new request or an end mean that all callers wait for something."""
GATHER_SECONDS = 0.005
"""How long an empty batch waits for callers that are still busy."""
JOIN_COST = 2.0
"""How many tokens of the whole batch could be generated in the time that a join takes: it copies the whole cache.

Requests join once waiting has cost as much. Each token without them costs their share of the rows that there could be.
"""
JOIN_STEPS = 32
"""After this many tokens, a request joins however few they are."""


class OpenBatch(Protocol):
    """A batch of requests that others can join, each with a key; used by one thread at a time.

    Attributes:
        callers: The number of callers whose requests may continue earlier ones, so that it can pay to keep what was
            computed for these.
    """

    callers: int

    @property
    def room(self) -> int:
        """How many requests can be admitted now."""

    def __len__(self) -> int:
        """The number of requests in progress."""

    def admit(self, requests: Sequence[tuple[int, SampleRequest]]) -> list[tuple[int, Exception]]:
        """Add requests with their keys; returns those that are not accepted, with their errors."""

    def advance(self, should_pause: Callable[[], bool]) -> Sequence[tuple[int, Completion | Exception]]:
        """Generate until a request is finished or a pause is requested; returns the finished ones.

        Raises:
            Exception: All requests of the batch have failed.
        """

    def drop(self, keys: set[int]) -> None:
        """Stop generating for cancelled requests."""


class _Calls:
    """An `OpenBatch` of a policy that has only ``generate``."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._waiting: list[tuple[int, SampleRequest]] = []
        self.callers = 0

    room = 1 << 20

    def __len__(self) -> int:
        return len(self._waiting)

    def admit(self, requests: Sequence[tuple[int, SampleRequest]]) -> list[tuple[int, Exception]]:
        refused: list[tuple[int, Exception]] = [
            (key, OptionError(f"{type(self._policy).__name__} generates from text alone: the prompt has images."))
            for key, request in requests
            if request.images
        ]
        self._waiting += [(key, request) for key, request in requests if not request.images]
        return refused

    def advance(self, should_pause: Callable[[], bool]) -> list[tuple[int, Completion | Exception]]:
        sampling = self._waiting[0][1].sampling
        is_shared = sampling.seed is None or sampling.temperature == 0
        together = [each for each in self._waiting if each[1].sampling == sampling] if is_shared else self._waiting[:1]
        keys = [key for key, _ in together]
        self.drop(set(keys))
        try:
            made = self._policy.generate([request.prompt for _, request in together], 1, sampling)
            return [(key, completion) for key, (completion,) in zip(keys, made, strict=True)]
        except Exception as error:  # code of a policy: the other requests are tried all the same
            return [(key, error) for key in keys]

    def drop(self, keys: set[int]) -> None:
        self._waiting = [each for each in self._waiting if each[0] not in keys]


@dataclass(slots=True)
class _Waiting:
    request: SampleRequest
    answer: "asyncio.Future[Completion]"


def as_async(policy: Policy | AsyncPolicy) -> AsyncPolicy:
    """Return an asynchronous policy: the policy itself if it is one, or one that batches its requests."""
    return policy if isinstance(policy, AsyncPolicy) else BatchedPolicy(policy)


class BatchedPolicy:
    """Generates the requests of many callers on one event loop with a policy that generates batches.

    Args:
        policy: A policy; with ``open_batch(sampling)``, requests join its batch while it is generating.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.callers = 0
        """The callers that may still send requests, see `expect`."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hookline-policy")
        self._keys = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._running: dict[int, _Waiting] = {}
        self._dropped: set[int] = set()
        self._steps_waited = 0  # tokens generated since requests joined; written only by the thread
        self._lost_steps = 0.0  # those that could have been generated for waiting requests, as a share of the batch
        self._changes = 0
        self._changed: asyncio.Event | None = None
        self._driver: asyncio.Task[None] | None = None
        self._batch: tuple[OpenBatch, tuple[float, float]] | None = None
        self._is_closed = False

    @property
    def version(self) -> int:
        """The version of the weights; 0 until weights are loaded."""
        return self.policy.version

    @property
    def context_length(self) -> int | None:
        """The largest number of tokens of prompt and completion together, if the policy knows it."""
        return getattr(self.policy, "context_length", None)

    def load_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Use these weights from now on; after an error, the previous weights stay in use."""
        self.policy.load_weights(version, weights)

    @contextmanager
    def expect(self) -> Iterator[None]:
        """Count a caller: an empty batch waits a moment for all callers to send a request.

        While there are callers, an empty batch is kept, with what it keeps of finished requests.
        """
        self.callers += 1
        try:
            yield
        finally:
            self.callers -= 1
            if not self.callers:  # nothing is kept while a learner uses the memory and changes the weights
                self._batch = None
            self._note_change()

    async def sample(self, request: SampleRequest) -> Completion:
        """Generate a completion, together with other requests.

        Raises:
            OptionError: The request is not accepted, e.g. because the prompt is too long.
            PolicyError: Generation failed.
        """
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise PolicyError("The policy is closed.")
        if self._driver is not None and not self._driver.done() and self._driver.get_loop() is not loop:
            raise OptionError("BatchedPolicy.sample() is in use on another event loop: use one loop for all requests.")
        key, waiting = next(self._keys), _Waiting(request, loop.create_future())
        self._waiting[key] = waiting
        self._note_change()
        if self._driver is None or self._driver.done():
            self._changed = asyncio.Event()
            # In an empty context, because it outlives the caller that happens to start it.
            self._driver = loop.create_task(self._drive(loop), context=contextvars.Context())
        try:
            return await waiting.answer
        finally:
            if self._waiting.pop(key, None) is None and key in self._running:  # cancelled while it is generated
                self._dropped.add(key)

    def close(self) -> None:
        """End the thread after the token that it generates; further requests fail."""
        self._is_closed, self._batch = True, None
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _note_change(self) -> None:
        self._changes += 1
        if self._changed is not None:
            self._changed.set()

    async def _drive(self, loop: asyncio.AbstractEventLoop) -> None:
        """Generate until no request is left."""
        batch: OpenBatch | None = None
        kind: tuple[float, float] | None = None
        try:
            while self._waiting or self._running:
                await self._gather()
                if not self._running:
                    if not self._waiting:
                        return
                    batch, kind = self._empty_batch(next(iter(self._waiting.values())).request.sampling)
                assert batch is not None
                batch.callers = self.callers
                admitted, dropped = self._take(batch, kind), self._take_dropped()
                for key, outcome in await loop.run_in_executor(self._thread, self._advance, batch, admitted, dropped):
                    _answer(self._running.pop(key, None), outcome)
        except Exception as error:  # the batch failed, and all of its requests with it; waiting ones are tried again
            self._fail(error)
            if self._waiting:
                self._driver = loop.create_task(self._drive(loop))

    def _fail(self, error: Exception) -> None:
        """Fail the requests of a batch, or those that wait if it could not be opened: nor could another one."""
        self._batch = None
        if self._running:
            failed, self._running = self._running, {}
        else:
            failed, self._waiting = self._waiting, {}
        for each in failed.values():
            _answer(each, error)

    def _empty_batch(self, sampling: Sampling) -> tuple[OpenBatch, tuple[float, float]]:
        """Return the empty batch that is kept, or a new one, and what its requests have in common."""
        kind = _kind(sampling)
        if self._batch is not None and self._batch[1] == kind:
            return self._batch
        open_batch = getattr(self.policy, "open_batch", None)
        batch: OpenBatch = _Calls(self.policy) if open_batch is None else open_batch(sampling)
        self._batch = (batch, kind) if self.callers else None
        return batch, kind

    async def _gather(self) -> None:
        """Let the callers run until each of them waits."""
        quiet, expected = 0, self.callers or math.inf
        while quiet < QUIET_PASSES and len(self._waiting) + len(self._running) < expected:
            before = self._changes
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._changes == before else 0
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GATHER_SECONDS
        while not self._running and len(self._waiting) < self.callers and loop.time() < deadline:
            assert self._changed is not None
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - loop.time())
            except TimeoutError:
                return

    def _take(self, batch: OpenBatch, kind: tuple[float, float] | None) -> list[tuple[int, SampleRequest]]:
        """Remove and return the requests that join the batch now."""
        oldest = next(iter(self._waiting.values()), None)
        if oldest is None or _kind(oldest.request.sampling) != kind or not self._enough(batch):
            return []
        fitting = [key for key, each in self._waiting.items() if _kind(each.request.sampling) == kind]
        taken = fitting[: batch.room]
        for key in taken:
            self._running[key] = self._waiting.pop(key)
        return [(key, self._running[key].request) for key in taken]

    def _take_dropped(self) -> set[int]:
        """Remove the requests that were cancelled while they are generated, and return their keys."""
        dropped, self._dropped = self._dropped & self._running.keys(), set()
        for key in dropped:
            del self._running[key]
        return dropped

    def _enough(self, batch: OpenBatch) -> bool:
        """Whether requests that wait and have room are worth a change of the batch."""
        if not self._waiting or not batch.room:
            return False
        return not len(batch) or self._lost_steps >= JOIN_COST or self._steps_waited >= JOIN_STEPS

    def _advance(
        self, batch: OpenBatch, admitted: list[tuple[int, SampleRequest]], dropped: set[int]
    ) -> list[tuple[int, Completion | Exception]]:
        """Generate for a while, on the thread."""
        batch.drop(dropped)
        outcomes: list[tuple[int, Completion | Exception]] = []
        if admitted:
            self._steps_waited, self._lost_steps = 0, 0.0
            outcomes += batch.admit(admitted)

        def should_pause() -> bool:
            self._steps_waited += 1
            count = min(len(self._waiting), batch.room)
            self._lost_steps += count / max(1, count + len(batch))
            return self._is_closed or bool(self._dropped) or self._enough(batch)

        if not outcomes and len(batch):
            outcomes += batch.advance(should_pause)
        return outcomes


def _kind(sampling: Sampling) -> tuple[float, float]:
    """Return the settings that all requests of a batch share."""
    return sampling.temperature, sampling.top_p


def _answer(waiting: _Waiting | None, outcome: Completion | Exception) -> None:
    if waiting is None or waiting.answer.done():  # cancelled
        return
    if isinstance(outcome, Completion):
        waiting.answer.set_result(outcome)
        return
    if isinstance(outcome, PolicyError | OptionError):
        error: Exception = type(outcome)(*outcome.args)
    else:
        error = PolicyError(f"The policy failed: {type(outcome).__name__}: {outcome}")
    error.__cause__ = outcome  # a separate error for each caller, because each adds its own traceback
    waiting.answer.set_exception(error)
