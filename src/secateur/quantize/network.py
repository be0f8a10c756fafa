"""Quantisers on a whole network: which tensor gets which, what comes out in the end, and how small it would be."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList
from typing_extensions import Doc

from secateur.nearest import require_choices
from secateur.parametrization import Reading, attach, detach, readings
from secateur.prune import FixedMask, prune
from secateur.quantize.kmeans import Init
from secateur.quantize.quantizers import IntegerGrid, LearnedStep, Quantizer, SharedValues
from secateur.quantize.rate import position_bits
from secateur.sibling import Place, places, refuse_rules, refuse_unmatched, rule_of_tied
from secateur.threshold import LearnedThreshold

_LARGEST_INTEGER = {"int8": 127, "int4": 7}
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True, kw_only=True)
class QuantizeConfig:
    """How a tensor is quantised; the defaults are Deep Compression's for fully connected layers."""

    method: Annotated[
        Literal["shared", "uniform", "int8", "int4"],
        Doc("values shared by k-means, a grid with a learned step, or a grid of 8 or 4 bits up to the largest weight"),
    ] = "shared"
    levels: Annotated[int, Doc('non-zero values per tensor ("shared"), or the largest |level| ("uniform")')] = 32
    init: Annotated[Init, Doc("where k-means starts: even in value, even in probability, or at random weights")] = (
        "linear"
    )
    granularity: Annotated[
        Literal["tensor", "channel"],
        Doc("what shares a scale of int8 or int4; by channel a .cut file grows: it has one table of values per tensor"),
    ] = "tensor"
    bias_levels: Annotated[
        int | None,
        Doc("round biases and other 1-D tensors to at most so many values too, unless they are all zero"),
    ] = None
    cutoff: Annotated[float, Doc("γ, on a sibling: weights with |θ(w)| below it are zero")] = 1e-3
    seed: Annotated[int, Doc("of the random start of k-means")] = 0

    def __post_init__(self) -> None:
        require_choices(
            self,
            method=("shared", "uniform", "int8", "int4"),
            init=("linear", "density", "random"),
            granularity=("tensor", "channel"),
        )
        require_levels("levels", self.levels)
        if self.bias_levels is not None:
            require_levels("bias_levels", self.bias_levels, least=3, why=" (−1, 0 and 1 at least)")
        if not (math.isfinite(self.cutoff) and self.cutoff >= 0):
            raise ValueError(f"cutoff must be ≥ 0 and finite, got {self.cutoff}")


def require_levels(name: str, number: int, *, least: int = 1, why: str = "") -> None:
    """Refuse a number of values that no tensor can have; `name` is what the caller calls it."""
    if not _is_whole(number):
        raise ValueError(f"{name} must be a whole number, got {number!r}")
    if not least <= number <= 65_535:
        raise ValueError(f"{name} must lie in {least} … 65535{why}, got {number}")


LayerRules: TypeAlias = Mapping[str | type[nn.Module], QuantizeConfig | int | None]


def quantize(model: nn.Module, config: QuantizeConfig | None = None, *, layers: LayerRules | None = None) -> nn.Module:
    """Let every chosen weight of `model` be read through a quantiser of its own, in place; return the model.

    Zeros of weights stay zero whatever is trained afterwards, and what is not zero stays so; biases, with
    `bias_levels`, may come to zero and leave it. `layers` overrides `config` as in `build_sibling`; a number is the
    same with so many levels. A sibling takes "uniform", "int8" and "int4", and goes on learning its thresholds;
    "shared" fixes what is zero and wants a pruned network.
    """
    chosen = list(_tensors(model, config or QuantizeConfig(), layers or {}))
    for tied, rule, is_bias in chosen:  # all of them before the first change: a refused model stays as it was
        _refuse_unusable(tied[0], rule, is_bias)
    for tied, rule, is_bias in chosen:
        place = tied[0]
        weight, cutoff = _read(place), rule.cutoff if _is_learned(place) else 0.0
        if place.chain is None and not is_bias and rule.method != "shared" and not weight.all():
            mask = FixedMask((weight != 0).to(torch.uint8))
            for each in tied:
                attach(each.module, each.name, mask)
        quantizer = _quantizer(place, weight, rule, cutoff, is_bias)
        if isinstance(quantizer, SharedValues):
            place.parameter.requires_grad_(False)
        for each in tied:
            attach(each.module, each.name, quantizer)
    return model


