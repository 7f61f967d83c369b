"""``learn`` of Stable-Baselines3."""

from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.monitor import Monitor

from hookline.integrations.stable_baselines3 import HooklineCallback
from hosts.base import BATCHES, STEPS, Host

ROLLOUT = 8
"""How many steps of the environment an iteration takes."""


class Corridor(gymnasium.Env):
    """Four steps, each of which is rewarded if it goes right."""

    observation_space = gymnasium.spaces.Box(0, 4, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.full(1, self.steps, np.float32), float(action), self.steps == 4, False, {}


class StableBaselines3(Host):
    """``stable_baselines3.PPO.learn``."""

    name = "stable_baselines3"
    monitor = "val/mean_reward"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        torch.set_num_threads(1)
        settings = {"n_steps": ROLLOUT, "batch_size": ROLLOUT, "n_epochs": 2, "seed": 0, "device": "cpu"}
        if resume is None:
            model = PPO("MlpPolicy", Corridor(), policy_kwargs={"net_arch": [4]}, **settings)
        else:
            model = PPO.load(resume / "model.zip", Corridor(), device="cpu")
        iterations = STEPS if resume is None else STEPS - BATCHES
        evaluation = EvalCallback(Monitor(Corridor()), n_eval_episodes=1, eval_freq=ROLLOUT, verbose=0)
        with HooklineCallback(callbacks, resume=resume, name=self.name, **self.options) as hooks:
            self.loop = hooks.loop
            model.learn(iterations * ROLLOUT, callback=[hooks, evaluation], reset_num_timesteps=resume is None)
