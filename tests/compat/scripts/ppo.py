"""PPO in the shape of CleanRL's: settings in a dataclass, vectors of environments, losses with the global step."""

import time
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import wandb
from torch import nn
from torch.distributions import Categorical


@dataclass
class Args:
    exp_name: str = "ppo"
    seed: int = 1
    torch_deterministic: bool = True
    track: bool = True
    wandb_project_name: str = "cleanRL"
    wandb_entity: str | None = None
    env_id: str = "CartPole-v1"
    total_timesteps: int = 256
    learning_rate: float = 2.5e-3
    num_envs: int = 2
    num_steps: int = 32
    gamma: float = 0.99
    gae_lambda: float = 0.95
    num_minibatches: int = 2
    update_epochs: int = 2
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


class Agent(nn.Module):
    def __init__(self, observation, actions):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(observation, 16), nn.Tanh(), nn.Linear(16, 1))
        self.actor = nn.Sequential(nn.Linear(observation, 16), nn.Tanh(), nn.Linear(16, actions))

    def get_action_and_value(self, x, action=None):
        distribution = Categorical(logits=self.actor(x))
        action = distribution.sample() if action is None else action
        return action, distribution.log_prob(action), distribution.entropy(), self.critic(x).squeeze(-1)


if __name__ == "__main__":
    args = Args()
    run_name = f"{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}"
    if args.track:
        wandb.init(
            project=args.wandb_project_name,
            entity=args.wandb_entity,
            config=vars(args),
            name=run_name,
            monitor_gym=True,
            save_code=True,
        )
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(args.env_id) for _ in range(args.num_envs)])
    observations: Any = envs.single_observation_space
    actions: Any = envs.single_action_space
    agent = Agent(observations.shape[0], actions.n)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    global_step, start_time = 0, time.time()
    next_obs = torch.Tensor(envs.reset(seed=args.seed)[0])
    next_done, episodic_return = torch.zeros(args.num_envs), np.zeros(args.num_envs)
    for _iteration in range(args.total_timesteps // (args.num_envs * args.num_steps)):
        rows = []
        for _ in range(args.num_steps):
            global_step += args.num_envs
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
            obs, reward, terminations, truncations, _infos = envs.step(action.numpy())
            done = np.logical_or(terminations, truncations)
            rows.append((next_obs, action, logprob, torch.Tensor(reward), next_done, value))
            episodic_return += reward
            for index in np.flatnonzero(done):
                wandb.log({"charts/episodic_return": episodic_return[index]}, step=global_step)
                episodic_return[index] = 0
            next_obs, next_done = torch.Tensor(obs), torch.Tensor(done)
        b_obs, b_actions, b_logprobs, rewards, dones, values = (
            torch.stack(column) for column in zip(*rows, strict=True)
        )
        with torch.no_grad():
            advantages, last = torch.zeros_like(rewards), 0.0
            next_value = agent.get_action_and_value(next_obs)[3]
            for t in reversed(range(args.num_steps)):
                nonterminal = 1.0 - (next_done if t == args.num_steps - 1 else dones[t + 1])
                following = next_value if t == args.num_steps - 1 else values[t + 1]
                delta = rewards[t] + args.gamma * following * nonterminal - values[t]
                advantages[t] = last = delta + args.gamma * args.gae_lambda * nonterminal * last
        returns, flat = (advantages + values).reshape(-1), advantages.reshape(-1)
        b_obs, b_actions, b_logprobs = b_obs.flatten(0, 1), b_actions.reshape(-1), b_logprobs.reshape(-1)
        for _ in range(args.update_epochs):
            for chunk in torch.randperm(len(flat)).chunk(args.num_minibatches):
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[chunk], b_actions[chunk])
                ratio = (newlogprob - b_logprobs[chunk]).exp()
                clipped = torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = torch.max(-flat[chunk] * ratio, -flat[chunk] * clipped).mean()
                v_loss = 0.5 * ((newvalue - returns[chunk]) ** 2).mean()
                loss = pg_loss - args.ent_coef * entropy.mean() + args.vf_coef * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
        wandb.log({"losses/value_loss": v_loss.item(), "losses/policy_loss": pg_loss.item()}, step=global_step)
        wandb.log({"charts/SPS": int(global_step / (time.time() - start_time))}, step=global_step)
    envs.close()
    wandb.finish()
    print("final loss", loss.item())
