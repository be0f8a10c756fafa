"""Prune a network that is already trained, starting from exactly the function it computes.

With init="inverse" a sibling stores θ⁻¹(W), so that layers read θ(θ⁻¹(W)) = W and training starts at the accuracy of
the trained network. Runs in half a minute: python examples/pretrained.py
"""

import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import secateur
from secateur.measure import count

digits = load_digits()
images, labels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
held_out = torch.arange(len(labels)) % 5 == 0


def train(model, optimizer, epochs, extra=lambda: 0.0):
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / epochs)
    for _ in range(epochs):
        for rows in torch.randperm(int((~held_out).sum())).split(64):
            loss = F.cross_entropy(model(images[~held_out][rows]), labels[~held_out][rows]) + extra()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()


def error(model):
    with torch.no_grad():
        return 100 * (model.eval()(images[held_out]).argmax(1) != labels[held_out]).float().mean().item()


def pretrained():
    """Train a network; with your own, use model.load_state_dict(torch.load("yours.pt", weights_only=True))."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )
    train(model, torch.optim.Adam(model.parameters(), lr=1e-3), epochs=15)
    return model.eval()


def main() -> None:
    model = pretrained()
    print(f"pretrained: {count(model).prunable.weights:,} weights, error {error(model):.1f} %")

    # The last layer is small, so it is not pruned.
    config = secateur.SiblingConfig(init="inverse", alpha=50)
    sibling = secateur.build_sibling(copy.deepcopy(model), config, layers={"8": None})
    with torch.no_grad():
        change = (sibling(images[:100]) - model(images[:100])).abs().max().item()
    print(f"the sibling computes the same function: the largest difference is {change:.1e}")

    optimizer = torch.optim.Adam(secateur.parameter_groups(sibling, lr=1e-3, rho=0.6, lambda_wd=1e-3))
    sibling.train()
    train(sibling, optimizer, epochs=40, extra=lambda: secateur.penalty(sibling))
    pruned = secateur.prune(sibling)
    secateur.keep_zeros(pruned).train()
    train(pruned, torch.optim.Adam(pruned.parameters(), lr=1e-3), epochs=5)
    pruned = secateur.prune(pruned)
    kept = count(pruned).prunable
    print(f"kept {kept.kept:,} of {kept.weights:,} weights, {kept.ratio:.1f}× fewer; error {error(pruned):.1f} %")


if __name__ == "__main__":
    main()
