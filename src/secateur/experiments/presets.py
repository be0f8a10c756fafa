"""Named settings, and the names of runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from secateur.budget import Budget
from secateur.job import Coding, InputConfig, Job
from secateur.methods import Budgeted, FewValues, Han2015, Joint, Manessi2018, Method
from secateur.nearest import require_one_of
from secateur.sibling import SiblingConfig
from secateur.train.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Settings for one network: training, pruning, sharing values, and writing the file."""

    method: Method
    recipe: Recipe = field(default_factory=Recipe)
    inputs: InputConfig = field(default_factory=InputConfig)
    few_values: FewValues = field(default_factory=FewValues)
    coding: Coding = field(default_factory=Coding)


_SOFT = SiblingConfig(alpha=50)  # the paper's α is 100
# Chosen on validation images, two seeds of best-augmented LeNet-300-100 (levels-search.json next to its results); the
# values of convolutions were not searched.
_FEW = FewValues(levels=12, conv_levels=16, bias_levels=31, quantize_epochs=8)
_QUICK_FEW = replace(_FEW, quantize_epochs=3)
# The paper's future work: its pruning, then Deep Compression's weight sharing and coding as published.
_PUBLISHED_CODING = Coding(codec="huffman", sort_units=False)
_DROPOUT = InputConfig(input_dropout=0.1)
_AUGMENTED = InputConfig(augment=0.5, scaling="standard")
_PHOTOGRAPHS = InputConfig(scaling="levels", crop="alexnet")  # as AlexNet's initial weights and augmentation need them


def _paper(epochs: int) -> Preset:
    return Preset(method=Manessi2018(), recipe=Recipe(epochs=epochs), coding=_PUBLISHED_CODING)


def _paper_form(epochs: int, method: Manessi2018, inputs: InputConfig = _DROPOUT) -> Preset:
    """Return the paper's form as far as it goes: a softer θ, a rate that falls to zero, a fine-tune after the cut."""
    method = replace(method, sibling=_SOFT, fine_tune_lr=2e-3)
    return Preset(method=method, recipe=Recipe(epochs=epochs, schedule="cosine"), inputs=inputs, few_values=_FEW)


# The paper's section on AlexNet. Batch size and epochs are Krizhevsky's, to whom it refers; he lowered the rate by
# hand, three times, and Caffe's solver for this network does so every 20 epochs (100,000 steps of 256 images).
_PAPER_ALEXNET = Preset(
    method=Manessi2018(sibling=SiblingConfig(alpha=100, init_quantile=0), rho=1e-11, lambda_t=1e-2, cutoff=1e-3),
    recipe=Recipe(
        epochs=90,
        batch_size=128,
        optimizer="sgd",
        lr=1e-2,
        bias_lr=2,
        schedule="step",
        step_epochs=20,
        step_factor=0.1,
        lambda_wd=5e-4,
    ),
    inputs=_PHOTOGRAPHS,
    coding=_PUBLISHED_CODING,
)


def _sgd(epochs: int, **settings: float) -> Recipe:
    """Return the recipe of the budget form: SGD with a learning rate that falls to zero."""
    return Recipe(epochs=epochs, optimizer="sgd", schedule="cosine", **{"lr": 0.1, **settings})  # type: ignore[arg-type]


def _sgd_lenet_5(epochs: int) -> Recipe:
    """Return the same for LeNet-5; at this rate its first steps are at the edge of divergence, hence the clipping."""
    return _sgd(epochs, lr=0.05, clip_norm=1.0)


def _budget(ratio: float, recipe: Recipe, inputs: InputConfig = _DROPOUT, few_values: FewValues = _FEW) -> Preset:
    """Return a preset that prunes to a ratio."""
    return Preset(method=Budgeted(budget=Budget(ratio=ratio)), recipe=recipe, inputs=inputs, few_values=few_values)


def _joint(size: int, recipe: Recipe) -> Preset:
    """Return a preset that learns thresholds, weights and their few values together, for a file of a given size."""
    return Preset(method=Joint(bytes=size), recipe=recipe, inputs=_AUGMENTED, few_values=_FEW)


