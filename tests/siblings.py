"""Siblings with known thresholds, and what tests compare of them."""

import io

import torch
from torch import nn

from secateur import build_sibling, learned_thresholds, penalty


def sibling_at(threshold, model):
    """Build a sibling whose thresholds all have this value."""
    build_sibling(model)
    for function in learned_thresholds(model).values():
        nn.init.constant_(function.threshold, threshold)
    return model


def gradients(model, x, run=None):
    """The gradients of a loss with the penalty, by parameter name; `run` computes the outputs instead of the model."""
    model.zero_grad()
    outputs = model(x) if run is None else run(x)
    (outputs.square().mean() + penalty(model)).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def saved_bytes(model):
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.tell()
