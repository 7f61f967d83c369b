"""A training that dies in its fourth step at the first start."""

import os

import torch

import hookline as hl

torch.set_num_threads(1)
torch.manual_seed(0)


class Dies(hl.Callback):
    def on_step_start(self, loop, step_idx):
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and step_idx == 3:
            os._exit(1)


data = torch.utils.data.TensorDataset(x := torch.randn(24, 4), x.sum(1, keepdim=True))
config = hl.TrainerConfig(name="elastic", max_steps=6, batch_size=2, resume="auto", summary=False, console=False)
callbacks = [hl.callbacks.CheckpointCallback(every_n_steps=2), Dies()]
model = torch.nn.Linear(4, 1)
hl.Trainer(model, data, config=config, loss=torch.nn.functional.mse_loss, callbacks=callbacks).fit()
