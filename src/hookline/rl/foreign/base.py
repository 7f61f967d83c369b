"""`ForeignEnvironment`: the base of wrapped environments: tasks, one environment per episode, limits and closing.

Each episode gets its own environment, which is always closed when the episode ends. Async functions run on the event
loop of the episodes, all others on a thread.
"""

import asyncio
import contextlib
import hashlib
import inspect
import json
import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError, UnknownNameError
from hookline._engine.factories import import_object
from hookline._record.chats import is_chat, prompt_text
from hookline.rl.chat_format import check_messages
from hookline.rl.environments.base import HELD_OUT_SHARE, SOLVED, NumberedTasks, describe_error
from hookline.rl.environments.dataset import rows_of
from hookline.rl.environments.episodes import Rewards
from hookline.rl.rollouts.episode import EpisodeEnd, EpisodePolicy
from hookline.rl.types import Task

logger = logging.getLogger("hookline")

SEEDS = 2**31
"""The default number of tasks of an environment whose tasks are seeds."""


class ForeignEnvironment(NumberedTasks):
    """Adapts an environment of another project to hookline; subclasses define `play`.

    Args:
        name: The environment's name in records and messages.
        dataset: The rows of its tasks; None for tasks that are seeds.
        seeds: How many seeds there are.
        success_total: The total reward from which a task counts as solved.
        held_out_share: The share of tasks that is never trained on. A single task is not held out.
    """

    def __init__(
        self,
        name: str,
        *,
        dataset: Any = None,
        seeds: int = SEEDS,
        success_total: float = SOLVED,
        held_out_share: float = HELD_OUT_SHARE,
    ) -> None:
        self.name = name
        self.success_total = success_total
        self._rows = None if dataset is None else rows_of(dataset)
        self._seeds = require_integer("seeds", seeds, maximum=SEEDS)
        super().__init__(0.0 if self.size == 1 else held_out_share)

    @property
    def size(self) -> int:
        return self._seeds if self._rows is None else len(self._rows)

    def task(self, index: int) -> Task:
        if self._rows is None:
            return Task(f"{self.name}, seed {index}", metadata={"seed": index})
        return task_of_row(self._rows[index])

    def succeeded(self, task: Task, rewards: Mapping[str, float]) -> bool:
        """Return whether the rewards add up to `success_total`."""
        return sum(rewards.values()) >= self.success_total

    async def rollout(self, task: Task, policy: EpisodePolicy) -> Rewards:
        """Play one episode in a new environment."""
        session = Session()
        try:
            return await self.play(task, policy, session)
        finally:
            await session.close()

    @abstractmethod
    async def play(self, task: Task, policy: EpisodePolicy, session: "Session") -> Rewards:
        """Play an episode; environments opened through the session are closed afterwards."""


class Session:
    """Opens environments for one episode, and closes them.

    If the episode is cancelled while an environment is being created, it is closed as soon as it exists.
    """

    def __init__(self) -> None:
        self._open: list[Any] = []
        self._is_closed = False
        self._lock = threading.Lock()

    async def open(self, make: Callable[[], Any]) -> Any:
        """Create an environment on a thread; ``make`` may return an awaitable."""

        def made() -> Any:
            environment = make()
            with self._lock:
                is_late = self._is_closed
                if not is_late:
                    self._open.append(environment)
            close = getattr(environment, "close", None)
            if is_late and callable(close) and not inspect.iscoroutinefunction(close):
                close()
            return environment

        environment = await asyncio.to_thread(made)
        if inspect.isawaitable(environment):
            self._open.remove(environment)
            environment = await environment
            self._open.append(environment)
        return environment

    async def close(self) -> None:
        """Close everything; failures are only logged, since the episode is over."""
        with self._lock:
            self._is_closed, opened = True, self._open
        for environment in opened:
            close = getattr(environment, "close", None)
            if callable(close):
                try:
                    await call(close)
                except Exception as error:
                    logger.warning("%s.close() %s.", type(environment).__name__, describe_error(error))


async def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function of an environment: on the event loop if it is async, otherwise on a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments, **options)
    value = await asyncio.to_thread(function, *arguments, **options)
    return await value if inspect.isawaitable(value) else value


@contextlib.contextmanager
def until_limit() -> Iterator[None]:
    """Leave the block when the episode has no turns or tokens left; its rewards so far count."""
    try:
        yield
    except EpisodeEnd as end:
        if end.reason in ("time", "abort"):
            raise


def task_of_row(row: Mapping[str, Any]) -> Task:
    """Return a row of a dataset as a task with its ``prompt`` and ``answer``; all columns become metadata."""
    prompt, answer = row.get("prompt"), row.get("answer")
    messages = check_messages(prompt, "prompt") if prompt and is_chat(prompt) else None
    text = prompt_text(messages) if messages is not None else "" if prompt is None else str(prompt)
    content = json.dumps(dict(row), sort_keys=True, default=lambda value: type(value).__name__)
    digest = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return Task(text, None if answer is None else str(answer), id=digest, metadata=dict(row), messages=messages)


def accepted_options(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a function accepts."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return dict(options)
    names = {each.name for each in parameters}
    return {name: value for name, value in options.items() if name in names}


def as_function(given: Any, option: str) -> Any:
    """Return a function given as such or by its import path, ``"package.module:function"``."""
    if isinstance(given, str):
        try:
            given = import_object(given)
        except UnknownNameError as error:
            raise OptionError(f"{option}: {error}") from error
    if given is not None and not callable(given):
        raise OptionError(f"{option}={given!r:.200}: give a function, or its import path.")
    return given
