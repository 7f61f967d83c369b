"""The demo's own callbacks: what anybody would write beside a training."""

from collections.abc import Sequence
from typing import Any

import hookline as hl
from hookline.rl.types import Rollout


class OneThread(hl.Callback):
    """Keeps a run to one core: there are as many runs at a time as cores, and the model is too small for more."""

    def on_run_start(self, ctx: hl.LogContext) -> None:
        import torch

        torch.set_num_threads(1)


class NearMisses(hl.Callback):
    """The share of answers that are wrong in one digit only; it stands in the record as ``near_misses/share``."""

    def on_rollout_end(self, loop: Any, step_idx: int, rollouts: Sequence[Rollout]) -> dict[str, float]:
        near = [_is_near_miss(each.completion.text, each.task.expected or "") for each in rollouts]
        return {"share": sum(near) / max(1, len(near))}


def _is_near_miss(answer: str, expected: str) -> bool:
    return len(answer) == len(expected) and sum(a != b for a, b in zip(answer, expected, strict=True)) == 1
