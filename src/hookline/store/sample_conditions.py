"""Which samples are meant by what is asked for: one answer for a page of them, their number and how they are spread."""

from hookline.store.conditions import Conditions, Names, Steps
from hookline.store.index import quoted


def sample_conditions(
    *,
    text: str | None = None,
    lesson: Names = None,
    group: str | None = None,
    min_reward: float | None = None,
    max_reward: float | None = None,
    reward: str | None = None,
    steps: Steps = None,
    axis: str | None = None,
) -> Conditions:
    """What has to hold for a sample; see `Runs.samples`.

    Raises:
        OptionError: The steps are no range.
    """
    conditions = Conditions()
    conditions.names("lesson", lesson)
    conditions.equal('"group"', group)
    conditions.equal("axis", axis)
    conditions.steps(steps)
    conditions.number_between(reward_column(reward), min_reward, max_reward)
    conditions.text(("completion", "prompt"), text)
    return conditions


def reward_column(reward: str | None) -> str:
    """Where a reward function's values are; those of the total, where none is named."""
    return "reward" if reward is None else f"rewards[{quoted(reward)}]"
