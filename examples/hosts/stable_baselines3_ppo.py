"""PPO of Stable-Baselines3; the lines for hookline are marked with "hookline"."""

from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.monitor import Monitor

from hookline.integrations.stable_baselines3 import HooklineCallback  # hookline


class Echo(gymnasium.Env[Any, Any]):
    """Eight signs, each of which is to be repeated."""

    observation_space = gymnasium.spaces.MultiBinary(1)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Show the first sign."""
        super().reset(seed=seed)
        self.shown = 0
        return self._show(), {}

    def step(self, action: Any) -> Any:
        """Reward a repeated sign, and show the next."""
        reward = float(action == self.sign)
        return self._show(), reward, self.shown > 8, False, {}

    def _show(self) -> Any:
        self.shown += 1
        self.sign = int(self.np_random.integers(2))
        return np.array([self.sign], np.int8)


def main() -> None:
    """Learn to repeat what is shown."""
    torch.set_num_threads(1)
    model = PPO("MlpPolicy", Echo(), n_steps=128, learning_rate=3e-3, seed=0, device="cpu")
    evaluation = EvalCallback(Monitor(Echo()), eval_freq=128, verbose=0)
    hooks = HooklineCallback(["print_progress"], name="echo")  # hookline
    model.learn(8 * 128, callback=[hooks, evaluation])  # hookline


if __name__ == "__main__":
    main()
