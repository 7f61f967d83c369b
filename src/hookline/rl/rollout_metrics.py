"""What is known of the rollouts of a step, as numbers."""

from collections.abc import Sequence
from statistics import fmean, pstdev

from hookline.rl.types import Rollout


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Rewards by function and in total, success, lengths; only how many there are, where there are none."""
    metrics: dict[str, float] = {"rollouts": len(rollouts)}
    if not rollouts:
        return metrics
    totals, lengths = [each.total for each in rollouts], [len(each.completion.token_ids) for each in rollouts]
    metrics |= {"reward/mean": fmean(totals), "reward/std": pstdev(totals)}
    for name in dict.fromkeys(name for each in rollouts for name in each.rewards):
        given = [each.rewards[name] for each in rollouts if name in each.rewards]
        metrics |= {f"rewards/{name}/mean": fmean(given), f"rewards/{name}/std": pstdev(given)}
    metrics["success_rate"] = fmean(each.success for each in rollouts)
    metrics |= {"completions/length_mean": fmean(lengths), "completions/length_max": max(lengths)}
    metrics["completions/truncated"] = fmean(each.completion.finish == "length" for each in rollouts)
    metrics["tokens"] = sum(lengths)
    return metrics
