"""`RolloutSource`: what a learner asks of whoever makes its rollouts, in this process or elsewhere."""

from collections.abc import Mapping
from typing import Any, Protocol

from hookline.loops.session import Session
from hookline.rl.types import Rollout


class RolloutSource(Protocol):
    """Makes rollouts for a learner; a `RolloutWorker` is one, and so are workers in other processes."""

    step: int
    """How many rollout steps it has made, or handed over."""
    latest_version: int
    """The newest version of the weights."""

    @property
    def exact_logprobs(self) -> bool:
        """Whether a learner with the same weights computes the log-probabilities of rollouts itself."""

    def work_for(self, loop: Session) -> None:
        """Make rollouts for this learner from now on."""

    def roll_out(self) -> list[Rollout]:
        """The rollouts of one step; none where nothing came of it."""

    def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Write with new weights from now on."""

    def close_hooks(self) -> None:
        """Let hooks finish, and make no more rollouts. May be called again."""

    def state_dict(self) -> dict[str, Any]:
        """Where the rollouts stand."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
