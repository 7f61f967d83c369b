"""`RolloutStream`: the training data of a learner, made while it learns.

Each batch is a rollout step of a worker, given out as often as it is to be learnt from. It can be taken up
in the middle: the rollouts that are still to be learnt from are part of its state.
"""

import copy
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from hookline.rl.grpo import token_logprobs
from hookline.rl.rollout_batch import Batch, rollout_batch
from hookline.rl.rollout_metrics import rollout_metrics
from hookline.rl.rollout_source import RolloutSource
from hookline.rl.types import Rollout

EMPTY_STEPS = 100
"""After how many rollout steps in a row without anything to learn from the stream gives up."""


class RolloutStream:
    """Batches of rollouts, for ever.

    Args:
        worker: Who makes them.
        model: The model that is trained, which the worker's policy writes with.
        updates: How often each batch is learnt from.
        reference: What the policy is held near, if anything: its log-probabilities become part of the batches.
    """

    def __init__(
        self, worker: RolloutSource, model: Any, *, pad_id: int, updates: int = 1, reference: Any = None
    ) -> None:
        self.worker, self.model = worker, model
        self._pad_id, self._updates, self._reference = pad_id, updates, reference
        self._batch: Batch = {}
        self._left = 0
        self.is_open = False
        """Whether a batch is being made, or was given out, that nothing has been learnt from yet."""

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.is_open = True
            if self._left == 0:
                self._batch, self._left = self._next_batch(), self._updates
            self._left -= 1
            yield self._batch

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, with what is still to be learnt from."""
        return {"worker": self.worker.state_dict(), "left": self._left, "batch": self._batch if self._left else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.worker.load_state_dict(state["worker"])
        self._left, self._batch = state["left"], dict(state["batch"])
        self.is_open = False

    def _next_batch(self) -> Batch:
        for _ in range(EMPTY_STEPS):
            began = time.perf_counter()
            rollouts = self.worker.roll_out()
            if any(each.completion.token_ids for each in rollouts):
                return self._made(rollouts, time.perf_counter() - began)
        raise RuntimeError(f"{EMPTY_STEPS} rollout steps in a row gave nothing to learn from; the record says why.")

    def _made(self, rollouts: list[Rollout], seconds: float) -> Batch:
        device = next(self.model.parameters()).device
        batch = rollout_batch(rollouts, pad_id=self._pad_id, device=device)
        if self._reference is not None:
            with torch.no_grad():
                batch["reference"], _ = token_logprobs(self._reference, batch["ids"], batch["attention"])
        metrics = rollout_metrics(rollouts)
        stale = [self.worker.latest_version - each.version for each in rollouts]
        metrics |= {"policy/version": min(each.version for each in rollouts), "policy/staleness": max(stale)}
        metrics["tokens_per_second"] = metrics["tokens"] / seconds
        groups = {each.task.id for each in rollouts}
        unequal = {each.task.id for each in rollouts if each.advantage}
        metrics["groups/zero_variance"] = (len(groups) - len(unequal)) / len(groups)
        return batch | {"metrics": metrics}


def frozen_copy(model: Any) -> Any:
    """The model as it is now, which nobody trains."""
    reference = copy.deepcopy(model).eval()
    for parameter in reference.parameters():
        parameter.requires_grad_(False)
    return reference
