"""A small network and a few steps of training, for tests that carry methods out without the runner."""

import torch
from torch import nn

from secateur.train.recipe import Recipe


def small_network():
    """A convolution, two linear layers and a dropout, for images of 6×6 pixels and three classes."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 12), nn.Dropout(0.5), nn.ReLU(), nn.Linear(12, 3)
    )


def train(model, steps=4, between=None):
    """Take a few steps that decay weights too, as a retraining does."""
    inputs, labels = torch.randn(24, 1, 6, 6), torch.arange(24) % 3
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=1e-2, weight_decay=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if between is not None:
            between(step + 1, steps)


def carry_out(method, model, after=lambda stage: None, recipe=None):
    """Train every stage of a method and return the finished network."""
    stages = method.stages(model, recipe or Recipe())
    while True:
        try:
            stage = next(stages)
        except StopIteration as end:
            return end.value
        train(stage.model, between=stage.between)
        after(stage)