def freeze(model: nn.Module, *, half_codebook: bool = False) -> nn.Module:
    """Return a plain copy whose tensors hold exactly the few values; class, key order and ties are the plain model's.

    With `half_codebook` shared values, steps and scales are rounded to float16, so that a file stores two bytes each;
    those of a tensor that has one outside float16's range, 2⁻²⁴ … 65504, stay as they are. A sibling's or masked
    tensors that have no quantiser are cut as `prune` does. The model is left as it is.
    """
    if not any(True for _ in readings(model, Quantizer)):
        raise ValueError(f"{type(model).__name__} is not quantised: call quantize(model) first")
    plain = copy.deepcopy(model)
    trained = [
        reading.original
        for reading in readings(plain, SharedValues)
        for part in reading.chain
        if isinstance(part, SharedValues) and part.was_trained
    ]
    detach(plain, Quantizer, lambda reading: _frozen(reading, half_codebook))
    for original in trained:
        original.requires_grad_(True)
    if any(True for kind in (LearnedThreshold, FixedMask) for _ in readings(plain, kind)):
        return prune(plain)
    return plain


def coded_bits(model: nn.Module) -> Tensor:
    """Estimate the bits that the whole model takes when it is coded; the gradient is that of a rate term.

    Add λ_rate · coded_bits(model) to the loss to trade bytes against it; coded_bits(model).item() / 8 is the size in
    bytes as it stands, without the file's header. What is not quantised counts as it is, each non-zero value with all
    of its bits, and gets no gradient. The formula stands at the head of `secateur.quantize.rate`.
    """
    total: Tensor | None = None
    for tied in places(model):
        bits = _tensor_bits(tied[0])
        total = bits if total is None else total + bits.to(total.device)
    stored = sum(8 * buffer.nbytes for buffer in _plain_buffers(model))
    return torch.tensor(float(stored)) if total is None else total + stored