def _vgg(epochs: int) -> Recipe:
    """Return the recipe of VGG-16 for CIFAR-10; on validation images both settings reached less error in 6 epochs."""
    return replace(_sgd(epochs, warmup=0.2), nesterov=True)


def _cifar(ratio: float, recipe: Recipe) -> Preset:
    """Return a preset for photographs of 32×32 pixels; bfloat16 halves the time of a step on CPUs that have it."""
    recipe = replace(recipe, lambda_wd=2.5e-4, precision="bf16")
    inputs = InputConfig(scaling="standard", crop="shift-flip")
    few = FewValues(levels=16, conv_levels=16, quantize_epochs=2)
    # No fine-tune: 5 of 18 epochs for it left VGG-16 of half width at 20× where it was (10.0 and 10.1 % on validation).
    method = Budgeted(budget=Budget(ratio=ratio), fine_tune=0.0)
    return Preset(method=method, recipe=recipe, inputs=inputs, few_values=few)


# Optimizer, batch, decay and data are the paper preset's, so that only the method differs. Han et al. publish neither
# the epochs of the dense network nor those of a round. Values that a layer shares are as published: 6 bits and 5 bits
# for linear layers (arXiv 1510.00149, tables 2 and 3). Quality and rounds: search.json next to the results.
def _han(epochs: int, method: Han2015, levels: int) -> Preset:
    few = FewValues(levels=levels, quantize_epochs=method.retrain_epochs, quantize_lr=method.retrain_lr)
    return Preset(method=method, recipe=Recipe(epochs=epochs), few_values=few, coding=_PUBLISHED_CODING)


# The paper names every hyper-parameter but the batch size and the number of epochs. Under Adam a threshold moves by
# about lr·ρ per step, whatever the loss is, so sparsity depends on the epochs: they were chosen on validation images.
_PRESETS: Mapping[str, Mapping[str, Preset]] = {
    "paper": {"lenet-300-100": _paper(52), "lenet-5": _paper(23), "alexnet": _PAPER_ALEXNET},
    "quick": {
        "lenet-300-100": _budget(62, _sgd(44), few_values=_QUICK_FEW),
        "lenet-5": _budget(100, _sgd_lenet_5(8), few_values=_QUICK_FEW),
        # For Imagenette: about 40 minutes of one core.
        "alexnet": _budget(
            20,
            replace(_sgd(8, lr=1e-2, bias_lr=2, lambda_wd=2.5e-4, clip_norm=5.0), batch_size=64, precision="bf16"),
            inputs=_PHOTOGRAPHS,
            few_values=_QUICK_FEW,
        ),
    },
    "accurate": {"lenet-300-100": _paper_form(160, Manessi2018(rho=0.017, fine_tune_epochs=60))},
    "best": {
        "lenet-300-100": _budget(110, _sgd(110)),
        "lenet-5": _paper_form(40, Manessi2018(rho=0.06, fine_tune_epochs=20)),
        **{f"resnet-{layers}": _cifar(10, _sgd(50)) for layers in (20, 32, 56)},
        "vgg-16-cifar": _cifar(20, _vgg(30)),
        "vgg-16-cifar-half": _cifar(20, _vgg(30)),  # a minute an epoch on one core
        "vgg-16-cifar-quarter": _cifar(20, _vgg(60)),  # under a minute each
    },
    "best-augmented": {
        "lenet-300-100": _paper_form(160, Manessi2018(rho=0.046, fine_tune_epochs=60), _AUGMENTED),
        "lenet-5": _paper_form(40, Manessi2018(rho=0.09, fine_tune_epochs=30), _AUGMENTED),
    },
    "joint": {
        "lenet-300-100": _joint(1_945, _sgd(220)),
        "lenet-5": _joint(1_700, _sgd_lenet_5(60)),
    },
    "han2015": {
        "lenet-300-100": _han(20, Han2015(quality=0.8, rounds=5, retrain_epochs=6), levels=64),
        "lenet-5": _han(12, Han2015(quality=0.8, rounds=5, retrain_epochs=3), levels=32),
    },
    "general": {},
}
_PAPER_BY_DEFAULT = "lenet-300-100", "lenet-5"  # AlexNet's settings of the paper are for ILSVRC-2012 alone
# The settings of presets that take any network, for those that they have none of their own for.
_FOR_ANY = {
    "paper": Preset(method=Manessi2018(), coding=_PUBLISHED_CODING),
    "general": _budget(
        10, Recipe(epochs=30, schedule="cosine"), inputs=InputConfig(scaling="standard"), few_values=FewValues()
    ),
}


