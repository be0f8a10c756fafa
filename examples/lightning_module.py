"""Pruning in Lightning: an ordinary LightningModule, and one callback.

Two lines are marked with "secateur:". Runs in half a minute:
pip install "secateur[lightning,digits]"; python examples/lightning_module.py
"""

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from secateur import Budget
from secateur.integrations.lightning import Pruning  # secateur: the callback
from secateur.measure import count


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    held_out = torch.arange(len(y)) % 5 == 0
    train = torch.utils.data.TensorDataset(x[~held_out], y[~held_out])

    module = Digits()
    trainer = lightning.Trainer(
        max_epochs=30,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Pruning(Budget(ratio=20))],  # secateur: how small
    )
    trainer.fit(module, torch.utils.data.DataLoader(train, batch_size=64, shuffle=True))

    kept = count(module).prunable  # the module is plain again, with exact zeros
    error = 100 * (module.net(x[held_out]).argmax(1) != y[held_out]).float().mean().item()
    print(f"kept {kept.kept:,} of {kept.weights:,} weights, {kept.ratio:.1f}× fewer; error {error:.1f} %")


if __name__ == "__main__":
    main()
