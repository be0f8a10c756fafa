"""Named settings: the paper's, whose epochs have a published search, and recipes that go further."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from secateur.experiments.compress import Compression
from secateur.experiments.job import Job
from secateur.nearest import require_one_of
from secateur.sibling import SiblingConfig
from secateur.train.loop import TrainConfig

# The paper names every hyper-parameter but the batch size and the number of epochs. Under Adam a threshold moves by
# about lr·ρ per step whatever the loss says, so sparsity follows the epochs: they are chosen on validation images.
_PAPER_EPOCHS = {"lenet-300-100": 52, "lenet-5": 23}

# A learning rate that goes to zero, a softer θ (α = 50) and a fine-tune after the cut. Only what was searched has a log
# beside its results (*search.json).
_LONG = TrainConfig(epochs=160, fine_tune_epochs=60, schedule="cosine", fine_tune_lr=2e-3, rho=0.030, input_dropout=0.1)
_AUGMENTED = replace(_LONG, input_dropout=0.0, augment=0.5, scaling="standard")

_PRESETS: Mapping[str, Mapping[str, tuple[SiblingConfig, TrainConfig]]] = {
    "paper": {name: (SiblingConfig(), TrainConfig(epochs=epochs)) for name, epochs in _PAPER_EPOCHS.items()},
    "quick": {
        "lenet-300-100": (
            SiblingConfig(alpha=50),
            TrainConfig(epochs=36, fine_tune_epochs=8, schedule="cosine", rho=0.07, input_dropout=0.1),
        ),
        "lenet-5": (
            SiblingConfig(alpha=50),
            TrainConfig(epochs=6, fine_tune_epochs=2, schedule="cosine", rho=0.2, input_dropout=0.1),
        ),
    },
    "accurate": {"lenet-300-100": (SiblingConfig(alpha=50), replace(_LONG, rho=0.017))},
    "best": {
        "lenet-300-100": (SiblingConfig(alpha=50), _LONG),
        "lenet-5": (SiblingConfig(alpha=50), replace(_LONG, epochs=40, fine_tune_epochs=20, rho=0.06)),
    },
    "best-augmented": {
        "lenet-300-100": (SiblingConfig(alpha=50), replace(_AUGMENTED, rho=0.046)),
        "lenet-5": (SiblingConfig(alpha=50), replace(_AUGMENTED, epochs=40, fine_tune_epochs=30, rho=0.09)),
    },
}

# Chosen on validation images, two seeds of best-augmented LeNet-300-100 (levels-search.json beside its results); the
# values of convolutions were not searched.
_FEW = Compression(levels=12, conv_levels=16, bias_levels=31, quantize_epochs=8)
_COMPRESSIONS: Mapping[str, Compression] = {
    # The paper's future work: its pruning, then Deep Compression's weight sharing and coding as published.
    "paper": Compression(codec="huffman", sort_units=False),
    "quick": replace(_FEW, quantize_epochs=3),
    "accurate": _FEW,
    "best": _FEW,
    "best-augmented": _FEW,
}


def preset_names() -> tuple[str, ...]:
    """Name the presets."""
    return tuple(_PRESETS)


def preset(name: str, network: str, **settings: Any) -> Job:
    """Return the job that a preset describes for a network; other fields of the job as `settings`."""
    require_one_of("preset", name, _PRESETS)
    known = _PRESETS[name]
    if network not in known:
        if name == "paper":
            return Job(network=network, **settings)
        raise ValueError(f'preset "{name}" has settings for {", ".join(known)}, not for "{network}"')
    sibling, train = known[network]
    return Job(network=network, sibling=sibling, train=train, **settings)


def compression_preset(name: str) -> Compression:
    """Return how a preset turns its pruned network into a file."""
    require_one_of("preset", name, _COMPRESSIONS)
    return _COMPRESSIONS[name]
