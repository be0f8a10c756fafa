"""Learned thresholds in your own training loop: what changes, and what does not.

Three lines are marked with "secateur:". Everything else is an ordinary loop, with a scheduler, clipped gradients and a
checkpoint to resume from. Runs in a quarter of a minute: python examples/own_loop.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import secateur
from secateur.measure import count

EPOCHS = 40


def main() -> None:
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    train = torch.utils.data.TensorDataset(images[~held_out], labels[~held_out])

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    )
    secateur.build_sibling(model)  # secateur: layers now read their weights through θ
    groups = secateur.parameter_groups(model, lr=1e-3, rho=0.4, lambda_wd=1e-3)  # secateur: thresholds at ρ·lr
    optimizer = torch.optim.Adam(groups)
    weights = [parameter for group in groups if "rho" not in group for parameter in group["params"]]
    # One factor for all groups keeps the ratio ρ of their rates; a schedule of absolute rates would overwrite it.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / EPOCHS)

    with TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint.pt"
        for epoch in range(EPOCHS):
            for x, y in torch.utils.data.DataLoader(train, batch_size=64, shuffle=True):
                loss = F.cross_entropy(model(x), y)
                loss = loss + secateur.penalty(model, lambda_t=1e-2)  # secateur: pushes the thresholds up
                optimizer.zero_grad()
                loss.backward()
                # Only the weights: the gradient of a threshold is a sum over a whole layer and would dominate the norm.
                nn.utils.clip_grad_norm_(weights, 5.0)
                optimizer.step()
            schedule.step()
            # State dicts as usual: thresholds are parameters, so they are included.
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
            if epoch == EPOCHS // 2:  # simulates a process that was killed here and restarted
                saved = torch.load(checkpoint, weights_only=True)
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
        pruned = secateur.prune(model)
        size = secateur.save(pruned, Path(folder) / "digits.cut")

    error = 100 * (pruned(images[held_out]).argmax(1) != labels[held_out]).float().mean().item()
    kept = count(pruned).prunable
    print(
        f"kept {kept.kept:,} of {kept.weights:,} weights, {kept.ratio:.1f}× fewer; {size:,} bytes; error {error:.1f} %"
    )


if __name__ == "__main__":
    main()
