"""Stable-Baselines3: hookline's callbacks observe and control ``model.learn``.

    from hookline.integrations.stable_baselines3 import HooklineCallback

    with HooklineCallback(["progress_bar"], name="cartpole") as hooks:
        PPO("MlpPolicy", "CartPole-v1").learn(10_000, callback=hooks)

How SB3's events become moments:

- A step is one iteration of the algorithm: a rollout, and the training on it, which may be many gradient steps. SB3
  does not report those. An iteration of PPO takes ``n_steps`` of each environment, one of DQN ``train_freq``. There is
  one epoch.
- `on_rollout_start` and `on_rollout_end` fire around the collection of experience, with the episodes that ended in it.
- A step's row has ``timesteps`` and what the algorithm records of its training (``train/...``, with ``train/loss`` as
  ``loss``). Whatever SB3's logger dumps is in the row of the step in which it does so, by SB3's names: values of
  callbacks and environments as well, images, figures and videos as media. SB3 itself dumps ``train/...`` only with the
  next iteration; they are recorded once, where they belong.
- An ``EvalCallback`` is the evaluation ``val``: ``val/mean_reward``, and SB3's own name, ``eval/mean_reward``. SB3
  reports it when it is over, in the middle of a rollout: it is of the weights after the completed steps.
- A stop ends the training at the first step of the environment after the iteration. A checkpoint is a directory with
  ``model.zip``, the statistics of a `VecNormalize`, the replay buffer if wanted, and the callbacks' states.

What SB3 does not report: gradient steps and errors. As a context manager, the callback learns at once that ``learn``
raised.
"""

from hookline._engine.optional import require

require("torch", ">=2.4", extra="stable_baselines3", what=__name__)
require("stable_baselines3", ">=2.4", extra="stable_baselines3", what=__name__, distribution="stable-baselines3")

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from stable_baselines3.common import logger as sb3_logger
from stable_baselines3.common.callbacks import BaseCallback

from hookline._engine.defaults import NAME
from hookline._record.media import Figure, Image, Video
from hookline.integrations.host_callback import HostCallback, LearningRateView
from hookline.loops.options import RunOptions

__all__ = ["Episode", "HooklineCallback"]

