"""`EpisodePolicy`: the policy as an episode sees it. It samples turns, and keeps the tokens of every branch.

A turn continues the branch whose messages (or tokens) the given ones begin with; new messages are appended to it as
tokens that are not trained on. Messages that continue an earlier point of a branch fork it: the new branch begins with
the tokens up to that point. Any others, such as a summary in place of the conversation so far, begin a branch of their
own. Sampled tokens belong to exactly one branch, so none is learnt from twice.

The seed of a turn depends on the seed of the episode and the tokens before the turn, and not on what other episodes or
branches do at the same time.
"""

import asyncio
import hashlib
import numbers
import random
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hookline._engine.checks import require_integer
from hookline._engine.errors import HooklineError, OptionError
from hookline._record.chats import image_in
from hookline.rl.chat_format import ChatFormat, Message, Schema, check_messages
from hookline.rl.environments.tools import InThread, Tool, ToolResult, as_tools, call_tools, schemas_of
from hookline.rl.policies.base import AsyncPolicy, PolicyError, Prompt, SampleRequest, check_prompt, derived_seed
from hookline.rl.types import Completion, Finish, Sampling, Task

CALL_ID = "call{:05}"
"""The ids of calls: nine letters and digits, the form that the strictest chat templates accept."""


class EpisodeEnd(HooklineError, RuntimeError):
    """A limit of the episode is reached: no further turn is sampled.

    Attributes:
        reason: "turns", "length" (tokens), "time", or "abort" (a stop was requested).
    """

    def __init__(self, reason: Finish, message: str) -> None:
        super().__init__(message)
        self.reason: Finish = reason


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """The limits of an episode; those of time are the runner's.

    Attributes:
        turns: The largest number of turns, of all branches together.
        tokens: The largest number of tokens of a branch after its prompt, those of the environment included; None
            leaves it to the model.
    """

    turns: int = 16
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A turn of the policy.

    Attributes:
        message: The message, to append to the conversation.
        completion: Its tokens.
    """

    message: Message
    completion: Completion

    @property
    def text(self) -> str:
        """The content of the message."""
        return str(self.message.get("content", ""))

    @property
    def tool_calls(self) -> list[Mapping[str, Any]]:
        """The calls of the message."""
        return list(self.message.get("tool_calls", ()))

    @property
    def finish(self) -> Finish:
        """Why the turn ended: "stop" if it is complete, "length" if it was cut off."""
        return self.completion.finish


@dataclass(slots=True)
class _Point:
    """The end of a turn in a branch, where the conversation can continue.

    Attributes:
        tokens: How many tokens the branch has there, its prompt included.
        messages: How many messages it has there.
        text: The text of the conversation when the turn was sampled; None for a turn of tokens.
        sampled: The number of tokens of the turn.
        images: How many images the branch has there.
    """

    tokens: int
    messages: int
    text: str | None
    sampled: int
    images: int


@dataclass(slots=True, eq=False)
class Branch:
    """A sequence of tokens to learn from, with the messages it stands for.

    Attributes:
        prompt: The messages of its prompt.
        messages: All messages, those of the prompt included.
        parent: The branch it was forked from.
        points: The ends of its turns; none if its first turn failed.
        is_sampling: Whether a turn at its end is in progress; others that continue it have to fork it.
    """

    prompt: list[Message] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    parent: "Branch | None" = None
    ids: list[int] = field(default_factory=list)
    prompt_length: int = 0
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampled_logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    images: list[Any] = field(default_factory=list)
    points: list[_Point] = field(default_factory=list)
    text: str = ""
    finish: Finish = "stop"
    has_logprobs: bool = True
    has_sampled_logprobs: bool = True
    is_sampling: bool = False

    def add(self, between: Sequence[int], completion: Completion, version: int) -> None:
        """Append tokens of the environment, and a turn."""
        count, sampled = len(between), len(completion.token_ids)
        self.ids += [*between, *completion.token_ids]
        self.mask += [0] * count + [1] * sampled
        # A policy may not return any; then the branch has none at all.
        self.has_logprobs &= len(completion.logprobs) == sampled
        self.has_sampled_logprobs &= len(completion.sampled_logprobs) == sampled
        self.logprobs += [0.0] * count + list(completion.logprobs)
        self.sampled_logprobs += [0.0] * count + list(completion.sampled_logprobs)
        own = list(completion.versions) if len(completion.versions) == sampled else [version] * sampled
        self.versions += [version] * count + own
        self.text, self.finish = completion.text, completion.finish

    def completion(self, finish: Finish) -> Completion:
        """Return what follows the prompt of the branch."""
        return Completion(
            text=self.text,
            token_ids=self.ids[self.prompt_length :],
            logprobs=self.logprobs if self.has_logprobs else (),
            finish=finish,
            prompt_ids=self.ids[: self.prompt_length],
            sampled_logprobs=self.sampled_logprobs if self.has_sampled_logprobs else (),
            messages=self.messages[len(self.prompt) :] or None,
            mask=() if all(self.mask) else self.mask,
            versions=() if len(set(self.versions)) <= 1 else self.versions,
            images=self.images,
        )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a turn is sampled.

    Attributes:
        between: The tokens between the end of the branch and the turn.
        text: The text of the whole conversation before the turn; None for a turn of tokens.
        images: The images between the end of the branch and the turn.
    """

    branch: Branch
    between: Sequence[int] = ()
    text: str | None = None
    images: Sequence[Any] = ()