def _tensors(
    model: nn.Module, config: QuantizeConfig, layers: LayerRules
) -> Iterator[tuple[list[Place], QuantizeConfig, bool]]:
    """Yield each tensor to quantise once, with the places where it hangs, its rule and whether it is a bias."""
    refuse_rules(
        layers,
        "a QuantizeConfig, a whole number of levels or None",
        lambda rule: rule is None or isinstance(rule, QuantizeConfig) or _is_whole(rule),
    )
    everything = places(model)
    refuse_unmatched(model, everything, layers)
    rules = {key: replace(config, levels=rule) if isinstance(rule, int) else rule for key, rule in layers.items()}
    found = 0
    for tied in everything:
        parameter = tied[0].parameter
        rule, is_bias = rule_of_tied(tied, config, rules), False
        if rule is None and not is_lazy(parameter) and parameter.dim() == 1:
            rule, is_bias = rule_of_tied(tied, config, rules, weights_only=False), True
        # A 1-D tensor of zeros says nothing of the scale that training will give it, so no step would suit it.
        if is_bias and rule is not None and (rule.bias_levels is None or not _read(tied[0]).any()):
            rule = None
        if rule is not None:
            found += 1
            yield tied, rule, is_bias
    if not found:
        raise ValueError(
            f"{type(model).__name__} has nothing to quantise: no Linear, convolution, Embedding, attention or "
            "recurrent weight is left by the rules; name tensors of your own layers with "
            'layers={"name.pattern": QuantizeConfig()}'
        )


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _quantizer(place: Place, weight: Tensor, rule: QuantizeConfig, cutoff: float, is_bias: bool) -> Quantizer:
    if is_bias:
        assert rule.bias_levels is not None
        return LearnedStep(weight, (rule.bias_levels - 1) // 2, 0.0, keep_survivors=False)
    if rule.method == "shared":
        return SharedValues(weight, rule.levels, rule.init, rule.seed, was_trained=place.parameter.requires_grad)
    if rule.method == "uniform":
        return LearnedStep(weight, rule.levels, cutoff, keep_survivors=True)
    # A transposed convolution stores (input channels, filters ÷ groups, …); everything else stores filters first.
    axis = 1 if isinstance(place.module, _TRANSPOSED) else 0
    return IntegerGrid(_LARGEST_INTEGER[rule.method], cutoff, axis if rule.granularity == "channel" else None)


def _read(place: Place) -> Tensor:
    """Return the tensor as its layer reads it now."""
    with torch.no_grad():
        return place.parameter.detach() if place.chain is None else place.chain()


def _is_learned(place: Place) -> bool:
    """Whether a learned threshold still decides what is zero."""
    return any(isinstance(part, LearnedThreshold) for part in place.chain or ())


def _frozen(reading: Reading, half: bool) -> Tensor:
    weight, quantizer = _before_quantizer(reading.original, reading.chain)
    assert quantizer is not None
    values = quantizer.frozen(weight, half)
    if not torch.isfinite(values).all():
        raise ValueError(
            f'"{reading.full_name}" would freeze to NaN or infinite values: its training diverged, so go back to an '
            "earlier checkpoint or train with a smaller learning rate"
        )
    learned = any(isinstance(part, LearnedThreshold) for part in reading.chain)
    if learned and not values.any():
        raise ValueError(
            f'"{reading.full_name}" would lose all of its {values.numel():,} weights (largest |θ| '
            f"{weight.abs().max().item():.2g} < cutoff): train with a smaller rho or rate term"
        )
    return values


def _before_quantizer(original: Tensor, chain: ParametrizationList) -> tuple[Tensor, Quantizer | None]:
    """Return what the quantiser of a tensor is given, and the quantiser."""
    weight = original
    for part in chain:
        if isinstance(part, Quantizer):
            return weight, part
        weight = part(weight)
    return weight, None


def _tensor_bits(place: Place) -> Tensor:
    weight: Tensor = place.parameter
    quantizer = None
    if place.chain is not None:
        weight, quantizer = _before_quantizer(weight, place.chain)
    if quantizer is not None:
        return quantizer.bits(weight)
    return _plain_bits(weight.detach(), QuantizeConfig().cutoff if _is_learned(place) else 0.0)


def _plain_bits(weight: Tensor, cutoff: float) -> Tensor:
    """Return the bits of positions and of the values as they are, or of the values alone where that is less."""
    kept = (weight.abs() >= cutoff) & (weight != 0)
    each = 8 * weight.element_size()
    sparse = position_bits(kept) + each * kept.sum()
    return sparse.clamp(max=each * weight.numel()).float()


def _plain_buffers(model: nn.Module) -> list[Tensor]:
    """Return the buffers that a plain model stores, such as norm statistics."""
    found: dict[int, Tensor] = {}
    for owner, module in model.named_modules():
        if "parametrizations" in owner.split("."):
            continue
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                found[id(buffer)] = buffer
    return list(found.values())


def _refuse_unusable(place: Place, rule: QuantizeConfig, is_bias: bool) -> None:
    name, parameter = place.full_name, place.parameter
    if place.chain is not None and any(isinstance(part, Quantizer) for part in place.chain):
        raise ValueError(f'"{name}" is quantised already: freeze(model) first, then quantise the copy')
    if is_lazy(parameter):
        raise ValueError(f'"{name}" has no shape yet: run one batch through the lazy model first')
    if not parameter.is_floating_point():
        raise ValueError(f'"{name}" holds {parameter.dtype}: quantisers need floating-point weights')
    if parameter.numel() == 0:
        raise ValueError(
            f'"{name}" is empty, shape {tuple(parameter.shape)}: leave it out with layers={{"{name}": None}}'
        )
    if rule.method == "shared" and not is_bias and _is_learned(place):
        raise ValueError(
            f'"{name}" is still learning its threshold, and method "shared" fixes what is zero: quantise '
            'prune(sibling), or choose method "uniform"'
        )
    if not torch.isfinite(_read(place)).all():
        raise ValueError(f'"{name}" holds NaN or infinite values: there is nothing to round them to')