def preset_names() -> tuple[str, ...]:
    """Name the presets."""
    return tuple(_PRESETS)


def default_preset(network: str | None) -> str:
    """Return the preset that the command line starts from: "paper" for the LeNets, "general" for all others."""
    return "paper" if network is None or network in _PAPER_BY_DEFAULT else "general"


def has_preset(name: str, network: str) -> bool:
    """Return whether a preset has settings of its own for a network."""
    return network in _PRESETS.get(name, {})


def settings(name: str, network: str) -> Preset:
    """Return the settings of a preset for a network; "paper" and "general" have some for any network."""
    require_one_of("preset", name, _PRESETS)
    known = _PRESETS[name]
    if network in known:
        return known[network]
    if name in _FOR_ANY:
        return _FOR_ANY[name]
    raise ValueError(
        f'preset "{name}" has settings for {", ".join(known)}, not for "{network}": choose {" or ".join(_FOR_ANY)}'
    )


def preset(name: str, network: str, *, data: str = "mnist", seed: int = 0, to_file: bool = False) -> Job:
    """Return the job that a preset describes for a network: pruning alone or, with `to_file`, the whole pipeline."""
    found = settings(name, network)
    return Job(
        network=network,
        data=data,
        preset=name,
        methods=(found.method, found.few_values) if to_file and not found.method.leaves_few_values else (found.method,),
        recipe=found.recipe,
        inputs=found.inputs,
        coding=found.coding,
        seed=seed,
    )


def run_name(job: Job) -> str:
    """Return the name of a run's directory: network, data, preset, methods unless they are the preset's, and seed.

    A run that does not start from random weights says what it starts from. Settings that differ from the preset's show
    as a short digest; job.json spells them out.
    """
    usual = preset(job.preset, job.network, data=job.data, seed=job.seed, to_file=True)
    like = replace(usual, methods=usual.methods[: len(job.methods)])
    if type(job.methods[0]) is not type(usual.methods[0]):
        like = like.with_method(type(job.methods[0])())
    # A file name of Windows has no colon.
    parts = [job.network.replace(":", "."), Path(job.data).name.replace(":", "."), job.preset]
    if job.start:
        parts.append(f"from-{Path(job.start).stem}")
    if job.label != usual.label:
        parts.append(job.label)
    different = _differences(like.to_json(), job.to_json())
    if not Path(job.start).is_absolute():
        different.pop(".start", None)  # it is in the name; of two files that have one name, the digest differs
    if Path(job.data).is_absolute():
        different["data"] = job.data  # two folders may have one name
    if different:
        parts.append(hashlib.sha256(json.dumps(different, sort_keys=True).encode()).hexdigest()[:6])
    return "-".join([*parts, f"seed{job.seed}"])


def _differences(usual: Any, own: Any, place: str = "") -> dict[str, Any]:
    """Return the settings that differ, by their place: a setting added later does not rename runs that lack it."""
    if isinstance(usual, dict) and isinstance(own, dict):
        pairs = {f"{place}.{key}": (usual.get(key), own.get(key)) for key in usual.keys() | own.keys()}
    elif isinstance(usual, list) and isinstance(own, list) and len(usual) == len(own):
        pairs = {f"{place}[{index}]": pair for index, pair in enumerate(zip(usual, own, strict=True))}
    else:
        return {} if usual == own else {place: own}
    return {name: value for key, pair in pairs.items() for name, value in _differences(*pair, key).items()}