MODEL = "model.zip"
REPLAY_BUFFER = "replay_buffer.pkl"
NORMALIZATION = "vecnormalize.pkl"
EVALUATION = "eval/"
TRAINING = "train/"


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode that ended during a rollout, as the environment's `Monitor` reports it.

    Attributes:
        total: The sum of its rewards.
        length: Its steps.
    """

    total: float
    length: int


class HooklineCallback(HostCallback, BaseCallback):
    """Fires hookline's moments in ``learn``: ``model.learn(..., callback=hooks)``.

    Args:
        callbacks, name, options: As for every run of hookline.
        resume: The directory of a checkpoint that a callback saved. The next ``learn`` continues its run with the
            callbacks' states. Load the model yourself, from ``model.zip`` in the directory.
        replay_buffer: Save the replay buffer with checkpoints, for an exact resume of DQN, SAC and their like.
    """

    host = "Stable-Baselines3"
    package = "stable_baselines3"
    no_gradients = "Stable-Baselines3 does not report its gradient steps"
    no_validation_batches = "Stable-Baselines3 reports evaluations when they are over"

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        name: str = NAME,
        resume: str | Path | None = None,
        replay_buffer: bool = False,
        **options: Unpack[RunOptions],
    ) -> None:
        BaseCallback.__init__(self)
        HostCallback.__init__(self, callbacks, name=name, resume=resume, **options)
        self._saves_replay_buffer = replay_buffer
        self._writer = _Writer(self)
        self._episodes: list[Episode] = []
        self._has_rollout = self._stops = False
        self._trained: dict[str, Any] = {}  # the values of the last training, which SB3 dumps with the next iteration

    def _on_training_start(self) -> None:
        self._has_rollout, self._stops, self._trained = False, False, {}
        self.loop.optimizer = self._rate()
        remaining = _iterations(self.model, self.locals.get("total_timesteps"))
        self._begin(self.model.policy, native=self.model, further_steps=remaining)
        self.logger.output_formats.append(self._writer)

    def _on_rollout_start(self) -> None:
        self._end_step()
        if not self._stops:
            self._episodes = []
            self.loop.step_start()
            self.loop.rollout_start(self.loop.step)

    def _on_step(self) -> bool:
        reported = [info["episode"] for info in self.locals.get("infos", ()) if "episode" in info]
        self._episodes += [Episode(float(each["r"]), int(each["l"])) for each in reported]
        return not self._stops

    def _on_rollout_end(self) -> None:
        self._has_rollout = True
        self.loop.rollout_end(self.loop.step, self._episodes)

    def _on_training_end(self) -> None:
        self._end_step()
        self._detach()
        self._end()

    def record(self, values: Mapping[str, Any]) -> None:
        """Record what SB3's logger dumps."""
        if not self.loop.is_running:
            return
        given = {name: _media(value) for name, value in values.items() if not self._is_recorded(name, value)}
        evaluated = {name: value for name, value in given.items() if name.startswith(EVALUATION)}
        row = self.loop.recordable({name: value for name, value in given.items() if name not in evaluated})
        if self.loop.in_step:
            self.loop.log(row)
        elif row:
            self.loop.host_log(row)
        if evaluated:
            named = {f"val/{name.removeprefix(EVALUATION)}": value for name, value in evaluated.items()}
            self.loop.validation_start()
            self.loop.validation_end("val", self.loop.recordable(named | evaluated))

    def _end_step(self) -> None:
        """End the iteration whose rollout was trained on, if there is one."""
        if not self._has_rollout:
            return  # the first one; or its rollout was cut short
        self._has_rollout = False
        values = {name: value for name, value in self.logger.name_to_value.items() if name.startswith(TRAINING)}
        count = f"{TRAINING}n_updates"
        if values.get(count) == self._trained.get(count, -1):
            values = {}  # it did not train after this rollout
        else:
            self._trained = values
        loss = {"loss": values["train/loss"]} if "train/loss" in values else {}
        row = {"timesteps": self.model.num_timesteps} | loss | values
        self.loop.step_end(None, self.loop.recordable(row))
        self._stops = self._boundary() is not None

    def _is_recorded(self, name: str, value: Any) -> bool:
        return name in self._trained and self._trained[name] is value

    def _rate(self) -> LearningRateView:
        model = self.model

        def write(rate: float) -> None:
            # Each training takes the rate from the schedule, by how much of the timesteps is left. Of a lambda, unlike
            # of a function of this module, saved models hold the code: they load without hookline.
            model.learning_rate = rate
            model.lr_schedule = lambda progress_remaining: rate

        def read() -> float:
            # The remaining share of the timesteps, which schedules are functions of, is in a private attribute only.
            return float(model.lr_schedule(getattr(model, "_current_progress_remaining", 1.0)))

        return LearningRateView(read, write)

    def _cannot(self, command: str) -> str | None:
        if command == "validate":
            return "Stable-Baselines3 evaluates in an EvalCallback, at its own frequency."
        return None

    def _write_model(self, directory: Path) -> None:
        self.model.save(directory / MODEL)
        normalization = self.model.get_vec_normalize_env()
        if normalization is not None:
            normalization.save(str(directory / NORMALIZATION))
        save = getattr(self.model, "save_replay_buffer", None)
        if self._saves_replay_buffer and callable(save):
            save(directory / REPLAY_BUFFER)

    def _detach(self) -> None:
        if getattr(self, "model", None) is not None and self._writer in self.logger.output_formats:
            self.logger.output_formats.remove(self._writer)

    def _fail_if_running(self, error: BaseException | None) -> None:
        self._detach()
        super()._fail_if_running(error)


class _Writer(sb3_logger.KVWriter):
    """Passes on what SB3's logger dumps."""

    def __init__(self, callback: HooklineCallback) -> None:
        self._callback = callback

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        self._callback.record(key_values)

    def close(self) -> None:
        pass


def _media(value: Any) -> Any:
    """Return a value of SB3's logger as hookline records it."""
    if isinstance(value, sb3_logger.Figure):
        return Figure(value.figure)
    if isinstance(value, sb3_logger.Image) and not isinstance(value.image, str):
        return Image(value.image, channels="first" if "CH" in value.dataformats else "last")
    if isinstance(value, sb3_logger.Video):  # of TensorBoard's shape: videos x frames x channels x height x width
        return Video(value.frames[0], fps=value.fps, channels="first")
    return value


def _iterations(model: Any, total: Any) -> int | None:
    """Return how many iterations remain, where an iteration is a fixed number of steps of the environments."""
    steps: int | None = getattr(model, "n_steps", None)
    frequency: Any = getattr(model, "train_freq", None)
    if hasattr(frequency, "unit"):  # of DQN, SAC and their like
        steps = frequency.frequency if frequency.unit.value == "step" else None
    if steps is None or not isinstance(total, int):
        return None
    return math.ceil((total - int(model.num_timesteps)) / (steps * int(model.n_envs)))
