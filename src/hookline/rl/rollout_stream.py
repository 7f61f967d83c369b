"""`RolloutStream`: the training data of a learner, made while it learns.

Each batch is a rollout step of a worker, given out as often as it is to be learnt from. It can be taken up
in the middle: the rollouts that are still to be learnt from are part of its state.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hookline.core.errors import CheckpointError
from hookline.rl.grpo import token_logprobs
from hookline.rl.policy import PolicyError
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
        temperature: At which completions are sampled. Policies give log-probabilities at 1: at another temperature
            they are computed here.
        stops: Whether a stop was asked for; then nothing more is tried where rollouts stay empty.
    """

    def __init__(
        self,
        worker: RolloutSource,
        model: Any,
        *,
        pad_id: int,
        updates: int = 1,
        reference: Any = None,
        temperature: float = 1.0,
        stops: Callable[[], bool] = lambda: False,
    ) -> None:
        self.worker, self.model = worker, model
        self._pad_id, self._updates, self._reference = pad_id, updates, reference
        self._temperature, self._stops = temperature, stops
        self._batch: Batch = {}
        self._left = 0
        self.is_open = False
        """Whether a batch is being made, or was given out, that nothing has been learnt from yet."""

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.is_open = True
            if self._left == 0:
                made = self._next_batch()
                if made is None:
                    return
                self._batch, self._left = made, self._updates
            self._left -= 1
            yield self._batch

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, with what is still to be learnt from."""
        batch = self._batch if self._left else {}
        reference = None if self._reference is None else _fingerprint(self._reference)
        return {"worker": self.worker.state_dict(), "left": self._left, "batch": batch, "reference": reference}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there.

        Raises:
            CheckpointError: The reference is another model than before.
        """
        if self._reference is not None and state["reference"] not in (None, _fingerprint(self._reference)):
            raise CheckpointError(
                "kl: the policy is held near the model as it was when the training began, and this is another one. "
                "Give the model with which it began."
            )
        self.worker.load_state_dict(state["worker"])
        self._left, self._batch = state["left"], dict(state["batch"])
        self.is_open = False

    def _next_batch(self) -> Batch | None:
        """A batch to learn from; None where there is none and a stop was asked for."""
        for _ in range(EMPTY_STEPS):
            began = time.perf_counter()
            rollouts = self.worker.roll_out()
            if any(each.completion.token_ids for each in rollouts):
                seconds = getattr(self.worker, "rollout_seconds", time.perf_counter() - began)  # without its hooks
                return self._made(rollouts, seconds)
            if self._stops():
                return None
        raise PolicyError(
            f"{EMPTY_STEPS} rollout steps in a row gave nothing to learn from: no task, no completion, or no reward. "
            "The rows of the rollouts, and faults/ in them, say which."
        )

    def _made(self, rollouts: list[Rollout], seconds: float) -> Batch:
        device = next(self.model.parameters()).device
        batch = rollout_batch(rollouts, pad_id=self._pad_id, device=device)
        if self._temperature != 1:
            with torch.no_grad():
                batch["old"], _ = token_logprobs(
                    self.model, batch["ids"], batch["attention"], temperature=self._temperature
                )
        if self._reference is not None:
            with torch.no_grad():
                reference = self._reference.to(device)  # it was copied before the model was moved
                batch["reference"], _ = token_logprobs(
                    reference, batch["ids"], batch["attention"], temperature=self._temperature
                )
        metrics = rollout_metrics(rollouts)
        stale = [self.worker.latest_version - each.version for each in rollouts]
        metrics |= {"policy/version": min(each.version for each in rollouts), "policy/staleness": max(stale)}
        metrics["tokens_per_second"] = metrics["tokens"] / seconds
        groups = {each.task.id for each in rollouts}
        unequal = {each.task.id for each in rollouts if each.advantage}
        metrics["groups/zero_variance"] = (len(groups) - len(unequal)) / len(groups)
        return batch | {"metrics": metrics}


def _fingerprint(model: Any) -> list[float]:
    """Something that is the same for the same weights, and hardly for others."""
    return [float(parameter.detach().double().sum()) for parameter in model.parameters()]


def frozen_copy(model: Any) -> Any:
    """The model as it is now, which nobody trains."""
    reference = copy.deepcopy(model).eval()
    for parameter in reference.parameters():
        parameter.requires_grad_(False)
    return reference
