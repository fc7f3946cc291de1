"""Lightning's own checkpoints: python write_lightning.py FOLDER."""
import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.Linear(20, 3))

    def training_step(self, batch, _):
        return self.net(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 12)), batch_size=2)
keep = ModelCheckpoint(sys.argv[1], every_n_train_steps=4, save_top_k=-1)
lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=[keep]).fit(Model(), data)
