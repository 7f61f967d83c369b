"""Groups of completions: those of one prompt, and how much better each is than the others."""

from collections.abc import Hashable, Sequence
from statistics import fmean, stdev

EPSILON = 1e-4
"""Added to a standard deviation, as TRL does, so that a group in which rewards hardly differ is not blown up."""


def group_advantages(
    totals: Sequence[float], groups: Sequence[Hashable], *, scale: bool = True
) -> tuple[list[float], float]:
    """The advantage of each completion in its group, and the share of groups in which all did equally well.

    Args:
        totals: The reward of each completion.
        groups: What each was written for: those of one prompt are a group.
        scale: Divide by the group's standard deviation (the sample's, as TRL does), so that easy and hard prompts
            weigh alike.

    >>> group_advantages([1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b"], scale=False)
    ([0.5, -0.5, 0.0, 0.0], 0.5)
    """
    members: dict[Hashable, list[float]] = {}
    for total, group in zip(totals, groups, strict=True):
        members.setdefault(group, []).append(total)
    means = {group: fmean(own) for group, own in members.items()}
    equal = {group for group, own in members.items() if max(own) == min(own)}
    unequal = members.keys() - equal  # which have at least two members, as the deviation of a sample needs
    divisors = {group: stdev(members[group]) + EPSILON if scale else 1.0 for group in unequal}
    advantages = [
        0.0 if group in equal else (total - means[group]) / divisors[group]  # a mean may be off by a rounding
        for total, group in zip(totals, groups, strict=True)
    ]
    return advantages, len(equal) / len(members) if members else 0.0
