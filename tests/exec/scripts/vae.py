"""A variational autoencoder, as in PyTorch's examples, that writes images with a SummaryWriter."""

import json

import torch
import torch.nn.functional as F
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(37)
torch.set_num_threads(1)
encoder, decoder = torch.nn.Linear(64, 8), torch.nn.Linear(4, 64)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2)
data = torch.rand(32, 64)
writer = SummaryWriter("logs")
losses = []
for step, index in enumerate(torch.randperm(32).split(8)):
    mean, logvar = encoder(data[index]).chunk(2, 1)
    recon = torch.sigmoid(decoder(mean + torch.randn_like(mean) * (0.5 * logvar).exp()))
    loss = F.binary_cross_entropy(recon, data[index]) - 0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    writer.add_scalar("loss", loss.item(), step)
    writer.add_image("recon", recon[:1].view(1, 8, 8), step)
    writer.add_histogram("mean", mean, step)
writer.close()
print("RESULT", json.dumps([*losses, torch.rand(1).item()]))
