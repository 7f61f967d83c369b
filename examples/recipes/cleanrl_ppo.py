"""A loop in the shape of CleanRL's ``ppo.py``: rollouts of several environments, and minibatch updates on them.

The lines for hookline are marked with "hookline".
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import hookline as hl  # hookline

NUM_ENVS, NUM_STEPS, NUM_ITERATIONS, UPDATE_EPOCHS, MINIBATCH_SIZE = 4, 64, 12, 4, 64
LEARNING_RATE, GAMMA, GAE_LAMBDA, CLIP, ENT_COEF, VF_COEF, MAX_GRAD_NORM = 5e-3, 0.99, 0.95, 0.2, 0.01, 0.5, 0.5


class Agent(nn.Module):  # type: ignore[misc]
    """An actor and a critic."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))

    def get_action_and_value(self, x: torch.Tensor, action: Any = None) -> tuple[Any, Any, Any, Any]:
        """Return an action, its log-probability, the entropy and the value."""
        probs = Categorical(logits=self.actor(x))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(x).flatten()


def main() -> None:
    """Balance a pole."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(NUM_ENVS)])
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    obs, actions, logprobs, rewards, dones, values = (
        torch.zeros((NUM_STEPS, NUM_ENVS, *shape)) for shape in ((4,), (), (), (), (), ())
    )
    next_obs, next_done = torch.tensor(envs.reset(seed=1)[0]), torch.zeros(NUM_ENVS)
    lengths, finished = np.zeros(NUM_ENVS), [0.0]
    with hl.run("cartpole", config={"gamma": GAMMA, "clip": CLIP}, callbacks=["print_progress"]) as run:  # hookline
        run.model, run.optimizer = agent, optimizer  # hookline
        for _ in run.steps(NUM_ITERATIONS):  # hookline
            for step in range(NUM_STEPS):
                obs[step], dones[step] = next_obs, next_done
                with torch.no_grad():
                    action, logprobs[step], _, values[step] = agent.get_action_and_value(next_obs)
                actions[step] = action
                new_obs, reward, terminations, truncations, _ = envs.step(action.numpy())
                rewards[step], lengths = torch.tensor(reward, dtype=torch.float32), lengths + 1
                ended = np.logical_or(terminations, truncations)
                finished += lengths[ended].tolist()
                lengths[ended] = 0
                next_obs, next_done = torch.tensor(new_obs), torch.tensor(ended, dtype=torch.float32)
            advantages, lastgaelam = torch.zeros_like(rewards), torch.zeros(NUM_ENVS)
            with torch.no_grad():
                next_value = agent.critic(next_obs).flatten()
            for t in reversed(range(NUM_STEPS)):
                following = (next_value, next_done) if t == NUM_STEPS - 1 else (values[t + 1], dones[t + 1])
                delta = rewards[t] + GAMMA * following[0] * (1 - following[1]) - values[t]
                advantages[t] = lastgaelam = delta + GAMMA * GAE_LAMBDA * (1 - following[1]) * lastgaelam
            flat = [each.flatten(0, 1) for each in (obs, actions, logprobs, advantages, advantages + values)]
            for _ in range(UPDATE_EPOCHS):
                for mb_inds in torch.randperm(NUM_STEPS * NUM_ENVS).split(MINIBATCH_SIZE):
                    b_obs, b_actions, b_logprobs, b_advantages, b_returns = (each[mb_inds] for each in flat)
                    _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs, b_actions)
                    ratio = (newlogprob - b_logprobs).exp()
                    normed = (b_advantages - b_advantages.mean()) / (b_advantages.std() + 1e-8)
                    pg_loss = torch.max(-normed * ratio, -normed * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                    v_loss = 0.5 * (newvalue - b_returns).square().mean()
                    loss = pg_loss - ENT_COEF * entropy.mean() + VF_COEF * v_loss
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
                    optimizer.step()
            run.log(loss=loss, policy_loss=pg_loss, value_loss=v_loss, entropy=entropy.mean())  # hookline
            run.log({"charts/episodic_length": float(np.mean(finished[-20:]))})  # hookline
    envs.close()
    print(f"{run.step} iterations, episodes of {run.get_metric('charts/episodic_length'):.0f} steps")


if __name__ == "__main__":
    main()
