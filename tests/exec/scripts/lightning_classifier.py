"""A classifier in Lightning, with validation, checkpoints and a TensorBoardLogger."""

import json

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 3)
        self.losses = []

    def _loss(self, batch):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.layer(x), y)

    def training_step(self, batch, batch_idx):
        loss = self._loss(batch)
        self.log("train_loss", loss)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self._loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


seed_everything(29)
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randint(0, 3, (32,)))
model = Classifier()
trainer = Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=TensorBoardLogger("logs"),
    log_every_n_steps=1,
    callbacks=[EarlyStopping("val_loss", patience=5), ModelCheckpoint("checkpoints", monitor="val_loss")],
    enable_progress_bar=False,
    enable_model_summary=False,
)
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
trainer.fit(model, loader, torch.utils.data.DataLoader(data, batch_size=16))
print("RESULT", json.dumps([*model.losses, trainer.callback_metrics["val_loss"].item(), torch.rand(1).item()]))
