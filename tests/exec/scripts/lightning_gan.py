"""A GAN in Lightning: two optimizers and manual optimization."""

import json

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything


class GAN(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
        self.discriminator = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        self.losses = []

    def training_step(self, batch, batch_idx):
        (real,) = batch
        optimizer_g, optimizer_d = self.optimizers()
        fake = self.generator(torch.randn(len(real), 4))
        bce = torch.nn.functional.binary_cross_entropy_with_logits
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        g_loss = bce(self.discriminator(fake), ones)
        optimizer_g.zero_grad()
        self.manual_backward(g_loss)
        optimizer_g.step()
        d_loss = bce(self.discriminator(real), ones) + bce(self.discriminator(fake.detach()), zeros)
        optimizer_d.zero_grad()
        self.manual_backward(d_loss)
        optimizer_d.step()
        self.log_dict({"g_loss": g_loss, "d_loss": d_loss})
        self.losses.append(d_loss.item())

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.generator.parameters(), lr=1e-2),
            torch.optim.Adam(self.discriminator.parameters(), lr=1e-2),
        )


seed_everything(3)
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn(32, 8))
model = GAN()
trainer = Trainer(
    max_epochs=2, log_every_n_steps=1, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False
)
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8, shuffle=True))
print("RESULT", json.dumps([*model.losses, torch.rand(1).item()]))
