"""Numbers computed from the rollouts of one step: metrics of the step, and advantages within groups."""

from collections.abc import Hashable, Sequence
from statistics import fmean, pstdev, stdev

from hookline.rl.types import Rollout

EPSILON = 1e-4
"""Added to a standard deviation, as in TRL, so that nearly equal rewards do not get huge advantages."""


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Summarize rewards, success and lengths; without rollouts, only their count is returned."""
    metrics: dict[str, float] = {"rollouts": len(rollouts)}
    if not rollouts:
        return metrics
    totals, lengths = [each.total for each in rollouts], [len(each.completion.token_ids) for each in rollouts]
    metrics |= {"reward/mean": fmean(totals), "reward/std": pstdev(totals)}
    for name in dict.fromkeys(name for each in rollouts for name in each.rewards):
        values = [each.rewards[name] for each in rollouts if name in each.rewards]
        metrics |= {f"rewards/{name}/mean": fmean(values), f"rewards/{name}/std": pstdev(values)}
    metrics["success_rate"] = fmean(each.success for each in rollouts)
    metrics |= {"completions/length_mean": fmean(lengths), "completions/length_max": max(lengths)}
    metrics["completions/truncated"] = fmean(each.completion.finish == "length" for each in rollouts)
    metrics["tokens"] = sum(lengths)
    return metrics


def group_advantages(
    totals: Sequence[float], groups: Sequence[Hashable], *, scale: bool = True
) -> tuple[list[float], float]:
    """Return the advantage of each completion in its group, and the share of groups without any variance.

    Args:
        totals: The total reward of each completion.
        groups: The group of each completion: the completions of one prompt form a group.
        scale: Divide by the group's sample standard deviation, as TRL does, so that easy and hard prompts have equal
            weight.

    >>> group_advantages([1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b"], scale=False)
    ([0.5, -0.5, 0.0, 0.0], 0.5)
    """
    members: dict[Hashable, list[float]] = {}
    for total, group in zip(totals, groups, strict=True):
        members.setdefault(group, []).append(total)
    means = {group: fmean(own) for group, own in members.items()}
    equal = {group for group, own in members.items() if max(own) == min(own)}
    unequal = members.keys() - equal  # these have at least two members, which stdev() needs
    divisors = {group: stdev(members[group]) + EPSILON if scale else 1.0 for group in unequal}
    advantages = [
        # Exactly 0 in a group of equal totals: the mean may be off by a rounding error.
        0.0 if group in equal else (total - means[group]) / divisors[group]
        for total, group in zip(totals, groups, strict=True)
    ]
    return advantages, len(equal) / len(members) if members else 0.0
