"""PPO on CartPole that writes to TensorBoard, in the shape of CleanRL's; only the import is hookline's.

The table of hyperparameters that it writes as a text becomes the configuration of the run.
"""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from hookline.compat.tensorboard import SummaryWriter  # from torch.utils.tensorboard import SummaryWriter


def parse_args() -> argparse.Namespace:
    """The hyperparameters."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--exp-name", default="ppo")
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-timesteps", type=int, default=10_000)
    parser.add_argument("--learning-rate", type=float, default=2.5e-3)
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--num-steps", type=int, default=128)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--update-epochs", type=int, default=4)
    parser.add_argument("--clip-coef", type=float, default=0.2)
    parser.add_argument("--ent-coef", type=float, default=0.01)
    parser.add_argument("--vf-coef", type=float, default=0.5)
    parser.add_argument("--max-grad-norm", type=float, default=0.5)
    return parser.parse_args()


class Agent(nn.Module):  # type: ignore[misc]
    """An actor and a critic."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(
            nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, actions)
        )

    def act(
        self, x: torch.Tensor, action: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """An action with its log probability, the entropy, and the value of the state."""
        probabilities = Categorical(logits=self.actor(x))
        action = probabilities.sample() if action is None else action
        return action, probabilities.log_prob(action), probabilities.entropy(), self.critic(x).flatten()


def main() -> None:
    """Learn to balance the pole."""
    args = parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    writer = SummaryWriter(f"runs/{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}")
    writer.add_text(
        "hyperparameters",
        "|param|value|\n|-|-|\n" + "\n".join(f"|{key}|{value}|" for key, value in vars(args).items()),
    )

    envs = gym.vector.SyncVectorEnv(
        [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id)) for _ in range(args.num_envs)]
    )
    agent = Agent(4, 2)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    shape, batch_size = (args.num_steps, args.num_envs), args.num_steps * args.num_envs
    obs, actions = torch.zeros((*shape, 4)), torch.zeros(shape)
    logprobs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
    global_step, start_time, returns = 0, time.time(), [0.0]
    next_obs, next_done = torch.tensor(envs.reset(seed=args.seed)[0]), torch.zeros(args.num_envs)

    for _ in range(args.total_timesteps // batch_size):
        for step in range(args.num_steps):
            global_step += args.num_envs
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                actions[step], logprobs[step], _, values[step] = agent.act(next_obs)
            state, reward, terminated, truncated, infos = envs.step(actions[step].long().numpy())
            rewards[step] = torch.tensor(reward)
            next_obs, next_done = torch.tensor(state), torch.tensor(np.logical_or(terminated, truncated)).float()
            for index in np.flatnonzero(infos.get("_episode", ())):
                returns.append(float(infos["episode"]["r"][index]))
                writer.add_scalar("charts/episodic_return", infos["episode"]["r"][index], global_step)
                writer.add_scalar("charts/episodic_length", infos["episode"]["l"][index], global_step)

        with torch.no_grad():
            next_value, advantages, last = agent.critic(next_obs).flatten(), torch.zeros_like(rewards), 0.0
            for step in reversed(range(args.num_steps)):
                is_last = step == args.num_steps - 1
                alive = 1.0 - (next_done if is_last else dones[step + 1])
                following = next_value if is_last else values[step + 1]
                delta = rewards[step] + args.gamma * following * alive - values[step]
                advantages[step] = last = delta + args.gamma * args.gae_lambda * alive * last
            targets = advantages + values

        flat_obs, flat_actions = obs.reshape(-1, 4), actions.flatten()
        for _ in range(args.update_epochs):
            for part in torch.randperm(batch_size).chunk(args.num_minibatches):
                _, newlogprob, entropy, newvalue = agent.act(flat_obs[part], flat_actions[part])
                logratio = newlogprob - logprobs.flatten()[part]
                ratio = logratio.exp()
                advantage = advantages.flatten()[part]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = torch.max(-advantage * ratio, -advantage * clipped).mean()
                v_loss = 0.5 * ((newvalue - targets.flatten()[part]) ** 2).mean()
                entropy_loss = entropy.mean()
                optimizer.zero_grad()
                (pg_loss - args.ent_coef * entropy_loss + args.vf_coef * v_loss).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()

        writer.add_scalar("charts/learning_rate", optimizer.param_groups[0]["lr"], global_step)
        writer.add_scalar("losses/value_loss", v_loss.item(), global_step)
        writer.add_scalar("losses/policy_loss", pg_loss.item(), global_step)
        writer.add_scalar("losses/entropy", entropy_loss.item(), global_step)
        writer.add_scalar("losses/approx_kl", ((ratio - 1) - logratio).mean().item(), global_step)
        writer.add_scalar("charts/SPS", int(global_step / (time.time() - start_time)), global_step)

    envs.close()
    writer.close()
    print(f"{global_step} steps, {len(returns) - 1} episodes, return {np.mean(returns[-10:]):.0f}")


if __name__ == "__main__":
    main()
