"""`EpisodeRunner`: runs many episodes at the same time on an event loop of its own, and returns all of their results.

An episode that raises, hangs, or returns something else than rewards costs only itself. It is cancelled at its time
limit; code that ignores the cancellation is abandoned. Functions that are not async run on a bounded pool of threads.

Code that blocks the event loop itself, such as ``time.sleep`` in an async function, holds up every episode. If the loop
does not run for as long as the time limit of an episode, it is abandoned with the episode that blocks it, and the
others begin again on a new one. Episodes depend only on their seeds, so they come out the same.
"""

import asyncio
import contextlib
import contextvars
import inspect
import logging
import math
import sys
import sysconfig
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from hookline.rl.chat_format import Message, check_messages
from hookline.rl.environments.base import describe_error
from hookline.rl.environments.episodes import REWARD, Rewards, Step
from hookline.rl.environments.tools import InThread, Tool, tools_of
from hookline.rl.policies.base import AsyncPolicy, Policy, PolicyError, SampleRequest
from hookline.rl.policies.batching import BatchedPolicy, as_async
from hookline.rl.rollouts.episode import EpisodeEnd, EpisodePolicy
from hookline.rl.rollouts.threads import DaemonThreadPool
from hookline.rl.types import Completion, Finish, Task

logger = logging.getLogger("hookline")

THREADS = 32
GRACE_SECONDS = 2.0
"""How long an episode may take to end after it was cancelled."""
END_SECONDS = 30.0
"""How long an episode may take to end after its limit of turns or tokens is reached."""
POLL_SECONDS = 0.05
STALL_SECONDS = 0.3
"""An event loop that did not run for so long was blocked or suspended; it is `POLL_SECONDS` otherwise."""
MIN_STALL_SECONDS = 10.0
"""How long the event loop may be blocked in any case: on a busy machine its thread may not run for a second."""


@dataclass(frozen=True, slots=True)
class EpisodeJob:
    """An episode to run.

    Attributes:
        make_policy: Makes the policy of the episode, given the asynchronous policy and a function for threads.
        seconds: The time limit; None waits indefinitely.
        environment_seconds: The time limit of the environment between two turns; None waits indefinitely.
    """

    environment: Any
    make_policy: Callable[[AsyncPolicy, InThread], EpisodePolicy]
    seconds: float | None = None
    environment_seconds: float | None = None


@dataclass(slots=True)
class EpisodeResult:
    """What came of an episode.

    Attributes:
        policy: Has the branches, turns and rewards of turns.
        rewards: What the environment returned at the end.
        finish: Why it ended.
        problem: What went wrong; empty if nothing did.
        policy_error: The error of the policy that ended it, if there was one.
        seconds: How long it took.
    """

    policy: EpisodePolicy
    rewards: Rewards = None
    finish: Finish = "stop"
    problem: str = ""
    policy_error: PolicyError | None = None
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class _OpenEpisode:
    """An episode in progress.

    Attributes:
        over: Set when nobody waits for it any longer.
        tasks: Its task, and those that its code started.
    """

    index: int
    policy: EpisodePolicy
    clock: "_Clock"
    over: "asyncio.Future[None]"
    tasks: "weakref.WeakSet[asyncio.Task[Any]]" = field(default_factory=weakref.WeakSet)
    timers: "list[_Timer | asyncio.TimerHandle]" = field(default_factory=list)
    environment_timer: "_Timer | None" = None

    def expire_later(self, seconds: float, message: str) -> "_Timer":
        """Let it expire in some seconds."""
        return _Timer(self, seconds, message)

    def watch_environment(self, seconds: float, *, is_sampling: bool) -> None:
        """Begin or end to measure the time of the environment."""
        if self.environment_timer is not None:
            self.environment_timer.cancel()
            self.environment_timer = None
        if not is_sampling and not self.over.done():
            message = f"the environment took longer than {seconds:g} s between two turns"
            self.environment_timer = self.expire_later(seconds, message)

    def close(self) -> None:
        """Cancel its timers, and the tasks that its code left behind."""
        for timer in self.timers:
            timer.cancel()
        if self.environment_timer is not None:
            self.environment_timer.cancel()
        self.cancel_tasks()

    def expire(self, reason: Finish, message: str) -> None:
        """Cancel it, and give it a moment to end."""
        self.policy.end(reason, message)
        if not self.over.done():
            self.cancel_tasks()
            self.timers.append(self.over.get_loop().call_later(GRACE_SECONDS, self.give_up))

    def give_up(self) -> None:
        """Wait no longer."""
        if not self.over.done():
            self.over.set_result(None)

    def cancel_tasks(self) -> None:
        """Cancel its task and those that its code started."""
        for task in list(self.tasks):
            task.cancel()