class EpisodePolicy:
    """Samples the turns of one episode; environments get it as ``policy``.

    Attributes:
        task: The task of the episode.
        rng: A generator for the environment, which depends on the seed of the episode alone.
        rewards: The rewards given with `add_reward`, for each turn.
    """

    def __init__(
        self,
        policy: AsyncPolicy,
        task: Task,
        *,
        sampling: Sampling,
        limits: EpisodeLimits | None = None,
        seed: int = 0,
        chat_format: ChatFormat | None = None,
        in_thread: InThread | None = None,
        group: str = "",
    ) -> None:
        self.task, self.sampling = task, sampling
        self.limits = EpisodeLimits() if limits is None else limits
        self.rng = random.Random(f"{seed}/environment")  # noqa: S311 - no secret
        self.branches: list[Branch] = []
        self.last_branch: Branch | None = None
        self.rewards: list[dict[str, float]] = []
        self.turns = 0
        self.metrics: dict[str, float] = {}
        self.tool_calls: list[ToolResult] = []
        self.generate_seconds = 0.0
        self.ended: EpisodeEnd | None = None
        self.on_end: Callable[[], object] = lambda: None
        self.on_turn: Callable[[bool], object] = lambda is_sampling: None
        """Called with whether a turn is being sampled, when that begins and ends."""
        self._policy, self._chat_format, self._seed, self._group = policy, chat_format, seed, group
        self._in_thread = in_thread or asyncio.to_thread
        self._seeds: Counter[bytes] = Counter()
        self._sampling = 0

    @property
    def version(self) -> int:
        """The version of the policy's weights."""
        return self._policy.version

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the policy's chat format; None for a policy without one."""
        return None if self._chat_format is None else self._chat_format.tokenizer

    @property
    def finish(self) -> Finish:
        """Why the last turn ended, or the limit that ended the episode."""
        if self.ended is not None:
            return self.ended.reason
        return "stop" if self.last_branch is None else self.last_branch.finish

    async def chat(
        self,
        messages: str | Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | Mapping[str, Tool] = (),
        max_tokens: int | None = None,
    ) -> Reply:
        """Sample the assistant's next message of a conversation.

        Args:
            messages: The whole conversation, with the messages of earlier turns as they were returned.
            tools: Functions that the policy may call, or their JSON schemas; they are described to it, not called.
            max_tokens: The largest number of tokens of the turn; that of the settings by default.

        Raises:
            EpisodeEnd: A limit of the episode is reached.
            PolicyError: The policy failed.
        """
        await self._require_open()
        given = check_messages(messages, "messages")
        schemas = schemas_of(tools)
        place = self._place_of_messages(given, schemas)
        branch = place.branch
        completion = await self._sample(place, max_tokens)
        if not completion.token_ids:
            raise PolicyError("The policy returns no token ids, which a chat cannot continue without.")
        prompt_ids = branch.ids[: len(branch.ids) - len(completion.token_ids)]
        message = self._format().message(completion.token_ids, prompt_ids=prompt_ids, tools=schemas)
        for number, call in enumerate(message.get("tool_calls", ()), start=sum(map(_count_calls, given))):
            call.setdefault("id", CALL_ID.format(number))
        branch.messages = [*given, message]
        branch.text = str(message.get("content", ""))
        branch.points[-1].messages = len(branch.messages)
        return Reply(message, completion)

    async def sample(
        self,
        prompt: Prompt,
        *,
        images: Sequence[Any] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> Completion:
        """Sample a completion of a text, or of token ids.

        Token ids that begin with all tokens of an earlier turn continue its branch; a text always begins one.

        Args:
            max_tokens: The largest number of tokens of the turn; that of the settings by default.
            stop: Texts that end the turn, beside those of the settings.

        Raises:
            EpisodeEnd: A limit of the episode is reached.
            PolicyError: The policy failed.
        """
        await self._require_open()
        checked = check_prompt(prompt, "prompt")
        if isinstance(checked, str):
            place = _Place(self._new_branch(Branch()), images=images)
            return await self._sample(place, max_tokens, text=checked, stop=stop)
        return await self._sample(self._place_of_ids(list(checked), images), max_tokens, stop=stop)

    async def call_tools(
        self, reply: Reply | Mapping[str, Any], tools: Sequence[Any] | Mapping[str, Tool]
    ) -> list[Message]:
        """Run the calls of a message at the same time, and return the messages with their results.

        Unknown tools, wrong arguments and exceptions become messages too, which tell the policy what went wrong.
        """
        message = reply.message if isinstance(reply, Reply) else reply
        named = tools if isinstance(tools, Mapping) else as_tools(tools)
        results = await call_tools(message.get("tool_calls", ()), named, self._in_thread)
        self.tool_calls += results
        return [each.message for each in results]

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run a blocking function on another thread, so that other episodes continue in the meantime."""
        return await self._in_thread(function)

    def add_reward(self, value: float, name: str = "reward") -> None:
        """Give a reward for the latest turn; the rewards of a name are added up."""
        if not isinstance(value, numbers.Real):
            raise OptionError(f"add_reward({value!r:.200}, {name!r}): give a number.")
        self.rewards += [{} for _ in range(max(self.turns, 1) - len(self.rewards))]
        self.rewards[-1][name] = self.rewards[-1].get(name, 0.0) + float(value)

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        """Record numbers of this episode; the mean over the episodes of a step is recorded, of the last values."""
        self.metrics |= metrics

    def end(self, reason: Finish, message: str) -> None:
        """Sample no further turns."""
        if self.ended is None or reason in ("time", "abort"):  # which are about the whole episode, not its turns
            self.ended = EpisodeEnd(reason, message)
            self.on_end()

    async def _require_open(self) -> None:
        if self.ended is None and self.turns >= self.limits.turns:
            self.end("turns", f"The episode has {self.turns} turns, which is its limit (max_turns).")
        if self.ended is not None:
            await asyncio.sleep(0)  # code that ignores the error and tries again must not block the event loop
            raise EpisodeEnd(self.ended.reason, str(self.ended))

    def _format(self) -> ChatFormat:
        if self._chat_format is None:
            raise OptionError(
                "The policy has no chat_format, so it cannot continue chats: use a policy with a tokenizer that has a "
                "chat template, such as HFPolicy."
            )
        return self._chat_format

    def _place_of_messages(self, given: list[Message], schemas: Sequence[Schema]) -> _Place:
        """Return where a conversation continues."""
        chat_format = self._format()
        found: tuple[Branch, _Point] | None = None
        for branch in self.branches:
            for point in branch.points:
                is_longer = found is None or point.messages > found[1].messages
                if (
                    point.text is not None
                    and is_longer
                    and given[: point.messages] == branch.messages[: point.messages]
                ):
                    found = branch, point
        if found is not None and len(given) > found[1].messages:
            branch, point = found
            sampled, old = branch.ids[point.tokens - point.sampled : point.tokens], given[: point.messages]
            new = given[point.messages :]
            continued = chat_format.continuation(point.text or "", sampled, old, new, schemas)
            if continued is not None:
                place = self._continued(branch, point, continued.ids, _images_of(new), continued.text)
                if place.branch is not branch:
                    place.branch.prompt = given
                return place
        rendered = chat_format.prompt(given, schemas)
        parent = None if found is None else found[0]
        branch = Branch(prompt=given, parent=parent, ids=rendered.ids, prompt_length=len(rendered.ids))
        return _Place(self._new_branch(branch), text=rendered.text, images=_images_of(given))

    def _place_of_ids(self, ids: list[int], images: Sequence[Any]) -> _Place:
        """Return where a sequence of tokens continues."""
        found: tuple[Branch, _Point] | None = None
        for branch in self.branches:
            for point in branch.points:
                is_longer = found is None or point.tokens > found[1].tokens
                if is_longer and point.tokens < len(ids) and ids[: point.tokens] == branch.ids[: point.tokens]:
                    found = branch, point
        if found is None:
            return _Place(self._new_branch(Branch(ids=ids, prompt_length=len(ids))), images=images)
        branch, point = found
        return self._continued(branch, point, ids[point.tokens :], images[point.images :], None)

    def _continued(
        self, branch: Branch, point: _Point, between: list[int], images: Sequence[Any], text: str | None
    ) -> _Place:
        """Continue a branch at its end, or fork it at an earlier point."""
        if point is branch.points[-1] and not branch.is_sampling:
            return _Place(branch, between, text, images)
        ids = branch.ids[: point.tokens] + between
        fork = Branch(parent=branch, ids=ids, prompt_length=len(ids), images=branch.images[: point.images])
        return _Place(self._new_branch(fork), text=text, images=images)

    def _new_branch(self, branch: Branch) -> Branch:
        self.branches.append(branch)
        return branch

    async def _sample(
        self, place: _Place, max_tokens: int | None, *, text: str | None = None, stop: Sequence[str] = ()
    ) -> Completion:
        """Sample a turn, and add it to its branch."""
        branch = place.branch
        prompt: Prompt = [*branch.ids, *place.between] if text is None else text
        images = [*branch.images, *place.images]
        sampling = replace(
            self.sampling,
            max_tokens=self._max_tokens(branch, len(place.between), max_tokens),
            stop=[*self.sampling.stop, *stop],
            seed=None if self.sampling.seed is None else self._turn_seed(prompt),
        )
        self.turns += 1  # before it is sampled: other branches may be sampled at the same time
        branch.is_sampling = True
        began = time.perf_counter()
        self._note_turn(1)
        try:
            completion = await self._policy.sample(SampleRequest(prompt, sampling, images, self._group))
        except BaseException:
            self.turns -= 1
            raise
        finally:
            self._note_turn(-1)
            branch.is_sampling = False
            self.generate_seconds += time.perf_counter() - began
        if text is not None:
            branch.ids, branch.prompt_length = list(completion.prompt_ids), len(completion.prompt_ids)
        branch.add(place.between, completion, self._policy.version)
        self.last_branch = branch
        branch.images = images
        branch.points.append(_Point(len(branch.ids), 0, place.text, len(completion.token_ids), len(images)))
        return completion

    def _note_turn(self, change: int) -> None:
        before, self._sampling = self._sampling, self._sampling + change
        if 0 in (before, self._sampling):
            self.on_turn(self._sampling > 0)

    def _max_tokens(self, branch: Branch, between: int, max_tokens: int | None) -> int:
        """Return the largest number of tokens of a turn.

        Raises:
            EpisodeEnd: There is no room for one.
        """
        most = self.sampling.max_tokens if max_tokens is None else require_integer("max_tokens", max_tokens)
        length = len(branch.ids) + between
        if self.limits.tokens is not None:
            most = min(most, self.limits.tokens - (length - branch.prompt_length))
        context_length = getattr(self._policy, "context_length", None)
        if context_length is not None:
            most = min(most, context_length - length)
        if most < 1:
            self.end("length", f"The conversation has {length} tokens, which leaves no room for a turn.")
            raise EpisodeEnd("length", str(self.ended))
        return most

    def _turn_seed(self, prompt: Prompt) -> int:
        """Return the seed of a turn: of equal prompts in an episode, each gets another one."""
        content = prompt.encode("utf-8", "surrogatepass") if isinstance(prompt, str) else array("q", prompt).tobytes()
        digest = hashlib.blake2b(content, digest_size=16).digest()
        self._seeds[digest] += 1
        return derived_seed(self._seed, f"{digest.hex()}/{self._seeds[digest]}")


def _count_calls(message: Mapping[str, Any]) -> int:
    calls = message.get("tool_calls")
    return len(calls) if isinstance(calls, list | tuple) else 0


def _images_of(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the images in messages, in order."""
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list | tuple) for part in content]
    found = [image_in(part) for part in parts if isinstance(part, Mapping)]
    return [image for image in found if image is not None]
