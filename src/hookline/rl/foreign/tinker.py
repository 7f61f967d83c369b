"""tinker-cookbook's environments: tokens in, tokens out.

A task is an `EnvGroupBuilder` of a dataset or a list, or a row from which a function creates an ``Env``. Each episode
creates the environments of a builder, plays the first one, and cleans up. ``compute_group_rewards`` gets a group of
one,
since episodes are independent here: rewards that compare the members of a group, and environments whose players wait
for each other, cannot be used.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from hookline.rl.environments.base import HELD_OUT_SHARE, SOLVED
from hookline.rl.environments.episodes import Rewards
from hookline.rl.foreign.base import ForeignEnvironment, Session, accepted_options, call, until_limit
from hookline.rl.rollouts.episode import EpisodePolicy
from hookline.rl.types import Task

STEP, GROUP = "reward", "group_reward"


class TinkerEnvironment(ForeignEnvironment):
    """tinker-cookbook environments.

    Args:
        builders: The group builders, one for each task; None for environments created by ``make``.
        make: Makes an environment, given the columns of a row.
        name: Its name in records and messages.
        dataset: The rows of ``make``; one task without columns by default.
        success_total: The total reward from which a task counts as solved.
        held_out_share: The share of tasks that is never trained on.
    """

    def __init__(
        self,
        builders: Sequence[Any] | None,
        make: Callable[..., Any] | None = None,
        *,
        name: str,
        dataset: Any = None,
        success_total: float = SOLVED,
        held_out_share: float = HELD_OUT_SHARE,
    ) -> None:
        self._builders, self._make = builders, make
        if builders is not None:
            dataset = [{"builder": index} for index in range(len(builders))]
        super().__init__(
            name,
            dataset=[{}] if dataset is None else dataset,
            success_total=success_total,
            held_out_share=held_out_share,
        )

    async def play(self, task: Task, policy: EpisodePolicy, session: Session) -> Rewards:
        """Play an episode and return the reward of the group; each turn also gets its reward."""
        if self._builders is None:
            make = self._make
            assert make is not None
            await self._play(await session.open(lambda: make(**task.metadata)), policy)
            return None
        builder = self._builders[task.metadata["builder"]]
        try:
            environments = list(await builder.make_envs())
            trajectory = await self._play(environments[0], policy)
            ((reward, metrics),) = await builder.compute_group_rewards([trajectory], environments[:1])
        finally:
            await builder.cleanup()
        policy.add_metrics(metrics)
        return {GROUP: reward} if reward else None

    async def _play(self, environment: Any, policy: EpisodePolicy) -> Any:
        """Play an environment, and return its trajectory."""
        transitions: list[Any] = []
        first = await environment.initial_observation()
        if hasattr(first, "reward"):  # an InitialObservationOverflow: the prompt is too long
            policy.add_reward(first.reward, STEP)
            policy.add_metrics(first.metrics)
            return SimpleNamespace(transitions=transitions, final_ob=None, stop_reason="max_tokens")
        observation, stop = first
        with until_limit():
            while True:
                completion = await policy.sample(_ids(observation), stop=_texts(stop, policy))
                tokens = list(completion.token_ids)
                extra = {"extra": {"stop_reason": "stop" if completion.finish == "stop" else "length"}}
                result = await call(environment.step, tokens, **accepted_options(environment.step, extra))
                if result.reward is not None:
                    policy.add_reward(result.reward, STEP)
                policy.add_metrics(result.metrics)
                taken = SimpleNamespace(tokens=tokens, maybe_logprobs=list(completion.sampled_logprobs) or None)
                facts = {"reward": result.reward, "episode_done": result.episode_done, "metrics": result.metrics}
                transitions.append(SimpleNamespace(ob=observation, ac=taken, logs=getattr(result, "logs", {}), **facts))
                observation, stop = result.next_observation, result.next_stop_condition
                if result.episode_done:
                    break
        return SimpleNamespace(transitions=transitions, final_ob=observation, stop_reason=None)


def _ids(observation: Any) -> list[int]:
    """Return the tokens of a ``ModelInput``."""
    return [int(token) for token in observation.to_ints()]


def _texts(stop: Sequence[Any], policy: EpisodePolicy) -> list[str]:
    """Return a stop condition as texts; the model's end token always ends a turn."""
    tokenizer = policy.tokenizer
    own = getattr(tokenizer, "eos_token_id", None)
    texts = [each if isinstance(each, str) else tokenizer.decode([each]) for each in stop if each != own]
    return [text for text in texts if text]