class _Clock:
    """The time in which an event loop did not run.

    It is blocked, or the process is suspended or gets no CPU. Limits of time do not count it: it is not the fault of
    the episodes that wait.
    """

    def __init__(self) -> None:
        self.beat_at = self._polled_at = self._beat_seen = time.monotonic()
        self._lost = self._blocked = 0.0

    @property
    def stalled(self) -> float:
        """The seconds since the loop ran."""
        return time.monotonic() - self.beat_at

    @property
    def lost(self) -> float:
        """The seconds in which it did not run so far."""
        stalled = self.stalled
        return self._lost + (stalled if stalled > STALL_SECONDS else 0.0)

    def beat(self) -> None:
        """Note that the loop runs; called on it, every `POLL_SECONDS`."""
        self._lost, self.beat_at = self.lost, time.monotonic()

    def poll(self) -> float:
        """Return how long the loop has been blocked; called on another thread, every `POLL_SECONDS`."""
        now = time.monotonic()
        # A longer gap means that this thread did not run either: the process was suspended.
        gap, self._polled_at = min(now - self._polled_at, 2 * POLL_SECONDS), now
        self._blocked = self._blocked + gap if self.beat_at == self._beat_seen else 0.0
        self._beat_seen = self.beat_at
        return self._blocked


class _Timer:
    """Ends an episode after some seconds in which its event loop ran."""

    def __init__(self, episode: _OpenEpisode, seconds: float, message: str) -> None:
        self._episode, self._message = episode, message
        self._wait(seconds)

    def cancel(self) -> None:
        """Never end it."""
        self._handle.cancel()

    def _wait(self, seconds: float) -> None:
        self._lost = self._episode.clock.lost
        self._handle = self._episode.over.get_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        lost = self._episode.clock.lost - self._lost
        if lost > 0:
            self._wait(lost)
        else:
            self._episode.expire("time", self._message)


_EPISODE: ContextVar[_OpenEpisode | None] = ContextVar("hookline_episode", default=None)
"""The episode that code runs in; tasks inherit it from the one that starts them."""


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    """Make a task, and note to which episode it belongs."""
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    context = options.get("context")
    episode = _EPISODE.get() if context is None else context.get(_EPISODE)
    if episode is not None:
        episode.tasks.add(task)
    return task


