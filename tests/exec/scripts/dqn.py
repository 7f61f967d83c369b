"""DQN in CleanRL's shape: an environment, a replay buffer, and a SummaryWriter."""

import json
import random

import gymnasium as gym
import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

random.seed(41)
np.random.seed(41)
torch.manual_seed(41)
torch.set_num_threads(1)
env = gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))
q = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
writer = SummaryWriter("logs")
buffer, losses = [], []
obs, _ = env.reset(seed=41)
for step in range(60):
    action = random.randrange(2) if random.random() < 0.3 else int(q(torch.tensor(obs)).argmax())
    following, reward, terminated, truncated, info = env.step(action)
    buffer.append((obs, action, float(reward), following, terminated))
    obs = following
    if terminated or truncated:
        writer.add_scalar("charts/episodic_return", info["episode"]["r"], step)
        obs, _ = env.reset()
    if step >= 20 and step % 4 == 0:
        state, taken, rewards, after, done = map(np.array, zip(*random.sample(buffer, 8), strict=True))
        with torch.no_grad():
            target = torch.tensor(rewards).float() + 0.99 * q(torch.tensor(after)).max(1).values * torch.tensor(~done)
        predicted = q(torch.tensor(state)).gather(1, torch.tensor(taken)[:, None]).squeeze()
        loss = torch.nn.functional.mse_loss(predicted, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        writer.add_scalar("losses/td_loss", loss.item(), step)
writer.close()
print("RESULT", json.dumps([*losses, random.random(), torch.rand(1).item()]))
