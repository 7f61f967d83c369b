"""A language model with an LSTM, as in PyTorch's word_language_model, that writes with tensorboardX."""

import json

import torch
from tensorboardX import SummaryWriter

torch.manual_seed(47)
torch.set_num_threads(1)
embed, rnn, head = torch.nn.Embedding(16, 8), torch.nn.LSTM(8, 8), torch.nn.Linear(8, 16)
parameters = [*embed.parameters(), *rnn.parameters(), *head.parameters()]
corpus = torch.randint(16, (41, 4))
writer = SummaryWriter("logs")
losses, hidden = [], None
for step in range(4):
    x, y = corpus[step * 10 : step * 10 + 10], corpus[step * 10 + 1 : step * 10 + 11]
    output, hidden = rnn(embed(x), None if hidden is None else tuple(each.detach() for each in hidden))
    loss = torch.nn.functional.cross_entropy(head(output).view(-1, 16), y.reshape(-1))
    gradients = torch.autograd.grad(loss, parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.data.add_(gradient, alpha=-0.5)
    losses.append(loss.item())
    writer.add_scalar("loss", loss.item(), step)
writer.close()
print("RESULT", json.dumps([*losses, torch.rand(1).item()]))
