"""Learned thresholds in Lightning: the penalty in `training_step`, the groups in `configure_optimizers`.

Nothing else changes. The callback below only prints progress. Runs in half a minute:
pip install lightning; python examples/lightning_module.py
"""

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import secateur
from secateur.measure import count


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))
        secateur.build_sibling(self.net)

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self.net(x), y) + secateur.penalty(self.net, lambda_t=1e-2)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("error", 100 * (self.net(x).argmax(1) != y).float().mean())

    def configure_optimizers(self):
        # Adam, not AdamW: its decoupled weight decay differs from the paper's.
        optimizer = torch.optim.Adam(secateur.parameter_groups(self.net, lr=1e-3, rho=0.3, lambda_wd=1e-3))
        epochs = self.trainer.max_epochs
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / epochs)]


class Report(lightning.Callback):
    """Print the thresholds, and the ratio that a cut would give, every ten epochs."""

    def on_validation_epoch_end(self, trainer, module):
        if not trainer.sanity_checking and trainer.current_epoch % 10 == 9:
            thresholds = [f.threshold.item() for f in secateur.learned_thresholds(module.net).values()]
            ratio = count(secateur.prune(module.net, allow_empty=True)).prunable.ratio
            shown = " ".join(f"{t:.3f}" for t in thresholds)
            error = trainer.callback_metrics["error"]
            print(f"epoch {trainer.current_epoch + 1}: {ratio:.1f}×, t {shown}, error {error:.1f} %")


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    held_out = torch.arange(len(y)) % 5 == 0
    train = torch.utils.data.TensorDataset(x[~held_out], y[~held_out])
    test = torch.utils.data.TensorDataset(x[held_out], y[held_out])

    module = Digits()
    trainer = lightning.Trainer(
        max_epochs=50,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Report()],
    )
    trainer.fit(
        module,
        torch.utils.data.DataLoader(train, batch_size=64, shuffle=True),
        torch.utils.data.DataLoader(test, batch_size=360),
    )

    pruned = secateur.prune(module.net)  # a plain nn.Sequential
    kept = count(pruned).prunable
    error = 100 * (pruned(x[held_out]).argmax(1) != y[held_out]).float().mean().item()
    print(f"kept {kept.kept:,} of {kept.weights:,} weights, {kept.ratio:.1f}× fewer; error {error:.1f} %")


if __name__ == "__main__":
    main()
