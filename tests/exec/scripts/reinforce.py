"""REINFORCE, as in PyTorch's examples: it only prints."""

import json

import gymnasium as gym
import torch

torch.manual_seed(53)
torch.set_num_threads(1)
env = gym.make("CartPole-v1")
policy = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
losses = []
for episode in range(3):
    state, _ = env.reset(seed=episode)
    log_probs, rewards, done = [], [], False
    while not done and len(rewards) < 20:
        chosen = torch.distributions.Categorical(logits=policy(torch.tensor(state)))
        action = chosen.sample()
        log_probs.append(chosen.log_prob(action))
        state, reward, terminated, truncated, _ = env.step(action.item())
        rewards.append(float(reward))
        done = terminated or truncated
    returns = torch.tensor([sum(0.99**k * r for k, r in enumerate(rewards[i:])) for i in range(len(rewards))])
    loss = -(torch.stack(log_probs) * (returns - returns.mean())).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    print(f"Episode {episode}\tloss {loss.item():.3f}")
print("RESULT", json.dumps([*losses, torch.rand(1).item()]))
