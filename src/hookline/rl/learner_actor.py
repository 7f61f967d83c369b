"""`LearnerActor`: the learner of a training on Ray, in a process of its own.

It hires the rollout workers, so that they end when it does, however that comes. The driver waits for `fit`, hears of
alarms by `news`, and passes on requests to stop; signals are the driver's.
"""

import contextlib
import os
import queue
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline.core.hook import Hook
from hookline.core.model_names import plain_state
from hookline.core.state import LoopArtifacts
from hookline.core.values import plain
from hookline.rl.curriculum import Curriculum
from hookline.rl.learner import GRPOLearner
from hookline.rl.ray_cluster import import_ray
from hookline.rl.remote_rollouts import RemoteRollouts
from hookline.rl.rl_config import RLConfig
from hookline.rl.rollout_actor import RolloutActor, RolloutOrder
from hookline.rl.rollout_fleet import WATCH, Hire


@dataclass(slots=True)
class LearnerOrder:
    """What a learner on Ray is made from.

    Attributes:
        given: What `GRPOLearner` is given besides: ``callbacks`` and the like.
        resources: What each rollout actor asks Ray for.
        command: Of the driver, which the record names.
        directory: That of the driver.
    """

    config: RLConfig
    model: Any
    tokenizer: Any
    hooks: list[Hook] | None
    given: dict[str, Any]
    resources: dict[str, float]
    heartbeat_seconds: float
    command: list[str]
    directory: str


@dataclass(frozen=True, slots=True)
class News:
    """What the driver hears from the learner."""

    alarms: list[str]
    has_begun: bool
    run_dir: Path | None


class LearnerActor:
    """Runs as an actor of Ray; the driver calls its methods, `fit` once and the others meanwhile."""

    def __init__(self, order: LearnerOrder) -> None:
        sys.argv[:] = order.command
        with contextlib.suppress(OSError):  # on another machine it need not be there
            os.chdir(order.directory)
        self._order = order
        self._learner: GRPOLearner | None = None
        self._news: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def fit(self) -> tuple[LoopArtifacts, Mapping[str, Any]]:
        """Train to the end; what came of it, and the weights."""
        order, config = self._order, self._order.config
        rollouts = RemoteRollouts(
            self._hiring(),
            workers=config.rollout_workers,
            max_staleness=config.max_staleness,
            curriculum=Curriculum(config.curriculum, config.train.seed or 0),
            updates=config.grpo.updates,
            heartbeat_seconds=order.heartbeat_seconds,
            alarm=self._news.put,
        )
        pad_id = order.tokenizer.pad_token_id or 0
        learner = self._learner = GRPOLearner(
            order.model,
            rollouts,
            pad_id=pad_id,
            config=config.train,
            grpo=config.grpo,
            temperature=config.rollout.temperature,
            top_p=config.rollout.top_p,
            **order.given,
        )
        learner.recorded_config = config
        made = learner.fit()
        artifacts = LoopArtifacts(made.step, plain(made.metrics), made.checkpoints, made.output_dir, made.stop_reason)
        return artifacts, {name: tensor.detach().cpu() for name, tensor in plain_state(learner.model).items()}

    def news(self, seconds: float) -> News:
        """What there is to hear, waiting for it so long."""
        heard: list[str | None] = []
        with contextlib.suppress(queue.Empty):
            heard.append(self._news.get(timeout=seconds))
            while True:
                heard.append(self._news.get_nowait())
        alarms = [alarm for alarm in heard if alarm is not None]
        learner = self._learner
        has_begun = learner is not None and learner.state != "created"
        return News(alarms, has_begun, None if learner is None else learner.output_dir)

    def request_stop(self, reason: str) -> None:
        """Ask for a stop at the next step boundary; before training has begun it is not heard."""
        if self._learner is not None and self._learner.state == "running":
            self._learner.request_stop(reason)

    def _hiring(self) -> Callable[[Path | None], Hire]:
        """What makes rollout actors, once the directory of the run is known."""
        from hookline.rl.training import worker_config  # here: it imports this module's users

        ray, order = import_ray(), self._order
        device = "cuda" if order.resources["num_gpus"] else None
        parts = ray.put(RolloutOrder(worker_config(order.config), order.model, order.tokenizer, order.hooks, device))
        kind = ray.remote(concurrency_groups={WATCH: 1})(RolloutActor).options(**order.resources)

        def in_run(run_dir: Path | None) -> Hire:
            self._news.put(None)  # the driver learns where the record is before anything can go wrong
            return lambda index, state: kind.remote(parts, index, run_dir=run_dir, state=state)

        return in_run
