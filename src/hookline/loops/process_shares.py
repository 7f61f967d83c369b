"""`ProcessShares`: what the batches of a step weigh where several processes make the step together.

The mean over processes that gradients travel with gives each process the same weight. Where batches bring the number of
tokens that they are trained on, a process weighs by that instead, as a batch does among those of one process. It takes
one all-reduce of two numbers a step, on the device, which nobody waits for. Data without such a number costs a question
at the first step.
"""

from typing import Any

import torch
from torch import distributed

from hookline.loops.ranks import Agreement
from hookline.loops.step_metrics import tokens_of


class ProcessShares:
    """Weighs the batches of this process in the steps of all.

    Args:
        agreement: How the processes settle whether there is something to weigh by.
        device: Where the model is trained.
    """

    def __init__(self, agreement: Agreement, device: Any) -> None:
        self._agreement, self._device = agreement, device
        self._counts: bool | None = None

    def weighed(self, shares: list[float], batches: list[Any]) -> list[Any]:
        """The shares of batches among this process's, made those among the batches of all; called on every rank."""
        counts = tokens_of(batches)
        if self._counts is None:  # settled once: whoever left out an all-reduce would keep the others waiting
            self._counts = any(self._agreement.gather(counts is not None))
        if not self._counts:
            return list(shares)
        factor = self._factor(counts)
        return [factor * share for share in shares]

    def _factor(self, counts: list[int] | None) -> torch.Tensor:
        own = sum(counts or ())
        total = torch.tensor([own, counts is None]).to(self._device, non_blocking=True)
        distributed.all_reduce(total)
        tokens, unknown = total
        weighs = (unknown == 0) & (tokens > 0)
        return torch.where(weighs, distributed.get_world_size() * own / tokens, 1.0)
