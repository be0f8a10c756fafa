"""Pieces for tests of quantisers: weights with zeros, a few steps of training, and what is looked at afterwards."""

import math

import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from secateur import build_sibling, coded_bits, learned_thresholds, parameter_groups, penalty
from secateur.functions.quantizer import Quantizer
from secateur.weights.tensors import tensors

METHODS = ["shared", "uniform", "int8", "int4"]
sizes = st.builds(math.ldexp, st.floats(2**-10, 2, width=32), st.sampled_from([0, 0, 0, -45, -90]))
weights = st.lists(st.one_of(st.just(0.0), sizes, sizes.map(lambda x: -x)), min_size=1, max_size=60)


def sparse(model, share=0.5):
    """Set this share of every weight matrix to zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter *= torch.rand_like(parameter) >= share
    return model


def layer_of(values):
    layer = nn.Linear(len(values), 1)
    layer.weight.data = torch.tensor([values])
    return layer


def quantizers(model):
    return {
        name: tensor.function(Quantizer) for tensor in tensors(model) if tensor.has(Quantizer) for name in tensor.names
    }


def matrices(model):
    return {name: value for name, value in model.state_dict().items() if value.dim() > 1}


def entropy_bits(counts):
    counts = counts[counts > 0].double()
    return -(counts * torch.log2(counts / counts.sum())).sum().item()


def tune(model, x, steps=3, lr=1e-2, rate=0.0):
    optimizer = torch.optim.Adam(parameter_groups(model, lr=lr, lambda_wd=1e-3))
    for _ in range(steps):
        outputs = model(x)
        loss = functional.cross_entropy(outputs, torch.arange(len(outputs)) % outputs.shape[1])
        if learned_thresholds(model):
            loss = loss + penalty(model)
        (loss + rate * coded_bits(model)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def sibling_at(threshold, model):
    build_sibling(model)
    for function in learned_thresholds(model).values():
        nn.init.constant_(function.threshold, threshold)
    return model