class _Loop:
    """An event loop on a thread, with a policy and threads for blocking functions."""

    def __init__(self, policy: Policy | AsyncPolicy, threads: int) -> None:
        self.policy = as_async(policy)
        self.threads = DaemonThreadPool(threads, name="hookline-environment")
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(self.threads)  # of asyncio.to_thread(), which environments may use as well
        self.loop.set_task_factory(_make_task)
        self.clock = _Clock()
        self.thread = threading.Thread(target=self._run, name="hookline-episodes", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()
                break
            except BaseException as error:  # asyncio re-raises SystemExit and KeyboardInterrupt of a task here
                logger.warning("A task of an episode %s; the other episodes continue.", describe_error(error))
        remaining = asyncio.all_tasks(self.loop)
        for task in remaining:
            task.cancel()
        with contextlib.suppress(BaseException):
            self.loop.run_until_complete(asyncio.wait(remaining, timeout=GRACE_SECONDS) if remaining else _nothing())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run a function on a thread, and return its result."""
        context = contextvars.copy_context()
        return await self.loop.run_in_executor(self.threads, context.run, function)

    def close(self, *, wait: bool = True) -> None:
        """Stop the loop, and wait until its thread ends."""
        self.threads.shutdown()
        if isinstance(self.policy, BatchedPolicy):
            self.policy.close()
        with contextlib.suppress(RuntimeError):  # it is closed already
            self.loop.call_soon_threadsafe(self.loop.stop)
        if wait:
            self.thread.join(2 * GRACE_SECONDS)


async def _nothing() -> None:
    pass


class _Group:
    """The episodes of one call of `EpisodeRunner.run`."""

    def __init__(self, jobs: Sequence[EpisodeJob]) -> None:
        self.jobs = jobs
        self.results: list[EpisodeResult | None] = [None] * len(jobs)
        self.open: set[_OpenEpisode] = set()
        self.loop: _Loop | None = None
        self.is_aborted = False

    def missing(self) -> list[int]:
        """Return the numbers of the episodes without a result."""
        return [index for index, result in enumerate(self.results) if result is None]

    def abort(self) -> None:
        """End the open episodes, and begin no others."""
        self.is_aborted = True
        for each in list(self.open):
            each.expire("abort", "A stop was requested.")

    async def run(self, loop: _Loop, concurrency: int) -> None:
        """Run the episodes that have no result yet in order, so many at a time."""
        remaining = iter(self.missing())

        async def run_next() -> None:
            for index in remaining:
                result = await self._run_one(loop, index)
                if self.loop is loop:  # not abandoned
                    self.results[index] = result

        await asyncio.gather(*(run_next() for _ in range(concurrency)))

    async def _run_one(self, loop: _Loop, index: int) -> EpisodeResult:
        job, began = self.jobs[index], time.perf_counter()
        policy = job.make_policy(loop.policy, loop.in_thread)
        if self.is_aborted:
            return EpisodeResult(policy, finish="abort")
        episode = _OpenEpisode(index, policy, loop.clock, loop.loop.create_future())
        policy.on_end = lambda: episode.timers.append(
            episode.expire_later(END_SECONDS, f"did not end within {END_SECONDS:g} s after its last turn")
        )
        context = contextvars.copy_context()
        context.run(_EPISODE.set, episode)
        task = loop.loop.create_task(_guarded(job.environment, policy), context=context)
        task.add_done_callback(lambda _: episode.give_up())
        if job.seconds is not None:
            episode.timers.append(episode.expire_later(job.seconds, f"took longer than {job.seconds:g} s"))
        if job.environment_seconds is not None:
            seconds = job.environment_seconds
            policy.on_turn = lambda is_sampling: episode.watch_environment(seconds, is_sampling=is_sampling)
            episode.watch_environment(seconds, is_sampling=False)
        self.open.add(episode)
        expected = loop.policy.expect() if isinstance(loop.policy, BatchedPolicy) else nullcontext()
        try:
            with expected:
                await episode.over
        finally:
            self.open.discard(episode)
            episode.close()
        return _result(task, policy, time.perf_counter() - began)


def _result(
    task: "asyncio.Task[tuple[Rewards, BaseException | None]]", policy: EpisodePolicy, seconds: float
) -> EpisodeResult:
    """Return the result of an episode that is over, or was given up."""
    made = EpisodeResult(policy, seconds=seconds)
    ended = policy.ended
    rewards, error = task.result() if task.done() and not task.cancelled() else (None, None)
    if ended is not None and ended.reason in ("time", "abort"):
        made.finish, made.problem = ended.reason, str(ended) if ended.reason == "time" else ""
    elif isinstance(error, EpisodeEnd):
        made.finish = error.reason
    elif error is not None or task.cancelled():
        made.finish = "error"
        made.problem = "cancelled itself" if error is None else describe_error(error)
        made.policy_error = error if isinstance(error, PolicyError) else None
    else:
        made.finish, made.rewards = policy.finish, rewards
    return made


class EpisodeRunner:
    """Runs episodes; its event loop starts with the first ones.

    Args:
        policy: Samples the turns; requests of a policy that is not asynchronous are batched.
        threads: How many functions that are not async may run at the same time.
    """

    def __init__(self, policy: Policy | AsyncPolicy, *, threads: int = THREADS) -> None:
        self._policy, self._threads = policy, threads
        self._lock = threading.Lock()
        self._current: _Loop | None = None
        self._finalizer: Any = None

    def run(
        self,
        jobs: Sequence[EpisodeJob],
        *,
        concurrency: int = 256,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[EpisodeResult]:
        """Run episodes, and return their results in the same order.

        Args:
            concurrency: The largest number of episodes that are open at the same time.
            should_stop: Called often; as soon as it is true, open episodes end with "abort".
        """
        group = _Group(jobs)
        while group.missing():
            loop = group.loop = self._loop()
            loop.clock.beat_at = time.monotonic()  # nobody watched it since the last call
            pending = asyncio.run_coroutine_threadsafe(group.run(loop, concurrency), loop.loop)
            try:
                self._wait(loop, pending, group, should_stop)
            except BaseException:  # e.g. KeyboardInterrupt
                loop.loop.call_soon_threadsafe(group.abort)
                raise
        return [result for result in group.results if result is not None]

    def sample_all(self, requests: Sequence[SampleRequest]) -> list[Completion | PolicyError]:
        """Return a completion for each request, or the error of the policy, which is that of this request alone."""
        loop = self._loop()

        async def sample() -> list[Completion | PolicyError]:
            made: list[Completion | PolicyError] = []
            for each in await asyncio.gather(*map(loop.policy.sample, requests), return_exceptions=True):
                if isinstance(each, BaseException) and not isinstance(each, PolicyError):
                    raise each
                made.append(each)
            return made

        return asyncio.run_coroutine_threadsafe(sample(), loop.loop).result()

    def close(self) -> None:
        """End the event loop and the threads; `run` starts new ones."""
        with self._lock:
            current, self._current = self._current, None
        if current is not None:
            self._finalizer.detach()
            current.close()

    def _loop(self) -> _Loop:
        with self._lock:
            if self._current is None:
                self._current = _Loop(self._policy, self._threads)
                self._finalizer = weakref.finalize(self, self._current.close, wait=False)
            return self._current

    def _wait(self, loop: _Loop, pending: "Future[None]", group: _Group, should_stop: Callable[[], bool]) -> None:
        """Wait until all episodes are over, or the loop is blocked and abandoned."""
        longest = max((_longest_stall(job) for job in group.jobs), default=math.inf)
        has_aborted = False
        while True:
            try:
                return pending.result(POLL_SECONDS)
            except TimeoutError:
                if pending.done():  # the coroutine raised it
                    raise
            loop.loop.call_soon_threadsafe(loop.clock.beat)
            if not has_aborted and should_stop():
                has_aborted = True
                loop.loop.call_soon_threadsafe(group.abort)
            if (blocked := loop.clock.poll()) > longest:
                return self._abandon(loop, group, blocked)

    def _abandon(self, loop: _Loop, group: _Group, stalled: float) -> None:
        """Leave a blocked loop, and note which episode blocks it; if that is unknown, all open ones are lost."""
        current, frame = asyncio.current_task(loop.loop), sys._current_frames().get(loop.thread.ident or 0)
        message = f"blocked the event loop for {stalled:.1f} s{_place(frame)}"
        logger.error(
            "An episode %s. Use 'await' for what takes time, or a function that is not async: that runs on a thread.",
            message,
        )
        for each in group.open:
            if current is None or current in each.tasks:
                each.policy.end("time", message)
                group.results[each.index] = EpisodeResult(each.policy, finish="error", problem=message, seconds=stalled)
        group.loop, group.open = None, set()
        with self._lock:
            is_first, self._current = self._current is loop, None if self._current is loop else self._current
        if is_first:  # other threads that run episodes leave the loop too
            loop.close(wait=False)


def _longest_stall(job: EpisodeJob) -> float:
    """Return how long an episode may block the event loop."""
    shortest = min(each for each in (job.seconds, job.environment_seconds, math.inf) if each is not None)
    return max(shortest, MIN_STALL_SECONDS)


def _place(frame: FrameType | None) -> str:
    """Return where the innermost code is that belongs neither to Python nor to hookline."""
    own = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[2]))
    frames = [each for each in traceback.extract_stack(frame) if not each.filename.startswith(own)] if frame else []
    return f", in {frames[-1].name} ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


async def _guarded(environment: Any, policy: EpisodePolicy) -> tuple[Rewards, BaseException | None]:
    """Return the rewards of an episode, or the exception that it raised."""
    try:
        return await play(environment, policy), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # SystemExit in user code would end the event loop
        return None, error


async def play(environment: Any, policy: EpisodePolicy) -> Rewards:
    """Run an episode of any kind of environment, and return its rewards; those of turns are the policy's."""
    if callable(getattr(environment, "rollout", None)):
        rewards: Rewards = await environment.rollout(policy.task, policy)
        return rewards
    if not callable(getattr(environment, "episode", None)):
        await _converse(_first_messages(policy.task), None, tools_of(environment), policy)
        return None
    episode = await policy.in_thread(environment.episode)
    try:
        options = {"rng": policy.rng} if _takes_rng(episode.reset) else {}
        first = await _called(policy, episode.reset, policy.task, **options)
        messages = _first_messages(policy.task) if first is None else check_messages(first, "reset()")
        await _converse(messages, episode, tools_of(episode) | tools_of(environment), policy)
        score = getattr(episode, "score", None)
        return await _called(policy, score) if callable(score) else None
    finally:
        close = getattr(episode, "close", None)
        if callable(close):
            await _called(policy, close)


async def _converse(messages: list[Message], episode: Any, tools: Mapping[str, Tool], policy: EpisodePolicy) -> None:
    """Let the policy answer, call tools, and answer again, until the episode is done or a limit is reached."""
    try:
        while True:
            reply = await policy.chat(messages, tools=tools)
            messages = [*messages, reply.message]
            is_complete = reply.finish == "stop"
            if reply.tool_calls and is_complete:
                messages += await policy.call_tools(reply, tools)
                continue
            if not hasattr(episode, "step"):
                return
            step = await _called(policy, episode.step, reply.message)
            if not isinstance(step, Step):
                raise TypeError(f"step() gave {step!r:.200}, where a Step(observation, reward, done) is accepted")
            _add_rewards(policy, step.reward)
            policy.add_metrics(step.metrics)
            if step.done or not is_complete:  # after a turn that was cut off, the conversation cannot continue
                return
            new = step.messages()
            if not new:
                raise TypeError("step() gave no observation and is not done")
            messages += new
    except EpisodeEnd as end:
        if end.reason in ("time", "abort"):
            raise


def _add_rewards(policy: EpisodePolicy, rewards: Rewards) -> None:
    named = rewards if isinstance(rewards, Mapping) else {REWARD: rewards}
    for name, value in named.items():
        if value is not None:
            policy.add_reward(value, str(name))


def _first_messages(task: Task) -> list[Message]:
    return check_messages(task.prompt if task.messages is None else task.messages, "task.messages")


def _takes_rng(reset: Any) -> bool:
    try:
        return "rng" in inspect.signature(reset).parameters
    except (TypeError, ValueError):
        return False


async def _called(policy: EpisodePolicy, function: Any, *arguments: Any, **options: Any) -> Any:
    """Call a function of an environment: what is async on the event loop, anything else on a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments, **options)
    value = await policy.in_thread(lambda: function(*arguments, **options))
    return await value if inspect.isawaitable(value) else value
